//! Tests of the other interfaces: health, reflection, the admin port, the store's calls, and calls that this build
//! lacks.

use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::*;
use crate::config::MetricsCompat;
use v1::ModelState as S;

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_per_service_and_per_model() {
    let rig = Rig::start().await;
    let client = HealthClient::new(rig.channel.clone());
    let status = async |service: &str| {
        let request = HealthCheckRequest { service: service.into() };
        client
            .clone()
            .check(request)
            .await
            .map(|answer| answer.into_inner().status)
            .map_err(|status| status.code())
    };
    rig.until("the model serves", async |_| status(DEMO_MODEL).await == Ok(1)).await;
    // Health knows every service that reflection lists.
    let services = services(&rig).await;
    assert!(
        services.len() >= 4 && services.iter().any(|name| name == "hanzo.engine.v1.Store"),
        "{services:?}"
    );
    for service in services.iter().map(String::as_str).chain(["", "grpc.reflection.v1alpha.ServerReflection"])
    {
        assert_eq!(status(service).await, Ok(1), "{service}");
    }
    let request = v1::UnloadRequest { model: DEMO_MODEL.into(), force: false };
    rig.client().unload(request).await.unwrap();
    rig.until("it is gone", async |_| status(DEMO_MODEL).await == Err(Code::NotFound)).await;
    assert_eq!(status("").await, Ok(1));
    rig.stopped().await;
}

/// Names of all services that reflection lists.
async fn services(rig: &Rig) -> Vec<String> {
    let mut client = ServerReflectionClient::new(rig.channel.clone());
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    let answers = client.server_reflection_info(futures_util::stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    list.service.into_iter().map(|service| service.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services() {
    let rig = Rig::start_with(|_| ()).await;
    let names = services(&rig).await;
    for service in ["hanzo.engine.v1.Engine", "hanzo.engine.v1.Store", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == service), "{names:?}");
    }
    rig.stopped().await;
}

/// Removing a listed model without a record in the store fails with that reason, not as unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_listed_is_not_unknown_to_remove() {
    let rig = Rig::start().await;
    let remove = async |model: &str| {
        let request = v1::RemoveRequest { model: model.into() };
        rig.client().remove(request).await.unwrap_err()
    };
    rig.load(DEMO_MODEL, "other").await.unwrap();
    let listed = rig.client().list(v1::ListRequest {}).await.unwrap().into_inner().models;
    assert!(listed.iter().any(|model| model.name == DEMO_MODEL), "{listed:?}");
    for name in [DEMO_MODEL, "HANZO-demo", "Other"] {
        let refused = remove(name).await;
        assert_eq!(refused.code(), Code::FailedPrecondition, "{name}: {refused:?}");
        assert!(refused.message().contains("unload"), "{refused:?}");
    }
    assert_eq!(remove("nobody").await.code(), Code::NotFound);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_not_there_is_not_found() {
    let rig = Rig::start_with(|_| ()).await;
    let file = rig.dir.path().join("file.gguf");
    std::fs::write(&file, "GGUF").unwrap();
    let below = format!("{}/x.gguf", file.display());
    for path in ["/no/such.gguf", "/no/such/folder", "file:///no/such.gguf", "./no-such", below.as_str()] {
        let loaded = rig.load(path, "").await.unwrap_err();
        assert_eq!(loaded.code(), Code::NotFound, "Load {path}: {loaded:?}");
        let show = v1::ShowRequest { model: path.into(), known_only: false };
        let shown = rig.client().show(show).await.unwrap_err();
        assert_eq!(shown.code(), Code::NotFound, "Show {path}: {shown:?}");
        let request = v1::PullRequest { reference: path.into(), ..Default::default() };
        let ended = rig.client().pull(request).await.unwrap().into_inner();
        let pulled = collect_pull(ended).await.unwrap_err();
        assert_eq!(pulled.code(), Code::NotFound, "Pull {path}: {pulled:?}");
    }
    rig.stopped().await;
}

async fn collect_pull(mut stream: Streaming<v1::PullProgress>) -> Result<(), Status> {
    while stream.message().await?.is_some() {}
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_a_model_that_answers() {
    let rig = Rig::start_with(|_| ()).await;
    assert_eq!(rig.admin("/healthz").await.0, 200);
    assert_eq!(rig.admin("/readyz").await.0, 503);
    rig.load(DEMO_MODEL, "").await.unwrap();
    let (code, body) = rig.admin("/readyz").await;
    assert_eq!(code, 200);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["models"][0]["state"], "ready");
    assert_eq!(rig.admin("/nothing").await.0, 404);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_the_configuration_are_loaded_and_one_that_is_bad_does_not_matter() {
    let scratch = tempfile::tempdir().unwrap();
    let corrupt = scratch.path().join("corrupt.gguf");
    std::fs::write(&corrupt, b"GGUF and nothing more").unwrap();
    let corrupt = corrupt.to_str().unwrap().to_owned();
    let rig = Rig::start_with(|config| {
        let wanted = [
            ("/no/such.gguf", None),
            (corrupt.as_str(), Some("aliased")),
            ("zen-nano", None),
            (DEMO_MODEL, None),
            // A model whose name is taken is not listed twice.
            ("/no/other.gguf", Some(DEMO_MODEL)),
        ];
        config.models = wanted
            .map(|(source, alias)| crate::config::ModelConfig {
                source: source.to_owned(),
                alias: alias.map(str::to_owned),
                ..Default::default()
            })
            .into();
    })
    .await;
    rig.until("it is ready", async |rig| rig.handle.is_ready()).await;
    rig.until("the others have failed", async |rig| {
        let failed = rig.handle.models().iter().filter(|model| model.state() == S::Failed).count();
        failed == 3
    })
    .await;
    let states: Vec<_> = rig
        .handle
        .models()
        .into_iter()
        .map(|model| (model.name.clone(), model.state(), model.error))
        .collect();
    let names: Vec<&str> = states.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["aliased", DEMO_MODEL, "such", "zen-nano"]);
    for (name, state, error) in &states {
        let said = match name.as_str() {
            "aliased" => "corrupt.gguf",
            "such" => "/no/such.gguf",
            "zen-nano" => "pull it first",
            _ => {
                assert_eq!((*state, error.as_str()), (S::Ready, ""));
                continue;
            }
        };
        assert_eq!(*state, S::Failed, "{name}");
        assert!(error.contains(said) && error.contains("(err-"), "{name}: {error}");
        let request = v1::InferRequest { model: name.clone(), ..text("a", 1) };
        let refused = rig.infer(request).await.unwrap_err();
        check_refused(&refused, Code::Unavailable, &format!("model {name} has failed"));
    }
    // A request without a name has one model to go to. A failed model can be removed by its name.
    rig.events(text("a", 1)).await;
    let request = v1::UnloadRequest { model: "such".into(), force: false };
    rig.client().unload(request).await.unwrap();
    assert_eq!(rig.handle.models().len(), 3);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_the_standards_names_and_true_numbers() {
    let rig = Rig::start().await;
    rig.events(v1::InferRequest { choices: 2, ..endless(20) }).await;
    rig.infer(v1::InferRequest { model: "made-up".into(), ..endless(1) }).await.unwrap_err();
    let prompt = rig.stats("").await.prompt_tokens;
    let (code, text) = rig.admin("/metrics").await;
    assert_eq!(code, 200);
    let model = r#"{model="hanzo-demo"}"#;
    let lines = [
        r#"requests_total{model="hanzo-demo",status="ok"} 1"#.to_owned(),
        r#"requests_total{model="",status="not_found"} 1"#.to_owned(),
        format!("tokens_generated_total{model} 40"),
        format!("prompt_tokens_total{model} {prompt}"),
        format!("time_to_first_token_seconds_count{model} 2"),
        format!("request_duration_seconds_count{model} 1"),
        format!("tokens_per_second{model} "),
        format!("kv_cache_utilization{model} 0"),
        format!("batch_size{model} 0"),
        format!("queue_depth{model} 0"),
        format!("prefix_cache_query_tokens_total{model} "),
        format!("prefix_cache_hit_tokens_total{model} "),
        format!("preemptions_total{model} 0"),
        format!("draft_tokens_total{model} "),
        format!("accepted_draft_tokens_total{model} "),
        r#"requests_finished_total{finish_reason="length",model="hanzo-demo"} 1"#.to_owned(),
        format!("requests_cancelled_total{model} 0"),
        r#"model_loads_total{model="hanzo-demo",result="ok"} 1"#.to_owned(),
        format!("requests_running{model} 0"),
        r#"kv_blocks{model="hanzo-demo",state="used"} 0"#.to_owned(),
        r#"memory_bytes{kind="weights",model="hanzo-demo"} "#.to_owned(),
        r#"memory_bytes{kind="vocabulary",model="hanzo-demo"} 0"#.to_owned(),
        r#"memory_bytes{kind="constraints",model="hanzo-demo"} 0"#.to_owned(),
        format!("memory_budget_bytes {}", 2_u64 << 30),
        format!(r#"device_memory_budget_bytes{{device="cpu"}} {}"#, 2_u64 << 30),
        r#"device_memory_used_bytes{device="cpu"} "#.to_owned(),
        "models_loaded 1".to_owned(),
        "ready 1".to_owned(),
        "model_info{architecture=\"qwen3\"".to_owned(),
        format!(r#"build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")),
        format!("worker_up{model} 1"),
        format!("inter_token_latency_seconds_count{model} "),
        format!("time_per_output_token_seconds_count{model} 2"),
        format!("request_queue_time_seconds_count{model} 1"),
        format!("request_prefill_time_seconds_count{model} 2"),
        format!("request_decode_time_seconds_count{model} 2"),
        format!("request_prompt_tokens_count{model} 1"),
        format!("request_generation_tokens_sum{model} 40"),
        format!("model_load_duration_seconds_count{model} 1"),
        format!("schedule_seconds_count{model} "),
    ];
    for line in lines {
        assert!(text.contains(&format!("\nhanzo_engine_{line}")), "{line} is not in\n{text}");
    }
    // Each step had a scheduling decision, which took some time.
    let value = |of: &str| {
        let named = format!("hanzo_engine_{of}{model} ");
        text.lines().find_map(|line| line.strip_prefix(&*named)).unwrap().parse::<f64>().unwrap()
    };
    let steps = rig.stats("").await.steps;
    assert_eq!(value("schedule_seconds_count"), steps as f64);
    let sum = value("schedule_seconds_sum");
    assert!(sum > 0.0 && sum < value("request_duration_seconds_sum"), "{sum}");
    assert!(!text.contains("made-up"), "names that clients make up are not kept");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_remembers_what_was_loaded_by_path() {
    let rig = Rig::start().await;
    let path = rig.dir.path().join("My-Model.gguf");
    std::fs::write(&path, crate::DEMO_GGUF).unwrap();
    rig.load(path.to_str().unwrap(), "").await.unwrap();
    let list = rig.client().list(v1::ListRequest {}).await.unwrap().into_inner().models;
    let names: Vec<(&str, bool)> = list.iter().map(|model| (model.name.as_str(), model.loaded)).collect();
    assert_eq!(names, [("My-Model", true), (DEMO_MODEL, true)]);

    let show = |model: &str| v1::ShowRequest { model: model.into(), known_only: false };
    let shown = rig.client().show(show("my-model")).await.unwrap().into_inner();
    assert_eq!((shown.architecture.as_str(), shown.files.len()), ("qwen3", 1));
    assert!(
        shown.chat_template.contains("im_start") && shown.status.is_some() && shown.parameters > 5_000_000
    );
    let can = [
        v1::Capability::Chat,
        v1::Capability::Completion,
        v1::Capability::Embed,
        v1::Capability::Tools,
        v1::Capability::Reasoning,
    ]
    .map(i32::from);
    assert_eq!(shown.capabilities, can);
    let demo = rig.client().show(show(DEMO_MODEL)).await.unwrap().into_inner();
    assert_eq!((demo.parameters, demo.files.len()), (shown.parameters, 0));

    for name in ["my-model", DEMO_MODEL] {
        rig.client().unload(v1::UnloadRequest { model: name.into(), force: false }).await.unwrap();
    }
    let list = rig.client().list(v1::ListRequest {}).await.unwrap().into_inner().models;
    assert_eq!(list.len(), 1);
    rig.until("its use is noted", async |rig| {
        rig.client().list(v1::ListRequest {}).await.unwrap().into_inner().models[0].used_at_unix_ms > 0
    })
    .await;
    let status = rig.infer(v1::InferRequest { model: "x".into(), ..text("a", 1) }).await.unwrap_err();
    assert!(
        status.message().contains("in the store: my-model") || status.message().contains("My-Model"),
        "{status:?}"
    );
    let remove = |model: &str| v1::RemoveRequest { model: model.into() };
    let removed = rig.client().remove(remove("MY-model")).await.unwrap().into_inner();
    assert_eq!((removed.freed_bytes, removed.model.unwrap().name.as_str()), (0, "My-Model"));
    assert!(path.exists());
    check_refused(&rig.client().remove(remove("my-model")).await.unwrap_err(), Code::NotFound, "");
    assert_eq!(rig.client().show(show("my-model")).await.unwrap_err().code(), Code::NotFound);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_model_is_not_taken_for_one_of_another_size() {
    let rig = Rig::start().await;
    let load = |context_tokens_max, kv_bytes| v1::LoadRequest {
        model: DEMO_MODEL.into(),
        context_tokens_max,
        kv_bytes,
        ..Default::default()
    };
    assert_eq!(rig.client().load(load(0, 0)).await.unwrap().into_inner().load_ms, 0);
    for other in [load(64, 0), load(0, 32 << 20)] {
        let refused = rig.client().load(other).await.unwrap_err();
        check_refused(&refused, Code::FailedPrecondition, "model hanzo-demo is loaded already");
    }
    let unload = v1::UnloadRequest { model: DEMO_MODEL.into(), force: false };
    rig.client().unload(unload).await.unwrap();
    let loaded = rig.client().load(load(64, 0)).await.unwrap().into_inner().model.unwrap();
    assert_eq!(loaded.context_tokens_max, 64);
    rig.client().load(load(64, 0)).await.unwrap();
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn showing_a_path_registers_nothing_and_can_be_ruled_out() {
    let rig = Rig::start_with(|_| ()).await;
    let path = rig.dir.path().join("a.gguf");
    std::fs::write(&path, crate::DEMO_GGUF).unwrap();
    let show = |known_only| v1::ShowRequest { model: path.to_str().unwrap().into(), known_only };
    let shown = rig.client().show(show(false)).await.unwrap().into_inner();
    assert_eq!((shown.architecture.as_str(), shown.model.unwrap().name.as_str()), ("qwen3", "a"));
    assert!(rig.client().list(v1::ListRequest {}).await.unwrap().into_inner().models.is_empty());
    let refused = rig.client().show(show(true)).await.unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(refused.code(), Code::NotFound);
    // The error is the same whether the file exists or not.
    assert_eq!(rig.client().show(show(true)).await.unwrap_err().message(), refused.message());
    let pipe = v1::ShowRequest { model: "/dev/null".into(), known_only: false };
    let refused = rig.client().show(pipe).await.unwrap_err();
    assert!(refused.message().contains("neither a file nor a directory"), "{refused:?}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_vllms_names_too_where_that_is_asked_for() {
    let plain = Rig::start().await;
    assert!(!plain.admin("/metrics").await.1.contains("vllm:"));
    plain.stopped().await;
    let rig = Rig::start_with(|config| config.server.metrics_compat = Some(MetricsCompat::Vllm)).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    rig.events(endless(5)).await;
    let (_, text) = rig.admin("/metrics").await;
    let value = |line: &str| text.lines().find_map(|text| text.strip_prefix(line)).map(str::trim);
    let model = format!("model_name=\"{DEMO_MODEL}\"");
    for (line, expected) in [
        (format!("vllm:num_requests_waiting{{{model}}}"), "0"),
        (format!("vllm:num_requests_running{{{model}}}"), "0"),
        (format!("vllm:kv_cache_usage_perc{{{model}}}"), "0"),
        (format!("vllm:generation_tokens_total{{{model}}}"), "5"),
        (format!("vllm:request_success_total{{finished_reason=\"length\",{model}}}"), "1"),
        (format!("vllm:e2e_request_latency_seconds_count{{{model}}}"), "1"),
        (format!("vllm:request_generation_tokens_sum{{{model}}}"), "5"),
    ] {
        assert_eq!(value(&line), Some(expected), "{line}\n{text}");
    }
    let blocks = value(&format!("hanzo_engine_kv_blocks{{model=\"{DEMO_MODEL}\",state=\"free\"}}")).unwrap();
    assert!(
        value("vllm:cache_config_info{block_size=\"16\",").is_some_and(|rest| rest.contains(&model)),
        "{blocks}"
    );
    // Each family has its type and help text exactly once.
    for kind in ["counter", "gauge", "histogram"] {
        assert!(text.lines().any(|line| line.starts_with("# TYPE vllm:") && line.ends_with(kind)));
    }
    let typed: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE vllm:")).collect();
    assert_eq!(typed.len(), 18, "{typed:?}");
    rig.stopped().await;
}
