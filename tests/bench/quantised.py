#!/usr/bin/env python3
"""What `quantize` makes beside what llama-quantize makes of the same file, as Markdown.

    tests/bench/quantised.py --engine target/release/hanzo-engine --llama LLAMA_CPP_BIN [--model F32.gguf] [--types Q4_K_M,Q8_0] [--imatrix]

Two tables. How much each type loses: both programs quantise one file in F32 (of --model: by default the demo model in it), and
llama-perplexity gives the mean Kullback-Leibler divergence of either result from the F32 (--text, by default the conversations in
tests/data/eval.jsonl). Types of tensors are compared too. And whether files are read alike: 64 greedy tokens after each of ten
prompts, of our file in both engines, and of theirs in both. Where two engines come apart, `margin` is how much less likely, in
nats, the second-best token was there: a near tie is decided by the order of additions, and by how activations are rounded to bytes
for products with quantised weights. So each such file is compared once more without that: decoded to F32 by either program, and the
result read by the other's engine. With --imatrix both quantise with an
importance matrix that `hanzo-engine imatrix` makes of the text. Only the standard library and gguf are needed.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from gguf import GGUFReader

ROOT = Path(__file__).resolve().parents[2]
TYPES = "Q2_K Q3_K_S Q3_K_M Q3_K_L IQ4_XS IQ4_NL Q4_0 Q4_K_S Q4_K_M Q4_1 Q5_0 Q5_K_S Q5_K_M Q5_1 Q6_K Q8_0 MXFP4_MOE F16 BF16".split()
PROMPTS = ["The capital of France is", "Once upon a time", "Q: What is 7 times 8?\nA:", "Dear Sir or Madam,", "def add(a, b):\n    return", "Hanzo is an inference engine",
           "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n",
           "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n", "The weather today"]
TOKENS = 64
FLOATS = ("F16", "BF16", "F32")


def call(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def text_of(options, room):
    if options.text:
        return options.text
    path = room / "text"
    rows = map(json.loads, (ROOT / "tests/data/eval.jsonl").read_text().splitlines())
    path.write_text("\n\n".join("\n".join([message["content"] for message in row["messages"] if message.get("content")] + [row["expected"]]) for row in rows if isinstance(row["expected"], str)))
    return path


def divergence(*command):
    """The mean that llama-perplexity tells; it sometimes ends before all its words are out."""
    for _ in range(20):
        if found := re.search(r"Mean\s+KLD:\s*(-?[0-9.]+)", call(*command)):
            return float(found[1])
    sys.exit(f"{' '.join(map(str, command))}\ntold no divergence")


def types(path):
    return {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(path).tensors}


def made(options, room, model, kind, matrix):
    """Our file of a type, and theirs."""
    ours, theirs = room / f"ours-{kind}.gguf", room / f"theirs-{kind}.gguf"
    extra = ["--imatrix", matrix] if matrix else []
    call(options.engine, "quantize", model, ours, "--to", kind, "--force", "--threads", options.threads, *extra)
    call(options.llama / "llama-quantize", *extra, model, theirs, kind, options.threads)
    return ours, theirs


def divergences(options, room, model, text, matrix):
    perplexity, same = options.llama / "llama-perplexity", ["-c", 512, "-t", options.threads, "--chunks", options.chunks, "--kl-divergence-base", room / "base"]
    call(perplexity, "-m", model, "-f", text, *same)
    print("| type | ours | llama-quantize's | ratio | tensors of another type |\n|---|---|---|---|---|", flush=True)
    for kind in options.types:
        files = made(options, room, model, kind, matrix)
        ours, theirs = (divergence(perplexity, "-m", file, *same, "--kl-divergence") for file in files)
        known, other = map(types, files)
        differ = sorted(name for name in known if other.get(name) != known[name])
        ratio = f"{ours / theirs:.3f}" if theirs > 1e-5 else "–"
        print(f"| {kind} | {ours:.6f} | {theirs:.6f} | {ratio} | {', '.join(differ) or 'none'} |", flush=True)
        for file in files:
            file.unlink()


def port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def completions(command, at, ready, name, ends):
    """The ten texts, and of each the best two log-probabilities of every token."""
    server = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{at}/{ready}", timeout=5)
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit(f"{command[0]} ended with {server.returncode}")
                time.sleep(0.1)
        found = []
        for prompt in PROMPTS:
            body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 4, "seed": 1, "logit_bias": {token: -100 for token in ends}}
            request = urllib.request.Request(f"http://127.0.0.1:{at}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
            found.append(json.load(urllib.request.urlopen(request, timeout=300))["choices"][0])
        return found
    finally:
        server.terminate()
        server.wait()


def tokens_of(choice):
    """Tokens, and how much less likely the next best was than each; both engines have shapes of their own."""
    said = choice["logprobs"]
    if "content" in said:
        rows = [(entry["token"], entry["logprob"], [top["logprob"] for top in entry["top_logprobs"]]) for entry in said["content"]]
    else:
        rows = [(token, own, top.values()) for token, own, top in zip(said["tokens"], said["token_logprobs"], said["top_logprobs"])]
    # What ends a text may be likelier, and is not drawn.
    margins = [own - max((other for other in top if other < own), default=-float("inf")) for _, own, top in rows]
    return [token for token, *_ in rows], margins


def greedy(options, room, model):
    print("\n| file | prompts alike | tokens compared | where they come apart |\n|---|---|---|---|", flush=True)
    for kind in options.greedy:
        for whose, path in zip(("ours", "theirs"), made(options, room, model, kind, None)):
            pairs = [(f"{whose}, {kind}", path, path)]
            if kind not in FLOATS:
                crossed = [room / f"{whose}-{kind}-by-{program}.gguf" for program in ("llama", "engine")]
                call(options.llama / "llama-quantize", "--allow-requantize", path, crossed[0], "F32", options.threads)
                call(options.engine, "quantize", path, crossed[1], "--to", "F32", "--allow-requantize", "--force")
                pairs.append((f"{whose}, {kind}, decoded to F32", *crossed))
            for row in pairs:
                compare(options, *row)
            for file in {file for row in pairs for file in row[1:]}:
                file.unlink()


def compare(options, what, own_file, other_file):
    """A row: what our engine says of one file, and llama-server of another, that should be the same."""
    ours_at, theirs_at = port(), port()
    # What ends a text is not drawn, so that each is as long as it may be.
    fields = GGUFReader(own_file).fields
    ends = [str(fields[key].contents()) for key in (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")) if key in fields]
    ours = completions([options.engine, "serve", "-m", own_file, "--port", ours_at, "--grpc-port", 0, "--admin-port", 0, "--threads", options.threads], ours_at, "ready", own_file.stem, ends)
    theirs = completions([options.llama / "llama-server", "-m", other_file, "--port", theirs_at, "-t", options.threads, "-c", 2048, "--no-webui"], theirs_at, "health", other_file.stem, ends)
    alike, compared, apart = 0, 0, []
    for number, (first, second) in enumerate(zip(ours, theirs)):
        (own, margins), (other, _) = tokens_of(first), tokens_of(second)
        same = next((at for at, pair in enumerate(zip(own, other)) if pair[0] != pair[1]), min(len(own), len(other)))
        compared += same
        if first["text"] == second["text"]:
            alike += 1
        else:
            apart.append(f"prompt {number + 1}, token {same + 1}: margin {margins[same] if same < len(margins) else 0:.4f}")
    print(f"| {what} | {alike} of {len(PROMPTS)} | {compared} | {'; '.join(apart) or '–'} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--llama", type=Path, required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--model", type=Path, help="a file in F32")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--types", type=lambda text: [part for part in text.split(",") if part], default=TYPES)
    parser.add_argument("--greedy", type=lambda text: [part for part in text.split(",") if part], default=["F16", "Q8_0", "Q4_K_M"])
    parser.add_argument("--chunks", type=int, default=-1, help="chunks of 512 tokens of the text; all by default")
    parser.add_argument("--imatrix", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        room = Path(room)
        model, text = options.model or room / "f32.gguf", text_of(options, room)
        if not options.model:
            call(options.engine, "quantize", "hanzo-demo", model, "--to", "F32", "--allow-requantize")
        matrix = room / "imatrix.gguf" if options.imatrix else None
        if matrix:
            call(options.engine, "imatrix", model, "-f", text, "-o", matrix)
        if options.types:
            divergences(options, room, model, text, matrix)
        if options.greedy:
            greedy(options, room, model)


if __name__ == "__main__":
    main()
