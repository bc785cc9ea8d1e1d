"""Makes files of whisper.cpp's format from the models that make_whisper.py has made, as its own `models/convert-h5-to-ggml.py` writes
them (f16) and as its `quantize` does (q5_1, q8_0): numbers of blocks are computed by llama.cpp's own package.

    pip install numpy safetensors gguf
    python make_ggml.py

`ggml/f16.bin` is `turbo`, whose numbers are halves, so that nothing is lost. The others are `small`, whose matrices of whole blocks are
quantised, and the rest left in halves.
"""
import json, struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type, quants
from safetensors.numpy import load_file

HERE = Path(__file__).parent
# Of a whole file, as ggml.h numbers them, and the version of blocks.
KINDS = {"f16": (1, Type.F16), "q5_1": (9 + 2000, Type.Q5_1), "q8_0": (7 + 2000, Type.Q8_0)}
NAMES = [
    ("model.", ""), (".embed_positions.weight", ".positional_embedding"), (".embed_tokens.", ".token_embedding."), ("encoder.layer_norm.", "encoder.ln_post."),
    ("decoder.layer_norm.", "decoder.ln."), (".layers.", ".blocks."), (".self_attn_layer_norm.", ".attn_ln."), (".encoder_attn_layer_norm.", ".cross_attn_ln."),
    (".final_layer_norm.", ".mlp_ln."), (".fc1.", ".mlp.0."), (".fc2.", ".mlp.2."), (".self_attn.", ".attn."), (".encoder_attn.", ".cross_attn."),
    (".q_proj.", ".query."), (".k_proj.", ".key."), (".v_proj.", ".value."), (".out_proj.", ".out."),
]


def openai(name):
    for theirs, own in NAMES: name = name.replace(theirs, own)
    return name


def letters():
    """GPT-2's letters for bytes."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(rest)}


def write(kind, case, path):
    folder, (number, type) = HERE / case, KINDS[kind]
    config = json.loads((folder / "config.json").read_text())
    tokenizer, of = json.loads((folder / "tokenizer.json").read_text()), letters()
    words = sorted(tokenizer["model"]["vocab"].items(), key=lambda word: word[1])
    out = bytearray(b"lmgg")
    sizes = ["vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers", "max_target_positions", "d_model",
             "decoder_attention_heads", "decoder_layers", "num_mel_bins"]
    out += struct.pack("<11i", *[config[size] for size in sizes], number)
    bands, bins = config["num_mel_bins"], 201
    out += struct.pack("<2i", bands, bins) + np.zeros((bands, bins), "<f4").tobytes()
    out += struct.pack("<i", len(words))
    for word, _ in words:
        word = bytes(of[letter] for letter in word)
        out += struct.pack("<i", len(word)) + word
    for name, numbers in load_file(folder / "model.safetensors").items():
        if name == "proj_out.weight": continue
        name, numbers = openai(name), numbers.astype(np.float32)
        if name in ("encoder.conv1.bias", "encoder.conv2.bias"): numbers = numbers.reshape(-1, 1)
        own = Type.F32 if name.endswith(("bias", "positional_embedding")) or numbers.ndim < 2 else Type.F16
        if own == Type.F16 and numbers.ndim == 2 and numbers.shape[1] % 32 == 0: own = type
        text = name.encode()
        out += struct.pack("<3i", numbers.ndim, len(text), int(own)) + struct.pack(f"<{numbers.ndim}i", *reversed(numbers.shape)) + text
        out += quants.quantize(numbers, own).tobytes()
    path.write_bytes(out)
    print(path.name, len(out))


(HERE / "ggml").mkdir(exist_ok=True)
for kind, case in [("f16", "turbo"), ("q5_1", "small"), ("q8_0", "small")]: write(kind, case, HERE / "ggml" / f"{kind}.bin")
