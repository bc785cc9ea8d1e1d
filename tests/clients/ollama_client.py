"""Unmodified clients of Ollama's API (its Python package, sync and async, langchain's, and npm's) against `hanzo-engine serve` with the
bundled demo model, and a registry of a few lines to pull from.
usage: ollama_client.py HANZO_ENGINE_BINARY NODE_MODULES"""
import asyncio, glob, hashlib, http.server, json, os, subprocess, sys, threading, urllib.error, urllib.request

import ollama
from langchain_ollama import ChatOllama, OllamaEmbeddings

from engine import ROOT, Engine, check, run_checks

MODEL = "hanzo-demo"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 64}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"], "additionalProperties": False}
WEIGHTS = glob.glob(f"{ROOT}/models/**/*.gguf", recursive=True)[0]


class Registry(http.server.BaseHTTPRequestHandler):
    """One model, `library/small:latest`, in the layout of Ollama's registry."""

    blobs = {}

    def do_GET(self):
        parts = self.path.strip("/").split("/")
        if parts[-2] == "manifests":
            return self.say(self.manifest if parts[-3] == "small" else None)
        self.say(self.blobs.get(parts[-1]))

    def say(self, body):
        status = 404 if body is None else 200
        start, end = 0, len(body or b"")
        if body is not None and (asked := self.headers.get("range")):
            first, last = asked.removeprefix("bytes=").split("-")
            start, end, status = int(first), min(int(last) + 1 if last else end, end), 206
        self.send_response(status)
        self.send_header("content-length", str(end - start))
        if status == 206:
            self.send_header("content-range", f"bytes {start}-{end - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write((body or b"")[start:end])

    def log_message(self, *_):
        pass


def registry():
    def layer(kind, body):
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        Registry.blobs[digest] = body
        return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": len(body)}

    config = layer("config", b'{"model_format":"gguf","model_family":"qwen3"}')
    layers = [layer("model", open(WEIGHTS, "rb").read()), layer("system", b"You are a helpful assistant."), layer("params", b'{"temperature":0,"stop":["<never>"]}')]
    Registry.manifest = json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}/library/small"


def ask(client, **more):
    return client.chat(**{"model": MODEL, "messages": FRANCE, "think": False, "options": GREEDY, **more})


@check
def a_chat(client, _):
    answer = ask(client)
    assert "Paris" in answer.message.content and answer.done and answer.done_reason == "stop", answer
    assert answer.prompt_eval_count > 5 and answer.eval_count > 0 and answer.total_duration > answer.eval_duration > 0, answer
    assert answer.model == MODEL and not answer.message.thinking, answer
    assert ask(client, options={**GREEDY, "num_predict": 2}).done_reason == "length"
    assert "Paris" not in ask(client, options={**GREEDY, "stop": ["Paris"]}).message.content


@check
def a_stream_says_the_same(client, _):
    parts = list(ask(client, stream=True))
    assert "".join(part.message.content for part in parts) == ask(client).message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True] and parts[-1].eval_count > 1, parts[-1]


@check
def asynchronously_too(client, http):
    async def run():
        client = ollama.AsyncClient(host=http)
        whole = await client.chat(model=MODEL, messages=FRANCE, think=False, options=GREEDY)
        text = "".join([part.message.content async for part in await client.chat(model=MODEL, messages=FRANCE, think=False, options=GREEDY, stream=True)])
        assert text == whole.message.content and "Paris" in text, (text, whole)
        vectors = await asyncio.gather(*(client.generate(model=MODEL, prompt="Hi", think=False, options=GREEDY) for _ in range(8)))
        assert len({answer.response for answer in vectors}) == 1, vectors

    asyncio.run(run())


@check
def a_prompt(client, _):
    chat = ask(client).message.content
    said = client.generate(model=MODEL, prompt=FRANCE[0]["content"], think=False, options=GREEDY)
    assert said.response == chat and said.done_reason == "stop" and said.context is None, said
    streamed = client.generate(model=MODEL, prompt=FRANCE[0]["content"], think=False, options=GREEDY, stream=True)
    assert "".join(part.response for part in streamed) == chat
    system = client.generate(model=MODEL, prompt=FRANCE[0]["content"], system="You are a helpful assistant.", think=False, options=GREEDY)
    assert system.response == ask(client, messages=[{"role": "system", "content": "You are a helpful assistant."}, *FRANCE]).message.content
    raw = client.generate(model=MODEL, prompt="The capital of France is", raw=True, options={**GREEDY, "num_predict": 8})
    assert raw.response and raw.prompt_eval_count < said.prompt_eval_count, raw


@check
def thinking_is_apart(client, _):
    thought = ask(client, think=True, options={"temperature": 0, "num_predict": 2000})
    assert thought.message.thinking and thought.message.content and "<think>" not in thought.message.content, thought
    assert ask(client, think="low", options={"temperature": 0, "num_predict": 2000}).message.content
    parts = list(client.generate(model=MODEL, prompt=FRANCE[0]["content"], think=True, stream=True, options={"temperature": 0, "num_predict": 2000}))
    assert "".join(part.thinking or "" for part in parts) == thought.message.thinking, parts[-1]


@check
def formats_are_kept(client, _):
    answer = ask(client, format=SCHEMA, options={**GREEDY, "num_predict": 200})
    assert set(json.loads(answer.message.content)) == {"city"}, answer
    prompted = client.generate(model=MODEL, prompt="A city as JSON", format="json", think=False, options={**GREEDY, "num_predict": 200, "seed": 1})
    assert prompted.done_reason == "length" or isinstance(json.loads(prompted.response), dict), prompted


def get_weather(city: str) -> str:
    """Get the current weather for a city.

    Args:
      city: The city's name.
    """
    return f"18 degrees in {city}"


@check
def a_tool_from_the_call_to_the_answer(client, http):
    # Whether a small model calls is its own matter: what a scripted one calls is compared elsewhere, to the letter.
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = ask(client, messages=messages, tools=[get_weather], options={**GREEDY, "num_predict": 200})
    calls = answer.message.tool_calls or []
    for call in calls:
        assert call.function.name == "get_weather" and isinstance(call.function.arguments, dict), call
    history = [*messages, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}]},
               {"role": "tool", "content": get_weather("Paris"), "tool_name": "get_weather"}]
    last = ask(client, messages=history, tools=[get_weather])
    assert last.done and (last.message.content or last.message.tool_calls), last
    return f"{len(calls)} calls"


@check
def log_probabilities(client, _):
    answer = ask(client, logprobs=True, top_logprobs=2)
    assert answer.logprobs and "".join(token.token for token in answer.logprobs).startswith(answer.message.content[:4]), answer
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in answer.logprobs), answer.logprobs


@check
def a_chat_that_is_too_long_loses_its_oldest_messages(client, _):
    context = client.ps().models[0].context_length
    old = [{"role": "user", "content": "word " * (context // 8)}, {"role": "assistant", "content": "Yes."}] * 12
    answer = ask(client, messages=[*old, *FRANCE])
    assert answer.message.content and answer.prompt_eval_count < context, answer
    try:
        ask(client, messages=[{"role": "user", "content": "word " * (2 * context)}])
    except ollama.ResponseError as error:
        assert error.status_code == 400 and "context" in error.error, error
    else:
        raise AssertionError("a message that cannot fit was taken")


@check
def models_are_listed_and_shown(client, _):
    names = [model.model for model in client.list().models]
    assert f"{MODEL}:latest" in names, names
    running = client.ps().models
    assert running[0].model == f"{MODEL}:latest" and running[0].size > 0 and running[0].expires_at.year >= 2026, running
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities and "thinking" in shown.capabilities and shown.template and shown.details.family, shown
    assert shown.modelinfo["general.architecture"] == shown.details.family, shown.modelinfo
    assert client.show(f"{MODEL}:latest").modelinfo == shown.modelinfo
    assert "Paris" in ask(client, model=f"{MODEL}:latest").message.content


@check
def a_model_is_pulled_named_used_and_removed(client, _):
    name = registry()
    told = list(client.pull(name, stream=True))
    assert told[0].status == "pulling manifest" and told[-1].status == "success", told
    bars = [step for step in told if step.digest]
    assert len({step.digest for step in bars}) == 3 and all(step.digest.startswith("sha256:") for step in bars), told
    assert max(step.completed or 0 for step in bars) == os.path.getsize(WEIGHTS), bars
    assert client.pull(name).status == "success"
    assert "small:latest" in [model.model for model in client.list().models]
    shown = client.show("small")
    assert "<never>" in shown.parameters and "helpful" in shown.modelfile, shown
    client.copy("small", "mine")
    assert "mine:latest" in [model.model for model in client.list().models]
    assert "Paris" in ask(client, model="mine", keep_alive="10m").message.content
    assert client.generate(model="small", keep_alive="1h").done_reason == "load"
    assert client.generate(model="small", keep_alive=0).done_reason == "unload"
    assert "small:latest" not in [model.model for model in client.ps().models]
    made = client.create(model="brief", from_="small", system="Answer in one word.", parameters={"temperature": 0, "num_predict": 3, "seed": 7}, messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], license="MIT")
    assert made.status == "success", made
    shown = client.show("brief")
    assert "num_predict" in shown.parameters and "stop" in shown.parameters and shown.license == "MIT", shown
    assert shown.modelfile.count("Answer in one word.") == 1 and shown.details == client.show("small").details
    assert client.chat("brief", FRANCE).eval_count == 3, "its own num_predict"
    assert [line.status for line in client.create(model="brief", from_="brief", parameters={"num_predict": 5}, stream=True)][-1] == "success"
    client.generate("brief", keep_alive=0)
    assert client.chat("brief", FRANCE).eval_count == 5 and "Answer in one word." in client.show("brief").modelfile
    # A template in Go's language.
    client.create(model="plain", from_="small", template="{{ if .System }}{{ .System }}\n{{ end }}{{ range .Messages }}{{ .Content }}\n{{ end }}")
    assert client.chat("plain", FRANCE, options={"num_predict": 2}).eval_count == 2
    client.delete("plain")
    for wrong in [dict(parameters={"tfs": 1}), dict(template="{{ call .Prompt }}"), dict(files={"a.gguf": "sha256:0"}), dict(quantize="q4_0")]:
        try:
            client.create(model="wrong", from_="small", **wrong)
            raise AssertionError(wrong)
        except ollama.ResponseError as error:
            assert error.status_code == 400 and next(iter(wrong)) in error.error, error
    client.delete("mine")
    client.delete("small")
    # It keeps what it was made of.
    assert client.chat("brief", FRANCE).eval_count == 5
    # One that is deleted while it is loaded leaves memory.
    assert "brief:latest" in [model.model for model in client.ps().models]
    client.delete("brief")
    assert "brief:latest" not in [model.model for model in client.ps().models]
    listed = [model.model for model in client.list().models]
    assert listed == [f"{MODEL}:latest"], listed
    for gone in [lambda: client.delete("small"), lambda: client.show("small"), lambda: ask(client, model="small"), lambda: client.pull(name.replace("small", "none"))]:
        try:
            gone()
        except ollama.ResponseError as error:
            assert "not found" in error.error or "no such model" in error.error, error
        else:
            raise AssertionError("what is gone was found")


@check
def what_cannot_be_done_is_an_error_of_the_package(client, _):
    for name, more in [("context", {"options": {"num_ctx": 1 << 30}}), ("mirostat", {"options": {"mirostat": 1}}), ("images", {"messages": [{"role": "user", "content": "x", "images": [b"\x89PNG"]}]})]:
        try:
            ask(client, **more)
        except ollama.ResponseError as error:
            assert error.status_code == 400 and name in error.error, error
        else:
            raise AssertionError(f"{more} was taken")


@check
def vectors(client, http):
    both = client.embed(model=MODEL, input=["Paris", "a fox"])
    assert len(both.embeddings) == 2 and both.prompt_eval_count >= 2 and both.model == MODEL, both
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in both.embeddings), both
    one = client.embed(model=MODEL, input="Paris", truncate=True, keep_alive="5m")
    assert one.embeddings == both.embeddings[:1]
    assert len(client.embeddings(model=MODEL, prompt="Paris").embedding) == len(one.embeddings[0])
    assert client.embed(model=MODEL, input="").embeddings == []
    assert OllamaEmbeddings(model=MODEL, base_url=f"http://{http}").embed_query("Paris") == list(one.embeddings[0])


@check
def langchain(_, http):
    model = ChatOllama(model=MODEL, base_url=f"http://{http}", temperature=0, num_predict=64, reasoning=False, validate_model_on_init=True)
    said = model.invoke("What is the capital of France?")
    assert "Paris" in said.content and said.usage_metadata["output_tokens"] > 0, said
    assert "".join(part.content for part in model.stream("What is the capital of France?")) == said.content
    forced = model.with_structured_output(SCHEMA, method="json_schema").invoke("Name a city")
    assert set(forced) == {"city"}, forced


@check
def curl_as_it_is_documented(_, http):
    body = json.dumps({"model": MODEL, "prompt": "Hi", "stream": False, "think": False, "options": GREEDY}).encode()
    request = urllib.request.Request(f"http://{http}/api/generate", body, {"content-type": "application/x-www-form-urlencoded"})
    assert json.load(urllib.request.urlopen(request))["response"]
    request.add_header("origin", "https://page.example")
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        assert error.code in (403, 415), error
    else:
        raise AssertionError("a page's form was taken")


@check
def npm(_, http):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ollama_js.mjs")
    done = subprocess.run(["node", script, f"http://{http}", MODEL, sys.argv[2]], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


if __name__ == "__main__":
    with Engine() as engine:
        sys.exit(run_checks(ollama.Client(host=engine.http), engine.http))
