"""Writes fp8.bin: what PyTorch makes of 8-bit floats (float8_e4m3fn), and of weights in blocks of them.

    pip install torch numpy && python fp8.py

Little endian: the numbers of all 256 codes, f32; 4096 numbers, f32, and the codes they become, saturated; then 8 blocks of 128
weights and 8 of 32: the weights, f32, the scale, f32, and a code each.
"""
import numpy as np, torch

F8 = torch.float8_e4m3fn
rng = np.random.default_rng(20261127)
codes = torch.arange(256, dtype=torch.uint8).view(F8).to(torch.float32)


def rounded(x):
    return x.clamp(-448, 448).to(F8).view(torch.uint8).numpy()


# What lies between two codes, in the middle and just beside it, out of the range, and of all sizes.
positive = codes[:127].numpy()
middle = ((positive[1:] + positive[:-1]) / 2).astype(np.float32)
near = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))])
ends = np.array([0.0, 464.0, 480.0, 1e30, 3e38, 1e-30, 1e-45, 2**-10, 2**-11], np.float32)
x = np.concatenate([near, -near, ends, -ends])
sizes = rng.standard_normal(4096 - len(x)) * 10.0 ** rng.integers(-5, 4, 4096 - len(x))
x = torch.from_numpy(np.concatenate([x, sizes.astype(np.float32)]))
with open("fp8.bin", "wb") as out:
    out.write(codes.numpy().tobytes() + x.numpy().tobytes() + rounded(x).tobytes())
    for length in (128, 32):
        w = rng.standard_normal((8, length)).astype(np.float32) * (10.0 ** rng.integers(-4, 3, (8, 1))).astype(np.float32)
        w[0], w[1], w[2] = 0.0, 0.25, -np.abs(w[2])
        w[3, 0] *= 1000
        for row in torch.from_numpy(w):
            scale = row.abs().max() / 448
            codes = rounded(row / scale) if scale > 0 else np.zeros(length, np.uint8)
            out.write(row.numpy().tobytes() + scale.numpy().tobytes() + codes.tobytes())
