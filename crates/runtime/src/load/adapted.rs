//! Rows of an adapter's matrices. Files may store several of a layer's matrices as one, in their own order. An adapter
//! of such a matrix has its rows in that order, and the loader splits both in the same way.

use super::resolve::Found;
use super::{halves, turned};
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::spec::{MlpSpec, Names, RowFactor, TransformerSpec};
use crate::tensor::Tensor;

/// Splits the rows of `rows` into the matrices they belong to, by the names that the file would give those separately.
/// `name` is that of the whole matrix in a file with the naming `names` and the prefix `prefix`; `rows` has a row for
/// each of its outputs.
///
/// # Errors
/// `Corrupt` if the whole matrix has another number of outputs.
pub(crate) fn cut(
    names: &Names,
    prefix: &'static str,
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
    // A matrix of a single part stays where it is: it may be as large as a head.
    let kept = |rows: Tensor| if rows.bytes.is_same_view(&whole) { Ok(rows) } else { in_memory(rows) };
    found.into_tensors().map(|(name, rows)| Ok((name, kept(rows)?))).collect()
}

/// Multiplies rows by the factors of the model's matrix.
///
/// # Errors
/// `Unsupported` if their type is not a float.
pub(crate) fn scaled(rows: &Tensor, factors: &[RowFactor]) -> Result<Tensor, LoadError> {
    in_memory(turned::scaled(rows.clone(), factors)?)
}

/// Makes a tensor's bytes once, rather than whenever they are read.
fn in_memory(tensor: Tensor) -> Result<Tensor, LoadError> {
    let bytes = ModelBytes::made(tensor.bytes.len(), |out| out.copy_from_slice(&tensor.bytes.read()));
    let bytes = bytes.map_err(|source| LoadError::Io { path: tensor.file.to_string().into(), source })?;
    Ok(Tensor { bytes, ..tensor })
}
