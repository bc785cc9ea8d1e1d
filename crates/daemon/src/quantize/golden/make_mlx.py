"""What MLX's quantize makes of the matrices of the tiny checkpoints in tests/data, as lines of `name type shape SHA-256`.

    pip install 'mlx[cpu]'
    python make_mlx.py > mlx.txt

Tensors are named as mlx-lm names them: the experts of a layer are one. Matrices whose rows are not whole groups, routers and
vectors stay as they are.
"""
import hashlib, re
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)
DATA = Path(__file__).parents[5] / "tests/data"
TYPES = {mx.uint32: "U32", mx.bfloat16: "BF16", mx.float16: "F16", mx.float32: "F32"}
CASES = [("tiny/qwen3", 4, 32), ("tiny/qwen3", 3, 32), ("tiny/qwen3", 4, 64), ("tiny/qwen3", 2, 64), ("tiny/qwen3", 8, 32), ("tiny/llama3", 6, 32), ("tiny/qwen3-moe", 4, 32), ("tiny/mistral", 5, 64)]


def show(name, array):
    raw = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    import numpy as np
    print(name, TYPES[array.dtype], "x".join(map(str, array.shape)), hashlib.sha256(np.array(raw).tobytes()).hexdigest())


for case, bits, group in CASES:
    print(f"folder {case} AFQ{bits}" + ("" if group == 64 else f"_G{group}"))
    weights = mx.load(str(DATA / case / "model.safetensors"))
    stacks = {}
    for name in list(weights):
        if found := re.match(r"(.*\.mlp)\.experts\.(\d+)\.(.*)", name):
            stacks.setdefault(f"{found[1]}.switch_mlp.{found[3]}", {})[int(found[2])] = weights.pop(name)
        elif found := re.match(r"(.*\.mlp)\.experts\.(gate_up|down)_proj$", name):
            whole = weights.pop(name)
            halves = {"down_proj": whole} if found[2] == "down" else dict(zip(("gate_proj", "up_proj"), mx.split(whole, 2, axis=1)))
            weights |= {f"{found[1]}.switch_mlp.{half}.weight": mx.contiguous(w) for half, w in halves.items()}
    weights |= {name: mx.stack([experts[i] for i in range(len(experts))]) for name, experts in stacks.items()}
    for name, weight in sorted(weights.items()):
        if weight.ndim < 2 or weight.shape[-1] % group or name.endswith(".mlp.gate.weight"):
            show(name, weight)
            continue
        for part, array in zip(("weight", "scales", "biases"), mx.quantize(weight, group_size=group, bits=bits)):
            show(name.removesuffix("weight") + part, array)
