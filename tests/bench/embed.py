"""Times embedding beside other programs on the same model, in turns, and prints medians of their ratios.

    python tests/bench/embed.py --engine target/release/hanzo-engine --model DIRECTORY [--threads 2] [--rounds 5]
        [--torch] [--onnx FILE.onnx] [--llama-server PROGRAM --gguf FILE.gguf] [--json]

Documents are spans of tests/data/minilm/prose.txt, 12 to 250 words each, drawn once. Every system sees all of them and makes vectors
of length 1, tokenizing included: `hanzo-engine serve` over HTTP (base64), sentence-transformers and onnxruntime in this process, sorted by
length in batches of the size that is best for them, and llama-server over HTTP. `uniform` is documents of one length, for the share
that mixed lengths cost. `latency` is one short text after another. A system that is not given is not timed; the script says so."""
import argparse, base64, concurrent.futures, http.client, json, os, random, re, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

HERE = Path(__file__).parent
PROSE = HERE.parent / "data" / "minilm" / "prose.txt"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--model", required=True, help="directory of all-MiniLM-L6-v2")
    parser.add_argument("--threads", type=int, default=2); parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=256); parser.add_argument("--latency", type=int, default=50)
    parser.add_argument("--torch", action="store_true"); parser.add_argument("--onnx"); parser.add_argument("--llama-server"); parser.add_argument("--gguf")
    parser.add_argument("--weights", default="stored", choices=["stored", "q8_0"], help="how ours packs the matrices"); parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def corpus(count, low, high, seed=7):
    words = PROSE.read_text().split()
    rng = random.Random(seed)
    spans = [rng.randint(low, high) for _ in range(count)]
    return [" ".join(words[(first := rng.randrange(len(words) - n)) : first + n]) for n in spans]


class Server:
    """A program that serves /v1/embeddings."""

    def __init__(self, command, address, env=None, batch=32, flight=3):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.address, self.batch, self.flight = address(self.process), batch, flight
        self.pool = concurrent.futures.ThreadPoolExecutor(flight)
        self.local = {}

    def post(self, texts):
        connection = self.local.setdefault(threading.get_ident(), http.client.HTTPConnection(self.address, timeout=600))
        body = json.dumps({"input": texts, "encoding_format": "base64", **self.extra})
        try:
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            answer = connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected):  # closed while the others had their turn
            connection.close()
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            answer = connection.getresponse()
        payload = answer.read()
        assert answer.status == 200, (answer.status, payload[:500])
        return json.loads(payload)

    def embed(self, texts):
        parts = [texts[i : i + self.batch] for i in range(0, len(texts), self.batch)]
        return [datum for part in self.pool.map(self.post, parts) for datum in part["data"]]

    def one(self, text):
        return self.post([text])  # by this thread: handing over to another is not theirs to answer for

    def close(self):
        self.process.terminate(); self.process.wait(30)


class Engine(Server):
    name, extra = "hanzo-engine", {"truncate": True}

    def __init__(self, args):
        env = {**os.environ, "HANZO_ENGINE_ENGINE_ENCODER_WEIGHTS": args.weights, "HANZO_MODELS_DIR": tempfile.mkdtemp()}
        command = [args.engine, "serve", "--model", args.model, "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", str(args.threads), "--log-level", "error"]
        def address(process):
            for line in process.stdout:
                if match := re.search(r"http://(127\.0\.0\.1:\d+)", line):
                    return match[1]
            sys.exit("hanzo-engine did not start")
        super().__init__(command, address, env, batch=64)
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()
        while True:
            try: self.post(["ready?"]); break
            except (AssertionError, OSError): time.sleep(0.1)

    def tokens(self, texts):
        """Tokens of texts, counted as the engine counts them."""
        parts = [texts[i : i + self.batch] for i in range(0, len(texts), self.batch)]
        return sum(self.post(part)["usage"]["prompt_tokens"] for part in parts)

    def vector(self, text):
        import struct
        packed = base64.b64decode(self.post([text])["data"][0]["embedding"])
        return struct.unpack(f"<{len(packed) // 4}f", packed)


class Llama(Server):
    name, extra = "llama-server", {}

    def __init__(self, args):
        port = random.randint(20000, 40000)
        command = [args.llama_server, "-m", args.gguf, "--embeddings", "--pooling", "mean", "-t", str(args.threads), "-tb", str(args.threads), "-b", "2048", "-ub", "2048", "-c", "16384", "-np", "32", "--port", str(port), "--host", "127.0.0.1"]
        super().__init__(command, lambda _: f"127.0.0.1:{port}")
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()
        deadline = time.time() + 60
        while True:
            try: self.post(["ready?"]); break
            except (AssertionError, OSError):
                self.local.clear()
                if time.time() > deadline: sys.exit("llama-server did not start")
                time.sleep(0.2)

    def embed(self, texts):
        # It refuses what is longer than its context; the model's own limit is 256 tokens.
        return super().embed([" ".join(text.split()[:190]) for text in texts])


class Torch:
    name = "torch"

    def __init__(self, args):
        import torch
        from sentence_transformers import SentenceTransformer
        torch.set_num_threads(args.threads)
        self.model, self.batch = SentenceTransformer(args.model, device="cpu"), 1

    def tune(self, texts):
        self.batch = best(lambda batch: self.run(texts, batch), self.name)

    def run(self, texts, batch):
        return self.model.encode(texts, batch_size=batch, normalize_embeddings=True)

    def embed(self, texts):
        return self.run(texts, self.batch)

    def one(self, text):
        return self.run([text], 1)

    def close(self): pass


class Onnx:
    name = "onnxruntime"

    def __init__(self, args):
        import onnxruntime
        from tokenizers import Tokenizer
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = args.threads, 1
        self.session = onnxruntime.InferenceSession(args.onnx, options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
        self.tokenizer.enable_truncation(256); self.batch = 1

    def tune(self, texts):
        self.batch = best(lambda batch: self.run(texts, batch), self.name)

    def run(self, texts, batch):
        import numpy as np
        self.tokenizer.no_padding()
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = [None] * len(texts)
        self.tokenizer.enable_padding()
        for at in range(0, len(order), batch):
            rows = order[at : at + batch]
            encoded = self.tokenizer.encode_batch([texts[i] for i in rows])
            ids, mask = (np.array([getattr(e, key) for e in encoded], dtype=np.int64) for key in ("ids", "attention_mask"))
            hidden = self.session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})[0]
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
            for i, row in zip(rows, pooled): out[i] = row
        return out

    def embed(self, texts):
        return self.run(texts, self.batch)

    def one(self, text):
        return self.run([text], 1)

    def close(self): pass


def best(run, name):
    """The batch size at which the documents take least."""
    times = {}
    run(8)
    for batch in (1, 4, 8, 16, 32, 64):
        began = time.perf_counter(); run(batch)
        times[batch] = time.perf_counter() - began
    chosen = min(times, key=times.get)
    print(f"{name}: best of batches {', '.join(f'{b} ({t:.2f} s)' for b, t in times.items())} is {chosen}", file=sys.stderr)
    return chosen


def timed(run):
    began = time.perf_counter(); run()
    return time.perf_counter() - began


def main():
    args = arguments()
    systems = [Engine(args)]
    for wanted, make in [(args.torch, Torch), (args.onnx, Onnx), (args.llama_server and args.gguf, Llama)]:
        if wanted: systems.append(make(args))
        else: print(f"{make.name} is not timed: it was not given", file=sys.stderr)
    mixed, uniform = corpus(args.documents, 12, 250), corpus(args.documents, 131, 131)
    short = corpus(args.latency, 8, 8, 9)
    for system in systems:
        if hasattr(system, "tune"): system.tune(mixed[:64])
        system.embed(mixed[:64])
    results = {(system.name, kind): [] for system in systems for kind in ("mixed", "uniform", "latency")}
    for _ in range(args.rounds):
        for system in systems:
            results[system.name, "mixed"].append(len(mixed) / timed(lambda: system.embed(mixed)))
            results[system.name, "uniform"].append(len(uniform) / timed(lambda: system.embed(uniform)))
            ms = sorted(1e3 * timed(lambda: system.one(text)) for text in short)
            results[system.name, "latency"].append(statistics.median(ms))
    tokens = {"mixed": systems[0].tokens(mixed) / len(mixed), "uniform": systems[0].tokens(uniform) / len(uniform)}
    for system in systems: system.close()
    rows = []
    for system in systems:
        row = {"system": system.name}
        for kind in ("mixed", "uniform", "latency"):
            ours, theirs = results[Engine.name, kind], results[system.name, kind]
            ratios = [o / t if kind != "latency" else t / o for o, t in zip(ours, theirs)]
            row[kind], row[f"{kind}_ratio"] = statistics.median(theirs), statistics.median(ratios)
        paces = zip(results[system.name, "mixed"], results[system.name, "uniform"])
        row["mixed_tokens"], row["uniform_tokens"] = (row[kind] * tokens[kind] for kind in ("mixed", "uniform"))
        row["mixed_over_uniform"] = statistics.median(m * tokens["mixed"] / (u * tokens["uniform"]) for m, u in paces)
        rows.append(row)
    if args.json: return print(json.dumps(rows, indent=2))
    print(f"{'':14} {'documents/s':>12} {'ours is':>8} {'uniform':>9} {'ours is':>8} {'latency ms':>11} {'ours is':>8}")
    for row in rows:
        print(f"{row['system']:14} {row['mixed']:12.1f} {row['mixed_ratio']:7.2f}x {row['uniform']:9.1f} {row['uniform_ratio']:7.2f}x {row['latency']:11.2f} {row['latency_ratio']:7.2f}x")
    ours = rows[0]
    print(f"ours: {ours['mixed_tokens']:.0f} tokens/s of mixed lengths ({tokens['mixed']:.0f} tokens on average), {ours['uniform_tokens']:.0f} of one length ({tokens['uniform']:.0f}); mixed over uniform, a token: {ours['mixed_over_uniform']:.2f}")


if __name__ == "__main__":
    main()
