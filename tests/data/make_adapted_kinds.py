"""Makes tests/data/adapters/kinds.safetensors: log probabilities that PEFT computes with adapters of every kind on the tiny models.

    pip install torch transformers peft safetensors numpy
    python make_adapted_kinds.py

The kinds are magnitudes (DoRA), biases (of B, and in place of the model's), whole embeddings, heads and norms in place of the
model's, and pairs on embeddings and heads. As in make_adapted.py the adapters are not stored: their numbers follow from the
names of their modules, as in crates/runtime/src/decoder/tests/folded/kinds.rs. Metadata has the modules of each model: pairs
without the two ends, embedding and head; norms that are saved; and the modules whose biases change.
"""
import json, re
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from make_adapted import HERE, LEFT, RANK, SCALE, modules_of, numbers

ROWS = 1
# Norms and biases that adapters do not change.
KEPT = re.compile(r"[qk]_norm|[qk]_layernorm|(query|key)_layernorm|altup|laurel|q_a_|kv_a_|mixer\.norm|linear_attn\.norm|mamba\.norm|post_per_layer|pre_feedforward_layernorm_2|post_feedforward_layernorm_[12]|router|gate\.")
KINDS = {
    "dora": dict(use_dora=True),
    "biases": dict(bias="all", lora_bias=True),
    "saved": {},
    "embeddings": {},
}


def named(model, module):
    return next((name for name, of in model.named_modules() if of is module), None)


def parts_of(folder, model, kind):
    """Names of the modules that an adapter of a kind changes: pairs, whole weights, biases."""
    with safe_open(folder / "model.safetensors", "pt") as file: names = set(file.keys())
    modules = modules_of(model, {name.removesuffix(".weight") for name in names})
    if any("experts" in name for name, _ in model.named_modules()):
        modules = [name for name in modules if not re.search(r"\.(gate|up|down)_proj$", name) or "self_attn" in name]
    ends = [named(model, model.get_input_embeddings()), named(model, model.get_output_embeddings())]
    left = lambda name: LEFT.search(name) or KEPT.search(name)
    weights, biases = [], []
    if kind == "embeddings": modules = modules + ends
    norms = []
    if kind == "saved":
        hidden = model.get_input_embeddings().weight.shape[1]
        norms = [name for name, of in model.named_modules() if "Norm" in type(of).__name__ and getattr(of, "weight", None) is not None]
        norms = [name for name in norms if f"{name}.weight" in names and not left(name) and model.get_submodule(name).weight.numel() == hidden]
        weights = ends + norms
        biases = [name for name in weights if f"{name}.bias" in names and getattr(model.get_submodule(name), "bias", None) is not None]
    if kind == "biases":
        owners = [name.removesuffix(".bias") for name, _ in model.named_parameters() if name.endswith(".bias") and name in names]
        biases = [name for name in owners if not left(name) and model.get_submodule(name).bias.numel() == model.get_submodule(name).weight.shape[-1 if "Norm" in type(model.get_submodule(name)).__name__ or folder.name == "gpt2" else 0]]
    if not modules or None in ends: raise ValueError("no modules")
    return modules, weights, biases, dict(ends=ends, norms=norms)


def logs(folder, kind):
    if folder.name == "phimoe": raise ValueError("another rotary embedding")
    if kind == "biases" and folder.name.startswith("falcon-h1"): raise ValueError("its multipliers are in its matrices")
    if kind == "saved" and folder.name == "qwen3-moe-mixed": raise ValueError("the last expert chosen and the next differ by 2e-5")
    if kind == "saved" and folder.name in ("gemma3n", "gemma4-moe"): raise ValueError("its norms take no adapters")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    pairs, weights, biases, parts = parts_of(folder, model, kind)
    settings = dict(r=RANK, lora_alpha=SCALE * RANK, target_modules=pairs, fan_in_fan_out="gpt2" == folder.name, **KINDS[kind])
    if weights: settings["modules_to_save"] = weights
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    found = set()
    with torch.no_grad():
        for key, p in adapted.named_parameters():
            name = key.removeprefix("base_model.model.")
            set_to = lambda module, half, plus=None: p.copy_(numbers(module, half, p.numel()).view(p.shape) + (0 if plus is None else plus))
            if match := re.fullmatch(r"(.*)\.lora_(embedding_)?([AB])\.default(\.weight)?", name):
                if match[1] not in pairs: raise ValueError(f"PEFT adapts {match[1]} too")
                set_to(match[1], 1 if match[3] == "A" else 2)
                found.add(match[1])
            elif match := re.fullmatch(r"(.*)\.lora_B\.default\.bias", name): set_to(match[1], 6)
            elif match := re.fullmatch(r"(.*)\.lora_magnitude_vector\.default\.weight", name): set_to(match[1], 3, 0.5)
            elif match := re.fullmatch(r"(.*)\.modules_to_save\.default\.weight", name):
                set_to(match[1], 5, p.clone())
                found.add(match[1])
            elif match := re.fullmatch(r"(.*)\.modules_to_save\.default\.bias", name): set_to(match[1], 4, p.clone())
            elif match := re.fullmatch(r"(.*?)(\.base_layer)?\.bias", name):
                if match[1] in biases and kind == "biases": set_to(match[1], 4, p.clone())
        if missing := set(pairs + weights) - found: raise ValueError(f"PEFT does not change {sorted(missing)[:3]}")
        golden = load_file(folder / "golden.safetensors")
        text = torch.cat([golden["prompt"], golden["greedy"]])[:-1].long()
        logits = adapted(text[None], use_cache=False).logits[0].float()
    if kind != "embeddings": parts["pairs"] = pairs
    if kind == "biases": parts["biases"] = biases
    return {key: names for key, names in parts.items() if names}, torch.log_softmax(logits, -1)[-ROWS:].half().contiguous()


if __name__ == "__main__":
    tensors, metadata = {}, {}
    for folder in sorted(path for kind in ("tiny", "dense", "mixtures", "states") for path in (HERE / kind).iterdir()):
        if not (folder / "model.safetensors").exists(): continue
        modules = {}
        for kind in KINDS:
            label = f"{folder.parent.name}/{folder.name} {kind}"
            try: parts, tensors[label] = logs(folder, kind)
            except Exception as error:
                print(f"{label}: left out: {type(error).__name__}: {str(error)[:150]!r}")
                continue
            modules |= parts
            print(label, {key: len(names) for key, names in parts.items()}, flush=True)
        if modules: metadata[f"{folder.parent.name}/{folder.name}"] = json.dumps(modules)
    save_file(tensors, HERE / "adapters" / "kinds.safetensors", metadata)
