"""Writes affine.bin: what MLX makes of random weights in affine groups.

    pip install 'mlx[cpu]' numpy && python affine.py

A record is `bits u32, group u32, weights f32 (2 groups), then for each group scale f32, bias f32, codes; then what MLX's
dequantize gives, f32`, little endian, until the end of the file. The weights are of several sizes, one-sided, equal, zeros.
"""
import mlx.core as mx, numpy as np

mx.set_default_device(mx.cpu)
rng = np.random.default_rng(20251123)
with open("affine.bin", "wb") as out:
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            x = rng.standard_normal((2, group)).astype(np.float32) * np.float32(10.0 ** rng.integers(-3, 2))
            if group == 32:
                x[1] = np.abs(x[1])
            if group == 128:
                x[1] = {2: 0.0, 3: 0.25, 4: -0.5}.get(bits, x[1])
            w = mx.array(x)
            packed, scales, biases = mx.quantize(w, group_size=group, bits=bits)
            back = np.array(mx.dequantize(packed, scales, biases, group_size=group, bits=bits))
            out.write(np.array([bits, group], np.uint32).tobytes() + x.tobytes())
            packed, scales, biases = np.array(packed), np.array(scales), np.array(biases)
            for row in range(2):
                out.write(scales[row].tobytes() + biases[row].tobytes() + packed[row].tobytes())
            out.write(back.astype(np.float32).tobytes())
