"""Pictures through the official openai, anthropic, ollama and cohere packages, unmodified, to tiny models that see: answers are what the transformers library
computes of the same pictures (tests/data/vision), whichever client asks, from safetensors and from GGUF with a projector beside it.
usage: vision_client.py HANZO_ENGINE_BINARY"""
import base64, json, os, struct, sys, time, urllib.request, zlib

import anthropic, cohere, ollama, openai

from engine import ROOT, Engine, check, run_checks

DATA = os.path.join(ROOT, "tests/data/vision")
CASES = {"smolvlm": "smolvlm", "gemma3": "gemma3/text.gguf"}


def texture(width, height):
    """As make_vision.py draws it, a PNG."""
    def value(x, y, c):
        return min((x * (3 + c) + y * (5 - c)) % 256 // 2 + (60 if (x // 7 + y // 5 + c) % 2 == 0 else 0) + (x * 7919 + y * 104729 + c * 1299709) % 31, 255)
    lines = b"".join(b"\0" + bytes(value(x, y, c) for x in range(width) for c in range(3)) for y in range(height))
    def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


class Asked:
    """A model, a conversation, and what the library makes of it."""

    def __init__(self, engine, model, case, talk):
        self.engine, self.model = engine, model
        golden = json.load(open(os.path.join(DATA, case, "golden.json")))[talk]
        self.parts, self.prompt = golden["messages"][0]["parts"], golden["tokens"]
        # What comes before a control token: ends are not drawn where they are ignored, and others are not shown.
        special = {token["id"] for token in json.load(open(os.path.join(DATA, case, "tokenizer.json")))["added_tokens"] if token["special"]}
        end = next((at for at, token in enumerate(golden["greedy"]) if token in special), len(golden["greedy"]))
        assert end >= 5, (case, talk, golden["greedy"])
        self.text = self.words(golden["greedy"][:end]).rstrip("\ufffd")

    def words(self, tokens):
        request = urllib.request.Request(f"http://{self.engine.http}/detokenize", json.dumps({"model": self.model, "tokens": tokens}).encode(), {"content-type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))["prompt"]

    def pictures(self, swapped=False):
        parts = [texture(*part) if isinstance(part, list) else part for part in self.parts]
        if swapped:
            places = [at for at, part in enumerate(parts) if isinstance(part, bytes)]
            parts[places[0]], parts[places[1]] = parts[places[1]], parts[places[0]]
        return parts

    def openai(self, swapped=False):
        client = openai.OpenAI(base_url=f"http://{self.engine.http}/v1", api_key="none")
        content = [{"type": "image_url", "image_url": {"url": uri(part)}} if isinstance(part, bytes) else {"type": "text", "text": part} for part in self.pictures(swapped)]
        answer = client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": content}], max_tokens=32, temperature=0, extra_body={"ignore_eos": True})
        return answer.choices[0].message.content, answer.usage.prompt_tokens


def uri(picture):
    return "data:image/png;base64," + base64.b64encode(picture).decode()


@check
def answers_are_the_librarys(engine, models):
    told = []
    for case, model in ((case, models[case]) for case in CASES):
        for talk in (0, 1):
            asked = Asked(engine, model, case, talk)
            text, prompt_tokens = asked.openai()
            assert prompt_tokens == len(asked.prompt), (case, prompt_tokens, len(asked.prompt))
            assert asked.text and text.startswith(asked.text), (case, talk, text, asked.text)
        swapped, _ = asked.openai(swapped=True)
        assert swapped != text, (case, "two pictures swapped change nothing")
        told.append(f"{case} {prompt_tokens} tokens")
    return ", ".join(told)


@check
def every_client_gets_the_same(engine, models):
    for case, model in ((case, models[case]) for case in CASES):
        asked = Asked(engine, model, case, 0)
        picture, question = asked.pictures()
        plain, _ = asked.openai()
        client = openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none")
        item = {"role": "user", "content": [{"type": "input_image", "image_url": uri(picture)}, {"type": "input_text", "text": question}]}
        responded = client.responses.create(model=model, input=[item], max_output_tokens=32, temperature=0, store=False, extra_body={"ignore_eos": True}).output_text
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(picture).decode()}
        message = anthropic.Anthropic(base_url=f"http://{engine.http}", api_key="none").messages.create(model=model, max_tokens=32, messages=[
            {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": question}]}], extra_body={"temperature": 0, "ignore_eos": True})
        said = ollama.Client(host=engine.http).chat(model=model, messages=[{"role": "user", "content": question, "images": [picture]}], options={"temperature": 0, "num_predict": 32, "repeat_penalty": 1.0}).message.content
        assert responded == plain, (case, responded, plain)
        assert message.content[0].text == plain, (case, message.content[0].text, plain)
        assert said and plain.startswith(said.rstrip("\ufffd")), (case, said, plain)


@check
def texts_and_pictures_have_vectors_in_one_space(engine, models):
    model, picture = models["clip"], texture(40, 30)
    def embed(**body):
        request = urllib.request.Request(f"http://{engine.http}/v1/embeddings", json.dumps({"model": model, **body}).encode(), {"content-type": "application/json"})
        return [one["embedding"] for one in json.load(urllib.request.urlopen(request, timeout=60))["data"]]
    text, shown = embed(input=[{"text": "a cat"}, {"image": uri(picture)}])
    client = cohere.ClientV2(api_key="none", base_url=f"http://{engine.http}")
    answer = client.embed(model=model, images=[uri(picture)], input_type="image", embedding_types=["float"])
    assert answer.embeddings.float_ == [shown] and answer.meta.billed_units.images == 1, answer
    inputs = [{"content": [{"type": "text", "text": "a cat"}]}, {"content": [{"type": "image_url", "image_url": {"url": uri(picture)}}]}]
    answer = client.embed(model=model, inputs=inputs, input_type="search_document", embedding_types=["float"])
    assert answer.embeddings.float_ == [text, shown]
    try:
        both = [{"content": [part for one in inputs for part in one["content"]]}]
        client.embed(model=model, inputs=both, input_type="search_document")
        raise AssertionError("CLIP has no vector of both together")
    except cohere.errors.BadRequestError as error: assert error.body["error"]["code"] == "model_not_capable", error.body


@check
def what_is_only_named_is_not_fetched(engine, models):
    client = openai.OpenAI(base_url=f"http://{engine.http}/v1", api_key="none", max_retries=0)
    for url in (f"http://{engine.http}/health", "https://example.com/cat.png", "file:///etc/passwd", "data:image/png;base64,AAAA"):
        try:
            client.chat.completions.create(model=models["smolvlm"], messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
            raise AssertionError(url)
        except openai.BadRequestError as error:
            assert error.param and error.param.startswith("messages[0].content"), (url, error)


if __name__ == "__main__":
    served = dict(CASES, clip="clip")
    arguments = [argument for path in served.values() for argument in ("--model", os.path.join(DATA, path))]
    with Engine(*arguments, "--log-level", "warn") as engine:
        # The engine answers as soon as one model does.
        found, deadline = [], time.monotonic() + 60
        while len(found) < len(served):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
            found = [model["id"] for model in json.loads(engine.text("/v1/models"))["data"] if model["state"] == "ready"]
        models = {case: next(model for model in found if os.path.basename(os.path.splitext(path)[0]) in model) for case, path in served.items()}
        sys.exit(run_checks(engine, models))
