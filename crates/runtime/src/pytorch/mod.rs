//! PyTorch's files of weights (`torch.save` of a `state_dict`): a pickle that names tensors, and their numbers beside it,
//! in a zip archive or, before 1.6, one after the other. Tensors are views of the file's bytes; nothing of it is run.

mod pickle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use zip::{CompressionMethod, ZipArchive};

use self::pickle::{Pickle, Storage, Value, View};
use crate::error::LoadError;
use crate::limits::GGUF_ENTRIES_MAX;
use crate::load::Tensor;
use crate::mapped::ModelBytes;

/// Bytes of a pickle: names and shapes of some 20,000 tensors.
const PICKLE_BYTES_MAX: usize = 4 << 20;
/// What begins a file of before 1.6, a number in a pickle of its own.
const LEGACY_MAGIC: &[u8] =
    &[0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];

/// Maps and parses a file.
///
/// # Errors
/// `Io` where it cannot be mapped, and those of [`parse`].
pub fn open(path: &Path) -> Result<Vec<Tensor>, LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    parse(&path.display().to_string(), &bytes)
}

/// Parses one file's bytes. `file` is its name, for errors. Tensors come in the file's order.
///
/// # Errors
/// `Corrupt` naming the tensor or the part of the file; `Unsupported` for what is not a dictionary of plain tensors.
pub fn parse(file: &str, bytes: &ModelBytes) -> Result<Vec<Tensor>, LoadError> {
    let archive = if bytes.starts_with(LEGACY_MAGIC) { legacy(file, bytes)? } else { zipped(file, bytes)? };
    let blame = Blame { file };
    let Archive { bytes, pickle, root, places } = archive;
    let Some(entries) = pickle.dict(root) else {
        return Err(blame.unsupported(
            "data",
            "no dictionary",
            "weights are a dictionary of tensors by their names",
        ));
    };
    if entries.len() > GGUF_ENTRIES_MAX {
        let reason = format!("{} entries; at most {GGUF_ENTRIES_MAX} are allowed", entries.len());
        return Err(blame.corrupt("data", reason));
    }
    let shared_file: Arc<str> = file.into();
    let mut tensors = Vec::with_capacity(entries.len());
    for &(name, value) in entries {
        let (Some(name), Value::Tensor(view)) = (pickle.text(name), value) else { continue };
        let view = &pickle.views[view];
        let storage = &pickle.storages[view.storage];
        let place = places.get(pickle.key(storage)).cloned();
        let (dtype, range) = blame.range(name, view, storage, place)?;
        let Some(bytes) = bytes.slice(range) else {
            return Err(blame.corrupt(&format!("tensor {name}"), "it reaches past the file's end"));
        };
        let name = name.to_owned();
        tensors.push(Tensor { file: shared_file.clone(), name, dtype, shape: view.shape.clone(), bytes });
    }
    if tensors.is_empty() {
        let reason = "weights are a dictionary of tensors by their names";
        return Err(blame.unsupported("data", "no tensor in its outermost dictionary", reason));
    }
    Ok(tensors)
}

/// A file taken apart.
struct Archive<'a> {
    bytes: &'a ModelBytes,
    pickle: Pickle<'a>,
    root: Value,
    /// Where in the file each storage is, by its name.
    places: HashMap<String, Range<usize>>,
}

/// Errors about a file.
struct Blame<'a> {
    file: &'a str,
}

impl Blame<'_> {
    fn corrupt(&self, what: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.to_owned(), what: what.to_owned(), reason: reason.into() }
    }

    fn unsupported(&self, key: &str, value: &str, reason: &str) -> LoadError {
        let [file, key, value, reason] = [self.file, key, value, reason].map(str::to_owned);
        LoadError::Unsupported { file, key, value, reason }
    }

    fn pickle<'p>(&self, what: &str, bytes: &'p [u8]) -> Result<(Pickle<'p>, Value), LoadError> {
        let bytes = &bytes[..bytes.len().min(PICKLE_BYTES_MAX)];
        Pickle::read(bytes).map_err(|fault| {
            let cut = if bytes.len() == PICKLE_BYTES_MAX { "; at most 4 MiB of it are read" } else { "" };
            self.corrupt(&format!("{what}, byte {}", fault.at), format!("{}{cut}", fault.reason))
        })
    }

    /// The type of a tensor and where its numbers are, given where its storage is.
    fn range(
        &self,
        name: &str,
        view: &View,
        storage: &Storage,
        place: Option<Range<usize>>,
    ) -> Result<(hanzo_engine_kernels::DType, Range<usize>), LoadError> {
        let what = format!("tensor {name}");
        let Some(dtype) = storage.dtype else {
            let reason = "F32, F16 and BF16 can be computed with";
            return Err(self.unsupported(&format!("{what}: element type"), "booleans or bytes", reason));
        };
        let Some(place) = place else {
            return Err(self.corrupt(&what, "the numbers it is a view of are not in the file"));
        };
        if view.shape.contains(&0) {
            return Err(self.corrupt(&what, format!("shape {:?}; no dimension may be 0", view.shape)));
        }
        let mut elements = 1_usize;
        for (&size, &stride) in view.shape.iter().zip(&view.strides).rev() {
            if size > 1 && stride != elements {
                let strides = format!("{:?} of shape {:?}", view.strides, view.shape);
                let reason =
                    "numbers that do not lie one after the other are not read; save the tensor contiguous";
                return Err(self.unsupported(&format!("{what}: strides"), &strides, reason));
            }
            elements =
                elements.checked_mul(size).ok_or_else(|| self.corrupt(&what, "its shape is too large"))?;
        }
        let end = view.first.checked_add(elements).filter(|&end| end <= storage.elements);
        let (first, end) = match (end, dtype.bytes_of(view.first), end.and_then(|end| dtype.bytes_of(end))) {
            (Some(_), Some(first), Some(end)) if end <= place.len() => (first, end),
            _ => return Err(self.corrupt(&what, "it reaches past the numbers it is a view of")),
        };
        Ok((dtype, place.start + first..place.start + end))
    }
}

/// A zip archive: `NAME/data.pkl`, and each storage as `NAME/data/KEY`, not compressed.
fn zipped<'a>(file: &str, bytes: &'a ModelBytes) -> Result<Archive<'a>, LoadError> {
    let blame = Blame { file };
    let not_zip = |error: &dyn std::fmt::Display| {
        blame.corrupt(
            "the file",
            format!("it is neither a zip archive, as torch.save makes them, nor of before 1.6: {error}"),
        )
    };
    let mut archive = ZipArchive::new(Cursor::new(&bytes[..])).map_err(|error| not_zip(&error))?;
    if archive.len() > 2 * GGUF_ENTRIES_MAX {
        return Err(blame.corrupt("the archive", format!("{} files in it are too many", archive.len())));
    }
    let (mut places, mut data, mut order) = (HashMap::with_capacity(archive.len()), None, None);
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(|error| not_zip(&error))?;
        let name = entry.name().map_err(|error| not_zip(&error))?.into_owned();
        let Some((_, inner)) = name.split_once('/') else { continue };
        let place = entry.data_start().and_then(|first| {
            let (first, size) = (usize::try_from(first).ok()?, usize::try_from(entry.size()).ok()?);
            Some(first..first.checked_add(size).filter(|&end| end <= bytes.len())?)
        });
        let Some(place) = place else {
            return Err(blame.corrupt(&name, "it reaches past the file's end"));
        };
        if entry.compression() != CompressionMethod::Stored {
            return Err(blame.unsupported(&name, "compressed", "torch.save compresses nothing"));
        }
        match inner {
            "data.pkl" => data = Some((name, place)),
            "byteorder" => order = Some(place),
            _ => {
                if let Some(key) = inner.strip_prefix("data/") {
                    places.insert(key.to_owned(), place);
                }
            }
        }
    }
    if let Some(order) = order.filter(|order| bytes[order.clone()] != *b"little") {
        let order =
            String::from_utf8_lossy(&bytes[order.start..order.end.min(order.start + 16)]).into_owned();
        return Err(blame.unsupported("byteorder", &order, "little is read"));
    }
    let Some((name, data)) = data else {
        return Err(blame.corrupt("the archive", "there is no data.pkl in it: it is not a file of weights"));
    };
    let (pickle, root) = blame.pickle(&name, &bytes[data])?;
    Ok(Archive { bytes, pickle, root, places })
}

/// Of before 1.6: pickles of a magic number, of a version, of what made it, of the dictionary and of the storages' names;
/// then each storage in that order, behind how many numbers it has.
fn legacy<'a>(file: &str, bytes: &'a ModelBytes) -> Result<Archive<'a>, LoadError> {
    const COUNT_BYTES: usize = size_of::<u64>();
    let blame = Blame { file };
    let mut at = LEGACY_MAGIC.len();
    let mut next = |what: &str| {
        let (pickle, value) = blame.pickle(what, &bytes[at..])?;
        at += pickle.length();
        Ok::<_, LoadError>((pickle, value, at))
    };
    let (_, version, _) = next("the version")?;
    if version != Value::Int(1001) {
        return Err(blame.unsupported("version", &format!("{version:?}"), "1001 is known"));
    }
    let (maker, about, _) = next("what made the file")?;
    let little = maker
        .dict(about)
        .into_iter()
        .flatten()
        .all(|&(key, value)| maker.text(key) != Some("little_endian") || value == Value::Bool(true));
    if !little {
        return Err(blame.unsupported("little_endian", "false", "true is known"));
    }
    let (pickle, root, _) = next("data")?;
    let (names, keys, mut at) = next("the names of storages")?;
    let Some(keys) = names.list(keys) else {
        return Err(blame.corrupt("the names of storages", "they are no list"));
    };
    let types: BTreeMap<&str, &Storage> =
        pickle.storages.iter().map(|storage| (pickle.key(storage), storage)).collect();
    let mut places = HashMap::with_capacity(keys.len());
    for &key in keys {
        let name = names.text(key).unwrap_or_default();
        let Some(storage) = types.get(name) else {
            return Err(blame.corrupt("the names of storages", format!("no tensor is a view of {name:?}")));
        };
        let what = format!("storage {name}");
        // Booleans and bytes take a byte each.
        let bytes_of = |count| storage.dtype.map_or(Some(count), |dtype| dtype.bytes_of(count));
        let count = bytes.get(at..).and_then(|rest| rest.first_chunk::<COUNT_BYTES>());
        let count = count.and_then(|count| usize::try_from(u64::from_le_bytes(*count)).ok());
        let place = count.filter(|&count| count == storage.elements).and_then(|count| {
            let first = at + COUNT_BYTES;
            let end = first.checked_add(bytes_of(count)?)?;
            (end <= bytes.len()).then_some(first..end)
        });
        let Some(place) = place else {
            return Err(
                blame.corrupt(&what, "it has another length than its tensors say, or the file ends in it")
            );
        };
        at = place.end;
        places.insert(name.to_owned(), place);
    }
    Ok(Archive { bytes, pickle, root, places })
}
