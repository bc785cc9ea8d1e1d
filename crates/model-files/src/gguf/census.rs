//! Inventory of a file's header, including tensors of types unknown to this build: for inspecting a file that cannot
//! be run.

use hanzo_engine_ops::DType;

use super::{Reader, alignment_of, read_metadata, read_raw, read_version};
use crate::error::{LoadError, shorten};
use crate::gguf::Metadata;
use crate::limits::{GGUF_KEYS_MAX, TENSORS_MAX};
use crate::tensor::StoredTensor;

/// Reads a file's metadata and the entry of each of its tensors.
///
/// # Errors
/// `Corrupt` naming the key or tensor, `Unsupported` for versions and byte orders.
pub fn census(file: &str, bytes: &[u8]) -> Result<(Metadata, Vec<StoredTensor>), LoadError> {
    let mut reader = Reader::new(file, bytes);
    read_version(file, &mut reader)?;
    let tensor_count = reader.count("tensors", TENSORS_MAX, 1)?;
    let entry_count = reader.count("keys", GGUF_KEYS_MAX, 1)?;
    let metadata = read_metadata(file, &mut reader, entry_count)?;
    let mut entries = Vec::with_capacity(tensor_count.min(reader.left() / 33));
    for index in 0..tensor_count {
        reader.what = format!("tensor {} of {tensor_count}", index + 1);
        let name = reader.name()?;
        reader.what = format!("tensor {}", shorten(name.to_owned()));
        entries.push(read_raw(&mut reader)?);
    }
    let data_first = (reader.position() as u64).next_multiple_of(alignment_of(&metadata)?);
    let data_bytes = (bytes.len() as u64).saturating_sub(data_first);
    entries.sort_by_key(|entry| entry.offset);
    // A tensor of unknown type extends to the next one, or to the end of the file.
    let ends: Vec<u64> = entries.iter().skip(1).map(|next| next.offset).chain([data_bytes]).collect();
    let stored = entries.iter().zip(ends).map(|(entry, end)| {
        let dtype = DType::from_ggml(entry.type_id);
        let elements = entry.shape.iter().fold(1_u64, |all, &size| all.saturating_mul(size as u64));
        let known = dtype.and_then(|dtype| dtype.bytes_of(usize::try_from(elements).ok()?));
        StoredTensor {
            dtype: dtype.map_or_else(|| format!("type {}", entry.type_id), |dtype| dtype.to_string()),
            bytes: known.map_or_else(|| end.saturating_sub(entry.offset), |bytes| bytes as u64),
            elements,
        }
    });
    let stored = stored.collect();
    Ok((metadata, stored))
}
