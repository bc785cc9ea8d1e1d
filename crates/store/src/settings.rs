//! Settings of pulls: servers, tokens, other programs' stores, and timeouts.

use crate::PullError;
use reqwest::Url;
use std::path::PathBuf;
use std::time::Duration;

/// Sources of models, with timeouts and limits.
#[derive(Clone)]
pub struct StoreSettings {
    /// Hugging Face hub (`HF_ENDPOINT`).
    pub hub: Url,
    /// Token sent to the hub only (`HF_TOKEN`, or the file that `hf auth login` writes).
    pub hub_token: Option<String>,
    /// Hugging Face's own cache (`HF_HUB_CACHE`, `HF_HOME`). Its files are used in place.
    pub hub_cache: Option<PathBuf>,
    /// Ollama's registry.
    pub ollama: Url,
    /// Ollama's own store (`OLLAMA_MODELS`). Its files are used in place.
    pub ollama_store: Option<PathBuf>,
    /// Use no network (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Proxy for every request. None: as in `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`. Never used
    /// for this machine's own addresses.
    pub proxy: Option<Url>,
    /// Time without data after which a connection is given up and retried.
    pub stall: Duration,
    /// Maximum time for a whole listing, manifest or token. A slower one is refused.
    pub answer: Duration,
    /// First wait before a retry. Later waits double, up to 30 s.
    pub backoff: Duration,
    /// Maximum bytes that pulls may write, besides the limit of free space. Used to test a full disk.
    pub write_bytes_max: Option<u64>,
}

const HUB: &str = "https://huggingface.co";
const OLLAMA: &str = "https://registry.ollama.ai";

impl StoreSettings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// [`PullError::Setting`] for an invalid variable.
    pub fn from_env() -> Result<Self, PullError> {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let under_home = |below: &str| home.as_ref().map(|home| home.join(below));
        let hub_home = path("HF_HOME").or_else(|| {
            let cache = path("XDG_CACHE_HOME").or_else(|| under_home(".cache"))?;
            Some(cache.join("huggingface"))
        });
        let hub_cache = path("HF_HUB_CACHE").or_else(|| hub_home.as_ref().map(|home| home.join("hub")));
        let token_file = path("HF_TOKEN_PATH").or_else(|| hub_home.as_ref().map(|home| home.join("token")));
        let hub_token = match text("HF_TOKEN") {
            Some(token) => token_of("HF_TOKEN", &token)?,
            None => match token_file.map(|file| (std::fs::read_to_string(&file), file)) {
                Some((Ok(token), file)) => token_of(&file.display().to_string(), &token)?,
                _ => None,
            },
        };
        let ollama_store = path("OLLAMA_MODELS").or_else(|| {
            let own = under_home(".ollama/models").filter(|path| path.is_dir());
            own.or_else(|| Some(PathBuf::from("/usr/share/ollama/.ollama/models")))
        });
        Ok(Self {
            hub: server("HF_ENDPOINT", HUB)?,
            hub_token,
            hub_cache,
            ollama: server("HANZO_OLLAMA_REGISTRY", OLLAMA)?,
            ollama_store,
            offline: flag("HF_HUB_OFFLINE")?,
            proxy: None,
            stall: Duration::from_secs(30),
            answer: crate::limits::ANSWER_MAX,
            backoff: Duration::from_millis(500),
            write_bytes_max: None,
        })
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Trims a token. None if empty. Refuses characters that no header may have, because every request would
/// otherwise fail with an error about headers.
fn token_of(name: &str, text: &str) -> Result<Option<String>, PullError> {
    let token = text.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = "a token is one word of ASCII characters".to_owned();
        return Err(PullError::Setting { name: name.to_owned(), why });
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

fn server(name: &str, default: &str) -> Result<Url, PullError> {
    let value = text(name).unwrap_or_else(|| default.to_owned());
    let url =
        Url::parse(&value).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| PullError::Setting {
        name: name.to_owned(),
        why: format!("{value:?} is no http(s) URL"),
    })
}

fn flag(name: &str) -> Result<bool, PullError> {
    match text(name).map(|value| value.to_ascii_lowercase()).as_deref() {
        None | Some("0" | "false" | "no" | "off") => Ok(false),
        Some("1" | "true" | "yes" | "on") => Ok(true),
        Some(other) => {
            Err(PullError::Setting { name: name.to_owned(), why: format!("{other:?} is neither 1 nor 0") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word() {
        assert_eq!(token_of("HF_TOKEN", " hf_abc\n").unwrap().as_deref(), Some("hf_abc"));
        assert_eq!(token_of("HF_TOKEN", " \n").unwrap(), None);
        for bad in ["hf_a\nhf_b", "hf_a b", "hf_\u{e9}", "hf_\0"] {
            let error = token_of("HF_TOKEN", bad).unwrap_err().to_string();
            assert!(error.starts_with("HF_TOKEN: ") && !error.contains("hf_"), "{error}");
        }
    }
}
