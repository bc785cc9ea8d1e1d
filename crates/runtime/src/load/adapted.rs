//! Rows of an adapter's matrices. Files may keep several of a layer's matrices as one, in an order of their own. An adapter of such a
//! matrix has its rows in that order, and the loader cuts both in the same way.

use super::resolve::Found;
use super::{halves, turned};
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::spec::{MlpSpec, Names, RowFactor, TransformerSpec};
use crate::tensor::Tensor;

/// The matrices that the rows of `rows` belong to, by the names that the file would give them apart. `name` is that of the
/// whole matrix in a file whose names are `names`, behind `prefix`; `rows` has a row for each of its outputs.
///
/// # Errors
/// `Corrupt` where the whole matrix has another number of outputs.
pub(crate) fn cut(
    (names, prefix): (&Names, &'static str),
    spec: &TransformerSpec,
    name: &str,
    rows: Tensor,
) -> Result<Vec<(String, Tensor)>, LoadError> {
    let cols = rows.shape.get(1).copied().unwrap_or(0);
    let whole = rows.bytes.clone();
    let mut found = Found::one(names, prefix, name.to_owned(), rows);
    halves::join(&mut found, spec);
    for (index, layer) in spec.layers.iter().enumerate() {
        found.cut_attention(index, layer, cols)?;
        match &layer.mlp {
            MlpSpec::Dense(dense) => found.cut_gate_up(index, dense.ffn, cols)?,
            MlpSpec::Experts(experts) => found.cut_shared_gate_up(index, experts, cols)?,
            MlpSpec::None => {}
        }
        found.name_queries(index, layer)?;
    }
    // A matrix that is one part stays where it is: it may be as large as a head.
    let kept = |rows: Tensor| if rows.bytes.is_same_view(&whole) { Ok(rows) } else { in_memory(rows) };
    found.into_tensors().map(|(name, rows)| Ok((name, kept(rows)?))).collect()
}

/// Rows multiplied as those of the model's matrix are.
///
/// # Errors
/// `Unsupported` where their type is no float.
pub(crate) fn scaled(rows: &Tensor, factors: &[RowFactor]) -> Result<Tensor, LoadError> {
    in_memory(turned::scaled(rows.clone(), factors)?)
}

/// A tensor whose bytes are there rather than made whenever they are read.
fn in_memory(tensor: Tensor) -> Result<Tensor, LoadError> {
    let bytes = ModelBytes::made(tensor.bytes.len(), |out| out.copy_from_slice(&tensor.bytes.read()));
    let bytes = bytes.map_err(|source| LoadError::Io { path: tensor.file.to_string().into(), source })?;
    Ok(Tensor { bytes, ..tensor })
}
