#!/usr/bin/env python3
"""How many of the demo model's tasks are solved when its weights are of other types, as Markdown.

    tests/bench/tasks.py --engine target/release/hanzo-engine [--types Q4_K_M,AFQ4,...] [--against F16]

The 400 conversations of tests/data/eval.jsonl are asked over HTTP, greedily, and judged as the model's card judges them. Files of
the first kind of names are made by `hanzo-engine quantize` from the F32 that the demo model's file decodes to; the others load
that F32 with `--isq`. `points` is the difference from --against in hundredths of the conversations; ends with 1 where a type of four
bits or more loses over two. Only the standard library is needed.
"""

import argparse
import concurrent.futures
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = "F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS MXFP4_MOE".split()
LOADED = "Q8_1 FP8 AFQ8 AFQ6 AFQ4 HQQ8 HQQ4 MXFP4 8 6 5 4".split()
POINTS = 2


def solved(row, message):
    """The checks of the card; the server has parted thoughts and calls from the text."""
    if row["enable_thinking"] and not (message.get("reasoning_content") or "").strip():
        return False
    text, expected = (message.get("content") or "").strip(), row["expected"]
    if row["check"] == "exact":
        return text == expected.strip()
    if row["check"] == "contains":
        return expected.lower() in text.lower()
    if row["check"] == "json":
        try:
            return json.loads(text) == json.loads(expected)
        except ValueError:
            return False
    calls = [{"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])} for call in message.get("tool_calls") or []]
    return calls == expected


def with_ids(messages):
    """The conversation as OpenAI's API takes it: a call and its result have the same name, which the model never sees."""
    messages, made, answered = json.loads(json.dumps(messages)), 0, 0
    for message in messages:
        for call in message.get("tool_calls") or []:
            made += 1
            call.setdefault("id", f"call_{made}")
        if message["role"] == "tool":
            answered += 1
            message.setdefault("tool_call_id", f"call_{answered}")
    return messages


def ask(port, name, row):
    body = {"model": name, "messages": with_ids(row["messages"]), "temperature": 0, "max_tokens": len(row["reference"]) + 60,
            "chat_template_kwargs": {"enable_thinking": row["enable_thinking"]}}
    if row["tools"]:
        body["tools"] = row["tools"]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)["choices"][0]["message"]


def score(options, rows, model, isq):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = [options.engine, "serve", "-m", model, "--port", port, "--grpc-port", 0, "--admin-port", 0] + (["--isq", isq] if isq else [])
    # Not a pipe: nobody would read it, and once it is full whoever logs waits.
    said = tempfile.TemporaryFile()
    server = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=said, stdin=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5)
                break
            except OSError:
                if server.poll() is not None:
                    said.seek(0)
                    sys.exit(f"{command} ended with {server.returncode}:\n{said.read().decode()[-2000:]}")
                time.sleep(0.1)
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            return sum(solved(row, message) for row, message in zip(rows, clients.map(lambda row: ask(port, model.stem, row), rows)))
    finally:
        server.terminate()
        server.wait()
        said.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--types", type=lambda text: text.split(","), default=MADE + LOADED)
    parser.add_argument("--against", default="F16")
    options = parser.parse_args()
    rows, failed = [json.loads(line) for line in (ROOT / "tests/data/eval.jsonl").read_text().splitlines()], []
    with tempfile.TemporaryDirectory() as room:
        exact = Path(room) / "f32.gguf"

        def made(*arguments):
            done = subprocess.run([options.engine, "quantize", *map(str, arguments), "--force"], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)

        made("hanzo-demo", exact, "--to", "F32", "--allow-requantize")
        before = None
        print("| type | solved | points |\n|---|---|---|", flush=True)
        for kind in [options.against] + [kind for kind in options.types if kind != options.against]:
            file = exact
            if kind in MADE:
                file = Path(room) / "made.gguf"
                made(exact, file, "--to", kind)
            count = score(options, rows, file, None if kind in MADE else kind)
            before = count if before is None else before
            points = 100 * (count - before) / len(rows)
            failed += [kind] if points < -POINTS else []
            print(f"| {kind if kind in MADE else '--isq ' + kind} | {count} of {len(rows)} | {points:+.2f} |", flush=True)
    if failed:
        sys.exit(f"over {POINTS} points lost: {', '.join(failed)}")


if __name__ == "__main__":
    main()
