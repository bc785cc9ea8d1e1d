//! Tests of limits: queues, deadlines, and clients that disconnect or do not read.

use futures_util::StreamExt as _;
use hanzo_engine_runtime::Speculation;
use tonic::Request;

use super::*;
use crate::service;

const SLOW: Conduct = Conduct::Slow(Duration::from_millis(5));

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_blocks() {
    let rig = Rig::start().await;
    rig.device.conduct(SLOW);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = rig.infer(v1::InferRequest { choices: 2, ..endless(1000) }).await.unwrap();
        begun(&mut stream).await;
        streams.push(stream);
    }
    let busy = rig.stats("").await;
    assert!(busy.kv_blocks_used > 0);
    assert_eq!(busy.status.unwrap().requests_running, 4);
    drop(streams);
    rig.until("all blocks are free", async |rig| {
        let stats = rig.stats("").await;
        stats.kv_blocks_used == 0 && stats.status.unwrap().requests_running == 0
    })
    .await;
    let stats = rig.stats("").await;
    assert_eq!((stats.requests_cancelled, stats.requests_finished), (4, 0));
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_turns_away_and_says_when_to_come_back() {
    let small =
        |config: &mut Config| (config.engine.sequences_max, config.engine.queue_requests_max) = (1, 2);
    let rig = Rig::start_with(small).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    rig.device.conduct(SLOW);
    // With a higher priority, so that no other request takes its turn.
    let mut running = rig.infer(v1::InferRequest { priority: -1, ..endless(300) }).await.unwrap();
    begun(&mut running).await;
    let waiting = [rig.infer(endless(2)).await.unwrap(), rig.infer(endless(2)).await.unwrap()];
    let status = rig.stats("").await.status.unwrap();
    assert_eq!((status.requests_running, status.requests_waiting), (1, 2));
    let refused = rig.infer(endless(2)).await.unwrap_err();
    check_refused(&refused, Code::ResourceExhausted, "model hanzo-demo has 2 requests waiting");
    let retry_ms: u64 = metadata(&refused, "retry-after-ms").unwrap().parse().unwrap();
    assert!((100..=60_000).contains(&retry_ms));
    rig.device.conduct(Conduct::Run);
    assert_eq!(tokens(&collect(running).await.unwrap(), 0).len(), 300);
    for stream in waiting {
        assert_eq!(tokens(&collect(stream).await.unwrap(), 0).len(), 2);
    }
    rig.events(endless(2)).await;
    let (_, text) = rig.admin("/metrics").await;
    let line = r#"hanzo_engine_requests_rejected_total{model="hanzo-demo",reason="queue_full"} 1"#;
    assert!(text.contains(line), "{text}");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_request_whether_it_runs_or_waits() {
    let rig = Rig::start_with(|config| config.engine.sequences_max = 1).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    rig.device.conduct(SLOW);
    let late = |request: v1::InferRequest, ms| {
        let mut request = Request::new(request);
        // Not `set_timeout`, which would also make the client end the call.
        request.metadata_mut().insert("grpc-timeout", format!("{ms}m").parse().unwrap());
        request
    };
    let mut client = rig.client();
    let running = client.infer(late(endless(4000), 400)).await.unwrap().into_inner();
    let waiting = client.infer(late(endless(4000), 150)).await.unwrap().into_inner();
    let since = Instant::now();
    let status = collect(waiting).await.unwrap_err();
    check_refused(&status, Code::DeadlineExceeded, "");
    assert!(since.elapsed() < Duration::from_secs(10));
    let status = collect(running).await.unwrap_err();
    check_refused(&status, Code::DeadlineExceeded, "");
    rig.until("all blocks are free", async |rig| rig.stats("").await.kv_blocks_used == 0).await;
    let mut request = Request::new(text("a", 1));
    request.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    check_refused(&client.infer(request).await.unwrap_err(), Code::InvalidArgument, "grpc-timeout: ");
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_pauses_only_itself() {
    // One event per token.
    let rig = Rig::start_with(|config| config.engine.speculation = Speculation::Off).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    // Below gRPC, whose buffers would hide when the channel's thousand events are full.
    let core = rig.handle.core();
    let request = v1::InferRequest { choices: 8, ..endless(400) };
    let mut stream = Box::pin(service::infer(core, Request::new(request)).await.unwrap());
    rig.until("the job is paused", async |rig| {
        let view = rig.handle.core().models.registry.view("").unwrap();
        let worker = view.worker.unwrap();
        worker.requests_running == 1 && worker.batch_size == 0 && worker.stats.steps > 0
    })
    .await;
    let paused = rig.stats("").await;
    assert!(paused.kv_blocks_used > 0 && paused.generated_tokens < 1000, "{paused:?}");
    // Another client is served meanwhile.
    assert_eq!(tokens(&rig.events(endless(50)).await, 0).len(), 50);
    assert_eq!(rig.stats("").await.kv_blocks_used, paused.kv_blocks_used);
    let mut events = Vec::new();
    while let Some(event) = in_time(stream.next()).await {
        events.push(event.unwrap().event.unwrap());
    }
    for choice in 0..8 {
        assert_eq!(tokens(&events, choice).len(), 400, "choice {choice}");
    }
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_client_that_leaves_frees_its_blocks_though_nothing_runs() {
    // One event per token.
    let rig = Rig::start_with(|config| config.engine.speculation = Speculation::Off).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    let core = rig.handle.core();
    let request = v1::InferRequest { choices: 8, ..endless(400) };
    let stream = service::infer(core, Request::new(request)).await.unwrap();
    rig.until("the job is paused", async |rig| {
        let worker = rig.handle.core().models.registry.view("").unwrap().worker.unwrap();
        worker.requests_running == 1 && worker.batch_size == 0 && worker.stats.steps > 0
    })
    .await;
    drop(stream);
    rig.until("all blocks are free", async |rig| rig.stats("").await.kv_blocks_used == 0).await;
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_of_different_lengths_all_finish() {
    let rig = Rig::start().await;
    let alone: Vec<Vec<u32>> = {
        let mut alone = Vec::new();
        for n in 1..=4 {
            alone.push(tokens(&rig.events(endless(n * 10)).await, 0));
        }
        alone
    };
    let mut streams = Vec::new();
    for n in 0..32_u32 {
        streams.push((n, rig.infer(endless((n % 4 + 1) * 10)).await.unwrap()));
    }
    for (n, stream) in streams {
        assert_eq!(tokens(&collect(stream).await.unwrap(), 0), alone[n as usize % 4]);
    }
    assert_eq!(rig.stats("").await.kv_blocks_used, 0);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embed_requests_that_are_cancelled_do_not_crowd_out_a_word_to_the_worker() {
    let rig = Rig::start_with(|config| config.engine.queue_requests_max = 2).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    let mut running = rig.infer(endless(4000)).await.unwrap();
    begun(&mut running).await;
    // During a long step the worker takes nothing from its channel.
    rig.device.conduct(Conduct::Slow(Duration::from_secs(3)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let input = v1::EmbedInput { input: Some(v1::embed_input::Input::Text("a".into())) };
    let request = v1::EmbedRequest { inputs: vec![input; 200], ..Default::default() };
    let mut refused = 0;
    for _ in 0..16 {
        // Cancelled by its client while its batches are in the worker's channel.
        let cancelled = timeout(Duration::from_millis(60), rig.client().embed(request.clone())).await;
        if let Ok(answer) = cancelled {
            check_refused(&answer.unwrap_err(), Code::ResourceExhausted, "model hanzo-demo has 2 requests");
            refused += 1;
        }
    }
    assert!(refused >= 8, "their batches wait, and so they hold their places: {refused} were refused");
    let unload = v1::UnloadRequest { model: DEMO_MODEL.into(), force: false };
    let mut client = rig.client();
    let unloading = tokio::spawn(async move { client.unload(unload).await });
    rig.until("it drains", async |rig| {
        rig.stats("").await.status.is_some_and(|status| status.state() == v1::ModelState::Draining)
    })
    .await;
    drop(running);
    rig.device.conduct(Conduct::Run);
    in_time(unloading).await.unwrap().unwrap();
    rig.stopped().await;
}
