"""Three daemons behind one gateway, as processes, while clients stream chats: one is killed and comes back, then each is stopped as an operator stops it and comes
back. It shows how many streams the kill cost beside those that ran on that daemon, how long others waited for a first token beside undisturbed ones, how soon
the daemon is up again, how many streams the rolling restart cost, and which part of conversations' prompts was found, behind one daemon and behind three. Ends with 1 where a
stream was lost that did not run on what was killed, a request was refused, or affinity keeps less than 80 % of what one daemon finds.

    python tests/bench/fleet.py --engined target/release/engined --gateway target/release/engine-gateway [--clients 8] [--seconds 10]

Only the standard library is needed."""
import argparse, http.client, json, os, re, signal, subprocess, sys, tempfile, threading, time
from pathlib import Path

REJOIN_S = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engined", required=True); parser.add_argument("--gateway", required=True)
    parser.add_argument("--clients", type=int, default=8); parser.add_argument("--seconds", type=float, default=10, help="between two events")
    return parser.parse_args()


class Daemon:
    def __init__(self, args, folder):
        self.args, self.folder, self.port, self.process = args, folder, 0, None
        self.start()

    def start(self):
        command = [self.args.engined, "--grpc-port", str(self.port), "--admin-port", "0", "--model-dir", str(self.folder), "--model", "hanzo-demo", "--threads", "1"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
        for line in self.process.stderr:
            if found := re.search(r"grpc=\S+:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            sys.exit("a daemon did not start")
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def stop(self, how):
        self.process.send_signal(how)
        self.process.wait(60)


class Gateway:
    def __init__(self, args, daemons):
        upstreams = ",".join(f"127.0.0.1:{daemon.port}" for daemon in daemons)
        command = [args.gateway, "--port", "0", "--no-access-log", "--upstream", upstreams]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
        self.port = next(int(found[1]) for line in self.process.stderr if (found := re.search(r"http=\S+:(\d+)", line)))
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def up(self, daemons):
        health = json.loads(self.get("/health"))
        states = [engine["state"] for engine in health.get("upstreams", [{"state": "up"}])]
        return states.count("up") == daemons and health.get("status") != "unavailable"

    def until_up(self, daemons):
        begun = time.monotonic()
        while not self.up(daemons):
            if time.monotonic() - begun > REJOIN_S:
                sys.exit(f"not all are up: {self.get('/health')}")
            time.sleep(0.01)
        return time.monotonic() - begun

    def chat(self, body):
        """Of a stream: the status, seconds to the first event, whether it was whole."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        begun = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        first = answer.readline()
        seconds = time.monotonic() - begun
        rest = first + answer.read()
        return answer.status, seconds, b"[DONE]" in rest and b'"error"' not in rest


class Load:
    """Clients that stream chats, one after the other each, until they are stopped."""

    def __init__(self, gateway, count):
        self.over, self.lock, self.done = threading.Event(), threading.Lock(), []
        self.threads = [threading.Thread(target=self.client, args=(gateway, client)) for client in range(count)]
        for thread in self.threads:
            thread.start()

    def client(self, gateway, client):
        asked = 0
        while not self.over.is_set():
            asked += 1
            question = f"Client {client} asks question {asked}: tell me a story."
            body = {"model": "hanzo-demo", "stream": True, "max_tokens": 200, "ignore_eos": True, "messages": [{"role": "user", "content": question}]}
            begun = time.monotonic()
            status, first, whole = gateway.chat(body)
            with self.lock:
                self.done.append((begun, status, first, whole))

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self.done


def hit_rate(gateway, conversations=12, turns=5):
    """Conversations side by side; which part of all prompts' tokens was found."""
    counts, lock = [0, 0], threading.Lock()

    def talk(conversation):
        messages = [{"role": "system", "content": "Be brief."}]
        for turn in range(turns):
            messages.append({"role": "user", "content": f"In story {conversation}, what happens in part {turn}?"})
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
            body = {"model": "hanzo-demo", "messages": messages, "max_tokens": 12, "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            with lock:
                counts[0] += answer["usage"]["prompt_tokens"]
                counts[1] += answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    threads = [threading.Thread(target=talk, args=(conversation,)) for conversation in range(conversations)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts[1] / counts[0]


def p95(values):
    return sorted(values)[int(len(values) * 0.95)] * 1000


def main():
    args, failed, processes = arguments(), [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            one = Daemon(args, Path(folder) / "one")
            processes.append(one)
            front = Gateway(args, [one])
            processes.append(front)
            front.until_up(1)
            while '"hanzo-demo"' not in front.get("/v1/models"):
                time.sleep(0.05)
            alone = hit_rate(front)
            daemons = [Daemon(args, Path(folder) / name) for name in "abc"]
            processes += daemons
            gateway = Gateway(args, daemons)
            processes.append(gateway)
            gateway.until_up(3)
            together = hit_rate(gateway)
            print(f"prompts' tokens that were found: {alone:.3f} behind one daemon, {together:.3f} behind three: {together / alone:.0%}", flush=True)
            if together < 0.8 * alone:
                failed.append("affinity")

            load = Load(gateway, args.clients)
            time.sleep(args.seconds)
            victim = daemons[0]
            killed = time.monotonic()
            victim.stop(signal.SIGKILL)
            time.sleep(args.seconds)
            victim.start()
            begun_again = time.monotonic()
            rejoined = gateway.until_up(3)
            time.sleep(args.seconds)
            done = load.end()
            # What ran when it was killed may have run there; who came later did not.
            running = [one for one in done if one[0] <= killed]
            lost = [one for one in done if not one[3]]
            late = [one for one in lost if one[0] > killed]
            refused = [one[1] for one in done if one[1] != 200]
            calm = [one[2] for one in done if one[0] < killed - 1]
            after = [one[2] for one in done if killed < one[0] < killed + args.seconds]
            print(f"killed: {len(lost)} of {len(done)} streams were lost, {len(late)} of them begun afterwards; {args.clients} were running; refused: {refused or 'none'}", flush=True)
            print(f"first events: p95 {p95(calm):.0f} ms before ({len(calm)} streams), {p95(after):.0f} ms after it was killed ({len(after)}), most {max(after) * 1000:.0f} ms", flush=True)
            print(f"it was up again {rejoined:.2f} s after it listened", flush=True)
            if late or refused or len(lost) > args.clients or not running:
                failed.append("kill")

            load = Load(gateway, args.clients)
            for daemon in daemons:
                time.sleep(args.seconds / 4)
                daemon.stop(signal.SIGTERM)
                daemon.start()
                gateway.until_up(3)
            done = load.end()
            lost = [one for one in done if not one[3] or one[1] != 200]
            print(f"rolling restart: {len(lost)} of {len(done)} streams were lost", flush=True)
            if lost:
                failed.append("rolling restart")
        finally:
            for process in processes:
                process.process.kill()
                process.process.wait()
    if failed:
        sys.exit("FAILED: " + ", ".join(failed))


if __name__ == "__main__":
    main()
