//! Pulls from an Ollama registry: a stand-in, and a real registry behind a front that asks for tokens.

use super::content::Content;
use super::registry::{LAYER, MANIFEST, Registry};
use super::{nothing_visible, puller, settings};
use hanzo_engine_store::{FileOwner, PullError, PullOptions, Role, StoreSettings};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn texts() -> Vec<(&'static str, Content)> {
    vec![
        ("template", Content::given("{{ .Prompt }}")),
        ("system", Content::given("You are kind.")),
        ("params", Content::given("{\"temperature\":0.3,\"stop\":[\"<|x|>\"]}")),
        ("license", Content::given("first")),
        ("license", Content::given("second")),
    ]
}

fn config() -> Content {
    Content::given(
        "{\"model_format\":\"gguf\",\"model_family\":\"llama\",\"model_type\":\"3.2B\",\"file_type\":\"Q4_K_M\"}",
    )
}

fn manifest(registry: &Registry, model: &Content) -> Value {
    let mut layers = vec![registry.layer(&format!("{LAYER}model"), model)];
    layers.extend(texts().iter().map(|(kind, text)| registry.layer(&format!("{LAYER}{kind}"), text)));
    let config = registry.layer("application/vnd.docker.container.image.v1+json", &config());
    json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_of_a_registry_with_its_texts() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(None).await;
    let model = Content::made(5, 40 << 20);
    registry.put("library/llama3.2/3b", &manifest(&registry, &model));
    let puller = puller(&dir.path().join("a"), settings(&registry.url()));
    let record = puller.pull("ollama://llama3.2:3b", &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!((record.name.as_str(), record.reference.as_str()), ("llama3.2:3b", "ollama://llama3.2:3b"));
    assert_eq!((record.architecture.as_str(), record.quantization.as_str()), ("llama", "Q4_K_M"));
    assert_eq!((record.parameters, record.files.len()), (3_200_000_000, 6));
    assert!(record.path.ends_with("model.gguf") && record.files[0].role == Role::Model);
    let texts = record.side_texts();
    assert_eq!(texts.template.as_deref(), Some("{{ .Prompt }}"));
    assert_eq!(texts.system.as_deref(), Some("You are kind."));
    assert_eq!(texts.license.as_deref(), Some("first\n\nsecond"));
    assert_eq!(hanzo_engine_store::texts_beside(&record.path), Some(texts));
    assert!(puller.store().verify("llama3.2", |_| true).unwrap().is_sound());
    // The token went to the registry alone.
    assert_eq!(*registry.cdn.credentials.lock().unwrap(), [""; 0]);
    assert!(registry.tokens.load(std::sync::atomic::Ordering::SeqCst) >= 1);
    let error = puller.pull("ollama://nobody:x", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(matches!(&*error, PullError::NotFound { .. }), "{error}");

    // Another model that shares the weights: they are fetched once, and stay while one has them.
    let mut other = manifest(&registry, &model);
    other["layers"].as_array_mut().unwrap().truncate(2);
    registry.put("me/other/latest", &other);
    let served = registry.cdn.served();
    let other = puller.pull("ollama://me/other", &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!(other.name, "me/other:latest");
    assert!(registry.cdn.served() < served + 1_000, "its configuration is all that came");
    let usage = puller.store().disk_usage().unwrap();
    assert_eq!((usage.models[0].shared_bytes, usage.orphan_bytes), (model.len() + 13, 0));
    assert!(puller.store().remove("llama3.2").unwrap().freed_bytes < 100);
    assert!(puller.store().verify("other", |_| true).unwrap().is_sound());
    assert_eq!(puller.store().remove("other").unwrap().freed_bytes, model.len() + 13);
    nothing_visible(puller.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ollamas_own_store_is_used_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(None).await;
    let model = Content::made(6, 8 << 20);
    let manifest = manifest(&registry, &model);
    registry.put("library/tiny/latest", &manifest);
    let ollama = dir.path().join("ollama");
    let blobs = ollama.join("blobs");
    let place = ollama.join("manifests/registry.ollama.ai/library/tiny");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("latest"), manifest.to_string()).unwrap();
    for content in texts().into_iter().map(|(_, text)| text).chain([model.clone(), config()]) {
        std::fs::write(blobs.join(format!("sha256-{}", content.sha256())), content.read(0, 1 << 40)).unwrap();
    }
    for offline in [false, true] {
        let settings =
            StoreSettings { ollama_store: Some(ollama.clone()), offline, ..settings(&registry.url()) };
        let puller = puller(&dir.path().join(offline.to_string()), settings);
        let record = puller.pull("ollama://tiny", &PullOptions::default()).unwrap().done().await.unwrap();
        assert!(record.in_place && record.files.iter().all(|file| file.held == FileOwner::Linked));
        assert_eq!(registry.cdn.served(), 0, "nothing is fetched");
        assert!(puller.store().verify("tiny", |_| true).unwrap().is_sound());
        assert_eq!(puller.store().remove("tiny").unwrap().freed_bytes, 0);
    }
    // One that was changed is not believed.
    let blob = blobs.join(format!("sha256-{}", model.sha256()));
    std::fs::write(&blob, vec![0; 8 << 20]).unwrap();
    let settings = StoreSettings { ollama_store: Some(ollama), ..settings(&registry.url()) };
    let puller = puller(&dir.path().join("c"), settings);
    let error = puller.pull("ollama://tiny", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(matches!(&*error, PullError::Refused { .. }), "{error}");
    nothing_visible(puller.store());
    let options = PullOptions { force: true, ..PullOptions::default() };
    puller.pull("ollama://tiny", &options).unwrap().done().await.unwrap();
}

/// A registry as Debian packages it, on a free port, for as long as this lives.
struct RealRegistry {
    child: Child,
    url: String,
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RealRegistry {
    async fn start(dir: &Path) -> Option<Self> {
        // A port that was free a moment ago; another program may take it, and then the registry ends.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = dir.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            dir.join("registry").display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: command.spawn().ok()?, url: format!("http://127.0.0.1:{port}") };
        for _ in 0..500 {
            if reqwest::get(format!("{}/v2/", registry.url))
                .await
                .is_ok_and(|answer| answer.status().is_success())
            {
                return Some(registry);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("docker-registry is there and does not answer");
    }

    /// Pushes a blob as the protocol has it: a place to upload to, then the bytes.
    async fn push(&self, client: &reqwest::Client, content: &Content) -> Value {
        let begun = client.post(format!("{}/v2/library/real/blobs/uploads/", self.url)).send().await.unwrap();
        let digest = format!("sha256:{}", content.sha256());
        let mut to = reqwest::Url::parse(begun.headers()["location"].to_str().unwrap()).unwrap();
        to.query_pairs_mut().append_pair("digest", &digest);
        let put = client.put(to).body(content.read(0, 1 << 40)).send().await.unwrap();
        assert_eq!(put.status(), 201);
        json!({ "digest": digest, "size": content.len() })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_registry() {
    let dir = tempfile::tempdir().unwrap();
    // Whoever asks first makes the client's cryptography.
    let puller = |at: &str, front: &Registry| puller(&dir.path().join(at), settings(&front.url()));
    let stand_in = Registry::start(None).await;
    drop(puller("warm", &stand_in));
    let Some(real) = RealRegistry::start(dir.path()).await else {
        eprintln!("NOT CHECKED: pulls from a real registry, because docker-registry is not installed");
        return;
    };
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let model = Content::made(9, 40 << 20);
    let mut layers = Vec::new();
    let all = [("model", model.clone())].into_iter().chain(texts());
    for (kind, content) in all {
        let mut layer = real.push(&client, &content).await;
        layer["mediaType"] = format!("{LAYER}{kind}").into();
        layers.push(layer);
    }
    let mut config = real.push(&client, &config()).await;
    config["mediaType"] = "application/vnd.docker.container.image.v1+json".into();
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
    let put = client
        .put(format!("{}/v2/library/real/manifests/latest", real.url))
        .header("content-type", MANIFEST)
        .body(manifest.to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(put.status(), 201);
    let host = real.url.strip_prefix("http://").unwrap();
    let front = Registry::start(Some(real.url.clone())).await;
    for (at, reference) in
        [("direct", format!("ollama://{host}/library/real")), ("front", "ollama://real".to_owned())]
    {
        let puller = puller(at, &front);
        let record = puller.pull(&reference, &PullOptions::default()).unwrap().done().await.unwrap();
        assert_eq!((record.name.as_str(), record.files.len()), ("real:latest", 6));
        assert!(puller.store().verify("real", |_| true).unwrap().is_sound());
    }
}
