//! Safetensors files (github.com/huggingface/safetensors). Reading parses headers only; tensors are views of the
//! files' bytes. [`begin`] makes the header of a file to write.

mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hanzo_engine_ops::DType;
use safetensors::tensor::{Dtype, TensorInfo};
use safetensors::{SafeTensorError, SafeTensors};
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use writer::{Written, begin};

use crate::error::LoadError;
use crate::json;
use crate::limits::{
    SAFETENSORS_DIMENSIONS_MAX, SAFETENSORS_HEADER_BYTES_MAX, SAFETENSORS_VALUES_MAX, TENSORS_MAX,
};
use crate::mapped::ModelBytes;
use crate::tensor::{StoredTensor, Tensor};

/// Bytes of the length at the start of a file.
const LENGTH_BYTES: usize = 8;

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
/// `Corrupt` naming the tensor, or the header if no tensor is to blame; `Unsupported` for unknown element types.
pub fn parse(file: &str, bytes: &ModelBytes) -> Result<Vec<Tensor>, LoadError> {
    let corrupt = |what: String, reason: String| LoadError::Corrupt { file: file.to_owned(), what, reason };
    check_header(bytes).map_err(|reason| corrupt("header".into(), reason))?;
    let (header_length, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| {
        let (what, reason) = blame(bytes, &error);
        corrupt(what, reason)
    })?;
    let names = metadata.offset_keys();
    if names.len() > TENSORS_MAX {
        return Err(corrupt(
            "header".into(),
            format!("{} tensors; at most {TENSORS_MAX} are allowed", names.len()),
        ));
    }
    let shared_file: Arc<str> = file.into();
    let mut tensors = Vec::with_capacity(names.len());
    for name in names {
        let Some(info) = metadata.info(&name) else { continue };
        let dtype = element_type(info.dtype).ok_or_else(|| LoadError::Unsupported {
            file: file.to_owned(),
            key: format!("tensor {name}: element type"),
            value: format!("{:?}", info.dtype),
            reason: "F32, F16 and BF16 can be computed with".into(),
        })?;
        let dimensions = info.shape.len();
        if dimensions > SAFETENSORS_DIMENSIONS_MAX || info.shape.contains(&0) {
            let reason = format!(
                "shape {:?}; up to {SAFETENSORS_DIMENSIONS_MAX} dimensions, none of them 0, are allowed",
                info.shape
            );
            return Err(corrupt(format!("tensor {name}"), reason));
        }
        let first = LENGTH_BYTES + header_length;
        let range = first + info.data_offsets.0..first + info.data_offsets.1;
        let view = bytes
            .slice(range)
            .ok_or_else(|| corrupt(format!("tensor {name}"), "it reaches past the file's end".into()))?;
        tensors.push(Tensor {
            file: shared_file.clone(),
            name,
            dtype,
            shape: info.shape.clone(),
            bytes: view,
        });
    }
    Ok(tensors)
}

/// Reads the entries of a file's tensors, including those of unknown types.
///
/// # Errors
/// `Io` if it cannot be mapped, `Corrupt` for a header that makes no sense.
pub fn census(path: &Path) -> Result<Vec<StoredTensor>, LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    let corrupt =
        |what: String, reason: String| LoadError::Corrupt { file: path.display().to_string(), what, reason };
    check_header(&bytes).map_err(|reason| corrupt("header".into(), reason))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| {
        let (what, reason) = blame(&bytes, &error);
        corrupt(what, reason)
    })?;
    let stored = |info: &TensorInfo| StoredTensor {
        dtype: format!("{:?}", info.dtype),
        elements: info.shape.iter().fold(1_u64, |all, &size| all.saturating_mul(size as u64)),
        bytes: info.data_offsets.1.saturating_sub(info.data_offsets.0) as u64,
    };
    Ok(metadata.tensors().into_values().map(stored).collect())
}

/// Refuses a header whose parts would take too much memory. Invalid headers are left to the parser, which reports the
/// reason.
fn check_header(bytes: &[u8]) -> Result<(), String> {
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>().map(|length| u64::from_le_bytes(*length)) else {
        return Ok(());
    };
    if length > SAFETENSORS_HEADER_BYTES_MAX && length <= bytes.len() as u64 {
        return Err(format!("it has {length} bytes; at most {SAFETENSORS_HEADER_BYTES_MAX} are allowed"));
    }
    let Some(header) = header(bytes) else { return Ok(()) };
    match json::fits(header, SAFETENSORS_VALUES_MAX) {
        Err(error) if error.is_data() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Text of a header, if the file contains it.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let length = usize::try_from(u64::from_le_bytes(*bytes.first_chunk::<LENGTH_BYTES>()?)).ok()?;
    bytes.get(LENGTH_BYTES..LENGTH_BYTES.checked_add(length)?)
}

fn element_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::F64 => Some(DType::F64),
        Dtype::I8 => Some(DType::I8),
        Dtype::I16 => Some(DType::I16),
        Dtype::I32 => Some(DType::I32),
        Dtype::I64 => Some(DType::I64),
        Dtype::U8 => Some(DType::U8),
        Dtype::U32 => Some(DType::U32),
        Dtype::F8_E4M3 => Some(DType::F8_E4M3),
        Dtype::F8_E5M2 => Some(DType::F8_E5M2),
        Dtype::F8_E8M0 => Some(DType::F8_E8M0),
        _ => None,
    }
}

/// Part of the header that an error is about, and the error with advice.
fn blame(bytes: &[u8], error: &SafeTensorError) -> (String, String) {
    match error {
        SafeTensorError::InvalidOffset(name) => {
            (format!("tensor {name}"), "its offsets do not follow those of the tensor before it".into())
        }
        SafeTensorError::TensorInvalidInfo
        | SafeTensorError::MisalignedSlice
        | SafeTensorError::ValidationOverflow => match first_misfit(bytes) {
            Some(name) => (format!("tensor {name}"), "its offsets do not fit its shape and type".into()),
            None => ("header".into(), error.to_string()),
        },
        SafeTensorError::MetadataIncompleteBuffer => {
            ("header".into(), format!("its tensors do not end where the file does, at {}", bytes.len()))
        }
        SafeTensorError::InvalidHeaderLength => {
            ("header".into(), format!("it is longer than the file, which ends at {}", bytes.len()))
        }
        other => ("header".into(), other.to_string()),
    }
}

/// Entry of a header.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor(TensorInfo),
    Other(IgnoredAny),
}

/// First tensor whose shape and type do not fit the bytes between its offsets.
fn first_misfit(bytes: &[u8]) -> Option<String> {
    let entries: BTreeMap<String, Entry> = serde_json::from_slice(header(bytes)?).ok()?;
    entries
        .into_iter()
        .find(|(_, entry)| {
            let Entry::Tensor(info) = entry else { return false };
            let bits =
                info.shape.iter().try_fold(info.dtype.bitsize(), |product, &size| product.checked_mul(size));
            let (first, end) = info.data_offsets;
            bits.is_none_or(|bits| end.checked_sub(first).and_then(|span| span.checked_mul(8)) != Some(bits))
        })
        .map(|(name, _)| name)
}
