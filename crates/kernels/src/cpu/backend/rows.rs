//! Element-wise ops on rows, and norms of rows.

use std::borrow::Borrow;

use super::{CpuBackend, CpuBuffer, CpuLowRank, CpuVector, OpenStep};
use crate::cpu::activations::Input;
use crate::cpu::rows::Rows;
use crate::cpu::{low_rank, norm};
use hanzo_engine_ops::backend::{XIELU_MOST, width_of};
use hanzo_engine_ops::{AdaptedLogits, LogitsHead, RowOp};

impl OpenStep<'_> {
    /// The contract's `rms_norm`.
    pub(super) fn rms_norm(&mut self, x: &CpuBuffer, weight: &CpuVector, eps: f32, out: &mut CpuBuffer) {
        let (rows, cols) = (self.batch.rows(), weight.values.len());
        x.check(rows, x.cols, "x");
        out.check(rows, x.cols, "out");
        assert!(x.cols.is_multiple_of(cols), "parts of a row as long as the weights");
        let rows = rows * (x.cols / cols);
        norm::rms_norm(self.cores.lend(), rows, &x.data, None, &weight.values, eps, &mut out.data);
    }

    pub(super) fn add_rms_norm(
        &mut self,
        residual: &mut CpuBuffer,
        x: &CpuBuffer,
        weight: &CpuVector,
        eps: f32,
        out: &mut CpuBuffer,
    ) {
        let (rows, cols) = (self.batch.rows(), weight.values.len());
        residual.check(rows, cols, "residual");
        x.check(rows, cols, "x");
        out.check(rows, cols, "out");
        let residual = Some(&mut residual.data[..]);
        norm::rms_norm(self.cores.lend(), rows, &x.data, residual, &weight.values, eps, &mut out.data);
    }

    /// The contract's `logits`.
    pub(super) fn logits(
        &mut self,
        LogitsHead { matrix: head, adapted }: LogitsHead<'_, CpuBackend>,
        x: &CpuBuffer,
        out: &mut [f32],
    ) {
        x.check(self.batch.rows(), head.cols(), "x");
        let rows = self.batch.logit_rows.len();
        assert_eq!(out.len(), rows * head.rows(), "out holds one row of logits a logit row");
        assert!(head.cols() <= self.scratch.limits.width, "a head wider than the step limits");
        let gathered = self.scratch.activations.gather(&x.data, head.cols(), &self.batch.logit_rows);
        let input = Input { x: gathered, rows, step: None, places: None };
        // SAFETY: `gather` has put that many rows of the matrix's inputs there.
        unsafe { self.product().store(head, None, None, input, out) };
        if let Some(AdaptedLogits { deltas, low }) = adapted {
            let out = Rows { numbers: out, stride: head.rows() };
            low_rank::add(
                self.cores.lend(),
                self.adapted.logits(),
                deltas,
                x.rows(),
                Some(low.rows_mut()),
                out,
            );
        }
    }

    /// The contract's `add_low_rank`.
    pub(super) fn add_low_rank<L: Borrow<CpuLowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &CpuBuffer,
        low: Option<&mut CpuBuffer>,
        out: &mut CpuBuffer,
    ) {
        let low = low.map(CpuBuffer::rows_mut);
        low_rank::add(self.cores.lend(), self.adapted.get(), deltas, x.rows(), low, out.rows_mut());
    }

    /// The contract's `row_op`.
    pub(super) fn row_op(&mut self, op: &RowOp<&CpuBuffer, &CpuVector>, out: &mut CpuBuffer) {
        let (rows, cols) = (self.batch.rows(), out.cols);
        out.check(rows, cols, "out");
        let read = |x: &CpuBuffer, first: usize| {
            x.check(rows, x.cols, "x");
            assert!(first + cols <= x.cols, "{cols} columns from {first} of {}", x.cols);
        };
        match *op {
            RowOp::Scale(_) | RowOp::Tanh | RowOp::Xielu { .. } | RowOp::KeepOutliers { .. } => {}
            RowOp::Multiply { by: x, first } | RowOp::Take { x, first } | RowOp::Add { x, first, .. } => {
                read(x, first)
            }
            RowOp::Weigh(weights) => assert_eq!(weights.values.len(), cols, "a weight a column"),
            RowOp::Put { x, first } => {
                x.check(rows, x.cols, "x");
                assert!(first + x.cols <= cols, "{} columns to {first} of {cols}", x.cols);
            }
            RowOp::Spread { x, .. } => {
                x.check(rows, x.cols, "x");
                assert!(cols.is_multiple_of(x.cols), "streams as wide as x");
            }
            RowOp::Mix { base, x, weights, .. } => {
                base.check(rows, cols, "base");
                x.check(rows, x.cols, "x");
                weights.check(rows, weights.cols, "weights");
            }
            RowOp::MatchSize { x, .. } => x.check(rows, cols, "x"),
        }
        let shared = out.data.shared();
        self.cores.turn.run(rows, (1 << 13) / cols.max(1) + 1, &|_, range| {
            for row in range {
                // SAFETY: the buffer holds the row (checked above), which is in one range of one thread.
                let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(row * cols), cols) };
                change(op, row, out);
            }
        });
    }
}

/// Applies an op to one row.
fn change(op: &RowOp<&CpuBuffer, &CpuVector>, row: usize, out: &mut [f32]) {
    fn of(x: &CpuBuffer, row: usize) -> &[f32] {
        &x.data[row * x.cols..][..x.cols]
    }
    let cols = out.len();
    match *op {
        RowOp::Scale(factor) => out.iter_mut().for_each(|out| *out *= factor),
        RowOp::Multiply { by, first } => {
            out.iter_mut().zip(&of(by, row)[first..]).for_each(|(out, by)| *out *= by);
        }
        RowOp::Weigh(weights) => {
            out.iter_mut().zip(&weights.values[..]).for_each(|(out, weight)| *out *= weight)
        }
        RowOp::Tanh => out.iter_mut().for_each(|out| *out = f64::from(*out).tanh() as f32),
        RowOp::Take { x, first } => out.copy_from_slice(&of(x, row)[first..first + cols]),
        RowOp::Put { x, first } => out[first..first + x.cols].copy_from_slice(of(x, row)),
        RowOp::Add { x, first, factor } => {
            out.iter_mut().zip(&of(x, row)[first..]).for_each(|(out, x)| *out += factor * x);
        }
        RowOp::Spread { x, first } => {
            for stream in out.chunks_exact_mut(x.cols).skip(first) {
                stream.iter_mut().zip(of(x, row)).for_each(|(out, x)| *out += x);
            }
        }
        RowOp::Mix { base, x, weights, plus } => {
            let width = width_of(x.cols, cols, weights.cols);
            let (base, x, weights) = (of(base, row), of(x, row), of(weights, row));
            let weights = weights.chunks_exact(x.len() / width);
            for ((out, base), weights) in
                out.chunks_exact_mut(width).zip(base.chunks_exact(width)).zip(weights)
            {
                out.copy_from_slice(base);
                for (x, weight) in x.chunks_exact(width).zip(weights) {
                    let weight = plus + weight;
                    out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
                }
            }
        }
        RowOp::Xielu { positive, negative, linear } => {
            for v in out {
                let x = *v;
                let curved = match x > 0.0 {
                    true => positive * x * x,
                    false => negative * (x.min(XIELU_MOST).exp_m1() - x),
                };
                *v = curved + linear * x;
            }
        }
        RowOp::MatchSize { x, least } => {
            let factor = (size(of(x, row)) / size(out).max(f64::from(least))) as f32;
            out.iter_mut().for_each(|out| *out *= factor);
        }
        RowOp::KeepOutliers { deviations } => {
            let half = &mut out[..cols / 2];
            let count = half.len() as f64;
            let mean = half.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let variance = half.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
            let cut = (mean + f64::from(deviations) * variance.sqrt()) as f32;
            half.iter_mut().for_each(|v| *v = (*v - cut).max(0.0));
        }
    }
}

/// Root mean square.
fn size(x: &[f32]) -> f64 {
    (x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64).sqrt()
}
