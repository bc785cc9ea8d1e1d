"""Streamed chats for the checks: one, many at once, and waiting for what must come about."""
import json, threading, time, urllib.request


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


def until(condition, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
