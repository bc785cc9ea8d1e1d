"""Which types llama.cpp's `llama-quantize --dry-run` gives the tensors of files of several shapes, as mixes.txt.

make.py LLAMA_QUANTIZE > mixes.txt    (needs gguf and numpy; the files have headers and some zeros)

A model is `model NAME`, `key KEY VALUE` of numbers and texts, `tensor NAME SHAPE` (outermost first), then for each mix
`mix NAME TYPES`, types in the order of the tensors by layer and name.
"""

import os
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np

MIXES = """TQ1_0 TQ2_0 Q2_K Q3_K_S Q3_K_M Q3_K_L IQ4_XS MXFP4_MOE IQ4_NL Q4_0 Q4_K_S Q4_K_M Q4_1 Q5_0 Q5_K_S Q5_K_M
Q5_1 Q6_K Q8_0 F16 BF16 F32""".split()


def attention(layer, width, fused=False):
    names = ["attn_qkv"] if fused else ["attn_q", "attn_k", "attn_v"]
    return [(f"blk.{layer}.{name}.weight", (2, width)) for name in names + ["attn_output"]]


def dense(layers, width, inner, tied=False, fused=False, extra=()):
    tensors = [("token_embd.weight", (4, width)), ("output_norm.weight", (width,))]
    if not tied:
        tensors.append(("output.weight", (4, width)))
    for layer in range(layers):
        tensors += attention(layer, width, fused)
        tensors += [(f"blk.{layer}.ffn_norm.weight", (width,)), (f"blk.{layer}.ffn_up.weight", (2, width)),
                    (f"blk.{layer}.ffn_down.weight", (2, inner))]
    return tensors + list(extra)


def experts(layers, width, inner, count):
    tensors = [("token_embd.weight", (4, width)), ("output.weight", (4, width))]
    for layer in reversed(range(layers)):
        tensors += attention(layer, width)
        tensors += [(f"blk.{layer}.ffn_gate_inp.weight", (count, width)),
                    (f"blk.{layer}.ffn_up_exps.weight", (count, 2, width)),
                    (f"blk.{layer}.ffn_down_exps.weight", (count, 2, inner)),
                    (f"blk.{layer}.ffn_down_shexp.weight", (2, inner))]
    return tensors


MODELS = [
    ("plain", "llama", {"heads": 8, "kv": 8, "layers": 17}, dense(17, 256, 512)),
    ("grouped", "qwen3", {"heads": 8, "kv": 2, "layers": 16}, dense(16, 256, 512, tied=True)),
    ("large", "llama", {"heads": 64, "kv": 8, "layers": 80},
     [(f"blk.{layer}.{name}.weight", (2, 256)) for layer in range(80) for name in ("attn_v", "ffn_down")]),
    ("eight", "llama", {"heads": 8, "kv": 2, "layers": 9, "experts": 8}, experts(9, 256, 512, 8)),
    ("many", "qwen3moe", {"heads": 8, "kv": 2, "layers": 12, "experts": 16}, experts(12, 256, 512, 16)),
    ("falcon", "falcon", {"heads": 8, "kv": 1, "layers": 18}, dense(18, 256, 512, fused=True)),
    ("odd", "llama", {"heads": 8, "kv": 4, "layers": 9}, dense(9, 288, 320, extra=[("blk.0.odd.weight", (2, 40)),
                                                                           ("blk.0.row.weight", (1, 256))])),
]


def write(path, arch, facts, tensors):
    writer = gguf.GGUFWriter(path, arch)
    keys = {"block_count": facts["layers"], "attention.head_count": facts["heads"], "attention.head_count_kv": facts["kv"],
            "expert_count": facts.get("experts", 0)}
    for key, value in keys.items():
        writer.add_uint32(f"{arch}.{key}", value)
    # What llama.cpp asks for besides.
    for key, value in {"context_length": 64, "embedding_length": 256, "feed_forward_length": 512, "vocab_size": 4,
                       "expert_used_count": 2 if facts.get("experts") else 0, "expert_feed_forward_length": 512}.items():
        writer.add_uint32(f"{arch}.{key}", value)
    for key in ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"]:
        writer.add_float32(f"{arch}.{key}", 1e-5)
    for name, shape in tensors:
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        for name, arch, facts, tensors in MODELS:
            keys = write(path, arch, facts, tensors)
            print(f"model {name}")
            for key, value in keys.items():
                print(f"key {key} {value}")
            for tensor, shape in tensors:
                print(f"tensor {tensor} {'x'.join(map(str, shape))}")
            for mix in MIXES:
                run = subprocess.run([sys.argv[1], "--dry-run", path, mix], capture_output=True, text=True)
                text = run.stdout + run.stderr
                if run.returncode:
                    sys.exit(text)
                types = [found[1] or found[0] for found in re.findall(
                    r"^\[ *\d+/ *\d+\].*?type = +(\w+), .*?size = +[\d.]+ MiB(?: -> +[\d.]+ MiB \((\w+)\))?", text, re.M | re.S)]
                assert len(types) == len(tensors), (len(types), len(tensors), text)
                print(f"mix {mix} {' '.join(types).upper()}")


main()
