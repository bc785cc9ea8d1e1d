//! Low-rank adapters, naively, and what of the reference's matrices and buffers the ops read.

use std::borrow::Borrow;

use super::formulas;
use super::storage::check_source;
use super::{ReferenceBuffer, ReferenceMatrix};
use crate::quant::dequantize_row;
use crate::{Activation, Batch, BufferRole, KernelError, LowRankPair, MatrixSource};

/// What one adapter adds to one matrix.
#[derive(Clone, Debug)]
pub struct ReferenceLowRank {
    pairs: Vec<Pair>,
}

#[derive(Clone, Debug)]
struct Pair {
    a: ReferenceMatrix,
    b: ReferenceMatrix,
    scale: f32,
    first: usize,
}

impl ReferenceLowRank {
    pub(super) fn new(pairs: &[LowRankPair<'_>]) -> Result<Self, KernelError> {
        let cols = pairs.first().map_or(0, |pair| pair.a.shape.cols);
        let matrix = |source: &MatrixSource<'_>, cols: usize| -> Result<ReferenceMatrix, KernelError> {
            check_source(source, cols)?;
            let mut weights = vec![0.0; source.shape.rows * cols];
            dequantize_row(source.shape.dtype, source.bytes, &mut weights);
            Ok(ReferenceMatrix { rows: source.shape.rows, cols, weights })
        };
        let of = |pair: &LowRankPair<'_>| {
            let (a, b) = (matrix(&pair.a, cols)?, matrix(&pair.b, pair.a.shape.rows)?);
            Ok(Pair { a, b, scale: pair.scale, first: pair.first })
        };
        Ok(Self { pairs: pairs.iter().map(of).collect::<Result<_, _>>()? })
    }

    fn rank(&self) -> usize {
        self.pairs.iter().map(|pair| pair.a.rows).sum()
    }
}

pub(super) fn add<L: Borrow<ReferenceLowRank>>(
    batch: &Batch,
    deltas: &[Option<L>],
    x: &ReferenceBuffer,
    low: &mut ReferenceBuffer,
    out: &mut ReferenceBuffer,
) {
    let rows = batch.rows();
    assert!(x.rows >= rows && low.rows >= rows && out.rows >= rows, "buffers of the batch's rows");
    for (row, adapter) in batch.adapted_rows() {
        let (row, delta) = (row as usize, deltas.get(adapter as usize));
        let Some(delta) = delta.and_then(Option::as_ref).map(Borrow::borrow) else { continue };
        assert!(delta.rank() <= low.cols, "scratch narrower than the ranks");
        for pair in &delta.pairs {
            assert_eq!(pair.a.cols, x.cols, "an adapter of other inputs");
            let narrow: Vec<f32> =
                (0..pair.a.rows).map(|rank| formulas::dot(pair.a.row(rank), x.row(row)) as f32).collect();
            for output in 0..pair.b.rows {
                let delta = f64::from(pair.scale) * formulas::dot(pair.b.row(output), &narrow);
                let out = &mut out.row_mut(row)[pair.first + output];
                *out = (f64::from(*out) + delta) as f32;
            }
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
