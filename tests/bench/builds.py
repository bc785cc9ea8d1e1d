#!/usr/bin/env python3
"""Speed of one build of ours beside another in embedding, pictures, transcription and speech: the companion of `pairs.py --before`.

    tests/bench/builds.py --engine target/release/hanzo-engine --before old/hanzo-engine -t 2 -r 5 \\
        --embed all-MiniLM-L6-v2 --tower m.gguf mmproj-m.gguf --ears whisper-base --voice kokoro

Both builds serve the same model, and a round asks one after the other for the same work; who is first changes from round to round.
The table has medians of seconds, and the median, the least and the largest ratio of before to now: above 1, this build is faster.
Pictures differ from round to round, because a tower sees a picture once; their seconds are the tower's own, by
`hanzo_engine_media_seconds_total`. Pillow and numpy are needed for pictures. Nothing is downloaded."""
import argparse, http.client, io, json, math, re, statistics, struct, subprocess, tempfile, time, uuid
from pathlib import Path

PROSE = Path(__file__).parent.parent / "data" / "minilm" / "prose.txt"
SENTENCE = "The lighthouse keeper counted forty ships before the fog came in, and wrote each of their names into a book."


class Server:
    """`hanzo-engine serve` with one model, on ports of its own choice."""

    def __init__(self, engine, model, threads, *more):
        self.room = tempfile.TemporaryDirectory()
        command = [engine, "serve", "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--model-dir", self.room.name, "-m", model, "--threads", str(threads), *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.places, said = {}, []
        for line in self.process.stdout:
            said.append(line)
            if found := re.match(r"\s*(HTTP|admin)\s+\S*?((?:127\.0\.0\.1|localhost):\d+)", line): self.places[found[1]] = found[2]
            if len(self.places) == 2: break
        if len(self.places) < 2: raise SystemExit("".join(said))
        while not self.is_ready(): time.sleep(0.2)
        self.name = json.loads(self.call("HTTP", "GET", "/v1/models")[1])["data"][0]["id"]

    def is_ready(self):
        if self.process.poll() is not None: raise SystemExit("the server ended: " + self.process.stdout.read()[-2000:])
        try: return self.call("HTTP", "GET", "/ready")[0] == 200
        except OSError: return False

    def call(self, port, method, path, body=None, kind="application/json"):
        connection = http.client.HTTPConnection(self.places[port], timeout=900)
        connection.request(method, path, body, {"content-type": kind} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def ask(self, path, body, kind="application/json"):
        """Seconds of a request, which must succeed."""
        began = time.monotonic()
        status, answer = self.call("HTTP", "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), kind)
        if status != 200: raise SystemExit(f"{path}: {status} {answer[:500]}")
        return time.monotonic() - began

    def tower_seconds(self):
        text = self.call("admin", "GET", "/metrics")[1].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("hanzo_engine_media_seconds_total{"))

    def stop(self):
        self.process.terminate(); self.process.wait(60)


def embed(server, turn):
    words = PROSE.read_text().split()
    texts = [" ".join(words[(at * 37 + turn) % 400:][:12 + at % 90]) for at in range(256)]
    return server.ask("/v1/embeddings", {"model": server.name, "input": texts, "encoding_format": "base64"})


def tower(server, turn):
    import base64
    import numpy as np
    from PIL import Image
    numbers, file = np.random.default_rng(turn).integers(0, 256, (28, 28, 3), dtype=np.uint8), io.BytesIO()
    Image.fromarray(numbers).resize((448, 448), Image.Resampling.BICUBIC).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "hi"}]
    before = server.tower_seconds()
    server.ask("/v1/chat/completions", {"model": server.name, "messages": [{"role": "user", "content": content}], "max_tokens": 1})
    return server.tower_seconds() - before


def ears(server, turn):
    rate = 16_000
    tone = lambda at: int(12_000 * math.sin(at * (0.05 + 0.02 * math.sin(at / 4000 + turn))) * math.sin(at / 900))
    data = struct.pack(f"<{30 * rate}h", *map(tone, range(30 * rate)))
    wav = b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16) + b"data" + struct.pack("<I", len(data)) + data
    edge = uuid.uuid4().hex
    field = lambda name, value: f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    form = field("model", server.name) + field("language", "en") + field("temperature", "0") + f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'.encode() + wav + f"\r\n--{edge}--\r\n".encode()
    return server.ask("/v1/audio/transcriptions", form, f"multipart/form-data; boundary={edge}")


def voice(server, turn):
    return server.ask("/v1/audio/speech", {"model": server.name, "input": SENTENCE, "voice": "default", "response_format": "wav"})


def timed(name, task, args, model, *more):
    """A row of the table."""
    servers = {"now": Server(args.engine, model, args.threads, *more), "before": Server(args.before, model, args.threads, *more)}
    try:
        for server in servers.values(): task(server, 1 << 20)
        pairs = []
        for turn in range(args.rounds):
            pairs.append({which: task(servers[which], turn) for which in sorted(servers, reverse=turn % 2 == 1)})
            print(f"{name}: now {pairs[-1]['now']:.3f} s, before {pairs[-1]['before']:.3f} s", flush=True)
    finally:
        for server in servers.values(): server.stop()
    ratios = [pair["before"] / pair["now"] for pair in pairs]
    of = lambda which: statistics.median(pair[which] for pair in pairs)
    return f"| {name} | {of('now'):.3f} | {of('before'):.3f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="this build"), parser.add_argument("--before", required=True, help="the other build")
    parser.add_argument("--embed", help="a model that embeds"), parser.add_argument("--tower", nargs=2, metavar=("MODEL", "MMPROJ"))
    parser.add_argument("--ears", help="a Whisper"), parser.add_argument("--voice", help="a model that speaks")
    parser.add_argument("-t", "--threads", type=int, default=2), parser.add_argument("-r", "--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = []
    if args.embed: rows.append(timed("256 embeddings", embed, args, args.embed))
    if args.tower: rows.append(timed("tower, 448 x 448", tower, args, args.tower[0], "--mmproj", args.tower[1], "--max-context", "4096"))
    if args.ears: rows.append(timed("transcription, 30 s", ears, args, args.ears))
    if args.voice: rows.append(timed("speech, a sentence", voice, args, args.voice))
    print("\n| task | now, s | before, s | before / now |\n|---|---|---|---|\n" + "\n".join(rows))
