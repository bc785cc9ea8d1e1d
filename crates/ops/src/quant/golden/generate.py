"""Writes decode.bin, encode.bin, decode_small.bin and encode_small.bin: what the `gguf` package (an independent implementation) makes of blocks.

    pip install gguf numpy && python generate.py

A record is `type u32, blocks u32, block bytes, weights f32`, little endian, until the end of the file. decode.bin holds
random codes under scales that include zeros, subnormals and both signs; encode.bin holds random weights and the
blocks they become.
"""
import gguf, numpy as np
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES

rng = np.random.default_rng(20250901)
# Where the f16 fields of a block lie.
HALVES = {
    T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
    T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0],
    T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0], T.IQ1_S: [0], T.TQ1_0: [52], T.TQ2_0: [64],
}
# Two blocks are enough where all 256 weights have one half-precision scale: one subnormal, one usual.
FEW = [T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ1_S, T.IQ1_M, T.TQ1_0, T.TQ2_0]
SPECIAL = np.array([0.0, -0.0, 6e-8, -3e-6, 60000.0, 1.0, -1.0], dtype=np.float16)


def decode(dtype):
    weights, size = GGML_QUANT_SIZES[dtype]
    count = 2 if dtype in FEW else 8 if weights > 1 else 64
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES.get(dtype, []):
        scales = (rng.standard_normal(count) * 0.02).astype(np.float16)
        if dtype in FEW:
            scales[0] = -3e-6
        else:
            scales[: len(SPECIAL)] = SPECIAL if at in (0, 80, 108, 208) else SPECIAL[::-1]
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
    if dtype == T.F32:
        blocks = rng.standard_normal(count).astype(np.float32).view(np.uint8).reshape(count, 4)
    if dtype == T.BF16:
        blocks[:, 1] &= 0xBF  # no infinities
    if dtype == T.IQ1_M:
        # The scale's nibbles, the lowest first, are the top ones of four words.
        for block, scale in zip(blocks, np.array([-3e-6, 0.013], dtype=np.float16).view(np.uint16)):
            for part in range(4):
                block[49 + 2 * part] = block[49 + 2 * part] & 15 | (int(scale) >> 4 * part & 15) << 4
    if dtype == T.MXFP4:
        blocks[:, 0] = [0, 1, 2, 3, 120, 127, 131, 250]
    return blocks, gguf.quants.dequantize(blocks, dtype)


def encode(dtype):
    weights, size = GGML_QUANT_SIZES[dtype]
    count = 5 if dtype in FEW else 12 if weights > 1 else 64
    x = rng.standard_normal((count, weights)).astype(np.float32)
    x *= 10.0 ** rng.integers(-3, 3, (count, 1)).astype(np.float32)
    x[0] = 0.0
    if weights > 1:
        x[1] = 0.25
        x[2] = np.abs(x[2])
        x[3] = -np.abs(x[3])
    return gguf.quants.quantize(x, dtype).view(np.uint8).reshape(count, size), x


def write(path, types, make):
    with open(path, "wb") as file:
        for dtype in types:
            blocks, weights = make(dtype)
            file.write(np.array([dtype.value, len(blocks)], dtype="<u4").tobytes())
            file.write(blocks.tobytes())
            file.write(np.ascontiguousarray(weights, dtype="<f4").tobytes())


write("decode.bin", [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K,
                     T.IQ4_NL, T.IQ4_XS, T.MXFP4, *FEW], decode)
write("encode.bin", [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4, T.TQ1_0, T.TQ2_0],
      encode)

# Types younger than the package on PyPI: NVFP4 by llama.cpp's own gguf-py, the others by GGML's formulas.
def small(dtype, weights, size, of):
    blocks = rng.integers(0, 256, (4, size), dtype=np.uint8)
    blocks[:, :2] = np.array([0.0, -3e-6, 0.013, 1.5], dtype=np.float16).view(np.uint8).reshape(4, 2)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.array([dtype, 4], dtype="<u4").tobytes() + blocks.tobytes() + of(d, bits).astype("<f4").tobytes()


def small_encode(dtype, weights, of):
    x = rng.standard_normal((6, weights)).astype(np.float32) * 0.1
    x[0], x[1], x[2] = 0.0, 0.25, np.abs(x[2])
    d, bits = of(x)
    blocks = np.concatenate([d.astype(np.float16).view(np.uint8).reshape(6, 2), np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")], axis=1)
    return np.array([dtype, 6], dtype="<u4").tobytes() + blocks.tobytes() + x.tobytes()


def two_bits(x):
    d = np.abs(x).max(1, keepdims=True)
    q = x * np.where(d > 0, np.float32(1) / np.where(d > 0, d, 1), 0).astype(np.float32)
    q = np.clip(np.sign(q) * np.floor(np.abs(q) + np.float32(0.5)) + 1, 0, 3).astype(np.uint8)
    return d, np.stack([q & 1, q >> 1], -1).reshape(len(x), -1)


with open("decode_small.bin", "wb") as file:
    blocks = rng.integers(0, 256, (4, 36), dtype=np.uint8)
    blocks[:, :4] &= 0x7F  # scales have no sign
    blocks[0, :4] = [0, 1, 0x7F, 0x7E]
    file.write(np.array([40, 4], dtype="<u4").tobytes() + blocks.tobytes())
    file.write(np.ascontiguousarray(gguf.quants.dequantize(blocks, T.NVFP4), dtype="<f4").tobytes())
    file.write(small(41, 128, 18, lambda d, bits: np.where(bits == 1, d, -d)))
    file.write(small(42, 64, 18, lambda d, bits: ((bits[:, ::2] + 2 * bits[:, 1::2]).astype(np.float32) - 1) * d))
with open("encode_small.bin", "wb") as file:
    file.write(small_encode(41, 128, lambda x: (np.abs(x).sum(1, keepdims=True, dtype=np.float32) / np.float32(128), x >= 0)))
    file.write(small_encode(42, 64, two_bits))

# The expanded codebooks, one byte a weight, as FNV-1a sums: what tests.rs has in `codebooks_are_those_of_the_format`.
for quant in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
    quant = getattr(gguf.quants, quant)
    quant.init_grid()
    total = 0xCBF29CE484222325
    for byte in quant.grid.astype(np.int8).tobytes():
        total = (total ^ byte) * 0x100000001B3 % 2**64
    print(f"{quant.__name__} {total:#018x}")
