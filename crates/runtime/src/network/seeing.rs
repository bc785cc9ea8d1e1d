//! What models that see have besides: biases before the gate of a tower's MLPs, and rows made of pictures that the first layers
//! of a text model add to theirs (DeepStack, arxiv.org/abs/2406.04334).

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, BufferRole, KernelError};

use super::Network;
use crate::spec::TransformerSpec;

/// Rows that first layers add to theirs.
pub(crate) struct DeepBuffers {
    pub(super) rows: ops::Buffer, // (rows, layers that add some * hidden)
}

/// Role and columns of the buffers that are there for this.
pub(super) fn shapes(spec: &TransformerSpec) -> impl Iterator<Item = (BufferRole, usize)> {
    let deep = (spec.deep_layers > 0).then_some((BufferRole::Operand, spec.deep_layers * spec.hidden));
    let both = both_width(spec).map(|cols| (BufferRole::Residual, cols));
    deep.into_iter().chain(both)
}

/// Columns of gate and up together, where they have biases.
fn both_width(spec: &TransformerSpec) -> Option<usize> {
    let biased = spec.layers.iter().filter_map(|layer| layer.mlp.dense());
    biased.filter(|dense| dense.gated && dense.up_bias).map(|dense| 2 * dense.ffn).max()
}

impl DeepBuffers {
    pub(super) fn new(
        backend: &AnyBackend,
        spec: &TransformerSpec,
        rows: usize,
    ) -> Result<Option<Self>, KernelError> {
        if spec.deep_layers == 0 {
            return Ok(None);
        }
        let rows = backend.buffer(BufferRole::Operand, rows, spec.deep_layers * spec.hidden)?;
        Ok(Some(DeepBuffers { rows }))
    }
}

/// The buffer of gate and up, where they have biases.
pub(super) fn both(
    backend: &AnyBackend,
    spec: &TransformerSpec,
    rows: usize,
) -> Result<Option<ops::Buffer>, KernelError> {
    both_width(spec).map(|cols| backend.buffer(BufferRole::Residual, rows, cols)).transpose()
}

impl Network {
    /// Has no row of the step add anything, or all nothing where `rows` of them are to be given some.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn clear_deep(
        &mut self,
        backend: &mut AnyBackend,
        rows: usize,
        given: bool,
    ) -> Result<(), KernelError> {
        let width = self.spec.deep_layers * self.spec.hidden;
        let Some(deep) = self.buffers.as_mut().and_then(|buffers| buffers.deep.as_mut()) else {
            return Ok(());
        };
        self.programs.conditions.deep_rows = given;
        if given { backend.write_rows(&mut deep.rows, 0, &vec![0.0; rows * width]) } else { Ok(()) }
    }

    /// Writes rows of so many numbers: the embedding's, and behind it what the first layers add.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn give(
        &mut self,
        backend: &mut AnyBackend,
        row: usize,
        width: usize,
        values: &[f32],
    ) -> Result<(), KernelError> {
        let hidden = self.spec.hidden;
        if width == hidden {
            return backend.write_rows(self.given(), row, values);
        }
        let part = |columns: std::ops::Range<usize>| -> Vec<f32> {
            values.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect()
        };
        backend.write_rows(self.given(), row, &part(0..hidden))?;
        let deep = self.buffers.as_mut().and_then(|buffers| buffers.deep.as_mut());
        let deep = deep.expect("rows are as wide as the model takes them; entering checks it");
        backend.write_rows(&mut deep.rows, row, &part(hidden..width))
    }
}
