"""Prompts that try to occupy the shared stages of `hanzo-engine serve`, over HTTP with the demo model: words of megabytes, chats of thousands of messages, schemas that are
slow to compile, grammars whose masks are slow, expressions that fill memory. 8 or 40 connections of one client send them, wait or leave. Meanwhile small chats of another
client are answered soon, and the process takes at most twice the bytes under way, and 64 MiB.
usage: prompts.py HANZO_ENGINE_BINARY [SECONDS]      20 seconds of each attack where it is not said"""
import http.client, json, os, random, re, socket, statistics, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from engine import Engine, check, run_checks

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20
ATTACKERS = 8
WORD_BYTES = 9_900_000
# Clients without a key are told from each other by their addresses.
ATTACKER, OTHER = "127.0.0.2", "127.0.0.1"
CHAT_S_MAX, TIMES_ALONE_MAX = 1, 40  # 95 of 100 chats; the second on a machine that others keep busy
BESIDE_MIB = 64


def word(alphabet, seed):
    source = random.Random(seed)
    letters = "".join(source.choices(alphabet, k=1 << 16))
    return (letters * (WORD_BYTES // len(letters.encode()) + 1))[:WORD_BYTES // max(len(letter.encode()) for letter in alphabet)]


def words():
    """By what each is: a text without a place to cut it, or with nothing but such places."""
    yield "one letter", "a" * WORD_BYTES
    yield "letters", word("abcdefghijklmnopqrstuvwxyz", 1)
    yield "base64", word("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", 2)
    yield "spaces", " " * WORD_BYTES
    yield "signs", word("=-#*", 3)
    yield "digits", word("0123456789", 4)
    yield "ideographs", word("的一是不了人我在有他", 5)
    yield "control tokens", "<|im_end|>" * (WORD_BYTES // 10)


def tokenize(seed):
    texts = list(words())
    return "/tokenize", {"prompt": texts[seed % len(texts)][1]}


def many_tokens(seed):
    """Texts of many tokens for their bytes, written without escapes."""
    letters = ("\u0301", "e\u0301", "\U0001d518", "\u0f40\u0f90")
    text = letters[seed % len(letters)]
    return "/tokenize", {"prompt": text * (WORD_BYTES // len(text.encode()))}


def detokenize(seed): return "/detokenize", {"tokens": [random.Random(seed).randrange(300)] * 2_000_000}
def chat(content, **more): return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0, **more}


def many_messages(seed):
    return "/v1/chat/completions", {"messages": [{"role": ("user", "assistant")[i % 2], "content": f"{seed} {i} " + "x" * 500} for i in range(16_383)], "max_tokens": 1}


def count_tokens(seed):
    texts = list(words())
    return "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": texts[seed % len(texts)][1]}]}


def large_chat(seed):
    texts = list(words())
    return chat(texts[seed % len(texts)][1])


def schema(seed):
    """Another one each time: what was compiled once is remembered."""
    kinds = (
        {"type": "object", "properties": {f"{seed} {i}": {"type": "string", "pattern": f"^(a|b|ab){{1,{i % 50 + 1}}}c$"} for i in range(900)}},
        {"type": "string", "pattern": f"^(?:[a-z{seed % 10}]{{0,200}}x){{0,40}}(?:.*y){{8}}$"},
        {"type": "object", "properties": {f"{seed} {i}": {"enum": [f"{seed} {i} {j}" for j in range(10)]} for i in range(1_900)}},
        {"$ref": "#/$defs/0", "$defs": {str(i): {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/{(i * 7 + j + seed) % 400}"} for j in range(12)]}} for i in range(400)}},
    )
    return chat("Say something.", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": kinds[seed % len(kinds)]}})


def slow_masks(seed):
    """Each token makes the mask of the next one slower."""
    return "/completion", {"prompt": f"K T {seed}", "n_predict": 2000, "grammar": 'root ::= s "zKT"\ns ::= s s s | s s | [a-z ] | ""'}


def growing_lexer(seed):
    """Each token is another state of the expression's automaton."""
    return chat(f"{seed} abc", guided_regex="(.*(a|e).{300}(b|o).{100})+", max_tokens=4000, temperature=1.5)


ATTACKS = (tokenize, many_tokens, count_tokens, large_chat, many_messages, detokenize, schema, slow_masks, growing_lexer)
CONNECTIONS = {slow_masks: 40}


class Server:
    def __init__(self, engine):
        self.engine = engine

    def memory(self, line):
        return int(re.search(rf"{line}:\s+(\d+)", open(f"/proc/{self.engine.process.pid}/status").read())[1]) / 1024

    def forget_peak(self):
        open(f"/proc/{self.engine.process.pid}/clear_refs", "w").write("5")

    def connect(self, address, timeout=180):
        return http.client.HTTPConnection(self.engine.http, timeout=timeout, source_address=(address, 0))

    def small_chat(self):
        """Seconds that a small chat of another client takes."""
        path, body = chat("What is 1 + 1?")
        began, connection = time.monotonic(), self.connect(OTHER)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            read = answer.read()
            assert answer.status == 200, (answer.status, read[:300])
        finally: connection.close()
        return time.monotonic() - began


    def warm_up(self):
        """Fills the KV cache and the step's buffers, which are the model's own memory and stay."""
        path, body = chat("Go on.", ignore_eos=True)
        body["max_tokens"] = 1600

        def ask():
            connection = self.connect(OTHER)
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            assert connection.getresponse().status == 200
            connection.close()
        threads = [threading.Thread(target=ask) for _ in range(max(CONNECTIONS.values()))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()


class Attack:
    """Connections of one client, each with one request after the other. Of two, one waits for its answer, the other leaves within a second."""

    def __init__(self, server, kind):
        self.stop, self.statuses, self.failed, self.bytes = threading.Event(), {}, [], 0
        # Made before: this program shares the processors with the engine.
        self.bodies = [(path, json.dumps(body, ensure_ascii=kind is not many_tokens).encode()) for path, body in (kind(seed) for seed in range(ATTACKERS))]
        self.kind, self.server = kind, server
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(CONNECTIONS.get(kind, ATTACKERS))]

    def body(self, number, turn):
        if self.kind is not schema: return self.bodies[(number + turn) % len(self.bodies)]
        path, body = schema(number + ATTACKERS * turn)
        return path, json.dumps(body).encode()

    def run(self, number):
        turn = 0
        while not self.stop.is_set():
            path, body = self.body(number, turn)
            turn += 1
            self.bytes = max(self.bytes, len(body))
            connection = self.server.connect(ATTACKER, 60 if number % 2 else 1)
            try:
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                read = answer.read()
                self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
                # A server that has too much to do says so, and blames no request for it.
                if answer.status == 400 and b"seconds" in read or answer.status >= 500 and answer.status not in (503, 504): self.failed.append((answer.status, read[:300]))
            except (TimeoutError, socket.timeout): self.statuses["left"] = self.statuses.get("left", 0) + 1
            except OSError: self.statuses["closed"] = self.statuses.get("closed", 0) + 1
            finally: connection.close()

    def __enter__(self):
        for thread in self.threads: thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads: thread.join()


def percentile(times, share): return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def attacked(server, kind):
    for _ in range(3): server.small_chat()
    alone = statistics.median(server.small_chat() for _ in range(10))
    before = server.memory("VmRSS")
    server.forget_peak()
    times = []
    with Attack(server, kind) as attack:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            times.append(server.small_chat())
            time.sleep(0.02)
    peak, room = server.memory("VmHWM") - before, 2 * ATTACKERS * attack.bytes / 2**20 + BESIDE_MIB
    p95, most = percentile(times, 0.95), max(CHAT_S_MAX, TIMES_ALONE_MAX * alone)
    told = f"{len(times)} small chats: p95 {p95 * 1000:.0f} ms, at most {max(times) * 1000:.0f} ms, alone {alone * 1000:.0f} ms; {peak:.0f} of {room:.0f} MiB; attackers {attack.statuses}"
    assert not attack.failed, (attack.failed[:3], told)
    assert p95 <= most, told
    assert peak <= room, told
    return told


for kind in ATTACKS:
    def run(server, kind=kind): return attacked(server, kind)
    run.__name__ = f"another_client_is_served_beside_{kind.__name__}"
    check(run)


def many_nulls(names): return {names + str(i): None for i in range(16_000)}


@check
def bodies_of_many_names_and_calls_are_read_soon(server):
    """Bodies below a megabyte whose fields or calls are many. Each is refused or answered within a second."""
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}] * 1_000}] * 25
    bodies = (
        chat("hi", media_io_kwargs=many_nulls("\n")),
        chat("hi", media_io_kwargs={"image": many_nulls("\n")}),
        chat("hi", mm_processor_kwargs=many_nulls("\n")),
        ("/api/chat", {"model": "hanzo-demo", "messages": calls + [{"role": "tool", "content": "", "tool_call_id": "x"}] * 16_000}),
    )
    told = []
    for path, body in bodies:
        connection = server.connect(ATTACKER)
        began = time.monotonic()
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        took = time.monotonic() - began
        told.append(f"{answer.status} in {took * 1000:.0f} ms")
        assert answer.status in (200, 400) and took < 1, (path, told)
    return ", ".join(told)


@check
def afterwards_it_is_as_it_was(server):
    began = time.monotonic()
    times = [server.small_chat() for _ in range(20)]
    assert max(times) < CHAT_S_MAX, times
    # The attacker is served too, now that it asks for little.
    connection = server.connect(ATTACKER)
    path, body = chat("What is 1 + 1?")
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    assert connection.getresponse().status == 200
    assert server.engine.process.poll() is None
    return f"{time.monotonic() - began:.1f} s"


if __name__ == "__main__":
    with Engine("--log-level", "warn") as engine:
        server = Server(engine)
        server.warm_up()
        sys.exit(run_checks(server))
