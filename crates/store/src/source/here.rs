//! Other programs' stores on this machine: Hugging Face's cache and Ollama's models. Their files are verified,
//! used in place, and never changed.

use crate::digest::{Digest, is_hex};
use crate::limits::{FILES_MAX, LISTED_FILES_MAX};
use crate::reference::OllamaReference;
use crate::settings::StoreSettings;
use crate::source::choose::ListedFile;
use std::fs;
use std::path::{Path, PathBuf};

/// Hugging Face's cache: `models--owner--repo/{blobs,refs,snapshots}`.
pub(crate) struct HubCache {
    dir: PathBuf,
}

/// Snapshot of a repository in the cache.
pub(crate) struct Snapshot {
    /// `owner/repo` as in the name of the cache's folder.
    pub(crate) repo: String,
    pub(crate) commit: String,
    pub(crate) folder: PathBuf,
    pub(crate) files: Vec<ListedFile>,
}

/// Lookup of files by digest in other programs' stores.
pub(crate) struct Elsewhere {
    folders: Vec<PathBuf>,
    ollama: Option<PathBuf>,
}

impl HubCache {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Lists the folders of repositories, with their `owner/repo`.
    fn repositories(&self) -> Vec<(String, PathBuf)> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let named = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let (owner, repo) = name.strip_prefix("models--")?.split_once("--")?;
            Some((format!("{owner}/{repo}"), entry.path()))
        };
        entries.flatten().take(LISTED_FILES_MAX).filter_map(named).collect()
    }

    /// Returns the cached files of a repository at a revision. Ignores letter case.
    pub(crate) fn snapshot(&self, repo: &str, revision: Option<&str>) -> Option<Snapshot> {
        let found = self.repositories().into_iter().find(|(name, _)| name.eq_ignore_ascii_case(repo))?;
        let (repo, folder) = found;
        let revision = revision.unwrap_or("main");
        let commit = match fs::read_to_string(folder.join("refs").join(revision)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        if !is_hex(&commit, 40) {
            return None;
        }
        let folder = folder.join("snapshots").join(&commit);
        let mut files = Vec::new();
        collect(&folder, "", 0, &mut files);
        (!files.is_empty()).then_some(Snapshot { repo, commit, folder, files })
    }
}

fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<ListedFile>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        let path = entry.path();
        // Files in the cache are links to blobs that are named by their digests.
        let Ok(meta) = fs::metadata(&path) else { continue };
        if meta.is_dir() && depth < 4 {
            collect(&path, &format!("{name}/"), depth + 1, files);
        } else if meta.is_file() && files.len() < FILES_MAX {
            let target = fs::read_link(&path).ok();
            let blob = target.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
            let digest = blob.and_then(|blob| match blob.len() {
                64 => Digest::sha256(blob),
                40 => Digest::git(blob),
                _ => None,
            });
            files.push(ListedFile { name, size_bytes: Some(meta.len()), digest });
        }
    }
}

impl Elsewhere {
    pub(crate) fn new(settings: &StoreSettings) -> Self {
        let caches = settings.hub_cache.iter().map(|dir| HubCache::new(dir.clone()));
        let folders = caches.flat_map(|cache| cache.repositories()).map(|(_, folder)| folder.join("blobs"));
        Self { folders: folders.collect(), ollama: settings.ollama_store.clone() }
    }

    /// Finds a file that is named by the digest and has that length. Its bytes are not verified.
    pub(crate) fn find(&self, digest: &Digest, size_bytes: Option<u64>) -> Option<PathBuf> {
        let (hex, in_ollama) = match digest {
            Digest::Sha256(hex) => (hex, self.ollama.as_ref()),
            Digest::Git(hex) => (hex, None),
        };
        let ollama = in_ollama.map(|dir| dir.join("blobs").join(format!("sha256-{hex}")));
        let hub = self.folders.iter().map(|folder| folder.join(hex));
        let fits = |path: &PathBuf| {
            fs::metadata(path)
                .is_ok_and(|meta| meta.is_file() && size_bytes.is_none_or(|size| size == meta.len()))
        };
        ollama.into_iter().chain(hub).find(fits)
    }
}

/// Reads Ollama's manifest of a model that it has pulled.
pub(crate) fn ollama_manifest(store: &Path, wanted: &OllamaReference) -> Option<Vec<u8>> {
    let host = wanted.host.as_deref().unwrap_or("registry.ollama.ai");
    let path =
        store.join("manifests").join(host).join(&wanted.namespace).join(&wanted.model).join(&wanted.tag);
    let meta = fs::metadata(&path).ok()?;
    (meta.is_file() && meta.len() <= crate::limits::MANIFEST_BYTES_MAX as u64)
        .then(|| fs::read(path).ok())
        .flatten()
}
