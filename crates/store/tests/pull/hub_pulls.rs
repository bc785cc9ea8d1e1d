//! Pulls from a hub.

use super::child::{child, part};
use super::content::Content;
use super::hub::{Hub, TOKEN};
use super::{nothing_visible, puller, settings};
use hanzo_engine_store::{FileOwner, ModelLookup, Phase, PullError, PullOptions, PullState, StoreSettings};
use std::path::Path;

fn tiny() -> Vec<(&'static str, Content)> {
    vec![
        ("model-00001-of-00002.safetensors", Content::made(1, 40 << 20)),
        ("model-00002-of-00002.safetensors", Content::made(2, 3 << 20)),
        ("model.safetensors.index.json", Content::given("{}")),
        ("config.json", Content::given("{\"model_type\":\"qwen3\"}")),
        ("tokenizer.json", Content::made(3, 100_000)),
        ("modules.json", Content::given("[{\"path\":\"\"},{\"path\":\"1_Pooling\"}]")),
        ("1_Pooling/config.json", Content::given("{\"pool\":1}")),
        ("README.md", Content::given("# x")),
        ("onnx/model.onnx", Content::given("no")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_becomes_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    hub.put("Qwen/Tiny", &tiny());
    let puller = puller(dir.path(), StoreSettings { hub_token: Some(TOKEN.into()), ..settings(&hub.url()) });
    let proposal = puller.propose("qwen/tiny", &PullOptions::default()).await.unwrap();
    assert_eq!((proposal.name.as_str(), proposal.files.len()), ("Qwen/Tiny", 7));
    assert_eq!(proposal.license.as_deref(), Some("apache-2.0"));

    // As typed in another case: the hub's own name is kept.
    let began = std::time::Instant::now();
    let mut pull = puller.pull("qwen/tiny", &PullOptions::default()).unwrap();
    let (record, last) = loop {
        match pull.next().await {
            PullState::Running(progress) => assert!(progress.bytes_done <= proposal.fetch_bytes),
            PullState::Done(record, last) => break (record, last),
            PullState::Failed(error) => panic!("{error}"),
        }
    };
    assert_eq!((record.name.as_str(), record.reference.as_str()), ("Qwen/Tiny", "hf://Qwen/Tiny"));
    assert_eq!(record.size_bytes, proposal.fetch_bytes);
    // The last word: everything is there, and how fast it came on the whole.
    assert_eq!((last.phase, last.model.as_str(), last.eta_s), (Phase::Done, "Qwen/Tiny", Some(0.0)));
    assert_eq!((last.bytes_done, last.bytes_total), (record.size_bytes, record.size_bytes));
    assert!(last.bytes_fetched >= record.size_bytes && last.files.len() == 7, "{last:?}");
    assert!(last.files.iter().all(|file| file.phase == Phase::Done && file.bytes_done == file.bytes_total));
    let slowest = last.bytes_fetched as f64 / began.elapsed().as_secs_f64();
    assert!(last.bytes_per_s >= slowest * 0.99 && last.bytes_per_s.is_finite(), "{}", last.bytes_per_s);
    assert!(!record.in_place && record.path.is_dir() && record.revision.is_some());
    for (name, content) in tiny().into_iter().take(7) {
        let bytes = std::fs::read(record.path.join(name)).unwrap();
        assert!(bytes == content.read(0, u64::MAX >> 1), "{name}");
    }
    assert!(!record.path.join("README.md").exists() && !record.path.join("onnx").exists());
    let checked = puller.store().verify("tiny", |_| true).unwrap();
    assert!(checked.is_sound() && checked.files.len() == 7, "{checked:?}");
    assert!(puller.store().pulls().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("partial")).unwrap().count(), 0);
    // The token went to the hub, and to nobody else.
    assert!(hub.credentials.lock().unwrap().iter().all(|seen| *seen == format!("Bearer {TOKEN}")));
    assert_eq!(*hub.cdn.credentials.lock().unwrap(), [""; 0]);

    // Again: it is there. By force: it is fetched.
    let served = hub.cdn.served();
    let again = puller.pull("Qwen/Tiny", &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!((again, hub.cdn.served()), ((*record).clone(), served));
    let options = PullOptions { force: true, ..PullOptions::default() };
    let forced = puller.pull("tiny", &options).unwrap().done().await.unwrap();
    assert_eq!(hub.cdn.served(), 2 * served);
    assert!(!record.path.exists() && forced.path.is_dir(), "the folder before it is gone");
    assert!(puller.store().verify("tiny", |_| true).unwrap().is_sound());

    let removed = puller.store().remove("Tiny").unwrap();
    assert_eq!(removed.freed_bytes, record.size_bytes);
    nothing_visible(puller.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_gguf_the_quantization_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    let part = |n| Content::made(n, 1 << 20);
    let files = [
        ("m-Q4_K_M.gguf", part(1)),
        ("m-Q8_0-00001-of-00002.gguf", part(2)),
        ("m-Q8_0-00002-of-00002.gguf", part(3)),
        ("mmproj-F16.gguf", part(4)),
    ];
    hub.put("Org/M-GGUF", &files);
    let puller = puller(dir.path(), settings(&hub.url()));
    let pull = |text: &'static str, options: PullOptions| {
        let pull = puller.pull(text, &options).unwrap();
        pull.done()
    };
    let record = pull("org/m-gguf", PullOptions::default()).await.unwrap();
    assert_eq!((record.name.as_str(), record.reference.as_str()), ("Org/M:Q4_K_M", "hf://Org/M-GGUF:Q4_K_M"));
    assert!(
        record.path.ends_with("m-Q4_K_M.gguf")
            && record.files.len() == 2
            && record.format == "gguf"
            && record.quantization == "Q4_K_M"
    );
    let options = PullOptions { quantization: Some("Q8_0".into()), ..PullOptions::default() };
    let split = pull("org/m-gguf", options).await.unwrap();
    assert_eq!((split.name.as_str(), split.files.len()), ("Org/M:Q8_0", 3));
    // What sees for it lies beside it.
    assert!(split.path.with_file_name("mmproj-F16.gguf").is_file());
    assert!(split.path.ends_with("m-Q8_0-00001-of-00002.gguf"));
    // By every name it is the same model.
    for name in ["m:q8_0", "org/m:Q8_0", "Org/M-GGUF:Q8_0", "hf://org/m-gguf:q8_0"] {
        assert_eq!(puller.store().resolve(name).unwrap(), ModelLookup::Stored(split.clone()), "{name}");
    }
    assert!(puller.store().get("m").unwrap_err().to_string().contains("ambiguous"));
    let alias = puller.store().set_alias("m:Q8_0", "mine").unwrap();
    assert_eq!((alias.target.as_str(), puller.store().get("MINE").unwrap()), ("Org/M:Q8_0", split));
    // Without the model its alias is nobody's, and no other repository's: Org/M is another one than Org/M-GGUF.
    puller.store().remove("m:q8_0").unwrap();
    for dangling in [
        puller.store().resolve("mine").map(drop).unwrap_err().to_string(),
        puller.pull("mine", &PullOptions::default()).map(drop).unwrap_err().to_string(),
    ] {
        assert!(dangling.contains("Org/M:Q8_0, which is not here any more"), "{dangling}");
    }
    assert_eq!(puller.store().remove("mine").unwrap().alias_of.as_deref(), Some("Org/M:Q8_0"));
    let error = pull("org/m-gguf:Q5_0", PullOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("Q4_K_M, Q8_0"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doors_that_are_shut_say_where_to_knock() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    hub.put(
        "meta/Gated",
        &[("model.safetensors", Content::made(1, 1 << 20)), ("config.json", Content::given("{}"))],
    );
    hub.change("meta/Gated", |repo| repo.gated_for = Some(TOKEN.into()));
    hub.put("me/Private", &tiny());
    hub.change("me/Private", |repo| repo.private = true);
    hub.renamed.lock().unwrap().insert("old/Name".into(), "meta/Gated".into());
    let puller = |token: Option<&str>, at: &str| {
        puller(
            &dir.path().join(at),
            StoreSettings { hub_token: token.map(str::to_owned), ..settings(&hub.url()) },
        )
    };
    let without = puller(None, "a");
    let error = without.pull("meta/gated", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(matches!(&*error, PullError::Forbidden { status: 401, .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains(&format!("{}/meta/Gated", hub.url())) && message.contains("HF_TOKEN"),
        "{message}"
    );
    nothing_visible(without.store());
    let other = puller(Some("hf_other"), "b");
    let error = other.pull("meta/gated", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(matches!(&*error, PullError::Forbidden { status: 403, .. }), "{error}");
    for text in ["me/private", "no/body"] {
        let error = without.pull(text, &PullOptions::default()).unwrap().done().await.unwrap_err();
        assert!(error.to_string().contains("no public repository"), "{error}");
    }
    let error = without.pull("meta/gated@v9", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(error.to_string().contains("meta/gated@v9 is not there"), "{error}");
    // The licence accepted, and a name the repository had before.
    let with = puller(Some(TOKEN), "c");
    let record = with.pull("old/Name", &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!(record.name, "meta/Gated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_is_not_reached_is_said_soon() {
    let dir = tempfile::tempdir().unwrap();
    // A port that nobody listens at, because it was just given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let puller = puller(dir.path(), settings(&format!("http://127.0.0.1:{port}")));
    let error = puller.pull("meta/gated", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(matches!(&*error, PullError::Network { attempts: 3, .. }), "{error}");
    nothing_visible(puller.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pulls_of_one_model_are_one_and_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    hub.put(
        "a/b",
        &[("model.safetensors", Content::made(1, 64 << 20)), ("config.json", Content::given("{}"))],
    );
    hub.cdn.fault(|faults| faults.rate = Some(8 << 20));
    let puller = puller(dir.path(), settings(&hub.url()));
    let mut first = puller.pull("a/b", &PullOptions::default()).unwrap();
    let second = puller.pull("A/B", &PullOptions::default()).unwrap();
    assert!(!first.joined() && second.joined());
    loop {
        match first.next().await {
            PullState::Running(progress) if progress.bytes_fetched > 1 << 20 => break,
            PullState::Running(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(puller.store().gc(false), Err(hanzo_engine_store::StoreError::Busy { pulls: 1 })));
    assert_eq!(puller.cancel("a/b", &PullOptions::default()).unwrap(), 1);
    assert!(matches!(*second.done().await.unwrap_err(), PullError::Cancelled));
    nothing_visible(puller.store());
    assert_eq!(puller.store().pulls().unwrap()[0].reference, "hf://a/b");
    // What was fetched stays.
    hub.cdn.fault(|faults| faults.rate = None);
    let before = hub.cdn.served();
    puller.pull("a/b", &PullOptions::default()).unwrap().done().await.unwrap();
    assert!(hub.cdn.served() - before < 64 << 20, "it went on from where it was");
    assert!(puller.store().pulls().unwrap().is_empty() && puller.running().is_empty());
}

/// Who ends one pull of a repository leaves the others of it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_quantization_and_revision_is_cancelled_alone() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    let part = |n| Content::made(n, 32 << 20);
    hub.put(
        "Org/M-GGUF",
        &[("m-Q4_K_M.gguf", part(1)), ("m-Q5_K_M.gguf", part(2)), ("m-Q8_0.gguf", part(3))],
    );
    hub.cdn.fault(|faults| faults.rate = Some(1 << 20));
    let puller = puller(dir.path(), settings(&hub.url()));
    let with = |quantization: Option<&str>, revision: Option<&str>| PullOptions {
        quantization: quantization.map(str::to_owned),
        revision: revision.map(str::to_owned),
        ..PullOptions::default()
    };
    let wanted = [
        with(None, None),
        with(Some("Q8_0"), None),
        with(Some("Q8_0"), Some("main")),
        with(Some("Q5_K_M"), None),
    ];
    let mut pulls: Vec<_> =
        wanted.iter().map(|options| puller.pull("org/m-gguf", options).unwrap()).collect();
    // Before any source has answered, and so before any has a name.
    assert_eq!(puller.cancel("org/m-gguf", &wanted[3]).unwrap(), 1);
    assert!(matches!(*pulls.pop().unwrap().done().await.unwrap_err(), PullError::Cancelled));
    assert_eq!(puller.running().len(), 3);
    for pull in &mut pulls {
        while !matches!(pull.next().await, PullState::Running(progress) if !progress.files.is_empty()) {}
    }
    assert_eq!(puller.cancel("org/m-gguf", &with(Some("Q6_K"), None)).unwrap(), 0);
    assert_eq!(puller.cancel("org/m-gguf", &with(None, Some("v1"))).unwrap(), 0);
    assert_eq!(puller.cancel("ORG/m-gguf", &with(Some("Q8_0"), Some("main"))).unwrap(), 1);
    assert!(matches!(*pulls.pop().unwrap().done().await.unwrap_err(), PullError::Cancelled));
    let mut left: Vec<String> = puller.running().into_iter().map(|(reference, _)| reference).collect();
    left.sort();
    assert_eq!(left, ["hf://org/m-gguf", "hf://org/m-gguf:Q8_0"]);
    // As it was typed, the choice left open; then by the name it will have.
    assert_eq!(puller.cancel("org/m-gguf", &with(None, None)).unwrap(), 1);
    assert_eq!(puller.cancel("org/m:q8_0", &with(None, None)).unwrap(), 1);
    for pull in pulls {
        assert!(matches!(*pull.done().await.unwrap_err(), PullError::Cancelled));
    }
    assert!(puller.cancel("nobody", &with(None, None)).is_err());
    nothing_visible(puller.store());
}

/// The part of the child that fetches a repository with the hub's own client, as it comes: where the hub is, and
/// where its cache is, are in the environment.
#[test]
fn child_with_the_hubs_own_client() {
    let Some((repo, _)) = part() else { return };
    let api = hf_hub::api::sync::ApiBuilder::from_env().with_progress(false).build().unwrap();
    let repo = api.model(repo);
    for file in repo.info().unwrap().siblings {
        println!("fetched {}", repo.get(&file.rfilename).unwrap().display());
    }
    // And the store's settings of the same environment.
    let settings = StoreSettings::from_env().unwrap();
    println!("the store's hub {}", settings.hub);
    println!("the store's cache {}", settings.hub_cache.unwrap().display());
}

/// The cache that Hugging Face's own client fills: first by that client itself, from the same hub.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hubs_own_client_and_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    hub.put("Qwen/Tiny", &tiny());
    let home = dir.path().join("hf");
    let mut child = child("hub_pulls::child_with_the_hubs_own_client", dir.path(), "Qwen/Tiny");
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
        child.env_remove(name);
    }
    child.env("HF_ENDPOINT", hub.url()).env("HF_HOME", &home).env("NO_PROXY", "127.0.0.1,localhost");
    let output = tokio::task::spawn_blocking(move || child.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let after = |prefix| said.lines().filter_map(move |line| line.split_once(prefix)).map(|(_, after)| after);
    let fetched: Vec<&Path> = after("fetched ").map(Path::new).collect();
    assert_eq!(fetched.len(), tiny().len(), "{said}");
    assert_eq!(std::fs::read(fetched[0]).unwrap().len(), 40 << 20);
    let cache = home.join("hub");
    assert!(fetched.iter().all(|path| path.starts_with(&cache)), "{said}");
    assert_eq!(after("the store's hub ").next(), Some(format!("{}/", hub.url()).as_str()));
    assert_eq!(after("the store's cache ").next(), cache.to_str());

    let served = hub.cdn.served();
    let found = puller(
        &dir.path().join("a"),
        StoreSettings { hub_cache: Some(cache.clone()), ..settings(&hub.url()) },
    );
    let record = found.pull("qwen/tiny", &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!(hub.cdn.served(), served, "no large file is fetched again");
    assert!(record.files.iter().filter(|file| file.held == FileOwner::Linked).count() >= 2);
    assert!(found.store().verify("tiny", |_| true).unwrap().is_sound());
    assert!(found.store().remove("tiny").unwrap().freed_bytes < 1 << 20);
    assert!(fetched.iter().all(|path| path.exists()), "they are not ours to delete");

    let offline = StoreSettings { offline: true, hub_cache: Some(cache), ..settings("http://127.0.0.1:1") };
    let without = puller(&dir.path().join("b"), offline);
    let record = without.pull("qwen/tiny", &PullOptions::default()).unwrap().done().await.unwrap();
    assert!(record.in_place && record.files.len() == 7 && Path::new(&record.path).is_dir());
    // What is in the store needs neither network nor cache.
    let offline = StoreSettings { offline: true, ..settings("http://127.0.0.1:1") };
    found.pull("qwen/tiny", &PullOptions::default()).unwrap().done().await.unwrap();
    drop(found);
    let stored = puller(&dir.path().join("a"), offline);
    let kept = stored.pull("QWEN/tiny", &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!(kept.name, "Qwen/Tiny");
    for options in [
        PullOptions { force: true, ..PullOptions::default() },
        PullOptions { revision: Some("v1".into()), ..PullOptions::default() },
    ] {
        let error = stored.pull("qwen/tiny", &options).unwrap().done().await.unwrap_err();
        assert!(matches!(&*error, PullError::Offline { .. }), "{error}");
    }
    std::fs::remove_file(kept.path.join("config.json")).unwrap();
    let error = stored.pull("qwen/tiny", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(matches!(&*error, PullError::Offline { .. }), "{error}");
    let error = without.pull("qwen/other", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(
        matches!(&*error, PullError::Offline { .. }) && error.to_string().contains("hf://qwen/other"),
        "{error}"
    );
}
