//! Tests of pulls and the other operations of the store over gRPC.

use axum::http::{HeaderMap, StatusCode};
use hanzo_engine_proto::v1::{
    self, pull_progress::Phase, resolve_response::Found, store_client::StoreClient,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tonic::{Code, Streaming};

use super::{Rig, chat, check_refused, finished, metadata, question, said, started, text};

/// Serves the demo model and returns an address to pull it from.
async fn served() -> String {
    let answer = |headers: HeaderMap| async move {
        // Like servers without support for ranges.
        assert!(headers.contains_key("range"));
        (StatusCode::OK, crate::DEMO_GGUF)
    };
    let router = axum::Router::new().fallback(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/Small-Q8_0.gguf")
}

async fn last(mut stream: Streaming<v1::PullProgress>) -> v1::PullProgress {
    let mut last = v1::PullProgress::default();
    while let Some(progress) = stream.message().await.unwrap() {
        assert!(progress.bytes_done <= progress.bytes_total || progress.bytes_total == 0);
        last = progress;
    }
    last
}

fn pull(reference: &str) -> v1::PullRequest {
    v1::PullRequest { reference: reference.to_owned(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_pulled_served_moved_and_forgotten() {
    let rig = Rig::start().await;
    let (url, mut store) = (served().await, StoreClient::new(rig.channel.clone()));
    let not_there = rig.load(&url, "").await.unwrap_err();
    assert_eq!(
        (not_there.code(), not_there.metadata().get("error-code").unwrap().to_str().unwrap()),
        (Code::NotFound, "not_pulled")
    );
    let proposal = store.propose(pull(&url)).await.unwrap().into_inner();
    assert_eq!((proposal.name.as_str(), proposal.files.len()), ("Small-Q8_0", 1));

    let (one, two) =
        (rig.client().pull(pull(&url)).await.unwrap(), rig.client().pull(pull(&url)).await.unwrap());
    let (one, two) = tokio::join!(last(one.into_inner()), last(two.into_inner()));
    let stored = one.stored.clone().unwrap();
    assert_eq!((one.phase(), &stored), (Phase::Done, two.stored.as_ref().unwrap()));
    assert_eq!(
        (stored.name.as_str(), stored.architecture.as_str()),
        ("Small-Q8_0", "qwen3"),
        "its files were read"
    );
    assert_eq!((one.bytes_done, stored.in_place), (crate::DEMO_GGUF.len() as u64, false));
    assert_eq!((one.bytes_total, one.eta_s, one.files[0].phase()), (one.bytes_done, 0.0, Phase::Done));
    assert!(one.bytes_fetched == one.bytes_done && one.bytes_per_s > 0.0, "{one:?}");
    assert!(store.pulls(v1::PullsRequest {}).await.unwrap().into_inner().broken_off.is_empty());

    let copy = v1::CopyRequest { model: "small-q8_0".into(), alias: "mine".into() };
    assert_eq!(store.copy(copy).await.unwrap().into_inner().target, "Small-Q8_0");
    rig.load("mine", "").await.unwrap();
    let show = v1::ShowRequest { model: "mine".into(), known_only: true };
    let shown = rig.client().show(show).await.unwrap().into_inner();
    let file = &shown.files[0];
    assert_eq!((file.role.as_str(), file.held.as_str(), file.sha256.len()), ("model", "blob", 64));
    assert!(shown.status.is_some() && shown.model.unwrap().reference == url);

    let mut checks = store.verify(v1::VerifyRequest::default()).await.unwrap().into_inner();
    let checked = checks.message().await.unwrap().unwrap();
    assert!(checked.sound && checked.files[0].health == "sound", "{checked:?}");
    let usage = store.disk_usage(v1::DiskUsageRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (usage.models[0].own_bytes, usage.blobs_bytes, usage.orphan_bytes),
        (stored.size_bytes, stored.size_bytes, 0)
    );
    let collected = store.collect(v1::CollectRequest { dry_run: true }).await.unwrap().into_inner();
    assert!(collected.paths.is_empty());

    let export = v1::ExportRequest { models: vec!["mine".into()] };
    let mut chunks = store.export(export).await.unwrap().into_inner();
    let mut archive = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        archive.push(chunk);
    }
    let remove = |model: &str| v1::RemoveRequest { model: model.to_owned() };
    let removed = rig.client().remove(remove("mine")).await.unwrap().into_inner();
    assert_eq!((removed.alias_of.as_str(), removed.freed_bytes), ("Small-Q8_0", 0));
    let removed = rig.client().remove(remove(&url)).await.unwrap().into_inner();
    assert_eq!(removed.freed_bytes, stored.size_bytes);
    let resolve = |model: &str| v1::ResolveRequest { model: model.to_owned() };
    let found = store.resolve(resolve(&url)).await.unwrap().into_inner().found.unwrap();
    assert_eq!(found, Found::Reference(url.clone()));

    let cut: Vec<_> = archive[..archive.len() - 1].to_vec();
    let refused = store.import(futures_util::stream::iter(cut)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let imported = store.import(futures_util::stream::iter(archive)).await.unwrap().into_inner();
    assert_eq!(imported.models[0].name, "Small-Q8_0");
    let found = store.resolve(resolve("small-q8_0")).await.unwrap().into_inner().found.unwrap();
    assert!(matches!(found, Found::Stored(model) if model.reference == url));
    rig.stopped().await;
}

/// Serves the demo model slowly, in small pieces, and returns its address.
async fn slow() -> String {
    let answer = || async {
        let pieces = futures_util::stream::unfold(0, |at: usize| async move {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            let piece = crate::DEMO_GGUF.get(at..at + 512)?;
            Some((Ok::<_, std::io::Error>(piece), at + 512))
        });
        axum::body::Body::from_stream(pieces)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/Slow.gguf")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_ends_with_its_last_client_where_all_asked_for_that() {
    let rig = Rig::start_with(|_| ()).await;
    let store = StoreClient::new(rig.channel.clone());
    let running = async || store.clone().pulls(v1::PullsRequest {}).await.unwrap().into_inner().running.len();
    let url = slow().await;
    let begin = async |cancel_with_client: bool| {
        let request = v1::PullRequest { cancel_with_client, ..pull(&url) };
        let mut stream = rig.client().pull(request).await.unwrap().into_inner();
        // The first message, after which the pull is running.
        stream.message().await.unwrap().unwrap();
        stream
    };
    // The last of two clients ends it.
    let (one, two) = (begin(true).await, begin(true).await);
    drop(one);
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert_eq!(running().await, 1, "somebody watches it");
    }
    drop(two);
    rig.until("it ends with its last client", async |_| running().await == 0).await;
    // A new request starts a running pull, not the end of the old one.
    let mut again = begin(true).await;
    again.message().await.unwrap().unwrap();
    drop(again);
    rig.until("it ends again", async |_| running().await == 0).await;
    // A client that did not ask for cancellation keeps the pull alive.
    let (one, two) = (begin(true).await, begin(false).await);
    drop((one, two));
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert_eq!(running().await, 1, "it is the daemon's");
    }
    let cancel = v1::CancelPullRequest { reference: url.clone(), ..Default::default() };
    assert_eq!(store.clone().cancel_pull(cancel).await.unwrap().into_inner().cancelled, 1);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_that_cannot_be_say_why() {
    let rig = Rig::start().await;
    let mut store = StoreClient::new(rig.channel.clone());
    let cases =
        [("", Code::InvalidArgument), ("a/b/c", Code::InvalidArgument), ("nobody", Code::InvalidArgument)];
    for (reference, code) in cases {
        let refused = rig.client().pull(pull(reference)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
    }
    let cancel = v1::CancelPullRequest { reference: "a/b".into(), ..Default::default() };
    assert_eq!(store.cancel_pull(cancel).await.unwrap().into_inner().cancelled, 0);
    let aliases = store.aliases(v1::AliasesRequest {}).await.unwrap().into_inner().aliases;
    assert!(aliases.iter().any(|alias| alias.alias == "zen-nano" && alias.builtin));
    let nothing = store.export(v1::ExportRequest::default()).await.unwrap_err();
    assert_eq!(nothing.code(), Code::InvalidArgument);
    rig.stopped().await;
}

/// Registry with one model, the demo model, and these layers beside it. Returns its reference.
async fn registry(layers: &[(&str, &str)]) -> String {
    let digest = |bytes: &[u8]| {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    };
    let mut blobs = vec![crate::DEMO_GGUF.to_vec(), b"{\"model_format\":\"gguf\"}".to_vec()];
    blobs.extend(layers.iter().map(|(_, text)| text.as_bytes().to_vec()));
    let layer =
        |kind: &str, blob: &[u8]| json!({"mediaType": kind, "digest": digest(blob), "size": blob.len()});
    let kinds = std::iter::once("model").chain(layers.iter().map(|(kind, _)| *kind));
    let weights_first = std::iter::once(&blobs[0]).chain(&blobs[2..]);
    let listed: Vec<Value> = kinds
        .zip(weights_first)
        .map(|(kind, blob)| layer(&format!("application/vnd.ollama.image.{kind}"), blob))
        .collect();
    let config = layer("application/vnd.docker.container.image.v1+json", &blobs[1]);
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": listed }).to_string();
    let answer = move |uri: axum::http::Uri| {
        let wanted = blobs.iter().find(|blob| uri.path().ends_with(&digest(blob))).cloned();
        let manifest = manifest.clone();
        async move { wanted.unwrap_or_else(|| manifest.into_bytes()) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    format!("ollama://{address}/library/small:latest")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_package_says_is_the_default_of_its_model() {
    let rig = Rig::start_with(|_| ()).await;
    let params = r#"{"stop":["Paris"],"num_predict":3,"num_ctx":512,"temperature":0,"seed":7,"mirostat":2}"#;
    let layers = [("params", params), ("system", "You are a pirate."), ("template", "{{ .Prompt }}")];
    let reference = registry(&layers).await;
    last(rig.client().pull(pull(&reference)).await.unwrap().into_inner()).await;
    let loaded = rig.load("small", "").await.unwrap().model.unwrap();
    assert_eq!((loaded.name.as_str(), loaded.context_tokens_max), ("small:latest", 512));

    // Prompt of the weights' own template with the package's system prompt; a client's system prompt replaces it.
    let mut own = question("What is the capital of France?");
    let rendered = async |chat: &v1::Chat| {
        let input = Some(v1::tokenize_request::Input::Chat(chat.clone()));
        let request = v1::TokenizeRequest { model: "small".into(), input, ..Default::default() };
        rig.client().tokenize(request).await.unwrap().into_inner().text
    };
    assert!(rendered(&own).await.contains("You are a pirate."));
    let words = |text: &str| vec![v1::ContentPart { part: Some(v1::content_part::Part::Text(text.into())) }];
    let system = v1::Message { role: "system".into(), content: words("Be brief."), ..Default::default() };
    own.messages.insert(0, system);
    let text = rendered(&own).await;
    assert!(text.contains("Be brief.") && !text.contains("pirate"), "{text}");

    // By default three tokens; a request's own values override that.
    let ask = |sampling: Option<v1::Sampling>, stop: Option<v1::StopConditions>| v1::InferRequest {
        model: "small".into(),
        sampling,
        stop,
        ..chat(own.clone(), 1)
    };
    let end = finished(&rig.events(ask(None, None)).await, 0);
    assert_eq!((end.reason(), end.usage.unwrap().completion_tokens), (v1::FinishReason::Length, 3));
    let long = |strings: &[&str]| v1::StopConditions {
        max_tokens: Some(40),
        strings: strings.iter().map(|text| (*text).to_owned()).collect(),
        ..Default::default()
    };
    let stopped = rig.events(ask(None, Some(long(&[])))).await;
    let end = finished(&stopped, 0);
    assert_eq!((end.reason(), end.stop_string.as_str()), (v1::FinishReason::Stop, "Paris"));
    let whole = said(&rig.events(ask(None, Some(long(&["never said"])))).await, 0);
    assert!(whole.starts_with(&said(&stopped, 0)) && whole.contains("Paris"), "{whole}");
    // The seed and the temperature too.
    let hot = |seed| v1::Sampling { temperature: Some(2.0), seed, ..Default::default() };
    let drawn = async |seed| said(&rig.events(ask(Some(hot(seed)), Some(long(&["never said"])))).await, 0);
    let (first, second, other) = (drawn(None).await, drawn(None).await, drawn(Some(8)).await);
    assert_eq!(first, drawn(Some(7)).await);
    assert!(first == second && first != other, "{first:?}, {other:?}");
    // An explicit load sets the context length.
    let unload = v1::UnloadRequest { model: "small".into(), force: false };
    rig.client().unload(unload).await.unwrap();
    let longer = v1::LoadRequest { model: "small".into(), context_tokens_max: 1024, ..Default::default() };
    let loaded = rig.client().load(longer).await.unwrap().into_inner().model.unwrap();
    assert_eq!(loaded.context_tokens_max, 1024);
    rig.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loaded_model_answers_to_its_aliases() {
    let rig = Rig::start_with(|_| ()).await;
    let (url, mut store) = (served().await, StoreClient::new(rig.channel.clone()));
    last(rig.client().pull(pull(&url)).await.unwrap().into_inner()).await;
    let copy = v1::CopyRequest { model: "small-q8_0".into(), alias: "mine".into() };
    store.copy(copy).await.unwrap();
    let ask = |model: &str| v1::InferRequest { model: model.into(), ..text("Once upon a", 4) };
    let not_loaded = rig.infer(ask("mine")).await.unwrap_err();
    check_refused(&not_loaded, Code::NotFound, "model: \"mine\" is stored here and not loaded; load it with");
    assert!(not_loaded.message().contains("hanzo-engine run Small-Q8_0"), "{not_loaded:?}");
    assert_eq!(metadata(&not_loaded, "error-code").as_deref(), Some("model_not_loaded"));

    // Under its own name, and under a name that the server gives.
    for served_as in ["", "fast"] {
        let builds = rig.device.builds();
        let name = rig.load("small-q8_0", served_as).await.unwrap().model.unwrap().name;
        assert_eq!(name, if served_as.is_empty() { "Small-Q8_0" } else { "fast" });
        let said_by_it = said(&rig.events(ask(&name)).await, 0);
        for alias in ["mine", "MINE", "Small-Q8_0", "small-q8_0", &url] {
            let events = rig.events(ask(alias)).await;
            assert_eq!(
                (started(&events).model, said(&events, 0)),
                (name.clone(), said_by_it.clone()),
                "{alias}"
            );
            let input = Some(v1::tokenize_request::Input::Text("a".into()));
            let tokenize = v1::TokenizeRequest { model: alias.into(), input, ..Default::default() };
            assert_eq!(rig.client().tokenize(tokenize).await.unwrap().into_inner().ids.len(), 1);
            let stats = rig.stats(alias).await;
            assert_eq!(stats.status.unwrap().name, name);
            // Loading it by an alias finds it loaded.
            assert_eq!(rig.load(alias, "").await.unwrap().model.unwrap().name, name);
        }
        assert_eq!(rig.device.builds(), builds + 1, "one copy");
        let unload = v1::UnloadRequest { model: "mine".into(), force: false };
        assert_eq!(rig.client().unload(unload).await.unwrap().into_inner().model.unwrap().name, name);
    }

    // Pulled again while loaded, it moves to another path in the store; the loaded one still answers.
    rig.load("mine", "").await.unwrap();
    let force = v1::PullRequest { force: true, ..pull(&url) };
    last(rig.client().pull(force).await.unwrap().into_inner()).await;
    assert_eq!(started(&rig.events(ask("mine")).await).model, "Small-Q8_0");
    // A loaded model's own name has precedence over an alias.
    rig.load(crate::DEMO_MODEL, "mine").await.unwrap();
    assert_eq!(started(&rig.events(ask("mine")).await).model, "mine");
    rig.stopped().await;
}
