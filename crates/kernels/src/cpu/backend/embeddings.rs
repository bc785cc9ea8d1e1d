//! Rows of embedding tables, on CPU cores.

use super::{CpuBuffer, OpenStep};
use crate::cpu::matrix::{CpuMatrix, Segment, unpack_row};
use hanzo_engine_ops::RowIds;

impl OpenStep<'_> {
    pub(super) fn embed(&mut self, table: &CpuMatrix, scale: f32, out: &mut CpuBuffer) {
        out.check(self.batch.rows(), table.cols(), "out");
        let tokens = self.tokens;
        let cols = table.cols();
        let shared = out.data.shared();
        self.cores.turn.run(tokens.len(), (1 << 14) / cols.max(1) + 1, &|_, range| {
            for row in range {
                let Some(token) = tokens[row] else { continue };
                // SAFETY: the buffer holds the row (checked above), which is in one range of one thread.
                let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(row * cols), cols) };
                let (segment, row) = table_row(table, token as usize);
                unpack_row(segment, row, scale, 0, out);
            }
        });
    }

    pub(super) fn add_embedding(&mut self, table: &CpuMatrix, ids: RowIds, out: &mut CpuBuffer) {
        /// Numbers unpacked at a time: whole blocks of every kind.
        const PART: usize = 1024;
        let (rows, cols) = (self.batch.rows(), table.cols());
        out.check(rows, cols, "out");
        let shared = out.data.shared();
        self.cores.turn.run(rows, (1 << 14) / cols.max(1) + 1, &|_, range| {
            let mut part = [0.0; PART];
            for row in range {
                // SAFETY: the buffer holds the row (checked above), which is in one range of one thread.
                let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(row * cols), cols) };
                let (segment, row) = table_row(table, self.batch.table_row(ids, row));
                for (index, out) in out.chunks_mut(PART).enumerate() {
                    let part = &mut part[..out.len()];
                    unpack_row(segment, row, 1.0, index * PART, part);
                    out.iter_mut().zip(part).for_each(|(out, part)| *out += *part);
                }
            }
        });
    }
}

/// Segment of a table's row, and the row's index in it.
fn table_row(table: &CpuMatrix, row: usize) -> (&Segment, usize) {
    let has = |segment: &&Segment| (segment.row_first..segment.row_first + segment.rows).contains(&row);
    let Some(segment) = table.segments().iter().find(has) else {
        panic!("row {row} of a table of {}", table.rows());
    };
    (segment, row - segment.row_first)
}
