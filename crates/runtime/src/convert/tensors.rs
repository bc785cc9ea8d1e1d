//! Weights of a network under GGUF's names: llama's queries and keys regrouped for rope, experts in stacks, vectors in
//! F32.

use std::collections::BTreeMap;
use std::ops::Range;

use hanzo_engine_ops::{DType, RopeKind};

use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::model_files::ModelFiles;
use crate::spec::{Architecture, LayerPart, NormKind, Part, Weight};
use crate::tensor::Tensor;

/// All tensors of the converted file.
pub(super) fn of_files(files: &ModelFiles, of: &Architecture) -> Result<Vec<Tensor>, LoadError> {
    let (spec, names) = (&files.spec, of.names);
    // GGUF's norms multiply by the stored factors.
    let from_one = spec.norm.kind == NormKind::Rms { from_one: true };
    let mut tensors = Vec::new();
    let mut stacks: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
    for (weight, _) in spec.weights() {
        let tensor = &files.tensors.get(weight).clone().widened();
        if let Part::Layer(layer, part) = weight.part
            && !names.stack(part).is_empty()
        {
            let stack = names.in_layer("", layer, names.stack(part));
            stacks.entry(stack).or_default().push(tensor.clone());
            continue;
        }
        let name = names.of("", weight);
        let changed = if tensor.shape.len() == 1 || is_router(weight) {
            in_f32(tensor, (from_one && is_norm(weight.part)).then_some(1.0))?
        } else {
            tensor.clone()
        };
        let heads = regrouped_heads(files, weight, of);
        let changed = heads.map(|heads| regrouped(&changed, heads)).unwrap_or(changed);
        tensors.push(Tensor { name, ..changed });
    }
    for (name, experts) in stacks {
        tensors.push(stacked(name, &experts)?);
    }
    Ok(tensors)
}

fn is_router(weight: Weight) -> bool {
    matches!(weight.part, Part::Layer(_, LayerPart::Router | LayerPart::SharedRouter))
}

fn is_norm(part: Part) -> bool {
    use LayerPart::{AttentionNorm, AttentionPostNorm, KeyNorm, MlpNorm, MlpPostNorm, QueryNorm};
    match part {
        Part::FinalNorm => true,
        Part::Layer(_, of) => {
            matches!(of, AttentionNorm | AttentionPostNorm | KeyNorm | MlpNorm | MlpPostNorm | QueryNorm)
        }
        _ => false,
    }
}

/// Number of heads of queries or keys whose rows GGUF files have in another order.
fn regrouped_heads(files: &ModelFiles, weight: Weight, architecture: &Architecture) -> Option<usize> {
    let Part::Layer(layer, of) = weight.part else { return None };
    let attention = &files.spec.layers[layer].attention;
    let kind = files.spec.ropes.get(attention.rope?)?.kind;
    if kind != RopeKind::Neox || !architecture.permuted {
        return None;
    }
    let shape = attention.projection.cache_shape();
    match of {
        LayerPart::Query => Some(shape.heads),
        LayerPart::Key => Some(shape.kv_heads),
        _ => None,
    }
}

/// Reorders the rows of each head so that the two that rope rotates together are neighbours.
fn regrouped(tensor: &Tensor, heads: usize) -> Tensor {
    let rows = tensor.shape[0];
    let (head_rows, row_bytes) = (rows / heads, tensor.bytes.len() / rows);
    let source = tensor.bytes.clone();
    let make = move |range: Range<usize>, out: &mut [u8]| {
        // A head is read once: its rows may have to be computed.
        let heads = range.start / head_rows..range.end.div_ceil(head_rows);
        for head in heads {
            let first = head * head_rows;
            let Some(bytes) = source.slice(first * row_bytes..(first + head_rows) * row_bytes) else {
                return;
            };
            let bytes = bytes.read();
            let own = range.start.max(first)..range.end.min(first + head_rows);
            for row in own {
                let (pair, side) = ((row - first) / 2, (row - first) % 2);
                let from = side * (head_rows / 2) + pair;
                let at = (row - range.start) * row_bytes;
                out[at..at + row_bytes].copy_from_slice(&bytes[from * row_bytes..][..row_bytes]);
            }
        }
    };
    let bytes = ModelBytes::of_rows(rows, row_bytes, vec![tensor.bytes.clone()], make);
    Tensor { bytes, ..tensor.clone() }
}

/// Stacks matrices of one shape into one tensor.
pub(crate) fn stacked(name: String, experts: &[Tensor]) -> Result<Tensor, LoadError> {
    let first = &experts[0];
    let (rows, row_bytes) = (first.shape[0], first.bytes.len() / first.shape[0]);
    if let Some(other) = experts.iter().find(|expert| expert.dtype != first.dtype) {
        return Err(LoadError::Unsupported {
            file: other.file.to_string(),
            key: format!("tensor {}: element type", other.name),
            value: other.dtype.to_string(),
            reason: format!("{} is {}, and a layer's experts are one tensor", first.name, first.dtype),
        });
    }
    let sources: Vec<ModelBytes> = experts.iter().map(|expert| expert.bytes.clone()).collect();
    let of = sources.clone();
    let make = move |range: Range<usize>, out: &mut [u8]| {
        let mut at = 0;
        let touched = range.start / rows..range.end.div_ceil(rows);
        for (place, expert) in of[touched.clone()].iter().enumerate() {
            let first = (touched.start + place) * rows;
            let own = range.start.max(first) - first..range.end.min(first + rows) - first;
            let length = own.len() * row_bytes;
            let Some(bytes) = expert.slice(own.start * row_bytes..own.end * row_bytes) else { return };
            out[at..at + length].copy_from_slice(&bytes.read());
            at += length;
        }
    };
    let bytes = ModelBytes::of_rows(experts.len() * rows, row_bytes, sources, make);
    let shape = [&[experts.len()][..], &first.shape].concat();
    Ok(Tensor { name, shape, bytes, ..first.clone() })
}

/// Elements of a tensor in F32, each with an optional addend; for small tensors, which are read at once. Without an
/// addend, a zero keeps its sign.
fn in_f32(tensor: &Tensor, added: Option<f32>) -> Result<Tensor, LoadError> {
    let changed = |number: f32| added.map_or(number, |added| number + added);
    let bytes: Vec<u8> =
        tensor.to_f32()?.into_iter().flat_map(|number| changed(number).to_le_bytes()).collect();
    Ok(Tensor { dtype: DType::F32, bytes: ModelBytes::from(bytes), ..tensor.clone() })
}
