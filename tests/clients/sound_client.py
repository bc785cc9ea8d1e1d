"""Sounds in chats through the official openai package, unmodified, to tiny models that hear: answers are what the transformers library computes of
the same sounds (tests/data/audio), in chats and responses, by base64 and by URI.
usage: sound_client.py HANZO_ENGINE_BINARY"""
import base64, json, math, os, struct, sys, time, urllib.request

import openai

from engine import ROOT, Engine, check, run_checks

DATA = os.path.join(ROOT, "tests/data/audio")
CASES = ["qwen2_audio", "voxtral", "qwen3_asr"]


def wav(samples, pitch):
    """As make_audio.py's `sound`, a WAV file of floats."""
    def value(n):
        voice = 0.3 * math.sin(0.03 * (1 + pitch) * n + 3 * math.sin(0.0007 * n)) * (0.5 + 0.5 * math.sin(0.001 * n))
        return voice + 0.05 * ((n * n * 7919) % 1000 / 1000 - 0.5)
    data = struct.pack(f"<{samples}f", *map(value, range(samples)))
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32) + b"data" + struct.pack("<I", len(data)) + data


def part(sound, by_url=False):
    data = base64.b64encode(sound).decode()
    if by_url: return {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + data}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


class Asked:
    """A model, a conversation of one message, and what the library makes of it."""

    def __init__(self, engine, model, case, talk):
        self.engine, self.model = engine, model
        golden = json.load(open(os.path.join(DATA, case, "golden.json")))[talk]
        self.prompt = golden["tokens"]
        self.parts = [wav(*part) if isinstance(part, list) else part for part in golden["messages"][0]["parts"]]
        # What comes before a control token: ends are not drawn where they are ignored, and others are not shown.
        special = {token["id"] for token in json.load(open(os.path.join(DATA, case, "tokenizer.json")))["added_tokens"] if token["special"]}
        end = next((at for at, token in enumerate(golden["greedy"]) if token in special), len(golden["greedy"]))
        assert end >= 5, (case, talk, golden["greedy"])
        request = urllib.request.Request(f"http://{engine.http}/detokenize", json.dumps({"model": model, "tokens": golden["greedy"][:end]}).encode(), {"content-type": "application/json"})
        self.text = json.load(urllib.request.urlopen(request, timeout=60))["prompt"].rstrip("\ufffd")

    def ask(self, by_url=False):
        client = openai.OpenAI(base_url=f"http://{self.engine.http}/v1", api_key="none")
        content = [part(one, by_url) if isinstance(one, bytes) else {"type": "text", "text": one} for one in self.parts]
        answer = client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": content}], max_tokens=32, temperature=0, extra_body={"ignore_eos": True})
        return answer.choices[0].message.content, answer.usage.prompt_tokens


@check
def answers_are_the_librarys(engine, models):
    told = []
    for case, model in models.items():
        for talk in (0, 1):
            asked = Asked(engine, model, case, talk)
            text, prompt_tokens = asked.ask()
            assert prompt_tokens == len(asked.prompt), (case, prompt_tokens, len(asked.prompt))
            assert asked.text and text.startswith(asked.text), (case, talk, text, asked.text)
            assert asked.ask(by_url=True)[0] == text, (case, talk)
        told.append(f"{case} {prompt_tokens} tokens")
    return ", ".join(told)


@check
def responses_hear_the_same(engine, models):
    client = openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none")
    for case, model in models.items():
        asked = Asked(engine, model, case, 0)
        sound, question = asked.parts
        item = {"role": "user", "content": [part(sound), {"type": "input_text", "text": question}]}
        said = client.responses.create(model=model, input=[item], max_output_tokens=32, temperature=0, store=False, extra_body={"ignore_eos": True}).output_text
        assert said == asked.ask()[0], (case, said)


@check
def what_cannot_be_heard_is_refused_by_its_place(engine, models):
    client = openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0)
    for sound, says in ((b"no sound at all", "no sound file"), (wav(0, 1), "empty"), (wav(5000, 1)[:9000], "truncated"), (wav(40_000, 1), "longer than 2 seconds")):
        try:
            client.chat.completions.create(model=models["qwen2_audio"], messages=[{"role": "user", "content": [part(sound)]}])
            raise AssertionError(says)
        except openai.BadRequestError as error:
            assert error.param and error.param.startswith("messages[0].content[0]") and says in str(error), (says, error)


if __name__ == "__main__":
    arguments = [argument for case in CASES for argument in ("--model", os.path.join(DATA, case))]
    with Engine(*arguments, "--log-level", "warn") as engine:
        # The first model that is ready makes the engine ready. The others may not be listed yet.
        found, deadline = [], time.monotonic() + 60
        while len(found) < len(CASES):
            assert time.monotonic() < deadline, f"only {found} are listed"
            found = [model["id"] for model in json.loads(engine.text("/v1/models"))["data"]]
        models = {case: next(model for model in found if case in model) for case in CASES}
        sys.exit(run_checks(engine, models))
