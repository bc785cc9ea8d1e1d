//! Resolution of a model argument: the built-in demo model, a name in the store, or a path, which is then
//! registered in the store. Blocking: files are opened and read.

use std::path::{Path, PathBuf};

use hanzo_engine_runtime::{LoadError, ModelInfo, OpenedModel, Overrides};
use hanzo_engine_store::{ModelLookup, NewModel, Reference, Store, StoreError, derive_name, texts_beside};

use serde::{Deserialize, Serialize};

use crate::{
    DEMO_GGUF, DEMO_MODEL,
    error::{Error, Failure},
    package_defaults,
    unix_time::now_unix_ms,
};

/// Location of a model's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ModelSource {
    /// Built into this program.
    Demo,
    /// GGUF file or safetensors directory, as an absolute path.
    Path(PathBuf),
}

/// Resolved model argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedModel {
    /// Name of the model itself.
    pub(crate) name: String,
    /// Location of its files.
    pub(crate) source: ModelSource,
    /// Whether the store has a record of it.
    pub(crate) stored: bool,
}

impl ModelSource {
    /// Opens the files and reads their headers.
    ///
    /// # Errors
    /// The file that cannot be used, with the reason.
    pub(crate) fn open(&self) -> Result<OpenedModel, LoadError> {
        self.open_with(&Overrides::default())
    }

    /// Opens the files with values that override theirs.
    ///
    /// # Errors
    /// Errors of [`ModelSource::open`].
    pub(crate) fn open_with(&self, overrides: &Overrides) -> Result<OpenedModel, LoadError> {
        match self {
            ModelSource::Demo => OpenedModel::from_static_with(DEMO_MODEL, DEMO_GGUF, overrides),
            ModelSource::Path(path) => {
                let mut opened = OpenedModel::open_with(path, overrides)?;
                if let Some(texts) = texts_beside(path) {
                    package_defaults::apply(&texts, &mut opened);
                }
                Ok(opened)
            }
        }
    }

    /// Description for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            ModelSource::Demo => "this program".to_owned(),
            ModelSource::Path(path) => path.display().to_string(),
        }
    }
}

/// Result of a search for a model argument.
pub(crate) enum ArgumentMatch {
    /// The built-in model, or a model in the store.
    Known(ResolvedModel),
    /// File or directory on this machine, as an absolute path.
    Path(PathBuf),
}

/// Resolves `asked`. A path that the store does not know is registered in place.
///
/// # Errors
/// [`Error::NoSource`] if it matches nothing, [`Error::Load`] if the files cannot be used, and errors of the store.
pub(crate) fn resolve(asked: &str, store: Option<&Store>) -> Result<ResolvedModel, Error> {
    resolve_with(asked, store, &Overrides::default())
}

/// Resolves `asked` for a load with overrides, which may be necessary to run the files.
///
/// # Errors
/// Errors of [`resolve`].
pub(crate) fn resolve_with(
    asked: &str,
    store: Option<&Store>,
    overrides: &Overrides,
) -> Result<ResolvedModel, Error> {
    match find(asked, store, false)? {
        ArgumentMatch::Known(resolved) => Ok(resolved),
        ArgumentMatch::Path(path) => register(path, store, overrides),
    }
}

/// Searches for `asked` without changing anything. With `known_only` it is not tried as a path on disk.
///
/// # Errors
/// [`Error::NoSource`] if it matches nothing, [`Error::Load`] if there is no such path, and errors of the store.
pub(crate) fn find(asked: &str, store: Option<&Store>, known_only: bool) -> Result<ArgumentMatch, Error> {
    if asked.is_empty() {
        return Err(Error::field("model", "must name a model in the store, or a path"));
    }
    if asked.eq_ignore_ascii_case(DEMO_MODEL) {
        let resolved =
            ResolvedModel { name: DEMO_MODEL.to_owned(), source: ModelSource::Demo, stored: false };
        return Ok(ArgumentMatch::Known(resolved));
    }
    let (mut known, mut missing) = (Vec::new(), None);
    if let Some(store) = store {
        match store.resolve(asked) {
            Ok(ModelLookup::Stored(record)) => {
                let source = ModelSource::Path(record.path);
                return Ok(ArgumentMatch::Known(ResolvedModel { name: record.name, source, stored: true }));
            }
            Ok(ModelLookup::Missing(Reference::File(_))) => {}
            Ok(ModelLookup::Missing(reference)) => missing = Some(reference),
            Err(StoreError::NotFound { known: names, .. }) => known = names,
            Err(StoreError::BadName { .. } | StoreError::BadReference { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let nothing = |known| match &missing {
        Some(reference) => Error::NotPulled { asked: asked.to_owned(), reference: reference.to_string() },
        None => Error::NoSource { asked: asked.to_owned(), stored: known },
    };
    if known_only {
        return Err(nothing(known));
    }
    let path = Path::new(asked.strip_prefix("file://").unwrap_or(asked));
    match path.canonicalize() {
        Ok(path) if path.is_file() || path.is_dir() => Ok(ArgumentMatch::Path(path)),
        // Reading a pipe or a device could block for ever.
        Ok(path) => {
            let source = std::io::Error::other("neither a file nor a directory");
            Err(Error::Load(Failure::new(LoadError::Io { path, source })))
        }
        Err(source) if missing.is_none() && looks_like_path(asked) => {
            Err(Error::Load(Failure::new(LoadError::Io { path: path.to_owned(), source })))
        }
        Err(_) => Err(nothing(known)),
    }
}

fn looks_like_path(asked: &str) -> bool {
    let lower = asked.to_ascii_lowercase();
    lower.ends_with(".gguf") || lower.starts_with("file://") || asked.starts_with(['/', '.', '~'])
}

fn register(path: PathBuf, store: Option<&Store>, overrides: &Overrides) -> Result<ResolvedModel, Error> {
    let failed = |error: LoadError| Error::Load(Failure::new(error));
    // The record describes the files, not their quantisation at load time.
    let overrides = Overrides { isq: None, topology: Vec::new(), imatrix: None, ..overrides.clone() };
    let files = OpenedModel::open_with(&path, &overrides).map_err(failed)?;
    let name = match store {
        Some(store) => store.register(None, new_model(path.clone(), files.info()), now_unix_ms())?.name,
        None => derive_name(&path),
    };
    Ok(ResolvedModel { name, source: ModelSource::Path(path), stored: store.is_some() })
}

fn new_model(path: PathBuf, info: &ModelInfo) -> NewModel {
    NewModel {
        path,
        files: info.files.clone(),
        format: info.format.to_string(),
        architecture: info.architecture.clone(),
        quantization: info.quantization.clone(),
        parameters: info.parameters,
        context_tokens_max: info.context_tokens_max,
        license: info.license.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_model_is_found_whatever_the_case() {
        let resolved = resolve("Hanzo-DEMO", None).unwrap();
        assert_eq!((resolved.name.as_str(), resolved.source), (DEMO_MODEL, ModelSource::Demo));
    }

    #[test]
    fn the_demo_models_name_is_no_stored_models() {
        assert_eq!(hanzo_engine_store::RESERVED_NAMES, [DEMO_MODEL]);
    }

    #[test]
    fn what_could_be_pulled_is_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let error = resolve("zen-nano", Some(&store)).unwrap_err();
        assert!(
            matches!(&error, Error::NotPulled { reference, .. } if reference == "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0")
        );
        assert!(error.to_string().contains("pull it first"), "{error}");
    }

    #[test]
    fn what_is_nothing_is_said_to_be_nothing() {
        assert!(matches!(resolve("no-such-model", None), Err(Error::NoSource { .. })));
        assert!(matches!(resolve("/no/such/file.gguf", None), Err(Error::Load(_))));
        assert!(matches!(resolve("", None), Err(Error::Field { .. })));
    }

    #[test]
    fn who_asks_for_known_models_only_learns_nothing_of_the_disk() {
        let here = std::env::current_exe().unwrap();
        for asked in [here.to_str().unwrap(), "/no/such/file.gguf", "."] {
            assert!(matches!(find(asked, None, true), Err(Error::NoSource { .. })), "{asked}");
        }
        assert!(matches!(find(here.to_str().unwrap(), None, false), Ok(ArgumentMatch::Path(_))));
        assert!(matches!(find(DEMO_MODEL, None, true), Ok(ArgumentMatch::Known(_))));
    }

    #[test]
    fn a_path_is_registered_and_then_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("Tiny-1.gguf");
        std::fs::write(&path, DEMO_GGUF).unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let first = resolve(path.to_str().unwrap(), Some(&store)).unwrap();
        assert_eq!((first.name.as_str(), first.stored), ("Tiny-1", true));
        assert_eq!(resolve("tiny-1", Some(&store)).unwrap(), first);
        let without = resolve(path.to_str().unwrap(), None).unwrap();
        assert_eq!((without.source == first.source, without.stored), (true, false));
    }
}
