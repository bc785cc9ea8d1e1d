//! GGUF files (github.com/ggml-org/ggml/blob/master/docs/gguf.md): versions 2 and 3, little endian, one file or
//! split into several. Reads headers only; tensors are views of the file's bytes. [`Writer`] makes such files.
//!
//! No input makes it panic or allocate more than a small multiple of the file's size.

mod census;
mod metadata;
mod reader;
mod split;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub use census::census;
pub use metadata::{Array, Metadata, Value};
pub use split::{open, part_files};
pub use writer::{TensorEntry, Writer};

use crate::error::{LoadError, shorten};
use crate::limits::{GGUF_ALIGNMENT_MAX, GGUF_KEYS_MAX, TENSOR_DIMENSIONS_MAX, TENSORS_MAX};
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;
use hanzo_engine_ops::DType;
use reader::Reader;

/// Default alignment of a tensor's data in bytes.
const ALIGNMENT_DEFAULT: u64 = 32;

/// A parsed GGUF file, or all parts of a split one.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// The file's metadata.
    pub metadata: Arc<Metadata>,
    /// Tensors, in the file's order.
    pub tensors: Vec<Tensor>,
}

/// Entry of a tensor in the header: everything except its bytes.
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    offset: u64, // from the start of the data section
    length: usize,
}

impl Gguf {
    /// Parses one file's bytes. `file` is its name, for errors.
    ///
    /// # Errors
    /// `Corrupt` naming the key or tensor, `Unsupported` for unknown versions, byte orders and types.
    pub fn parse(file: &str, bytes: &ModelBytes) -> Result<Gguf, LoadError> {
        let mut reader = Reader::new(file, bytes);
        let version = read_version(file, &mut reader)?;
        let tensor_count = reader.count("tensors", TENSORS_MAX, 1)?;
        let entry_count = reader.count("keys", GGUF_KEYS_MAX, 1)?;
        let metadata = read_metadata(file, &mut reader, entry_count)?;
        let alignment = alignment_of(&metadata)?;
        let entries = read_entries(file, &mut reader, tensor_count)?;
        let data_first = (reader.position() as u64).next_multiple_of(alignment);
        let tensors = place(file, bytes, data_first, alignment, entries)?;
        Ok(Gguf { version, metadata: Arc::new(metadata), tensors })
    }
}

fn read_version(file: &str, reader: &mut Reader<'_>) -> Result<u32, LoadError> {
    if reader.take(4)? != b"GGUF" {
        return Err(reader.corrupt("this is not a GGUF file: it does not begin with the letters GGUF"));
    }
    let version = reader.u32()?;
    let unsupported = |value: String| LoadError::Unsupported {
        file: file.to_owned(),
        key: "GGUF version".into(),
        value,
        reason: "versions 2 and 3, little endian, can be read".into(),
    };
    match version {
        2 | 3 => Ok(version),
        _ if (1..=0xffff).contains(&version.swap_bytes()) => {
            Err(unsupported(format!("{} (big-endian)", version.swap_bytes())))
        }
        other => Err(unsupported(other.to_string())),
    }
}

fn read_metadata(file: &str, reader: &mut Reader<'_>, count: usize) -> Result<Metadata, LoadError> {
    let mut entries = BTreeMap::new();
    for index in 0..count {
        reader.what = format!("key {} of {count}", index + 1);
        let key = reader.name()?;
        reader.what = format!("key {}", shorten(key.to_owned()));
        let value = reader.value()?;
        if entries.insert(key.to_owned(), value).is_some() {
            return Err(reader.corrupt("the key is there twice"));
        }
    }
    Ok(Metadata::new(file, entries))
}

fn alignment_of(metadata: &Metadata) -> Result<u64, LoadError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.u32(KEY)?.map_or(ALIGNMENT_DEFAULT, u64::from);
    if !alignment.is_power_of_two() || !(8..=GGUF_ALIGNMENT_MAX).contains(&alignment) {
        return Err(metadata
            .corrupt(KEY, format!("{alignment} is not a power of two from 8 to {GGUF_ALIGNMENT_MAX}")));
    }
    Ok(alignment)
}

fn read_entries(file: &str, reader: &mut Reader<'_>, count: usize) -> Result<Vec<Entry>, LoadError> {
    // An entry takes at least 8 + 1 + 4 + 8 + 4 + 8 bytes; if fewer are left, reading fails.
    let mut entries = Vec::with_capacity(count.min(reader.left() / 33));
    let mut names = HashSet::new();
    for index in 0..count {
        reader.what = format!("tensor {} of {count}", index + 1);
        let name = reader.name()?;
        reader.what = format!("tensor {}", shorten(name.to_owned()));
        if !names.insert(name) {
            return Err(reader.corrupt("the tensor is there twice"));
        }
        entries.push(read_entry(file, reader, name)?);
    }
    Ok(entries)
}

/// Raw entry of a tensor in the header, of any type.
struct Raw {
    shape: Vec<usize>,
    type_id: u32,
    offset: u64,
}

fn read_raw(reader: &mut Reader<'_>) -> Result<Raw, LoadError> {
    let dimensions = reader.u32()? as usize;
    if !(1..=TENSOR_DIMENSIONS_MAX).contains(&dimensions) {
        return Err(
            reader.corrupt(format!("{dimensions} dimensions; 1 to {TENSOR_DIMENSIONS_MAX} are allowed"))
        );
    }
    let mut shape = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        let size = reader.u64()?;
        shape.push(match usize::try_from(size) {
            Ok(size) if size > 0 => size,
            _ => return Err(reader.corrupt(format!("a dimension is {size}"))),
        });
    }
    shape.reverse(); // The file has the contiguous dimension first.
    Ok(Raw { shape, type_id: reader.u32()?, offset: reader.u64()? })
}

fn read_entry(file: &str, reader: &mut Reader<'_>, name: &str) -> Result<Entry, LoadError> {
    let Raw { shape, type_id, offset } = read_raw(reader)?;
    let Some(dtype) = DType::from_ggml(type_id) else {
        return Err(LoadError::Unsupported {
            file: file.to_owned(),
            key: format!("tensor {name}: element type"),
            value: type_id.to_string(),
            reason: "no such type is known".into(),
        });
    };
    let columns = shape[shape.len() - 1];
    if !columns.is_multiple_of(dtype.block_weights()) {
        return Err(reader.corrupt(format!(
            "rows of {columns} are not whole blocks of {} {dtype} weights",
            dtype.block_weights()
        )));
    }
    let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    let Some(length) = elements.and_then(|elements| dtype.bytes_of(elements)) else {
        return Err(reader.corrupt(format!("{shape:?} of {dtype} overflows")));
    };
    Ok(Entry { name: name.to_owned(), dtype, shape, offset, length })
}

/// Finds each tensor's bytes: aligned, inside the file, and not overlapping.
fn place(
    file: &str,
    bytes: &ModelBytes,
    data_first: u64,
    alignment: u64,
    entries: Vec<Entry>,
) -> Result<Vec<Tensor>, LoadError> {
    let corrupt = |entry: &Entry, reason: String| LoadError::Corrupt {
        file: file.to_owned(),
        what: format!("tensor {}", entry.name),
        reason,
    };
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by_key(|entry| entry.offset);
    for pair in order.windows(2) {
        if pair[1].offset - pair[0].offset < pair[0].length as u64 {
            return Err(corrupt(pair[1], format!("it overlaps tensor {}", pair[0].name)));
        }
    }
    let shared_file: Arc<str> = file.into();
    entries
        .into_iter()
        .map(|entry| {
            if !entry.offset.is_multiple_of(alignment) {
                return Err(corrupt(
                    &entry,
                    format!("it starts at {}, which is not a multiple of {alignment}", entry.offset),
                ));
            }
            let first = data_first.checked_add(entry.offset).and_then(|first| usize::try_from(first).ok());
            let view = first
                .and_then(|first| Some(first..first.checked_add(entry.length)?))
                .and_then(|range| bytes.slice(range));
            let Some(view) = view else {
                return Err(corrupt(
                    &entry,
                    format!(
                        "its {} bytes at {} of the data reach past the file's end at {}; the file is truncated",
                        entry.length,
                        entry.offset,
                        bytes.len()
                    ),
                ));
            };
            Ok(Tensor {
                file: shared_file.clone(),
                name: entry.name,
                dtype: entry.dtype,
                shape: entry.shape,
                bytes: view,
            })
        })
        .collect()
}
