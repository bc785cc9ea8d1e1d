#!/usr/bin/env python3
"""Importance matrices of `hanzo-engine imatrix` beside llama-imatrix's of the same model and text, as Markdown.

    tests/bench/imatrix.py --engine target/release/hanzo-engine --llama LLAMA_CPP_BIN --model M.gguf --text TEXT [--quantize Q4_K_M]

Both programs read the same chunks, and write GGUF and the format of before. Told is which tensors either knows alone, how many of the
experts' counts are the same, and how far sums are apart: of each tensor the mean difference of a column's mean square, as a share of the
mean of all. With --quantize each program quantises the model with the other's files too, and whether the bytes of all tensors are those
that it makes with the other format of the same matrix. Only the standard library, numpy and gguf are needed.
"""

import argparse
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader


def call(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def of_gguf(path):
    """Means and counts by tensor."""
    tensors = {tensor.name: np.array(tensor.data, dtype=np.float64) for tensor in GGUFReader(path).tensors}
    found = {}
    for name, counts in tensors.items():
        if stem := name.removesuffix(".counts") if name.endswith(".counts") else None:
            counts = counts.reshape(-1, 1)
            sums = tensors[f"{stem}.in_sum2"].reshape(len(counts), -1)
            found[stem] = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0), counts.ravel()
    return found


def of_dat(path):
    data, at, found = path.read_bytes(), 4, {}
    for _ in range(struct.unpack_from("<i", data)[0]):
        length, = struct.unpack_from("<i", data, at)
        name = data[at + 4:at + 4 + length].decode()
        calls, values = struct.unpack_from("<ii", data, at + 4 + length)
        at += 12 + length
        found[name] = np.frombuffer(data, "<f4", values, at).astype(np.float64) / max(calls, 1), None
        at += 4 * values
    return found


def compared(ours, theirs):
    print(f"tensors: {len(ours)} and {len(theirs)}; ours alone: {', '.join(sorted(ours.keys() - theirs.keys())) or 'none'}; theirs alone: {', '.join(sorted(theirs.keys() - ours.keys())) or 'none'}\n")
    print("| tensors | columns | counts alike | mean difference, median and largest |\n|---|---|---|---|")
    kinds = {}
    for name in sorted(ours.keys() & theirs.keys()):
        kinds.setdefault(name.split(".", 2)[-1] if name.startswith("blk.") else name, []).append(name)
    for kind, names in kinds.items():
        apart, alike, counts = [], 0, 0
        for name in names:
            (mine, own), (other, their) = ours[name], theirs[name]
            if mine.size != other.size:
                sys.exit(f"{name}: {mine.shape} and {other.shape}")
            apart.append(float(np.abs(mine.ravel() - other.ravel()).mean() / max(np.abs(other).mean(), 1e-30)))
            if own is not None:
                alike, counts = alike + int((own == their).sum()), counts + own.size
        print(f"| {len(names)} x {kind} | {ours[names[0]][0].size} | {f'{alike} of {counts}' if counts else '–'} | {statistics.median(apart):.1e}, {max(apart):.1e} |")
    print(flush=True)


def same(one, other):
    """Whether two files have the same tensors."""
    first, second = ({tensor.name: tensor.data.tobytes() for tensor in GGUFReader(path).tensors} for path in (one, other))
    differ = [name for name in first if first[name] != second.get(name)]
    return f"{len(first) - len(differ)} of {len(first)} tensors the same" + (f" (not {', '.join(differ[:5])})" if differ else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--llama", type=Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quantize", metavar="TYPE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        room, shapes = Path(room), ["--chunks", options.chunks]
        files = {(whose, form): room / f"{whose}.{form}" for whose in ("ours", "theirs") for form in ("gguf", "dat")}
        for form in ("gguf", "dat"):
            call(options.engine, "imatrix", options.model, "-f", options.text, "-o", files["ours", form], "--output-format", form, "--chunk-tokens", options.chunk_tokens, "--threads", options.threads, *shapes)
            call(options.llama / "llama-imatrix", "-m", options.model, "-f", options.text, "-o", files["theirs", form], "--output-format", form, "-c", options.chunk_tokens, "-b", options.chunk_tokens, "--no-ppl", "-t", options.threads, *shapes)
        for form, read in (("gguf", of_gguf), ("dat", of_dat)):
            print(f"{form}:", end=" ")
            compared(read(files["ours", form]), read(files["theirs", form]))
        if options.quantize:
            for whose in ("ours", "theirs"):
                made = {}
                for form in ("gguf", "dat"):
                    matrix = files[whose, form]
                    made["ours", form], made["theirs", form] = room / f"quantize-{form}.gguf", room / f"llama-quantize-{form}.gguf"
                    call(options.engine, "quantize", options.model, made["ours", form], "--to", options.quantize, "--allow-requantize", "--imatrix", matrix, "--threads", options.threads, "--force")
                    call(options.llama / "llama-quantize", "--allow-requantize", "--imatrix", matrix, options.model, made["theirs", form], options.quantize, options.threads)
                for by, program in (("ours", "quantize"), ("theirs", "llama-quantize")):
                    print(f"{program} with {whose} of both formats: {same(made[by, 'gguf'], made[by, 'dat'])}", flush=True)


main()
