//! A stand-in for Hugging Face's hub: the API's listing, `resolve` with its headers, large files behind a redirect
//! to another host, gated and renamed repositories.

use super::content::{Content, hex};
use super::server::{Files, plain, serve};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response, Uri};
use serde_json::json;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// One repository.
#[derive(Clone, Default)]
pub(crate) struct Repo {
    pub(crate) files: Vec<(String, Content)>,
    /// Only this token's bearer may have the files.
    pub(crate) gated_for: Option<String>,
    /// Nobody may know of it.
    pub(crate) private: bool,
    /// Put in place of the listing.
    pub(crate) listing: Option<serde_json::Value>,
}

/// The hub and its content network.
pub(crate) struct Hub {
    pub(crate) repos: Mutex<HashMap<String, Repo>>,
    pub(crate) renamed: Mutex<HashMap<String, String>>,
    pub(crate) cdn: Arc<Files>,
    pub(crate) credentials: Mutex<Vec<String>>,
    pub(crate) api_requests: AtomicUsize,
    cdn_url: String,
    pub(crate) url: Mutex<String>,
}

pub(crate) const TOKEN: &str = "hf_secret";

impl Hub {
    pub(crate) async fn start() -> Arc<Self> {
        let cdn = Arc::new(Files::default());
        // Another name for the same machine: another host for whoever holds credentials.
        let cdn_url = plain(&cdn).await.replace("127.0.0.1", "localhost");
        let hub = Arc::new(Self {
            repos: Mutex::default(),
            renamed: Mutex::default(),
            cdn,
            credentials: Mutex::default(),
            api_requests: AtomicUsize::new(0),
            cdn_url,
            url: Mutex::default(),
        });
        let shared = hub.clone();
        let router = Router::new().fallback(move |uri: Uri, headers: HeaderMap| {
            let hub = shared.clone();
            async move { hub.answer(&uri, &headers) }
        });
        *hub.url.lock().unwrap() = format!("http://{}", serve(router).await);
        hub
    }

    pub(crate) fn url(&self) -> String {
        self.url.lock().unwrap().clone()
    }

    pub(crate) fn put(&self, name: &str, files: &[(&str, Content)]) {
        let files = files.iter().map(|(name, content)| ((*name).to_owned(), content.clone())).collect();
        self.repos.lock().unwrap().insert(name.to_owned(), Repo { files, ..Repo::default() });
    }

    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Repo)) {
        change(self.repos.lock().unwrap().get_mut(name).unwrap());
    }

    /// The commit of a repository: of what is in it.
    pub(crate) fn commit(repo: &Repo) -> String {
        let digests: String =
            repo.files.iter().map(|(name, content)| format!("{name}{}", content.git())).collect();
        Content::given(digests.into_bytes()).git()
    }

    fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
        let token = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        self.credentials.lock().unwrap().extend(token.clone());
        let path = uri.path().trim_start_matches('/');
        let parts: Vec<&str> = path.split('/').collect();
        let (api, owner, name, rest) = match parts[..] {
            ["api", "models", owner, name, ref rest @ ..] => (true, owner, name, rest),
            [owner, name, "resolve", ref rest @ ..] => (false, owner, name, rest),
            _ => return status(404, "EntryNotFound"),
        };
        let asked = format!("{owner}/{name}");
        let canonical =
            self.repos.lock().unwrap().keys().find(|known| known.eq_ignore_ascii_case(&asked)).cloned();
        let canonical = self.renamed.lock().unwrap().get(&asked).cloned().or(canonical);
        let Some(canonical) = canonical else { return status(401, "RepoNotFound") };
        if canonical != asked {
            let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            let to = uri.path().replacen(&asked, &canonical, 1) + &query;
            return Response::builder().status(307).header("location", to).body(Body::empty()).unwrap();
        }
        let repo = self.repos.lock().unwrap()[&canonical].clone();
        if repo.private {
            return status(401, "RepoNotFound");
        }
        let commit = Self::commit(&repo);
        let revision = if api { rest.get(1) } else { rest.first() };
        if revision.is_some_and(|revision| ![commit.as_str(), "main"].contains(revision)) {
            return status(404, "RevisionNotFound");
        }
        if api {
            self.api_requests.fetch_add(1, SeqCst);
            let blobs = uri.query().is_some_and(|query| query.contains("blobs=true"));
            let listing = repo.listing.clone().unwrap_or_else(|| listing(&canonical, &commit, &repo, blobs));
            let body = Body::from(listing.to_string());
            return Response::builder().header("content-type", "application/json").body(body).unwrap();
        }
        if let Some(wanted) = &repo.gated_for
            && token != Some(format!("Bearer {wanted}"))
        {
            return status(if token.is_some() { 403 } else { 401 }, "GatedRepo");
        }
        let file = rest[1..].join("/").replace("%20", " ");
        let found = repo.files.iter().find(|(name, _)| *name == file);
        let Some((_, content)) = found else { return status(404, "EntryNotFound") };
        if is_large(&file) {
            let sha256 = content.sha256();
            let at = format!("/{sha256}");
            self.cdn.put(&at, content.clone());
            return Response::builder()
                .status(302)
                .header("x-repo-commit", &commit)
                .header("etag", format!("\"{sha256}\""))
                .header("x-linked-etag", format!("\"{sha256}\""))
                .header("x-linked-size", content.len())
                .header("accept-ranges", "bytes")
                .header("location", format!("{}{at}?X-Amz-Signature=secret", self.cdn_url))
                .body(Body::empty())
                .unwrap();
        }
        let direct = Arc::new(Files::default());
        direct.put("/file", content.clone());
        let mut answer = direct.answer("/file", headers);
        answer.headers_mut().insert("x-repo-commit", commit.parse().unwrap());
        answer.headers_mut().insert("etag", format!("\"{}\"", content.git()).parse().unwrap());
        answer
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors")
}

fn listing(id: &str, commit: &str, repo: &Repo, blobs: bool) -> serde_json::Value {
    let sibling = |(name, content): &(String, Content)| {
        if !blobs {
            return json!({ "rfilename": name });
        }
        let mut sibling = json!({ "rfilename": name, "size": content.len(), "blobId": content.git() });
        if is_large(name) {
            sibling["lfs"] = json!({ "sha256": content.sha256(), "size": content.len(), "pointerSize": 135 });
        }
        sibling
    };
    let siblings: Vec<_> = repo.files.iter().map(sibling).collect();
    json!({
        "_id": hex(&[1; 12]), "id": id, "modelId": id, "sha": commit, "private": false, "gated": "auto", "tags": [],
        "siblings": siblings, "cardData": { "license": "apache-2.0" }, "pipeline_tag": "text-generation",
    })
}

fn status(status: u16, code: &str) -> Response<Body> {
    let answer = Response::builder().status(status).header("x-error-code", code);
    answer.body(Body::from(format!("{{\"error\":\"{code}\"}}"))).unwrap()
}
