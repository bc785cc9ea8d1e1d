//! Low-rank adapters in the contract (LoRA, arxiv.org/abs/2106.09685): a product `W · x` gets `scale · B · (A · x)` besides.

use super::{MatrixShape, MatrixSource};

/// Shapes of a pair of low-rank matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankShape {
    /// (rank, inputs)
    pub a: MatrixShape,
    /// (outputs, rank)
    pub b: MatrixShape,
}

/// A pair of low-rank matrices, as stored.
#[derive(Clone, Copy, Debug)]
pub struct LowRankPair<'a> {
    /// (rank, inputs)
    pub a: MatrixSource<'a>,
    /// (outputs, rank)
    pub b: MatrixSource<'a>,
    /// Factor on what it gives.
    pub scale: f32,
    /// Which of the packed matrix's outputs is the first of its own: not 0 where it is of a part stacked below another.
    pub first: usize,
}

impl LowRankPair<'_> {
    /// Its shapes.
    pub fn shape(&self) -> LowRankShape {
        LowRankShape { a: self.a.shape, b: self.b.shape }
    }
}
