//! Models whose chat template is meant to end or stall the daemon, or to give a client's words away as control
//! tokens. The templates are `tests/data/hostile_templates.json`, which the runtime's own tests measure one by one;
//! here they are in models' files, asked by a client, and another model must answer after each.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hanzo_engine_daemon::{DEMO_GGUF, DEMO_MODEL};
use hanzo_engine_proto::v1;
use hanzo_engine_tests::rig::Rig;
use serde_json::{Value, json};
use tokio::time::timeout;

/// A template takes about a second at most; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(45);
const KEY: &[u8] = b"tokenizer.chat_template";

struct Case {
    name: String,
    refused: String,
    source: String,
}

fn cases() -> Vec<Case> {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../data/hostile_templates.json")).expect("JSON");
    let text = |case: &Value, key: &str| case[key].as_str().unwrap_or_default().to_owned();
    let case = |case: &Value| {
        let times = case["times"].as_u64().unwrap_or(0) as usize;
        let source =
            format!("{}{}{}", text(case, "begin"), text(case, "repeat").repeat(times), text(case, "end"));
        Case { name: text(case, "name"), refused: text(case, "refused"), source }
    };
    cases.iter().map(case).collect()
}

/// The demo model with another chat template. The template is padded with a comment, so that the weights behind it
/// stay aligned.
fn write_model(path: &Path, template: &str) {
    let at = DEMO_GGUF.windows(KEY.len()).position(|window| window == KEY).expect("the demo has a template");
    let length_at = at + KEY.len() + 4;
    let number = |at: usize| u64::from_le_bytes(DEMO_GGUF[at..at + 8].try_into().expect("8 bytes")) as usize;
    let old_end = length_at + 8 + number(length_at);
    let mut template = format!("{{##}}{template}");
    while (template.len() + length_at + 8) % 32 != old_end % 32 {
        template.insert(2, ' ');
    }
    let length = (template.len() as u64).to_le_bytes();
    let parts = [&DEMO_GGUF[..length_at], &length, template.as_bytes(), &DEMO_GGUF[old_end..]];
    std::fs::write(path, parts.concat()).expect("room for a small model");
}

fn chat(model: &str, content: &str, kwargs: Value) -> v1::Chat {
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text(content.into())) };
    let message = v1::Message { role: "user".into(), content: vec![part], ..v1::Message::default() };
    assert!(!model.is_empty());
    v1::Chat { messages: vec![message], template_kwargs_json: kwargs.to_string(), ..v1::Chat::default() }
}

/// For one token of a model.
fn request(model: &str, kwargs: Value) -> v1::InferRequest {
    v1::InferRequest {
        model: model.into(),
        prompt: Some(v1::infer_request::Prompt::Chat(chat(model, "hello", kwargs))),
        stop: Some(v1::StopConditions { max_tokens: Some(1), ..v1::StopConditions::default() }),
        ..v1::InferRequest::default()
    }
}

/// One token of a model, or why not.
async fn asked(rig: &Rig, model: &str, kwargs: Value) -> Result<(), tonic::Status> {
    let request = request(model, kwargs);
    let run = async {
        let mut stream = rig.grpc().await.infer(request).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    };
    timeout(PATIENCE, run).await.expect("a template that stalls the daemon")
}

async fn load(rig: &Rig, path: &Path, alias: &str) -> Result<(), tonic::Status> {
    let request = v1::LoadRequest {
        model: path.display().to_string(),
        alias: alias.into(),
        context_tokens_max: 512,
        kv_bytes: 16 << 20,
        ..Default::default()
    };
    let mut client = rig.grpc().await;
    timeout(PATIENCE, client.load(request)).await.expect("a load that stalls").map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_cannot_be_parsed_fails_its_load_alone() {
    let rig = Rig::start().await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("hostile.gguf");
    let mut tried = 0;
    for case in cases().into_iter().filter(|case| case.refused == "load") {
        write_model(&path, &case.source);
        let error = load(&rig, &path, "hostile").await.expect_err(&case.name);
        assert!(error.message().contains("chat template"), "{}: {error}", case.name);
        assert!(error.message().len() < 2000, "{}: a long error", case.name);
        tried += 1;
    }
    assert!(tried > 20);
    assert!(asked(&rig, DEMO_MODEL, json!({})).await.is_ok());
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_goes_too_far_fails_its_request_alone() {
    let rig = Rig::start().await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    // All in one model: which of them runs is a variable.
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.refused != "load").collect();
    let (small, large): (Vec<Case>, Vec<Case>) =
        cases.into_iter().partition(|case| case.source.len() < 1000 && !case.source.contains("ns.f = f"));
    let branches: String = small
        .iter()
        .enumerate()
        .map(|(at, case)| format!("{{% if case == {at} %}}{}{{% endif %}}", case.source))
        .collect();
    let path = dir.path().join("hostile.gguf");
    write_model(&path, &format!("{branches}hello"));
    load(&rig, &path, "hostile").await.expect("it parses");
    assert!(small.len() > 80);
    for (at, case) in small.iter().enumerate() {
        let result = asked(&rig, "hostile", json!({"case": at})).await;
        match (&result, case.refused.as_str()) {
            (Err(error), "run") => {
                assert_eq!(error.code(), tonic::Code::InvalidArgument, "{}: {error}", case.name)
            }
            // What renders may still be too long for the context.
            (_, "no") => {}
            _ => panic!("{}: {result:?}", case.name),
        }
        if at % 10 == 0 {
            assert!(asked(&rig, DEMO_MODEL, json!({})).await.is_ok(), "after {}", case.name);
        }
    }
    assert!(asked(&rig, "hostile", json!({"case": -1})).await.is_ok());

    // What is long in itself has a model of its own.
    for (at, case) in large.iter().take(12).enumerate() {
        let alias = format!("large-{at}");
        write_model(&path, &case.source);
        load(&rig, &path, &alias).await.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let result = asked(&rig, &alias, json!({})).await;
        assert!(result.is_err() || case.refused == "no", "{}", case.name);
        let request = v1::UnloadRequest { model: alias, force: true };
        rig.grpc().await.unload(request).await.expect("it unloads");
    }
    assert!(asked(&rig, DEMO_MODEL, json!({})).await.is_ok());
    rig.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_that_loop_keep_another_model_from_nothing() {
    let rig = Rig::start().await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("loops.gguf");
    let inner = "{% for b in range(10**6) %}{% endfor %}";
    write_model(&path, &format!("{{% for a in range(10**6) %}}{inner}{{% endfor %}}"));
    load(&rig, &path, "loops").await.expect("it parses");
    let error = asked(&rig, "loops", json!({})).await.expect_err("it uses its steps up");
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");

    // Four have a turn at once, and as many again three times over wait for theirs.
    let ended = Arc::new(AtomicUsize::new(0));
    let grpc = rig.grpc().await;
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let (mut grpc, ended) = (grpc.clone(), ended.clone());
            tokio::spawn(async move {
                let result = grpc.infer(request("loops", json!({}))).await;
                ended.fetch_add(1, Relaxed);
                assert!(result.is_err());
            })
        })
        .collect();
    rig.until("they have come", async |_| {
        let asked = v1::StatsRequest { model: "loops".into() };
        let stats = grpc.clone().stats(asked).await.expect("stats").into_inner();
        let status = stats.models[0].status.clone().unwrap_or_default();
        status.requests_waiting as usize + ended.load(Relaxed) >= 16
    })
    .await;
    let before = ended.load(Relaxed);
    assert!(asked(&rig, DEMO_MODEL, json!({})).await.is_ok());
    // In a line with them it would have come after all but the last three.
    let meanwhile = ended.load(Relaxed) - before;
    assert!(
        before < 8 && meanwhile <= 4,
        "{before} ended before it was asked, {meanwhile} before it answered"
    );
    clients.iter().for_each(|client| client.abort());
    rig.ended().await;
}
