//! Names, listings, manifests and redirects that no honest server sends: refused, every one, with nothing left
//! behind and nothing outside the store touched.

use super::content::{Content, mix};
use super::hub::Hub;
use super::registry::{LAYER, MANIFEST, Registry};
use super::server::{Files, plain, serve};
use super::{nothing_visible, puller, settings};
use axum::Router;
use axum::body::Body;
use axum::http::{Response, Uri};
use hanzo_engine_store::{PullError, PullOptions, Puller, Reference, StoreSettings};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Ways out of a folder, and names that mean different things to different readers.
fn bad_names(seed: u64) -> Vec<String> {
    let stems = ["x", "model", "a/b", "config", "weights-00001"];
    let tricks = [
        "../{}",
        "../../{}",
        "/{}",
        "//{}",
        "a/../../{}",
        "./{}",
        "{}/..",
        "{}/../..",
        "..\\{}",
        "C:\\{}",
        "C:{}",
        "\\\\host\\{}",
        "{}\0.x",
        "{}\n",
        "{}\r\nX: y",
        "\u{202e}{}",
        "{}\u{200b}",
        "\u{ff0e}\u{ff0e}/{}",
        "{}\u{0301}",
        "．．/{}",
        "{}%2f..%2f",
        "%2e%2e/{}",
        "~/{}",
        "~root/{}",
        "$HOME/{}",
        "`{}`",
        "{} ",
        "{}.",
        " {}",
        "-{}",
        ".{}",
        ".git/{}",
        ".hanzo-model.json/{}",
        "a//{}",
        "{}/",
        "con/{}",
        "NUL",
        "aux.{}",
        "com1",
        "LPT9.{}",
        "{}*",
        "{}?",
        "{}|x",
        "{}<",
        "{}>",
        "{}\"",
        "a/b/c/d/e/f/{}",
        "é{}",
        "\u{feff}{}",
        "{}\u{2215}x",
        "",
    ];
    tricks
        .iter()
        .enumerate()
        .map(|(at, trick)| {
            let stem = stems[(mix(seed + at as u64) % stems.len() as u64) as usize];
            let name = trick.replace("{}", stem);
            // One in three is very long too.
            if mix(seed ^ at as u64).is_multiple_of(3) { format!("{name}{}", "y".repeat(300)) } else { name }
        })
        .collect()
}

async fn refused(puller: &Puller, reference: &str, what: &str) -> Arc<PullError> {
    let result = match puller.pull(reference, &PullOptions::default()) {
        Ok(pull) => pull.done().await,
        Err(error) => Err(Arc::new(error)),
    };
    let error = match result {
        Ok(record) => panic!("{what} became {record:?}"),
        Err(error) => error,
    };
    let message = error.to_string();
    assert!(message.len() < 1_000 && !message.contains(['\n', '\r', '\0']), "{what}: {message:?}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_in_a_hubs_listing() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    let puller = puller(&dir.path().join("in/store"), settings(&hub.url()));
    let digest = Content::given("x").sha256();
    let mut cases = 0;
    let mut listings: Vec<(String, Vec<Value>)> = Vec::new();
    let file = |name: &str, size: Value, digest: &str| json!({ "rfilename": name, "size": size, "blobId": "a".repeat(40), "lfs": { "sha256": digest, "size": size } });
    for seed in 0..6 {
        for name in bad_names(seed) {
            // Asked for by a glob, so that the name itself is what is refused.
            listings.push((
                format!("name {name:?}"),
                vec![file(&format!("{name}.gguf"), 1.into(), &digest), file(&name, 1.into(), &digest)],
            ));
        }
    }
    let good = |name: &str| file(name, 1.into(), &digest);
    for size in [json!(-1), json!(1_u64 << 41), json!(u64::MAX), json!(1e300), json!("12"), json!(1.5)] {
        listings.push((format!("size {size}"), vec![file("m.gguf", size, &digest)]));
    }
    for bad in ["", "zz", &"g".repeat(64), &"a".repeat(63), "../../../etc/passwd", &"a".repeat(65)] {
        listings.push((format!("digest {bad:?}"), vec![file("m.gguf", 1.into(), bad)]));
    }
    listings.push(("twice".into(), vec![good("m.gguf"), good("m.gguf")]));
    listings.push(("twice by case".into(), vec![good("m.gguf"), good("M.gguf")]));
    listings.push(("a folder and a file".into(), vec![good("m.gguf"), good("m.gguf/x.gguf")]));
    listings.push(("too many".into(), (0..1_100).map(|at| good(&format!("m{at}.gguf"))).collect()));
    listings.push(("far too many".into(), (0..50_001).map(|at| good(&format!("m{at}.gguf"))).collect()));
    listings.push(("none".into(), vec![]));
    hub.put("a/b", &[("x.gguf", Content::given("x"))]);
    let commit = "c".repeat(40);
    let options = PullOptions { include: vec!["**".into()], ..PullOptions::default() };
    for (what, siblings) in listings {
        let listing = json!({ "id": "a/b", "sha": commit, "siblings": siblings });
        hub.change("a/b", |repo| repo.listing = Some(listing));
        let error = puller.pull("a/b", &options).unwrap().done().await.expect_err(&what);
        assert!(matches!(&*error, PullError::Refused { .. }), "{what}: {error}");
        cases += 1;
    }
    for (what, change) in [
        ("a name that leads away", json!({ "id": "../../etc", "sha": commit, "siblings": [good("m.gguf")] })),
        ("a name of another form", json!({ "id": "a/b/c", "sha": commit, "siblings": [good("m.gguf")] })),
        ("no commit", json!({ "id": "a/b", "siblings": [good("m.gguf")] })),
        ("a commit that leads away", json!({ "id": "a/b", "sha": "../../..", "siblings": [good("m.gguf")] })),
        ("no listing", json!([])),
        ("no object", json!("x")),
    ] {
        hub.change("a/b", |repo| repo.listing = Some(change));
        let error = puller.pull("a/b", &options).unwrap().done().await.expect_err(what);
        assert!(matches!(&*error, PullError::Refused { .. }), "{what}: {error}");
        cases += 1;
    }
    assert!(cases >= 300, "{cases} cases");
    assert_eq!(hub.cdn.requests.load(SeqCst), 0, "nothing was fetched");
    nothing_visible(puller.store());
    only_the_store(dir.path());
    println!("{cases} listings refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_of_a_registry() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(None).await;
    let puller = puller(&dir.path().join("in/store"), settings(&registry.url()));
    let model = registry.layer(&format!("{LAYER}model"), &Content::made(1, 1 << 16));
    let config = registry.layer("application/vnd.docker.container.image.v1+json", &Content::given("{}"));
    let whole = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [model] });
    let mut cases: Vec<(String, Value)> = Vec::new();
    let mut changed = |what: String, path: &str, value: Value| {
        let mut manifest = whole.clone();
        *manifest.pointer_mut(path).unwrap() = value;
        cases.push((what, manifest));
    };
    for kind in [
        "",
        "model",
        "text/html",
        "application/octet-stream",
        &format!("{LAYER}tensor"),
        &format!("{LAYER}model/../x"),
        "application/vnd.oci.image.layer.v1.tar+gzip",
        &format!("{LAYER}MODEL"),
    ] {
        changed(format!("layer type {kind}"), "/layers/0/mediaType", kind.into());
    }
    for (at, name) in bad_names(7).into_iter().enumerate() {
        changed(
            format!("digest {name:?}"),
            "/layers/0/digest",
            if at % 2 == 0 { name.into() } else { format!("sha256:{name}").into() },
        );
    }
    for (at, name) in bad_names(8).into_iter().enumerate() {
        changed(
            format!("configuration's digest {name:?}"),
            "/config/digest",
            if at % 2 == 0 { name.into() } else { format!("sha256:{name}").into() },
        );
    }
    for size in [
        json!(-1),
        json!(1_u64 << 42),
        json!("1"),
        json!(null),
        json!(1 << 15),
        json!((1 << 16) + 1),
        json!(0),
    ] {
        changed(format!("size {size}"), "/layers/0/size", size);
    }
    for version in [json!(1), json!(3), json!("2"), json!(null)] {
        changed(format!("schema {version}"), "/schemaVersion", version);
    }
    for kind in [
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.index.v1+json",
        "x",
    ] {
        changed(format!("type {kind}"), "/mediaType", kind.into());
    }
    changed("no layers".into(), "/layers", json!([]));
    changed("layers of no list".into(), "/layers", json!({}));
    changed("two models".into(), "/layers", json!([whole["layers"][0], whole["layers"][0]]));
    changed("no model".into(), "/layers/0/mediaType", format!("{LAYER}license").into());
    changed("two thousand layers".into(), "/layers", vec![whole["layers"][0].clone(); 2_000].into());
    let count = cases.len();
    for (what, manifest) in cases {
        registry.put("library/x/latest", &manifest);
        refused(&puller, "ollama://x", &what).await;
    }
    nothing_visible(puller.store());
    only_the_store(dir.path());
    // What it was made of is good.
    registry.put("library/x/latest", &whole);
    puller.pull("ollama://x", &PullOptions::default()).unwrap().done().await.unwrap();
    assert!(count >= 120, "{count} cases");
    println!("{count} manifests refused");
}

#[test]
fn references_that_lead_away() {
    let mut cases = 0;
    for seed in 20..22 {
        for name in bad_names(seed) {
            for form in [
                "hf://{}/x",
                "hf://x/{}",
                "hf://a/b@{}",
                "hf://a/b:{}",
                "ollama://{}",
                "ollama://a/{}",
                "ollama://a:{}",
                "mlx://{}",
            ] {
                let text = form.replace("{}", &name);
                match Reference::parse(&text) {
                    Err(_) => cases += 1,
                    // Some are names like others there: then nothing of them leads away.
                    Ok(reference) => {
                        let kept = reference.to_string();
                        assert!(
                            !kept.contains("..") && !kept.contains('\\') && kept.is_ascii(),
                            "{text:?} is {kept:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(cases >= 500, "{cases}");
}

/// Redirects: in circles, without end, down to plain http, to what is no address, to files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_that_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |uri: Uri| async move {
        let hop: u64 = uri.query().and_then(|query| query.parse().ok()).unwrap_or(0);
        let to = match uri.path() {
            "/self/m.gguf" => "/self/m.gguf".to_owned(),
            "/two/m.gguf" => "/owt/m.gguf".to_owned(),
            "/owt/m.gguf" => "/two/m.gguf".to_owned(),
            "/endless/m.gguf" => format!("/endless/m.gguf?{}", hop + 1),
            "/file/m.gguf" => "file:///etc/passwd".to_owned(),
            "/data/m.gguf" => "data:text/plain,GGUF".to_owned(),
            "/ftp/m.gguf" => "ftp://localhost/m.gguf".to_owned(),
            "/none/m.gguf" => String::new(),
            _ => "http://[".to_owned(),
        };
        let answer = Response::builder().status(302);
        let answer = if to.is_empty() { answer } else { answer.header("location", to) };
        answer.body(Body::empty()).unwrap()
    };
    let url = format!("http://{}", serve(Router::new().fallback(answer)).await);
    let puller = puller(&dir.path().join("in/store"), settings(&url));
    for case in ["self", "two", "endless", "file", "data", "ftp", "none", "broken"] {
        let error = refused(&puller, &format!("{url}/{case}/m.gguf"), case).await;
        assert!(matches!(&*error, PullError::Redirect { .. }), "{case}: {error}");
    }
    nothing_visible(puller.store());
    only_the_store(dir.path());
}

/// A server of the internet sends to this machine, its network and its cloud's metadata; the proxy of the test stands
/// for the internet. Nothing near is asked for anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_from_afar_to_near_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let near = Arc::new(Files::default());
    let near_at = plain(&near).await;
    let targets = [
        near_at.clone(),
        near_at.replace("127.0.0.1", "localhost"),
        near_at.replace("127.0.0.1", "localhost."),
        near_at.replace("127.0.0.1", "[::ffff:127.0.0.1]"),
        near_at.replace("127.0.0.1", "2130706433"),
        near_at.replace("127.0.0.1", "0"),
        "http://10.0.0.1".to_owned(),
        "http://192.168.0.1:8080".to_owned(),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "http://100.100.100.200".to_owned(),
        "http://[fd00:ec2::254]".to_owned(),
        "http://[fe80::1]".to_owned(),
        "http://[64:ff9b::a9fe:a9fe]".to_owned(),
    ];
    let shared = targets.clone();
    let asked = Arc::new(Files::default());
    let log = asked.clone();
    let answer = move |uri: Uri| {
        let (targets, log) = (shared.clone(), log.clone());
        async move {
            log.log.lock().unwrap().push(uri.to_string());
            let path = uri.path().trim_start_matches('/');
            let number = path.split('/').next().and_then(|number| number.parse::<usize>().ok());
            let to = number.map_or("http://10.9.9.9".to_owned(), |number| targets[number].clone());
            let answer = Response::builder().header("location", format!("{to}/m.gguf"));
            // A registry may send for a token, too.
            let challenge = format!("Bearer realm=\"{to}/token\",service=\"x\"");
            let status = if path.starts_with("v2") { 401 } else { 302 };
            answer.header("www-authenticate", challenge).status(status).body(Body::empty()).unwrap()
        }
    };
    let proxy = format!("http://{}", serve(Router::new().fallback(answer)).await);
    let afar = "http://203.0.113.5";
    let settings = StoreSettings { proxy: Some(proxy.parse().unwrap()), ..settings(afar) };
    let puller = puller(&dir.path().join("in/store"), settings);
    let digest = "#sha256=".to_owned() + &"a".repeat(64);
    for (at, target) in targets.iter().enumerate() {
        let error = refused(&puller, &format!("{afar}/{at}/m.gguf{digest}"), target).await;
        let told = error.to_string();
        assert!(matches!(&*error, PullError::Redirect { .. }), "{target}: {told}");
        assert!(told.contains("this machine") || told.contains("a private network"), "{target}: {told}");
    }
    // The listing of a hub, and the token of a registry.
    let listing = refused(&puller, "a/b", "a listing").await;
    assert!(matches!(&*listing, PullError::Redirect { .. }), "{listing}");
    let token = refused(&puller, "ollama://x", "a token").await.to_string();
    assert!(token.contains("token"), "{token}");
    let asked = asked.log.lock().unwrap();
    assert!(asked.len() >= targets.len() && asked.iter().all(|url| url.starts_with(afar)), "{asked:?}");
    assert_eq!(near.requests.load(SeqCst), 0, "nothing near was asked");
    nothing_visible(puller.store());
}

/// A listing, a manifest and a token that come a byte at a time, for ever: each byte in time, and never the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_trickle_end() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |uri: Uri| async move {
        let trickle = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            Some((Ok::<_, std::io::Error>(axum::body::Bytes::from_static(b" ")), ()))
        });
        Response::builder()
            .status(if uri.path() == "/v2/library/asks/manifests/latest" { 401 } else { 200 })
            .header("www-authenticate", "Bearer realm=\"http://localhost:1/\"")
            .body(Body::from_stream(trickle))
            .unwrap()
    };
    let url = format!("http://{}", serve(Router::new().fallback(answer)).await);
    let settings = StoreSettings { answer: std::time::Duration::from_millis(400), ..settings(&url) };
    let puller = puller(&dir.path().join("in/store"), settings);
    for reference in ["a/b", "ollama://x"] {
        let began = std::time::Instant::now();
        let error = refused(&puller, reference, reference).await;
        assert!(error.to_string().contains("bytes of it came in 0.4 s"), "{reference}: {error}");
        // Not tried again and again; an hour is what the test would take without the bound.
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    }
    nothing_visible(puller.store());
}

/// A file that comes a byte at a time, for ever, with ranges and without: an end, and not a place among the pulls that is
/// never free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_trickle_end() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |uri: Uri| async move {
        let trickle = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            Some((Ok::<_, std::io::Error>(axum::body::Bytes::from_static(b"G")), ()))
        });
        let ranges = uri.path().starts_with("/ranges");
        let answer = Response::builder().status(if ranges { 206 } else { 200 });
        let answer = match ranges {
            true => answer.header("content-range", "bytes 0-9999999/10000000"),
            false => answer.header("content-length", 10_000_000),
        };
        answer.body(Body::from_stream(trickle)).unwrap()
    };
    let url = format!("http://{}", serve(Router::new().fallback(answer)).await);
    let settings = StoreSettings { stall: std::time::Duration::from_millis(150), ..settings(&url) };
    let puller = puller(&dir.path().join("in/store"), settings);
    for path in ["whole", "ranges"] {
        let began = std::time::Instant::now();
        let error = refused(&puller, &format!("{url}/{path}/m.gguf"), path).await.to_string();
        assert!(error.contains("failed 8 times") || error.contains("changed"), "{path}: {error}");
        assert!(began.elapsed().as_secs() < 30, "{path}: {:?}", began.elapsed());
    }
    nothing_visible(puller.store());
}

/// A token is for one origin: not for another host, not for another port of the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_stay_where_they_belong() {
    let dir = tempfile::tempdir().unwrap();
    let (other, same_host) = (Arc::new(Files::default()), Arc::new(Files::default()));
    let content = Content::made(3, 1 << 20);
    for files in [&other, &same_host] {
        files.put("/x", content.clone());
    }
    let targets = [plain(&other).await.replace("127.0.0.1", "localhost"), plain(&same_host).await];
    for (at, target) in targets.into_iter().enumerate() {
        let (content, seen) = (content.clone(), Arc::new(Files::default()));
        let log = seen.clone();
        let answer = move |uri: Uri, headers: axum::http::HeaderMap| {
            let (target, content, log) = (target.clone(), content.clone(), log.clone());
            async move {
                let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
                log.credentials.lock().unwrap().extend(token);
                if uri.path().starts_with("/api") {
                    let lfs = json!({ "sha256": content.sha256(), "size": content.len() });
                    let siblings = json!([{ "rfilename": "m.gguf", "size": content.len(), "lfs": lfs }]);
                    let listing = json!({ "id": "a/b", "sha": "c".repeat(40), "siblings": siblings });
                    return Response::new(Body::from(listing.to_string()));
                }
                Response::builder()
                    .status(302)
                    .header("location", format!("{target}/x"))
                    .body(Body::empty())
                    .unwrap()
            }
        };
        let hub = format!("http://{}", serve(Router::new().fallback(answer)).await);
        let settings = StoreSettings { hub_token: Some("hf_secret".into()), ..settings(&hub) };
        let puller = puller(&dir.path().join(at.to_string()), settings);
        puller.pull("a/b", &PullOptions::default()).unwrap().done().await.unwrap();
        assert!(!seen.credentials.lock().unwrap().is_empty());
    }
    assert_eq!(*other.credentials.lock().unwrap(), [""; 0]);
    assert_eq!(*same_host.credentials.lock().unwrap(), [""; 0]);
}

/// Nothing was written beside the store.
fn only_the_store(dir: &std::path::Path) {
    let names = |dir: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(dir), ["in"]);
    assert_eq!(names(&dir.join("in")), ["store"]);
    let mut inside = names(&dir.join("in/store"));
    inside.sort();
    assert_eq!(inside, ["blobs", "db", "ledger", "lock", "models", "partial", "reserve"]);
}
