"""The official openai package, unmodified, against `hanzo-engine serve` with the bundled demo model."""
import asyncio, sys

import openai
from pydantic import BaseModel

from engine import Engine, check, run_checks

MODEL = "hanzo-demo"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
STORY = [{"role": "user", "content": "Tell me a story about a fox named Mia."}]


def chat(client, messages=FRANCE, **kwargs):
    return client.chat.completions.create(model=MODEL, messages=messages, extra_body={**NO_THINK, **kwargs.pop("extra_body", {})}, **kwargs)


@check
def models_list(client):
    ids = [model.id for model in client.models.list()]
    assert ids == [MODEL], ids
    assert client.models.retrieve(MODEL).id == MODEL


@check
def chat_answers(client):
    answer = chat(client)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content, choice
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens == 19 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert answer.object == "chat.completion" and answer.id and answer.model == MODEL
    return repr(choice.message.content)


@check
def chat_streams_the_same(client):
    whole = chat(client).choices[0].message.content
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens == 19, chunks[-1]
    assert all(c.usage is None for c in chunks[:-1])
    assert all(c.usage is None for c in chat(client, stream=True))


@check
def thinking_is_told_apart(client):
    message = client.chat.completions.create(model=MODEL, messages=FRANCE).choices[0].message
    assert "<think>" not in message.content and "Paris" in message.content, message
    assert message.reasoning_content.strip(), message


@check
def completion_and_stream(client):
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=32, temperature=0)
    assert "Paris" in answer.choices[0].text and answer.choices[0].finish_reason == "stop", answer
    stream = client.completions.create(model=MODEL, prompt=prompt, max_tokens=32, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream if c.choices) == answer.choices[0].text
    two = client.completions.create(model=MODEL, prompt=[prompt, prompt], max_tokens=32, temperature=0)
    assert [c.index for c in two.choices] == [0, 1] and two.choices[0].text == two.choices[1].text


@check
def stop_string(client):
    whole = chat(client).choices[0].message.content
    cut = chat(client, stop=["Par", "never"])
    assert cut.choices[0].message.content == whole.split("Par")[0], (whole, cut)
    assert cut.choices[0].finish_reason == "stop"
    streamed = chat(client, stop="Par", stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == whole.split("Par")[0]


@check
def seeds(client):
    def text(seed):
        return chat(client, STORY, seed=seed, temperature=1, max_tokens=60).choices[0].message.content
    texts = {seed: text(seed) for seed in range(4)}
    assert all(text(seed) == texts[seed] for seed in texts), "the same seed gave different texts"
    assert len(set(texts.values())) > 1, texts
    return f"{len(set(texts.values()))} texts of 4 seeds"


@check
def max_tokens_is_length(client):
    answer = chat(client, STORY, max_tokens=5)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 5, answer
    answer = chat(client, STORY, max_completion_tokens=7)
    assert answer.usage.completion_tokens == 7, answer


@check
def two_choices(client):
    answer = chat(client, STORY, n=2, temperature=1, seed=5, max_tokens=40)
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage.completion_tokens > 40
    chunks = list(chat(client, STORY, n=2, temperature=1, seed=5, max_tokens=40, stream=True))
    for i in (0, 1):
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == i)
        assert text == answer.choices[i].message.content, (i, text, answer)


@check
def unknown_model(client):
    try:
        client.chat.completions.create(model="no-such-model", messages=FRANCE)
        raise AssertionError("no error")
    except openai.NotFoundError as error:
        assert MODEL in str(error) and error.code == "model_not_found", error
        return str(error)


@check
def logprobs_agree_with_greedy(client):
    answer = chat(client, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert "".join(bytes(t.bytes).decode() for t in content) == answer.choices[0].message.content
    assert all(t.top_logprobs[0].token == t.token and t.logprob <= 0 and len(t.top_logprobs) == 3 for t in content)


@check
def bad_fields_name_themselves(client):
    for kwargs, param in [({"temperature": 3}, "temperature"), ({"max_tokens": 0}, "max_tokens"), ({"top_logprobs": 2}, "top_logprobs"),
                          ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]"),
                          ({"response_format": {"type": "xml"}}, "response_format.type")]:
        try:
            chat(client, **kwargs)
            raise AssertionError(f"{kwargs} was accepted")
        except openai.BadRequestError as error:
            assert error.param == param, (kwargs, error)
    try:
        chat(client, [{"role": "user", "content": "word " * 5000}])
        raise AssertionError("no error")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and "maximum context length is 4096 tokens" in str(error), error
        assert "max_tokens" not in str(error), error
    assert chat(client, max_tokens=1_000_000).choices[0].finish_reason == "stop"


@check
def asynchronously_too(client):
    class City(BaseModel):
        city: str

    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0, timeout=60) as api:
            stream = await chat(api, stream=True)
            parsing = api.chat.completions.parse(model=MODEL, messages=FRANCE, response_format=City, max_tokens=60, temperature=0, extra_body=NO_THINK)
            whole, parsed, models, text, vectors = await asyncio.gather(
                chat(api), parsing, api.models.list(), api.completions.create(model=MODEL, prompt="one", max_tokens=4),
                api.embeddings.create(model=MODEL, input=["one", "two"]))
            said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            assert said == whole.choices[0].message.content == chat(client).choices[0].message.content, said
            assert isinstance(parsed.choices[0].message.parsed, City), parsed
            assert [model.id for model in models.data] == [MODEL] and text.usage.completion_tokens == 4
            assert vectors.data[0].embedding == client.embeddings.create(model=MODEL, input="one").data[0].embedding

    asyncio.run(all_at_once())


if __name__ == "__main__":
    with Engine() as engine:
        client = openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0, timeout=60)
        sys.exit(run_checks(client))
