"""Makes tests/data/adapters/families.safetensors: log probabilities that PEFT computes with an adapter on the tiny models.

    pip install torch transformers peft safetensors numpy
    python make_adapted.py

The adapters are not stored: their numbers follow from the names of their modules, as in crates/runtime/src/decoder/tests/folded.rs.
Each model that a class of the transformers library computes is adapted on every projection of its layers that is a matrix of
its own, but for experts, routers, and what makes queries, keys and values of latents. Metadata has the modules of each model.
"""
import json, re
from pathlib import Path

import numpy as np, torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

HERE = Path(__file__).parent
RANK, SCALE, ROWS = 2, 2.0, 2
# Names of matrices of other parts than projections, and of projections that take no adapters.
LEFT = re.compile(r"experts?\.|\.gate$|router|shared_expert|wg$|q_[ab]_proj$|kv_b_proj$|laurel|altup|per_layer|statics|conv1d|shared_mlp|rel_attn")
MASK = (1 << 64) - 1


def numbers(name, half, count):
    """splitmix64 of the module's name and the number's place."""
    seed = half
    for byte in name.encode(): seed = (seed * 1099 + byte) & MASK
    z = ((seed << 20) + np.arange(count, dtype=object)) & MASK
    z = z * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return torch.tensor([int(x) % 129 for x in z ^ (z >> 31)], dtype=torch.float32) / 256.0 - 0.25


def modules_of(model, names):
    """Modules of layers that PEFT adapts and whose names the file has too."""
    # PEFT refuses what its kernels read past a module, in models that are all state.
    left = {"mamba2", "falcon_h1"} & {model.config.model_type} and {"out_proj"}
    linear = {name for name, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D))}
    linear = {name for name in linear if name.split(".")[-1] not in left}
    if any("kv_a_proj" in name for name in linear): linear = {name for name in linear if not name.endswith("self_attn.q_proj")}
    in_layer = lambda name: any(part.isdigit() for part in name.split("."))
    return sorted(name for name in names & linear if in_layer(name) and not LEFT.search(name))


def logs(folder):
    # Its class never takes the factors of long texts.
    if folder.name == "phimoe": raise ValueError("another rotary embedding")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with safe_open(folder / "model.safetensors", "pt") as file: names = {key.removesuffix(".weight") for key in file.keys()}
    modules = modules_of(model, names)
    if any("experts" in name for name, _ in model.named_modules()):
        # PEFT takes the names of dense MLPs for those of experts too, wherever a class has both.
        modules = [name for name in modules if not re.search(r"\.(gate|up|down)_proj$", name) or "self_attn" in name]
    if not modules: raise ValueError("no modules")
    settings = dict(r=RANK, lora_alpha=SCALE * RANK, target_modules=modules, fan_in_fan_out="gpt2" == folder.name)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
    with torch.no_grad():
        for key, p in adapted.named_parameters():
            if "lora_" not in key: continue
            name, half = re.fullmatch(r"base_model\.model\.(.*)\.lora_([AB])\.default\.weight", key).groups()
            if name not in modules: raise ValueError(f"PEFT adapts {name} too")
            p.copy_(numbers(name, 1 if half == "A" else 2, p.numel()).view(p.shape))
        golden = load_file(folder / "golden.safetensors")
        text = torch.cat([golden["prompt"], golden["greedy"]])[:-1].long()
        logits = adapted(text[None], use_cache=False).logits[0].float()
    return modules, torch.log_softmax(logits, -1)[-ROWS:].half().contiguous()


if __name__ == "__main__":
    tensors, metadata = {}, {}
    for kind in ("tiny", "dense", "mixtures", "states"):
        for folder in sorted((HERE / kind).iterdir()):
            if not (folder / "model.safetensors").exists(): continue
            label = f"{kind}/{folder.name}"
            try: modules, tensors[label] = logs(folder)
            except Exception as error:
                print(f"{label}: left out: {type(error).__name__}: {str(error)[:150]!r}")
                continue
            metadata[label] = json.dumps(modules)
            kinds = sorted({re.sub(r".*\.\d+\.", "", name) for name in modules})
            print(f"{label}: {len(modules)} modules: {' '.join(kinds)}", flush=True)
    save_file(tensors, HERE / "adapters" / "families.safetensors", metadata)
