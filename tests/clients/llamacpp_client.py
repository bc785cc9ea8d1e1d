"""Clients of llama.cpp's server, as its README documents the routes: completions whole and streamed, probabilities, grammars, and what it tells of itself.
usage: llamacpp_client.py HANZO_ENGINE_BINARY"""
import json, urllib.error, urllib.request

from engine import Engine, check, run_checks


def ask(engine, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{engine.http}{path}", data, {"content-type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request, timeout=60))
    except urllib.error.HTTPError as error:
        return json.load(error)


def stream(engine, path, body):
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(f"http://{engine.http}{path}", data, {"content-type": "application/json"})
    for line in urllib.request.urlopen(request, timeout=60):
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


PROMPT = "The capital of France is"


@check
def whole_and_streamed_are_one(engine):
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 0, "return_tokens": True, "n_probs": 3}
    whole = ask(engine, "/completion", body)
    pieces = list(stream(engine, "/completions", body))
    assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert sum((piece["tokens"] for piece in pieces), []) == whole["tokens"][: sum(len(piece["tokens"]) for piece in pieces)]
    last = pieces[-1]
    for name in ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "model", "truncated", "has_new_line", "prompt"):
        assert last[name] == whole[name], name
    assert last["generation_settings"]["n_predict"] == 12 and last["timings"]["predicted_n"] == last["tokens_predicted"]
    assert whole["timings"]["prompt_n"] + whole["timings"]["cache_n"] == whole["tokens_evaluated"]
    for token in whole["completion_probabilities"]:
        assert token["logprob"] <= 0 and len(token["top_logprobs"]) == 3 and bytes(token["bytes"]).decode(errors="replace") == token["token"]
        assert token["top_logprobs"][0]["id"] == token["id"], "greedy"
    return whole["content"]


@check
def prompts_in_every_form(engine):
    tokens = ask(engine, "/tokenize", {"content": PROMPT, "add_special": True})["tokens"]
    text = ask(engine, "/detokenize", {"tokens": tokens})["content"]
    assert PROMPT in text, text
    body = {"prompt": [tokens, PROMPT, {"prompt_string": PROMPT}], "n_predict": 6, "temperature": 0}
    answers = ask(engine, "/completion", body)
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert len({answer["content"] for answer in answers}) == 1 and len({answer["tokens_evaluated"] for answer in answers}) == 1
    assert ask(engine, "/completion", {"prompt": [7, "mixed"]})["error"]["param"] == "prompt"


@check
def ends_say_why(engine):
    base = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "n_predict": 16}
    limit = ask(engine, "/completion", base)
    assert (limit["stop_type"], limit["tokens_predicted"]) == ("limit", 16)
    word = limit["content"].split()[2]
    stopped = ask(engine, "/completion", {**base, "stop": [word]})
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word) and word not in stopped["content"]
    read = ask(engine, "/completion", {**base, "n_predict": 0})
    assert (read["content"], read["tokens_predicted"]) == ("", 0)
    grammar = ask(engine, "/completion", {"prompt": PROMPT, "grammar": 'root ::= "yes" | "no"', "seed": 3})
    assert (grammar["stop_type"], grammar["content"] in ("yes", "no")) == ("eos", True), grammar["content"]
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 10}}, "required": ["n"], "additionalProperties": False}
    answer = ask(engine, "/completion", {"prompt": PROMPT, "json_schema": schema, "n_predict": 64})
    assert 10 <= json.loads(answer["content"])["n"] <= 99, answer["content"]


@check
def only_the_fields_that_are_wanted(engine):
    fields = ["content", "generation_settings/n_predict", "timings/prompt_n", "nowhere"]
    answer = ask(engine, "/completion", {"prompt": PROMPT, "n_predict": 3, "response_fields": fields})
    assert list(answer) == fields[:3] and answer["generation_settings/n_predict"] == 3, answer


@check
def seeds_and_biases(engine):
    body = {"prompt": PROMPT, "n_predict": 12, "temperature": 1.5}
    drawn = ask(engine, "/completion", {**body, "seed": -1})
    seed = drawn["generation_settings"]["seed"]
    assert ask(engine, "/completion", {**body, "seed": seed})["content"] == drawn["content"]
    greedy = {"prompt": PROMPT, "n_predict": 1, "temperature": 0, "return_tokens": True}
    first = ask(engine, "/completion", greedy)["tokens"][0]
    for bias in ([[first, False]], {str(first): -100}, [[first, -100.0]]):
        assert ask(engine, "/completion", {**greedy, "logit_bias": bias})["tokens"][0] != first, bias


@check
def templates_and_what_it_says_of_itself(engine):
    chat = {"messages": [{"role": "user", "content": "Hello!"}]}
    prompt = ask(engine, "/apply-template", chat)["prompt"]
    asked = ask(engine, "/v1/chat/completions", {**chat, "max_tokens": 8, "temperature": 0})
    counted = ask(engine, "/v1/chat/completions/input_tokens", chat)["input_tokens"]
    whole = ask(engine, "/completion", {"prompt": prompt, "n_predict": 8, "temperature": 0})
    message = asked["choices"][0]["message"]
    assert (message.get("reasoning_content") or message["content"]).strip() in whole["content"], (whole["content"], asked)
    assert counted == asked["usage"]["prompt_tokens"]
    props, slots = ask(engine, "/props"), ask(engine, "/slots")
    assert props["total_slots"] == len(slots) > 0 and not any(slot["is_processing"] for slot in slots)
    assert props["default_generation_settings"]["n_ctx"] == slots[0]["n_ctx"] == whole["generation_settings"]["n_ctx"]
    assert set(props["default_generation_settings"]["params"]) - {"n_ctx", "model"} <= set(whole["generation_settings"])
    assert props["chat_template"] and props["eos_token"]
    meta = ask(engine, "/v1/models")["data"][0]["meta"]
    assert meta["n_params"] > 5_000_000 and meta["n_vocab"] > 1000 and meta["n_ctx"] == slots[0]["n_ctx"]
    assert ask(engine, "/v1/health")["status"] == "ok"


if __name__ == "__main__":
    with Engine("--model", "hanzo-demo") as engine:
        run_checks(engine)
