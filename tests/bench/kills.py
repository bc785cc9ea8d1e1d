"""Two models in processes of their own, both at work: one's process is killed, stopped, aborted or denied memory, again and again.

    python tests/bench/kills.py --engine target/release/hanzo-engine [--rounds 20] [--seconds-between 2] [--silence-ms 2000]

It shows, for each way: how long the model's own requests took to end with an error event, how long until it answered again, the other
model's p99 of the time between tokens in those seconds beside undisturbed ones, and at the end the daemon's open files, tasks and resident
set beside those of the beginning, and which processes are left when the daemon itself is killed. Ends with 1 where a request of the other
model failed, one of the victim's hung, or ended neither with an error event nor, before anything was sent, with 503 and Retry-After, the
victim did not come back, or a process was left. Only the standard
library is needed."""
import argparse, collections, http.client, json, os, re, resource, signal, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

WAYS = ["kill", "stop", "abort", "memory"]
# A worker that fails again and again comes back after pauses that grow to half a minute.
HANGS_S, COMES_BACK_S = 10, 90
PROMPT = "Tell me a story. " * 8


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True); parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=2, help="streams of each model"); parser.add_argument("--seconds-between", type=float, default=2)
    parser.add_argument("--silence-ms", type=int, default=2000, help="after which a process that says nothing is taken for hanging")
    return parser.parse_args()


def serve(args, folder):
    config = folder / "engine.toml"
    models = "".join(f'[[models]]\nsource = "hanzo-demo"\nalias = "{name}"\n' for name in "ab")
    config.write_text(f'[engine]\nisolation = "process"\nthreads = 1\nkv_bytes = 50_000_000\nworker_silence_ms = {args.silence_ms}\n{models}')
    command = [args.engine, "serve", "--config", str(config), "--model-dir", str(folder / "store"), "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ports = {}
    while len(ports) < 3:
        line = process.stdout.readline()
        if not line:
            sys.exit("the server did not start")
        if found := re.search(r"(HTTP|gRPC|admin)\s+http://(\S+)", line):
            ports[found[1]] = found[2]
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, ports


def worker(args, ports, name):
    """The process that runs a model, once it is ready; none while it is not."""
    listed = subprocess.run([args.engine, "ps", "--json", "--engine", "http://" + ports["gRPC"]], capture_output=True, text=True)
    for model in json.loads(listed.stdout or "[]"):
        if model["name"] == name and model["state"] == "ready":
            return model["worker_pid"]
    return 0


class Client(threading.Thread):
    """Streams one chat after the other; what it saw is (time, what): "token", "end", "error" or what went wrong."""

    def __init__(self, address, model):
        super().__init__(daemon=True)
        self.address, self.model, self.seen, self.over = address, model, [], threading.Event()

    def run(self):
        while not self.over.is_set():
            try:
                ended = self.ask()
            except OSError as error:
                ended = repr(error)
            # When it has ended: a request that was under way when its worker went is the one that tells.
            self.seen.append((time.monotonic(), ended))
            if self.seen[-1][1] != "end":
                time.sleep(0.05)

    def ask(self):
        connection = http.client.HTTPConnection(self.address, timeout=HANGS_S)
        body = {"model": self.model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 200, "stream": True, "temperature": 1}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            answer.read()
            again = "" if answer.status != 503 or answer.getheader("retry-after") else " without Retry-After"
            return f"status {answer.status}{again}"
        said = "cut off"
        while line := answer.readline():
            if line.startswith(b"data: [DONE]"):
                said = "end"
            elif b'"error"' in line:
                said = "error"
            elif line.startswith(b"data: "):
                self.seen.append((time.monotonic(), "token"))
        connection.close()
        return said


def since(client, start):
    """What it has seen since then, newest first. Nothing older is looked at, of which there is more and more: while one thread of this
    program looks through it, the others do not read, and that would be taken for the server's."""
    seen = client.seen
    for at in range(len(seen) - 1, -1, -1):
        if seen[at][0] < start:
            return
        yield seen[at]


def gaps(clients, start, end):
    """Seconds between tokens of one stream, of all of them."""
    found = []
    for client in clients:
        after = None
        for at, what in since(client, start):
            if what == "token" and after and after <= end:
                found.append(after - at)
            after = at if what == "token" else None
    return sorted(found)


def first(client, start, wanted):
    """The first thing of that kind that it saw after then, and when."""
    found = None
    for at, what in since(client, start):
        if at > start and wanted(what):
            found = at, what
    return found


def p99(values):
    return values[int(0.99 * (len(values) - 1))] if values else float("nan")


def state(pid):
    text = Path(f"/proc/{pid}/status").read_text()
    return {"files": len(os.listdir(f"/proc/{pid}/fd")), "tasks": len(os.listdir(f"/proc/{pid}/task")), "resident MB": round(int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024, 1)}


def strike(way, pid):
    if way == "memory":
        data = int(re.search(r"VmData:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024
        resource.prlimit(pid, resource.RLIMIT_DATA, (data // 2, resource.prlimit(pid, resource.RLIMIT_DATA)[1]))
    else:
        os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT}[way])


def crowd(address, model):
    """Requests that take memory the process has not had before."""
    def one(number):
        try:
            connection = http.client.HTTPConnection(address, timeout=HANGS_S)
            body = {"model": model, "prompt": f"{number} " + PROMPT * 40, "max_tokens": 8, "n": 4, "logprobs": 5, "truncate_prompt_tokens": -1}
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            connection.getresponse().read()
        except OSError:
            pass
    for number in range(32):
        threading.Thread(target=one, args=(number,), daemon=True).start()


def until(most, found):
    end = time.monotonic() + most
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.005)
    return None


def main():
    args = arguments()
    wrong, ended, back, other = [], collections.defaultdict(list), collections.defaultdict(list), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        process, ports = serve(args, Path(scratch))
        until(COMES_BACK_S, lambda: worker(args, ports, "a") and worker(args, ports, "b"))
        clients = {name: [Client(ports["HTTP"], name) for _ in range(args.clients)] for name in "ab"}
        for client in clients["a"] + clients["b"]:
            client.start()
        time.sleep(3)
        calm_from = time.monotonic()
        time.sleep(5)
        calm = {name: gaps(clients[name], calm_from, time.monotonic()) for name in "ab"}
        at_first = state(process.pid)
        for number in range(args.rounds):
            way, victim = WAYS[number % len(WAYS)], "ab"[number // len(WAYS) % 2]
            bystander = "ba"["ab".index(victim)]
            pid = until(COMES_BACK_S, lambda: worker(args, ports, victim))
            if not pid:
                wrong.append(f"round {number}: {victim} has no process")
                break
            time.sleep(args.seconds_between)
            before = time.monotonic()
            strike(way, pid)
            if way == "memory":
                crowd(ports["HTTP"], victim)
            last = lambda client: first(client, before, lambda what: what not in ("token", "end"))
            if not until(HANGS_S, lambda: all(last(client) for client in clients[victim])):
                wrong.append(f"round {number}, {way}: a request hung")
                continue
            ends = [last(client) for client in clients[victim]]
            if Path(f"/proc/{pid}").exists():
                wrong.append(f"round {number}, {way}: the process lives on")
            wrong += [f"round {number}, {way}: a request ended so: {what}" for _, what in ends if what not in ("error", "status 503")]
            ended[way].append(max(at for at, _ in ends) - before)
            after = max(at for at, _ in ends)
            token = lambda: min((seen[0] for client in clients[victim] if (seen := first(client, after, lambda what: what == "token"))), default=None)
            if not (again := until(COMES_BACK_S, token)):
                wrong.append(f"round {number}, {way}: {victim} did not come back")
                break
            back[way].append(again - before)
            other[way] += gaps(clients[bystander], before, again)
            wrong += [f"round {number}, {way}: the other model: {what}" for client in clients[bystander] for at, what in since(client, before) if at <= again and what not in ("token", "end")]
        time.sleep(args.seconds_between)
        at_last = state(process.pid)
        for client in clients["a"] + clients["b"]:
            client.over.set()
        left = [pid for pid in (worker(args, ports, name) for name in "ab") if pid]
        process.kill()
        process.wait()
        until(5, lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
        wrong += [f"process {pid} is left after the daemon" for pid in left if Path(f"/proc/{pid}").exists()]
    print(f"undisturbed: {', '.join(f'{name} median {statistics.median(calm[name]) * 1e3:.1f} ms, p99 {p99(calm[name]) * 1e3:.1f} ms' for name in 'ab')} between tokens")
    print("way     times  requests ended, slowest  answers again, slowest  the other's p99 between tokens")
    for way in WAYS:
        if ended[way] and back[way]:
            print(f"{way:<7} {len(ended[way]):>5}  {max(ended[way]):>21.3f} s  {max(back[way]):>20.2f} s  {p99(sorted(other[way])) * 1e3:>28.1f} ms")
    print(f"daemon at first {at_first}, at last {at_last}; its processes when it was killed: {len(left)}, left: {sum('is left' in text for text in wrong)}")
    for text in wrong:
        print("wrong:", text)
    sys.exit(1 if wrong or sum(map(len, ended.values())) < args.rounds else 0)


main()
