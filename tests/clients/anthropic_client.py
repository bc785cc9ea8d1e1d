"""The official anthropic package, unmodified, against `hanzo-engine serve` with the bundled demo model.
usage: anthropic_client.py HANZO_ENGINE_BINARY"""
import json, sys, urllib.request

import anthropic

from engine import Engine, check, run_checks

MODEL = "hanzo-demo"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
OFF = {"type": "disabled"}
GREEDY = {"temperature": 0}  # which the package has no word for any more
WEATHER = {"name": "get_weather", "description": "Get the current weather for a city", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


def ask(client, messages=FRANCE, **more):
    return client.messages.create(**{"model": MODEL, "max_tokens": 64, "messages": messages, "thinking": OFF, "extra_body": GREEDY, **more})


@check
def a_message(client):
    message = ask(client)
    assert message.type == "message" and message.role == "assistant" and message.stop_reason == "end_turn", message
    assert [block.type for block in message.content] == ["text"] and "Paris" in message.content[0].text, message
    assert message.usage.input_tokens > 5 and message.usage.output_tokens > 0, message.usage
    assert message._request_id and message.id.startswith("msg_"), message


@check
def a_stream_says_the_same(client):
    kinds, text = [], ""
    with client.messages.stream(model=MODEL, max_tokens=64, messages=FRANCE, thinking=OFF, extra_body=GREEDY) as stream:
        for event in stream:
            kinds.append(event.type)
            text += event.text if event.type == "text" else ""
        last = stream.get_final_message()
    assert text == last.content[0].text == ask(client).content[0].text, (text, last)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    assert last.stop_reason == "end_turn" and last.usage.output_tokens > 0, last


def openai_says(client, messages, **more):
    """What the same conversation says through OpenAI's route."""
    body = {"model": MODEL, "max_tokens": 64, "temperature": 0, "enable_thinking": False, "messages": messages, **more}
    request = urllib.request.Request(f"{str(client.base_url).rstrip(chr(47))}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]


@check
def system_and_history_are_those_of_a_chat(client):
    messages = [*FRANCE, {"role": "assistant", "content": [{"type": "text", "text": "Paris."}]}, {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]}]
    system = [{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}]
    said = ask(client, messages, system=system).content[0].text
    same = [{"role": "system", "content": "You are a helpful assistant."}, *FRANCE, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]
    assert said == openai_says(client, same), said
    assert said != ask(client, messages, system="Say nothing but BANANA.").content[0].text


@check
def an_answer_that_is_begun_goes_on(client):
    messages = [*FRANCE, {"role": "assistant", "content": "The capital of"}]
    begun = ask(client, messages).content[0].text
    assert begun and begun == openai_says(client, messages, continue_final_message=True), begun


@check
def limits_and_stops(client):
    assert ask(client, max_tokens=2).stop_reason == "max_tokens"
    stopped = ask(client, stop_sequences=["Paris"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris"), stopped


@check
def thinking_is_a_block(client):
    message = ask(client, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert [block.type for block in message.content] == ["thinking", "text"] and message.content[0].thinking, message
    again = [*FRANCE, {"role": "assistant", "content": message.content}, {"role": "user", "content": "And of Italy?"}]
    assert ask(client, again).content, "its own blocks are history"


@check
def a_tool_from_the_call_to_the_answer(client):
    for streamed in (False, True):
        request = dict(model=MODEL, max_tokens=200, messages=ASK, tools=[WEATHER], tool_choice={"type": "any"}, thinking=OFF, extra_body=GREEDY)
        if streamed:
            with client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        calls = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == "tool_use" and calls[0].name == "get_weather" and isinstance(calls[0].input["city"], str), message
        result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "18 degrees, sunny"}]}
        history = [*ASK, {"role": "assistant", "content": message.content}, {"role": "user", "content": [
            *[{**result, "tool_use_id": call.id} for call in calls]]}]
        answer = ask(client, history, tools=[WEATHER])
        assert answer.content and answer.content[0].type == "text", answer


@check
def a_schema_is_satisfied(client):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"], "additionalProperties": False}
    answer = ask(client, max_tokens=200, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert set(json.loads(answer.content[0].text)) == {"city"}, answer


@check
def tokens_are_counted(client):
    count = client.messages.count_tokens(model=MODEL, messages=FRANCE, thinking=OFF).input_tokens
    message = ask(client)
    assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens, (count, message.usage)


@check
def what_agents_send_is_taken(client):
    beta = client.beta.messages.create(
        model=MODEL, max_tokens=16, messages=FRANCE, thinking=OFF, betas=["context-management-2025-06-27"], metadata={"user_id": "u"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, service_tier="auto")
    assert beta.content[0].text, beta


@check
def errors_are_the_packages_own(client):
    for error, more in [
        (anthropic.BadRequestError, {"messages": []}),
        (anthropic.BadRequestError, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        (anthropic.NotFoundError, {"model": "no-such-model"}),
    ]:
        try:
            ask(client, **more)
        except error as raised:
            assert raised.body["type"] == "error" and raised.body["error"]["message"], raised.body
        else:
            raise AssertionError(f"{more} was taken")


@check
def many_at_once(client):
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(client).content[0].text, range(16)))
    assert len(set(answers)) == 1 and "Paris" in answers[0], answers


if __name__ == "__main__":
    with Engine() as engine:
        client = anthropic.Anthropic(base_url=f"http://{engine.http}", api_key="none", max_retries=0, timeout=120)
        sys.exit(run_checks(client))
