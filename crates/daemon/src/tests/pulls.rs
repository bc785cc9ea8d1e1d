//! Pulls and what else the store can do, over gRPC.

use axum::http::{HeaderMap, StatusCode};
use hanzo_engine_proto::v1::{
    self, pull_progress::Phase, resolve_response::Found, store_client::StoreClient,
};
use tonic::{Code, Streaming};

use super::Rig;

/// The demo model on a server, by an address that can be pulled.
async fn served() -> String {
    let answer = |headers: HeaderMap| async move {
        // As servers without ranges do.
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
    let cancel = v1::CancelPullRequest { reference: "a/b".into() };
    assert_eq!(store.cancel_pull(cancel).await.unwrap().into_inner().cancelled, 0);
    let aliases = store.aliases(v1::AliasesRequest {}).await.unwrap().into_inner().aliases;
    assert!(aliases.iter().any(|alias| alias.alias == "zen-nano" && alias.builtin));
    let nothing = store.export(v1::ExportRequest::default()).await.unwrap_err();
    assert_eq!(nothing.code(), Code::InvalidArgument);
    rig.stopped().await;
}
