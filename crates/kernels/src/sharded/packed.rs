//! What ranks have of matrices and vectors, and how rows of outputs are divided.

use std::ops::Range;
use std::sync::OnceLock;

use super::PART_ROWS;
use crate::{Backend, KernelError, MatrixSource};

/// Parts of a matrix that are stacked, at most, where it is divided.
const PARTS_MAX: usize = 8;

const ELSEWHERE: &str =
    "an op of a rank that has not what it names: it was packed in another stage, or divided";

/// Outputs of the parts that are stacked in a matrix, each of which every rank has an equal run of; a rank's runs stand one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout([usize; PARTS_MAX]); // zeros behind the last

impl Layout {
    /// Parts that ranks can have runs of.
    pub(super) fn of(widths: impl Iterator<Item = usize>, ranks: usize) -> Option<Layout> {
        let widths: Vec<usize> = widths.collect();
        let fits = widths.iter().all(|width| width.is_multiple_of(ranks * PART_ROWS));
        (fits && widths.len() <= PARTS_MAX).then(|| Layout::parts(&widths))
    }

    /// Of so many numbers, wherever they are cut.
    pub(super) fn parts(widths: &[usize]) -> Layout {
        let mut parts = [0; PARTS_MAX];
        parts[..widths.len()].copy_from_slice(widths);
        Layout(parts)
    }

    /// Its parts' widths, whole.
    pub(super) fn widths(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied().filter(|&width| width > 0)
    }

    /// Of each part, the columns that a rank's run has among the rank's, and the first that it has of the whole.
    pub(super) fn columns(self, rank: usize, ranks: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut begins = 0;
        self.0.into_iter().filter(|&width| width > 0).map(move |width| {
            let (before, own) = (begins, width / ranks);
            begins += width;
            (before / ranks..before / ranks + own, before + rank * own)
        })
    }
}

/// A matrix that ranks have runs of the outputs of, or all of.
#[derive(Debug)]
pub struct ShardedMatrix<M> {
    pub(super) whole: Vec<Option<M>>, // (ranks)
    pub(super) divided: Option<(Layout, Vec<M>)>,
}

impl<M> ShardedMatrix<M> {
    /// A rank's, as a whole.
    pub(super) fn at(&self, rank: usize) -> &M {
        self.whole[rank].as_ref().expect(ELSEWHERE)
    }
}

/// Packed things that ranks have as a whole.
#[derive(Debug)]
pub struct Whole<X>(pub(super) Vec<Option<X>>);

impl<X> Whole<X> {
    pub(super) fn at(&self, rank: usize) -> &X {
        self.0[rank].as_ref().expect(ELSEWHERE)
    }

    /// The ranks that have it, and it.
    pub(super) fn held_mut(&mut self) -> impl Iterator<Item = (usize, &mut X)> {
        self.0.iter_mut().enumerate().filter_map(|(rank, of)| Some((rank, of.as_mut()?)))
    }
}

/// A vector, whole on the ranks, and as runs where an op that is divided has asked for them.
#[derive(Debug)]
pub struct ShardedVector<V> {
    pub(super) whole: Vec<Option<V>>, // (ranks)
    values: Vec<f32>,
    runs: OnceLock<(Layout, Vec<V>)>,
}

impl<V> ShardedVector<V> {
    pub(super) fn new(whole: Vec<Option<V>>, values: &[f32]) -> Self {
        Self { whole, values: values.to_vec(), runs: OnceLock::new() }
    }

    /// A rank's, as a whole.
    pub(super) fn at(&self, rank: usize) -> &V {
        self.whole[rank].as_ref().expect(ELSEWHERE)
    }

    /// Each rank's runs, which are made when they are first asked for.
    pub(super) fn runs<B: Backend<Vector = V>>(
        &self,
        ranks: &[B],
        layout: Layout,
    ) -> Result<&[V], KernelError> {
        if self.runs.get().is_none() {
            let own = |(rank, device): (usize, &B)| {
                let runs = layout.columns(rank, ranks.len());
                let values: Vec<f32> =
                    runs.flat_map(|(own, first)| &self.values[first..first + own.len()]).copied().collect();
                device.vector(&values)
            };
            let made = ranks.iter().enumerate().map(own).collect::<Result<Vec<_>, _>>()?;
            // Ops come from one thread.
            let _ = self.runs.set((layout, made));
        }
        let (of, runs) = self.runs.get().expect("it was set");
        assert_eq!(*of, layout, "a vector that is divided in two ways");
        Ok(runs)
    }
}

/// Each part's run of rows of a rank.
pub(super) fn runs_of<'a>(parts: &[MatrixSource<'a>], rank: usize, ranks: usize) -> Vec<MatrixSource<'a>> {
    let run = |part: &MatrixSource<'a>| {
        let rows = part.shape.rows / ranks;
        // A file whose tensor is of another size is the device's to refuse, by its name.
        let whole = part.shape.dtype.bytes_of(part.shape.cols).map(|bytes| bytes * part.shape.rows);
        if whole != Some(part.bytes.len()) {
            return *part;
        }
        let bytes = part.bytes.len() / ranks;
        let bytes = &part.bytes[rank * bytes..][..bytes];
        MatrixSource { shape: crate::MatrixShape { rows, ..part.shape }, bytes, ..*part }
    };
    parts.iter().map(run).collect()
}
