//! Source for Hugging Face's hub: a repository's files at a revision, from the hub's API, or offline from
//! Hugging Face's cache on this machine.

use crate::PullError;
use crate::digest::Digest;
use crate::http::{Auth, Get, Http, shown};
use crate::limits::{LISTED_FILES_MAX, MANIFEST_BYTES_MAX};
use crate::plan::{ModelPlan, Origin, PlanFile};
use crate::record::Description;
use crate::reference::{HubReference, Reference};
use crate::settings::StoreSettings;
use crate::source::choose::{Chosen, Globs, ListedFile, Wish, choose, role_of, short_name};
use crate::source::here::HubCache;
use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use std::path::PathBuf;

const MODULES: &str = "modules.json";

/// Description of a repository by the API.
#[derive(Deserialize)]
struct Info {
    id: Option<String>,
    #[serde(rename = "modelId")]
    model_id: Option<String>,
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<HubFile>,
    #[serde(rename = "cardData")]
    card: Option<serde_json::Value>,
    gguf: Option<GgufInfo>,
}

#[derive(Deserialize)]
struct HubFile {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    oid: Option<String>,
    size: Option<u64>,
}

#[derive(Deserialize, Default)]
struct GgufInfo {
    architecture: Option<String>,
    context_length: Option<u32>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
}

/// Repository at a commit.
pub(crate) struct Repository {
    /// `owner/repo` as the hub writes it.
    id: String,
    commit: String,
    pub(crate) listing: Vec<ListedFile>,
    license: Option<String>,
    gguf: GgufInfo,
    /// Folder of the files in the local cache, if offline.
    here: Option<PathBuf>,
}

/// Plans the download of the requested files of a repository.
pub(crate) async fn plan(
    http: &Http,
    settings: &StoreSettings,
    reference: &HubReference,
    include: &Globs,
    exclude: &Globs,
) -> Result<ModelPlan, PullError> {
    let repository = match (settings.offline, &settings.hub_cache) {
        (false, _) => fetch_repository(http, settings, reference).await?,
        (true, cache) => cached(cache.clone(), reference)?,
    };
    let commit = &repository.commit;
    let auth = settings.hub_token.as_ref().map(|token| Auth::token(&settings.hub, token));
    let origin = |name: &str| match &repository.here {
        Some(folder) => Origin::Here(folder.join(name)),
        None => {
            Origin::Url { url: file_url(&settings.hub, &repository.id, commit, name), auth: auth.clone() }
        }
    };
    let folders = match repository.listing.iter().any(|file| file.name == MODULES) {
        true => module_folders(http, &origin(MODULES)).await?,
        false => Vec::new(),
    };
    let wish = Wish { choice: reference.choice.as_deref(), mlx: reference.mlx, include, exclude };
    let chosen = choose(&repository.id, &repository.listing, &folders, &wish)?;
    let files = chosen.files.iter().map(|at| {
        let ListedFile { name, size_bytes, digest } = repository.listing[*at].clone();
        let role = role_of(&name);
        PlanFile { origin: origin(&name), name, role, size_bytes, digest }
    });
    let files = files.collect();
    let kept =
        HubReference { repo: repository.id.clone(), choice: chosen.choice.clone(), ..reference.clone() };
    Ok(ModelPlan {
        name: name_of(&repository.id, reference, &chosen),
        reference: Reference::Hub(kept).to_string(),
        source: page(&settings.hub, &repository.id),
        revision: Some(commit.clone()),
        said: Description {
            format: chosen.format.to_owned(),
            architecture: repository.gguf.architecture.unwrap_or_default(),
            quantization: chosen.quantization.unwrap_or_default(),
            parameters: 0,
            context_tokens_max: repository.gguf.context_length.unwrap_or(0),
            license: repository.license,
        },
        files,
    })
}

/// Advice for the user when the hub refuses access.
pub(crate) fn gate_hint(settings: &StoreSettings, repo: &str) -> String {
    let page = page(&settings.hub, repo);
    match settings.hub_token {
        Some(_) => format!("accept its licence at {page} with the account that HF_TOKEN belongs to"),
        None => format!("accept its licence at {page}, then set HF_TOKEN to a token of that account"),
    }
}

fn page(hub: &Url, repo: &str) -> String {
    format!("{}/{repo}", hub.as_str().trim_end_matches('/'))
}

/// Builds `hub/a/b/…` with every part escaped.
fn address(hub: &Url, parts: &[&str]) -> Url {
    let mut url = hub.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    url
}

fn file_url(hub: &Url, repo: &str, commit: &str, name: &str) -> Url {
    let parts: Vec<&str> = repo.split('/').chain(["resolve", commit]).chain(name.split('/')).collect();
    address(hub, &parts)
}

async fn fetch_repository(
    http: &Http,
    settings: &StoreSettings,
    wanted: &HubReference,
) -> Result<Repository, PullError> {
    let revision = wanted.revision.as_deref().unwrap_or("main");
    let repo: Vec<&str> = wanted.repo.split('/').collect();
    let parts: Vec<&str> = ["api", "models"].into_iter().chain(repo).chain(["revision", revision]).collect();
    let mut url = address(&settings.hub, &parts);
    url.set_query(Some("blobs=true"));
    let auth = settings.hub_token.as_ref().map(|token| Auth::token(&settings.hub, token));
    let request = Get {
        url: &url,
        auth: auth.as_ref(),
        range: None,
        accept: Some("application/json"),
        led_by_public: false,
    };
    let no = |status: StatusCode, headers: &HeaderMap| no_such(settings, wanted, status, headers);
    let (body, _) = http.small(&request, MANIFEST_BYTES_MAX, no).await?;
    repository(wanted, &body)
        .map_err(|why| PullError::refused(&wanted.repo, format!("the hub's listing: {why}")))
}

/// Parses the hub's listing, or returns why it is invalid.
pub(crate) fn repository(wanted: &HubReference, listing: &[u8]) -> Result<Repository, String> {
    let info: Info = serde_json::from_slice(listing).map_err(|error| error.to_string())?;
    if info.siblings.len() > LISTED_FILES_MAX {
        return Err(format!("{} files, and {LISTED_FILES_MAX} is the most", info.siblings.len()));
    }
    let id = info.id.or(info.model_id).unwrap_or_else(|| wanted.repo.clone());
    match Reference::parse(&format!("hf://{id}")) {
        Ok(Reference::Hub(HubReference { revision: None, choice: None, .. })) => {}
        _ => return Err("its name is no owner/repo".to_owned()),
    }
    let commit = info.sha.filter(|sha| crate::digest::is_hex(sha, 40));
    let commit = commit.ok_or("it names no commit")?;
    let listing = info.siblings.into_iter().map(HubFile::listed).collect::<Result<_, _>>()?;
    let license = info.card.as_ref().and_then(|card| card["license"].as_str()).map(str::to_owned);
    let gguf = info.gguf.unwrap_or_default();
    Ok(Repository { id, commit, listing, license, gguf, here: None })
}

impl HubFile {
    fn listed(self) -> Result<ListedFile, String> {
        let name = self.rfilename;
        let bad = |what: &str| format!("{:?}: {what}", crate::name::cut_name(&name));
        let digest = match &self.lfs {
            Some(lfs) => {
                let hex = lfs.sha256.as_ref().or(lfs.oid.as_ref()).ok_or_else(|| bad("no digest"))?;
                Some(Digest::sha256(hex).ok_or_else(|| bad("its digest is no SHA-256"))?)
            }
            None => self
                .blob_id
                .as_deref()
                .map(|id| Digest::git(id).ok_or_else(|| bad("its digest is no SHA-1")))
                .transpose()?,
        };
        let size_bytes = self.lfs.and_then(|lfs| lfs.size).or(self.size);
        // Git's digest covers the length, so it is useful only if the length is known.
        let digest = digest.filter(|digest| size_bytes.is_some() || matches!(digest, Digest::Sha256(_)));
        Ok(ListedFile { name, size_bytes, digest })
    }
}

/// Turns an error status of the hub into an error with advice.
fn no_such(
    settings: &StoreSettings,
    wanted: &HubReference,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<PullError> {
    let code = headers.get("x-error-code").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let what = wanted.repo.clone();
    let page = page(&settings.hub, &wanted.repo);
    match (status.as_u16(), code) {
        (404, "RevisionNotFound") => {
            let revision = wanted.revision.as_deref().unwrap_or("main");
            Some(PullError::NotFound { what: format!("{what}@{revision}"), hint: format!("look at {page}") })
        }
        (404, _) => Some(PullError::NotFound { what, hint: format!("look at {page}") }),
        (status @ (401 | 403), "GatedRepo") => {
            let hint = gate_hint(settings, &wanted.repo);
            Some(PullError::Forbidden { what, status, hint })
        }
        (status @ (401 | 403), _) => {
            let hint = match settings.hub_token {
                None => format!(
                    "there is no public repository of that name; look at {page}, and set HF_TOKEN if it is private or asks for its licence to be accepted"
                ),
                Some(_) => format!("HF_TOKEN gives no access to it; look at {page}"),
            };
            Some(PullError::Forbidden { what, status, hint })
        }
        _ => None,
    }
}

/// Reads the folders that `modules.json` names: parts of a sentence-transformers model.
async fn module_folders(http: &Http, origin: &Origin) -> Result<Vec<String>, PullError> {
    let (text, what) = match origin {
        Origin::Url { url, auth } => {
            let get = Get { url, auth: auth.as_ref(), range: None, accept: None, led_by_public: false };
            (http.small(&get, MANIFEST_BYTES_MAX, |_, _| None).await?.0, shown(url))
        }
        Origin::Here(path) | Origin::Copy(path) => {
            let read = std::fs::read(path).map_err(crate::download::disk(path))?;
            (read, path.display().to_string())
        }
    };
    parse_modules(&text).map_err(|why| PullError::refused(what, why))
}

/// Parses the folders in a `modules.json`.
pub(crate) fn parse_modules(text: &[u8]) -> Result<Vec<String>, String> {
    let modules: Vec<Module> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    Ok(modules.into_iter().map(|module| module.path).filter(|path| !path.is_empty()).collect())
}

/// Looks the repository up in the cache of Hugging Face's own programs.
fn cached(cache: Option<PathBuf>, wanted: &HubReference) -> Result<Repository, PullError> {
    let offline = || PullError::Offline { what: Reference::Hub(wanted.clone()).to_string() };
    let cache = HubCache::new(cache.ok_or_else(offline)?);
    let snapshot = cache.snapshot(&wanted.repo, wanted.revision.as_deref()).ok_or_else(offline)?;
    Ok(Repository {
        id: snapshot.repo,
        commit: snapshot.commit,
        listing: snapshot.files,
        license: None,
        gguf: GgufInfo::default(),
        here: Some(snapshot.folder),
    })
}

/// Name for the store: `owner/repo`. For GGUF, without the word GGUF and with the quantisation.
fn name_of(id: &str, reference: &HubReference, chosen: &Chosen) -> String {
    let revision = reference.revision.as_deref().map(|revision| format!("-{}", revision.replace('/', "-")));
    let revision = revision.unwrap_or_default();
    if let ("ggml" | "onnx", Some(file)) = (chosen.format, &chosen.choice) {
        return format!("{id}{revision}:{}", short_name(file));
    }
    if chosen.format != "gguf" {
        return format!("{id}{revision}");
    }
    let base = match id.len().checked_sub(5).filter(|at| id.is_char_boundary(*at)) {
        Some(at) if id[at..].eq_ignore_ascii_case("-gguf") && !id[..at].ends_with('/') => &id[..at],
        _ => id,
    };
    match &chosen.quantization {
        Some(quantization) => format!("{base}{revision}:{quantization}"),
        None => format!("{base}{revision}"),
    }
}
