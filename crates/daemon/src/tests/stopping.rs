//! Tests of graceful shutdown: running requests finish or end with a status, new ones are refused, and it ends in
//! time.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_streams_finish_and_turns_away_new_ones() {
    let mut rig = Rig::start().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(rig.channel.clone());
    rig.device.conduct(Conduct::Slow(Duration::from_millis(5)));
    let mut watch = rig.client().watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = rig.infer(endless(200)).await.unwrap();
        begun(&mut stream).await;
        streams.push(stream);
    }
    assert_eq!(rig.admin("/readyz").await.0, 200);
    rig.begin_stop();
    rig.until("it drains", async |rig| rig.handle.core().drain.is_draining()).await;
    let status = rig.infer(endless(1)).await.unwrap_err();
    check_refused(&status, Code::Unavailable, "the engine is shutting down");
    assert!(metadata(&status, "retry-after-ms").is_some());
    let (code, body) = rig.admin("/readyz").await;
    assert!(code == 503 && body.contains("\"draining\":true"), "{body}");
    assert_eq!(rig.admin("/healthz").await.0, 200);
    rig.until("health says so", async |_| {
        let check = tonic_health::pb::HealthCheckRequest { service: String::new() };
        health.clone().check(check).await.unwrap().into_inner().status == 2
    })
    .await;
    rig.device.conduct(Conduct::Run);
    for stream in streams {
        assert_eq!(tokens(&collect(stream).await.unwrap(), 0).len(), 200);
    }
    let ended = async {
        while watch.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    check_refused(&in_time(ended).await.unwrap_err(), Code::Unavailable, "");
    health.check(tonic_health::pb::HealthCheckRequest::default()).await.ok();
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_drains_deadline_ends_what_is_left_with_a_status() {
    let mut rig = Rig::start_with(|config| config.server.drain_s = 1).await;
    rig.load(DEMO_MODEL, "").await.unwrap();
    rig.device.conduct(Conduct::Slow(Duration::from_millis(20)));
    let mut stream = rig.infer(endless(4000)).await.unwrap();
    begun(&mut stream).await;
    let since = Instant::now();
    rig.begin_stop();
    check_refused(&collect(stream).await.unwrap_err(), Code::Unavailable, "the engine shut down");
    assert!(since.elapsed() >= Duration::from_secs(1));
    rig.stopped().await;
    assert!(since.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_behind_the_stop_ends_with_it() {
    let rig = Rig::start().await;
    let served = rig.handle.core().models.registry.serving("", crate::registry::Capability::Any).unwrap();
    let job = crate::convert::job::build(endless(4000), None, &served, &|| false).unwrap().job;
    let (place, worker) = (served.enter().unwrap(), served.worker.waker().clone());
    let (ticket, mut events) =
        crate::ticket::ticket(job, place, Instant::now(), None, crate::limits::EVENTS_MAX, worker);
    // During a step, so that the worker sees both commands at once.
    rig.device.conduct(Conduct::Slow(Duration::from_millis(200)));
    let mut running = rig.infer(endless(4000)).await.unwrap();
    begun(&mut running).await;
    served.worker.stop("it was stopped", Instant::now());
    assert_eq!(served.worker.give(crate::worker::WorkItem::Run(ticket), Instant::now()), Ok(()));
    let end = in_time(std::future::poll_fn(|context| events.poll_next(context))).await.unwrap_err();
    assert_eq!(end, crate::ticket::JobEnd::Stopped("it was stopped"));
    drop(served);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_dropped_lets_go_of_everything() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    (config.server.grpc_port, config.server.admin_port) = (0, 0);
    config.store.dir = Some(dir.path().to_path_buf());
    config.engine.memory_budget_bytes = Some(1 << 30);
    let daemon = Daemon::bind_on(config.clone(), DemoDevice::new()).await.unwrap();
    daemon.load(DEMO_MODEL).await.unwrap();
    let Err(error) = Daemon::bind_on(config.clone(), DemoDevice::new()).await else { panic!("bound twice") };
    assert!(matches!(&error, DaemonError::Store(crate::store::StoreError::Locked { .. })), "{error}");
    let optional = crate::config::StoreConfig { optional: true, ..config.store.clone() };
    let without = Config { store: optional, ..config.clone() };
    let without = Daemon::bind_on(without, DemoDevice::new()).await.unwrap();
    without.load(DEMO_MODEL).await.unwrap();
    drop(without);
    drop(daemon);
    let since = Instant::now();
    while let Err(error) = Daemon::bind_on(config.clone(), DemoDevice::new()).await {
        assert!(since.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_said_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = Config::default();
    config.server.grpc_port = taken.local_addr().unwrap().port();
    let Err(error) = Daemon::bind(config).await else { panic!("bound") };
    let message = error.to_string();
    let address = taken.local_addr().unwrap().to_string();
    assert!(message.contains(&address) && message.contains("server.grpc_port"), "{message}");
}
