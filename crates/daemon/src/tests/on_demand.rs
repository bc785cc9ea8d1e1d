//! Tests of models that are loaded on demand, and unloaded when idle or to make room.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::{
    config::{ModelConfig, OnDemand},
    limits::MODELS_MAX,
    source::resolve,
};
use v1::ModelState as S;

/// Starts a daemon that loads models on demand, with copies of the demo model in its store. The budget has room for
/// `models` of them and a half.
async fn start(models: u64, stored: &[&str]) -> Rig {
    let one = bytes_of_one().await;
    let rig = Rig::start_with(|config| {
        config.engine.on_demand = OnDemand::Always;
        config.engine.memory_budget_bytes = Some(one * models + one / 2);
    })
    .await;
    for name in stored {
        let path = rig.dir.path().join(format!("{name}.gguf"));
        std::fs::write(&path, crate::DEMO_GGUF).unwrap();
        resolve(path.to_str().unwrap(), rig.handle.core().models.store.as_ref()).unwrap();
    }
    rig
}

/// Memory of one of these models.
async fn bytes_of_one() -> u64 {
    let rig = Rig::start().await;
    let stats = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner();
    rig.stopped().await;
    stats.memory_used_bytes
}

fn ask(model: &str, tokens: u32) -> v1::InferRequest {
    v1::InferRequest { model: model.into(), ..endless(tokens) }
}

fn keeping(model: &str, keep_alive: &str) -> v1::InferRequest {
    v1::InferRequest { keep_alive: Some(keep_alive.to_owned()), ..ask(model, 2) }
}

impl Rig {
    async fn unload(&self, model: &str) {
        let request = v1::UnloadRequest { model: model.into(), force: false };
        in_time(self.client().unload(request)).await.unwrap();
    }
}

/// Names and states, in order of name.
fn states(rig: &Rig) -> Vec<(String, S)> {
    rig.handle.models().into_iter().map(|model| (model.name.clone(), model.state())).collect()
}

fn ready(names: &[&str]) -> Vec<(String, S)> {
    names.iter().map(|name| ((*name).to_owned(), S::Ready)).collect()
}

/// Uses a model and waits until it is idle, which is a little after the response.
async fn used(rig: &Rig, name: &str) {
    rig.events(ask(name, 1)).await;
    let idle = async |rig: &Rig| {
        let models = rig.handle.models();
        models.iter().any(|model| model.name.starts_with(name) && model.expires_at_unix_ms > 0)
    };
    rig.until("it is idle", idle).await;
}

async fn evictions(rig: &Rig, reason: &str) -> u64 {
    let (_, text) = rig.admin("/metrics").await;
    let line = format!("hanzo_engine_model_evictions_total{{reason=\"{reason}\"}} ");
    text.lines().find_map(|text| text.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_name_a_stored_model_load_it_once() {
    let rig = start(2, &["a"]).await;
    assert!(rig.handle.is_ready(), "what is asked for is loaded");
    let embed = v1::EmbedRequest {
        model: "a".into(),
        inputs: vec![v1::EmbedInput { input: Some(v1::embed_input::Input::Text("Hello".into())) }],
        ..Default::default()
    };
    let tokenize = v1::TokenizeRequest {
        model: "A".into(),
        input: Some(v1::tokenize_request::Input::Text("Hello".into())),
        ..Default::default()
    };
    let (mut one, mut other) = (rig.client(), rig.client());
    let (first, second, embedded, ids) = tokio::join!(
        rig.events(ask("a", 5)),
        rig.events(ask("a", 5)),
        in_time(one.embed(embed)),
        in_time(other.tokenize(tokenize)),
    );
    assert_eq!((tokens(&first, 0).len(), tokens(&second, 0).len()), (5, 5));
    assert!(!embedded.unwrap().into_inner().embeddings.is_empty());
    assert!(!ids.unwrap().into_inner().ids.is_empty());
    assert_eq!((rig.device.builds(), states(&rig)), (1, ready(&["a"])));
    let (_, text) = rig.admin("/metrics").await;
    assert!(text.contains(r#"hanzo_engine_model_load_wait_seconds_count{model="a"} 4"#), "{text}");
    // Five minutes minus the time passed.
    let model = rig.handle.models().remove(0);
    let left_ms = model.expires_at_unix_ms - crate::unix_time::now_unix_ms();
    assert_eq!(model.keep_alive_ms, 300_000);
    assert!((1..=300_000).contains(&left_ms), "{left_ms}");
    let refused = rig.infer(ask("b", 1)).await.unwrap_err();
    check_refused(&refused, Code::NotFound, "model: \"b\" is not loaded; loaded: a; in the store: a");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_leaves_when_its_time_is_over_and_never_before_its_request() {
    let rig = start(2, &["a"]).await;
    rig.device.conduct(Conduct::Slow(Duration::from_millis(2)));
    let mut stream =
        rig.infer(v1::InferRequest { keep_alive: Some("0".into()), ..ask("a", 150) }).await.unwrap();
    begun(&mut stream).await;
    rig.events(ask("a", 3)).await;
    assert_eq!(tokens(&collect(stream).await.unwrap(), 0).len(), 150, "it is in use all the while");
    rig.until("it has left", async |rig| rig.handle.models().is_empty()).await;
    assert_eq!((evictions(&rig, "keep_alive").await, evictions(&rig, "room").await), (1, 0));
    let stats = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner();
    assert_eq!((stats.memory_used_bytes, stats.ready), (0, true));
    // The model can be loaded again any number of times.
    rig.device.conduct(Conduct::Run);
    for _ in 0..3 {
        rig.events(keeping("a", "0s")).await;
    }
    rig.until("it has left again", async |rig| rig.handle.models().is_empty()).await;
    // A request's keep-alive applies until the next request sets another.
    rig.events(keeping("a", "-1")).await;
    rig.events(ask("a", 1)).await;
    let model = rig.handle.models().remove(0);
    assert_eq!((model.keep_alive_ms, model.expires_at_unix_ms), (-1, 0));
    rig.events(keeping("a", "100ms")).await;
    rig.until("its time is over", async |rig| rig.handle.models().is_empty()).await;
    let refused = rig.infer(keeping("a", "soon")).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "keep_alive: \"soon\" is no time");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_loads_stays_as_the_operator_says() {
    let rig = start(2, &["a", "b"]).await;
    rig.load("a", "").await.unwrap();
    rig.events(keeping("a", "0")).await;
    rig.events(ask("a", 1)).await;
    let model = rig.handle.models().remove(0);
    assert_eq!((model.state(), model.keep_alive_ms), (S::Ready, -1));
    let load = v1::LoadRequest { model: "b".into(), keep_alive: Some("150ms".into()), ..Default::default() };
    let loaded = in_time(rig.client().load(load)).await.unwrap().into_inner().model.unwrap();
    assert_eq!(loaded.keep_alive_ms, 150);
    rig.until("b has left", async |rig| states(rig) == ready(&["a"])).await;
    // A load for a coming request: that request may set another time, and the operator's setting stays.
    let about_to_ask = async |model: &str| {
        let load = v1::LoadRequest { model: model.into(), as_request: true, ..Default::default() };
        in_time(rig.client().load(load)).await.unwrap().into_inner().model.unwrap().keep_alive_ms
    };
    assert_eq!((about_to_ask("b").await, about_to_ask("a").await), (300_000, -1));
    rig.events(keeping("b", "100ms")).await;
    rig.until("b has left", async |rig| states(rig) == ready(&["a"])).await;
    // Loaded by a request and then explicitly: it stays.
    rig.events(keeping("b", "200ms")).await;
    rig.load("b", "").await.unwrap();
    assert_eq!(rig.handle.models().remove(1).keep_alive_ms, -1);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_was_used_the_longest_ago_makes_room() {
    let rig = start(2, &["a", "b", "c", "d"]).await;
    for name in ["a", "b", "a", "c"] {
        used(&rig, name).await;
    }
    assert_eq!(states(&rig), ready(&["a", "c"]));
    // A pinned model does not make room, however long it has been idle.
    rig.load("a", "").await.unwrap();
    used(&rig, "c").await;
    used(&rig, "d").await;
    assert_eq!(states(&rig), ready(&["a", "d"]));
    assert_eq!((evictions(&rig, "room").await, evictions(&rig, "turn").await), (2, 0));
    rig.load("d", "").await.unwrap();
    let builds = rig.device.builds();
    let refused = rig.infer(ask("b", 1)).await.unwrap_err();
    check_refused(&refused, Code::ResourceExhausted, "b needs ");
    assert!(refused.message().contains("q8_0"), "{refused:?}");
    assert_eq!(rig.device.builds(), builds);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_model_gives_its_place_where_as_many_are_loaded_as_may_be() {
    let names: Vec<String> = (0..=MODELS_MAX).map(|number| format!("m{number:02}")).collect();
    let rig = start(2 * MODELS_MAX as u64, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for name in &names[..MODELS_MAX] {
        used(&rig, name).await;
    }
    assert_eq!(states(&rig).len(), MODELS_MAX);
    let last = names[MODELS_MAX].as_str();
    // Two that load at once share one entry.
    let (one, other) = tokio::join!(rig.events(ask(last, 2)), rig.events(ask(last, 3)));
    assert_eq!((tokens(&one, 0).len(), tokens(&other, 0).len()), (2, 3));
    let left: Vec<&str> = names[1..].iter().map(String::as_str).collect();
    assert_eq!(states(&rig), ready(&left), "the one that nobody used for the longest time has left");
    assert_eq!(evictions(&rig, "room").await, 1);
    // Pinned models give up no entry.
    for name in &left {
        rig.load(name, "").await.unwrap();
    }
    let refused = rig.infer(ask(&names[0], 1)).await.unwrap_err();
    check_refused(&refused, Code::ResourceExhausted, &format!("{MODELS_MAX} models are loaded"));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_waits_for_who_works_and_a_request_as_long_as_it_may() {
    let rig = start(1, &["a", "b"]).await;
    rig.device.conduct(Conduct::Slow(Duration::from_millis(10)));
    let mut working = rig.infer(ask("a", 4000)).await.unwrap();
    begun(&mut working).await;
    let mut hasty = tonic::Request::new(ask("b", 1));
    hasty.set_timeout(Duration::from_millis(150));
    let refused = in_time(rig.client().infer(hasty)).await.unwrap_err();
    check_refused(&refused, Code::Unavailable, "model b waits until other models have made room for it");
    assert!(metadata(&refused, "retry-after-ms").is_some());
    assert_eq!(states(&rig)[1], ("b".to_owned(), S::Queued));
    let waiting = tokio::spawn({
        let mut client = rig.client();
        async move { collect(in_time(client.infer(ask("b", 3))).await?.into_inner()).await }
    });
    // Its turn is over. It finishes what it has begun; new requests for it wait for its next turn.
    rig.until("it is to leave", async |rig| states(rig)[0].1 == S::Draining).await;
    let again = tokio::spawn({
        let mut client = rig.client();
        async move { collect(in_time(client.infer(ask("a", 2))).await?.into_inner()).await }
    });
    rig.device.conduct(Conduct::Run);
    assert_eq!(tokens(&collect(working).await.unwrap(), 0).len(), 4000);
    assert_eq!(tokens(&in_time(waiting).await.unwrap().unwrap(), 0).len(), 3);
    assert_eq!(tokens(&in_time(again).await.unwrap().unwrap(), 0).len(), 2);
    assert_eq!(evictions(&rig, "turn").await, 1);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_in_constant_use_take_turns() {
    let rig = start(1, &["a", "b", "c"]).await;
    let clients = (0..9).map(|at| {
        let mut client = rig.client();
        tokio::spawn(async move {
            for _ in 0..8 {
                let stream = in_time(client.infer(ask(["a", "b", "c"][at % 3], 4))).await?.into_inner();
                assert_eq!(tokens(&collect(stream).await?, 0).len(), 4);
            }
            Ok::<_, Status>(())
        })
    });
    for client in clients.collect::<Vec<_>>() {
        in_time(client).await.unwrap().unwrap();
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_failed_is_told_to_who_asked_and_tried_again_later() {
    let rig = start(1, &["a"]).await;
    rig.events(keeping("a", "0")).await;
    rig.until("it has left", async |rig| rig.handle.models().is_empty()).await;
    let path = rig.dir.path().join("a.gguf");
    std::fs::remove_file(&path).unwrap();
    let refused = rig.infer(ask("a", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    std::fs::write(&path, crate::DEMO_GGUF).unwrap();
    rig.until("it is loaded again", async |rig| rig.infer(ask("a", 1)).await.is_ok()).await;
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_the_configuration_may_wait_until_it_is_asked_for() {
    let rig = Rig::start_with(|config| {
        config.engine.on_demand = OnDemand::Always;
        config.models = vec![crate::config::ModelConfig {
            source: DEMO_MODEL.into(),
            alias: Some("mine".into()),
            context_tokens_max: Some(64),
            keep_alive: Some("300ms".parse().unwrap()),
            at_start: false,
            ..Default::default()
        }];
    })
    .await;
    assert!(rig.handle.models().is_empty() && rig.handle.is_ready());
    for _ in 0..2 {
        rig.events(ask("mine", 1)).await;
        let model = rig.handle.models().remove(0);
        assert_eq!((model.name.as_str(), model.context_tokens_max), ("mine", 64));
        rig.until("it has left", async |rig| rig.handle.models().is_empty()).await;
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_how_its_load_goes_where_it_is_asked_to() {
    let rig = start(2, &["a"]).await;
    let told = v1::InferRequest { load_progress: true, ..ask("a", 3) };
    let events = rig.events(told.clone()).await;
    let loading = |event: &Event| match event {
        Event::Loading(loading) => Some((loading.model.clone(), loading.percent)),
        _ => None,
    };
    let news: Vec<(String, u32)> = events.iter().map_while(loading).collect();
    assert!(!news.is_empty() && news.iter().all(|(model, _)| model == "a"), "{news:?}");
    assert!(
        news.is_sorted_by_key(|(_, percent)| *percent) && news.iter().all(|(_, percent)| *percent <= 100)
    );
    let rest = &events[news.len()..];
    assert!(matches!(&rest[0], Event::Started(started) if started.model == "a"), "{rest:?}");
    assert_eq!(tokens(rest, 0).len(), 3);
    // A loaded model needs no load, and clients that did not ask receive no progress.
    assert!(rig.events(told).await.iter().all(|event| loading(event).is_none()));
    rig.unload("a").await;
    assert!(rig.events(ask("a", 1)).await.iter().all(|event| loading(event).is_none()));
    // An error ends the stream.
    let unknown = v1::InferRequest { load_progress: true, ..ask("nobody", 3) };
    let error = collect(rig.infer(unknown).await.unwrap()).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error:?}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_brings_its_model_with_its_adapter() {
    let data = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
        path.display().to_string()
    };
    let rig = Rig::start_with(|config| {
        config.engine.kv_bytes = None;
        config.engine.on_demand = OnDemand::Always;
        config.models.push(ModelConfig {
            source: data("tiny/qwen3"),
            alias: Some("tiny:q".to_owned()),
            at_start: false,
            adapters: ["all", "layer"]
                .map(|name| (name.to_owned(), data(&format!("adapters/qwen3-{name}"))))
                .into(),
            ..ModelConfig::default()
        });
    })
    .await;
    let of = |model: &str| {
        let ids = (0..40).map(|i| 3 + i * 7 % 150).collect();
        v1::InferRequest {
            model: model.into(),
            prompt: Some(v1::infer_request::Prompt::Tokens(v1::TokenIds { ids })),
            ..endless(12)
        }
    };
    let first = rig.events(of("tiny:q:layer")).await;
    assert_eq!(started(&first).model, "tiny:q:layer");
    let [plain, all] = [rig.events(of("tiny:q")).await, rig.events(of("tiny:q:all")).await];
    assert_ne!(tokens(&plain, 0), tokens(&first, 0));
    assert_ne!(tokens(&all, 0), tokens(&first, 0));
    // Named on its own, and together with its model.
    rig.unload("tiny:q").await;
    assert_eq!(tokens(&rig.events(of("layer")).await, 0), tokens(&first, 0));
    rig.unload("tiny:q").await;
    let beside = v1::InferRequest { adapter: "all".into(), ..of("tiny:q") };
    assert_eq!(tokens(&rig.events(beside).await, 0), tokens(&all, 0));
    rig.unload("tiny:q").await;
    let unknown = rig.infer(of("tiny:q:other")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_panicked_for_good_is_come_back_for_and_loaded_again() {
    let rig = start(1, &["a"]).await;
    rig.events(ask("a", 1)).await;
    let registry = &rig.handle.core().models.registry;
    let view = registry.view("a").unwrap();
    registry.for_each(|entry| entry.stop.cancel());
    rig.unload("a").await;
    // State of a model whose worker has panicked more often than it may be restarted.
    let failure = crate::error::Failure::new(crate::error::FailureReason::Panic("a test's".into()));
    let metrics = || rig.handle.core().models.metrics.model("a");
    assert!(
        registry
            .begin_failed("a", view.source, crate::sizing::LoadOptions::default(), metrics, failure)
            .unwrap()
    );
    let ran = |has_run: bool| {
        registry.for_each(|entry| {
            if let crate::registry::EntryState::Failed { ran, .. } = &mut entry.state {
                *ran = has_run;
            }
        });
    };
    ran(false);
    assert_eq!(rig.infer(ask("a", 1)).await.unwrap_err().code(), Code::Internal, "a load that panicked");
    ran(true);
    let refused = rig.infer(ask("a", 1)).await.unwrap_err();
    check_refused(&refused, Code::Unavailable, "model a has failed");
    assert!(metadata(&refused, "retry-after-ms").is_some());
    rig.until("it is loaded again", async |rig| rig.infer(ask("a", 1)).await.is_ok()).await;
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_model_of_the_configuration_is_listed_who_asks_is_to_come_again() {
    for on_demand in [OnDemand::Always, OnDemand::Never] {
        let rig = Rig::start_with(|config| {
            config.engine.on_demand = on_demand;
            config.models =
                vec![ModelConfig { source: "/models/mine.gguf".into(), ..ModelConfig::default() }];
        })
        .await;
        rig.until("its load has failed", async |rig| rig.handle.models().len() == 1).await;
        let models = &rig.handle.core().models;
        rig.until("and is over", async |_| models.starting.load(Relaxed) == 0).await;
        let life = models.registry.with("mine", |entry| (entry.life, false)).unwrap();
        models.registry.forget("mine", life);
        let unnamed = || rig.infer(v1::InferRequest { model: String::new(), ..endless(1) });
        let never = unnamed().await.unwrap_err();
        check_refused(&never, Code::InvalidArgument, "model: name one of those that");
        // As in the milliseconds between the daemon's start and the listing of the model.
        models.starting.store(1, Relaxed);
        for refused in [unnamed().await, rig.infer(ask("MINE", 1)).await] {
            let refused = refused.unwrap_err();
            check_refused(&refused, Code::Unavailable, "model mine is loading");
            assert!(metadata(&refused, "retry-after-ms").is_some());
        }
        assert_eq!(rig.infer(ask("other", 1)).await.unwrap_err().code(), Code::NotFound);
        // A loaded model without the capability does not answer in its place; one with it does.
        let bert = format!("{}/../../tests/data/encoders/bert-mean", env!("CARGO_MANIFEST_DIR"));
        rig.load(&bert, "bert").await.unwrap();
        check_refused(&unnamed().await.unwrap_err(), Code::Unavailable, "model mine is loading");
        rig.load(DEMO_MODEL, "demo").await.unwrap();
        collect(unnamed().await.unwrap()).await.unwrap();
        rig.stopped().await;
    }
}
