"""32 streams of different lengths at once; half of them killed; a full queue refused; eight streams through a SIGTERM."""
import json, socket, sys, threading, time, urllib.request

from engine import Engine, check, run_checks

QUESTIONS = ["What is the capital of France?", "Who are you?", "Explain paged attention.", "Tell me a story about a fox named Mia.",
             "Count from 1 to 40.", "What is an embedding?", "Hello!", "What is 27 + 45?"]


def body(question, **more):
    return json.dumps({"model": "hanzo-demo", "messages": [{"role": "user", "content": question}], "stream": True,
                       "chat_template_kwargs": {"enable_thinking": False}, **more}).encode()


def stream(engine, data, on_text=None):
    """-> text, finish_reason, whether [DONE] came, error"""
    request = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", data, {"content-type": "application/json"})
    text, reason, done, error = "", None, False, None
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                error = event["error"]
                continue
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
            if on_text and text:
                on_text()
                on_text = None
    return text, reason, done, error


def together(functions):
    threads = [threading.Thread(target=f) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert not any(thread.is_alive() for thread in threads), "a client hangs"


def stats(engine):
    values = {}
    for line in engine.text("/metrics", engine.admin).splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


def blocks_used(engine):
    return next(value for name, value in stats(engine).items() if name.startswith("hanzo_engine_kv_blocks{") and 'state="used"' in name)


def until(condition, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@check
def thirty_two_clients():
    with Engine() as engine:
        alone = {(q, n): stream(engine, body(q, max_tokens=n)) for q in QUESTIONS for n in (8, 30, 60, 90)}
        got = {}
        together([lambda key=key: got.__setitem__(key, stream(engine, body(key[0], max_tokens=key[1]))) for key in alone])
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
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
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
