"""Agents' loops of five turns, each library unmodified and dumping its messages as it does: litellm, openai-agents, langchain and
pydantic-ai here, the AI SDK in ai_sdk.mjs, against `hanzo-engine serve` with the bundled demo model; streamed and not. In
the middle of each loop lie past calls of tools as the library writes them, one with arguments that are no JSON.
usage: agents_client.py HANZO_ENGINE_BINARY [NODE_MODULES]"""
import asyncio, os, subprocess, sys
from pathlib import Path

# Nothing here asks anyone but the engine.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1", LANGCHAIN_TRACING_V2="false", DO_NOT_TRACK="1")

import agents, litellm, openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from engine import Engine, check, run_checks

MODEL = "hanzo-demo"
QUESTIONS = ["Hello!", "What is the capital of France?", "And of Italy?", "What is a fox?", "Thank you!"]
# After which turn the past calls are put in.
CALLS_AFTER = 2
BROKEN = '{"city": "Par'
MAX_TOKENS = 24


class Loop:
    """Counts turns: each must be answered, and its prompt must be longer than the one before."""

    def __init__(self, turns):
        self.turns, self.prompts = turns, []

    def turn(self, prompt_tokens, completion_tokens):
        assert completion_tokens > 0, f"turn {len(self.prompts)}: no answer"
        assert not self.prompts or prompt_tokens > self.prompts[-1], f"turn {len(self.prompts)}: {prompt_tokens} tokens after {self.prompts}"
        self.prompts.append(prompt_tokens)

    def done(self):
        assert len(self.prompts) == self.turns, self.prompts
        return f"prompts of {self.prompts} tokens"


def litellm_loop(engine, stream):
    loop, messages = Loop(5), [
        {"role": "system", "content": [{"type": "text", "text": "You are short.", "cache_control": {"type": "ephemeral"}}]}]
    for i, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": [{"type": "text", "text": question, "cache_control": {"type": "ephemeral"}}]})
        answer = litellm.completion(model=f"openai/{MODEL}", api_base=f"http://{engine.http}/v1", api_key="none", messages=messages,
                                    max_tokens=MAX_TOKENS, stream=stream, num_retries=0, **({"stream_options": {"include_usage": True}} if stream else {}))
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        loop.turn(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        messages.append(answer.choices[0].message.model_dump())
        if i == CALLS_AFTER:
            call = litellm.ChatCompletionMessageToolCall(id="call_1", type="function", function=litellm.Function(name="weather", arguments='{"city": "Rome"}'))
            broken = litellm.ChatCompletionMessageToolCall(id="call_2", type="function", function=litellm.Function(name="weather", arguments=BROKEN))
            # As Anthropic's answers look in litellm.
            past = litellm.Message(content=None, role="assistant", tool_calls=[call, broken], reasoning_content="I should look.",
                                   thinking_blocks=[{"type": "thinking", "thinking": "I should look.", "signature": "c2ln"}],
                                   provider_specific_fields={"citations": None})
            messages += [past.model_dump(),
                         {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "warm"},
                         {"role": "tool", "tool_call_id": "call_2", "name": "weather", "content": [{"type": "text", "text": "arguments are no JSON"}]},
                         {"role": "assistant", "content": "It is warm.", "cache_control": {"type": "ephemeral"}},
                         {"role": "assistant", "content": None, "function_call": {"name": "clock", "arguments": "{"}},
                         {"role": "function", "name": "clock", "content": "noon"}]
    return loop.done()


@check
def litellm_whole(engine):
    return litellm_loop(engine, False)


@check
def litellm_streamed(engine):
    return litellm_loop(engine, True)


async def openai_agents_loop(engine, stream):
    client = openai.AsyncOpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0)
    model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    agent = agents.Agent(name="short", instructions="You are short.", model=model,
                         model_settings=agents.ModelSettings(max_tokens=MAX_TOKENS, include_usage=True))
    loop, items = Loop(5), []
    for i, question in enumerate(QUESTIONS):
        items.append({"role": "user", "content": question})
        if stream:
            result = agents.Runner.run_streamed(agent, items)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, items)
        usage = result.raw_responses[-1].usage
        loop.turn(usage.input_tokens, usage.output_tokens)
        items = result.to_input_list()
        if i == CALLS_AFTER:
            for call_id, arguments, output in [("call_1", '{"city": "Rome"}', "warm"), ("call_2", BROKEN, "arguments are no JSON")]:
                items += [{"type": "function_call", "call_id": call_id, "name": "weather", "arguments": arguments},
                          {"type": "function_call_output", "call_id": call_id, "output": output}]
    await client.close()
    return loop.done()


@check
def openai_agents_whole(engine):
    return asyncio.run(openai_agents_loop(engine, False))


@check
def openai_agents_streamed(engine):
    return asyncio.run(openai_agents_loop(engine, True))


def langchain_loop(engine, stream):
    llm = ChatOpenAI(base_url=f"http://{engine.http}/v1", api_key="none", model=MODEL, max_tokens=MAX_TOKENS, max_retries=0, stream_usage=True)
    loop, messages = Loop(5), [SystemMessage("You are short.")]
    for i, question in enumerate(QUESTIONS):
        messages.append(HumanMessage([{"type": "text", "text": question}] if i % 2 else question))
        if stream:
            answer = None
            for chunk in llm.stream(messages):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = llm.invoke(messages)
        loop.turn(answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"])
        messages.append(answer)
        if i == CALLS_AFTER:
            messages += [AIMessage(content="", additional_kwargs={"refusal": None},
                                   tool_calls=[{"name": "weather", "args": {"city": "Rome"}, "id": "call_1", "type": "tool_call"}],
                                   invalid_tool_calls=[{"name": "weather", "args": BROKEN, "id": "call_2", "error": "no JSON", "type": "invalid_tool_call"}]),
                         ToolMessage("warm", tool_call_id="call_1", name="weather"),
                         ToolMessage([{"type": "text", "text": "arguments are no JSON"}], tool_call_id="call_2", status="error"),
                         AIMessage([{"type": "text", "text": "It is warm.", "annotations": []}], id="msg_1"),
                         AIMessage("", additional_kwargs={"function_call": {"name": "clock", "arguments": "{"}})]
    return loop.done()


@check
def langchain_whole(engine):
    return langchain_loop(engine, False)


@check
def langchain_streamed(engine):
    return langchain_loop(engine, True)


async def pydantic_ai_loop(engine, stream):
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"http://{engine.http}/v1", api_key="none"))
    agent = Agent(model, instructions="You are short.", model_settings={"max_tokens": MAX_TOKENS}, retries=0)
    loop, history = Loop(5), []
    for i, question in enumerate(QUESTIONS):
        if stream:
            async with agent.run_stream(question, message_history=history) as result:
                async for _ in result.stream_text(delta=True):
                    pass
        else:
            result = await agent.run(question, message_history=history)
        usage = result.all_messages()[-1].usage
        loop.turn(usage.input_tokens, usage.output_tokens)
        # To a file and back, as its documentation shows.
        history = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(result.all_messages()))
        if i == CALLS_AFTER:
            history += [ModelResponse([ThinkingPart("I should look."), ToolCallPart("weather", {"city": "Rome"}, "call_1"), ToolCallPart("weather", BROKEN, "call_2")]),
                        ModelRequest([ToolReturnPart("weather", {"sky": "clear"}, "call_1"), ToolReturnPart("weather", "arguments are no JSON", "call_2")]),
                        ModelResponse([TextPart("It is warm.")])]
    return loop.done()


@check
def pydantic_ai_whole(engine):
    return asyncio.run(pydantic_ai_loop(engine, False))


@check
def pydantic_ai_streamed(engine):
    return asyncio.run(pydantic_ai_loop(engine, True))


def ai_sdk(engine, *how):
    script = Path(__file__).with_name("ai_sdk.mjs")
    run = subprocess.run(["node", script, NODE_MODULES, f"http://{engine.http}/v1", *how], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


@check
def ai_sdk_whole(engine):
    return ai_sdk(engine, "whole")


@check
def ai_sdk_streamed(engine):
    return ai_sdk(engine, "streamed")


if __name__ == "__main__":
    NODE_MODULES = sys.argv[2]
    with Engine() as engine:
        sys.exit(run_checks(engine))
