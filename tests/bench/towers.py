#!/usr/bin/env python3
"""How long a tower takes for a picture, beside llama.cpp's mtmd: the same files, the same pictures, as many threads, runs in turns.

    tests/bench/shapes.py qwen2.5-vl-3b m.gguf --layers 2; tests/bench/shapes.py qwen2.5-vl-3b-tower mmproj-m.gguf
    tests/bench/towers.py --engine target/release/hanzo-engine --llama-mtmd-cli llama-mtmd-cli -t 2 -r 3 --side 448 m.gguf mmproj-m.gguf

Ours is what `hanzo_engine_media_seconds_total` grows by, theirs what llama-mtmd-cli says its encoding took; who is first changes from
pair to pair, and each pair has a picture of its own. Then the same picture again, which no tower is to see, and a photograph of 12 megapixels
whose tower's work is done: what is left of the request is decoding and preprocessing it, and one token. --isq is ours alone. Pillow and numpy are needed.
"""
import argparse, base64, io, json, re, signal, statistics, subprocess, tempfile, time, urllib.request

import numpy as np
from PIL import Image


def picture(width, height, seed, kind="PNG"):
    numbers = np.random.default_rng(seed).integers(0, 256, (max(height // 16, 2), max(width // 16, 2), 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(numbers).resize((width, height), Image.Resampling.BICUBIC).save(file, kind, **({"quality": 92} if kind == "JPEG" else {}))
    return file.getvalue()


class Ours:
    def __init__(self, args):
        self.room = tempfile.TemporaryDirectory()
        command = [args.engine, "serve", "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--model-dir", self.room.name, "-m", args.model, "--mmproj", args.mmproj, "--threads", str(args.threads), "--max-context", "4096"]
        command += ["--isq", args.isq] if args.isq else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.places = {}
        for line in self.process.stdout:
            if args.verbose: print("   ", line, end="")
            if found := re.match(r"\s*(HTTP|admin)\s+\S*?((?:127\.0\.0\.1|localhost):\d+)", line): self.places[found[1]] = found[2]
            if len(self.places) == 2: break
        while True:
            try: urllib.request.urlopen(f"http://{self.places['HTTP']}/ready", timeout=5); break
            except OSError: time.sleep(0.2)
        self.name = json.load(urllib.request.urlopen(f"http://{self.places['HTTP']}/v1/models"))["data"][0]["id"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def seconds(self):
        text = urllib.request.urlopen(f"http://{self.places['admin']}/metrics").read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("hanzo_engine_media_seconds_total{"))

    def ask(self, data, kind="png", text="hi", **more):
        """What the tower took, and the request, and its prompt's tokens."""
        url = f"data:image/{kind};base64," + base64.b64encode(data).decode()
        content = [{"type": "image_url", "image_url": {"url": url}, **more}, {"type": "text", "text": text}]
        body = json.dumps({"model": self.name, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}).encode()
        before, began = self.seconds(), time.monotonic()
        request = urllib.request.Request(f"http://{self.places['HTTP']}/v1/chat/completions", body, {"content-type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=900))
        took = time.monotonic() - began
        return self.seconds() - before, took, answer["usage"]["prompt_tokens"]


def theirs(args, data):
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        file.write(data), file.flush()
        command = [args.llama_mtmd_cli, "-m", args.model, "--mmproj", args.mmproj, "--image", file.name, "-p", "hi", "-n", "1", "-t", str(args.threads), "--temp", "0", "--no-warmup", "--jinja", "-c", "4096"]
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    found = re.search(r"encoding done in (\d+) ms", said)
    if not found: raise SystemExit(said[-2000:])
    return int(found[1]) / 1000


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="times towers beside llama.cpp's")
    parser.add_argument("model"), parser.add_argument("mmproj")
    parser.add_argument("--engine", required=True), parser.add_argument("--llama-mtmd-cli", help="without it ours is timed alone")
    parser.add_argument("-t", "--threads", type=int, default=2), parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--side", type=int, nargs="*", default=[448], help="sides of the pictures, in pixels")
    parser.add_argument("--isq"), parser.add_argument("--seed", type=int, default=0), parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    ours = Ours(args)
    try:
        ours.ask(picture(224, 224, 1 << 20))
        for side in args.side:
            pairs = []
            for turn in range(args.rounds):
                data = picture(side, side, args.seed + turn + 1000 * side)
                run = {"ours": lambda: ours.ask(data)[0], "theirs": lambda: theirs(args, data) if args.llama_mtmd_cli else 0.0}
                pair = {name: run[name]() for name in sorted(run, reverse=turn % 2 == 1)}
                pairs.append(pair)
                print(f"{side}x{side}: ours {pair['ours']:.2f} s, theirs {pair['theirs']:.2f} s, {pair['theirs'] / max(pair['ours'], 1e-9):.2f}x", flush=True)
            again, took, tokens = ours.ask(data)
            ratios = [pair["theirs"] / max(pair["ours"], 1e-9) for pair in pairs]
            print(f"{side}x{side} median {statistics.median(pair['ours'] for pair in pairs):.2f} s, {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}); again: tower {again * 1000:.1f} ms, request {took * 1000:.0f} ms, {tokens} tokens", flush=True)
        data = picture(4000, 3000, 5, "JPEG")
        ours.ask(data, "jpeg", max_pixels=200_704)
        times = sorted(ours.ask(data, "jpeg", max_pixels=200_704)[:2] for _ in range(7))
        print(f"12 megapixels ({len(data) >> 10} KiB of JPEG) again: tower {times[-1][0] * 1000:.1f} ms, request {statistics.median(took for _, took in times) * 1000:.0f} ms ({min(t for _, t in times) * 1000:.0f} to {max(t for _, t in times) * 1000:.0f})")
    finally:
        ours.stop()
