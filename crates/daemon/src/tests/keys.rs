//! Tests of API keys over gRPC, in metadata as over HTTP in headers, and of the admin port.

use hanzo_engine_access::{KeysFile, Record};
use hanzo_engine_proto::v1::{self, store_client::StoreClient};
use tonic::{Code, Request, Status};

use super::*;

/// Starts a daemon with the demo model that requires keys, and returns the file to add some.
async fn keyed(private_metrics: bool) -> (Rig, std::path::PathBuf) {
    let mut file = None;
    let rig = Rig::start_with(|config| {
        let path = config.store.dir.as_ref().unwrap().with_file_name("keys.json");
        KeysFile::create(&path, Record { name: "first".to_owned(), ..Record::default() }).unwrap();
        config.server.api_keys_file = Some(path.clone());
        config.server.private_metrics = private_metrics;
        file = Some(path);
    })
    .await;
    rig.handle.load(DEMO_MODEL).await.unwrap();
    (rig, file.unwrap())
}

fn add(rig: &Rig, file: &std::path::Path, name: &str, change: impl FnOnce(&mut Record)) -> String {
    let mut record = Record { name: name.to_owned(), ..Record::default() };
    change(&mut record);
    let key = KeysFile::create(file, record).unwrap().text().to_owned();
    rig.handle.access().reload();
    key
}

fn with<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    request
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test]
async fn a_call_needs_a_key_and_the_operators_its_scope() {
    let (rig, file) = keyed(false).await;
    let user = add(&rig, &file, "user", |_| ());
    let admin = add(&rig, &file, "admin", |record| record.admin = true);
    let status = rig.client().stats(v1::StatsRequest::default()).await.unwrap_err();
    assert_eq!(
        (status.code(), metadata(&status, "error-code").as_deref()),
        (Code::Unauthenticated, Some("missing_api_key"))
    );
    let status = rig.client().stats(with("sk-of-nobody", v1::StatsRequest::default())).await.unwrap_err();
    assert_eq!(
        (status.code(), metadata(&status, "error-code").as_deref()),
        (Code::Unauthenticated, Some("invalid_api_key"))
    );
    assert!(!status.message().contains("nobody"));
    // Probes need no key.
    let health = tonic_health::pb::HealthCheckRequest::default();
    tonic_health::pb::health_client::HealthClient::new(rig.channel.clone()).check(health).await.unwrap();

    rig.client().stats(with(&user, v1::StatsRequest::default())).await.unwrap();
    let mut stream = rig.client().infer(with(&user, text("One two three", 4))).await.unwrap().into_inner();
    begun(&mut stream).await;
    collect(stream).await.unwrap();
    for (key, allowed) in [(&user, false), (&admin, true)] {
        let mut client = rig.client();
        let mut store = StoreClient::new(rig.channel.clone());
        let calls = [
            code(
                client
                    .load(with(key, v1::LoadRequest { model: DEMO_MODEL.into(), ..Default::default() }))
                    .await,
            ),
            code(client.unload(with(key, v1::UnloadRequest { model: "none".into(), force: false })).await),
            code(client.load_adapter(with(key, v1::LoadAdapterRequest::default())).await),
            code(client.unload_adapter(with(key, v1::UnloadAdapterRequest::default())).await),
            code(client.pull(with(key, v1::PullRequest::default())).await),
            code(client.remove(with(key, v1::RemoveRequest::default())).await),
            code(store.aliases(with(key, v1::AliasesRequest::default())).await),
            code(store.collect(with(key, v1::CollectRequest::default())).await),
            code(store.export(with(key, v1::ExportRequest::default())).await),
        ];
        for (i, code) in calls.into_iter().enumerate() {
            assert_eq!(code == Code::PermissionDenied, !allowed, "call {i}: {code:?}");
        }
    }
    // A path would reveal which files exist.
    let path = v1::ShowRequest { model: file.display().to_string(), known_only: false };
    let shown = rig.client().show(with(&user, path.clone())).await.unwrap_err();
    assert_eq!(shown.code(), Code::NotFound, "{shown:?}");
    assert_ne!(code(rig.client().show(with(&admin, path)).await), Code::NotFound);
    rig.stopped().await;
}

#[tokio::test]
async fn a_keys_models_and_limits_hold_for_grpc_too() {
    let (rig, file) = keyed(false).await;
    let elsewhere = add(&rig, &file, "elsewhere", |record| record.models = vec!["other-*".to_owned()]);
    let here = add(&rig, &file, "here", |record| {
        (record.models, record.requests_per_minute) = (vec!["hanzo-demo".to_owned()], Some(2));
    });
    let named = |model: &str| v1::InferRequest { model: model.into(), ..text("One two", 2) };
    for model in ["", DEMO_MODEL] {
        let status = rig.client().infer(with(&elsewhere, named(model))).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
        let tokenize = v1::TokenizeRequest { model: model.into(), ..Default::default() };
        assert_eq!(code(rig.client().tokenize(with(&elsewhere, tokenize)).await), Code::PermissionDenied);
        let config = v1::TranscribeConfig { model: model.into(), ..Default::default() };
        let first = v1::TranscribeRequest { part: Some(v1::transcribe_request::Part::Config(config)) };
        let mut speech = v1::speech_client::SpeechClient::new(rig.channel.clone());
        let request = with(&elsewhere, futures_util::stream::iter([first]));
        let transcribed = speech.transcribe(request).await;
        assert_eq!(code(transcribed), Code::PermissionDenied);
    }
    let stats = rig.client().stats(with(&elsewhere, v1::StatsRequest::default())).await.unwrap();
    assert!(stats.into_inner().models.is_empty());
    for _ in 0..2 {
        let stream = rig.client().infer(with(&here, named(DEMO_MODEL))).await.unwrap().into_inner();
        collect(stream).await.unwrap();
    }
    let status = rig.client().infer(with(&here, named(DEMO_MODEL))).await.unwrap_err();
    assert_eq!(
        (status.code(), metadata(&status, "error-code").as_deref()),
        (Code::ResourceExhausted, Some("requests_per_minute"))
    );
    let wait_ms: u64 = metadata(&status, "retry-after-ms").unwrap().parse().unwrap();
    assert!((20_000..=30_000).contains(&wait_ms), "{wait_ms}");
    let (_, metrics) = rig.admin("/metrics").await;
    assert!(
        metrics.contains("hanzo_engine_grpc_refusals_total{reason=\"requests_per_minute\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("hanzo_engine_grpc_refusals_total{reason=\"model_not_allowed\"} 6"),
        "{metrics}"
    );
    assert!(!metrics.contains("sk-hanzo"));
    rig.stopped().await;
}

#[tokio::test]
async fn the_admin_ports_metrics_can_want_a_key() {
    let (rig, file) = keyed(true).await;
    let key = add(&rig, &file, "prometheus", |_| ());
    assert_eq!(rig.admin("/metrics").await.0, 401);
    assert_eq!(rig.admin("/healthz").await.0, 200);
    assert_eq!(rig.admin("/readyz").await.0, 200);
    assert_eq!(rig.admin(&format!("/metrics HTTP/1.1\r\nx-api-key: {key}\r\nx: ")).await.0, 200);
    rig.stopped().await;
}

#[tokio::test]
async fn web_pages_of_other_origins_send_nothing_to_either_port() {
    let (rig, file) = keyed(false).await;
    let key = add(&rig, &file, "user", |_| ());
    let ask = async |method: &str, headers: &str| {
        let mut stream = TcpStream::connect(rig.handle.admin_addr()).await.unwrap();
        let request =
            format!("{method} /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        in_time(stream.read_to_string(&mut answer)).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    for (method, headers, status) in [
        ("POST", "", 405),
        ("POST", "Origin: http://localhost\r\n", 405),
        ("POST", "Origin: https://evil.example\r\n", 403),
        ("POST", "Origin: null\r\n", 403),
        ("DELETE", "Sec-Fetch-Site: same-site\r\n", 403),
        ("GET", "Origin: https://evil.example\r\n", 200),
    ] {
        assert_eq!(ask(method, headers).await, status, "{method} {headers}");
    }
    for (origin, code) in [(None, Code::Ok), (Some("https://evil.example"), Code::PermissionDenied)] {
        let mut request = Request::new(v1::StatsRequest::default());
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
        if let Some(origin) = origin {
            request.metadata_mut().insert("origin", origin.parse().unwrap());
        }
        let answer = rig.client().stats(request).await;
        assert_eq!(answer.err().map_or(Code::Ok, |status| status.code()), code, "{origin:?}");
    }
    rig.stopped().await;
}
