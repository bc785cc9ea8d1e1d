"""The official cohere package, unmodified, and rerankers' other shapes by plain HTTP, against `engine-gateway`."""
import json, sys, urllib.error, urllib.request

import cohere

from engine import check, run_checks
from scripted_engine import Gateway

QUERY, DOCUMENTS = "Which is the longest?", ["short", "the longest of all of them", "of some length", "short"]
ORDER = [1, 2, 0, 3]


def post(gateway, path, body):
    request = urllib.request.Request(f"http://{gateway.http}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@check
def cohere_v2(gateway):
    client = cohere.ClientV2(api_key="none", base_url=f"http://{gateway.http}")
    answer = client.rerank(model="scripted", query=QUERY, documents=DOCUMENTS, top_n=3)
    assert [result.index for result in answer.results] == ORDER[:3], answer
    assert all(0 < result.relevance_score < 1 for result in answer.results)
    assert answer.id.startswith("rerank-") and answer.meta.api_version.version == "2" and answer.meta.billed_units.search_units == 1
    try:
        client.rerank(model="scripted", query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=100)
        raise AssertionError("a field that is not honoured was accepted")
    except cohere.errors.BadRequestError as error:
        assert "max_tokens_per_doc" in str(error.body), error


@check
def cohere_v1(gateway):
    client = cohere.Client(api_key="none", base_url=f"http://{gateway.http}")
    answer = client.rerank(model="scripted", query=QUERY, documents=[{"text": text} for text in DOCUMENTS], return_documents=True)
    assert [(result.index, result.document.text) for result in answer.results] == [(i, DOCUMENTS[i]) for i in ORDER], answer
    assert answer.meta.api_version.version == "1"


@check
def plain_http(gateway):
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        status, answer = post(gateway, path, {"model": "scripted", "query": QUERY, "documents": DOCUMENTS, "raw_scores": True})
        assert status == 200 and [result["index"] for result in answer["results"]] == ORDER, answer
        assert [result["relevance_score"] for result in answer["results"]] == [len(DOCUMENTS[i]) for i in ORDER]
    status, answer = post(gateway, "/rerank", {"query": QUERY, "texts": DOCUMENTS, "return_text": True})
    assert status == 200 and [(rank["index"], rank["text"]) for rank in answer] == [(i, DOCUMENTS[i]) for i in ORDER], answer
    status, answer = post(gateway, "/v1/score", {"model": "scripted", "text_1": QUERY, "text_2": DOCUMENTS})
    assert status == 200 and [datum["index"] for datum in answer["data"]] == [0, 1, 2, 3], answer
    status, answer = post(gateway, "/predict", {"inputs": [["a text"], ["a", "pair"]]})
    assert status == 200 and [[p["label"] for p in ps] for ps in answer] == [["long", "short"]] * 2, answer
    status, answer = post(gateway, "/rerank", {"query": QUERY, "texts": []})
    assert (status, answer["error_type"]) == (400, "Empty"), answer


if __name__ == "__main__":
    with Gateway() as gateway:
        sys.exit(run_checks(gateway))
