//! Tests of overrides of a model's files over gRPC: their effect, visibility, and refusal of invalid ones.

use super::*;

fn load(alias: &str, overrides: v1::Overrides) -> v1::LoadRequest {
    let overrides = Some(overrides);
    v1::LoadRequest { model: DEMO_MODEL.into(), alias: alias.into(), overrides, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_over_a_models_files_is_honoured_and_told() {
    let rig = Rig::start_with(|_| ()).await;
    let overrides = v1::Overrides {
        chat_template: "{{ raise_exception('a template of my own') }}".into(),
        kv: vec!["qwen3.attention.layer_norm_rms_epsilon=float:0.5".into()],
        rope_scaling: "yarn".into(),
        rope_scale: 2.0,
        ..Default::default()
    };
    let loaded = in_time(rig.client().load(load("mine", overrides.clone()))).await.unwrap().into_inner();
    let status = loaded.model.unwrap();
    let told = status.overrides.join("; ");
    for expected in
        ["chat_template (45 bytes)", "layer_norm_rms_epsilon=float:0.5", "rope_scaling=yarn", "rope_scale=2"]
    {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let plain = rig.load(DEMO_MODEL, "plain").await.unwrap().model.unwrap();
    assert_eq!((plain.overrides.len(), plain.context_tokens_max), (0, 4096));
    assert_eq!(status.context_tokens_max, 8192, "the context is stretched");
    let chat = v1::Chat {
        messages: vec![v1::Message { role: "user".into(), ..Default::default() }],
        ..Default::default()
    };
    let ask = |model: &str| v1::InferRequest {
        model: model.into(),
        prompt: Some(v1::infer_request::Prompt::Chat(chat.clone())),
        stop: Some(v1::StopConditions { max_tokens: Some(1), ..Default::default() }),
        ..Default::default()
    };
    let error = match rig.infer(ask("mine")).await {
        Err(error) => error,
        Ok(events) => collect(events).await.unwrap_err(),
    };
    assert!(error.message().contains("a template of my own"), "{error:?}");
    rig.events(ask("plain")).await;
    // The same load again joins it; a different one is refused.
    let again = in_time(rig.client().load(load("mine", overrides.clone()))).await.unwrap().into_inner();
    assert_eq!(again.load_ms, 0);
    let otherwise = v1::Overrides { rope_scale: 4.0, ..overrides };
    let error = rig.client().load(load("mine", otherwise)).await.unwrap_err();
    assert!(error.code() == Code::FailedPrecondition && error.message().contains("overrides"), "{error:?}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_go_over_a_models_files_is_refused_by_name() {
    let rig = Rig::start_with(|_| ()).await;
    let none = v1::Overrides::default;
    let kv = |text: &str| v1::Overrides { kv: vec![text.into()], ..none() };
    for (overrides, begins) in [
        (kv("x=y"), "overrides.kv: "),
        (v1::Overrides { rope_scaling: "ntk".into(), ..none() }, "overrides.rope_scaling: "),
        (v1::Overrides { rope_scale: -1.0, ..none() }, "overrides: rope_scale: "),
        (v1::Overrides { isq: "Q9".into(), ..none() }, "overrides.isq: there is no type \"Q9\""),
        (v1::Overrides { imatrix: "/m.imatrix".into(), ..none() }, "overrides: imatrix: "),
        (
            v1::Overrides { isq: "HQQ4".into(), imatrix: "/m.imatrix".into(), ..none() },
            "overrides: imatrix: HQQ4 weighs no columns",
        ),
        (
            v1::Overrides { isq: "fp8".into(), imatrix: "/m.imatrix".into(), ..none() },
            "overrides: imatrix: FP8 weighs no columns",
        ),
        (
            v1::Overrides { kv: vec!["a=int:1".into(); 2], ..none() },
            "overrides: override_kv: a is given twice",
        ),
        (v1::Overrides { chat_template: "x".repeat(5 << 20), ..none() }, ""),
    ] {
        let error = rig.client().load(load("mine", overrides)).await.unwrap_err();
        assert!(error.message().starts_with(begins), "{begins}: {error:?}");
    }
    for (overrides, says) in [
        (kv("tokenizer.ggml.contxt=int:64"), "nothing reads this key"),
        (kv("qwen3.context_length=bool:true"), "type u32"),
        (v1::Overrides { tokenizer: "/no/such/tokenizer.json".into(), ..none() }, "/no/such/tokenizer.json"),
        (v1::Overrides { chat_template: "{% if %}".into(), ..none() }, "template"),
        (v1::Overrides { isq: "q4_k".into(), imatrix: "/no/m.imatrix".into(), ..none() }, "/no/m.imatrix"),
    ] {
        let error = in_time(rig.client().load(load("mine", overrides))).await.unwrap_err();
        assert!(error.message().contains(says), "{says}: {error:?}");
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_quantised_as_it_loads_is_another_and_takes_less() {
    let rig = Rig::start_with(|_| ()).await;
    let overrides = v1::Overrides { isq: "q4_k".into(), ..Default::default() };
    let small = in_time(rig.client().load(load("small", overrides))).await.unwrap().into_inner();
    let small = small.model.unwrap();
    assert_eq!(
        (small.quantization.as_str(), &small.overrides[..]),
        ("Q4_K (of Q8_0)", &["isq=Q4_K".to_owned()][..])
    );
    let plain = rig.load(DEMO_MODEL, "plain").await.unwrap().model.unwrap();
    assert_eq!(plain.quantization, "Q8_0");
    assert!(small.weights_bytes < plain.weights_bytes * 9 / 10, "{small:?} {plain:?}");
    let text = v1::InferRequest {
        model: "small".into(),
        prompt: Some(v1::infer_request::Prompt::Text("Once".into())),
        stop: Some(v1::StopConditions { max_tokens: Some(3), ..Default::default() }),
        ..Default::default()
    };
    rig.events(text).await;
    rig.stopped().await;
}
