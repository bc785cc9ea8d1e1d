//! Adapters in the contract. An adapter adds `scale · B · (A · x)` to a product `W · x` (LoRA,
//! arxiv.org/abs/2106.09685). Before that, it may multiply the product's outputs and add to them (DoRA,
//! arxiv.org/abs/2402.09353; biases; replaced matrices or norms).

use super::{DeviceMemory, MatrixShape, MatrixSource};

/// Shapes of a pair of low-rank matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankShape {
    /// (rank, inputs); none if B reads the inputs directly.
    pub a: Option<MatrixShape>,
    /// (outputs, rank), or (outputs, inputs) without A.
    pub b: MatrixShape,
}

impl LowRankShape {
    /// Length of the inputs.
    pub fn inputs(&self) -> usize {
        self.a.map_or(self.b.cols, |a| a.cols)
    }
}

/// A pair of low-rank matrices, as stored.
#[derive(Clone, Copy, Debug)]
pub struct LowRankPair<'a> {
    /// (rank, inputs); none if B reads the inputs directly.
    pub a: Option<MatrixSource<'a>>,
    /// (outputs, rank), or (outputs, inputs) without A.
    pub b: MatrixSource<'a>,
    /// Factor on the pair's product.
    pub scale: f32,
    /// Index of the packed matrix's first output that the pair changes; not 0 for a part that is stacked below
    /// another.
    pub first: usize,
}

impl LowRankPair<'_> {
    /// Its shapes.
    pub fn shape(&self) -> LowRankShape {
        LowRankShape { a: self.a.map(|a| a.shape), b: self.b.shape }
    }
}

/// Element-wise change of outputs: `out[first + i] = factors[i] * y + addends[i]`. If all factors are 0, `y` is not
/// read, so it need not be finite.
#[derive(Clone, Copy, Debug)]
pub struct OutputChange<'a> {
    /// First output that is changed.
    pub first: usize,
    /// Factor of each output.
    pub factors: &'a [f32],
    /// Addend of each output.
    pub addends: &'a [f32],
    /// Whether `y` is the element of `x` in that column, with `x` as wide as `out`, rather than the output.
    pub reads_input: bool,
}

/// Everything that one adapter does to the outputs of one packed matrix.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputDelta<'a> {
    /// Changes of the outputs, made first. They do not overlap.
    pub changes: &'a [OutputChange<'a>],
    /// Low-rank pairs whose products are added. They read the same inputs, and their outputs do not overlap.
    pub pairs: &'a [LowRankPair<'a>],
}

impl OutputDelta<'_> {
    /// Asserts that each change has as many addends as factors.
    ///
    /// # Panics
    /// If one has not, which is the caller's mistake.
    pub fn check_changes(&self) {
        let is_whole = |change: &OutputChange<'_>| change.factors.len() == change.addends.len();
        assert!(self.changes.iter().all(is_whole), "an addend for each factor");
    }
}

/// Matrix that computes logits, and the adapters of the rows that it reads.
pub struct LogitsHead<'a, B: DeviceMemory + ?Sized> {
    /// (vocab, hidden)
    pub matrix: &'a B::Matrix,
    /// Changes of logits by adapters, as [`Op::AddLowRank`](crate::Op::AddLowRank) makes them.
    pub adapted: Option<AdaptedLogits<'a, B>>,
}

/// Changes of logits by adapters.
pub struct AdaptedLogits<'a, B: DeviceMemory + ?Sized> {
    /// Change by each adapter that has one.
    pub deltas: &'a [Option<&'a B::LowRank>],
    /// Scratch, as wide as the ranks of any adapter's pairs together.
    pub low: &'a mut B::Buffer,
}

impl<'a, B: DeviceMemory + ?Sized> LogitsHead<'a, B> {
    /// A matrix without adapters.
    pub fn of(matrix: &'a B::Matrix) -> Self {
        Self { matrix, adapted: None }
    }
}
