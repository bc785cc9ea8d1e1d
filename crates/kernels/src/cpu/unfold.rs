//! Input of convolutions along the tokens: rows next to their neighbours (im2col).

use super::aligned::SharedPointer;
use super::pool::PoolTurn;
use hanzo_engine_ops::Batch;

/// Numbers written by a chunk of around 20 microseconds.
const CHUNK: usize = 1 << 14;

/// `out[r][c * window + t] = x[r + t - window / 2][c]`, or 0 outside r's sequence.
pub(super) fn unfold(
    turn: &mut PoolTurn,
    batch: &Batch,
    x: &[f32],
    cols: usize,
    window: usize,
    out: &mut [f32],
) {
    let rows = batch.rows();
    assert!(window % 2 == 1, "a window has a middle");
    assert!(x.len() >= rows * cols && out.len() >= rows * cols * window, "buffers of the batch's rows");
    let out = SharedPointer::new(out);
    turn.run(rows, CHUNK / (cols * window).max(1) + 1, &|_, range| {
        for row in range {
            // Spans cover the rows in their order.
            let span = batch.sequences.partition_point(|span| span.row_first as usize <= row) - 1;
            let span = &batch.sequences[span];
            let (first, end) = (span.row_first as usize, (span.row_first + span.rows) as usize);
            // SAFETY: the row is inside `out` (asserted) and in one range of one thread.
            let out =
                unsafe { std::slice::from_raw_parts_mut(out.get().add(row * cols * window), cols * window) };
            for t in 0..window {
                let to = out[t..].iter_mut().step_by(window);
                match (row + t).checked_sub(window / 2).filter(|from| (first..end).contains(from)) {
                    Some(from) => to.zip(&x[from * cols..][..cols]).for_each(|(to, from)| *to = *from),
                    None => to.for_each(|to| *to = 0.0),
                }
            }
        }
    });
}
