//! `/v1/rerank`, `/v1/score` and `/v1/classify` in the shapes of Jina, Cohere and vLLM.

use hanzo_engine_proto::v1;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    Server,
    embeddings::start,
    fake::{Step, hello},
    http::{Answer, post},
    script,
    vectors::{DIMENSIONS, all_kinds, logit, sigmoid, vector},
};

/// Checks a refusal in OpenAI's shape.
fn refused(answer: &Answer, param: &str, word: &str, what: &Value) {
    assert_eq!(answer.status, 400, "{what}: {}", answer.text);
    let error = answer.json()["error"].clone();
    let message = error["message"].as_str().unwrap();
    assert_eq!(error["param"].as_str(), Some(param), "{what}: {error}");
    assert!(message.starts_with(&format!("{param}: ")) && message.contains(word), "{what}: {message}");
}

fn number(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

#[tokio::test]
async fn ranking() {
    let server = start().await;
    for (path, version) in [("/v1/rerank", "1"), ("/rerank", "1"), ("/v2/rerank", "2")] {
        let body = json!({"model": "m", "query": "q", "documents": ["four", {"text": "a"}, "seventh", "b"]});
        let answer = post(server.address, path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let results = answer["results"].as_array().unwrap();
        let order: Vec<u64> = results.iter().map(|r| r["index"].as_u64().unwrap()).collect();
        // The best first; of equal ones the lower index.
        assert_eq!(order, [1, 3, 0, 2]);
        let scores: Vec<f32> = results.iter().map(|r| number(&r["relevance_score"])).collect();
        assert_eq!(scores, ["a", "b", "four", "seventh"].map(|d| sigmoid(logit(d))));
        assert!(results.iter().all(|r| r.as_object().unwrap().len() == 2));
        assert!(answer["id"].as_str().unwrap().starts_with("rerank-"));
        assert_eq!(answer["model"], "owner/ranks");
        let tokens = 4 + 1 + 7 + 1 + 4;
        assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
        let meta = json!({"api_version": {"version": version}, "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens}});
        assert_eq!(answer["meta"], meta);
    }
}

#[tokio::test]
async fn ranking_fields() {
    let server = start().await;
    let body = json!({"query": "q", "documents": ["four", "a", "seventh"], "top_n": 2, "return_documents": true,
        "raw_scores": true, "instruction": "i", "truncate": "START", "priority": 5, "keep_alive": 0, "user": "u"});
    let answer = post(server.address, "/v1/rerank", &body).await.json();
    let expected = json!([{"index": 1, "relevance_score": logit("a"), "document": {"text": "a"}},
        {"index": 0, "relevance_score": logit("four"), "document": {"text": "four"}}]);
    assert_eq!(answer["results"], expected);
    let request = server.fake.reranks().remove(0);
    let expected = v1::RerankRequest {
        model: "owner/ranks".to_owned(),
        query: "q".to_owned(),
        documents: vec!["four".to_owned(), "a".to_owned(), "seventh".to_owned()],
        top_n: 0,
        instruction: "i".to_owned(),
        raw_scores: true,
        truncate: true,
        request_id: request.request_id.clone(),
        priority: 5,
        truncate_side: v1::TruncateSide::Left.into(),
        keep_alive: Some("0".to_owned()),
        client: "127.0.0.1".to_owned(),
    };
    assert_eq!(request, expected);
}

#[tokio::test]
async fn many_documents_are_several_calls_and_one_order() {
    let server = start().await;
    let documents: Vec<String> = (0..1000).map(|i| "x".repeat(1 + (i * 7919) % 97)).collect();
    let body = json!({"query": "q", "documents": documents});
    let answer = post(server.address, "/v1/rerank", &body).await.json();
    let mut order: Vec<usize> = (0..1000).collect();
    order.sort_by_key(|i| documents[*i].len());
    let got: Vec<u64> =
        answer["results"].as_array().unwrap().iter().map(|r| r["index"].as_u64().unwrap()).collect();
    assert_eq!(got, order.iter().map(|i| *i as u64).collect::<Vec<_>>());
    assert_eq!(server.fake.reranks().len(), 4);
    assert_eq!(answer["meta"]["billed_units"]["search_units"], 10);
    server.fake.obstruct(|id| {
        id.ends_with("/3").then(|| Step::Fail(Status::invalid_argument("documents[2]: too long")))
    });
    refused(&post(server.address, "/v1/rerank", &body).await, "documents[770]", "too long", &json!("call 3"));
}

#[tokio::test]
async fn what_cannot_be_ranked() {
    let server = Server::with(script(hello), |config| config.embedding_inputs_max = 3).await;
    server.fake.set_stats(Ok(all_kinds()));
    for (body, param, word) in [
        (json!({"documents": ["a"]}), "query", "required"),
        (json!({"query": "", "documents": ["a"]}), "query", "empty"),
        (json!({"query": "q"}), "documents", "required"),
        (json!({"query": "q", "documents": []}), "documents", "empty"),
        (json!({"query": "q", "documents": "a"}), "documents", "array"),
        (json!({"query": "q", "documents": ["a", 5]}), "documents[1]", "string"),
        (json!({"query": "q", "documents": [{"title": "a"}]}), "documents[0].text", "required"),
        (json!({"query": "q", "documents": [{"text": "a", "title": "t"}]}), "documents[0].title", "unknown"),
        (json!({"query": "q", "documents": ["a", "b", "c", "d"]}), "documents", "has 4 elements, at most 3"),
        (json!({"query": "q", "documents": ["a"], "top_n": -1}), "top_n", ""),
        (
            json!({"query": "q", "documents": ["a"], "max_tokens_per_doc": 99}),
            "max_tokens_per_doc",
            "not supported",
        ),
        (
            json!({"query": "q", "documents": ["a"], "max_chunks_per_doc": 9}),
            "max_chunks_per_doc",
            "not supported",
        ),
        (json!({"query": "q", "documents": ["a"], "rank_fields": ["t"]}), "rank_fields", "not supported"),
        (json!({"query": "q", "documents": ["a"], "truncate": "MIDDLE"}), "truncate", "START"),
        (
            json!({"query": "q", "documents": ["a"], "truncate": "END", "truncation_side": "left"}),
            "truncation_side",
            "another side",
        ),
        (json!({"query": "q", "documents": ["a"], "mood": 1}), "mood", "unknown"),
    ] {
        for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
            refused(&post(server.address, path, &body).await, param, word, &body);
        }
    }
    assert!(server.fake.reranks().is_empty());
}

fn scores(answer: &Answer) -> Vec<f32> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    assert_eq!(body["object"], "list");
    assert!(body["id"].as_str().unwrap().starts_with("score-"));
    let data = body["data"].as_array().unwrap();
    for (i, datum) in data.iter().enumerate() {
        assert_eq!((&datum["index"], &datum["object"]), (&json!(i), &json!("score")));
    }
    data.iter().map(|datum| number(&datum["score"])).collect()
}

#[tokio::test]
async fn scores_of_a_reranker() {
    let server = start().await;
    let score = |body: Value| async move { body };
    let of = |documents: &[&str]| documents.iter().map(|d| sigmoid(logit(d))).collect::<Vec<_>>();
    for body in [
        json!({"text_1": "q", "text_2": ["a", "four"]}),
        json!({"text_1": ["q"], "text_2": ["a", "four"]}),
        json!({"queries": "q", "documents": ["a", "four"]}),
        json!({"model": "owner/ranks", "text_1": ["q", "r"], "text_2": ["a", "four"]}),
    ] {
        let answer = post(server.address, "/v1/score", &score(body).await).await;
        assert_eq!(scores(&answer), of(&["a", "four"]));
        assert_eq!(answer.json()["model"], "owner/ranks");
        assert_eq!(answer.json()["usage"]["total_tokens"], 1 + 4 + 2);
    }
    // Texts with the same query are one call, and each score is at its pair's place.
    let before = server.fake.reranks().len();
    let body = json!({"text_1": ["q", "r", "q", "q"], "text_2": ["a", "bb", "ccc", "dddd"]});
    let answer = post(server.address, "/score", &body).await;
    assert_eq!(scores(&answer), of(&["a", "bb", "ccc", "dddd"]));
    assert_eq!(server.fake.reranks().len() - before, 2);
    let raw =
        post(server.address, "/v1/score", &json!({"text_1": "q", "text_2": "a", "raw_scores": true})).await;
    assert_eq!(scores(&raw), [logit("a")]);
}

#[tokio::test]
async fn scores_of_an_embedder_are_cosines() {
    let server = start().await;
    let cosine = |a: &str, b: &str| {
        let vector = |text: &str| vector(text.as_bytes(), DIMENSIONS, true);
        vector(a).iter().zip(vector(b)).map(|(x, y)| x * y).sum::<f32>()
    };
    let near = |got: &[f32], expected: &[f32]| {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {expected:?}");
    };
    let model = "owner/embeds";
    let one = json!({"model": model, "text_1": "q", "text_2": ["q", "b", "c"]});
    near(&scores(&post(server.address, "/v1/score", &one).await), &[1.0, cosine("q", "b"), cosine("q", "c")]);
    let pairs = json!({"model": model, "text_1": ["a", "b"], "text_2": ["c", "d"]});
    near(&scores(&post(server.address, "/v1/score", &pairs).await), &[cosine("a", "c"), cosine("b", "d")]);
    // Over several calls.
    let second: Vec<String> = (0..600).map(|i| format!("t{i}")).collect();
    let many = json!({"model": model, "text_1": "q", "text_2": second});
    let expected: Vec<f32> = second.iter().map(|t| cosine("q", t)).collect();
    near(&scores(&post(server.address, "/v1/score", &many).await), &expected);
    let raw = json!({"model": model, "text_1": "q", "text_2": "a", "raw_scores": true});
    refused(&post(server.address, "/v1/score", &raw).await, "raw_scores", "cosine", &raw);
    // An error is at the text that it is of.
    for (index, body, param) in
        [(0, &one, "text_1"), (2, &one, "text_2[1]"), (2, &pairs, "text_1[1]"), (3, &pairs, "text_2[1]")]
    {
        let status = Status::invalid_argument(format!("inputs[{index}]: too long"));
        server.fake.obstruct(move |_| Some(Step::Fail(status.clone())));
        refused(&post(server.address, "/v1/score", body).await, param, "too long", body);
    }
}

#[tokio::test]
async fn what_cannot_be_scored() {
    let server = start().await;
    for (body, param, word) in [
        (json!({}), "text_1", "required"),
        (json!({"text_1": "a"}), "text_2", "required"),
        (json!({"queries": "a"}), "documents", "required"),
        (json!({"text_1": "", "text_2": "b"}), "text_1", "empty"),
        (json!({"text_1": "a", "text_2": []}), "text_2", "empty"),
        (json!({"text_1": "a", "text_2": ["b", ""]}), "text_2[1]", "empty"),
        (json!({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}), "text_1", "has 2 texts and text_2 has 3"),
        (json!({"text_1": ["a", "b"], "text_2": "c"}), "text_1", "has 2 texts and text_2 has 1"),
        (json!({"text_1": 5, "text_2": "c"}), "text_1", "string"),
        (json!({"text_1": "a", "text_2": "b", "documents": "c"}), "documents", "means the same as text_2"),
        (json!({"text_1": "a", "text_2": "b", "mood": 1}), "mood", "unknown"),
    ] {
        refused(&post(server.address, "/v1/score", &body).await, param, word, &body);
    }
}

#[tokio::test]
async fn classes() {
    let server = start().await;
    for path in ["/v1/classify", "/classify"] {
        let answer = post(server.address, path, &json!({"input": ["even", "odd"]})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        assert!(answer["id"].as_str().unwrap().starts_with("classify-"));
        assert_eq!(answer["model"], "owner/classifies");
        let data = json!([{"index": 0, "label": "good", "probs": [0.25, 0.75], "num_classes": 2},
            {"index": 1, "label": "bad", "probs": [0.875, 0.125], "num_classes": 2}]);
        assert_eq!(answer["data"], data);
        assert_eq!(answer["usage"], json!({"prompt_tokens": 7, "total_tokens": 7}));
    }
    let body = json!({"model": "m", "input": "odd", "raw_scores": true, "truncate": "START", "priority": 3});
    let answer = post(server.address, "/v1/classify", &body).await.json();
    assert_eq!(answer["data"][0]["probs"], json!([8.75, 1.25]));
    let request = server.fake.classifies().into_iter().find(|r| r.model == "m").unwrap();
    assert_eq!(
        (request.truncate, request.truncate_side(), request.priority),
        (true, v1::TruncateSide::Left, 3)
    );
    for (body, param, word) in [
        (json!({}), "input", "required"),
        (json!({"input": []}), "input", "empty"),
        (json!({"input": ""}), "input", "empty"),
        (json!({"input": ["a", ""]}), "input[1]", "empty"),
        (json!({"input": [1, 2]}), "input[0]", "string"),
        (json!({"input": 5}), "input", "string"),
        (json!({"input": "a", "mood": 1}), "mood", "unknown"),
    ] {
        refused(&post(server.address, "/v1/classify", &body).await, param, word, &body);
    }
}
