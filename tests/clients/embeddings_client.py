"""Clients of embeddings, unmodified, against `hanzo-engine serve` with all-MiniLM-L6-v2: openai, cohere, langchain's for OpenAI and
for Hugging Face, and the shapes of text-embeddings-inference by plain HTTP.
usage: embeddings_client.py HANZO_ENGINE_BINARY DIRECTORY_OF_THE_MODEL"""
import base64, json, math, sys, time, urllib.error, urllib.request
from pathlib import Path

import cohere, numpy, openai
from huggingface_hub import InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings

from engine import Engine, check, run_checks

DIMENSIONS = 384
TEXTS = ["A man is eating food.", "Someone has a meal.", "The stock market fell sharply.", " ", "Grüße, 世界 🦊", "word " * 100]


class Served:
    """The engine, the name under which it serves the model, and an openai client of it."""

    def __init__(self, engine):
        self.http = f"http://{engine.http}"
        self.client = openai.OpenAI(base_url=f"{self.http}/v1", api_key="none", max_retries=0, timeout=120)
        # The engine answers as soon as one model does.
        deadline = time.monotonic() + 60
        while True:
            (model,) = [model for model in self.client.models.list() if model.id != "hanzo-demo"]
            if model.state == "ready":
                break
            assert time.monotonic() < deadline, model
            time.sleep(0.05)
        self.model = model.id

    def embed(self, texts, **kwargs):
        return [datum.embedding for datum in self.client.embeddings.create(model=self.model, input=texts, **kwargs).data]

    def post(self, path, body):
        request = urllib.request.Request(self.http + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ok(self, path, body):
        status, answer = self.post(path, body)
        assert status == 200, (path, status, answer)
        return answer


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def near(a, b, tolerance=1e-6):
    assert len(a) == len(b), (len(a), len(b))
    worst = max(abs(x - y) for x, y in zip(a, b))
    assert worst <= tolerance, worst


@check
def openai_float_and_base64(served):
    answer = served.client.embeddings.create(model=served.model, input=TEXTS, encoding_format="float")
    assert answer.object == "list" and [datum.index for datum in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS), answer.usage
    vectors = [datum.embedding for datum in answer.data]
    assert all(len(vector) == DIMENSIONS and abs(math.sqrt(dot(vector, vector)) - 1) < 1e-5 for vector in vectors)
    # The package asks for base64 where nothing is said, and decodes it.
    for plain, packed in zip(vectors, served.embed(TEXTS)):
        near(plain, packed, 1e-8)
    alike, other = dot(vectors[0], vectors[1]), dot(vectors[0], vectors[2])
    assert alike > 0.4 > 0.2 > other, (alike, other)
    return f"{alike:.3f} for the same meaning, {other:.3f} for another"


@check
def one_is_as_many(served):
    together = served.embed(TEXTS)
    for text, vector in zip(TEXTS, together):
        (alone,) = served.embed(text)
        near(alone, vector, 0)
    many = [TEXTS[i % len(TEXTS)] for i in range(2048)]
    for i, vector in enumerate(served.embed(many)):
        near(vector, together[i % len(TEXTS)], 0)


@check
def vectors_are_those_of_sentence_transformers(served):
    folder = Path(__file__).parent.parent / "data" / "minilm"
    golden, words = json.loads((folder / "golden.json").read_text()), (folder / "prose.txt").read_text().split()
    texts = [text if isinstance(text, str) else " ".join(words[text[0] : text[0] + text[1]]) for text in golden["texts"]]
    expected = numpy.frombuffer(base64.b64decode(golden["vectors"]), "<f2").reshape(len(texts), golden["width"]).astype("f8")
    assert len(texts) == 500, len(texts)
    alone = numpy.array([served.embed(text, extra_body={"truncate": True})[0] for text in texts])
    cosines = (alone * expected).sum(1) / numpy.linalg.norm(expected, axis=1) / numpy.linalg.norm(alone, axis=1)
    assert cosines.min() >= 0.99999, (cosines.min(), texts[cosines.argmin()][:100])
    lengths = numpy.linalg.norm(alone, axis=1)
    assert abs(lengths - 1).max() < 1e-6, lengths
    together = numpy.array(served.embed(texts, extra_body={"truncate": True}))
    order = numpy.random.default_rng(1).permutation(len(texts))
    permuted = numpy.empty_like(together)
    permuted[order] = served.embed([texts[i] for i in order], extra_body={"truncate": True})
    assert (together == alone).all() and (permuted == alone).all(), "a vector depends on what is beside it"
    usage = served.client.embeddings.create(model=served.model, input=texts, extra_body={"truncate": True}).usage
    assert usage.prompt_tokens == sum(golden["tokens"]), (usage, sum(golden["tokens"]))
    return f"500 texts, cosine at least {cosines.min():.7f}; alone, together and permuted the same bits"


@check
def token_ids(served):
    ids = [served.ok("/tokenize", {"model": served.model, "prompt": text})["tokens"] for text in TEXTS[:3]]
    expected = served.embed(TEXTS[:3])
    for vector, text in zip(served.embed(ids), expected):
        near(vector, text, 0)
    near(served.embed(ids[0])[0], expected[0], 0)


@check
def fewer_dimensions(served):
    (whole,), (cut,) = served.embed(TEXTS[0]), served.embed(TEXTS[0], dimensions=128)
    length = math.sqrt(dot(whole[:128], whole[:128]))
    near(cut, [x / length for x in whole[:128]])


@check
def refusals_name_the_field(served):
    too_long = "word " * 2000
    for kwargs, param, word in [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": ["a", [1]]}, "input[1]", "mixed"),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": "a", "dimensions": DIMENSIONS + 1}, "dimensions", str(DIMENSIONS)),
        ({"input": ["a", too_long]}, "input[1]", ""),
        ({"input": "a", "extra_body": {"no_such_field": 1}}, "no_such_field", "unknown"),
    ]:
        try:
            served.client.embeddings.create(model=served.model, **kwargs)
            raise AssertionError(f"{str(kwargs)[:100]} was accepted")
        except openai.BadRequestError as error:
            assert error.param == param and word in str(error), (str(kwargs)[:100], error)
    cut = served.client.embeddings.create(model=served.model, input=too_long, extra_body={"truncate": True})
    assert len(cut.data[0].embedding) == DIMENSIONS


@check
def tei_shapes(served):
    expected = served.embed(TEXTS)
    for path in ("/embed", "/"):
        for vector, text in zip(served.ok(path, {"inputs": TEXTS}), expected, strict=True):
            near(vector, text)
    near(served.ok("/embed", {"inputs": TEXTS[0]})[0], expected[0])
    (tokens,) = served.ok("/embed_all", {"inputs": TEXTS[0]})
    mean = [sum(column) / len(tokens) for column in zip(*tokens)]
    length = math.sqrt(dot(mean, mean))
    near([x / length for x in mean], expected[0], 1e-5)
    cosines = [dot(expected[0], vector) for vector in expected[1:]]
    near(served.ok("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}), cosines, 1e-5)
    scores = served.ok("/v1/score", {"model": served.model, "text_1": TEXTS[0], "text_2": TEXTS[1:]})
    near([datum["score"] for datum in scores["data"]], cosines, 1e-5)
    info = json.load(urllib.request.urlopen(served.http + "/info", timeout=60))
    assert info["model_id"] == served.model and info["model_type"] == {"embedding": {"pooling": "mean"}}, info
    assert info["max_input_length"] == 256 and info["max_client_batch_size"] == 2048, info
    for path, body in [("/embed", {"inputs": ""}), ("/embed_sparse", {"inputs": "a"}), ("/predict", {"inputs": "a"}), ("/rerank", {"query": "a", "texts": ["b"]})]:
        status, answer = served.post(path, body)
        assert status == 400 and set(answer) == {"error", "error_type"}, (path, status, answer)


@check
def langchain_openai(served):
    embeddings = OpenAIEmbeddings(model=served.model, base_url=f"{served.http}/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0)
    for vector, text in zip(embeddings.embed_documents(TEXTS), served.embed(TEXTS), strict=True):
        near(vector, text, 1e-8)
    near(embeddings.embed_query(TEXTS[0]), served.embed(TEXTS[0])[0], 1e-8)


@check
def langchain_huggingface(served):
    embeddings = HuggingFaceEndpointEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2", huggingfacehub_api_token="none")
    # The class takes no address of its own; its client does.
    embeddings.client = InferenceClient(model=served.http, token="none")
    for vector, text in zip(embeddings.embed_documents(TEXTS), served.embed(TEXTS), strict=True):
        near(vector, text)
    near(embeddings.embed_query(TEXTS[0]), served.embed(TEXTS[0])[0])
    # The hub's client alone, with what TEI adds.
    vectors = embeddings.client.feature_extraction(["word " * 2000], normalize=True, truncate=True, truncation_direction="right")
    assert vectors.shape == (1, DIMENSIONS)


@check
def cohere_embeds(served):
    client = cohere.ClientV2(api_key="none", base_url=served.http)
    texts = [text for text in TEXTS if text.strip()]
    answer = client.embed(model=served.model, texts=texts, input_type="search_document", embedding_types=["float", "base64", "ubinary", "binary"])
    own = served.embed(texts)
    assert len(answer.embeddings.float_) == len(texts) and answer.texts == texts and answer.response_type == "embeddings_by_type"
    for vector, packed, bits, signed, expected in zip(answer.embeddings.float_, answer.embeddings.base64, answer.embeddings.ubinary, answer.embeddings.binary, own, strict=True):
        near(vector, expected)
        assert numpy.array_equal(numpy.frombuffer(base64.b64decode(packed), "<f4"), numpy.array(vector, "<f4"))
        assert numpy.array_equal(numpy.packbits(numpy.array(vector) > 0), numpy.array(bits)) and [bit - 128 for bit in bits] == signed
    assert answer.meta.billed_units.input_tokens > 0
    mixed = client.embed(model=served.model, inputs=[{"content": [{"type": "text", "text": texts[0]}]}], input_type="search_query", output_dimension=16)
    assert len(mixed.embeddings.float_[0]) == 16
    for wrong in ({"texts": texts, "embedding_types": ["int8"]}, {"images": ["data:image/png;base64,AAAA"]}, {"texts": texts, "max_tokens": 3}):
        try:
            client.embed(model=served.model, input_type="search_document", **wrong)
            raise AssertionError(wrong)
        except cohere.errors.BadRequestError as error:
            assert error.body["error"]["param"], error.body


@check
def cohere_is_told_what_the_model_is_for(served):
    try:
        cohere.ClientV2(api_key="none", base_url=served.http).rerank(model=served.model, query="a", documents=["b"])
        raise AssertionError("an embedder ranked")
    except cohere.errors.BadRequestError as error:
        assert error.body["error"]["code"] == "model_not_capable" and error.body["error"]["param"] == "model", error.body


if __name__ == "__main__":
    with Engine("--model", "hanzo-demo", "--model", sys.argv[2]) as engine:
        sys.exit(run_checks(Served(engine)))
