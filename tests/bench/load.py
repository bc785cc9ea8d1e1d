#!/usr/bin/env python3
"""What clients of an OpenAI-compatible server see under load: time to first token, time per token, gaps, tokens per second.

    tests/bench/load.py --server ours=http://127.0.0.1:36900 --server theirs=http://127.0.0.1:8080 \\
        --clients 16 --prompt 128 --answer 64 --rounds 5

Each client sends `--requests` completions, one after the other, and streams them; all clients run at once. A round is such a
run against each server in turn, who is first changes from round to round, and each has a run that does not count before. The
table has medians over rounds; of two servers also the ratio of the first to the second, with the least and the largest in
brackets. Prompts are token ids, drawn anew for each request from `--seed`, the same ones for each server; --prefix puts
so many tokens before all of them, the same for all.

    TTFT   from sending a request to its first token
    TPOT   from the first token to the last, over the tokens between
    ITL    from one event with text to the next, of all streams together
    tok/s  tokens of all answers over the time of the run

--long TOKENS sends, once half of the first answers have come, one prompt of that length beside them, and tells the 99th
percentile of the gaps of the others while it is computed, over the median gap before. --sound FILE --ears MODEL has a sound written down
instead, for as long as they stream: it is sent again when it is over. --picture SIDE sends a picture of so many pixels a side. Only the standard library is needed.
"""

import argparse
import base64
import http.client
import json
import random
import socket
import statistics
import struct
import sys
import threading
import time
import urllib.parse
import zlib


class Failed(Exception):
    """A server did not answer as one does."""


class Server:
    def __init__(self, text):
        self.name, _, url = text.partition("=")
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=http://HOST:PORT")
        self.address, self.path = (parts.hostname, parts.port or 80), parts.path.rstrip("/")
        self.model = None

    def get(self, path):
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        connection.request("GET", self.path + path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Failed(f"{self.name}: GET {path} is {answer.status}: {body[:300]!r}")
        return json.loads(body)

    def find_model(self, wanted):
        self.model = wanted or self.get("/v1/models")["data"][0]["id"]


class Answer:
    """One streamed completion."""

    def __init__(self, server, prompt, tokens):
        self.events, self.tokens, self.sent, self.error = [], 0, None, None
        self.server, self.prompt, self.wanted = server, prompt, tokens

    def run(self, on_event=lambda: None):
        body = {
            "model": self.server.model,
            "prompt": self.prompt,
            "max_tokens": self.wanted,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(*self.server.address, timeout=600)
        try:
            self.sent = time.monotonic()
            headers = {"content-type": "application/json"}
            connection.request("POST", self.server.path + "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise Failed(f"{self.server.name}: {answer.status}: {answer.read()[:300]!r}")
            self.read(answer, on_event)
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{self.server.name}: {error}") from error
        finally:
            connection.close()

    def read(self, answer, on_event):
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Failed(f"{self.server.name}: {event['error']}")
            usage = event.get("usage")
            if usage:
                self.tokens = usage["completion_tokens"]
            # Tokens that are no text yet are events of some servers and not of others: each event with a choice counts,
            # but for the one that only says why it ended.
            if any(not choice.get("finish_reason") or choice.get("text") for choice in event.get("choices") or []):
                self.events.append(time.monotonic())
                on_event()
        if self.tokens != self.wanted or not self.events:
            raise Failed(f"{self.server.name}: {self.tokens} tokens in {len(self.events)} events, not {self.wanted}")

    def gaps(self):
        return [later - earlier for earlier, later in zip(self.events, self.events[1:])]

    def ended(self):
        return self.events[0]


class Seen:
    """A picture of so many pixels a side, which nobody has seen before, in a chat whose answer is a token. Who has asked leaves when the others have
    their answers, if the picture takes longer."""

    def __init__(self, server, side, seed):
        draw = random.Random(seed)
        lines = [b"\0" + b"".join(draw.randbytes(3) * 16 for _ in range((side + 15) // 16))[: 3 * side] for _ in range((side + 15) // 16)]
        pixels = b"".join(line * 16 for line in lines)[: (3 * side + 1) * side]
        chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
        url = "data:image/png;base64," + base64.b64encode(png).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        self.server, self.sent, self.last = server, None, None
        self.body = json.dumps({"model": server.model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0})
        self.connection = http.client.HTTPConnection(*server.address, timeout=900)

    def run(self):
        self.sent = time.monotonic()
        try:
            self.connection.request("POST", self.server.path + "/v1/chat/completions", self.body, {"content-type": "application/json"})
            answer = self.connection.getresponse()
            told = answer.read()
        except (OSError, http.client.HTTPException) as error:
            if self.last is None:
                raise Failed(f"{self.server.name}: {error}") from error
            return
        if answer.status != 200:
            raise Failed(f"{self.server.name}: {answer.status}: {told[:300]!r}")
        self.last = self.last or time.monotonic()

    def leave(self):
        self.last = self.last or time.monotonic()
        if self.connection.sock:
            self.connection.sock.shutdown(socket.SHUT_RDWR)

    def ended(self):
        return self.last


class Heard:
    """A sound that is written down again and again until others have their answers."""

    def __init__(self, server, file, ears):
        self.server, self.ears, self.sound, self.times, self.sent = server, ears, open(file, "rb").read(), 0, None
        self.enough, self.last = threading.Event(), None

    def run(self):
        mark = "ten-thousand-words"
        fields = {"model": self.ears, "temperature": "0", "response_format": "verbose_json"}
        form = "".join(f'--{mark}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
        form += f'--{mark}\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        body = form.encode() + self.sound + f"\r\n--{mark}--\r\n".encode()
        self.sent = time.monotonic()
        while not self.enough.is_set():
            connection = http.client.HTTPConnection(*self.server.address, timeout=600)
            headers = {"content-type": f"multipart/form-data; boundary={mark}"}
            connection.request("POST", self.server.path + "/v1/audio/transcriptions", body, headers)
            answer = connection.getresponse()
            told = answer.read()
            connection.close()
            if answer.status != 200:
                raise Failed(f"{self.server.name}: {answer.status}: {told[:300]!r}")
            self.times += 1
        self.last = time.monotonic()

    def ended(self):
        return self.last


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(server, args, seed):
    """One run: its figures by name."""
    draw = random.Random(seed)
    ids = lambda count: [draw.randrange(args.vocab // 8, args.vocab) for _ in range(count)]
    prefix = random.Random(args.seed).choices(range(args.vocab // 8, args.vocab), k=args.prefix)
    queues = [
        [Answer(server, prefix + ids(args.prompt), args.answer) for _ in range(args.requests)]
        for _ in range(args.clients)
    ]
    failures, begun, seen = [], threading.Event(), threading.Semaphore(0)

    def client(queue):
        try:
            for answer in queue:
                if isinstance(answer, (Heard, Seen)):
                    answer.run()
                    continue
                answer.run(seen.release)
                # Tokens that came several to an event, as drafted ones do.
                for _ in range(args.answer - len(answer.events)):
                    seen.release()
        except Failed as error:
            failures.append(error)
            for _ in range(args.clients * args.answer):
                seen.release()

    threads = [threading.Thread(target=client, args=(queue,), daemon=True) for queue in queues]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    long = heard = seeing = None
    if args.long or args.sound or args.picture:
        for _ in range(args.clients * args.answer // 2):
            seen.acquire()
        if not failures and args.long:
            long = Answer(server, ids(args.long), 1)
            long.run()
        elif not failures and args.picture:
            long = seeing = Seen(server, args.picture, seed)
            sees = threading.Thread(target=client, args=([seeing],), daemon=True)
            sees.start()
        elif not failures:
            long = heard = Heard(server, args.sound, args.ears)
            hears = threading.Thread(target=client, args=([heard],), daemon=True)
            hears.start()
    for thread in threads:
        thread.join()
    if heard:
        heard.enough.set()
        hears.join()
    if seeing:
        seeing.leave()
        sees.join()
    took = time.monotonic() - start
    if failures:
        raise failures[0]
    answers = [answer for queue in queues for answer in queue]
    gaps = [gap for answer in answers for gap in answer.gaps()]
    tpot = [(a.events[-1] - a.events[0]) / max(1, a.tokens - 1) for a in answers]
    figures = {
        "TTFT p50 ms": statistics.median(a.events[0] - a.sent for a in answers) * 1e3,
        "TTFT p99 ms": percentile([a.events[0] - a.sent for a in answers], 0.99) * 1e3,
        "TPOT p50 ms": statistics.median(tpot) * 1e3,
        "tok/s": sum(a.tokens for a in answers) / took,
    }
    if gaps:
        figures["ITL p50 ms"] = statistics.median(gaps) * 1e3
        figures["ITL p99 ms"] = percentile(gaps, 0.99) * 1e3
    if long:
        pairs = [(e, l) for a in answers for e, l in zip(a.events, a.events[1:])]
        before = [l - e for e, l in pairs if l < long.sent]
        beside = [l - e for e, l in pairs if l > long.sent and e < long.ended()]
        if not before or not beside:
            raise Failed(f"{server.name}: no stream ran beside the long prompt; ask for longer answers")
        figures["ITL p99 beside / p50 before"] = percentile(beside, 0.99) / statistics.median(before)
        if heard:
            figures["ITL p50 beside / p50 before"] = statistics.median(beside) / statistics.median(before)
            figures["s a sound"] = (heard.last - heard.sent) / heard.times
        elif seeing:
            figures["ITL p50 beside / p50 before"] = statistics.median(beside) / statistics.median(before)
            figures["ITL most beside ms"] = max(beside) * 1e3
            figures["s beside the picture"] = seeing.last - seeing.sent
        else:
            figures["TTFT of the long one ms"] = (long.events[0] - long.sent) * 1e3
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Server, action="append", required=True, metavar="NAME=URL", help="one or two")
    parser.add_argument("--model", help="the model's name [the first that each server lists]")
    for name, value, text in [
        ("clients", 16, "that run at once"),
        ("requests", 2, "of each client, one after the other"),
        ("prompt", 128, "tokens of a prompt"),
        ("prefix", 0, "tokens before each prompt, the same for all"),
        ("answer", 64, "tokens of an answer"),
        ("long", 0, "tokens of a prompt that comes while others stream"),
        ("picture", 0, "pixels a side of a picture that comes while others stream"),
        ("vocab", 30_000, "token ids are drawn below this"),
        ("rounds", 3, "that count"),
        ("seed", 1, "of the prompts"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} [{value}]")
    parser.add_argument("--sound", metavar="FILE", help="that is written down while others stream")
    parser.add_argument("--ears", metavar="MODEL", help="that writes it down")
    parser.add_argument("--json", action="store_true", help="every round as JSON instead of the table")
    args = parser.parse_args()
    if len(args.server) > 2:
        parser.error("one server, or two to be compared")
    if bool(args.sound) != bool(args.ears) or sum(map(bool, (args.sound, args.long, args.picture))) > 1:
        parser.error("--sound and --ears go together, and one of --sound, --long and --picture")
    rounds = {server.name: [] for server in args.server}
    try:
        for server in args.server:
            server.find_model(args.model)
            run(server, args, args.seed * 1_000_003)
        for number in range(args.rounds):
            for server in args.server[:: -1 if number % 2 else 1]:
                rounds[server.name].append(run(server, args, args.seed * 1_000_003 + number + 1))
    except Failed as error:
        sys.exit(f"load.py: {error}")
    if args.json:
        print(json.dumps(rounds, indent=1))
        return
    names = list(rounds)
    print("| | " + " | ".join(names) + (" | ratio |" if len(names) == 2 else " |"))
    print("|---|" + "---:|" * (len(names) + (len(names) == 2)))
    for figure in rounds[names[0]][0]:
        row = [f"{statistics.median(r[figure] for r in rounds[name]):.4g}" for name in names]
        if len(names) == 2:
            ratios = [a[figure] / b[figure] for a, b in zip(*rounds.values())]
            row.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
        print(f"| {figure} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
