//! Weights of a model directory: one file, or several named by an index, of safetensors or else of PyTorch; or else
//! its only safetensors file, whatever its name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::TextFile;
use crate::error::LoadError;
use crate::limits::{MODEL_PARTS_MAX, TENSORS_MAX};
use crate::tensor::Tensor;
use crate::{pytorch, safetensors};

/// File names of a format.
struct Format {
    name: &'static str,
    /// File with all tensors.
    single: &'static str,
    /// Index of several files.
    index: &'static str,
    open: fn(&Path) -> Result<Vec<Tensor>, LoadError>,
}

/// Formats; the first whose files exist is read.
const FORMATS: [Format; 2] = [
    Format {
        name: "safetensors",
        single: "model.safetensors",
        index: "model.safetensors.index.json",
        open: safetensors::open,
    },
    Format {
        name: "pytorch",
        single: "pytorch_model.bin",
        index: "pytorch_model.bin.index.json",
        open: pytorch::open,
    },
];

/// The weights of a directory.
pub(crate) struct Weights {
    pub(crate) tensors: Vec<Tensor>,
    /// Files of the tensors.
    pub(crate) files: Vec<PathBuf>,
    /// `safetensors` or `pytorch`.
    pub(crate) format: &'static str,
}

/// Whether a directory has weights.
pub(crate) fn are_in(directory: &Path) -> bool {
    let named = FORMATS.iter().flat_map(|format| [format.single, format.index]);
    named.into_iter().any(|name| directory.join(name).exists()) || only_safetensors(directory).is_some()
}

/// Opens all tensors of a model directory.
///
/// # Errors
/// `Missing` if there is neither a file nor an index, or a file of the index does not exist, `Io` if something cannot
/// be read, and the errors of the format.
pub(crate) fn open(directory: &Path) -> Result<Weights, LoadError> {
    for format in &FORMATS {
        let (index, single) = (directory.join(format.index), directory.join(format.single));
        if index.exists() {
            return open_index(directory, &index, format);
        }
        if single.exists() {
            return Ok(Weights {
                tensors: (format.open)(&single)?,
                files: vec![single],
                format: format.name,
            });
        }
    }
    // Quantisers have named the single file after their method.
    if let Some(single) = only_safetensors(directory) {
        let tensors = safetensors::open(&single)?;
        return Ok(Weights { tensors, files: vec![single], format: FORMATS[0].name });
    }
    let [first, second] = FORMATS.map(|format| (format.single, format.index));
    Err(LoadError::Missing {
        file: directory.display().to_string(),
        what: first.0.into(),
        hint: format!(
            "; the weights are expected there or in {}, or in the files that {} or {} names",
            second.0, first.1, second.1
        ),
    })
}

/// A directory's only safetensors file, unless it is an adapter's.
fn only_safetensors(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let mut files =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    let only = files.next().filter(|_| files.next().is_none())?;
    let is_adapter = only.file_name().is_some_and(|name| name.to_string_lossy().starts_with("adapter"));
    (!is_adapter).then_some(only)
}

fn open_index(directory: &Path, index_path: &Path, format: &Format) -> Result<Weights, LoadError> {
    let index = TextFile::Index.read_object(index_path)?;
    let file_of = weight_map(&index, index_path)?;
    let names: BTreeSet<&str> = file_of.values().copied().collect();
    let corrupt = |what: String, reason: String| LoadError::Corrupt {
        file: index_path.display().to_string(),
        what,
        reason,
    };
    if names.len() > MODEL_PARTS_MAX {
        let reason = format!("{} files; at most {MODEL_PARTS_MAX} are allowed", names.len());
        return Err(corrupt("key weight_map".into(), reason));
    }
    if file_of.len() > TENSORS_MAX {
        let reason = format!("{} tensors; at most {TENSORS_MAX} are allowed", file_of.len());
        return Err(corrupt("key weight_map".into(), reason));
    }
    let mut tensors = Vec::with_capacity(file_of.len());
    let mut paths = Vec::with_capacity(names.len());
    for name in names {
        // A name with a folder in it could point outside of the model.
        if Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(corrupt("key weight_map".into(), format!("{name} is not a plain file name")));
        }
        let path = directory.join(name);
        if !path.exists() {
            return Err(LoadError::Missing {
                file: index_path.display().to_string(),
                what: format!("file {name}"),
                hint: "; the index names it".into(),
            });
        }
        for tensor in (format.open)(&path)? {
            if file_of.get(tensor.name.as_str()) != Some(&name) {
                return Err(corrupt(
                    format!("tensor {}", tensor.name),
                    format!("it is in {name}, and the index does not say so"),
                ));
            }
            tensors.push(tensor);
        }
        paths.push(path);
    }
    let found: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if let Some((missing, name)) = file_of.iter().find(|(tensor, _)| !found.contains(*tensor)) {
        return Err(corrupt(format!("tensor {missing}"), format!("it is not in {name}, as the index says")));
    }
    Ok(Weights { tensors, files: paths, format: format.name })
}

/// File of each tensor.
fn weight_map<'a>(
    index: &'a Map<String, Value>,
    index_path: &Path,
) -> Result<BTreeMap<&'a str, &'a str>, LoadError> {
    let entries = index.get("weight_map").and_then(Value::as_object);
    let map: Option<BTreeMap<&str, &str>> = entries.and_then(|entries| {
        entries.iter().map(|(tensor, file)| Some((tensor.as_str(), file.as_str()?))).collect()
    });
    map.ok_or_else(|| LoadError::Corrupt {
        file: index_path.display().to_string(),
        what: "key weight_map".into(),
        reason: "expected an object of tensor names and file names".into(),
    })
}
