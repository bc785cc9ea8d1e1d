"""Requests that are wrong: each gets the right 4xx with a body that names what is wrong, and the next good one works."""
import json, re, socket, sys, urllib.request

from engine import Engine, check, run_checks

GOOD = {"model": "hanzo-demo", "messages": [{"role": "user", "content": "Hello!"}], "chat_template_kwargs": {"enable_thinking": False}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = "word " * 6000
NESTED = "[" * 5000 + "]" * 5000


def good(**changes):
    return json.dumps({**GOOD, **changes})


def raw(field, json_text):
    return good()[:-1] + f', "{field}": {json_text}}}'


# path, body, status, param (None: not checked), word in the message
BAD = [
    (CHAT, "", 400, None, ""),
    (CHAT, "{", 400, None, ""),
    (CHAT, "[]", 400, None, "object"),
    (CHAT, '"hello"', 400, None, "object"),
    (CHAT, "null", 400, None, "object"),
    (CHAT, b'{"model": "\xff\xfe"}', 400, None, ""),
    (CHAT, '{"messages": ' + NESTED + "}", 400, None, ""),
    (CHAT, json.dumps({"model": "hanzo-demo"}), 400, "messages", "messages"),
    (CHAT, good(messages=[]), 400, "messages", "empty"),
    (CHAT, good(messages="hi"), 400, "messages", ""),
    (CHAT, good(messages=["hi"]), 400, None, "messages"),
    (CHAT, good(messages=[{"content": "hi"}]), 400, None, "role"),
    (CHAT, good(messages=[{"role": "robot", "content": "hi"}]), 400, None, "robot"),
    (CHAT, good(messages=[{"role": "user"}]), 400, None, "content"),
    (CHAT, good(messages=[{"role": "user", "content": 7}]), 400, None, "content"),
    (CHAT, good(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]), 400, None, "image_url"),
    (CHAT, good(messages=[{"role": "user", "content": [{"type": "smell"}]}]), 400, None, "smell"),
    (CHAT, good(messages=[{"role": "user", "content": LONG}]), 400, None, "4096"),
    (CHAT, good(model=7), 400, "model", ""),
    (CHAT, good(model="gpt-9"), 404, None, "hanzo-demo"),
    (CHAT, raw("temperature", "NaN"), 400, None, ""),
    (CHAT, raw("temperature", "1e999"), 400, None, ""),
    (CHAT, good(temperature="hot"), 400, "temperature", "number"),
    (CHAT, good(temperature=-0.1), 400, "temperature", ""),
    (CHAT, good(temperature=2.1), 400, "temperature", ""),
    (CHAT, good(top_p=-0.1), 400, "top_p", ""),
    (CHAT, good(top_p=1.5), 400, "top_p", ""),
    (CHAT, good(top_k=-5), 400, "top_k", ""),
    (CHAT, good(top_k=1.5), 400, "top_k", ""),
    (CHAT, good(min_p=2), 400, "min_p", ""),
    (CHAT, good(repetition_penalty=0), 400, "repetition_penalty", ""),
    (CHAT, good(frequency_penalty=3), 400, "frequency_penalty", ""),
    (CHAT, good(presence_penalty=-3), 400, "presence_penalty", ""),
    (CHAT, good(max_tokens=-2), 400, "max_tokens", ""),
    (CHAT, good(max_tokens=0), 400, "max_tokens", ""),
    (CHAT, good(max_tokens=2.5), 400, "max_tokens", ""),
    (CHAT, good(max_tokens="many"), 400, "max_tokens", ""),
    (CHAT, good(max_tokens=10**30), 400, "max_tokens", ""),
    (CHAT, good(max_tokens=5, max_completion_tokens=6), 400, None, "max_completion_tokens"),
    (CHAT, good(max_tokens=5, min_tokens=6), 400, "min_tokens", ""),
    (CHAT, good(n=0), 400, "n", ""),
    (CHAT, good(n=10**9), 400, "n", ""),
    (CHAT, good(n="2"), 400, "n", ""),
    (CHAT, good(seed="x"), 400, "seed", ""),
    (CHAT, good(stop=7), 400, "stop", ""),
    (CHAT, good(stop=[""]), 400, "stop", ""),
    (CHAT, good(stop=["x"] * 17), 400, "stop", "16"),
    (CHAT, good(stop_token_ids=[99999999]), 400, "stop_token_ids", ""),
    (CHAT, good(logit_bias={"x": 1}), 400, "logit_bias", ""),
    (CHAT, good(logit_bias={"5": 101}), 400, "logit_bias", ""),
    (CHAT, good(logit_bias={"99999999": 1}), 400, "logit_bias", ""),
    (CHAT, good(stream="yes"), 400, "stream", ""),
    (CHAT, good(stream_options={"include_usage": True}), 400, "stream_options", ""),
    (CHAT, good(top_logprobs=2), 400, "top_logprobs", "logprobs"),
    (CHAT, good(logprobs=True, top_logprobs=21), 400, "top_logprobs", ""),
    (CHAT, good(tools=[{"type": "function", "function": {"name": "a b"}}]), 400, "tools", "function.name"),
    (CHAT, good(response_format={"type": "xml"}), 400, "response_format", "response_format.type"),
    (CHAT, good(chat_template_kwargs="no"), 400, "chat_template_kwargs", ""),
    (CHAT, good(no_such_field=1), 400, "no_such_field", "no_such_field"),
    (CHAT, good(no_such_field="x" * 5000), 400, "no_such_field", ""),
    (CHAT, good(priority="high"), 400, "priority", ""),
    (TEXT, json.dumps({"model": "hanzo-demo"}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": ""}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": []}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": [1, "a"]}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": [-1]}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": [4096]}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": {"a": 1}}), 400, "prompt", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": "hi", "logprobs": 6}), 400, "logprobs", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": "hi", "suffix": "x"}), 400, "suffix", ""),
    (TEXT, json.dumps({"model": "hanzo-demo", "prompt": LONG}), 400, None, "4096"),
    (CHAT, "x" * (11 << 20), 413, None, ""),
    ("/v1/nothing", "{}", 404, None, "/v1/nothing"),
]


def post(engine, path, body, method="POST", content_type="application/json"):
    data = body.encode() if isinstance(body, str) else body
    request = urllib.request.Request(f"http://{engine.http}{path}", data, {"content-type": content_type}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except urllib.error.URLError as error:
        # A server may answer 413 and close before it has read all; the client then sees a reset.
        if isinstance(error.reason, (BrokenPipeError, ConnectionResetError)):
            return 413, b'{"error": {"message": "reset", "type": "", "param": null, "code": null}}'
        raise


def works(engine):
    status, body = post(engine, CHAT, good())
    assert status == 200, (status, body)
    return json.loads(body)["choices"][0]["message"]["content"]


@check
def each_bad_request_is_refused(engine):
    hello, faults = works(engine), []
    for path, body, status, param, word in BAD:
        shown = body[:90] if len(body) < 300 else body[:60] + (b"..." if isinstance(body, bytes) else "...")
        got, answer = post(engine, path, body)
        try:
            error = json.loads(answer)["error"]
            assert set(error) == {"message", "type", "param", "code"}, error
        except Exception as why:
            faults.append(f"{shown!r}: {got} {answer[:200]!r}: {why!r}")
            continue
        if got != status or (param and re.split(r"[.\[]", error["param"] or "")[0] != param) or word not in error["message"] or len(answer) > 2048:
            faults.append(f"{shown!r}: {got} {answer[:300]!r}, want {status} {param} {word!r}")
        if works(engine) != hello:
            faults.append(f"after {shown!r} the good request fails")
    assert not faults, f"{len(faults)} of {len(BAD)}:\n" + "\n".join(faults)
    return f"{len(BAD)} bad requests"


@check
def wrong_methods_and_types(engine):
    assert post(engine, CHAT, None, method="GET")[0] == 405
    assert post(engine, "/v1/models", "{}")[0] == 405
    assert post(engine, CHAT, good(), content_type="text/plain")[0] in (400, 415)
    works(engine)


@check
def broken_connections(engine):
    host, port = engine.http.split(":")
    for data in (b"", b"\x00\x01\x02", b"GET", b"POST /v1/chat/completions HTTP/1.1\r\n", b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 999999\r\n\r\n{",
                 b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                 b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            try:
                connection.sendall(data)
            except OSError:
                pass
    works(engine)


if __name__ == "__main__":
    with Engine() as engine:
        sys.exit(run_checks(engine))
