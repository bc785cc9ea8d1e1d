"""Constrained answers of the demo model, at a temperature where it says anything: 300 JSON schemas made here, whose answers a
validator of somebody else's judges, 200 malformed ones, and every API's words for the other kinds of constraint."""
import concurrent.futures, datetime, ipaddress, json, random, re, sys, urllib.error, urllib.request

import jsonschema
import openai
import pydantic

from engine import Engine, check, run_checks

SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 7
FORMATS = ["date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "hostname", "email", "uri"]
PATTERNS = ["^[a-z]{2,6}$", "^\\d{3}-\\d{4}$", "^(GET|PUT) /[a-z]+$", "^[A-Z][a-zäöü]{0,8}$", "^#[0-9a-fA-F]{6}$", "ab", "^\\w+$", "^[^\"\\\\]{1,4}$"]
NAMES = ["id", "name", "größe", "价格", "a b", "x-y", "quote\"d", "tags", "next", "😀", "back\\slash", "n0"]


def string(rng):
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 1:
        return {"type": "string", "pattern": rng.choice(PATTERNS), **({"maxLength": rng.randint(9, 20)} if rng.random() < 0.5 else {})}
    if kind == 2:
        low = rng.randint(0, 5)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 10)}
    if kind == 3:
        return {"enum": rng.sample(["rot", "grün", "蓝", "\"", "\\", "a\nb", "", "😀", "e\u0301"], rng.randint(1, 6))}
    return {"type": "string", "maxLength": 12, "title": "free", "description": "text"}


def number(rng):
    schema = {"type": rng.choice(["integer", "number"])}
    kind = rng.randrange(5)
    if kind == 0:
        low = rng.randint(-500, 500)
        schema |= {"minimum": low, "maximum": low + rng.randint(0, 2000)}
    elif kind == 1:
        schema |= {"exclusiveMinimum": -1, "exclusiveMaximum": rng.choice([1, 10, 2.5])}
    elif kind == 2:
        schema |= {"type": "integer", "multipleOf": rng.choice([2, 5, 7]), "minimum": 0, "maximum": 1000}
    elif kind == 3:
        return {"const": rng.choice([0, 1.5, -7, 1e3, 12345678])}
    return schema


def leaf(rng):
    return rng.choice([string, string, number, lambda _: {"type": "boolean"}, lambda _: {"type": "null"}, lambda _: {"type": ["integer", "null"], "maximum": 9}])(rng)


def any_schema(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return leaf(rng)
    kind = rng.randrange(6)
    if kind <= 2:
        names = rng.sample(NAMES, rng.randint(1, 4))
        schema = {"type": "object", "properties": {name: any_schema(rng, depth - 1) for name in names},
                  "required": rng.sample(names, rng.randint(0, len(names)))}
        extra = rng.random()
        if extra < 0.6:
            schema["additionalProperties"] = False
        elif extra < 0.8:
            schema["additionalProperties"] = leaf(rng)
        elif extra < 0.9:
            schema |= {"patternProperties": {"^z[a-z]*$": {"type": "integer"}}, "additionalProperties": False}
        return schema
    if kind == 3:
        low = rng.randint(0, 2)
        schema = {"type": "array", "items": any_schema(rng, depth - 1), "minItems": low, "maxItems": low + rng.randint(0, 3)}
        if rng.random() < 0.3:
            schema |= {"prefixItems": [leaf(rng), leaf(rng)], "minItems": 2, "maxItems": 4}
        return schema
    if kind == 4:
        return {"anyOf": [any_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    tags = rng.sample(["cat", "dog", "cow"], 2)
    tagged = lambda tag: {"type": "object", "properties": {"kind": {"const": tag}, "value": any_schema(rng, depth - 1)},
                          "required": ["kind", "value"], "additionalProperties": False}
    return {"oneOf": [tagged(tag) for tag in tags]}


def schemas():
    rng = random.Random(SEED)
    made = []
    for index in range(300):
        if index % 20 == 0:  # recursive
            item = {"type": "object", "properties": {"value": leaf(rng), "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
                    "required": ["value"], "additionalProperties": False}
            made.append({"$ref": "#/$defs/node", "$defs": {"node": item}})
        elif index % 20 == 1:  # shared
            made.append({"type": "object", "properties": {"a": {"$ref": "#/definitions/shared"}, "b": {"$ref": "#/definitions/shared"}},
                         "required": ["a", "b"], "additionalProperties": False, "definitions": {"shared": any_schema(rng, 1)}})
        elif index % 20 == 2:  # long lists of names
            count = [5, 50, 500, 5000][index // 20 % 4]
            made.append({"type": "object", "properties": {"pick": {"enum": [f"entry {n} {rng.randrange(10**6)}" for n in range(count)]}},
                         "required": ["pick"], "additionalProperties": False})
        elif index % 20 == 3:
            made.append({"allOf": [{"type": "object", "properties": {"a": leaf(rng)}, "required": ["a"]},
                                   {"type": "object", "properties": {"b": leaf(rng)}, "required": ["b"]}]})
        else:
            made.append(any_schema(rng, 3))
    return made


def malformed():
    """Schemas that are none, or that cannot be enforced."""
    rng = random.Random(SEED + 1)
    fixed = [
        3, "{", "not json", "[]", [], "false", False, {"type": "text"}, {"type": 5}, {"properties": []}, {"properties": {"a": 1}}, {"required": "a"},
        {"type": "object", "required": [1]}, {"items": 5}, {"enum": "a"}, {"enum": []}, {"anyOf": {}}, {"anyOf": []}, {"oneOf": [{}, {}]}, {"allOf": 1}, {"$ref": 1},
        {"$ref": "#/nowhere"}, {"$ref": "http://127.0.0.1/x"}, {"$ref": "other.json"}, {"not": {}}, {"if": {}, "then": {}},
        {"type": "array", "uniqueItems": True}, {"type": "array", "contains": {}}, {"propertyNames": {"maxLength": 3}},
        {"dependentRequired": {"a": ["b"]}}, {"dependencies": {"a": ["b"]}}, {"unevaluatedProperties": False}, {"$dynamicRef": "#x"},
        {"x-guidance": {"lenient": True}}, {"type": "string", "format": "regex"}, {"type": "string", "format": 5},
        {"type": "string", "pattern": "("}, {"type": "string", "pattern": "(?=a)"}, {"type": "string", "pattern": 5},
        {"type": "string", "minLength": -1}, {"type": "string", "minLength": "1"}, {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "integer", "minimum": 2, "maximum": 1}, {"type": "number", "multipleOf": "x"}, {"type": "number", "minimum": "x"},
        {"type": "array", "minItems": 3, "maxItems": 2}, {"const": 2**60}, {"enum": [1, 2**70]}, {"type": "object", "minProperties": 4},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
    ]
    wraps = [
        lambda bad: {"type": "object", "properties": {"deep": bad}, "required": ["deep"]},
        lambda bad: {"type": "array", "items": bad, "minItems": 1},
        lambda bad: {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [bad], "minItems": 1}}, "required": ["a"]},
    ]
    made = list(fixed)
    nestable = [bad for bad in fixed if isinstance(bad, dict)]
    while len(made) < 200:
        made.append(rng.choice(wraps)(rng.choice(nestable)))
    return made


def post(engine, path, body):
    request = urllib.request.Request(f"http://{engine.http}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask(engine, temperature=1.5, **fields):
    """One answer without reasoning: its text, and why it ended."""
    body = {"model": "hanzo-demo", "messages": [{"role": "user", "content": "Tell me about a fox."}], "max_tokens": 160,
            "temperature": temperature, "chat_template_kwargs": {"enable_thinking": False}, **fields}
    status, answer = post(engine, "/v1/chat/completions", body)
    assert status == 200, (status, answer, fields)
    return answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]


def of_schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}}


def checker():
    formats = jsonschema.FormatChecker()
    reads = {"date": datetime.date.fromisoformat, "time": datetime.time.fromisoformat, "date-time": datetime.datetime.fromisoformat, "ipv6": ipaddress.IPv6Address}
    for name, read in reads.items():
        # A format says nothing of what is no text.
        formats.checks(name, ValueError)(lambda value, read=read: not isinstance(value, str) or bool(read(value)) or True)
    duration = r"P(?=.)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?"
    formats.checks("duration")(lambda value: not isinstance(value, str) or bool(re.fullmatch(duration, value)))
    return formats


@check
def answers_satisfy_their_schemas(engine):
    formats = checker()

    def one(item):
        index, schema = item
        text, reason = ask(engine, seed=index, **of_schema(schema))
        if reason == "length":
            return "length"
        assert reason == "stop", (index, reason)
        try:
            jsonschema.Draft202012Validator(schema, format_checker=formats).validate(json.loads(text))
        except Exception as error:
            raise AssertionError(f"schema {index}: {json.dumps(schema)[:500]}\nanswer: {text}") from error
        return "stop"

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        reasons = list(pool.map(one, enumerate(schemas())))
    whole = reasons.count("stop")
    assert whole >= 150, f"only {whole} of {len(reasons)} answers came to their end"
    return f"{whole} valid, {len(reasons) - whole} cut"


@check
def malformed_schemas_are_refused(engine):
    def one(schema):
        body = {"model": "hanzo-demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
        status, answer = post(engine, "/v1/chat/completions", {**body, **of_schema(schema)})
        assert status == 400, (schema, status, answer)
        error = answer["error"]
        assert error["param"] and error["param"].startswith("response_format"), (schema, error)
        return len(error["message"])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        longest = max(pool.map(one, malformed()))
    assert longest < 2500, longest


@check
def every_kind_of_constraint(engine):
    expression, colours = "[A-F]{3}-[0-9]{2}", ["rot", "grün", "grüner als grün"]
    gbnf = 'root ::= "<" item ("," item)* ">"\nitem ::= [a-c]{2} | "(" item ")"'
    for seed in range(5):
        for fields in ({"guided_regex": expression}, {"structured_outputs": {"regex": expression}}):
            text, reason = ask(engine, seed=seed, **fields)
            assert re.fullmatch(expression, text) and reason == "stop", (text, reason)
        for fields in ({"guided_choice": colours}, {"structured_outputs": {"choice": colours}}):
            text, reason = ask(engine, seed=seed, **fields)
            assert text in colours and reason == "stop", (text, reason)
        for fields in ({"grammar": gbnf}, {"guided_grammar": gbnf}, {"structured_outputs": {"grammar": gbnf}}):
            text, reason = ask(engine, seed=seed, **fields)
            assert reason == "length" or re.fullmatch(r"<[abc(),]+>", text), (text, reason)
        text, reason = ask(engine, seed=seed, guided_grammar='start: "x" WORD\nWORD: /[a-z]{3}/')
        assert re.fullmatch("x[a-z]{3}", text) and reason == "stop", (text, reason)
        for fields in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
            text, reason = ask(engine, seed=seed, **fields)
            assert reason == "length" or isinstance(json.loads(text), dict), (text, reason)
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"], "additionalProperties": False}
        for fields in ({"json_schema": schema}, {"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"response_format": {"type": "json_object", "schema": schema}}):
            text, reason = ask(engine, seed=seed, **fields)
            assert 0 <= json.loads(text)["n"] <= 99 and reason == "stop", (text, reason)
    # Completions take them too.
    status, answer = post(engine, "/v1/completions", {"model": "hanzo-demo", "prompt": "A colour: ", "guided_choice": colours, "temperature": 1.5})
    assert status == 200 and answer["choices"][0]["text"] in colours, answer


@check
def constraints_beside_other_fields(engine):
    fields = of_schema({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 5})
    valid = lambda text: 2 <= len(json.loads(text)) <= 5
    text, reason = ask(engine, ignore_eos=True, **fields)
    assert valid(text) and reason == "stop", (text, reason)
    text, reason = ask(engine, min_tokens=100, **fields)
    assert valid(text) and reason == "stop", "a constraint is stronger than min_tokens"
    text, reason = ask(engine, max_tokens=2, **fields)
    assert reason == "length", (text, reason)
    text, reason = ask(engine, logit_bias={str(token): -100 for token in range(300)}, **fields)
    assert reason == "length" or valid(text), (text, reason)
    alone = ask(engine, seed=5, **fields)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        among = list(pool.map(lambda _: ask(engine, seed=5, **fields), range(8)))
    assert all(one == alone for one in among), (alone, among)
    body = {"model": "hanzo-demo", "messages": [{"role": "user", "content": "x"}], "temperature": 1.5, "n": 4, "logprobs": True, "top_logprobs": 20,
            "chat_template_kwargs": {"enable_thinking": False}, **fields}
    status, answer = post(engine, "/v1/chat/completions", body)
    assert status == 200, answer
    for choice in answer["choices"]:
        assert valid(choice["message"]["content"])
        first = choice["logprobs"]["content"][0]
        assert sum(2.718281828 ** top["logprob"] for top in first["top_logprobs"]) <= 1.001
        # The prompt has closed the section of reasoning: there is no other.
        assert all(top["token"].startswith("[") for top in first["top_logprobs"]), first
    # The answer is what is constrained, not the reasoning before it.
    body = {"model": "hanzo-demo", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, **of_schema({"type": "object"})}
    status, answer = post(engine, "/v1/chat/completions", {**body, "max_tokens": 400})
    message = answer["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == "length" or isinstance(json.loads(message["content"]), dict), answer
    two = {"guided_regex": "a", "grammar": "root ::= \"a\""}
    status, answer = post(engine, "/v1/chat/completions", {"model": "hanzo-demo", "messages": [{"role": "user", "content": "x"}], **two})
    assert status == 400 and answer["error"]["param"] == "grammar", answer


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    legs: int = pydantic.Field(ge=0, le=8)
    sounds: list[str] = pydantic.Field(max_length=0)


@check
def the_official_client_parses(engine):
    client = openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="x")
    ask = dict(model="hanzo-demo", messages=[{"role": "user", "content": "Tell me about a fox."}], max_tokens=300,
               extra_body={"chat_template_kwargs": {"enable_thinking": False}}, response_format=Animal)
    answer = client.chat.completions.parse(**ask, temperature=1.5)
    assert isinstance(answer.choices[0].message.parsed, Animal), answer
    with client.chat.completions.stream(**ask, temperature=1.5, seed=3) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message
    whole = client.chat.completions.parse(**ask, temperature=1.5, seed=3).choices[0].message
    assert streamed.parsed == whole.parsed and streamed.content == whole.content, (streamed, whole)
    return repr(whole.parsed)


if __name__ == "__main__":
    with Engine("--log-level", "warn") as engine:
        sys.exit(run_checks(engine))
