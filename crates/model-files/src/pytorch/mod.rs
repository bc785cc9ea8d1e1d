//! PyTorch weight files (`torch.save` of a `state_dict`): a pickle that names tensors, and their data next to it, in a
//! zip archive or, before PyTorch 1.6, one after the other. Tensors are views of the file's bytes. Only tensors whose
//! elements are not contiguous, as in models converted from TensorFlow, are copies. No code of a file is run.

mod archive;
mod pickle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hanzo_engine_ops::DType;

use self::archive::Directory;
use self::pickle::{Pickle, Storage, Value, View};
use crate::error::LoadError;
use crate::limits::{GATHERED_BYTES_MAX, GGUF_NAME_BYTES_MAX, PICKLE_BYTES_MAX, TENSORS_MAX};
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Start of a file from before PyTorch 1.6, after the version of its pickles: a number in a separate pickle.
const LEGACY_MAGIC: &[u8] = &[0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];
/// Name of a tensor outside of a dictionary.
pub const ALONE: &str = "tensor";
/// Bytes of the version.
const PROTOCOL_BYTES: usize = 2;

/// Maps and parses a file.
///
/// # Errors
/// `Io` if it cannot be mapped, and the errors of [`parse`].
pub fn open(path: &Path) -> Result<Vec<Tensor>, LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    parse(&path.display().to_string(), &bytes)
}

/// Parses one file's bytes. `file` is its name, for errors. Tensors come in the file's order.
///
/// # Errors
/// `Corrupt` naming the tensor or the part of the file; `Unsupported` for anything but a dictionary of plain tensors.
pub fn parse(file: &str, bytes: &ModelBytes) -> Result<Vec<Tensor>, LoadError> {
    let is_legacy = bytes.get(PROTOCOL_BYTES..).is_some_and(|rest| rest.starts_with(LEGACY_MAGIC));
    let archive = if is_legacy { legacy(file, bytes)? } else { zipped(file, bytes)? };
    let blame = Blame { file };
    let Archive { bytes, pickle, root, places } = archive;
    let Some(entries) = named_values(&pickle, root) else {
        return Err(blame.unsupported(
            "data",
            "no dictionary",
            "weights are a dictionary of tensors by their names",
        ));
    };
    let entries = entries.map_err(|reason| blame.corrupt("data", reason))?;
    let shared_file: Arc<str> = file.into();
    let (mut tensors, mut names, mut copied) = (Vec::new(), HashSet::new(), 0);
    for (name, view) in entries {
        if name.len() > GGUF_NAME_BYTES_MAX {
            let reason = format!("a name of {} bytes; at most {GGUF_NAME_BYTES_MAX} are allowed", name.len());
            return Err(blame.corrupt("data", reason));
        }
        if !names.insert(name.clone()) {
            return Err(blame.corrupt(&format!("tensor {name}"), "it is there twice"));
        }
        let view = &pickle.views[view];
        let storage = &pickle.storages[view.storage];
        // Masks and similar: no weight has such a type, so a needed one will be reported missing.
        let Some(dtype) = storage.dtype else { continue };
        let Some(place) = places.get(pickle.key(storage)) else {
            return Err(
                blame.corrupt(&format!("tensor {name}"), "the numbers it is a view of are not in the file")
            );
        };
        let whole = Numbers { file: bytes, place: place.clone(), storage, dtype };
        let bytes = blame.numbers(&name, view, whole, &mut copied)?;
        tensors.push(Tensor { file: shared_file.clone(), name, dtype, shape: view.shape.clone(), bytes });
    }
    if tensors.is_empty() {
        let reason = "weights are a dictionary of tensors by their names";
        return Err(blame.unsupported("data", "no tensor in its outermost dictionary", reason));
    }
    Ok(tensors)
}

/// Tensors named by the outermost dictionary. In a dictionary of dictionaries, one for each module (Kokoro), names are
/// joined by a full stop. A single tensor (a voice of Kokoro) is called [`ALONE`].
fn named_values(pickle: &Pickle<'_>, root: Value) -> Option<Result<Vec<(String, usize)>, String>> {
    if let Value::Tensor(view) = root {
        return Some(Ok(vec![(ALONE.to_owned(), view)]));
    }
    let (mut named, mut bytes) = (Vec::new(), 0);
    let mut add = |names: [&str; 2], view| {
        let name = names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(".");
        bytes += name.len();
        named.push((name, view));
        match () {
            () if named.len() > TENSORS_MAX => Err(format!("more than {TENSORS_MAX} tensors")),
            // Names that one dictionary gives to many tensors may exceed the file's length.
            () if bytes > PICKLE_BYTES_MAX => Err(format!("names of more than {PICKLE_BYTES_MAX} bytes")),
            () => Ok(()),
        }
    };
    for &(name, value) in pickle.dict(root)? {
        let Some(name) = pickle.text(name) else { continue };
        let added = match (value, pickle.dict(value)) {
            (Value::Tensor(view), _) => add(["", name], view),
            (_, Some(inner)) => {
                inner.iter().try_for_each(|&(part, value)| match (pickle.text(part), value) {
                    (Some(part), Value::Tensor(view)) => add([name, part], view),
                    _ => Ok(()),
                })
            }
            _ => Ok(()),
        };
        if let Err(reason) = added {
            return Some(Err(reason));
        }
    }
    Some(Ok(named))
}

/// Parsed file.
struct Archive<'a> {
    bytes: &'a ModelBytes,
    pickle: Pickle<'a>,
    root: Value,
    /// Position in the file of each storage, by name.
    places: HashMap<String, Range<usize>>,
}

/// Errors about a file.
struct Blame<'a> {
    file: &'a str,
}

/// Elements of a storage, and their position in the file.
struct Numbers<'a> {
    file: &'a ModelBytes,
    place: Range<usize>,
    storage: &'a Storage,
    dtype: DType,
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
            let cut = if fault.at == PICKLE_BYTES_MAX { "; at most 4 MiB of it are read" } else { "" };
            self.corrupt(&format!("{what}, byte {}", fault.at), format!("{}{cut}", fault.reason))
        })
    }

    /// Elements of a tensor, which are a view of `whole`: a part of the file or, if they are not contiguous, a copy.
    /// `copied` counts the bytes of all copies, which are at most the file's, or [`GATHERED_BYTES_MAX`].
    fn numbers(
        &self,
        name: &str,
        view: &View,
        whole: Numbers,
        copied: &mut usize,
    ) -> Result<ModelBytes, LoadError> {
        let Numbers { file, place, storage, dtype } = whole;
        let corrupt = |reason: &str| Err(self.corrupt(&format!("tensor {name}"), reason));
        if view.shape.contains(&0) {
            return corrupt("one of its dimensions is 0");
        }
        let (mut elements, mut last, mut whole) = (Some(1_usize), Some(view.first), true);
        for (&size, &stride) in view.shape.iter().zip(&view.strides).rev() {
            whole &= size == 1 || elements == Some(stride);
            elements = elements.and_then(|elements| elements.checked_mul(size));
            last = last.and_then(|last| last.checked_add((size - 1).checked_mul(stride)?));
        }
        let (Some(elements), Some(last)) = (elements, last) else { return corrupt("its shape is too large") };
        let bytes_of = |count: usize| dtype.bytes_of(count).filter(|&bytes| bytes <= place.len());
        let (Some(_), Some(first), Some(length)) = (
            bytes_of(last + 1).filter(|_| last < storage.elements),
            bytes_of(view.first),
            bytes_of(elements),
        ) else {
            return corrupt("it reaches past the numbers it is a view of");
        };
        if whole {
            let first = place.start + first;
            return match file.slice(first..first + length) {
                Some(bytes) => Ok(bytes),
                None => corrupt("it reaches past the file's end"),
            };
        }
        *copied += length;
        if *copied > file.len() {
            return corrupt(
                "copies of numbers that do not lie one after the other would take more than the file does",
            );
        }
        if *copied > GATHERED_BYTES_MAX {
            return corrupt("with it, numbers that do not lie one after the other take more than 2 GiB");
        }
        let Some(storage) = file.slice(place) else { return corrupt("it reaches past the file's end") };
        let width = length / elements;
        let gathered = ModelBytes::made(length, |gathered| {
            let mut index = vec![0; view.shape.len()];
            for to in gathered.chunks_exact_mut(width) {
                let at: usize = index.iter().zip(&view.strides).map(|(index, stride)| index * stride).sum();
                let at = (view.first + at) * width;
                to.copy_from_slice(&storage[at..at + width]);
                for (index, &size) in index.iter_mut().zip(&view.shape).rev() {
                    *index += 1;
                    if *index < size {
                        break;
                    }
                    *index = 0;
                }
            }
        });
        storage.release();
        gathered.map_err(|source| LoadError::Io { path: self.file.into(), source })
    }
}

/// Parses a zip archive: `NAME/data.pkl`, and each storage as `NAME/data/KEY`, uncompressed.
fn zipped<'a>(file: &str, bytes: &'a ModelBytes) -> Result<Archive<'a>, LoadError> {
    let blame = Blame { file };
    let not_zip = |error: &str| {
        blame.corrupt(
            "the file",
            format!("it is neither a zip archive, as torch.save makes them, nor of before 1.6: {error}"),
        )
    };
    let mut directory = Directory::find(bytes).map_err(not_zip)?;
    // At most one file for each tensor, and a few more.
    if directory.count() > 2 * TENSORS_MAX as u64 {
        return Err(blame.corrupt("the archive", format!("{} files in it are too many", directory.count())));
    }
    let (mut places, mut data, mut order) = (HashMap::new(), None, None);
    while let Some(entry) = directory.next().map_err(|error| blame.corrupt("the archive", error))? {
        // Names of storages are short; files with other names are skipped.
        let Ok(name) = str::from_utf8(entry.name) else { continue };
        let Some((_, inner)) = name.split_once('/').filter(|_| name.len() <= GGUF_NAME_BYTES_MAX) else {
            continue;
        };
        if !entry.is_stored {
            return Err(blame.unsupported(name, "compressed", "torch.save compresses nothing"));
        }
        match inner {
            "data.pkl" => data = Some((name, entry.place)),
            "byteorder" => order = Some(entry.place),
            _ => {
                if let Some(key) =
                    inner.strip_prefix("data/").filter(|key| key.len() <= pickle::NAME_BYTES_MAX)
                    && places.insert(key.to_owned(), entry.place).is_some()
                {
                    return Err(blame.corrupt(name, "it is there twice"));
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
    let (pickle, root) = blame.pickle(name, &bytes[data])?;
    Ok(Archive { bytes, pickle, root, places })
}

/// Parses a file from before PyTorch 1.6: pickles of a magic number, of a version, of system information, of the
/// dictionary and of the storages' names; then each storage in that order, preceded by its number of elements.
fn legacy<'a>(file: &str, bytes: &'a ModelBytes) -> Result<Archive<'a>, LoadError> {
    const COUNT_BYTES: usize = size_of::<u64>();
    let blame = Blame { file };
    let mut at = PROTOCOL_BYTES + LEGACY_MAGIC.len();
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
        let name = names.text(key).filter(|name| name.len() <= pickle::NAME_BYTES_MAX).unwrap_or_default();
        let Some(storage) = types.get(name) else {
            return Err(blame.corrupt("the names of storages", format!("no tensor is a view of {name:?}")));
        };
        let what = format!("storage {name}");
        // Booleans and bytes take one byte each.
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
        if places.insert(name.to_owned(), place).is_some() {
            return Err(blame.corrupt(&what, "it is there twice"));
        }
    }
    Ok(Archive { bytes, pickle, root, places })
}
