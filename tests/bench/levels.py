"""Service levels of a server with one model: how soon it is ready and in how much memory, what a chat's next turn costs before and after a
restart, what a client that leaves gives back, and whether a file may be replaced under load.

    python tests/bench/levels.py --engine target/release/hanzo-engine --model FILE.gguf [--llama-server PATH] [--rounds 5] [--only ready,chat,leave,replace,waiting]

ready: from starting the program to an answer of /ready (of /health where that is not known), and the resident set then, of it and of its workers' processes; of llama-server on the
same file in turns, where --llama-server is given. chat: a history of 1,500 tokens and ten turns of 32 tokens asked and 32 answered, the time to the
first token of each turn; then the same tenth turn again after a restart with the disk cache, and after a restart with every tenth of its files
damaged. leave: from closing a stream's connection to as many free KV blocks as before. replace: the model's file is replaced by renaming while
clients stream from it by name, then the model is let go and asked for again; none of their requests may fail. waiting: while 1,000 requests wait, how long it takes to decide what a step computes, of 99 decisions in 100 no more than (a bound of the
histogram that the server exports). Tokens are drawn at random, the same ones each time.
Ends with 1 where a request failed. Only the standard library is needed."""
import argparse, contextlib, http.client, json, os, random, re, shutil, statistics, subprocess, sys, tempfile, threading, time, urllib.request
from pathlib import Path

HISTORY, TURNS, ASKED, ANSWERED = 1500, 10, 32, 32
WAIT_S = 120


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--model", required=True); parser.add_argument("--llama-server")
    parser.add_argument("--rounds", type=int, default=5); parser.add_argument("--threads", type=int, default=2); parser.add_argument("--vocab", type=int, default=30_000)
    parser.add_argument("--isolation", default="thread", choices=["thread", "process"]); parser.add_argument("--only", default="ready,chat,leave,replace,waiting")
    return parser.parse_args()


def free_port():
    import socket
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ready(port):
    """Whether the server says that its model answers: /ready does, and /health of servers that have none."""
    try:
        statuses = []
        for path in ("/ready", "/health"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            statuses.append(connection.getresponse().status)
        return 200 in (statuses if statuses[0] == 404 else statuses[:1])
    except OSError:
        return False


def resident(pid):
    """Bytes of a process and of its children: all, and what is no file's."""
    both = [0, 0]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        for at, name in enumerate(("VmRSS:", "RssAnon:")):
            if line.startswith(name):
                both[at] += int(line.split()[1]) * 1024
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if Path(f"/proc/{pid}/task/{pid}/children").exists() else []:
        both = [a + b for a, b in zip(both, resident(int(child)))]
    return both


@contextlib.contextmanager
def served(command, port):
    """A server that is ready, and the seconds that took."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ready(port):
            if process.poll() is not None or time.monotonic() - began > WAIT_S:
                sys.exit(f"{command[0]} did not become ready")
            time.sleep(0.002)
        yield process, time.monotonic() - began
    finally:
        process.terminate()
        process.wait(60)


def ours(args, folder, *more, model=None):
    port, admin = free_port(), free_port()
    command = [args.engine, "serve", "--model", str(model or args.model), "--model-dir", str(folder / "store"), "--port", str(port), "--grpc-port", "0", "--admin-port", str(admin),
               "--threads", str(args.threads), "--isolation", args.isolation, "--log-level", "error", *more]
    return command, port, admin


def theirs(args):
    port = free_port()
    return [args.llama_server, "-m", args.model, "--port", str(port), "-t", str(args.threads), "-tb", str(args.threads), "--no-webui"], port


def stream(port, prompt, tokens, on_event=None, model=None):
    """One completion of token ids, streamed: seconds to its first token, and its tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "stream": True, "return_tokens": True, "ignore_eos": True, "cache_prompt": True}
    body |= {"model": model} if model else {}
    began, first, ids = time.monotonic(), None, []
    connection.request("POST", "/completion", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise OSError(f"status {answer.status}: {answer.read()[:300]!r}")
    while line := answer.readline():
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise OSError(str(event["error"]))
        first = first or time.monotonic() - began
        ids += event.get("tokens") or []
        if on_event and on_event():
            break
    connection.close()
    return first, ids


def metric(admin, pattern):
    text = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode()
    return sum(float(value) for value in re.findall("^" + pattern + r" (\S+)$", text, re.M))


def show(name, values, unit, scale=1.0):
    values = [value * scale for value in values]
    print(f"{name:<58} {statistics.median(values):9.2f} {unit}  ({min(values):.2f} to {max(values):.2f})", flush=True)


def levels_of_ready(args, folder):
    Path(args.model).read_bytes()
    found = {}
    for number in range(args.rounds + 1):
        sides = [("ours", lambda: ours(args, folder)[:2])] + ([("llama-server", lambda: theirs(args))] if args.llama_server else [])
        for name, make in sides[:: -1 if number % 2 else 1]:
            command, port = make()
            with served(command, port) as (process, seconds):
                all_bytes, own_bytes = resident(process.pid)
            if number:
                found.setdefault(name, []).append((seconds, all_bytes, own_bytes))
    for name, rows in found.items():
        for at, (what, unit, scale) in enumerate([("start to ready", "ms", 1e3), ("resident then", "MB", 1e-6), ("of it no file's", "MB", 1e-6)]):
            show(f"ready: {name}: {what}", [row[at] for row in rows], unit, scale)
    if len(found) == 2:
        show("ready: start to ready, ours / llama-server", [a[0] / b[0] for a, b in zip(*(found[name] for name in ("ours", "llama-server")))], "×")
    print(f"ready: the file has {os.path.getsize(args.model) / 1e6:.1f} MB")


def turns(args, port, seed):
    """The time to the first token of each turn, and what the last one asked."""
    draw = random.Random(seed)
    ids = lambda count: [draw.randrange(args.vocab // 8, args.vocab) for _ in range(count)]
    history, times = ids(HISTORY), []
    for _ in range(TURNS):
        history += ids(ASKED)
        first, answer = stream(port, history, ANSWERED)
        times.append(first)
        asked, history = history, history + answer
    return times, asked


def levels_of_chat(args, folder):
    found = {name: [] for name in ["turn 1", "turn 2", "turn 10", "turn 10 / turn 2", "turn 10 again", "again, after a restart", "restart / warm", "again, a tenth damaged", "nothing kept"]}
    for number in range(args.rounds):
        kept = folder / f"kv{number}"
        command, port, admin = ours(args, folder, "--prefix-cache-dir", str(kept), "--prefix-cache-bytes", "4GiB")
        with served(command, port):
            times, asked = turns(args, port, number)
            warm = stream(port, asked, 1)[0]
            end = time.monotonic() + 30
            written = -1
            while time.monotonic() < end and written != (written := metric(admin, r"hanzo_engine_prefix_disk_written_bytes_total\S*")):
                time.sleep(0.5)
        command, port, admin = ours(args, folder, "--prefix-cache-dir", str(kept))
        with served(command, port):
            again = stream(port, asked, 1)[0]
            read = metric(admin, r"hanzo_engine_prefix_disk_read_blocks_total\S*")
        files = sorted(path for path in kept.rglob("*") if path.is_file() and path.stat().st_size > 4096)
        for path in files[::10]:
            with open(path, "r+b") as file:
                file.seek(path.stat().st_size // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 0xFF]))
        command, port, admin = ours(args, folder, "--prefix-cache-dir", str(kept))
        with served(command, port):
            damaged = stream(port, asked, 1)[0]
            dropped = metric(admin, r"hanzo_engine_prefix_disk_damaged_blocks_total\S*")
        command, port, admin = ours(args, folder)
        with served(command, port):
            cold = stream(port, asked, 1)[0]
        for name, value in zip(found, [times[0], times[1], times[9], times[9] / times[1], warm, again, again / warm, damaged, cold]):
            found[name].append(value)
        print(f"chat: round {number}: {len(files)} files, {read:.0f} blocks read after the restart; {len(files[::10])} damaged, {dropped:.0f} found so", flush=True)
        shutil.rmtree(kept)
    for name, values in found.items():
        show(f"chat: {name}", values, "×" if "/" in name else "ms", 1.0 if "/" in name else 1e3)


def levels_of_leaving(args, folder):
    found = []
    command, port, admin = ours(args, folder)
    free = r'hanzo_engine_kv_blocks\{[^}]*state="active"[^}]*\}'
    with served(command, port):
        stream(port, list(range(300, 400)), 4)
        for number in range(args.rounds * 4):
            before, seen = metric(admin, free), []
            stream(port, [500 + number] * 64, 400, lambda: seen.append(1) or len(seen) == 5)
            closed = time.monotonic()
            while metric(admin, free) > before and time.monotonic() - closed < WAIT_S:
                time.sleep(0.001)
            found.append(time.monotonic() - closed)
    show("leave: from disconnect to freed blocks", found, "ms", 1e3)


def levels_of_replacing(args, folder):
    model = folder / "replaced.gguf"
    shutil.copyfile(args.model, model)
    command, port, _ = ours(args, folder, model=model)
    failed, done, over = [], [], threading.Event()

    def client(number):
        draw = random.Random(number)
        while not over.is_set():
            try:
                stream(port, [draw.randrange(args.vocab // 8, args.vocab) for _ in range(32)], 16, model=name)
                done.append(time.monotonic())
            except (OSError, http.client.HTTPException) as error:
                failed.append(str(error))

    def post(path, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            failed.append(f"{path}: {answer.status} {text[:300]}")

    with served(command, port):
        name = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models").read())["data"][0]["id"]
        threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(args.rounds):
            time.sleep(1)
            shutil.copyfile(args.model, folder / "next.gguf")
            os.replace(folder / "next.gguf", model)
            time.sleep(1)
            post("/v1/models/unload", {"model": name})
        time.sleep(2)
        over.set()
        for thread in threads:
            thread.join()
    gaps = [later - earlier for earlier, later in zip(sorted(done), sorted(done)[1:])]
    print(f"replace: {args.rounds} times, {len(done)} requests, {len(failed)} failed, {max(gaps):.2f} s at most between two answers")
    for text in failed[:5]:
        print("wrong:", text)
    return not failed


def levels_of_waiting(args, folder):
    config = folder / "engine.toml"
    config.write_text("[engine]\nqueue_requests_max = 3000\n")
    command, port, admin = ours(args, folder, "--config", str(config))
    bounds = lambda: {float(bound): int(count) for bound, count in
                      re.findall(r'^hanzo_engine_schedule_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\d+)$', urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode(), re.M)}
    waiting = lambda: metric(admin, r"hanzo_engine_queue_depth\{[^}]*\}")
    found, connections, draw = [], [], random.Random(1)
    with served(command, port):
        for number in range(1000 + 300):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            body = {"prompt": [draw.randrange(args.vocab // 8, args.vocab) for _ in range(16)], "n_predict": 32, "temperature": 0, "stream": True, "ignore_eos": True}
            connection.request("POST", "/completion", json.dumps(body), {"content-type": "application/json"})
            connections.append(connection)
        began = time.monotonic()
        while waiting() < 1000:
            if time.monotonic() - began > 20:
                sys.exit(f"only {waiting():.0f} requests wait")
            time.sleep(0.05)
        before = bounds()
        while waiting() >= 1000 and time.monotonic() - began < WAIT_S:
            time.sleep(0.05)
        seen = {bound: count - before[bound] for bound, count in bounds().items()}
        for connection in connections:
            connection.close()
    decisions = seen[float("inf")]
    half, under = (next(bound for bound, count in sorted(seen.items()) if count >= share * decisions) for share in (0.5, 0.99))
    print(f"waiting: {decisions} decisions beside 1,000 and more that wait, half of them took at most {half * 1e6:.0f} µs, 99 of 100 at most {under * 1e6:.0f} µs")
    return decisions >= 100 and under <= 1e-4


def main():
    args = arguments()
    levels = {"ready": levels_of_ready, "chat": levels_of_chat, "leave": levels_of_leaving, "replace": levels_of_replacing, "waiting": levels_of_waiting}
    fine = True
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            fine &= levels[name](args, Path(scratch)) is not False
    sys.exit(0 if fine else 1)


main()
