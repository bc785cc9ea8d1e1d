"""How small embedding requests fare beside a large one: p95 of 200 concurrent single requests, alone and beside one of 10,000 inputs.

    python tests/bench/embed_fairness.py --engine target/release/hanzo-engine --model DIRECTORY [--inputs 10000] [--singles 200] [--waves 3]

Each wave is all singles at once; the large request begins anew for every wave beside it and is over when its last vector has come.
Every request must be answered with 200. Only the standard library is needed."""
import argparse, asyncio, json, os, random, re, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

WORDS = (Path(__file__).parent.parent / "data" / "minilm" / "prose.txt").read_text().split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--model", required=True)
    parser.add_argument("--inputs", type=int, default=10_000); parser.add_argument("--singles", type=int, default=200); parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def text(rng, low, high):
    count = rng.randint(low, high); first = rng.randrange(len(WORDS) - count)
    return " ".join(WORDS[first : first + count])


async def post(address, body):
    """Seconds that one request on a connection of its own takes, and its answer."""
    host, port = address.split(":")
    payload = json.dumps(body).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    writer.write(f"POST /v1/embeddings HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n".encode() + payload)
    await writer.drain()
    answer = await reader.read(-1)
    writer.close()
    took = time.perf_counter() - began
    assert answer.startswith(b"HTTP/1.1 200"), answer[:600]
    return took, answer


async def wave(address, singles):
    bodies = [{"input": single, "encoding_format": "base64"} for single in singles]
    return sorted(took for took, _ in await asyncio.gather(*(post(address, body) for body in bodies)))


async def measure(args, address):
    rng = random.Random(3)
    async def ready():
        while True:
            try: return await post(address, {"input": "ready?"})
            except (OSError, AssertionError): await asyncio.sleep(0.1)
    await ready()
    singles = [text(rng, 5, 15) for _ in range(args.singles)]
    many = {"input": [text(rng, 5, 40) for _ in range(args.inputs)], "encoding_format": "base64"}
    await wave(address, singles)
    p95 = lambda times: 1e3 * times[int(0.95 * (len(times) - 1))]
    alone, beside = [], []
    for _ in range(args.waves):
        alone.append(p95(await wave(address, singles)))
        large = asyncio.create_task(post(address, many))
        await asyncio.sleep(0.5)
        beside.append(p95(await wave(address, singles)))
        assert not large.done(), "the large request was over before the small ones: ask for more inputs"
        took, answer = await large
        assert answer.count(b'"embedding":') == args.inputs or answer.count(b'"index"') == args.inputs, "not as many vectors as inputs"
    print(f"{args.singles} single requests at once, p95: {statistics.median(alone):.1f} ms alone, {statistics.median(beside):.1f} ms beside {args.inputs} inputs in one request ({took:.1f} s), {statistics.median(b / a for a, b in zip(alone, beside)):.2f} times")


def main():
    args = arguments()
    env = {**os.environ, "HANZO_MODELS_DIR": tempfile.mkdtemp(), "HANZO_ENGINE_GATEWAY_EMBEDDING_INPUTS_MAX": str(args.inputs)}
    engine = subprocess.Popen([args.engine, "serve", "--model", args.model, "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", str(args.threads), "--log-level", "error"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        address = next((match[1] for line in engine.stdout if (match := re.search(r"http://(127\.0\.0\.1:\d+)", line))), None)
        if address is None: sys.exit("hanzo-engine did not start")
        threading.Thread(target=lambda: [None for _ in engine.stdout], daemon=True).start()
        asyncio.run(measure(args, address))
    finally:
        engine.terminate(); engine.wait(30)


if __name__ == "__main__":
    main()
