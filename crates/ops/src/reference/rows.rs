//! Reference implementation of element-wise ops on rows.

use super::{ReferenceBuffer, formulas};
use crate::RowOp;
use crate::backend::{XIELU_MOST, width_of};

/// The contract's `row_op`.
pub(super) fn row_op(rows: usize, op: &RowOp<&ReferenceBuffer, &Vec<f32>>, out: &mut ReferenceBuffer) {
    out.check(rows, out.cols, "out");
    for row in 0..rows {
        let of = |x: &ReferenceBuffer| {
            x.check(rows, x.cols, "x");
            x.row(row).to_vec()
        };
        let out = out.row_mut(row);
        let cols = out.len();
        match *op {
            RowOp::Scale(factor) => out.iter_mut().for_each(|out| *out *= factor),
            RowOp::Multiply { by, first } => {
                out.iter_mut().zip(&of(by)[first..first + cols]).for_each(|(out, by)| *out *= by);
            }
            RowOp::Weigh(weights) => {
                assert_eq!(weights.len(), cols, "a weight a column");
                out.iter_mut().zip(weights).for_each(|(out, weight)| *out *= weight);
            }
            RowOp::Tanh => out.iter_mut().for_each(|out| *out = f64::from(*out).tanh() as f32),
            RowOp::Take { x, first } => out.copy_from_slice(&of(x)[first..first + cols]),
            RowOp::Put { x, first } => out[first..first + x.cols].copy_from_slice(&of(x)),
            RowOp::Add { x, first, factor } => {
                for (out, x) in out.iter_mut().zip(&of(x)[first..first + cols]) {
                    *out = (f64::from(*out) + f64::from(factor) * f64::from(*x)) as f32;
                }
            }
            RowOp::Spread { x, first } => {
                for stream in out.chunks_exact_mut(x.cols).skip(first) {
                    stream.iter_mut().zip(of(x)).for_each(|(out, x)| *out += x);
                }
            }
            RowOp::Mix { base, x, weights, plus } => {
                let (base, x, weights, width) = (of(base), of(x), of(weights), x.cols);
                mix(&base, &x, &weights, plus, width, out);
            }
            RowOp::Xielu { positive, negative, linear } => {
                let [positive, negative, linear] = [positive, negative, linear].map(f64::from);
                for v in out {
                    let x = f64::from(*v);
                    let curved = match x > 0.0 {
                        true => positive * x * x,
                        false => negative * (x.min(XIELU_MOST.into()).exp_m1() - x),
                    };
                    *v = (curved + linear * x) as f32;
                }
            }
            RowOp::MatchSize { x, least } => {
                let x = of(x);
                let size = |x: &[f32]| (formulas::dot(x, x) / cols as f64).sqrt();
                let factor = size(&x) / size(out).max(f64::from(least));
                out.iter_mut().for_each(|out| *out = (f64::from(*out) * factor) as f32);
            }
            RowOp::KeepOutliers { deviations } => {
                let half = &mut out[..cols / 2];
                let count = half.len() as f64;
                let mean = half.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
                let variance = half.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
                let cut = mean + f64::from(deviations) * variance.sqrt();
                half.iter_mut().for_each(|v| *v = (f64::from(*v) - cut).max(0.0) as f32);
            }
        }
    }
}

/// `Mix` for one row, whose `x` has `x_cols` columns in all.
fn mix(base: &[f32], x: &[f32], weights: &[f32], plus: f32, x_cols: usize, out: &mut [f32]) {
    // As many weights as pairs of streams: (streams of out) * (streams of x), all of one width.
    let width = width_of(x_cols, out.len(), weights.len());
    let count = x_cols / width;
    assert_eq!(base.len(), out.len(), "as many streams of the base");
    for (stream, out) in out.chunks_exact_mut(width).enumerate() {
        for (at, out) in out.iter_mut().enumerate() {
            let of = |from: usize| {
                let weight = f64::from(plus) + f64::from(weights[stream * count + from]);
                weight * f64::from(x[from * width + at])
            };
            let sum: f64 = (0..count).map(of).sum();
            *out = (f64::from(base[stream * width + at]) + sum) as f32;
        }
    }
}
