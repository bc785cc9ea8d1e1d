//! Norms: of a row's channels, and of a channel along all rows.

use std::sync::{Mutex, PoisonError};

use super::{Compute, Signal};

/// A factor and an addend a channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Affine {
    pub(crate) scale: Vec<f32>,
    pub(crate) shift: Vec<f32>,
}

/// `(x - mean) / sqrt(variance + eps) * scale + shift` of each row.
pub(crate) fn layer_norm(x: &mut Signal, eps: f32, affine: &Affine) {
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

/// Mean and variance of each channel along all rows.
pub(crate) fn channel_stats(compute: &Compute, x: &Signal) -> (Vec<f32>, Vec<f32>) {
    let (rows, cols) = (x.rows, x.cols);
    let sums = |task: &(dyn Fn(&[f32], &mut [f64]) + Sync)| -> Vec<f64> {
        const PIECE_ROWS: usize = 256;
        let pieces = rows.div_ceil(PIECE_ROWS);
        let parts: Vec<Mutex<Vec<f64>>> = (0..pieces).map(|_| Mutex::new(vec![0.0; cols])).collect();
        compute.each(pieces, &|piece| {
            let mut part = parts[piece].lock().unwrap_or_else(PoisonError::into_inner);
            let end = (piece + 1) * PIECE_ROWS;
            for row in x.data[piece * PIECE_ROWS * cols..end.min(rows) * cols].chunks_exact(cols) {
                task(row, &mut part);
            }
        });
        // In the order of pieces, whoever computed them.
        let mut total = vec![0.0; cols];
        for part in parts {
            let part = part.into_inner().unwrap_or_else(PoisonError::into_inner);
            total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
        }
        total
    };
    let mean: Vec<f64> = sums(&|row, part| {
        part.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    });
    let mean: Vec<f64> = mean.iter().map(|sum| sum / rows as f64).collect();
    let variance = sums(&|row, part| {
        for ((sum, &x), mean) in part.iter_mut().zip(row).zip(&mean) {
            let off = f64::from(x) - mean;
            *sum += off * off;
        }
    });
    let variance = variance.iter().map(|sum| (sum / rows as f64) as f32).collect();
    (mean.iter().map(|&mean| mean as f32).collect(), variance)
}
