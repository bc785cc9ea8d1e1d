//! Reference implementation of low-rank adapters, and the access of ops to the reference's matrices and buffers.

use std::borrow::Borrow;

use super::formulas;
use super::storage::check_source;
use super::{ReferenceBuffer, ReferenceMatrix};
use crate::quant::dequantize_row;
use crate::{
    Activation, Batch, BufferRole, KernelError, LowRankPair, LowRankShape, MatrixShape, MatrixSource,
    OutputChange, OutputDelta,
};

/// Change by an adapter to one matrix.
#[derive(Clone, Debug)]
pub struct ReferenceLowRank {
    changes: Vec<Change>,
    pairs: Vec<Pair>,
}

#[derive(Clone, Debug)]
struct Change {
    first: usize,
    factors: Vec<f32>,
    addends: Vec<f32>,
    reads_input: bool,
}

#[derive(Clone, Debug)]
struct Pair {
    a: Option<ReferenceMatrix>,
    b: ReferenceMatrix,
    scale: f32,
    first: usize,
}

impl ReferenceLowRank {
    pub(super) fn new(delta: &OutputDelta<'_>) -> Result<Self, KernelError> {
        delta.check_changes();
        let change = |change: &OutputChange<'_>| Change {
            first: change.first,
            factors: change.factors.to_vec(),
            addends: change.addends.to_vec(),
            reads_input: change.reads_input,
        };
        let cols = delta.pairs.first().map_or(0, |pair| pair.shape().inputs());
        let matrix = |source: &MatrixSource<'_>, cols: usize| -> Result<ReferenceMatrix, KernelError> {
            check_source(source, cols)?;
            let mut weights = vec![0.0; source.shape.rows * cols];
            dequantize_row(source.shape.dtype, source.bytes, &mut weights);
            Ok(ReferenceMatrix { rows: source.shape.rows, cols, weights })
        };
        let of = |pair: &LowRankPair<'_>| {
            let a = pair.a.map(|a| matrix(&a, cols)).transpose()?;
            let b = matrix(&pair.b, a.as_ref().map_or(cols, |a| a.rows))?;
            Ok(Pair { a, b, scale: pair.scale, first: pair.first })
        };
        Ok(Self {
            changes: delta.changes.iter().map(change).collect(),
            pairs: delta.pairs.iter().map(of).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn bytes(pairs: &[LowRankShape], changes: &[usize]) -> usize {
        let numbers = |shape: MatrixShape| shape.rows * shape.cols;
        let of_pair = |pair: &LowRankShape| pair.a.map_or(0, numbers) + numbers(pair.b);
        let of_changes = 2 * changes.iter().sum::<usize>();
        size_of::<f32>() * (pairs.iter().map(of_pair).sum::<usize>() + of_changes)
    }

    fn rank(&self) -> usize {
        self.pairs.iter().filter_map(|pair| pair.a.as_ref()).map(|a| a.rows).sum()
    }

    /// Applies the change to one row.
    fn apply(&self, x: &[f32], out: &mut [f32]) {
        for change in &self.changes {
            for (i, (&factor, &addend)) in change.factors.iter().zip(&change.addends).enumerate() {
                let at = change.first + i;
                let y = if change.reads_input { x[at] } else { out[at] };
                let scaled = if factor == 0.0 { 0.0 } else { f64::from(factor) * f64::from(y) };
                out[at] = (scaled + f64::from(addend)) as f32;
            }
        }
        for Pair { a, b, scale, first } in &self.pairs {
            let cols = a.as_ref().map_or(b.cols, |a| a.cols);
            assert_eq!(cols, x.len(), "an adapter of other inputs");
            let narrow: Vec<f32> = match a {
                Some(a) => (0..a.rows).map(|rank| formulas::dot(a.row(rank), x) as f32).collect(),
                None => x.to_vec(),
            };
            for output in 0..b.rows {
                let delta = f64::from(*scale) * formulas::dot(b.row(output), &narrow);
                let out = &mut out[first + output];
                *out = (f64::from(*out) + delta) as f32;
            }
        }
    }
}

pub(super) fn add<L: Borrow<ReferenceLowRank>>(
    batch: &Batch,
    deltas: &[Option<L>],
    x: &ReferenceBuffer,
    low: Option<&mut ReferenceBuffer>,
    out: &mut ReferenceBuffer,
) {
    let rows = batch.rows();
    assert!(x.rows >= rows && out.rows >= rows, "buffers of the batch's rows");
    assert!(low.as_ref().is_none_or(|low| low.rows >= rows), "scratch of the batch's rows");
    let low_cols = low.map_or(0, |low| low.cols);
    for (row, adapter) in batch.adapted_rows() {
        let (row, delta) = (row as usize, deltas.get(adapter as usize));
        let Some(delta) = delta.and_then(Option::as_ref).map(Borrow::borrow) else { continue };
        assert!(delta.rank() <= low_cols, "scratch narrower than the ranks");
        delta.apply(x.row(row), out.row_mut(row));
    }
}

/// Applies adapters to rows of logits.
pub(super) fn add_to_logits(
    batch: &Batch,
    deltas: &[Option<&ReferenceLowRank>],
    x: &ReferenceBuffer,
    logits: &mut [f32],
) {
    let vocab = logits.len() / batch.logit_rows.len().max(1);
    for (index, row, adapter) in batch.adapted_logit_rows() {
        if let Some(Some(delta)) = deltas.get(adapter as usize) {
            delta.apply(x.row(row as usize), &mut logits[index as usize * vocab..][..vocab]);
        }
    }
}

pub(super) fn gate(
    rows: usize,
    activation: Activation,
    both: &ReferenceBuffer,
    hidden: &mut ReferenceBuffer,
) {
    assert_eq!(both.role, BufferRole::Residual, "gate and up as f32, as they are inside gated_mlp");
    both.check(rows, 2 * hidden.cols, "both");
    hidden.check(rows, hidden.cols, "hidden");
    let width = hidden.cols;
    for row in 0..rows {
        for i in 0..width {
            let (gate, up) = (f64::from(both.row(row)[i]), f64::from(both.row(row)[width + i]));
            hidden.row_mut(row)[i] =
                (formulas::activate(activation, gate) * formulas::factor(activation, up)) as f32;
        }
    }
}

impl ReferenceMatrix {
    /// Weights of one output.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.weights[row * self.cols..][..self.cols]
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

impl ReferenceBuffer {
    #[cfg(test)]
    pub(crate) fn role(&self) -> BufferRole {
        self.role
    }

    #[cfg(test)]
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.cols..][..self.cols]
    }

    /// Asserts that the buffer holds the batch's rows, `cols` wide.
    pub(super) fn check(&self, rows: usize, cols: usize, name: &str) {
        assert!(self.rows >= rows, "{name} has {} rows, the batch {rows}", self.rows);
        assert_eq!(self.cols, cols, "{name} has {} columns, the op needs {cols}", self.cols);
    }
}
