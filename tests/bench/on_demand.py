"""Three models in a budget that holds two: clients ask for all of them in turn, and nothing may fail.

    python tests/bench/on_demand.py --engine target/debug/hanzo-engine --model models/hanzo-demo/hanzo-demo-Q8_0.gguf [--seconds 300] [--clients 30] [--deadline 120]

Each client asks one model after the other, a short streamed chat each, all the time. It shows: requests that failed (none may), the
slowest, loads and why models left, how long requests waited for loads, and the largest resident set beside the budget. Ends with 1
where a request failed or the resident set was over the budget and 60 MB. Only the standard library is needed."""
import argparse, collections, http.client, json, re, shutil, subprocess, sys, tempfile, threading, time, urllib.request
from pathlib import Path

SLACK_BYTES = 60_000_000
NAMES = ["a", "b", "c"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=300); parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--deadline", type=float, default=120); parser.add_argument("--kv-bytes", type=int, default=100_000_000)
    parser.add_argument("--tokens", type=int, default=16)
    return parser.parse_args()


def resident(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def serve(args, folder, budget):
    """The server on free ports, and where its HTTP and admin ports are."""
    config = folder / "engine.toml"
    config.write_text(f"[engine]\nkv_bytes = {args.kv_bytes}\nthreads = 2\nmemory_budget_bytes = {budget}\n[[models]]\nsource = \"hanzo-demo\"\nat_start = false\n")
    command = [args.engine, "serve", "--config", str(config), "--model-dir", str(folder / "store"), "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--log-level", "warn"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ports = {}
    while len(ports) < 3:
        line = process.stdout.readline()
        if not line:
            sys.exit("the server did not start")
        if found := re.search(r"(HTTP|gRPC|admin)\s+http://(\S+)", line):
            ports[found[1]] = found[2]
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, ports


def stop(process):
    process.terminate()
    process.wait(30)


def ask(address, model, tokens, timeout):
    """One streamed chat; how many chunks came, or what went wrong."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": tokens, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        return f"{answer.status} {text[:300]}"
    return None if "data: [DONE]" in text and '"error"' not in text else f"cut off: {text[-300:]}"


def metrics(ports):
    return urllib.request.urlopen(f"http://{ports['admin']}/metrics").read().decode()


def one_model_bytes(args, folder):
    process, ports = serve(args, folder, 1 << 34)
    try:
        assert (failed := ask(ports["HTTP"], "a", 1, args.deadline)) is None, failed
        return sum(int(float(n)) for n in re.findall(r'hanzo_engine_memory_bytes\{kind="(?:weights|kv|scratch)",model="a"\} (\S+)', metrics(ports)))
    finally:
        stop(process)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in NAMES:
            shutil.copy(args.model, folder / f"{name}.gguf")
            subprocess.run([args.engine, "pull", str(folder / f"{name}.gguf"), "--model-dir", str(folder / "store"), "--engine", "none"], check=True, stdout=subprocess.DEVNULL)
        one = one_model_bytes(args, folder)
        budget = 2 * one + one // 2
        process, ports = serve(args, folder, budget)
        lock, took, failed, over = threading.Lock(), [], collections.Counter(), threading.Event()
        largest = resident(process.pid)

        def client(number):
            turn = number
            while not over.is_set():
                began = time.monotonic()
                try:
                    wrong = ask(ports["HTTP"], NAMES[turn % len(NAMES)], args.tokens, args.deadline)
                except OSError as error:
                    wrong = repr(error)
                with lock:
                    took.append(time.monotonic() - began)
                    if wrong:
                        failed[wrong] += 1
                turn += 1

        clients = [threading.Thread(target=client, args=(number,)) for number in range(args.clients)]
        began = time.monotonic()
        for thread in clients:
            thread.start()
        while time.monotonic() - began < args.seconds and process.poll() is None:
            largest = max(largest, resident(process.pid))
            time.sleep(0.1)
        over.set()
        for thread in clients:
            thread.join()
        text = metrics(ports)
        count = lambda name: {labels: int(float(n)) for labels, n in re.findall(rf"hanzo_engine_{name}\{{([^}}]*)\}} (\S+)", text)}
        took.sort()
        print(f"{len(took)} requests of {args.clients} clients in {time.monotonic() - began:.0f} s, {sum(failed.values())} failed")
        print(f"seconds: median {took[len(took) // 2]:.2f}, p99 {took[int(0.99 * (len(took) - 1))]:.2f}, slowest {took[-1]:.2f}")
        print(f"models that left: {count('model_evictions_total')}")
        print(f"one model {one / 1e6:.1f} MB, budget {budget / 1e6:.1f} MB, largest resident set {largest / 1e6:.1f} MB ({(largest - budget) / 1e6:+.1f} MB)")
        for wrong, times in failed.most_common(5):
            print(f"{times} times: {wrong}")
        stop(process)
        sys.exit(1 if failed or largest > budget + SLACK_BYTES or not took else 0)


main()
