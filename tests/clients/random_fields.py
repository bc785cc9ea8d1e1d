"""Requests of random fields, good and bad ones mixed: whatever is asked of chats, completions and gaps, the answer is no 5xx, comes
in time, is what its fields say, and leaves the engine as it was, also where a client leaves early. A prompt that is echoed has the
scores that its tokens have when they are generated.
usage: random_fields.py HANZO_ENGINE_BINARY [SEED [REQUESTS]]"""
import collections, concurrent.futures, http.client, json, math, random, re, sys, threading, time

import jsonschema

from engine import Engine, check, run_checks

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 7
REQUESTS = int(sys.argv[3]) if len(sys.argv) > 3 else 400
DEADLINE_S = 60
AT_ONCE = 8
MODEL = "hanzo-demo"
CHAT, TEXT, INFILL = "/v1/chat/completions", "/v1/completions", "/infill"
FLAT = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "é", "😀"]}},
        "required": ["a", "b"], "additionalProperties": False}
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
NUMBER = {"type": "integer", "minimum": -5, "maximum": 5}
TOOL = {"type": "function", "function": {"name": "pick", "strict": True, "parameters": FLAT}}
OTHER_TOOL = {"type": "function", "function": {"name": "look", "description": "Look", "parameters": {"type": "object", "properties": {}}}}
WORDS = ["yes", "no", "größer"]
GBNF = 'root ::= ("ab" | "cd") [0-9]? "."'

# Constraints: the fields, and what a whole answer has to be.
of_schema = lambda schema: lambda text: jsonschema.validate(json.loads(text), schema)


def of_pattern(pattern):
    def holds(text):
        assert re.fullmatch(pattern, text), text
    return holds


CONSTRAINTS = [
    ({"response_format": {"type": "json_object"}}, of_schema({"type": "object"})),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": FLAT}}}, of_schema(FLAT)),
    ({"response_format": {"type": "text"}}, None),
    ({"json_schema": LIST}, of_schema(LIST)),
    ({"guided_json": json.dumps(NUMBER)}, of_schema(NUMBER)),
    ({"structured_outputs": {"json": NUMBER}}, of_schema(NUMBER)),
    ({"guided_regex": "[a-c]{1,3}!"}, of_pattern("[a-c]{1,3}!")),
    ({"structured_outputs": {"regex": "(ä|b)\\d"}}, of_pattern("(ä|b)\\d")),
    ({"guided_choice": WORDS}, of_pattern("|".join(WORDS))),
    ({"structured_outputs": {"choice": WORDS}}, of_pattern("|".join(WORDS))),
    ({"grammar": GBNF}, of_pattern("(ab|cd)[0-9]?\\.")),
    ({"guided_grammar": 'start: "a" | "b" "c"'}, of_pattern("a|bc")),
    # Regular, but said by a rule that leads back to itself.
    ({"grammar": 'root ::= word root? "!"\nword ::= [ab]+ [ab!]'}, of_pattern("(([ab]+[ab!])+)!+")),
]
BAD_CONSTRAINTS = [
    {"response_format": {"type": "xml"}}, {"response_format": 7}, {"json_schema": {"not": {}}}, {"guided_regex": "("}, {"guided_choice": []},
    {"grammar": "root ::= nothing"}, {"guided_grammar": "start: ("}, {"structured_outputs": {}}, {"json_schema": {"type": "nothing"}},
    {"guided_regex": "a", "grammar": 'root ::= "b"'}, {"guided_json": "{"}, {"json_schema": {"$ref": "#/nowhere"}},
]

# Fields of every surface: values that are good each by itself, and such as are not. Together they may contradict each other.
COMMON = {
    "temperature": ([0, 0.5, 1, 1.7, 2], [-1, 3, "hot", [], True]),
    "top_p": ([0, 0.1, 0.9, 1], [-0.1, 1.5, "x"]),
    "top_k": ([-1, 0, 1, 5, 40, 100_000], [-7, 1.5, "x"]),
    "min_p": ([0, 0.05, 0.9, 1], [-0.1, 2]),
    "typical_p": ([0, 0.5, 1], [-0.5, 1.5]),
    "top_n_sigma": ([-1, 0, 1, 2.5], [1e9, "x"]),
    "xtc_probability": ([0, 0.5, 1], [-1, 2]),
    "xtc_threshold": ([0, 0.1, 0.6], [-1, 2]),
    "dynatemp_range": ([0, 0.5, 2], [-1, 3]),
    "dynatemp_exponent": ([0, 1, 4], [-1, 1e9]),
    "mirostat": ([0, 2], [1, 3, "x"]),
    "mirostat_tau": ([0, 5, 20], [-1, 1e9]),
    "mirostat_eta": ([0, 0.1, 1], [-1, 2]),
    "dry_multiplier": ([0, 0.8, 5], [-1, "x"]),
    "dry_base": ([1, 1.75, 4], [0.5]),
    "dry_allowed_length": ([0, 1, 2, 50], [-1]),
    "dry_penalty_last_n": ([-1, 0, 3, 64], [-2]),
    "dry_sequence_breakers": ([["\n"], [" ", "é", "\""]], [[], [""], "x", [7]]),
    "repeat_last_n": ([-1, 0, 2, 64], [-2, "x"]),
    "repetition_penalty": ([0.5, 1, 1.3, 9], [0, -1]),
    "repeat_penalty": ([1, 1.1], [0, "x"]),
    "frequency_penalty": ([-2, 0, 0.7, 2], [-3, 3]),
    "presence_penalty": ([-2, 0, 0.7, 2], [-3, 3]),
    "logit_bias": ([{}, {"5": 1}, {"300": -100, "301": 100}, {"0": -5.5, "4095": 5}], [{"x": 1}, {"5": 101}, {"99999": 1}, [5], [["a", 1]], {"-1": 0}]),
    "seed": ([0, 1, 2**63, -5], ["x", 1.5, 2**70]),
    "stop": ([[], "e", ["the", "."], ["\n", "😀", "zz"]], [7, [""], ["x"] * 17, [None]]),
    "stop_token_ids": ([[], [5, 300], [4095]], [[99999], "x", [-1]]),
    "include_stop_str_in_output": ([True, False], ["x", 1]),
    "ignore_eos": ([True, False], ["x", 0]),
    "min_tokens": ([0, 1, 3], [-1, 10_000, "x"]),
    "n": ([1, 1, 2, 3], [0, 10**9, "2", -1]),
    "stream_options": ([{"include_usage": True}, {"include_usage": False}, {"continuous_usage_stats": True}], ["x", {"no": 1}]),
    "priority": ([0], ["high"]),
    "user": (["somebody"], [7]),
    "cache_prompt": ([True, False], ["x"]),
    "cache_salt": (["", "one", "two é"], [7, "x" * 1025]),
    "truncate_prompt_tokens": ([-1, 1, 7, 1000], [0, -2, "x"]),
    "truncation_side": (["left", "right"], ["middle", 1]),
    "context_shift": ([True, False], ["x", 1]),
    "n_keep": ([-1, 0, 5], [-2, "x"]),
    "samplers": ([[], ["top_k", "top_p"], ["penalties", "dry", "top_k", "temperature", "xtc"]], ["x", ["nothing"], ["top_p", "top_k"]]),
    "id_slot": ([-1, 0], ["x"]),
    "n_probs": ([0], [3]),
    "nothing_known": ([], [1]),
}
FIELDS = {
    CHAT: {
        "logprobs": ([True, False], [5, "x"]),
        "top_logprobs": ([0, 1, 5, 20], [21, -1]),
        "prompt_logprobs": ([0, 1, 20], [21, -1, "x"]),
        "prediction": ([{"type": "content", "content": "Hello there, the end."}, {"type": "content", "content": [{"type": "text", "text": "yes"}]}, {"type": "content", "content": ""}],
                       ["x", {"type": "y"}, {"type": "content"}]),
        "reasoning_effort": (["none", "low", "high"], ["lots"]),
        "enable_thinking": ([True, False], ["x"]),
        "thinking_budget": ([-1, 0, 1, 5], [-2, "x"]),
        "thinking": ([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 3}], ["x"]),
        "tools": ([[TOOL], [TOOL, OTHER_TOOL], []], ["x", [7], [{"type": "function"}], [{"type": "smell"}], [TOOL, TOOL]]),
        "tool_choice": (["none", "auto", "required", {"type": "function", "function": {"name": "pick"}}], ["any", {"type": "function", "function": {"name": "no"}}, 7]),
        "parallel_tool_calls": ([True, False], ["x"]),
        "chat_template_kwargs": ([{"enable_thinking": False}, {}], ["x", 7]),
        "continue_final_message": ([False], ["x"]),
    },
    TEXT: {
        "echo": ([True, False], ["x", 1]),
        "logprobs": ([0, 1, 5], [6, -1, "x"]),
        "prompt_logprobs": ([0, 1, 20], [21, -1, "x"]),
        "best_of": ([], [17]),
        "suffix": ([""], ["x", 7]),
        "parse_special": ([True, False], ["x"]),
    },
    INFILL: {"input_extra": ([[], [{"filename": "a.py", "text": "x = 1"}]], ["x", [{}]]), "n_predict": ([4], ["x"]), "prompt": (["a"], [7])},
}
LEAST = {
    CHAT: lambda rng: {"messages": rng.choice([
        [{"role": "user", "content": "Hello!"}], [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 2+2? é😀"}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": [{"type": "text", "text": "Say yes."}]}]])},
    TEXT: lambda rng: {"prompt": rng.choice(["Once upon a time", "é😀 x", [300, 301, 302], ["a b", "c"], [[400, 401], [7]], "The " * 40])},
    INFILL: lambda rng: {"input_prefix": "def a():\n", "input_suffix": "\n"},
}


class Request:
    """A path, its body, and what a whole answer must be."""

    def __init__(self, rng):
        self.path = rng.choices([CHAT, TEXT, INFILL], [10, 8, 1])[0]
        self.body = {"model": MODEL, **LEAST[self.path](rng)}
        self.max_tokens = rng.choice([1, 2, 5, 9, 16])
        self.body["max_tokens"] = self.max_tokens
        self.whole = None
        known = {**COMMON, **FIELDS[self.path]}
        bad = rng.choices([0, 1, 3], [8, 2, 1])[0]
        for name in rng.sample(sorted(known), rng.randint(0, 12)):
            good, wrong = known[name]
            if name == "top_logprobs" and rng.random() < 0.8:
                self.body["logprobs"] = True
            if bad and wrong and rng.random() < 0.5:
                self.body[name] = rng.choice(wrong)
                bad -= 1
            elif good:
                self.body[name] = rng.choice(good)
        if rng.random() < 0.35:
            fields, self.whole = rng.choice(CONSTRAINTS)
            self.body |= fields
            if self.whole:
                self.body["max_tokens"] = self.max_tokens = rng.choice([9, 16, 30])
                if rng.random() < 0.9:
                    for name in ("stop", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "tools", "tool_choice", "echo"):
                        self.body.pop(name, None)
        elif rng.random() < 0.1:
            self.body |= rng.choice(BAD_CONSTRAINTS)
        if rng.random() < 0.4 or (self.body.get("stream_options") and rng.random() < 0.9):
            self.body["stream"] = True
        elif rng.random() < 0.9:
            self.body.pop("stream_options", None)
        if rng.random() < 0.25:
            self.body["seed"] = rng.choice(COMMON["seed"][0])
        if self.body.get("tool_choice") not in (None, "none") and rng.random() < 0.8:
            self.body["tools"] = [TOOL, OTHER_TOOL]
        if self.body.get("stream") and rng.random() < 0.8:
            self.body.pop("prompt_logprobs", None)
        if self.path == CHAT and self.body.get("tools") and rng.random() < 0.8:
            # A call takes some tokens.
            self.body["max_tokens"] = self.max_tokens = 40
            self.body["messages"] = [{"role": "user", "content": "Pick for me."}]


LOCAL = threading.local()


def post(engine, path, body):
    """The status, whether it is a stream, and the answer."""
    for again in (False, True):
        connection = getattr(LOCAL, "connection", None)
        if connection is None:
            connection = LOCAL.connection = http.client.HTTPConnection(engine.http, timeout=DEADLINE_S)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.getheader("content-type", ""), answer.read().decode()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # A connection that stood idle may have been closed; a new one may not.
            LOCAL.connection = None
            if again:
                raise


def leave(engine, path, body):
    """Asks, and is gone before all of the answer has come."""
    connection = http.client.HTTPConnection(engine.http, timeout=DEADLINE_S)
    connection.request("POST", path, json.dumps({**body, "max_tokens": 300}), {"content-type": "application/json"})
    if body.get("stream"):
        connection.getresponse().read(1)
    connection.close()


def choices_of(path, kind, text):
    """Of each choice by index: text, calls, logprobs, why it ended, and the prompt's scores. And the usage, where it is told."""
    found, usage = collections.defaultdict(lambda: {"text": "", "reasoning": "", "calls": [], "logprobs": [], "reason": None, "prompt": None}), None
    if "event-stream" in kind:
        events = [event[6:] for event in text.split("\n\n") if event.startswith("data: ")]
        if path != INFILL:
            assert events and events[-1] == "[DONE]", events[-1:]
            events = events[:-1]
        answers = [json.loads(event) for event in events]
    else:
        answers = [json.loads(text)]
    for answer in answers:
        assert "error" not in answer, answer
        usage = answer.get("usage") or usage
        for choice in answer.get("choices", []):
            one = found[choice["index"]]
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            one["text"] += said.get("content") or ""
            one["reasoning"] += said.get("reasoning_content") or ""
            for position, call in enumerate(said.get("tool_calls") or []):
                at = call.get("index", position)
                if at == len(one["calls"]):
                    one["calls"].append([call["function"]["name"], ""])
                one["calls"][at][1] += call["function"].get("arguments") or ""
            logprobs = choice.get("logprobs") or {}
            if "content" in logprobs:
                one["logprobs"] += [(entry["logprob"], [other["logprob"] for other in entry["top_logprobs"]]) for entry in logprobs["content"] or []]
            else:
                tops = logprobs.get("top_logprobs") or []
                one["logprobs"] += [(mine, list((top or {}).values())) for mine, top in zip(logprobs.get("token_logprobs") or [], tops, strict=True)]
            one["reason"] = choice.get("finish_reason") or one["reason"]
            one["prompt"] = choice.get("prompt_logprobs") or answer.get("prompt_logprobs") or one["prompt"]
    return found, usage


def judge(request, status, kind, text):
    """Fails where the answer is not what the request has asked for."""
    body = request.body
    if status != 200:
        assert status in (400, 404), f"status {status}"
        error = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and len(text) < 2048, error
        return
    found, usage = choices_of(request.path, kind, text)
    if request.path == INFILL:
        return
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int) else 1
    assert sorted(found) == list(range(prompts * body.get("n", 1))), sorted(found)
    assert "event-stream" in kind or usage, "no usage"
    if usage:
        assert 0 < usage["completion_tokens"] <= request.max_tokens * len(found), usage
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    # A text that stops an answer, and what constrains it, end it earlier.
    if usage and not stops and not request.whole and not body.get("tools"):
        assert usage["completion_tokens"] >= body.get("min_tokens", 0) * len(found), usage
    for one in found.values():
        assert one["reason"] in ("stop", "length", "tool_calls"), one
        said = one["text"]
        if body.get("echo"):
            prompt = body["prompt"]
            if isinstance(prompt, str):
                assert said.startswith(prompt), said
                said = said[len(prompt):]
        elif request.path == CHAT and not body.get("include_stop_str_in_output"):
            assert not any(stop in said for stop in stops), (stops, said)
        for mine, top in one["logprobs"]:
            assert mine is None or mine <= 1e-6, mine
            assert sum(map(math.exp, top)) <= 1 + 1e-4, top
        for entry in one["prompt"] or []:
            sum_of = sum(math.exp(known["logprob"]) for known in (entry or {}).values())
            assert sum_of <= 1 + 1e-4, entry
        if body.get("logprobs") is True:
            # Reasoning, calls and marks have none: entries are of the text alone.
            assert one["logprobs"] or not one["text"], one
        whole = request.whole and one["reason"] == "stop" and not stops and not body.get("stop_token_ids") and not one["calls"]
        if whole and not (body.get("echo") and not isinstance(body["prompt"], str)):
            # A bare text may begin with a section of reasoning.
            answer = re.sub(r"^\s*<think>.*?</think>\s*", "", said, flags=re.S) if request.path == TEXT else said
            request.whole(answer)
        if one["reason"] == "tool_calls":
            assert one["calls"], one
        if body.get("tools") and body.get("tool_choice") not in (None, "none", "auto") and one["reason"] != "length" and not stops and not body.get("stop_token_ids"):
            assert one["calls"], f"no call: {one}"
        for name, arguments in one["calls"]:
            assert name in ("pick", "look"), name
            if one["reason"] == "tool_calls" and name == "pick":
                jsonschema.validate(json.loads(arguments), FLAT)


def used_blocks(engine):
    lines = engine.text("/metrics", engine.admin).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("hanzo_engine_kv_blocks{") and 'state="used"' in line)


@check
def any_fields_at_all(engine):
    statuses, faults, longest, checked, again = collections.Counter(), [], 0, 0, 0

    def ask(number):
        request = Request(random.Random(f"{SEED} {number}"))
        began = time.monotonic()
        try:
            if number % 25 == 7:
                leave(engine, request.path, request.body)
            answer = post(engine, request.path, request.body)
            judge(request, *answer)
            same = None
            if answer[0] == 200 and "seed" in request.body and number % 2 == 0:
                shown = lambda answer: [{k: one[k] for k in ("text", "reasoning", "calls", "reason")} for _, one in sorted(choices_of(request.path, *answer[1:])[0].items())]
                second = post(engine, request.path, request.body)
                same = shown(answer) == shown(second)
                assert same, f"the same seed gives {shown(second)}, not {shown(answer)}"
            return answer[0], None, time.monotonic() - began, bool(request.whole) and answer[0] == 200, same
        except Exception as why:
            LOCAL.connection = None
            shown = answer if "answer" in locals() else None
            return 0, f"{number}: {request.path} {json.dumps(request.body, ensure_ascii=False)}: {why!r}\n    {str(shown)[:700]}", time.monotonic() - began, False, None

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done, (status, fault, took_s, constrained, same) in enumerate(pool.map(ask, range(REQUESTS)), 1):
            statuses[status] += 1
            longest, checked, again = max(longest, took_s), checked + constrained, again + bool(same)
            if fault:
                faults.append(fault)
                print(fault, flush=True)
            assert len(faults) < 20, "too many faults"
            if done % 1000 == 0:
                print(f"  {done}: {dict(statuses)}", flush=True)
    deadline = time.monotonic() + 20
    while used_blocks(engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert used_blocks(engine) == 0, f"{used_blocks(engine)} blocks are still held"
    status, _, text = post(engine, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4})
    assert status == 200 and engine.process.poll() is None, (status, text)
    assert not faults, f"{len(faults)} faults"
    assert statuses[200] > REQUESTS / 4 and statuses[400] > REQUESTS / 10, statuses
    return f"{dict(statuses)}, {checked} constrained, {again} asked twice, the longest {longest:.1f} s"


@check
def an_echo_has_the_scores_of_what_was_generated(engine):
    """Each token of a text is made the only one that can follow what stands before it, in a request of its own; its log
    probability there is that of the echo, which read all at once."""
    def asked(path, body):
        status, _, text = post(engine, path, {"model": MODEL, **body})
        assert status == 200, text
        return json.loads(text)

    text = "The quick brown fox jumps over the lazy dog, and é is a letter."
    ids = asked("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    echo = asked(TEXT, {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 5})["choices"][0]["logprobs"]
    scored = asked(TEXT, {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 5})["choices"][0]["prompt_logprobs"]
    assert len(ids) == len(echo["token_logprobs"]) == len(scored) and echo["token_logprobs"][0] is None and scored[0] is None
    alone = []
    for at in range(1, len(ids)):
        # A log probability is that of the model's own distribution: a bias changes what is drawn alone.
        body = {"prompt": ids[:at], "max_tokens": 1, "temperature": 0, "logprobs": 0, "logit_bias": {str(ids[at]): 100}}
        logprobs = asked(TEXT, body)["choices"][0]["logprobs"]
        assert logprobs["tokens"] == echo["tokens"][at:at + 1], (logprobs, echo["tokens"][at])
        alone += logprobs["token_logprobs"]
        of_prompt = scored[at][str(ids[at])]["logprob"]
        assert abs(of_prompt - echo["token_logprobs"][at]) < 1e-6, (of_prompt, echo["token_logprobs"][at])
    for found, expected in zip(echo["token_logprobs"][1:], alone, strict=True):
        assert abs(found - expected) < 1e-3, (found, expected)
    perplexity = lambda logprobs: math.exp(-sum(logprobs) / len(logprobs))
    found, expected = perplexity(echo["token_logprobs"][1:]), perplexity(alone)
    assert abs(found / expected - 1) < 1e-3, (found, expected)
    return f"perplexity {found:.4f} of {len(ids)} tokens, {expected:.4f} one by one"


if __name__ == "__main__":
    with Engine() as engine:
        sys.exit(run_checks(engine))
