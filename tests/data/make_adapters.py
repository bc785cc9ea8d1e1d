"""Makes the adapters in tests/data/adapters, and what PEFT computes with them on the tiny models of make_golden.py.

    pip install torch transformers peft safetensors gguf numpy
    python make_adapters.py          # all cases, or: python make_adapters.py llama3-all

Each folder is as PEFT saves an adapter of tests/data/tiny/MODEL (`adapter_config.json`, `adapter_model.safetensors`), with
`golden.safetensors`: `logits` of the model's golden text (prompt and greedy tokens but the last), computed in float32. Where
GGUF can say it (one alpha, scaled by the rank), `adapter.gguf` holds the same, named, permuted and typed as llama.cpp's
`convert_lora_to_gguf.py` does.

Every number is a multiple of 1/512 below 1/2, so that F32, F16 and BF16 hold it exactly.
"""
import json, shutil, sys
from pathlib import Path

import gguf, numpy as np, torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from make_golden import GGUF_ARCHITECTURES, GGUF_NAMES

HERE = Path(__file__).parent
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]

CASES = {
    # Every projection.
    "llama3-all": ("llama3", torch.bfloat16, True, dict(r=8, lora_alpha=16, target_modules=ALL)),
    # Some of them, each of another rank and factor, scaled by the rank's root.
    "llama3-some": ("llama3", torch.float32, False, dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
                                                         rank_pattern={"v_proj": 2, "model.layers.1.mlp.down_proj": 7}, alpha_pattern={"q_proj": 3})),
    "qwen3-all": ("qwen3", torch.float16, True, dict(r=16, lora_alpha=8, target_modules=ALL)),
    # One layer alone.
    "qwen3-layer": ("qwen3", torch.bfloat16, True, dict(r=3, lora_alpha=6, target_modules=["k_proj", "o_proj", "gate_proj"], layers_to_transform=[1])),
    # Attention's projections beside experts.
    "qwen3-moe-attention": ("qwen3-moe", torch.bfloat16, True, dict(r=4, lora_alpha=8, target_modules=ATTENTION)),
}
DTYPES = {torch.float32: np.float32, torch.float16: np.float16}


def build(name, seed):
    model_name, dtype, as_gguf, settings = CASES[name]
    torch.manual_seed(seed)
    tiny, out = HERE / "tiny" / model_name, HERE / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    load = lambda: AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation="eager").eval()
    model = get_peft_model(load(), LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key: p.copy_(torch.round(torch.randn_like(p) * 0.15 * 512).clamp(-255, 255) / 512)
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text()) | {"base_model_name_or_path": model_name}
    config["target_modules"] = sorted(config["target_modules"])
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    weights = {key: value.to(dtype).contiguous() for key, value in load_file(out / "adapter_model.safetensors").items()}
    save_file(weights, out / "adapter_model.safetensors")
    golden = load_file(tiny / "golden.safetensors")
    text = torch.cat([golden["prompt"], golden["greedy"]])[:-1].long()
    with torch.no_grad():
        logits = PeftModel.from_pretrained(load(), out).eval()(text[None], use_cache=False).logits[0].float()
    change = (logits - golden["logits"]).abs().max() / (golden["logits"].max() - golden["logits"].min())
    print(f"{name}: the adapter changes logits by up to {change:.0%} of their range")
    save_file({"logits": logits.contiguous()}, out / "golden.safetensors")
    for file in out.iterdir(): file.chmod(0o644)
    if as_gguf: write_gguf(out / "adapter.gguf", weights, json.loads((tiny / "config.json").read_text()), settings["lora_alpha"])


def write_gguf(path, weights, config, alpha):
    architecture = GGUF_ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for key, tensor in weights.items():
        _, _, _, _, layer, *module, half, _ = key.split(".")
        part = GGUF_NAMES[".".join(module)]
        if architecture == "llama" and half == "lora_B" and part in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
            rows = tensor.shape[0] // heads // 2
            tensor = tensor.reshape(heads, 2, rows, -1).swapaxes(1, 2).reshape(tensor.shape)
        # bf16 as its bits: numpy has no such type.
        if tensor.dtype == torch.bfloat16:
            data, raw = tensor.contiguous().view(torch.int16).numpy().view(np.uint16), gguf.GGMLQuantizationType.BF16
            writer.add_tensor(f"blk.{layer}.{part}.weight.{half.lower()}", data.view(np.uint8), raw_dtype=raw)
        else:
            writer.add_tensor(f"blk.{layer}.{part}.weight.{half.lower()}", tensor.contiguous().numpy().astype(DTYPES[tensor.dtype]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for seed, name in enumerate(CASES):
        if len(sys.argv) == 1 or name in sys.argv[1:]: build(name, seed)
