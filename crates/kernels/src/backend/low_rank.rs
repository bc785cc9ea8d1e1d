//! Adapters in the contract: a product `W · x` gets `scale · B · (A · x)` besides (LoRA, arxiv.org/abs/2106.09685), and its outputs
//! may be multiplied and added to before (DoRA, arxiv.org/abs/2402.09353, biases, and matrices or norms in place of others).

use super::{Backend, MatrixShape, MatrixSource};

/// Shapes of a pair of low-rank matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankShape {
    /// (rank, inputs); none where B reads the inputs themselves.
    pub a: Option<MatrixShape>,
    /// (outputs, rank), or (outputs, inputs) without A.
    pub b: MatrixShape,
}

impl LowRankShape {
    /// Numbers that B reads from the inputs.
    pub fn inputs(&self) -> usize {
        self.a.map_or(self.b.cols, |a| a.cols)
    }
}

/// A pair of low-rank matrices, as stored.
#[derive(Clone, Copy, Debug)]
pub struct LowRankPair<'a> {
    /// (rank, inputs); none where B reads the inputs themselves.
    pub a: Option<MatrixSource<'a>>,
    /// (outputs, rank), or (outputs, inputs) without A.
    pub b: MatrixSource<'a>,
    /// Factor on the pair's product.
    pub scale: f32,
    /// First of the packed matrix's outputs that the pair changes: not 0 for a part that is stacked below another.
    pub first: usize,
}

impl LowRankPair<'_> {
    /// Its shapes.
    pub fn shape(&self) -> LowRankShape {
        LowRankShape { a: self.a.map(|a| a.shape), b: self.b.shape }
    }
}

/// A change of outputs number by number: `out[first + i] = factors[i] * y + addends[i]`. Where all factors are 0, `y` is not read,
/// so that it need not be finite.
#[derive(Clone, Copy, Debug)]
pub struct OutputChange<'a> {
    /// First output that it changes.
    pub first: usize,
    /// Factors, one an output.
    pub factors: &'a [f32],
    /// As many addends.
    pub addends: &'a [f32],
    /// Whether `y` is the number of `x` in that column, `x` being as wide as `out`, rather than the output itself.
    pub reads_input: bool,
}

/// All that one adapter does to the outputs of one packed matrix.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputDelta<'a> {
    /// Changes of the outputs, made first. They do not overlap.
    pub changes: &'a [OutputChange<'a>],
    /// Pairs that are added. They read the same inputs, and their outputs do not overlap.
    pub pairs: &'a [LowRankPair<'a>],
}

impl OutputDelta<'_> {
    /// Asserts that each change has as many addends as factors.
    ///
    /// # Panics
    /// If one has not: the caller is wrong.
    pub fn check_changes(&self) {
        let is_whole = |change: &OutputChange<'_>| change.factors.len() == change.addends.len();
        assert!(self.changes.iter().all(is_whole), "an addend for each factor");
    }
}

/// A matrix that makes logits, and the adapters of the rows that it reads.
pub struct LogitsHead<'a, B: Backend + ?Sized> {
    /// (vocab, hidden)
    pub matrix: &'a B::Matrix,
    /// Changes of logits by adapters, as [`Backend::add_low_rank`] makes them.
    pub adapted: Option<AdaptedLogits<'a, B>>,
}

/// Changes of logits by adapters.
pub struct AdaptedLogits<'a, B: Backend + ?Sized> {
    /// A change for each adapter that has one.
    pub deltas: &'a [Option<&'a B::LowRank>],
    /// Scratch, as wide as the ranks of any adapter's pairs together.
    pub low: &'a mut B::Buffer,
}

impl<'a, B: Backend + ?Sized> LogitsHead<'a, B> {
    /// A matrix that no adapter changes.
    pub fn of(matrix: &'a B::Matrix) -> Self {
        Self { matrix, adapted: None }
    }
}
