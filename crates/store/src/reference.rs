//! References: the ways in which a user names a model, and the one form that the store keeps.
//!
//! | written | means |
//! |---|---|
//! | `qwen/qwen3-4b`, `hf://owner/repo[@revision][:quant-or-file]` | a Hugging Face repository |
//! | `hf:…`, `hf.co/…`, `huggingface.co/…`, with or without `https://` | the same, as other programs and browsers write it |
//! | `mlx://[owner/]repo[@revision]` | the same, in MLX's layout; the owner is `mlx-community` unless given |
//! | `ollama://[host[:port]/][namespace/]model[:tag]` | a model of an Ollama registry |
//! | `https://…/model.gguf[#sha256=…]` | one file on any server |
//! | `file:///…`, `./…`, `/…`, `~/…` | a file or folder on this machine |
//! | anything else | an alias or the name of a stored model |

use crate::StoreError;
use crate::digest::{Digest, is_hex};
use crate::file_name::check_file_name;
use crate::limits::REFERENCE_BYTES_MAX;
use reqwest::Url;
use std::fmt;
use std::path::PathBuf;

/// Source of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Repository of a Hugging Face hub.
    Hub(HubReference),
    /// Model of an Ollama registry.
    Ollama(OllamaReference),
    /// Single file on a server.
    Url(UrlReference),
    /// File or folder on this machine, as written, with `~` resolved.
    File(PathBuf),
    /// Other name: an alias, or a stored model.
    Name(String),
}

/// Repository of a Hugging Face hub, with the choice of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubReference {
    /// `owner/repo`.
    pub repo: String,
    /// Branch, tag or commit. None: `main`.
    pub revision: Option<String>,
    /// Quantisation such as `Q4_K_M`, or a file's name.
    pub choice: Option<String>,
    /// True for `mlx://`: safetensors in MLX's layout, never GGUF.
    pub mlx: bool,
}

/// Model of an Ollama registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaReference {
    /// Host and port. None: Ollama's own registry.
    pub host: Option<String>,
    /// Namespace such as `library`.
    pub namespace: String,
    /// Model such as `llama3.2`.
    pub model: String,
    /// Tag such as `latest`.
    pub tag: String,
}

/// Single file on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlReference {
    /// URL without the fragment.
    pub url: Url,
    /// Digest from the fragment `#sha256=…`.
    pub digest: Option<Digest>,
}

/// Namespace that Ollama leaves out of names.
pub(crate) const OLLAMA_LIBRARY: &str = "library";

impl Reference {
    /// Parses a reference as a user writes it.
    ///
    /// # Errors
    /// [`StoreError::BadReference`] with the mistake and the right form.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let bad = |why: &str| Err(StoreError::reference(text, why));
        if text.is_empty() {
            return bad("it is empty");
        }
        if text.len() > REFERENCE_BYTES_MAX {
            return bad("it is longer than 2,048 bytes");
        }
        if text.chars().any(char::is_control) {
            return bad("it has control characters");
        }
        if let Some(place) = on_hub(text) {
            return hub(text, &place, false).map(Self::Hub);
        }
        let scheme = text.split_once("://").map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
        match scheme {
            Some((scheme, rest)) => match scheme.as_str() {
                "hf" | "huggingface" => hub(text, rest, false).map(Self::Hub),
                "mlx" if rest.contains('/') => hub(text, rest, true).map(Self::Hub),
                "mlx" => hub(text, &format!("mlx-community/{rest}"), true).map(Self::Hub),
                "ollama" => ollama(text, rest).map(Self::Ollama),
                "https" | "http" => url(text).map(Self::Url),
                "file" => file(text, rest).map(Self::File),
                _ => bad("write hf://, ollama://, mlx://, https://, file:// or a name"),
            },
            None if text.starts_with(['/', '.', '~']) => file(text, text).map(Self::File),
            None if text.matches('/').count() == 1 => hub(text, text, false).map(Self::Hub),
            None if text.contains('/') => bad("write owner/model, or ./path for a file on this machine"),
            None => Ok(Self::Name(text.to_owned())),
        }
    }

    /// Replaces the quantisation.
    ///
    /// # Errors
    /// [`StoreError::BadReference`] if the source has no choice of quantisations.
    pub fn with_quantization(self, quantization: &str) -> Result<Self, StoreError> {
        let text = self.to_string();
        let refused = |why| Err(StoreError::reference(&text, why));
        if !is_word(quantization) {
            return Err(StoreError::reference(quantization, "a quantization is a word such as Q4_K_M"));
        }
        match self {
            Self::Hub(hub) if !hub.mlx => {
                Ok(Self::Hub(HubReference { choice: Some(quantization.to_owned()), ..hub }))
            }
            Self::Hub(_) => refused("an MLX repository has one quantization: name another repository"),
            Self::Ollama(_) => refused("name the quantization in the tag, such as :3b-instruct-q8_0"),
            Self::Name(name) => Ok(Self::Name(match name.split_once(':') {
                Some((model, _)) => format!("{model}:{quantization}"),
                None => format!("{name}:{quantization}"),
            })),
            Self::Url(_) | Self::File(_) => refused("a file has one quantization"),
        }
    }

    /// Replaces the revision.
    ///
    /// # Errors
    /// [`StoreError::BadReference`] if the source has no revisions.
    pub fn with_revision(self, revision: &str) -> Result<Self, StoreError> {
        if !is_revision(revision) {
            return Err(StoreError::reference(revision, "a revision is a branch, a tag or a commit"));
        }
        match self {
            Self::Hub(hub) => Ok(Self::Hub(HubReference { revision: Some(revision.to_owned()), ..hub })),
            other => Err(StoreError::reference(&other.to_string(), "only a hub's repository has revisions")),
        }
    }
}

impl fmt::Display for Reference {
    /// Writes the stored form, which parses as the same reference again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(hub) => {
                write!(f, "{}://{}", if hub.mlx { "mlx" } else { "hf" }, hub.repo)?;
                if let Some(revision) = &hub.revision {
                    write!(f, "@{revision}")?;
                }
                hub.choice.as_ref().map_or(Ok(()), |choice| write!(f, ":{choice}"))
            }
            Self::Ollama(ollama) => {
                f.write_str("ollama://")?;
                if let Some(host) = &ollama.host {
                    write!(f, "{host}/{}/", ollama.namespace)?;
                } else if ollama.namespace != OLLAMA_LIBRARY {
                    write!(f, "{}/", ollama.namespace)?;
                }
                write!(f, "{}:{}", ollama.model, ollama.tag)
            }
            Self::Url(UrlReference { url, digest: Some(Digest::Sha256(hex)) }) => {
                write!(f, "{url}#sha256={hex}")
            }
            Self::Url(UrlReference { url, .. }) => write!(f, "{url}"),
            Self::File(path) => write!(f, "file://{}", path.display()),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Returns `owner/repo…` from a text that names the hub by `hf:`, by its host, or by the address of a
/// repository's page. The address of a file's bytes (`/resolve/`) is treated as any other URL.
fn on_hub(text: &str) -> Option<String> {
    const HOSTS: [&str; 3] = ["hf.co/", "huggingface.co/", "www.huggingface.co/"];
    if let Some(rest) = without_prefix(text, "hf:") {
        return (!rest.starts_with("//")).then(|| rest.to_owned());
    }
    let bare = without_prefix(text, "https://").or_else(|| without_prefix(text, "http://"));
    let rest = HOSTS.iter().find_map(|host| without_prefix(bare.unwrap_or(text), host))?;
    if bare.is_none() {
        return Some(rest.to_owned());
    }
    let page = rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let parts: Vec<&str> = page.splitn(5, '/').collect();
    match parts[..] {
        [owner, repo] => Some(format!("{owner}/{repo}")),
        [owner, repo, "tree", revision] => Some(format!("{owner}/{repo}@{revision}")),
        [owner, repo, "blob", revision, file] => Some(format!("{owner}/{repo}@{revision}:{file}")),
        _ => None,
    }
}

fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let begins = text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    begins.then(|| &text[prefix.len()..])
}

fn hub(text: &str, rest: &str, mlx: bool) -> Result<HubReference, StoreError> {
    let bad = |why: &str| StoreError::reference(text, why);
    // Both file names and revisions may contain folders. The choice begins after the first ':'.
    let (place, choice) = match rest.split_once(':') {
        Some((place, choice)) => (place, Some(choice)),
        None => (rest, None),
    };
    let (repo, revision) = match place.split_once('@') {
        Some((repo, revision)) => (repo, Some(revision)),
        None => (place, None),
    };
    let well_formed = repo.split_once('/').is_some_and(|(owner, name)| is_word(owner) && is_word(name));
    if !well_formed {
        return Err(bad("write owner/repo, of letters, digits and . _ -"));
    }
    if revision.is_some_and(|revision| !is_revision(revision)) {
        return Err(bad("after '@' stands a branch, a tag or a commit"));
    }
    if choice.is_some_and(|choice| check_file_name(choice).is_err()) {
        return Err(bad("after ':' stands a quantization such as Q4_K_M, or a file's name"));
    }
    let revision = revision.filter(|revision| *revision != "main").map(str::to_owned);
    // Programs that use Ollama's API give every name a tag.
    let choice = choice.filter(|choice| *choice != "latest");
    Ok(HubReference { repo: repo.to_owned(), revision, choice: choice.map(str::to_owned), mlx })
}

fn ollama(text: &str, rest: &str) -> Result<OllamaReference, StoreError> {
    let bad = |why: &str| StoreError::reference(text, why);
    let parts: Vec<&str> = rest.split('/').collect();
    let (host, namespace, model) = match parts[..] {
        [model] => (None, OLLAMA_LIBRARY, model),
        [namespace, model] => (None, namespace, model),
        [host, namespace, model] => (Some(host), namespace, model),
        _ => {
            return Err(bad(
                "write ollama://model:tag, ollama://namespace/model:tag or with a host before it",
            ));
        }
    };
    let (model, tag) = model.split_once(':').unwrap_or((model, "latest"));
    if ![namespace, model, tag].into_iter().all(is_word) {
        return Err(bad("namespace, model and tag are of letters, digits and . _ -"));
    }
    let host = match host {
        Some(host) if host.eq_ignore_ascii_case("registry.ollama.ai") => None,
        Some(host) if !is_host(host) => {
            return Err(bad("the host is a name or an address, with a port or without"));
        }
        other => other.map(str::to_ascii_lowercase),
    };
    let (namespace, model, tag) = (namespace.to_owned(), model.to_owned(), tag.to_owned());
    Ok(OllamaReference { host, namespace, model, tag })
}

fn url(text: &str) -> Result<UrlReference, StoreError> {
    let bad = |why: &str| StoreError::reference(text, why);
    let mut url = Url::parse(text).map_err(|error| StoreError::reference(text, error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("a password in a URL ends up in logs: leave it out"));
    }
    let digest = match url.fragment() {
        None => None,
        Some(fragment) => {
            let hex = fragment.strip_prefix("sha256=").filter(|hex| is_hex(hex, 64));
            Some(
                hex.and_then(Digest::sha256)
                    .ok_or_else(|| bad("after '#' stands sha256= and 64 hexadecimal digits"))?,
            )
        }
    };
    url.set_fragment(None);
    if url.scheme() == "http" && digest.is_none() && !is_loopback(&url) {
        return Err(bad(
            "what comes over plain http may have been changed: write https://, or add #sha256=…",
        ));
    }
    let name = url.path().rsplit('/').next().unwrap_or_default();
    if !name.to_ascii_lowercase().ends_with(".gguf") {
        return Err(bad("a URL names one .gguf file"));
    }
    check_file_name(name).map_err(|why| bad(&format!("its file name will not do: {why}")))?;
    Ok(UrlReference { url, digest })
}

fn file(text: &str, rest: &str) -> Result<PathBuf, StoreError> {
    let home = || {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        home.ok_or_else(|| StoreError::reference(text, "there is no home directory"))
    };
    match rest.strip_prefix('~') {
        Some("") => home(),
        Some(under) if under.starts_with('/') => Ok(home()?.join(under.trim_start_matches('/'))),
        _ => Ok(PathBuf::from(rest)),
    }
}

/// Returns true if the server is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
            address.is_ok_and(|address| address.is_loopback())
        }
        None => false,
    }
}

/// Part of a name: letters, digits and `. _ -`, beginning with a letter or digit, without `..`.
fn is_word(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    begins && text.len() <= 96 && text.bytes().all(allowed) && !text.contains("..")
}

fn is_revision(text: &str) -> bool {
    text.len() <= 200 && text.split('/').all(is_word)
}

fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    is_word(name) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_and_what_is_kept() {
        let cases = [
            ("qwen/qwen3-4b", "hf://qwen/qwen3-4b"),
            ("Qwen/Qwen3-4B-GGUF:Q8_0", "hf://Qwen/Qwen3-4B-GGUF:Q8_0"),
            ("hf://o/r@main", "hf://o/r"),
            ("hf:Qwen/Qwen3-4B-GGUF:Q8_0", "hf://Qwen/Qwen3-4B-GGUF:Q8_0"),
            ("HF:o/r", "hf://o/r"),
            ("hf.co/Qwen/Qwen3-4B-GGUF:Q8_0", "hf://Qwen/Qwen3-4B-GGUF:Q8_0"),
            ("hf.co/o/r:latest", "hf://o/r"),
            ("HuggingFace.co/o/r@v1:x.gguf", "hf://o/r@v1:x.gguf"),
            ("https://huggingface.co/o/r", "hf://o/r"),
            ("https://hf.co/o/r/", "hf://o/r"),
            ("https://huggingface.co/o/r/tree/main", "hf://o/r"),
            ("https://www.huggingface.co/o/r/tree/v1?x=1", "hf://o/r@v1"),
            ("https://huggingface.co/o/r/blob/main/sub/x.gguf", "hf://o/r:sub/x.gguf"),
            (
                "https://huggingface.co/o/r/resolve/main/x.gguf",
                "https://huggingface.co/o/r/resolve/main/x.gguf",
            ),
            ("hf://o/r@refs/pr/3:sub/x.gguf", "hf://o/r@refs/pr/3:sub/x.gguf"),
            ("mlx://Qwen3-4B-4bit", "mlx://mlx-community/Qwen3-4B-4bit"),
            ("ollama://llama3.2", "ollama://llama3.2:latest"),
            ("ollama://me/llama3.2:3b", "ollama://me/llama3.2:3b"),
            ("ollama://registry.ollama.ai/library/llama3.2:3b", "ollama://llama3.2:3b"),
            ("ollama://127.0.0.1:5000/library/x:y", "ollama://127.0.0.1:5000/library/x:y"),
            ("https://a.b/c/m.gguf?x=1", "https://a.b/c/m.gguf?x=1"),
            ("/m/x.gguf", "file:///m/x.gguf"),
            ("zen-nano", "zen-nano"),
            ("qwen3-4b:Q8_0", "qwen3-4b:Q8_0"),
        ];
        for (written, kept) in cases {
            let reference = Reference::parse(written).unwrap();
            assert_eq!(reference.to_string(), kept);
            assert_eq!(Reference::parse(kept).unwrap(), reference, "{kept} reads as itself");
        }
        let hex = "AB".repeat(32);
        let url = Reference::parse(&format!("http://far.example/m.gguf#sha256={hex}")).unwrap();
        assert_eq!(url.to_string(), format!("http://far.example/m.gguf#sha256={}", hex.to_lowercase()));
    }

    #[test]
    fn what_is_refused() {
        for bad in [
            "",
            "a/b/c",
            "hf://",
            "hf://a",
            "hf:",
            "hf:a",
            "hf:/a/b",
            "hf:a/b/c",
            "hf.co/a",
            "hf.co/../b",
            "huggingface.co/",
            "https://huggingface.co/datasets/a/b",
            "https://huggingface.co/a",
            "hf://../b",
            "hf://a/..",
            "hf://a/b@../../c",
            "hf://a/b:../c",
            "hf://a/b@",
            "hf://a/b:/etc/passwd",
            "ollama://",
            "ollama://a/b/c/d",
            "ollama://a/../c",
            "ollama://ho st/b/c",
            "ollama://h:99999/b/c",
            "ftp://x/y.gguf",
            "https://user:pass@host/m.gguf",
            "http://far.example/m.gguf",
            "https://h/m.gguf#sha256=12",
            "https://h/m.zip",
            "https://h/",
            "https:///m.gguf?",
            "a\nb",
            "hf://a\u{202e}/b",
            "ollama://a:b:c",
            &"a".repeat(3000),
        ] {
            let error = Reference::parse(bad).unwrap_err();
            assert!(matches!(error, StoreError::BadReference { .. }), "{bad:?}: {error}");
            assert!(error.to_string().len() < 700);
        }
    }

    #[test]
    fn quantization_and_revision() {
        let of = |text: &str| Reference::parse(text).unwrap();
        assert_eq!(of("a/b:Q4_0").with_quantization("Q8_0").unwrap().to_string(), "hf://a/b:Q8_0");
        assert_eq!(of("a/b").with_revision("v1").unwrap().to_string(), "hf://a/b@v1");
        assert_eq!(of("zen-eco").with_quantization("Q8_0").unwrap().to_string(), "zen-eco:Q8_0");
        assert!(of("ollama://x").with_quantization("Q8_0").is_err());
        assert!(of("a/b").with_quantization("../x").is_err());
        assert!(of("ollama://x").with_revision("v1").is_err());
        assert!(of("a/b").with_revision("a/../b").is_err());
    }
}
