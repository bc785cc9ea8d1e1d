//! Conversion of rows from one type to another, on the pool. [`hanzo_engine_ops::quant`] decodes and encodes each row by itself,
//! so threads do not change the result. An importance matrix may weight the columns.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::pool::PoolTurn;
use hanzo_engine_ops::DType;
use hanzo_engine_ops::quant::{dequantize_row, quantize_rows};

/// Smallest number of weights that a thread takes at a time.
const WEIGHTS_A_TIME: usize = 1 << 14;

/// Converts rows of `columns` weights from one type to another: `bytes` of type `from` to `out` of type `to`. Returns
/// false if a number is not finite, because no block can hold it; `out` is then meaningless. `importance` weights the
/// error of each column, as in [`hanzo_engine_ops::quant::quantize_rows`].
///
/// # Panics
/// If `from` cannot be dequantised or `to` not quantised (see [`hanzo_engine_ops::quant`]), or the lengths are not the same whole
/// rows.
pub fn requantize(
    turn: &mut PoolTurn,
    columns: usize,
    from: DType,
    bytes: &[u8],
    to: DType,
    out: &mut [u8],
    importance: Option<&[f32]>,
) -> bool {
    let row_bytes = |dtype: DType| dtype.bytes_of(columns).filter(|&bytes| bytes > 0);
    let (Some(row_from), Some(row_to)) = (row_bytes(from), row_bytes(to)) else {
        panic!("{columns} columns are not whole blocks of {from} and of {to}");
    };
    let rows = bytes.len() / row_from;
    assert_eq!((rows * row_from, rows * row_to), (bytes.len(), out.len()), "whole rows, and as many of them");
    let rows_a_time = WEIGHTS_A_TIME.div_ceil(columns);
    // Each lock is taken once, by the thread that has the chunk.
    let chunks: Vec<_> = bytes
        .chunks(rows_a_time * row_from)
        .zip(out.chunks_mut(rows_a_time * row_to).map(Mutex::new))
        .collect();
    let finite = AtomicBool::new(true);
    turn.run(chunks.len(), 1, &|_, range: Range<usize>| {
        for (bytes, out) in &chunks[range] {
            let mut weights = vec![0.0; bytes.len() / row_from * columns];
            dequantize_row(from, bytes, &mut weights);
            // Without an early exit, so that the check vectorises.
            if weights.iter().fold(true, |all, weight| all & weight.is_finite()) {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                quantize_rows(to, &weights, importance, &mut out);
            } else {
                finite.store(false, Ordering::Relaxed);
            }
        }
    });
    finite.into_inner()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::ThreadPool;

    #[test]
    fn any_number_of_threads_gives_the_rows_of_one() {
        let (rows, columns) = (300, 256);
        let weights: Vec<f32> =
            (0..rows * columns).map(|i| ((i * 37 % 1001) as f32 - 500.0) / 700.0).collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        for to in [DType::Q4_K, DType::Q8_0, DType::BF16] {
            let mut expected = vec![0; to.bytes_of(weights.len()).unwrap()];
            quantize_rows(to, &weights, None, &mut expected);
            for threads in [1, 3] {
                let mut out = vec![0; expected.len()];
                let mut turn = Arc::new(ThreadPool::new(threads)).turn();
                assert!(requantize(&mut turn, columns, DType::F32, &bytes, to, &mut out, None));
                assert!(out == expected, "{to} on {threads} threads");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_told() {
        let mut bytes = vec![0; 4 * 64];
        bytes[128..132].copy_from_slice(&f32::NAN.to_le_bytes());
        let mut turn = Arc::new(ThreadPool::new(1)).turn();
        assert!(!requantize(&mut turn, 32, DType::F32, &bytes, DType::Q8_0, &mut [0; 68], None));
    }
}
