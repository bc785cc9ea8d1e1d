//! Source for Ollama's registry: a manifest whose layers are a GGUF file and the texts that belong to it.

use crate::PullError;
use crate::digest::{Digest, sha256_of};
use crate::http::{Auth, Get, Http};
use crate::limits::{FILES_MAX, MANIFEST_BYTES_MAX};
use crate::plan::{ModelPlan, Origin, PlanFile};
use crate::record::{Description, Role};
use crate::reference::{OLLAMA_LIBRARY, OllamaReference, Reference, is_loopback};
use crate::settings::StoreSettings;
use crate::source::here::{Elsewhere, ollama_manifest};
use reqwest::{StatusCode, Url};
use serde::Deserialize;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.ollama.image.";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    media_type: Option<String>,
    config: ManifestLayer,
    layers: Vec<ManifestLayer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManifestLayer {
    media_type: String,
    digest: String,
    size: u64,
}

/// Model description in a manifest's configuration.
#[derive(Deserialize, Default)]
struct ManifestConfig {
    #[serde(default)]
    model_format: String,
    #[serde(default)]
    model_family: String,
    #[serde(default)]
    model_type: String,
    #[serde(default)]
    file_type: String,
}

/// Plans the download of a model of a registry.
pub(crate) async fn plan(
    http: &Http,
    settings: &StoreSettings,
    wanted: &OllamaReference,
) -> Result<ModelPlan, PullError> {
    let what = Reference::Ollama(wanted.clone()).to_string();
    let registry = registry(settings, wanted)?;
    let auth = Auth::when_asked(&registry);
    let body = match (settings.offline, &settings.ollama_store) {
        (false, _) => manifest(http, &registry, &auth, wanted, &what).await?,
        (true, store) => {
            let known = store.as_ref().and_then(|store| ollama_manifest(store, wanted));
            known.ok_or_else(|| PullError::Offline { what: what.clone() })?
        }
    };
    let refused = |why: String| PullError::refused(&what, format!("its manifest: {why}"));
    let (manifest, packed) = read(&body).map_err(refused)?;
    let blob = |digest: &str| {
        let parts = ["v2", &wanted.namespace, &wanted.model, "blobs", digest];
        address(&registry, &parts)
    };
    let config =
        config(http, settings, &manifest.config, &blob, &auth).await.map_err(|error| match error {
            PullError::Refused { why, .. } => refused(format!("its configuration: {why}")),
            other => other,
        })?;
    let files = manifest.layers.iter().zip(packed).map(|(layer, (name, role, digest))| {
        let origin = Origin::Url { url: blob(&layer.digest), auth: Some(auth.clone()) };
        PlanFile { name, role, size_bytes: Some(layer.size), digest: Some(digest), origin }
    });
    let mut files: Vec<_> = files.collect();
    files.sort_by_key(|file| file.role != Role::Model);
    Ok(ModelPlan {
        name: name_of(wanted),
        reference: what,
        source: address(&registry, &[&wanted.namespace, &format!("{}:{}", wanted.model, wanted.tag)]).into(),
        revision: Some(format!("sha256:{}", sha256_of(&body))),
        said: Description {
            format: if config.model_format.is_empty() { "gguf".to_owned() } else { config.model_format },
            architecture: config.model_family,
            quantization: config.file_type,
            parameters: parameters(&config.model_type),
            context_tokens_max: 0,
            license: None,
        },
        files,
    })
}

/// Layers of a manifest: each file's name, role and digest.
type Packed = Vec<(String, Role, Digest)>;

/// Parses a manifest and its layers, or returns why it is invalid.
pub(crate) fn read(body: &[u8]) -> Result<(Manifest, Packed), String> {
    let manifest: Manifest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let kind = manifest.media_type.as_deref().unwrap_or(MANIFEST);
    if manifest.schema_version != 2 || ![MANIFEST, OCI_MANIFEST].contains(&kind) {
        return Err(format!("schema {} of type {kind:?} is not known", manifest.schema_version));
    }
    if manifest.layers.len() > FILES_MAX {
        return Err(format!("{} layers, and {FILES_MAX} is the most", manifest.layers.len()));
    }
    let mut files = Packed::new();
    let mut licenses = 0;
    for layer in &manifest.layers {
        let digest = Digest::sha256(&layer.digest).filter(|_| layer.digest.starts_with("sha256:"));
        let digest = digest.ok_or_else(|| format!("{:?} is no digest", cut(&layer.digest)))?;
        let (name, role) = match layer.media_type.strip_prefix(LAYER) {
            Some("model") => ("model.gguf".to_owned(), Role::Model),
            Some("projector") => ("mmproj.gguf".to_owned(), Role::Projector),
            Some("adapter") => ("adapter.gguf".to_owned(), Role::Adapter),
            Some("template") => ("template.txt".to_owned(), Role::Template),
            Some("system") => ("system.txt".to_owned(), Role::System),
            Some("params") => ("params.json".to_owned(), Role::Params),
            Some("messages") => ("messages.json".to_owned(), Role::Messages),
            Some("license") => {
                licenses += 1;
                (format!("license-{licenses}.txt"), Role::License)
            }
            _ => return Err(format!("a layer of type {:?} is not known", cut(&layer.media_type))),
        };
        files.push((name, role, digest));
    }
    match files.iter().any(|(_, role, _)| *role == Role::Model) {
        true => Ok((manifest, files)),
        false => Err("no layer is a model".to_owned()),
    }
}

/// Address of the registry: `https://host`, or plain http for a registry on this machine.
fn registry(settings: &StoreSettings, wanted: &OllamaReference) -> Result<Url, PullError> {
    let Some(host) = &wanted.host else { return Ok(settings.ollama.clone()) };
    let parse = |scheme: &str| Url::parse(&format!("{scheme}://{host}"));
    let url = parse("https").map_err(|error| PullError::refused(host, error.to_string()))?;
    match is_loopback(&url) {
        true => parse("http").map_err(|error| PullError::refused(host, error.to_string())),
        false => Ok(url),
    }
}

fn address(registry: &Url, parts: &[&str]) -> Url {
    let mut url = registry.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    url
}

async fn manifest(
    http: &Http,
    registry: &Url,
    auth: &Auth,
    wanted: &OllamaReference,
    what: &str,
) -> Result<Vec<u8>, PullError> {
    let url = address(registry, &["v2", &wanted.namespace, &wanted.model, "manifests", &wanted.tag]);
    let get = Get { url: &url, auth: Some(auth), range: None, accept: Some(MANIFEST), led_by_public: false };
    let no = |status: StatusCode, _: &_| {
        let (what, page) = (what.to_owned(), registry.as_str().trim_end_matches('/'));
        match status.as_u16() {
            404 => Some(PullError::NotFound { what, hint: format!("{page} has no such model or tag") }),
            status @ (401 | 403) => Some(PullError::Forbidden {
                what,
                status,
                hint: format!("{page} has no public model of that name"),
            }),
            _ => None,
        }
    };
    let (body, headers) = http.small(&get, MANIFEST_BYTES_MAX, no).await?;
    let promised = headers.get("docker-content-digest").and_then(|value| value.to_str().ok());
    if let Some(promised) = promised {
        let found = Digest::Sha256(sha256_of(&body));
        if Digest::sha256(promised).as_ref() != Some(&found) {
            return Err(PullError::refused(
                what,
                format!("its manifest has digest {found}, and the registry promised {promised:?}"),
            ));
        }
    }
    Ok(body)
}

/// Fetches the configuration that the manifest names, and checks its digest.
async fn config(
    http: &Http,
    settings: &StoreSettings,
    layer: &ManifestLayer,
    blob: &impl Fn(&str) -> Url,
    auth: &Auth,
) -> Result<ManifestConfig, PullError> {
    let refused = |why: &str| PullError::refused("the configuration", why);
    let digest = Digest::sha256(&layer.digest).filter(|_| layer.digest.starts_with("sha256:"));
    let digest = digest.ok_or_else(|| refused("its digest is none"))?;
    if layer.size > MANIFEST_BYTES_MAX as u64 {
        return Err(refused("it is too long"));
    }
    let here = Elsewhere::new(settings).find(&digest, Some(layer.size));
    let body = match here {
        Some(path) => std::fs::read(&path).map_err(crate::download::disk(&path))?,
        None => {
            let url = blob(&layer.digest);
            let get = Get { url: &url, auth: Some(auth), range: None, accept: None, led_by_public: false };
            http.small(&get, MANIFEST_BYTES_MAX, |_, _| None).await?.0
        }
    };
    let found = Digest::Sha256(sha256_of(&body));
    if found != digest {
        return Err(PullError::DigestMismatch {
            file: "the configuration".to_owned(),
            expected: digest,
            found,
        });
    }
    // The configuration is only for display, so an unreadable one is ignored.
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

fn name_of(wanted: &OllamaReference) -> String {
    match wanted.namespace.as_str() {
        OLLAMA_LIBRARY => format!("{}:{}", wanted.model, wanted.tag),
        namespace => format!("{namespace}/{}:{}", wanted.model, wanted.tag),
    }
}

/// Parses a count such as `3.2B`.
fn parameters(text: &str) -> u64 {
    let scale = match text.as_bytes().last() {
        Some(b'B') => 1e9,
        Some(b'M') => 1e6,
        Some(b'K') => 1e3,
        _ => return 0,
    };
    let number: f64 = text[..text.len() - 1].parse().unwrap_or(0.0);
    if number.is_finite() && number > 0.0 { (number * scale) as u64 } else { 0 }
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}
