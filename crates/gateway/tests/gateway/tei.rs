//! The routes of text-embeddings-inference.

use hanzo_engine_proto::v1::{self, Capability, EmbedOutput, ModelState, TruncateSide};
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    embeddings::start,
    fake::{Step, hello},
    http::{Answer, get, post},
    script,
    vectors::{DIMENSIONS, logit, sigmoid, stats, vector},
};

fn rows(answer: &Answer) -> Vec<Vec<f32>> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    serde_json::from_str(&answer.text).unwrap()
}

fn of(text: &str) -> Vec<f32> {
    vector(text.as_bytes(), DIMENSIONS, true)
}

/// Checks an error in TEI's shape.
fn refused(answer: &Answer, status: u16, error_type: &str, word: &str, what: &Value) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text);
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["error", "error_type"], "{what}");
    assert_eq!(body["error_type"], error_type, "{what}: {body}");
    assert!(body["error"].as_str().unwrap().contains(word), "{what}: {body}");
}

#[tokio::test]
async fn embed() {
    let server = start().await;
    for path in ["/embed", "/"] {
        assert_eq!(rows(&post(server.address, path, &json!({"inputs": "a"})).await), [of("a")]);
        let answer = post(server.address, path, &json!({"inputs": ["a", "b"]})).await;
        assert_eq!(rows(&answer), [of("a"), of("b")]);
        assert_eq!(
            rows(&post(server.address, path, &json!({"inputs": [[97], [98]]})).await),
            [of("a"), of("b")]
        );
    }
    // As huggingface_hub sends it.
    let answer = post(server.address, "/", &json!({"inputs": "a", "parameters": {}})).await;
    assert_eq!(rows(&answer), [of("a")]);
    let request = server.fake.embeds().remove(0);
    // TEI's default.
    assert_eq!(
        (request.normalize, request.truncate, request.model.as_str()),
        (Some(true), false, "owner/embeds")
    );
    let body = json!({"model": "m", "inputs": ["a"], "truncate": true, "truncation_direction": "Left",
        "normalize": false, "prompt_name": "query", "dimensions": 3});
    let answer = post(server.address, "/embed", &body).await;
    assert_eq!(rows(&answer), [vector(b"a", 3, false)]);
    let request = server.fake.embeds().into_iter().find(|r| r.model == "m").unwrap();
    assert_eq!(
        (request.normalize, request.truncate, request.truncate_side()),
        (Some(false), true, TruncateSide::Left)
    );
    assert_eq!((request.prompt_name.as_str(), request.dimensions), ("query", 3));
    assert_eq!(request.output(), EmbedOutput::Pooled);
}

#[tokio::test]
async fn embed_all_and_embed_sparse() {
    let server = start().await;
    let answer = post(server.address, "/embed_all", &json!({"inputs": ["ab", "c"]})).await;
    let tokens: Vec<Vec<Vec<f32>>> = serde_json::from_str(&answer.text).unwrap();
    let token = |b: u8| vector(&[b], DIMENSIONS, false);
    assert_eq!(tokens, [vec![token(b'a'), token(b'b')], vec![token(b'c')]]);
    let request = server.fake.embeds().remove(0);
    assert_eq!((request.output(), request.normalize), (EmbedOutput::Tokens, None));
    let answer = post(server.address, "/embed_sparse", &json!({"inputs": ["\n\u{14}", "\u{1e}"]})).await;
    let expected =
        json!([[{"index": 10, "value": 1.0}, {"index": 20, "value": 2.0}], [{"index": 30, "value": 3.0}]]);
    assert_eq!(answer.json(), expected);
    let request = server.fake.embeds().into_iter().find(|r| r.output() == EmbedOutput::Sparse).unwrap();
    assert_eq!(request.model, "owner/sparse");
    // What answers far more than it is asked goes in small calls.
    let before = server.fake.embeds().len();
    let answer = post(server.address, "/embed_all", &json!({"inputs": vec!["x".repeat(500); 40]})).await;
    assert_eq!(answer.json().as_array().unwrap().len(), 40);
    assert_eq!(server.fake.embeds().len() - before, 5);
    for path in ["/embed_all", "/embed_sparse"] {
        let body = json!({"inputs": "x", "dimensions": 3});
        refused(&post(server.address, path, &body).await, 400, "Validation", "dimensions", &body);
        let body = json!({"inputs": "x", "normalize": true});
        refused(&post(server.address, path, &body).await, 400, "Validation", "normalize", &body);
    }
}

#[tokio::test]
async fn rerank() {
    let server = start().await;
    for path in ["/rerank", "/"] {
        let answer = post(server.address, path, &json!({"query": "q", "texts": ["four", "a"]})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        assert_eq!(answer[0].as_object().unwrap().len(), 2);
        assert_eq!((&answer[0]["index"], &answer[1]["index"]), (&json!(1), &json!(0)));
        assert_eq!(answer[0]["score"].as_f64().unwrap() as f32, sigmoid(logit("a")));
    }
    let body = json!({"query": "q", "texts": ["four", "a"], "raw_scores": true, "return_text": true,
        "truncate": true, "truncation_direction": "Left"});
    let answer = post(server.address, "/rerank", &body).await.json();
    let expected = json!([{"index": 1, "text": "a", "score": logit("a")}, {"index": 0, "text": "four", "score": logit("four")}]);
    assert_eq!(answer, expected);
    let cut = |r: &v1::RerankRequest| r.truncate && r.truncate_side() == v1::TruncateSide::Left;
    assert!(server.fake.reranks().iter().any(|r| cut(r) && r.raw_scores));
    for (body, error_type, word) in [
        (json!({"query": "q", "texts": []}), "Empty", "texts: must not be empty"),
        (json!({"query": "", "texts": ["a"]}), "Empty", "query"),
        (json!({"texts": ["a"]}), "Validation", "query: required"),
        (json!({"query": "q", "texts": [5]}), "Validation", "texts[0]: expected a string"),
        (
            json!({"query": "q", "texts": ["a"], "truncation_direction": "Middle"}),
            "Validation",
            "truncation_direction",
        ),
        (json!({"query": "q", "texts": ["a"], "documents": ["a"]}), "Validation", "documents: unknown"),
        (json!({"query": "q", "texts": ["a"], "top_n": 1}), "Validation", "top_n: unknown"),
    ] {
        refused(&post(server.address, "/rerank", &body).await, 400, error_type, word, &body);
    }
    server.fake.obstruct(|_| Some(Step::Fail(Status::invalid_argument("documents[1]: too long"))));
    let body = json!({"query": "q", "texts": ["a", "b"]});
    refused(&post(server.address, "/rerank", &body).await, 400, "Validation", "texts[1]: too long", &body);
}

#[tokio::test]
async fn predict() {
    let server = start().await;
    let good = json!([{"score": 0.75, "label": "good"}, {"score": 0.25, "label": "bad"}]);
    let bad = json!([{"score": 0.875, "label": "bad"}, {"score": 0.125, "label": "good"}]);
    for (inputs, expected) in [
        (json!("even"), good.clone()),
        (json!("odd"), bad.clone()),
        (json!(["odd"]), bad.clone()),
        // A pair.
        (json!(["odd", "odd"]), good.clone()),
        (json!([["odd"], ["odd", "odd"]]), json!([bad, good])),
        (json!([["even"]]), json!([good])),
    ] {
        let answer = post(server.address, "/predict", &json!({"inputs": inputs})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json(), expected, "{inputs}");
    }
    let seen = server.fake.classifies();
    let pair = v1::ClassifyInput { text: "odd".to_owned(), pair: Some("odd".to_owned()) };
    assert!(seen.iter().any(|r| r.inputs == [pair.clone()]));
    let raw =
        post(server.address, "/predict", &json!({"inputs": "odd", "raw_scores": true, "truncate": true}))
            .await;
    assert_eq!(raw.json()[0], json!({"score": 8.75, "label": "bad"}));
    for (inputs, error_type, word) in [
        (json!([]), "Empty", "inputs"),
        (json!(""), "Empty", "inputs"),
        (json!([["a", ""]]), "Empty", "inputs[0][1]"),
        (json!(["a", "b", "c"]), "Validation", "has 3 elements"),
        (json!([["a", "b", "c"]]), "Validation", "inputs[0]: has 3 elements"),
        (json!([[]]), "Validation", "inputs[0]: has 0 elements"),
        (json!([["a"], "b"]), "Validation", "inputs[1]"),
        (json!([5]), "Validation", "inputs"),
        (json!(5), "Validation", "inputs"),
    ] {
        let body = json!({"inputs": inputs});
        refused(&post(server.address, "/predict", &body).await, 400, error_type, word, &body);
    }
}

#[tokio::test]
async fn similarity() {
    let server = start().await;
    let cosine = |a: &str, b: &str| of(a).iter().zip(of(b)).map(|(x, y)| x * y).sum::<f32>();
    let body = json!({"inputs": {"source_sentence": "a", "sentences": ["a", "b", "c"]},
        "parameters": {"truncate": true, "truncation_direction": "Right", "prompt_name": "p"}});
    let answer = post(server.address, "/similarity", &body).await;
    let got: Vec<f32> = serde_json::from_str(&answer.text).unwrap();
    let expected = [1.0, cosine("a", "b"), cosine("a", "c")];
    assert!(got.len() == 3 && got.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6), "{got:?}");
    let request = server.fake.embeds().remove(0);
    assert_eq!((request.truncate, request.prompt_name.as_str()), (true, "p"));
    for (body, error_type, word) in [
        (json!({}), "Validation", "inputs: required"),
        (json!({"inputs": {"sentences": ["a"]}}), "Validation", "inputs.source_sentence: required"),
        (json!({"inputs": {"source_sentence": "a", "sentences": []}}), "Empty", "inputs.sentences"),
        (json!({"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}), "Empty", "inputs.sentences[1]"),
        (
            json!({"inputs": {"source_sentence": "a", "sentences": ["b"], "x": 1}}),
            "Validation",
            "inputs.x: unknown",
        ),
        (
            json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"x": 1}}),
            "Validation",
            "parameters.x",
        ),
    ] {
        refused(&post(server.address, "/similarity", &body).await, 400, error_type, word, &body);
    }
    for (index, word) in [(0, "inputs.source_sentence: too long"), (2, "inputs.sentences[1]: too long")] {
        let status = Status::invalid_argument(format!("inputs[{index}]: too long"));
        server.fake.obstruct(move |_| Some(Step::Fail(status.clone())));
        refused(&post(server.address, "/similarity", &body).await, 400, "Validation", word, &body);
    }
}

#[tokio::test]
async fn errors_have_teis_body_and_everyones_status() {
    let server = start().await;
    for (body, error_type, word) in [
        (json!({}), "Validation", "inputs: required"),
        (json!({"inputs": ""}), "Empty", "inputs: must not be empty"),
        (json!({"inputs": []}), "Empty", "inputs: must not be empty"),
        (json!({"inputs": ["a", [1]]}), "Validation", "inputs[1]: cannot be mixed"),
        (json!({"inputs": "a", "mood": 1}), "Validation", "mood: unknown"),
        (json!({"inputs": "a", "parameters": {"mood": 1}}), "Validation", "parameters.mood: unknown"),
        (json!({"inputs": vec!["a"; 2049]}), "Validation", "2049"),
    ] {
        refused(&post(server.address, "/embed", &body).await, 400, error_type, word, &body);
    }
    for (status, http, error_type) in [
        (Status::resource_exhausted("full"), 429, "Overloaded"),
        (Status::unavailable("loading"), 503, "Unhealthy"),
        (Status::internal("x"), 500, "Backend"),
        (Status::deadline_exceeded("x"), 504, "Backend"),
        (Status::invalid_argument("inputs[0]: x"), 400, "Validation"),
        (Status::not_found("x"), 404, "Validation"),
    ] {
        server.fake.obstruct(move |_| Some(Step::Fail(status.clone())));
        let answer = post(server.address, "/embed", &json!({"inputs": "a"})).await;
        refused(&answer, http, error_type, "", &json!(http));
        assert_eq!(answer.header("retry-after").is_some(), matches!(http, 429 | 503));
    }
    // A body that is no JSON is of no shape yet, but the route is TEI's.
    let answer = crate::http::post_bytes(server.address, "/embed", "{").await;
    refused(&answer, 400, "Validation", "JSON", &json!("{"));
    // None that can do it.
    let server = crate::Server::start(script(hello)).await;
    server.fake.set_stats(Ok(stats(&[("owner/chats", ModelState::Ready, &[Capability::Chat])])));
    for (path, word) in [
        ("/embed", "embed"),
        ("/embed_sparse", "embed sparsely"),
        ("/predict", "classify"),
        ("/", "embed or classify"),
    ] {
        let answer = post(server.address, path, &json!({"inputs": "a"})).await;
        refused(
            &answer,
            400,
            "Validation",
            &format!("none that can {word} is loaded; loaded: owner/chats (chat)"),
            &json!(path),
        );
    }
}

#[tokio::test]
async fn info() {
    let server = start().await;
    let mut expected = json!({
        "model_id": "owner/embeds", "model_sha": null, "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": 99, "max_input_length": 256, "max_batch_tokens": null, "max_batch_requests": null,
        "max_client_batch_size": 2048, "auto_truncate": false, "tokenization_workers": null,
        "version": env!("CARGO_PKG_VERSION"), "sha": null, "docker_label": null,
    });
    assert_eq!(get(server.address, "/info").await.json(), expected);
    let labels = json!({"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}});
    for (capability, model_type) in [
        (Capability::Rerank, json!({"reranker": labels})),
        (Capability::Classify, json!({"classifier": labels})),
        (Capability::EmbedSparse, json!({"embedding": {"pooling": "splade"}})),
    ] {
        server.fake.set_stats(Ok(stats(&[("m", ModelState::Ready, &[capability])])));
        expected["model_id"] = json!("m");
        expected["model_type"] = model_type;
        assert_eq!(get(server.address, "/info").await.json(), expected);
    }
    server.fake.set_stats(Ok(stats(&[("m", ModelState::Ready, &[Capability::Chat])])));
    refused(&get(server.address, "/info").await, 400, "Validation", "loaded: m (chat)", &json!("info"));
}
