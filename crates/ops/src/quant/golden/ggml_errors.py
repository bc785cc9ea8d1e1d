"""Prints how far GGML's own encoders are from three kinds of weights: the table in quant/tests/ggml.rs.

    pip install numpy gguf
    python ggml_errors.py libggml-base.so        # of any build of llama.cpp

Each row is a type, then for each kind of weights the root of the mean squared error relative to the weights', alone and, where
the type reads it, with an importance for each column, by which the errors are weighed then.
"""
import ctypes, sys

import gguf, numpy as np

COLS, ROWS = 1024, 24
TYPES = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]


def uniforms(count, seed):
    out = np.zeros(count, np.float32)
    for i in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = np.float32(seed >> 40) / np.float32(1 << 24) - np.float32(0.5)
    return out


def kinds():
    normal = np.zeros(ROWS * COLS, np.float32)
    for part in uniforms(12 * ROWS * COLS, 7).reshape(-1, 12).T: normal += part
    normal *= np.float32(0.02)
    # Heavy tails, as of layers of large models; and rows of few sizes with a part that is far from zero.
    heavy = normal * np.abs(normal) * np.float32(40)
    shifted = normal + np.float32(0.03) * (np.arange(ROWS * COLS) // 64 % 3).astype(np.float32)
    return normal, heavy, shifted


def main(path):
    library = ctypes.CDLL(path)
    columns = np.abs(uniforms(COLS, 11)) * np.float32(4) + np.float32(0.01)
    for name in TYPES:
        dtype = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[dtype]
        quantize = getattr(library, "quantize_" + name.replace("IQ", "iq").replace("_K", "_K").lower().replace("_k", "_K"))
        quantize.restype = ctypes.c_size_t
        quantize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        found = []
        for weights in kinds():
            for importance in (None, columns):
                if importance is not None and name in ("Q8_0", "TQ1_0", "TQ2_0", "MXFP4"): continue
                out = np.zeros(ROWS * COLS // block * size, np.uint8)
                quantize(weights.ctypes.data, out.ctypes.data, ROWS, COLS, None if importance is None else importance.ctypes.data)
                back = gguf.quants.dequantize(out.reshape(ROWS, -1), dtype).astype(np.float64).reshape(ROWS, COLS)
                weigh = np.ones(COLS) if importance is None else importance.astype(np.float64)
                w = weights.reshape(ROWS, COLS).astype(np.float64)
                found.append(np.sqrt((weigh * (w - back) ** 2).sum() / (weigh * w**2).sum()))
        print(f'    (DType::{name}, &[{", ".join(f"{x:.6f}" for x in found)}]),')


main(sys.argv[1])
