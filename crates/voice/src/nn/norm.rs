//! Norms: over the channels of a row, and over all rows of a channel.

use std::sync::{Mutex, PoisonError};

use super::{Compute, Signal};

/// Scale and shift for each channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelAffine {
    pub(crate) scale: Vec<f32>,
    pub(crate) shift: Vec<f32>,
}

/// Computes `(x - mean) / sqrt(variance + eps) * scale + shift` for each row.
pub(crate) fn layer_norm(x: &mut Signal, eps: f32, affine: &ChannelAffine) {
    let cols = x.cols;
    for row in x.data.chunks_exact_mut(cols) {
        let mean = row.iter().sum::<f32>() / cols as f32;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / cols as f32;
        let factor = 1.0 / (variance + eps).sqrt();
        for (value, (scale, shift)) in row.iter_mut().zip(affine.scale.iter().zip(&affine.shift)) {
            *value = (*value - mean) * factor * scale + shift;
        }
    }
}

/// Mean and variance of each channel over all rows, in double precision, so that the difference of two sums
/// stays exact.
pub(crate) fn channel_stats(compute: &Compute, x: &Signal) -> (Vec<f32>, Vec<f32>) {
    const PIECE_ROWS: usize = 256;
    let (rows, cols) = (x.rows, x.cols);
    let pieces = rows.div_ceil(PIECE_ROWS);
    let parts: Vec<Mutex<Vec<f64>>> = (0..pieces).map(|_| Mutex::new(vec![0.0; 2 * cols])).collect();
    compute.each(pieces, &|piece| {
        let mut part = parts[piece].lock().unwrap_or_else(PoisonError::into_inner);
        let (sums, squares) = part.split_at_mut(cols);
        let end = (piece + 1) * PIECE_ROWS;
        for row in x.data[piece * PIECE_ROWS * cols..end.min(rows) * cols].chunks_exact(cols) {
            for ((sum, square), &x) in sums.iter_mut().zip(&mut *squares).zip(row) {
                let x = f64::from(x);
                *sum += x;
                *square += x * x;
            }
        }
    });
    // Add in the order of pieces, for a deterministic result.
    let mut total = vec![0.0; 2 * cols];
    for part in parts {
        let part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
        total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
    }
    let (sums, squares) = total.split_at(cols);
    let count = rows as f64;
    let variance = |(sum, square): (&f64, &f64)| (square / count - (sum / count).powi(2)).max(0.0) as f32;
    let variances = sums.iter().zip(squares).map(variance).collect();
    (sums.iter().map(|sum| (sum / count) as f32).collect(), variances)
}
