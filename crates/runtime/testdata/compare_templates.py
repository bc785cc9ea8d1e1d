"""Renders chat templates by transformers' Jinja2 and by this engine, and tells where they differ; both may refuse.

pip install transformers jinja2; cargo build -p hanzo-engine-runtime --example templates
python compare_templates.py target/debug/examples/templates FOLDER_OR_FILE...

Conversations have all turns that APIs can send: with and without a system prompt, calls and their results, reasoning, several
turns, text that looks like markup. Each is rendered with and without tools. Exits with 1 where something differs."""

import datetime
import json
import pathlib
import subprocess
import sys

from transformers.utils import chat_template_utils

NOW = 1_722_000_000


def call(name, arguments, id="call_1abc"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


HI, ANSWER = said("user", "Hi there!"), said("assistant", "Hello. How can I help?")
SYSTEM = said("system", "You are terse.\nAlways.")
ASK = said("user", "What is the weather in Zürich?")
CALLS = said("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 3})])
RESULT = said("tool", '{"sky": "clear", "t": 21.5}', name="get_weather", tool_call_id="call_1abc")
TWO = said("assistant", "Both.", tool_calls=[call("get_weather", {"city": "Oslo"}, "call_a1234"), call("add", {"a": 1, "b": [1, 2.5, None, True]}, "call_b5678")])
THOUGHT = said("assistant", "42.", reasoning_content="Six times seven.\nYes.")

CONVERSATIONS = {
    "one": [HI],
    "system": [SYSTEM, HI],
    "turns": [HI, ANSWER, said("user", "Tell me more.")],
    "system and turns": [SYSTEM, HI, ANSWER, said("user", "And?"), said("assistant", "So."), said("user", "Go on")],
    "ends with an answer": [HI, ANSWER],
    "empty": [said("user", "")],
    "spaces": [said("user", "  spaces  \n\n"), said("assistant", " x "), said("user", "\ty\t")],
    "markup": [said("user", "<|im_end|> {{ x }} </think> <b>&amp;\"'</b>")],
    "unicode": [said("user", "日本語 😀 \u200b é e\u0301")],
    "calls": [ASK, CALLS, RESULT],
    "calls and an answer": [SYSTEM, ASK, CALLS, RESULT, said("assistant", "Clear, 21.5 °C."), said("user", "Thanks")],
    "two calls": [ASK, TWO, RESULT, said("tool", "3", name="add", tool_call_id="call_b5678")],
    "calls without arguments": [ASK, said("assistant", "", tool_calls=[call("now", {})]), said("tool", "noon", tool_call_id="call_1abc")],
    "nested arguments": [ASK, said("assistant", "", tool_calls=[call("put", {"o": {"k": [{"x": 1e-07}, "a\"b\n"]}, "f": 1e16, "t": True, "n": None})])],
    "reasoning": [said("user", "6 * 7?"), THOUGHT, said("user", "Sure?")],
    "reasoning at the end": [said("user", "6 * 7?"), THOUGHT],
    "reasoning in the text": [said("user", "6 * 7?"), said("assistant", "<think>\nhm\n</think>\n\n42"), said("user", "Sure?")],
    "reasoning and calls": [ASK, said("assistant", "", reasoning_content="I look.", tool_calls=[call("get_weather", {"city": "Bern"})]), RESULT],
    "developer": [said("developer", "Be kind."), HI],
    "two systems": [SYSTEM, said("system", "And polite."), HI],
    "system in the middle": [HI, SYSTEM, said("user", "Now?")],
    "two users": [HI, said("user", "Still there?")],
    "assistant first": [ANSWER, HI],
}

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.\nOf a <city>.", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "Its name"}, "days": {"type": "integer", "default": 1, "minimum": 1},
            "unit": {"type": "string", "enum": ["C", "F"]}, "at": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}}, "o": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}},
]


def compiled(source):
    template = chat_template_utils._compile_jinja_template(source)
    now = lambda format: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)
    template.globals["strftime_now"] = now
    return template


def reference(template, case):
    try:
        return {"text": template.render(
            messages=json.loads(json.dumps(case["messages"])), tools=case["tools"] or None, documents=None, add_generation_prompt=case["add_generation_prompt"],
            bos_token=case["bos"], eos_token=case["eos"],
        )}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    engine, *places = sys.argv[1:]
    paths = []
    for place in map(pathlib.Path, places):
        paths += sorted(path for path in place.rglob("*.jinja")) if place.is_dir() else [place]
    cases, expected = [], []
    for path in paths:
        source = path.read_text()
        try:
            template = compiled(source)
        except Exception as error:
            template, why = None, {"error": str(error)}
        for name, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                ends = messages[-1]["role"] == "assistant"
                case = {"template": source, "bos": "<s>", "eos": "</s>", "messages": messages, "tools": tools,
                        "add_generation_prompt": not ends, "kwargs": {"now": NOW}}
                cases.append((path.name, name, bool(tools), case))
                expected.append(reference(template, case) if template else why)
    lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for *_, case in cases)
    answers = subprocess.run([engine], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answers) == len(cases), "the engine did not answer every case"
    differing, refused = {}, 0
    for (path, name, tools, _), theirs, ours in zip(cases, expected, map(json.loads, answers)):
        refused += "error" in theirs
        if theirs.get("text") != ours.get("text") or ("error" in theirs) != ("error" in ours):
            differing.setdefault(path, []).append((name, tools, theirs, ours))
    for path, found in differing.items():
        print(f"{path}: {len(found)} differ")
        name, tools, theirs, ours = found[0]
        print(f"  {name}, {'with' if tools else 'without'} tools")
        a, b = theirs.get("text"), ours.get("text")
        if a is not None and b is not None:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"    jinja2 …{a[max(0, at - 60):at + 60]!r}\n    ours   …{b[max(0, at - 60):at + 60]!r}")
        else:
            print(f"    jinja2 {str(theirs)[:300]}\n    ours   {str(ours)[:300]}")
    count = sum(map(len, differing.values()))
    print(f"{len(paths)} templates, {len(cases)} prompts, {refused} of which both or one refuse; {count} differ in {len(differing)} templates")
    sys.exit(count > 0)


main()
