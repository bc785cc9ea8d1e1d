"""engined and engine-gateway at full load for a long time, and everything an operator does meanwhile: does anything grow?

    python tests/bench/soak.py --bin target/release [--minutes 15] [--clients 8]

Clients chat, stream, embed, cancel, ask for models that have to be loaded and ask wrongly. Beside them, in turn and at random: a model is
loaded or unloaded, a worker's process is killed, the gateway is stopped and started again, both programs read their settings again. Each
model has a process of its own, and the daemon a thread and three open files for it. So what is compared is the daemon at rest, after the
warm-up (a fifth of the time) and at the end: nobody asks, what requests had loaded has left by itself, all else is unloaded, and threads
that wait for work have ended. It shows the resident set, open files and tasks of then, with the slope of the resident set at
load between, the size of the store, and whether the counters agree: every request that was begun has ended in one way. Ends with 1 where
something grew (resident set by more than 5 % and 20 MB, files or tasks by more than 8), a model stays, a worker's process outlives its
model, a counter disagrees, or a request went wrong in a way that none of these acts explains. Only the standard library is needed."""
import argparse, atexit, collections, http.client, json, os, random, re, signal, subprocess, sys, tempfile, threading, time, urllib.request
from pathlib import Path

NAMES = ["hanzo-demo", "b", "c"]
ACTS = ["load", "unload", "kill", "restart of the gateway", "reload"]
# How long models may take to leave when nobody asks: those that requests had loaded are kept for 3 s.
LEAVE_MAX = 30
# The daemon's runtime has a thread for what blocks end when it had nothing to do for 10 s.
REST = 12
# What clients may see while workers are killed, models leave and the gateway is away.
EXPLAINED = {"status 503", "status 502", "status 404", "status 429", "refused", "cut off", "error event"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the folder of engined, engine-gateway and hanzo-engine"); parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--clients", type=int, default=8); parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--acts", type=lambda text: text.split(","), default=list(ACTS), help="those that an operator does, of " + ", ".join(ACTS) + "; one alone shows what grows with it")
    parser.add_argument("--pause", type=float, default=2.5, help="seconds between them, at most")
    return parser.parse_args()


def free_port():
    import socket
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Programs:
    """engined and the gateway, on ports that were free a moment ago."""

    def __init__(self, args, folder):
        self.bin, self.folder = Path(args.bin), folder
        self.grpc, self.admin, self.http = free_port(), free_port(), free_port()
        self.log = open(folder / "log", "ab")
        (folder / "engine.toml").write_text(f'[server]\ngrpc_port = {self.grpc}\nadmin_port = {self.admin}\n[store]\ndir = "{folder / "store"}"\n[engine]\nisolation = "process"\nkv_bytes = 40_000_000\nkeep_alive = "3s"\n[log]\nlevel = "warn"\n[[models]]\nsource = "hanzo-demo"\n'
                                            + "".join(f'[[models]]\nsource = "hanzo-demo"\nalias = "{name}"\nat_start = false\n' for name in NAMES[1:]))
        (folder / "gateway.toml").write_text(f'port = {self.http}\nengine = "http://127.0.0.1:{self.grpc}"\nlog_level = "warn"\n')
        self.daemon = self.start("engined", "engine.toml")
        self.gateway = self.start("engine-gateway", "gateway.toml")
        # However this ends, they end with it.
        atexit.register(lambda: [program.kill() for program in (self.gateway, self.daemon)])
        self.until_ready()

    def start(self, program, config):
        return subprocess.Popen([self.bin / program, "--config", self.folder / config], stdout=self.log, stderr=self.log)

    def until_ready(self):
        for _ in range(600):
            try:
                if urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=2).status == 200:
                    return
            except OSError:
                time.sleep(0.05)
        sys.exit("the programs did not become ready: " + (self.folder / "log").read_text()[-2000:])

    def command(self, *words):
        return subprocess.run([self.bin / "hanzo-engine", *words, "--engine", f"http://127.0.0.1:{self.grpc}"], capture_output=True, text=True, timeout=60)

    def loaded(self):
        told = self.command("ps", "--json")
        if told.returncode:
            sys.exit("the daemon does not say what is loaded: " + told.stderr[-2000:])
        return json.loads(told.stdout)

    def at_rest(self, wrong):
        """The daemon's state when nobody asks and nothing is loaded; what hinders that is wrong."""
        until = time.monotonic() + LEAVE_MAX
        while (stay := self.loaded()) and time.monotonic() < until:
            # What an operator loaded stays until an operator unloads it, and so does what was killed: it comes back, or has done so too often.
            for model in stay:
                if model["keep_alive_ms"] < 0 or model["state"] == "failed":
                    self.command("stop", model["name"])
            time.sleep(1)
        if stay:
            wrong.append(f"nobody has asked for {LEAVE_MAX} s, and these are loaded still: " + ", ".join(model["name"] for model in stay))
        time.sleep(REST)
        if not stay and (left := workers(self.daemon.pid)):
            wrong.append(f"no model is loaded, and there are processes of the daemon's still: {left}")
        return {**state(self.daemon.pid), "store": size(self.folder / "store")}

    def metrics(self):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics").read().decode()

    def counted(self, wrong, expected):
        """What the counters say when nobody asks any more, and before models leave, whose counters go with them; what disagrees is wrong."""
        until = time.monotonic() + 3
        while True:
            text = self.metrics()
            sums = lambda name: sum(float(value) for value in re.findall(rf"^hanzo_engine_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M))
            counts = {name: sums(name) for name in ("requests_total", "request_duration_seconds_count", "requests_running", "queue_depth")}
            answered, inner, *still = counts.values()
            # Who left is counted when the engine has seen it.
            if (inner == answered and not any(still)) or time.monotonic() > until:
                break
            time.sleep(0.1)
        wrong += [f"{name} is {counts[name]:.0f} when nobody asks" for name in ("requests_running", "queue_depth") if counts[name]]
        if inner != answered:
            wrong.append(f"{answered:.0f} requests answered and {inner:.0f} timed")
        if expected and not answered:
            wrong.append("no request is counted")
        return counts

    def restart_gateway(self):
        self.gateway.terminate()
        self.gateway.wait(60)
        self.gateway = self.start("engine-gateway", "gateway.toml")
        self.until_ready()

    def kill_a_worker(self):
        pids = [model["worker_pid"] for model in json.loads(self.command("ps", "--json").stdout or "[]") if model["worker_pid"]]
        if pids:
            try:
                os.kill(random.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has left by itself

    def reload(self):
        self.daemon.send_signal(signal.SIGHUP)
        self.gateway.send_signal(signal.SIGHUP)


def asking(port, rng):
    """One request; what came of it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    post = lambda path, body: connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    what = rng.random()
    model = rng.choice(NAMES)
    chat = {"model": model, "messages": [{"role": "user", "content": "Tell me of " + rng.choice(["a dog", "the sea", "a king"]) + ". " * rng.randrange(40)}], "max_tokens": rng.randrange(1, 120), "temperature": 1}
    try:
        if what < 0.1:
            post("/v1/embeddings", {"model": model, "input": ["Hello", "there"]})
        elif what < 0.15:
            post("/v1/chat/completions", {**chat, "temperature": -4})
            answer = connection.getresponse()
            answer.read()
            return "ok" if answer.status in (400, 503, 404) else f"status {answer.status}, not 400"
        elif what < 0.45:
            post("/v1/chat/completions", chat)
        else:
            post("/v1/chat/completions", {**chat, "stream": True})
            answer = connection.getresponse()
            if answer.status != 200:
                answer.read()
                return f"status {answer.status}"
            leaves = rng.random() < 0.25
            said = "cut off"
            while line := answer.readline():
                if line.startswith(b"data: [DONE]"):
                    said = "ok"
                elif b'"error"' in line:
                    said = "error event"
                elif leaves and line.startswith(b"data: ") and rng.random() < 0.2:
                    return "left"
            return said
        answer = connection.getresponse()
        answer.read()
        return "ok" if answer.status == 200 else f"status {answer.status}"
    except (ConnectionError, http.client.HTTPException):
        return "refused"
    except TimeoutError:
        return "no answer within a minute"
    finally:
        connection.close()


def state(pid):
    text = Path(f"/proc/{pid}/status").read_text()
    return {"resident": int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024, "files": len(os.listdir(f"/proc/{pid}/fd")), "tasks": len(os.listdir(f"/proc/{pid}/task"))}


def workers(pid):
    """The processes that one has started and not buried."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if re.search(rf"^PPid:\s+{pid}$", status.read_text(), re.M):
                found.append(status.parent.name)
        except OSError:
            pass  # it has ended meanwhile
    return found


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def slope(points):
    """MB in a minute, by least squares."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread * 60 if spread else 0


def main():
    args = arguments()
    rng = random.Random(args.seed)
    random.seed(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        programs = Programs(args, folder)
        over, seen, lock, asked = threading.Event(), collections.Counter(), threading.Lock(), collections.Counter()

        def client(number):
            own = random.Random(number)
            while not over.is_set():
                came = asking(programs.http, own)
                with lock:
                    seen[came] += 1
                # Who is told to come again later does, if soon: else most of what is asked is what a killed model answers before it is back.
                if came in ("refused", "status 503"):
                    time.sleep(0.05)

        acts = {"load": lambda: programs.command("load", "hanzo-demo", "--name", "d"), "unload": lambda: programs.command("stop", "d"), "kill": programs.kill_a_worker, "restart of the gateway": programs.restart_gateway, "reload": programs.reload}
        if unknown := set(args.acts) - set(acts):
            sys.exit(f"no such act: {', '.join(unknown)}")
        wrong = []

        def at_load(seconds, first):
            """Clients and acts for so long, the clients numbered from there; the resident sets meanwhile."""
            programs.command("load", "hanzo-demo")
            over.clear()
            clients = [threading.Thread(target=client, args=(first + number,)) for number in range(args.clients)]
            began, resident = time.monotonic(), []
            for thread in clients:
                thread.start()
            while (now := time.monotonic() - began) < seconds:
                if programs.daemon.poll() is not None:
                    sys.exit("engined ended: " + (folder / "log").read_text()[-2000:])
                resident.append((now, state(programs.daemon.pid)["resident"]))
                act = rng.choice(args.acts)
                acts[act]()
                asked[act] += 1
                time.sleep(rng.uniform(min(0.5, args.pause), args.pause))
            over.set()
            for thread in clients:
                thread.join()
            return resident

        at_load(args.minutes * 60 / 5, 0)
        programs.counted(wrong, args.clients)
        at_warm = programs.at_rest(wrong)
        points = at_load(args.minutes * 60 * 4 / 5, args.clients)
        counts = programs.counted(wrong, args.clients)
        at_last = programs.at_rest(wrong)
        # A worker's end is an error of the engine to whom it was answering, and to nobody else.
        explained = EXPLAINED | ({"status 500"} if seen["status 500"] <= asked["kill"] * args.clients else set())
        wrong += [f"{count} times: {came}" for came, count in seen.items() if came not in explained | {"ok", "left"}]
        grown = at_last["resident"] - at_warm["resident"]
        if grown > max(20, 0.05 * at_warm["resident"]):
            wrong.append(f"the resident set grew by {grown:.0f} MB")
        wrong += [f"{what} grew from {at_warm[what]} to {at_last[what]}" for what in ("files", "tasks") if at_last[what] > at_warm[what] + 8]
        if args.clients and seen["ok"] < 100:
            wrong.append("hardly anything was answered")
        print(f"{sum(seen.values())} requests of {args.clients} clients in {args.minutes:g} minutes: " + ", ".join(f"{count} {came}" for came, count in seen.most_common()))
        print("beside them: " + ", ".join(f"{count} times {act}" for act, count in asked.most_common()))
        show = lambda at: f"{at['resident']:.1f} MB resident, {at['files']} files, {at['tasks']} tasks, store {at['store'] / 1e6:.2f} MB"
        print(f"engined at rest after the warm-up: {show(at_warm)}\nengined at rest at the end:       {show(at_last)}\nslope of the resident set at load: {slope(points):+.2f} MB a minute")
        highest = [max(resident for _, resident in points[len(points) * part // 8:len(points) * (part + 1) // 8] or points[-1:]) for part in range(8)]
        print("highest resident set in each eighth of the time between: " + ", ".join(f"{resident:.1f}" for resident in highest) + " MB")
        print("requests_total {:.0f}, timed {:.0f}, running {:.0f}, waiting {:.0f}".format(*counts.values()))
        for text in wrong:
            print("wrong:", text)
        programs.gateway.terminate()
        programs.daemon.terminate()
        sys.exit(1 if wrong or programs.daemon.wait(60) else 0)


main()
