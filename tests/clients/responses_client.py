"""OpenAI's Responses API through clients as they are: openai's package, openai-agents, langchain, the AI SDK (ai_sdk_responses.mjs) and npm's openai (openai_js.mjs), in front
of a model that answers to the letter, and of the bundled demo model.
usage: responses_client.py HANZO_ENGINE_BINARY NODE_MODULES"""
import asyncio, json, os, subprocess, sys, tempfile, urllib.request
from pathlib import Path

os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGCHAIN_TRACING_V2="false", DO_NOT_TRACK="1")

import agents, openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from engine import Engine, check, run_checks
from javascript import script
from scripted_chat import Chat
from scripted_engine import Gateway

MODEL = "scripted"
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather of a city", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches a file"}
ASK = "What is the weather in Paris?"
PATCHED = "*** Begin Patch\n+é\n*** End Patch"


class Weather(BaseModel):
    city: str
    degrees: int


def api(gateway, kind=openai.OpenAI):
    return kind(base_url=f"http://{gateway.http}/v1", api_key="none", max_retries=0)


def shown(gateway):
    """What the model was shown last: a line for each message."""
    def line(message):
        calls = "".join(f" {call.name}({json.dumps(json.loads(call.arguments_json), ensure_ascii=False)})" for call in message.tool_calls)
        thought = f"({message.reasoning_content})" if message.reasoning_content else ""
        return f"{message.role}: {thought}{''.join(part.text for part in message.content)}{calls}"
    return [line(message) for message in gateway.chat.seen[-1].chat.messages]


ANSWERED = ["user: " + ASK, 'assistant: (I should look.)I look. get_weather({"city": "Paris"})', "tool: sunny"]


@check
def a_response_and_its_stream_are_the_same(gateway):
    client = api(gateway)
    whole = client.responses.create(model=MODEL, input="hi", instructions="short", metadata={"a": "b"})
    assert whole.output_text == "2 messages, the last: hi" and whole.status == "completed", whole
    assert [item.type for item in whole.output] == ["reasoning", "message"] and whole.output[0].content[0].text == "No tool.", whole
    assert whole.usage.input_tokens == 2 and whole.usage.output_tokens > 0 and whole.metadata == {"a": "b"} and whole._request_id, whole
    kinds, text, thought = [], "", ""
    with client.responses.stream(model=MODEL, input="hi", instructions="short") as stream:
        for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
            thought += event.delta if event.type == "response.reasoning_text.delta" else ""
        last = stream.get_final_response()
    assert (text, thought, last.output_text) == (whole.output_text, "No tool.", whole.output_text), (text, thought)
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
    numbers = [event.sequence_number for event in client.responses.create(model=MODEL, input="hi", stream=True)]
    assert numbers == list(range(len(numbers))), numbers


@check
def an_answer_is_parsed(gateway):
    client = api(gateway)
    parsed = client.responses.parse(model=MODEL, input="weather as JSON", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Paris", degrees=18), parsed
    schema = json.loads(gateway.chat.seen[-1].constraint.json_schema)
    assert schema["required"] == ["city", "degrees"] and schema["additionalProperties"] is False, schema
    with client.responses.stream(model=MODEL, input="weather as JSON", text_format=Weather) as stream:
        assert stream.get_final_response().output_parsed == Weather(city="Paris", degrees=18)


@check
def asynchronously_too(gateway):
    async def ask():
        async with api(gateway, openai.AsyncOpenAI) as client:
            whole, stream = await asyncio.gather(client.responses.create(model=MODEL, input="hi"), client.responses.create(model=MODEL, input="hi", stream=True))
            events = [event async for event in stream]
            assert events[-1].response.output_text == whole.output_text == "1 messages, the last: hi", events[-1]
    asyncio.run(ask())


@check
def a_tool_from_the_call_to_the_answer(gateway):
    client = api(gateway)
    for streamed in (False, True):
        for kept in (True, False):
            def ask(**request):
                request = dict(model=MODEL, tools=[WEATHER], store=kept, include=[] if kept else ["reasoning.encrypted_content"], **request)
                if not streamed:
                    return client.responses.create(**request)
                with client.responses.stream(**request) as stream:
                    return stream.get_final_response()
            first = ask(input=ASK)
            call = first.output[-1]
            assert [item.type for item in first.output] == ["reasoning", "message", "function_call"], first
            assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"}), call
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            if kept:
                second = ask(input=[output], previous_response_id=first.id)
            else:
                # Without the plain reasoning, as clients send it that may not keep it.
                history = [item.model_dump(exclude={"content"} if item.type == "reasoning" else None) for item in first.output]
                second = ask(input=[{"role": "user", "content": ASK}, *history, output])
            assert second.output_text == "The tool says: sunny" and shown(gateway) == ANSWERED, shown(gateway)


@check
def several_calls_and_a_custom_tool(gateway):
    client = api(gateway)
    for streamed in (False, True):
        request = dict(model=MODEL, input="both, please", tools=[WEATHER, PATCH])
        if streamed:
            events = list(client.responses.create(stream=True, **request))
            done = [event.input for event in events if event.type == "response.custom_tool_call_input.done"]
            assert done == [PATCHED], done
            response = events[-1].response
        else:
            response = client.responses.create(**request)
        weather, patch = response.output[1:]
        assert (weather.type, patch.type, patch.name, patch.input) == ("function_call", "custom_tool_call", "apply_patch", PATCHED), response
        outputs = [{"type": "function_call_output", "call_id": weather.call_id, "output": [{"type": "input_text", "text": "sunny"}]},
                   {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "Done"}]
        client.responses.create(model=MODEL, previous_response_id=response.id, input=outputs, tools=[WEATHER, PATCH])
        call = 'assistant: (Two of them.) get_weather({"city": "Paris"}) apply_patch(' + json.dumps({"input": PATCHED}, ensure_ascii=False) + ")"
        assert shown(gateway) == ["user: both, please", call, "tool: sunny", "tool: Done"], shown(gateway)
    none = client.responses.create(model=MODEL, input=ASK, tools=[WEATHER], tool_choice="none")
    assert [item.type for item in none.output] == ["reasoning", "message"], none


@check
def reasoning_is_summed_up_where_that_is_asked_for(gateway):
    client = api(gateway)
    with client.responses.stream(model=MODEL, input="hi", reasoning={"effort": "low", "summary": "auto"}) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.reasoning_summary_text.delta")
        item = stream.get_final_response().output[0]
    assert text == item.summary[0].text == "No tool." and not item.content, item


@check
def what_is_kept(gateway):
    client = api(gateway)
    first = client.responses.create(model=MODEL, input="hi")
    second = client.responses.create(model=MODEL, input=[{"role": "user", "content": str(i)} for i in range(30)], previous_response_id=first.id)
    assert client.responses.retrieve(second.id) == second
    items = list(client.responses.input_items.list(second.id, limit=7, order="asc"))
    assert len(items) == 33 and items[0].content[0].text == "hi" and items[-1].content[0].text == "29", items
    assert [item.id for item in client.responses.input_items.list(second.id)] == [item.id for item in reversed(items)]
    count = client.responses.input_tokens.count(model=MODEL, input="four")
    assert (count.object, count.input_tokens) == ("response.input_tokens", 4), count
    client.responses.delete(second.id)
    for error, ask in [
        (openai.NotFoundError, lambda: client.responses.retrieve(second.id)),
        (openai.NotFoundError, lambda: client.responses.delete(second.id)),
        (openai.BadRequestError, lambda: client.responses.cancel(first.id)),
        (openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="x", previous_response_id=second.id)),
        (openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}])),
        (openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="x", background=True)),
    ]:
        try:
            ask()
        except error as raised:
            assert raised.body["message"], raised.body
        else:
            raise AssertionError(error)


@agents.function_tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    assert city == "Paris", city
    return "sunny"


def with_model(gateway, loop):
    """Runs the loop with a model of openai-agents, streamed and not."""
    async def run(streamed):
        async with api(gateway, openai.AsyncOpenAI) as client:
            await loop(agents.OpenAIResponsesModel(model=MODEL, openai_client=client), streamed)
    for streamed in (False, True):
        asyncio.run(run(streamed))


async def run_agent(agent, ask, streamed, **more):
    if not streamed:
        return await agents.Runner.run(agent, ask, **more)
    result = agents.Runner.run_streamed(agent, ask, **more)
    async for _ in result.stream_events():
        pass
    return result


@check
def agents_with_tools(gateway):
    async def loop(model, streamed):
        agent = agents.Agent(name="short", instructions="Be short.", model=model, tools=[get_weather])
        result = await run_agent(agent, ASK, streamed)
        assert result.final_output == "The tool says: sunny", result.final_output
        expected = ["system: Be short.", *ANSWERED]
        assert shown(gateway) == expected, shown(gateway)
        # The next turn, with all that was said and with what is kept.
        await run_agent(agent, result.to_input_list() + [{"role": "user", "content": "thanks"}], streamed)
        expected += ["assistant: The tool says: sunny", "user: thanks"]
        assert shown(gateway) == expected, shown(gateway)
        await run_agent(agent, "thanks", streamed, previous_response_id=result.last_response_id)
        assert shown(gateway) == expected, shown(gateway)
        session = agents.SQLiteSession("one")
        for ask in (ASK, "thanks"):
            await run_agent(agent, ask, streamed, session=session)
        assert shown(gateway) == expected, shown(gateway)
    with_model(gateway, loop)


@check
def agents_that_hand_over(gateway):
    async def loop(model, streamed):
        second = agents.Agent(name="second", instructions="You are the second.", model=model)
        first = agents.Agent(name="first", instructions="You hand over.", model=model, handoffs=[second])
        result = await run_agent(first, "go", streamed)
        assert result.last_agent.name == "second", result.last_agent
        assert shown(gateway)[0] == "system: You are the second." and "transfer_to_second" in shown(gateway)[2], shown(gateway)
    with_model(gateway, loop)


@check
def agents_with_a_type(gateway):
    async def loop(model, streamed):
        agent = agents.Agent(name="typed", model=model, output_type=Weather)
        assert (await run_agent(agent, "weather", streamed)).final_output == Weather(city="Paris", degrees=18)
    with_model(gateway, loop)


@langchain_tool("get_weather")
def langchain_weather(city: str) -> str:
    """Weather of a city."""
    return "sunny"


@check
def langchain(gateway):
    settings = dict(base_url=f"http://{gateway.http}/v1", api_key="none", model=MODEL, max_retries=0, use_responses_api=True)
    for more in [{}, {"use_previous_response_id": True}, {"store": False, "include": ["reasoning.encrypted_content"]}, {"output_version": "responses/v1"},
                 {"reasoning": {"effort": "low", "summary": "auto"}}]:
        llm = ChatOpenAI(**settings, **more)
        for streamed in (False, True):
            def ask(messages, llm=llm.bind_tools([langchain_weather])):
                if not streamed:
                    return llm.invoke(messages)
                chunks = list(llm.stream(messages))
                return sum(chunks[1:], chunks[0])
            messages = [HumanMessage(ASK)]
            called = ask(messages)
            assert [(call["name"], call["args"]) for call in called.tool_calls] == [("get_weather", {"city": "Paris"})], called
            messages += [called, ToolMessage("sunny", tool_call_id=called.tool_calls[0]["id"])]
            answered = ask(messages)
            assert answered.text == "The tool says: sunny", answered
            assert answered.usage_metadata["input_tokens"] == 3, answered
            ask([*messages, answered, HumanMessage("thanks")])
            got, expected = shown(gateway), [*ANSWERED, "assistant: The tool says: sunny", "user: thanks"]
            # What of its reasoning the library sends back is the library's to say.
            assert [line.replace("(I should look.)", "") for line in got] == [line.replace("(I should look.)", "") for line in expected], got
    typed = ChatOpenAI(**settings).with_structured_output(Weather, method="json_schema")
    assert typed.invoke("weather") == Weather(city="Paris", degrees=18)


def ai_sdk(gateway, *how):
    script = Path(__file__).with_name("ai_sdk_responses.mjs")
    run = subprocess.run(["node", script, NODE_MODULES, f"http://{gateway.http}/v1", *how], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert shown(gateway) == [*ANSWERED, "assistant: The tool says: sunny", "user: thanks"], shown(gateway)


@check
def ai_sdk_that_names_its_items(gateway):
    for how in ("whole", "streamed"):
        ai_sdk(gateway, how, "kept")


@check
def ai_sdk_that_sends_them(gateway):
    for how in ("whole", "streamed"):
        ai_sdk(gateway, how, "sent")


@check
def on_disk_they_outlive_the_gateway(gateway):
    with tempfile.TemporaryDirectory() as dir:
        env = {"HANZO_ENGINE_GATEWAY_RESPONSES_DIR": dir}
        with Gateway(Chat(), env) as first:
            made = api(first).responses.create(model=MODEL, input="hi")
        chat = Chat()
        with Gateway(chat, env) as second:
            assert api(second).responses.retrieve(made.id) == made
            assert api(second).responses.create(model=MODEL, input="x", previous_response_id=made.id).output_text == "3 messages, the last: x"


@check
def the_demo_model(gateway):
    with Engine() as engine:
        script(NODE_MODULES, "openai_js.mjs", f"http://{engine.http}/v1")
        client = api(engine)
        request = dict(model="hanzo-demo", input="What is the capital of France?", temperature=0, max_output_tokens=64, reasoning={"effort": "none"})
        whole = client.responses.create(**request)
        with client.responses.stream(**request) as stream:
            assert stream.get_final_response().output_text == whole.output_text
        chat = client.chat.completions.create(model="hanzo-demo", messages=[{"role": "user", "content": request["input"]}], temperature=0, max_tokens=64, reasoning_effort="none")
        assert "Paris" in whole.output_text and whole.output_text == chat.choices[0].message.content, whole
        count = client.responses.input_tokens.count(model="hanzo-demo", input=request["input"], reasoning={"effort": "none"})
        assert count.input_tokens == whole.usage.input_tokens == chat.usage.prompt_tokens, (count, whole.usage)
        follows = client.responses.create(**{**request, "input": "And of Italy?"}, previous_response_id=whole.id)
        assert follows.usage.input_tokens > whole.usage.input_tokens and follows.output_text, follows
        cut = client.responses.create(**{**request, "max_output_tokens": 2})
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens"), cut
        scored = client.responses.create(**request, include=["message.output_text.logprobs"], top_logprobs=2)
        tokens = scored.output[0].content[0].logprobs
        assert "".join(token.token for token in tokens) == whole.output_text and all(len(token.top_logprobs) == 2 for token in tokens), tokens
        assert Weather(**json.loads(client.responses.create(
            model="hanzo-demo", input="x", reasoning={"effort": "none"}, max_output_tokens=200, temperature=0, text={"format": {"type": "json_schema", "name": "w", "strict": True, "schema": {
                "type": "object", "properties": {"city": {"type": "string", "maxLength": 9}, "degrees": {"type": "integer", "minimum": 0, "maximum": 99}},
                "required": ["city", "degrees"], "additionalProperties": False}}}).output_text))
        regex = {"type": "custom", "name": "colour", "description": "Paints", "format": {"type": "grammar", "syntax": "regex", "definition": "(red|blue) [0-9]{2}"}}
        call = client.responses.create(model="hanzo-demo", input="Paint.", tools=[regex], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200,
                                       reasoning={"effort": "none"}).output[-1]
        assert call.type == "custom_tool_call" and call.input[:-2] in ("red ", "blue ") and call.input[-2:].isdigit(), call
        thought = client.responses.create(model="hanzo-demo", input="What is 2 + 2?", reasoning={"effort": "low"}, max_output_tokens=2000)
        assert [item.type for item in thought.output] == ["reasoning", "message"] and thought.usage.output_tokens_details.reasoning_tokens > 0, thought


if __name__ == "__main__":
    NODE_MODULES = sys.argv[2]
    chat = Chat()
    with Gateway(chat) as gateway:
        gateway.chat = chat
        sys.exit(run_checks(gateway))
