"""Times ranking beside llama-server on the same GGUF file, in turns; then watches memory over many requests.

    python tests/bench/rerank.py --engine target/release/hanzo-engine --gguf RERANKER.gguf [--llama-server PROGRAM]
        [--documents 50] [--tokens 100] [--rounds 3] [--requests 0] [--threads 2]

One query and so many documents of so many tokens: ours in one request, theirs pair by pair through its /v1/rerank, as it scores them.
--requests N: afterwards N requests of one document each, and the resident memory before, halfway and at the end."""
import argparse, http.client, json, os, random, re, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

WORDS = (Path(__file__).parent.parent / "data" / "minilm" / "prose.txt").read_text().split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--gguf", required=True); parser.add_argument("--llama-server")
    for name, value in [("documents", 50), ("tokens", 100), ("rounds", 3), ("requests", 0), ("threads", 2)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


class Served:
    def __init__(self, command, address, env=None):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.address = address or next((match[1] for line in self.process.stdout if (match := re.search(r"http://(127\.0\.0\.1:\d+)", line))), None)
        if self.address is None: sys.exit(f"{command[0]} did not start")
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()
        deadline = time.time() + 120
        while True:
            try: self.rerank("ready?", ["yes"]); return
            except (OSError, AssertionError) as error:
                if time.time() > deadline or self.process.poll() is not None: sys.exit(f"{command[0]} does not answer: {error}")
                time.sleep(0.3)

    def post(self, path, body):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse(); payload = answer.read(); connection.close()
        assert answer.status == 200, (answer.status, payload[:400])
        return json.loads(payload)

    def rerank(self, query, documents):
        return {result["index"]: result["relevance_score"] for result in self.post("/v1/rerank", {"query": query, "documents": documents})["results"]}

    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def close(self):
        self.process.terminate(); self.process.wait(30)


def main():
    args = arguments()
    env = {**os.environ, "HANZO_MODELS_DIR": tempfile.mkdtemp()}
    ours = Served([args.engine, "serve", "--model", args.gguf, "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", str(args.threads), "--log-level", "error", "--max-context", "1024"], None, env)
    rng = random.Random(5)
    count = lambda text: len(ours.post("/tokenize", {"prompt": text})["tokens"])
    def document():
        words = []
        while count(" ".join(words)) < args.tokens: words.append(rng.choice(WORDS))
        return " ".join(words)
    query, documents = " ".join(rng.choices(WORDS, k=8)), [document() for _ in range(args.documents)]
    theirs = None
    if args.llama_server:
        port = str(random.randint(20000, 40000))
        theirs = Served([args.llama_server, "-m", args.gguf, "--rerank", "-t", str(args.threads), "-tb", str(args.threads), "-c", "2048", "-b", "2048", "-ub", "2048", "-np", "1", "--port", port, "--host", "127.0.0.1"], f"127.0.0.1:{port}")
    else: print("llama-server is not timed: it was not given", file=sys.stderr)
    times = {"ours": [], "theirs": []}
    for round in range(args.rounds):
        # Another query each time: nothing of it is in a cache.
        asked = f"{query} {round}"
        began = time.perf_counter(); ours.rerank(asked, documents); times["ours"].append(time.perf_counter() - began)
        if theirs:
            began = time.perf_counter()
            for one in documents: theirs.rerank(asked, [one])
            times["theirs"].append(time.perf_counter() - began)
    print(f"ours: {statistics.median(times['ours']):.2f} s for {args.documents} documents of {args.tokens} tokens")
    if theirs:
        ratios = [b / a for a, b in zip(times["ours"], times["theirs"])]
        print(f"llama-server, pair by pair: {statistics.median(times['theirs']):.2f} s; ours is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")
        theirs.close()
    if args.requests:
        seen = [ours.resident()]
        for number in range(args.requests):
            ours.rerank(f"query {number}", [f"{number} is a number"])
            if number + 1 in (args.requests // 10, args.requests // 2, args.requests): seen.append(ours.resident())
        print(f"resident after {args.rounds} rounds, then after a tenth, half and all of {args.requests} requests: {', '.join(f'{mb:.1f}' for mb in seen)} MB")
    ours.close()


if __name__ == "__main__":
    main()
