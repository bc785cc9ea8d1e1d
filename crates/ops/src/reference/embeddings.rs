//! Reference implementation of embedding tables other than the tokens'.

use super::{ReferenceBuffer, ReferenceMatrix};
use crate::{Batch, RowIds};

/// `out[r] += table[id(r)]`.
pub(super) fn add(batch: &Batch, table: &ReferenceMatrix, ids: RowIds, out: &mut ReferenceBuffer) {
    out.check(batch.rows(), table.cols, "out");
    for row in 0..batch.rows() {
        let id = batch.table_row(ids, row);
        assert!(id < table.rows, "row {id} of a table of {}", table.rows);
        for (out, weight) in out.row_mut(row).iter_mut().zip(table.row(id)) {
            *out += weight;
        }
    }
}
