"""Tools through the official openai client, streamed and not: the demo model's own tasks at the rate of its card, choices that
are enforced where nothing is likely, and loops of openai-agents, langchain and the AI SDK (ai_sdk_tools.mjs) from a call to the answer.
usage: tools_client.py HANZO_ENGINE_BINARY NODE_MODULES"""
import asyncio, json, os, subprocess, sys, urllib.request
from pathlib import Path

os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGCHAIN_TRACING_V2="false", DO_NOT_TRACK="1")

import agents, jsonschema, openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI

from engine import Engine, check, run_checks

MODEL = "hanzo-demo"
TASKS = [json.loads(line) for line in (Path(__file__).parent / "tool_tasks.jsonl").read_text().splitlines()]
# Of the model's card, out of 20, 5 and 10.
CARD = {"tool_call": 14, "tool_none": 5, "tool_answer": 8}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a city", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Add numbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["whole", "half"]},
                                     "more": {"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 0}, "maxItems": 2}},
    "required": ["a", "kind"], "additionalProperties": False}}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


def client(engine):
    return openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0)


def message(api, stream, **request):
    """The answer's text, its calls as (id, name, arguments), and why it ended."""
    if not stream:
        choice = api.chat.completions.create(model=MODEL, **request).choices[0]
        calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        return choice.message.content or "", calls, choice.finish_reason
    text, calls, reason = "", [], None
    for chunk in api.chat.completions.create(model=MODEL, stream=True, **request):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        for part in choice.delta.tool_calls or []:
            if part.index == len(calls):
                assert part.id and part.type == "function" and part.function.name, part
                calls.append([part.id, part.function.name, ""])
            calls[part.index][2] += part.function.arguments or ""
        reason = choice.finish_reason or reason
    return text, [tuple(call) for call in calls], reason


def passes(task, text, calls):
    said = [{"name": name, "arguments": json.loads(arguments)} for _, name, arguments in calls]
    if task["check"] == "tool":
        return said == task["expected"]
    if said:
        return False
    expected = task["expected"]
    return expected.lower() in text.lower() if task["check"] == "contains" else text.strip() == expected.strip()


def conversation(messages):
    """As OpenAI has it: calls with ids, arguments as text."""
    out, open_ids = [], []
    for message in messages:
        if message.get("tool_calls"):
            open_ids = [f"call{len(out):05}{i}"[-9:] for i in range(len(message["tool_calls"]))]
            calls = [{"id": id, "type": "function", "function": {"name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])}}
                     for id, call in zip(open_ids, message["tool_calls"])]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": open_ids.pop(0)}
        out.append(message)
    return out


def tasks(engine, stream):
    api, right, total = client(engine), dict.fromkeys(CARD, 0), dict.fromkeys(CARD, 0)
    for task in TASKS:
        text, calls, reason = message(api, stream, messages=conversation(task["messages"]), tools=task["tools"], temperature=0, max_tokens=200,
                                      extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        assert (reason == "tool_calls") == bool(calls), (reason, calls)
        total[task["category"]] += 1
        right[task["category"]] += passes(task, text, calls)
    assert all(right[name] >= CARD[name] for name in CARD), (right, CARD)
    return ", ".join(f"{name} {right[name]}/{total[name]}" for name in CARD)


@check
def tasks_whole(engine):
    return tasks(engine, False)


@check
def tasks_streamed(engine):
    return tasks(engine, True)


@check
def choices_are_enforced(engine):
    api, made = client(engine), 0
    for seed in range(24):
        add = {"type": "function", "function": {"name": "add"}}
        some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [add]}}
        choice = ["required", add, "required", some][seed % 4]
        text, calls, reason = message(api, seed % 4 < 2, messages=ASK, tools=[WEATHER, ADD], tool_choice=choice, temperature=1.5, seed=seed,
                                      max_tokens=300, parallel_tool_calls=seed % 3 != 0)
        if reason == "length":
            continue
        assert calls and reason == "tool_calls" and not text, (text, calls, reason)
        assert seed % 3 or len(calls) == 1, calls
        assert len({call[0] for call in calls}) == len(calls), calls
        for _, name, arguments in calls:
            assert seed % 2 == 0 or name == "add", name
            schema = next(tool["function"]["parameters"] for tool in (WEATHER, ADD) if tool["function"]["name"] == name)
            jsonschema.validate(json.loads(arguments), schema)
            made += 1
    assert made >= 18, made
    text, calls, reason = message(api, False, messages=ASK, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=40)
    assert text and not calls and reason in ("stop", "length")
    return f"{made} calls, all as their schemas say"


@check
def two_calls_arrive_as_two(engine):
    # A line break comes before another call, and is made likely; no argument can have one.
    flag = {"type": "function", "function": {"name": "flag", "parameters": {
        "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}}}
    with urllib.request.urlopen(urllib.request.Request(f"http://{engine.http}/tokenize", json.dumps({"model": MODEL, "content": "\n"}).encode(),
                                                       {"Content-Type": "application/json"})) as answer:
        tokens = json.load(answer)["tokens"]
    for stream in (False, True):
        for parallel in (True, False):
            text, calls, reason = message(client(engine), stream, messages=ASK, tools=[flag], tool_choice="required", temperature=1, seed=1, max_tokens=60,
                                          parallel_tool_calls=parallel, logit_bias={str(token): 100 for token in tokens})
            assert all(name == "flag" and isinstance(json.loads(arguments)["on"], bool) for _, name, arguments in calls), calls
            assert not text and (len(calls) >= 2) == parallel and len({call[0] for call in calls}) == len(calls), (text, calls, reason)
            assert reason == "tool_calls" or parallel and reason == "length", reason


@check
def functions_of_old(engine):
    answer = client(engine).chat.completions.create(model=MODEL, messages=ASK, functions=[WEATHER["function"]], function_call={"name": "get_weather"},
                                                    temperature=0, max_tokens=80).choices[0]
    assert answer.message.function_call.name == "get_weather" and answer.finish_reason == "function_call", answer
    assert json.loads(answer.message.function_call.arguments) == {"city": "Paris"}


@check
def openai_agents_answer_from_a_call(engine):
    asked = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather for a city"""
        asked.append(city)
        return json.dumps({"city": city, "temperature": 21, "sky": "sunny"})

    async def run(stream):
        api = openai.AsyncOpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0)
        agent = agents.Agent(name="demo", instructions="Use the tools when they help.", tools=[get_weather],
                             model=agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=api),
                             model_settings=agents.ModelSettings(temperature=0, max_tokens=100))
        if stream:
            result = agents.Runner.run_streamed(agent, "What is the weather in Paris?")
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, "What is the weather in Paris?")
        await api.close()
        assert asked and asked[-1] == "Paris" and result.final_output, (asked, result.final_output)
        return result.final_output

    return "; ".join(asyncio.run(run(stream)) for stream in (False, True))


@check
def langchain_answers_from_a_call(engine):
    @langchain_tool
    def get_weather(city: str) -> str:
        """Get the current weather for a city"""
        return json.dumps({"city": city, "temperature": 21, "sky": "sunny"})

    llm = ChatOpenAI(base_url=f"http://{engine.http}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=100, max_retries=0).bind_tools([get_weather])
    said = []
    for stream in (False, True):
        messages = [HumanMessage("What is the weather in Paris?")]
        ask = (lambda: _joined(llm.stream(messages))) if stream else (lambda: llm.invoke(messages))
        answer = ask()
        assert [call["args"] for call in answer.tool_calls] == [{"city": "Paris"}], answer
        messages += [answer, *(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls)]
        said.append(ask().text if isinstance(answer.text, str) else ask().text())
        assert said[-1], messages
    return "; ".join(said)


@check
def the_ai_sdk_answers_from_a_call(engine):
    script = Path(__file__).parent / "ai_sdk_tools.mjs"
    said = []
    for how in ("whole", "streamed"):
        ran = subprocess.run(["node", script, sys.argv[2], f"http://{engine.http}/v1", how], capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout.strip())
    return "; ".join(said)


def _joined(chunks):
    whole = None
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    return whole


if __name__ == "__main__":
    with Engine() as engine:
        sys.exit(run_checks(engine))
