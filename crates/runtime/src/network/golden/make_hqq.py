"""Makes hqq.bin: random weights, and the mean error of what HQQ's own library makes of them.

    pip install hqq torch
    python make_hqq.py

For each kind of weights: 8 rows of 256 weights as f32, then of four pairs of bits and group these two as u32 and the library's mean
absolute error as f32.
"""
import pathlib
import struct

import torch
from hqq.core.quantize import Quantizer

COLS, ROWS = 256, 8
torch.manual_seed(7)
KINDS = {
    "normal": torch.randn(ROWS, COLS) * 0.02,
    # A few that stick out, as weights of models have them.
    "outliers": torch.randn(ROWS, COLS) * 0.02 * (1 + 9 * (torch.rand(ROWS, COLS) < 0.02)),
    # So large that what is missed counts as an outlier by itself.
    "large": torch.randn(ROWS, COLS) * 40,
    "all above zero": torch.rand(ROWS, COLS) * 0.1 + 0.3,
}

out = b""
for weights in KINDS.values():
    out += weights.numpy().astype("<f4").tobytes()
    for bits, group in ((4, 64), (8, 64), (3, 32), (2, 128)):
        codes, meta = Quantizer.quantize(weights, nbits=bits, group_size=group, axis=1, optimize=True, bitpack=False, device="cpu", compute_dtype=torch.float32)
        made = ((codes.float() - meta["zero"]) * meta["scale"]).reshape(ROWS, COLS)
        out += struct.pack("<IIf", bits, group, (weights - made).abs().mean().item())
(pathlib.Path(__file__).parent / "hqq.bin").write_bytes(out)
