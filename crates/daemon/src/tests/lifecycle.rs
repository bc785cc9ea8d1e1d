//! Tests of loading, unloading, failures and restarts: other models are not affected.

use super::*;
use v1::ModelState as S;

#[tokio::test(flavor = "multi_thread")]
async fn models_load_and_unload_while_others_serve() {
    let rig = Rig::start().await;
    rig.device.conduct(Conduct::Slow(Duration::from_millis(2)));
    let mut stream = rig.infer(v1::InferRequest { model: DEMO_MODEL.into(), ..endless(200) }).await.unwrap();
    begun(&mut stream).await;
    let second = rig.load(DEMO_MODEL, "second").await.unwrap();
    assert!(second.load_ms > 0);
    let model = second.model.unwrap();
    assert_eq!(
        (model.name.as_str(), model.state(), model.architecture.as_str()),
        ("second", S::Ready, "qwen3")
    );
    assert!(model.weights_bytes > 0 && model.kv_bytes > 0 && model.device.starts_with("cpu"), "{model:?}");
    assert_eq!(rig.load(DEMO_MODEL, "second").await.unwrap().load_ms, 0);

    // Both at once give the same output.
    let ask = |model: &str| v1::InferRequest { model: model.into(), ..endless(30) };
    let (first, second) = tokio::join!(rig.events(ask(DEMO_MODEL)), rig.events(ask("second")));
    assert_eq!(tokens(&first, 0), tokens(&second, 0));

    let used = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner().memory_used_bytes;
    let request = v1::UnloadRequest { model: "second".into(), force: false };
    let gone = in_time(rig.client().unload(request)).await.unwrap().into_inner().model.unwrap();
    assert_eq!((gone.name.as_str(), gone.state()), ("second", S::Unloaded));
    let now = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner();
    assert_eq!((now.memory_used_bytes, now.models.len()), (used / 2, 1));
    rig.device.conduct(Conduct::Run);
    assert_eq!(tokens(&collect(stream).await.unwrap(), 0).len(), 200);
    check_refused(&rig.infer(ask("second")).await.unwrap_err(), Code::NotFound, "model: ");
    let request = v1::UnloadRequest { model: "second".into(), force: false };
    assert_eq!(rig.client().unload(request).await.unwrap_err().code(), Code::NotFound);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unload_lets_requests_finish_unless_forced() {
    let rig = Rig::start().await;
    rig.device.conduct(Conduct::Slow(Duration::from_millis(5)));
    let mut stream = rig.infer(endless(300)).await.unwrap();
    begun(&mut stream).await;
    let mut client = rig.client();
    let unload = |force| v1::UnloadRequest { model: DEMO_MODEL.into(), force };
    let unloading = tokio::spawn(async move { client.unload(unload(false)).await });
    rig.until("it drains", async |rig| rig.handle.models()[0].state() == S::Draining).await;
    check_refused(&rig.infer(endless(1)).await.unwrap_err(), Code::Unavailable, "model hanzo-demo is being");
    rig.device.conduct(Conduct::Run);
    assert_eq!(tokens(&collect(stream).await.unwrap(), 0).len(), 300);
    in_time(unloading).await.unwrap().unwrap();
    assert!(rig.handle.models().is_empty());

    rig.load(DEMO_MODEL, "").await.unwrap();
    rig.device.conduct(Conduct::Slow(Duration::from_millis(5)));
    let mut stream = rig.infer(endless(4000)).await.unwrap();
    begun(&mut stream).await;
    in_time(rig.client().unload(unload(true))).await.unwrap();
    check_refused(&collect(stream).await.unwrap_err(), Code::Unavailable, "the model was unloaded");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_name_is_told_to_wait_while_the_only_model_that_can_drains() {
    let rig = Rig::start().await;
    let bert = format!("{}/../../tests/data/encoders/bert-mean", env!("CARGO_MANIFEST_DIR"));
    rig.load(&bert, "bert").await.unwrap();
    rig.device.conduct(Conduct::Slow(Duration::from_millis(5)));
    let mut stream = rig.infer(endless(300)).await.unwrap();
    begun(&mut stream).await;
    let mut client = rig.client();
    let unload = v1::UnloadRequest { model: DEMO_MODEL.into(), force: false };
    let unloading = tokio::spawn(async move { client.unload(unload).await });
    let drains = async |rig: &Rig| rig.handle.models().iter().any(|model| model.state() == S::Draining);
    rig.until("it drains", drains).await;
    let refused = rig.infer(chat(question("Hello!"), 2)).await.unwrap_err();
    check_refused(&refused, Code::Unavailable, "model hanzo-demo is being unloaded");
    assert!(metadata(&refused, "retry-after-ms").is_some());
    rig.device.conduct(Conduct::Run);
    collect(stream).await.unwrap();
    in_time(unloading).await.unwrap().unwrap();
    // A model that is unloaded is not waited for.
    rig.load(&bert, "second").await.unwrap();
    let refused = rig.infer(chat(question("Hello!"), 2)).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "model: name one of those that can chat");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_loads_of_one_model_are_one() {
    let rig = Rig::start_with(|_| ()).await;
    let (first, second) = tokio::join!(rig.load(DEMO_MODEL, ""), rig.load("HANZO-demo", ""));
    assert_eq!(
        (first.unwrap().model.unwrap().state(), second.unwrap().model.unwrap().state()),
        (S::Ready, S::Ready)
    );
    assert_eq!(rig.device.builds(), 1);
    let path = rig.dir.path().join("hanzo-demo.gguf");
    std::fs::write(&path, crate::DEMO_GGUF).unwrap();
    // By default such a file gets another name, because this is the built-in model's.
    let status = rig.load(path.to_str().unwrap(), DEMO_MODEL).await.unwrap_err();
    check_refused(&status, Code::FailedPrecondition, "model hanzo-demo is loaded from this program");
    check_refused(&rig.load(DEMO_MODEL, "no good").await.unwrap_err(), Code::InvalidArgument, "alias: ");
    check_refused(&rig.load("nothing", "").await.unwrap_err(), Code::NotFound, "model: ");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_every_state() {
    let rig = Rig::start().await;
    let mut watch =
        rig.client().watch(v1::WatchRequest { model: "second".into() }).await.unwrap().into_inner();
    let mut all = rig.client().watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let now = in_time(all.message()).await.unwrap().unwrap().model.unwrap();
    assert_eq!((now.name.as_str(), now.state()), (DEMO_MODEL, S::Ready));
    rig.load(DEMO_MODEL, "second").await.unwrap();
    let request = v1::UnloadRequest { model: "second".into(), force: false };
    in_time(rig.client().unload(request)).await.unwrap();
    let mut states = Vec::new();
    while states.last() != Some(&S::Unloaded) {
        let model = in_time(watch.message()).await.unwrap().unwrap().model.unwrap();
        assert_eq!(model.name, "second");
        if states.last() != Some(&model.state()) {
            states.push(model.state());
        }
    }
    assert_eq!(states, [S::Loading, S::Ready, S::Draining, S::Unloaded]);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_panics_or_fails_comes_back_and_others_do_not_notice() {
    let rig = Rig::start_with(|config| config.engine.sequences_max = 1).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    rig.load(DEMO_MODEL, "other").await.unwrap();
    let (first, second) = (rig.device.builds() - 1, rig.device.builds());
    assert_eq!((first, second), (1, 2));
    let ask = |model: &str, n| v1::InferRequest { model: model.into(), ..endless(n) };
    for (breaks, build, said) in [
        (Conduct::PanicIn(1), 1, "a test broke this engine"),
        (Conduct::FailIn(3), 3, "a test broke this device"),
    ] {
        rig.device.conduct(Conduct::Slow(Duration::from_millis(5)));
        let mut running = rig.infer(ask(DEMO_MODEL, 4000)).await.unwrap();
        begun(&mut running).await;
        // Keep reading it: a client that does not read loses its turn to the waiting one.
        let running = tokio::spawn(collect(running));
        let waiting = rig.infer(ask(DEMO_MODEL, 5)).await.unwrap();
        let mut other = rig.infer(ask("other", 200)).await.unwrap();
        begun(&mut other).await;
        let used =
            rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner().memory_used_bytes;
        rig.device.conduct(breaks);
        let status = running.await.unwrap().unwrap_err();
        check_refused(&status, Code::Aborted, "the model's worker failed while it had the request");
        assert!(metadata(&status, "retry-after-ms").is_some());
        let id = metadata(&status, "error-id").unwrap();
        let status = collect(waiting).await.unwrap_err();
        check_refused(&status, Code::Unavailable, "the model's worker failed before");
        assert_eq!(metadata(&status, "error-id").unwrap(), id);

        rig.until("it is failed", async |rig| rig.handle.models()[0].state() == S::Failed).await;
        let failed = rig.handle.models().remove(0);
        assert!(failed.error.contains(said) && failed.error.contains(&id), "{}", failed.error);
        let now = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner();
        assert_eq!(now.memory_used_bytes, used / 2, "its memory is returned");
        let status = rig.infer(ask(DEMO_MODEL, 1)).await.unwrap_err();
        check_refused(&status, Code::Unavailable, "model hanzo-demo has failed");
        assert!(metadata(&status, "retry-after-ms").is_some());
        assert_eq!(tokens(&collect(other).await.unwrap(), 0).len(), 200);

        rig.until("it is back", async |rig| rig.handle.models()[0].state() == S::Ready).await;
        assert!(rig.device.builds() > build);
        assert_eq!(tokens(&rig.events(ask(DEMO_MODEL, 5)).await, 0).len(), 5);
    }
    let (_, text) = rig.admin("/metrics").await;
    for line in [
        r#"hanzo_engine_worker_restarts_total{model="hanzo-demo"} 2"#,
        r#"hanzo_engine_worker_restarts_total{model="other"} 0"#,
        r#"hanzo_engine_errors_total{kind="panic",model="hanzo-demo"} 1"#,
        r#"hanzo_engine_errors_total{kind="step",model="hanzo-demo"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_does_not_fit_says_the_numbers() {
    let small = |config: &mut Config| config.engine.memory_budget_bytes = Some(3 << 20);
    let rig = Rig::start_with(small).await;
    let status = rig.load(DEMO_MODEL, "").await.unwrap_err();
    check_refused(&status, Code::ResourceExhausted, "hanzo-demo needs ");
    assert!(status.message().contains(&(3 << 20).to_string()), "{status:?}");
    assert!(metadata(&status, "error-id").is_some());
    assert_eq!(rig.device.builds(), 0, "nothing was allocated");
    let stats = rig.client().stats(v1::StatsRequest::default()).await.unwrap().into_inner();
    assert_eq!((stats.memory_used_bytes, stats.memory_budget_bytes), (0, 3 << 20));
    assert_eq!(stats.models[0].status.as_ref().unwrap().state(), S::Failed);
    let status = rig.infer(text("a", 1)).await.unwrap_err();
    check_refused(&status, Code::Unavailable, "model hanzo-demo has failed");
    let request = v1::UnloadRequest { model: DEMO_MODEL.into(), force: false };
    in_time(rig.client().unload(request)).await.unwrap();
    assert!(rig.handle.models().is_empty());
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_can_be_made_smaller() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let request = v1::LoadRequest { model: DEMO_MODEL.into(), context_tokens_max: 100, ..Default::default() };
    let model = rig.client().load(request).await.unwrap().into_inner().model.unwrap();
    assert_eq!(model.context_tokens_max, 100);
    let request = |count| {
        let prompt = v1::infer_request::Prompt::Tokens(v1::TokenIds { ids: vec![5; count] });
        v1::InferRequest { prompt: Some(prompt), ..text("", 2) }
    };
    assert_eq!(tokens(&rig.events(request(99)).await, 0).len(), 1, "what the context leaves");
    assert_eq!(rig.infer(request(100)).await.unwrap_err().code(), Code::InvalidArgument);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_is_refused_and_nothing_else_changes() {
    let rig = Rig::start().await;
    let path = rig.dir.path().join("broken.gguf");
    std::fs::write(&path, &crate::DEMO_GGUF[..crate::DEMO_GGUF.len() / 2]).unwrap();
    let status = rig.load(path.to_str().unwrap(), "").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("broken.gguf"), "{status:?}");
    rig.events(text("a", 1)).await;
    rig.stopped().await;
}
