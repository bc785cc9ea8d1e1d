//! A stand-in for an Ollama registry: token authentication, manifests, blobs behind a redirect to another host.
//! What it serves may come from a real registry behind it.

use super::content::Content;
use super::server::{Files, plain, serve};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response, Uri};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

pub(crate) const LAYER: &str = "application/vnd.ollama.image.";
pub(crate) const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

#[derive(Default)]
pub(crate) struct Registry {
    /// By `namespace/model/tag`.
    pub(crate) manifests: Mutex<HashMap<String, Vec<u8>>>,
    pub(crate) cdn: Arc<Files>,
    /// Tokens handed out; only the last is good.
    pub(crate) tokens: AtomicUsize,
    pub(crate) seen: Mutex<Vec<String>>,
    cdn_url: Mutex<String>,
    url: Mutex<String>,
    /// A registry without authentication that has the manifests and the blobs.
    pub(crate) behind: Option<String>,
}

impl Registry {
    pub(crate) async fn start(behind: Option<String>) -> Arc<Self> {
        let registry = Arc::new(Self { behind, ..Self::default() });
        let cdn = plain(&registry.cdn).await.replace("127.0.0.1", "localhost");
        *registry.cdn_url.lock().unwrap() = cdn;
        let shared = registry.clone();
        let router = Router::new().fallback(move |uri: Uri, headers: HeaderMap| {
            let registry = shared.clone();
            async move { registry.answer(&uri, &headers) }
        });
        *registry.url.lock().unwrap() = format!("http://{}", serve(router).await);
        registry
    }

    pub(crate) fn url(&self) -> String {
        self.url.lock().unwrap().clone()
    }

    /// A layer of a manifest, its blob served.
    pub(crate) fn layer(&self, kind: &str, content: &Content) -> Value {
        let digest = format!("sha256:{}", content.sha256());
        self.cdn.put(&format!("/{digest}"), content.clone());
        json!({ "mediaType": kind, "digest": digest, "size": content.len() })
    }

    pub(crate) fn put(&self, name: &str, manifest: &Value) {
        self.manifests.lock().unwrap().insert(name.to_owned(), manifest.to_string().into_bytes());
    }

    fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
        let plain = |status: u16, text: &str| {
            Response::builder().status(status).body(Body::from(text.to_owned())).unwrap()
        };
        if uri.path() == "/token" {
            assert!(
                uri.query().unwrap().contains("scope=repository") && headers.get("authorization").is_none()
            );
            let number = self.tokens.fetch_add(1, SeqCst) + 1;
            return plain(200, &json!({ "token": format!("t{number}"), "expires_in": 300 }).to_string());
        }
        let parts: Vec<&str> = uri.path().trim_start_matches('/').split('/').collect();
        let ["v2", namespace, model, kind, what] = parts[..] else { return plain(404, "no") };
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        self.seen.lock().unwrap().push(format!("{kind} {}", token.clone().unwrap_or_default()));
        if token != Some(format!("Bearer t{}", self.tokens.load(SeqCst))) {
            let realm = format!("{}/token", self.url());
            let ask = format!(
                "Bearer realm=\"{realm}\",service=\"registry\",scope=\"repository:{namespace}/{model}:pull\""
            );
            return Response::builder()
                .status(401)
                .header("www-authenticate", ask)
                .body(Body::empty())
                .unwrap();
        }
        match (kind, &self.behind) {
            ("manifests", None) => {
                let manifests = self.manifests.lock().unwrap();
                let Some(manifest) = manifests.get(&format!("{namespace}/{model}/{what}")) else {
                    return plain(404, "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}");
                };
                assert_eq!(headers["accept"], MANIFEST);
                let digest = Content::given(manifest.clone()).sha256();
                Response::builder()
                    .header("content-type", MANIFEST)
                    .header("docker-content-digest", format!("sha256:{digest}"))
                    .body(Body::from(manifest.clone()))
                    .unwrap()
            }
            ("blobs", None) => {
                let to = format!("{}/{what}?signature=x", self.cdn_url.lock().unwrap());
                Response::builder().status(307).header("location", to).body(Body::empty()).unwrap()
            }
            (_, Some(behind)) => {
                let to = format!("{behind}{}", uri.path());
                Response::builder().status(307).header("location", to).body(Body::empty()).unwrap()
            }
            _ => plain(404, "no"),
        }
    }
}
