//! How ranks divide rows of outputs.

use std::ops::Range;

use super::PART_ROWS;
use crate::{HeadShape, MatrixSource};

/// Parts of a matrix that are stacked, at most, where it is divided.
const PARTS_MAX: usize = 8;

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

    /// Layout of parts with these widths, without a check of where ranks cut them.
    pub(super) fn parts(widths: &[usize]) -> Layout {
        let mut parts = [0; PARTS_MAX];
        parts[..widths.len()].copy_from_slice(widths);
        Layout(parts)
    }

    /// The columns of rows of heads.
    pub(super) fn of_heads(shape: HeadShape, queries_alone: bool) -> Layout {
        let (q, kv) = (shape.q_width(), shape.kv_heads * shape.head_dim);
        if queries_alone { Layout::parts(&[q]) } else { Layout::parts(&[q, kv, kv]) }
    }

    /// Whether the parts are halves: gate's columns, and up's.
    pub(super) fn is_halves(&self) -> bool {
        let mut widths = self.widths();
        matches!((widths.next(), widths.next(), widths.next()), (Some(gate), Some(up), None) if gate == up)
    }

    /// Its parts' widths, whole.
    pub(super) fn widths(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied().filter(|&width| width > 0)
    }

    /// For each part, a rank's columns in its own rows, and the first of them in whole rows.
    pub(super) fn columns(self, rank: usize, ranks: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut begins = 0;
        self.0.into_iter().filter(|&width| width > 0).map(move |width| {
            let (before, own) = (begins, width / ranks);
            begins += width;
            (before / ranks..before / ranks + own, before + rank * own)
        })
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
