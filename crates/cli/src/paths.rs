//! Paths on the command line, made absolute for a daemon in another working directory.

use crate::error::CliError;
use std::path::{Component, Path};

/// Resolves MODEL: paths become absolute, because the daemon's working directory differs. Names are unchanged.
pub(crate) fn model_source(model: &str) -> Result<String, CliError> {
    if is_path(model) { absolute(model) } else { Ok(model.to_owned()) }
}

/// Resolves a reference: paths become absolute, because the daemon's working directory differs.
pub(crate) fn reference(text: &str) -> Result<String, CliError> {
    let is_gguf_here = || is_path(text) && Path::new(text).exists();
    if text.starts_with(['.', '/']) || is_gguf_here() {
        return absolute(text);
    }
    Ok(text.to_owned())
}

/// Absolute path of a file or directory, for use by the daemon.
pub(crate) fn absolute(path: &str) -> Result<String, CliError> {
    match Path::new(path).canonicalize() {
        Ok(path) => Ok(path.to_string_lossy().into_owned()),
        Err(source) => Err(CliError::Path { path: path.into(), source }),
    }
}

/// Returns true for paths: `./x`, `../x`, `/x` and `x.gguf`. `x` and `a/b` are names first, and paths only if
/// no model has that name. `https://x/x.gguf` and `a/b:x.gguf` are references.
pub(crate) fn is_path(model: &str) -> bool {
    let path = Path::new(model);
    let ends_so = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    path.is_absolute()
        || (ends_so && !model.contains(':'))
        || matches!(path.components().next(), Some(Component::CurDir | Component::ParentDir))
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_and_names() {
        for path in ["./x", "../x", "/nowhere/x", "x.gguf", "a/x.GGUF", "."] {
            assert!(super::is_path(path), "{path}");
        }
        let references = ["https://host/x.gguf", "hf://a/b:x.gguf", "a/b:x.gguf", "zen-nano:Q8_0"];
        for name in
            ["qwen3-4b", "qwen/qwen3-4b", "hanzo-demo", "qwen2.5-7b", "src"].into_iter().chain(references)
        {
            assert!(!super::is_path(name), "{name}");
        }
    }
}
