//! Tests of draft models over gRPC: same output, memory accounting, visibility, and refusal of unsuitable ones.

use hanzo_engine_runtime::Speculation;

use super::*;

fn load(model: &str, alias: &str, draft: &str) -> v1::LoadRequest {
    let (model, alias, draft_model) = (data(model), alias.into(), draft.into());
    v1::LoadRequest { model, alias, draft_model, ..Default::default() }
}

fn ask(model: &str, temperature: f32) -> v1::InferRequest {
    let ids = (0..40).map(|i| 3 + i * 7 % 150).collect();
    v1::InferRequest {
        model: model.into(),
        prompt: Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids })),
        sampling: Some(v1::Sampling { temperature: Some(temperature), seed: Some(5), ..Default::default() }),
        stop: Some(v1::StopConditions { max_tokens: Some(40), ignore_eos: true, ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_drafts_changes_no_answer_and_counts() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let plain = in_time(rig.client().load(load("tiny/qwen3", "plain", ""))).await.unwrap().into_inner();
    let drafted = load("tiny/qwen3", "drafted", &data("tiny/qwen3"));
    let other = in_time(rig.client().load(drafted.clone())).await.unwrap().into_inner();
    let (plain, other) = (plain.model.unwrap(), other.model.unwrap());
    assert_eq!((plain.draft_model.as_str(), &other.draft_model), ("", &drafted.draft_model));
    assert!(other.weights_bytes > plain.weights_bytes && other.kv_bytes > plain.kv_bytes, "{other:?}");
    let used = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner().memory_used_bytes;
    let all = |status: &v1::ModelStatus| status.weights_bytes + status.kv_bytes + status.scratch_bytes;
    assert_eq!(used, all(&plain) + all(&other));
    let mut accepted = 0;
    for temperature in [0.0, 1.0] {
        let expected = tokens(&rig.events(ask("plain", temperature)).await, 0);
        let events = rig.events(ask("drafted", temperature)).await;
        assert_eq!(tokens(&events, 0), expected);
        let usage = events.iter().find_map(|event| match event {
            Event::Finished(finished) => finished.usage,
            _ => None,
        });
        accepted += usage.unwrap().accepted_draft_tokens;
    }
    assert!(accepted > 0, "nothing that was drafted was right, by the same model");
    // The model is loaded already, with a different draft model.
    let without = rig.client().load(load("tiny/qwen3", "drafted", "/nowhere")).await.unwrap_err();
    assert!(without.message().contains("/nowhere"), "{without}");
    let otherwise = load("tiny/qwen3", "drafted", &data("tiny/llama3"));
    assert_eq!(rig.client().load(otherwise).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(in_time(rig.client().load(drafted)).await.unwrap().into_inner().load_ms, 0, "the same again");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_draft_is_refused() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let refused = async |model: &str, draft: &str, says: &[&str]| {
        let error = in_time(rig.client().load(load(model, "refused", draft))).await.unwrap_err();
        assert!(says.iter().all(|word| error.message().contains(word)), "{error}");
        assert_eq!(
            rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner().memory_used_bytes,
            0
        );
    };
    refused("tiny/qwen3", DEMO_MODEL, &["draft_model", "tokens"]).await;
    refused("tiny/qwen3", &data("encoders/roberta"), &["draft_model", "encoder"]).await;
    refused("encoders/roberta", &data("tiny/qwen3"), &["draft_model", "encoder"]).await;
    rig.stopped().await;
    let rig = Rig::start_with(|config| config.engine.speculation = Speculation::Off).await;
    let error = rig.client().load(load("tiny/qwen3", "off", &data("tiny/qwen3"))).await.unwrap_err();
    check_refused(&error, Code::InvalidArgument, "draft_model: ");
    rig.stopped().await;
}
