"""32 streams of different lengths at once; half of them killed; a full queue refused."""
import json, socket, sys, urllib.error

from engine import Engine, check, run_checks
from streams import body, stream, together, until

QUESTIONS = ["What is the capital of France?", "Who are you?", "Explain paged attention.", "Tell me a story about a fox named Mia.",
             "Count from 1 to 40.", "What is an embedding?", "Hello!", "What is 27 + 45?"]


def stats(engine):
    values = {}
    for line in engine.text("/metrics", engine.admin).splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


def blocks_used(engine):
    return next(value for name, value in stats(engine).items() if name.startswith("hanzo_engine_kv_blocks{") and 'state="used"' in name)


@check
def thirty_two_clients():
    with Engine() as engine:
        def ask(key):
            question, tokens, temperature = key
            return stream(engine, body(question, max_tokens=tokens, temperature=temperature, seed=tokens))

        alone = {key: ask(key) for key in ((q, n, t) for q in QUESTIONS for n, t in ((8, 0), (30, 1), (60, 0), (90, 1)))}
        got = {}
        together([lambda key=key: got.__setitem__(key, ask(key)) for key in alone])
        assert got == alone, {k: (alone[k], got.get(k)) for k in alone if alone[k] != got.get(k)}
        assert len(got) == 32 and all(done and error is None for _, _, done, error in got.values())
        return f"32 streams together give what each gives alone ({sum(len(t[0]) for t in got.values())} characters)"


@check
def killed_clients_free_their_blocks():
    with Engine() as engine:
        before = blocks_used(engine)
        texts, sockets = {}, []
        for i in range(32):
            data = body("Count from 1 to 40.", max_tokens=1500, ignore_eos=True) if i % 2 else None
            if data:
                connection = socket.create_connection(engine.http.split(":"))
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
                sockets.append(connection)
        for connection in sockets:
            received = b""
            while b'"content"' not in received:
                part = connection.recv(65536)
                assert part, received
                received += part
        peak = blocks_used(engine)
        assert peak > before, (before, peak)
        survivors = [lambda i=i: texts.__setitem__(i, stream(engine, body(QUESTIONS[i % 8], max_tokens=60))) for i in range(16)]
        killer = lambda: [connection.close() for connection in sockets]
        together([*survivors, killer])
        assert len(texts) == 16 and all(t[2] for t in texts.values())
        until(lambda: blocks_used(engine) == before, f"blocks in use stay {blocks_used(engine)}, {before} before")
        return f"{before:.0f} blocks in use before, {peak:.0f} with 16 streams, {blocks_used(engine):.0f} after they were killed"


@check
def full_queue_is_refused():
    limit, at_once = 4, 2
    with Engine(env={"HANZO_ENGINE_ENGINE_QUEUE_REQUESTS_MAX": str(limit), "HANZO_ENGINE_ENGINE_SEQUENCES_MAX": str(at_once)}) as engine:
        answers = []

        def client():
            try:
                answers.append((200, stream(engine, body("Count from 1 to 40.", max_tokens=400, ignore_eos=True))))
            except urllib.error.HTTPError as error:
                answers.append((error.code, error.headers.get("retry-after"), json.loads(error.read())))

        together([client] * 33)
        served = [a for a in answers if a[0] == 200]
        refused = [a for a in answers if a[0] == 429]
        assert len(served) + len(refused) == 33 and refused and len(served) >= limit, [a[0] for a in answers]
        assert all(int(a[1]) >= 1 and a[2]["error"]["message"] for a in refused), refused[0]
        assert all(a[1][2] and a[1][1] == "length" for a in served)
        assert stream(engine, body("Hello!"))[2]
        return f"{len(served)} served, {len(refused)} refused with Retry-After {refused[0][1]}: {refused[0][2]['error']['message']}"


if __name__ == "__main__":
    sys.exit(run_checks())
