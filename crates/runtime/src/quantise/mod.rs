//! Plan of quantisation: the type of each tensor of a GGUF file, or of a converted folder ([`crate::convert`]), by a
//! [`Mix`] with llama.cpp's rules and by further requests. The execution, which needs threads, is elsewhere;
//! [`crate::gguf::Writer`] writes the result.

mod folder;
mod mixes;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hanzo_engine_ops::DType;
use hanzo_engine_ops::quant::{can_dequantize, can_quantize};

pub use crate::importance::Importance;
pub use folder::{Affine, FolderPlan, FolderTensor};
pub use mixes::{MIXES, Mix};
use rules::{Facts, Place, Rules, fitting, is_quantised, layer_of};

use crate::error::LoadError;
use crate::gguf::{Gguf, TensorEntry, Value};
use crate::tensor::Tensor;

/// Requested quantisation.
#[derive(Clone, Debug)]
pub struct QuantiseOptions {
    /// Mix of types.
    pub mix: Mix,
    /// Whether every matrix gets the mix's base type.
    pub pure: bool,
    /// Whether the output matrix stays as it is.
    pub keep_output: bool,
    /// Type of the output matrix.
    pub output: Option<DType>,
    /// Type of the token embedding.
    pub token_embedding: Option<DType>,
    /// Types of tensors by patterns of names, in which `*` stands for any text; the first match counts.
    pub named: Vec<(String, DType)>,
    /// Whether quantised tensors may be quantised again.
    pub requantize: bool,
}

/// Plan of the new file.
#[derive(Debug)]
pub struct Plan {
    /// Metadata of the new file.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors in order, each with its source tensor.
    pub tensors: Vec<(Tensor, TensorEntry)>,
}

impl Plan {
    /// Makes the plan. With an importance matrix of the same model, some tensors get other types, as in llama.cpp.
    ///
    /// # Errors
    /// `Unsupported` for a type that cannot be read or made, for a tensor that is already quantised, and for a name
    /// pattern that matches no tensor; `Corrupt` for an importance matrix without entries for this model; `Missing` or
    /// `Corrupt` for metadata that lack what the rules need.
    pub fn new(
        gguf: &Gguf,
        wanted: &QuantiseOptions,
        importance: Option<&Importance>,
    ) -> Result<Plan, LoadError> {
        let facts = Facts::new(&gguf.metadata, gguf.tensors.iter().map(|tensor| tensor.name.as_str()))?;
        let mut tensors: Vec<&Tensor> = gguf.tensors.iter().collect();
        tensors.sort_by_key(|tensor| (layer_of(&tensor.name), tensor.name.as_str()));
        let mut rules = Rules::new(wanted.mix, &facts, importance.is_some());
        let mut unused: Vec<&str> = wanted.named.iter().map(|(part, _)| part.as_str()).collect();
        let mut planned = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let name = tensor.name.as_str();
            unused.retain(|part| !name_has(name, part));
            let dtype = choose(tensor, wanted, &facts, &mut rules);
            check(tensor, dtype, wanted.requantize)?;
            let to = TensorEntry { name: name.to_owned(), dtype, shape: tensor.shape.clone() };
            planned.push((tensor.clone(), to));
        }
        if let Some(part) = unused.first() {
            let reason = "no tensor has such a name";
            return Err(unsupported(gguf.metadata.file(), "tensor type of", part, reason));
        }
        if let Some(importance) = importance {
            let known = gguf.tensors.iter().filter_map(|tensor| importance.of(tensor).transpose());
            // Each is checked, so that a wrong shape is reported before anything is made.
            if known.collect::<Result<Vec<_>, _>>()?.is_empty() {
                return Err(LoadError::Corrupt {
                    file: importance.file().to_owned(),
                    what: "importance matrix".to_owned(),
                    reason: format!("it knows none of the tensors of {}", gguf.metadata.file()),
                });
            }
        }
        let split = |key: &str| key.starts_with("split.");
        let kept = gguf.metadata.iter().filter(|(key, _)| !split(key));
        let mut metadata: BTreeMap<String, Value> =
            kept.map(|(key, value)| (key.to_owned(), value.clone())).collect();
        metadata.insert("general.file_type".to_owned(), Value::U32(wanted.mix.file_type));
        metadata.insert("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION));
        if let Some(importance) = importance {
            metadata.extend(importance.entries());
        }
        Ok(Plan { metadata, tensors: planned })
    }
}

/// Version of GGML's block formats.
const QUANTIZATION_VERSION: u32 = 2;

fn choose(tensor: &Tensor, wanted: &QuantiseOptions, facts: &Facts, rules: &mut Rules<'_>) -> DType {
    let (name, shape, base) = (tensor.name.as_str(), &tensor.shape[..], wanted.mix.base);
    let place = Place::of(name);
    let named = wanted.named.iter().find(|(part, _)| name_has(name, part)).map(|&(_, dtype)| dtype);
    let keeps = place == Place::Output && wanted.keep_output;
    if keeps || !is_quantised(name, shape, &facts.architecture) {
        return kept(tensor.dtype);
    }
    let per_layer = name == "per_layer_token_embd.weight";
    match (place, wanted.token_embedding, wanted.output) {
        (Place::Embedding, Some(dtype), _) if !(per_layer && named.is_some()) => return dtype,
        (Place::Output, _, Some(dtype)) => return dtype,
        _ => {}
    }
    let plain = matches!(base, DType::F32 | DType::F16 | DType::BF16);
    let chosen = match named {
        Some(dtype) => dtype,
        None if wanted.pure || plain => base,
        None => rules.choose(name, shape, wanted.output),
    };
    fitting(chosen, shape.last().copied().unwrap_or_default())
}

/// Type of a tensor that a mix leaves alone: its own type or, if GGUF does not have that, F32.
fn kept(dtype: DType) -> DType {
    if DType::from_ggml(dtype as u32) == Some(dtype) { dtype } else { DType::F32 }
}

/// Checks that the tensor can be converted to this type.
fn check(tensor: &Tensor, to: DType, requantize: bool) -> Result<(), LoadError> {
    if tensor.dtype == to {
        return Ok(());
    }
    let key = format!("tensor {}: element type", tensor.name);
    let refused =
        |value: DType, reason: String| Err(unsupported(&tensor.file, &key, &value.to_string(), &reason));
    let columns = tensor.shape.last().copied().unwrap_or_default();
    let plain = matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16);
    if !can_dequantize(tensor.dtype) {
        return refused(tensor.dtype, "it cannot be read as numbers".to_owned());
    }
    // Floats of a format that only this build has blocks for lose no more than floats do.
    let own = kept(tensor.dtype) != tensor.dtype;
    let widened = own && matches!(to, DType::F32 | DType::F16 | DType::BF16);
    if !plain && !widened && !requantize {
        let reason = format!(
            "it would become {to} and loses by each rounding: take a file of F32, F16 or BF16, or allow to requantize"
        );
        return refused(tensor.dtype, reason);
    }
    if !can_quantize(to) || kept(to) != to {
        return refused(to, "no numbers can be made this type of GGUF file's".to_owned());
    }
    if !columns.is_multiple_of(to.block_weights()) {
        return refused(to, format!("rows of {columns} are not whole blocks of {}", to.block_weights()));
    }
    Ok(())
}

fn unsupported(file: &str, key: &str, value: &str, reason: &str) -> LoadError {
    LoadError::Unsupported {
        file: file.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Whether a pattern, in which `*` stands for any text, is in a name.
fn name_has(name: &str, part: &str) -> bool {
    let mut rest = name;
    part.split('*').all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}
