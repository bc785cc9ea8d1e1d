//! Tests of Embed, Rerank and Classify over gRPC, with tiny encoders and the demo model.

use std::path::Path;

use super::*;

/// Tiny checkpoint in `tests/data/encoders`.
fn tiny(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/encoders").join(name);
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

fn golden(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(Path::new(&tiny(name)).join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn texts(model: &str, texts: &[&str]) -> v1::EmbedRequest {
    let input =
        |text: &&str| v1::EmbedInput { input: Some(v1::embed_input::Input::Text((*text).to_owned())) };
    v1::EmbedRequest { model: model.into(), inputs: texts.iter().map(input).collect(), ..Default::default() }
}

async fn embed(rig: &Rig, request: v1::EmbedRequest) -> Result<v1::EmbedResponse, Status> {
    in_time(rig.client().embed(request)).await.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_golden_and_come_in_order() {
    let rig = Rig::start().await;
    let loaded = rig.load(&tiny("bert-mean"), "bert").await.unwrap().model.unwrap();
    let embedder = loaded.embedder.unwrap();
    assert_eq!((embedder.pooling.as_str(), embedder.normalizes), ("mean", true));
    assert_eq!(loaded.capabilities, [i32::from(v1::Capability::Embed)]);
    let golden = golden("bert-mean");
    let plain = golden["embeddings"].as_array().unwrap().iter().filter(|case| {
        ["prompt", "prompt_name", "truncate_dim", "normalize"].iter().all(|key| case.get(key).is_none())
    });
    let cases: Vec<(&str, Vec<f32>)> = plain
        .map(|case| {
            let vector = case["vector"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32);
            (case["text"].as_str().unwrap(), vector.collect())
        })
        .collect();
    assert!(cases.len() >= 3);
    // More than two batches, repeating the cases.
    let many: Vec<&str> = (0..300).map(|i| cases[i % cases.len()].0).collect();
    let request = v1::EmbedRequest { truncate: true, ..texts("bert", &many) };
    let answer = embed(&rig, request.clone()).await.unwrap();
    assert_eq!((answer.embeddings.len(), answer.dimensions), (300, embedder.dimensions));
    assert_eq!(answer.prompt_tokens, answer.embeddings.iter().map(|one| one.tokens).sum::<u32>());
    for (index, found) in answer.embeddings.iter().enumerate() {
        let expected = &cases[index % cases.len()].1;
        let apart = found.values.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "input {index} is {apart} apart");
    }
    let packed = embed(&rig, v1::EmbedRequest { packed: true, ..request }).await.unwrap();
    for (packed, plain) in packed.embeddings.iter().zip(&answer.embeddings) {
        let bytes: Vec<u8> = plain.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(packed.values.is_empty() && packed.packed == bytes);
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named() {
    let rig = Rig::start().await;
    rig.load(&tiny("bert-mean"), "bert").await.unwrap();
    rig.load(&tiny("bert-classifier"), "classifier").await.unwrap();
    let long = "word ".repeat(500);
    let none: &[&str] = &[];
    for (request, start) in [
        (texts("bert", none), "inputs: "),
        (texts("bert", &["a", ""]), "inputs[1]: "),
        (texts("bert", &["a", "b", &long]), "inputs[2]: "),
        (v1::EmbedRequest { dimensions: 1000, ..texts("bert", &["a"]) }, "dimensions: "),
        (v1::EmbedRequest { prompt_name: "none".into(), ..texts("bert", &["a"]) }, "prompt_name: "),
        (v1::EmbedRequest { instruction: "none".into(), ..texts("bert", &["a"]) }, "instruction: "),
        (v1::EmbedRequest { output: 2, dimensions: 3, ..texts("bert", &["a"]) }, "dimensions: "),
        (v1::EmbedRequest { inputs: vec![v1::EmbedInput::default()], ..texts("bert", none) }, "inputs[0]: "),
    ] {
        check_refused(&embed(&rig, request).await.unwrap_err(), Code::InvalidArgument, start);
    }
    for (request, can) in [(texts("classifier", &["a"]), "classify texts")] {
        let refused = embed(&rig, request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        assert!(refused.message().contains(can), "{refused:?}");
    }
    let sparse = v1::EmbedRequest { output: 3, ..texts("bert", &["a"]) };
    assert_eq!(embed(&rig, sparse).await.unwrap_err().code(), Code::FailedPrecondition);
    let generate = v1::InferRequest { model: "bert".into(), ..text("a", 1) };
    let refused = rig.infer(generate).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("embed texts"), "{refused:?}");
    let load = v1::LoadRequest { model: tiny("roberta"), kv_bytes: 1 << 20, ..Default::default() };
    let refused = rig.client().load(load).await.unwrap_err();
    assert!(refused.message().contains("kv_bytes"), "{refused:?}");
    // The refused requests did no harm.
    assert_eq!(embed(&rig, texts("bert", &["a"])).await.unwrap().embeddings.len(), 1);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_ranked_and_texts_classified() {
    let rig = Rig::start().await;
    rig.load(&tiny("bert-crossencoder"), "ranker").await.unwrap();
    rig.load(&tiny("bert-classifier"), "classifier").await.unwrap();
    let documents: Vec<String> = (0..100).map(|i| format!("document number {i}")).collect();
    let request = v1::RerankRequest {
        model: "ranker".into(),
        query: "which document?".into(),
        documents: documents.clone(),
        ..Default::default()
    };
    let all = rig.client().rerank(request.clone()).await.unwrap().into_inner();
    assert_eq!(all.results.len(), 100);
    assert!(all.results.is_sorted_by(|a, b| a.score >= b.score));
    assert!(all.results.iter().all(|result| (0.0..=1.0).contains(&result.score)));
    let mut found: Vec<u32> = all.results.iter().map(|result| result.index).collect();
    found.sort_unstable();
    assert_eq!(found, (0..100).collect::<Vec<u32>>());
    let few = v1::RerankRequest { top_n: 3, raw_scores: true, ..request.clone() };
    let few = rig.client().rerank(few).await.unwrap().into_inner();
    let of =
        |response: &v1::RerankResponse| response.results.iter().map(|r| r.index).take(3).collect::<Vec<_>>();
    assert_eq!((few.results.len(), of(&few)), (3, of(&all)));
    let one_empty = vec!["a".into(), String::new()];
    for (refused, begins) in [
        (v1::RerankRequest { documents: one_empty, ..request.clone() }, "documents[1]: "),
        (v1::RerankRequest { documents: Vec::new(), ..request.clone() }, "documents: "),
        (v1::RerankRequest { query: String::new(), ..request.clone() }, "query: "),
    ] {
        let refused = rig.client().rerank(refused).await.unwrap_err();
        check_refused(&refused, Code::InvalidArgument, begins);
    }
    let inputs = ["a", "b", ""].map(|text| v1::ClassifyInput { text: text.into(), pair: None }).to_vec();
    let refused = v1::ClassifyRequest { model: "classifier".into(), inputs, ..Default::default() };
    let refused = rig.client().classify(refused).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "inputs[2]: ");
    let refused = v1::RerankRequest { instruction: "be kind".into(), ..request.clone() };
    let refused = rig.client().rerank(refused).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "instruction: ");

    // Inputs that are too long are refused, or truncated at the requested side; a decoder's always at its end.
    let long = format!("The quick brown fox. {} The lazy dog.", "Gravity is a force. ".repeat(100));
    let documents =
        vec![long, "The quick brown fox. Gravity".into(), "Gravity is a force. The lazy dog.".into()];
    let request = v1::RerankRequest { documents, raw_scores: true, ..request };
    let refused = rig.client().rerank(request.clone()).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "documents[0]: ");
    let mut cut = Vec::new();
    for side in [v1::TruncateSide::Right, v1::TruncateSide::Left] {
        let request = v1::RerankRequest { truncate: true, truncate_side: side.into(), ..request.clone() };
        let scored = rig.client().rerank(request).await.unwrap().into_inner();
        cut.push(scored.results.iter().find(|result| result.index == 0).unwrap().score);
    }
    assert_ne!(cut[0], cut[1], "the same is kept on either side");
    rig.load(&tiny("qwen3-reranker"), "decoder").await.unwrap();
    let left = v1::TruncateSide::Left.into();
    let request =
        v1::RerankRequest { model: "decoder".into(), truncate: true, truncate_side: left, ..request };
    let refused = rig.client().rerank(request).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "truncate_side: ");

    let golden = golden("bert-classifier");
    let case = &golden["scores"][0];
    let input = v1::ClassifyInput { text: case["text"].as_str().unwrap().into(), pair: None };
    let request =
        v1::ClassifyRequest { model: "classifier".into(), inputs: vec![input], ..Default::default() };
    let answer = rig.client().classify(request).await.unwrap().into_inner();
    let labels = &answer.classifications[0].labels;
    let total: f32 = labels.iter().map(|label| label.score).sum();
    assert!((total - 1.0).abs() < 1e-5 && labels.iter().all(|label| !label.label.is_empty()));
    for (label, expected) in labels.iter().zip(case["probabilities"].as_array().unwrap()) {
        assert!((f64::from(label.score) - expected.as_f64().unwrap()).abs() < 1e-4, "{label:?}");
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decoder_embeds_beside_its_answers() {
    let rig = Rig::start().await;
    let alone = embed(&rig, texts("", &["The sea is blue.", "The sky."])).await.unwrap();
    let mut stream = rig.infer(endless(400)).await.unwrap();
    begun(&mut stream).await;
    let beside = embed(&rig, texts("", &["The sea is blue.", "The sky."])).await.unwrap();
    assert_eq!(alone.embeddings, beside.embeddings);
    drop(stream);
    rig.until("the blocks are free", async |rig| rig.stats("").await.kv_blocks_used == 0).await;
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_stops_its_inputs() {
    let rig = Rig::start().await;
    // Slow enough that the worker has the second batch when the first step ends, and that the client disconnects
    // long before the last one.
    rig.device.conduct(Conduct::Slow(Duration::from_millis(200)));
    let many = vec!["a text of some words that is read slowly"; 20_000];
    tokio::select! {
        answer = embed(&rig, texts("", &many)) => panic!("20,000 slow inputs are done: {answer:?}"),
        () = rig.until("some are read", async |rig| rig.stats("").await.kv_blocks_used > 0) => {}
    }
    rig.until("the worker has let go", async |rig| {
        let stats = rig.stats("").await;
        stats.kv_blocks_used == 0 && stats.requests_cancelled > 0
    })
    .await;
    rig.device.conduct(Conduct::Run);
    assert_eq!(embed(&rig, texts("", &["a"])).await.unwrap().embeddings.len(), 1);
    // Counts requests, not their batches.
    assert_eq!(counted(&rig).await, (1, 1, 0));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_many_batches_is_counted_once() {
    let rig = Rig::start().await;
    let many = vec!["a text of some words"; 300];
    assert_eq!(embed(&rig, texts("", &many)).await.unwrap().embeddings.len(), 300);
    assert_eq!(counted(&rig).await, (1, 0, 0));
    // Refused after the first batches: counts neither as finished nor as failed.
    let long = "word ".repeat(10_000);
    let bad: Vec<&str> = many.iter().copied().chain([long.as_str()]).collect();
    check_refused(&embed(&rig, texts("", &bad)).await.unwrap_err(), Code::InvalidArgument, "inputs[300]: ");
    assert_eq!(counted(&rig).await, (1, 0, 0));
    rig.device.conduct(Conduct::Slow(Duration::from_millis(200)));
    let mut late = tonic::Request::new(texts("", &many));
    // Not `set_timeout`, which would also make the client end the call.
    late.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    check_refused(&rig.client().embed(late).await.unwrap_err(), Code::DeadlineExceeded, "");
    assert_eq!(counted(&rig).await, (1, 0, 1));
    rig.device.conduct(Conduct::Run);
    rig.stopped().await;
}

/// Requests that finished, that clients cancelled, and that failed.
async fn counted(rig: &Rig) -> (u64, u64, u64) {
    let stats = rig.stats("").await;
    (stats.requests_finished, stats.requests_cancelled, stats.requests_failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_ends_its_embeddings_with_an_error() {
    let rig = Rig::start().await;
    rig.device.conduct(Conduct::PanicIn(1));
    let failed = embed(&rig, texts("", &["a"])).await.unwrap_err();
    assert!(matches!(failed.code(), Code::Aborted | Code::Unavailable), "{failed:?}");
    rig.until("it is back", async |rig| embed(rig, texts("", &["a"])).await.is_ok()).await;
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_name_goes_to_the_only_model_that_can() {
    let rig = Rig::start().await;
    rig.load(&tiny("bert-mean"), "bert").await.unwrap();
    rig.load(&tiny("bert-classifier"), "classifier").await.unwrap();
    for request in [chat(question("Hello!"), 2), text("Once", 2)] {
        assert_eq!(started(&rig.events(request).await).model, crate::DEMO_MODEL);
    }
    // The built-in model can embed, as any decoder can, but the other is a dedicated embedding model.
    assert_eq!(embed(&rig, texts("", &["a"])).await.unwrap().model, "bert");
    let inputs = vec![v1::ClassifyInput { text: "a".into(), pair: None }];
    let classify = v1::ClassifyRequest { inputs, ..Default::default() };
    let answer = in_time(rig.client().classify(classify)).await.unwrap().into_inner();
    assert_eq!(answer.model, "classifier");
    let input = Some(v1::tokenize_request::Input::Chat(question("a")));
    let tokenize = v1::TokenizeRequest { input, pieces: true, ..Default::default() };
    let tokens = in_time(rig.client().tokenize(tokenize)).await.unwrap().into_inner();
    assert_eq!(tokens.pieces.concat(), tokens.text.as_bytes());
    // Ids are returned even for a long text; pieces only for a shorter one.
    let many = "é".repeat(crate::limits::TOKEN_PIECES_MAX + 1);
    let input = Some(v1::tokenize_request::Input::Text(many));
    let tokenize = |pieces| v1::TokenizeRequest {
        model: crate::DEMO_MODEL.to_owned(),
        input: input.clone(),
        pieces,
        ..Default::default()
    };
    let refused = in_time(rig.client().tokenize(tokenize(true))).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "pieces: ");
    assert!(in_time(rig.client().tokenize(tokenize(false))).await.unwrap().into_inner().pieces.is_empty());

    let rerank = v1::RerankRequest { query: "a".into(), documents: vec!["b".into()], ..Default::default() };
    let none = in_time(rig.client().rerank(rerank)).await.unwrap_err();
    check_refused(
        &none,
        Code::InvalidArgument,
        "model: name one of those that can rerank documents, of which none is ready; loaded: bert, ",
    );
    rig.load(&tiny("bert-cls-dense"), "second").await.unwrap();
    let several = embed(&rig, texts("", &["a"])).await.unwrap_err();
    let can = "model: name one of those that can embed texts: bert, hanzo-demo, second";
    check_refused(&several, Code::InvalidArgument, can);
    rig.stopped().await;
}
