//! Faults of norms.

use super::{Fault, Faulty};
use crate::reference::{ReferenceBuffer, formulas};
use crate::{BufferRole, DeviceMemory, RowOp};

impl Faulty {
    pub(super) fn norm(&self, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
        let cols = weight.len();
        let eps = if self.fault == Fault::EpsIgnored { 0.0 } else { eps };
        let weight = if self.fault == Fault::NormWeightIgnored { vec![1.0; cols] } else { weight.to_vec() };
        let mut out = vec![0.0; x.len()];
        for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
            if self.fault == Fault::NormOverPaddedWidth {
                let mut padded = x.to_vec();
                padded.resize(cols.next_multiple_of(16), 0.0);
                let mut weight = weight.clone();
                weight.resize(padded.len(), 0.0);
                let mut wide = padded.clone();
                formulas::rms_norm(&padded, &weight, eps, &mut wide);
                out.copy_from_slice(&wide[..cols]);
            } else {
                formulas::rms_norm(x, &weight, eps, out);
            }
        }
        out
    }

    /// `rms_norm`.
    pub(super) fn norm_rows(
        &mut self,
        x: &ReferenceBuffer,
        weight: &[f32],
        eps: f32,
        out: &mut ReferenceBuffer,
    ) {
        let cols = x.cols();
        let x = self.rows_of(x, cols);
        let normed = match self.fault {
            Fault::PartsNormedTogether => self.norm(&x, &weight.repeat(cols / weight.len()), eps),
            _ => self.norm(&x, weight, eps),
        };
        self.store(out, normed);
    }

    /// `row_op`.
    pub(super) fn change_rows(&mut self, op: &RowOp<&ReferenceBuffer, &Vec<f32>>, out: &mut ReferenceBuffer) {
        match (self.fault, op) {
            (Fault::RowsNotScaled, RowOp::Scale(_)) => self.inner.row_op(&RowOp::Scale(1.0), out),
            (Fault::MultipliedFromFirst, RowOp::Multiply { by, .. }) => {
                self.inner.row_op(&RowOp::Multiply { by, first: 0 }, out);
            }
            (Fault::WeightsOfStreamsTurned, RowOp::Mix { base, x, weights, plus }) => {
                let cols = weights.cols();
                let n = cols.isqrt();
                let mut turned = self.rows_of(weights, cols);
                if n * n == cols {
                    for row in turned.chunks_exact_mut(cols) {
                        let before = row.to_vec();
                        (0..cols).for_each(|at| row[at] = before[at % n * n + at / n]);
                    }
                }
                let mut other = self.inner.buffer(BufferRole::Residual, self.batch.rows(), cols).unwrap();
                self.inner.write_rows(&mut other, 0, &turned).unwrap();
                self.inner.row_op(&RowOp::Mix { base, x, weights: &other, plus: *plus }, out);
            }
            (Fault::WeightsNotPlusOne, RowOp::Mix { base, x, weights, .. }) => {
                self.inner.row_op(&RowOp::Mix { base, x, weights, plus: 0.0 }, out);
            }
            (Fault::FirstStreamSpread, RowOp::Spread { x, .. }) => {
                self.inner.row_op(&RowOp::Spread { x, first: 0 }, out);
            }
            (Fault::SizeKept, RowOp::MatchSize { .. })
            | (Fault::OutliersNotCut, RowOp::KeepOutliers { .. }) => {}
            (Fault::MeanForgotten, RowOp::KeepOutliers { deviations }) => {
                self.inner.row_op(&RowOp::KeepOutliers { deviations: deviations + 0.3 }, out);
            }
            (Fault::FactorIgnored, RowOp::Add { x, first, .. }) => {
                self.inner.row_op(&RowOp::Add { x, first: *first, factor: 1.0 }, out);
            }
            (Fault::NegativesStraight, &RowOp::Xielu { positive, linear, .. }) => {
                self.inner.row_op(&RowOp::Xielu { positive, negative: 0.0, linear }, out);
            }
            (Fault::WeightsIgnored, RowOp::Weigh(_)) | (Fault::TanhSkipped, RowOp::Tanh) => {}
            (Fault::ColumnsFromFirst, RowOp::Take { x, .. }) => {
                self.inner.row_op(&RowOp::Take { x, first: 0 }, out);
            }
            (Fault::ColumnsFromFirst, RowOp::Put { x, .. }) => {
                self.inner.row_op(&RowOp::Put { x, first: 0 }, out);
            }
            _ => self.inner.row_op(op, out),
        }
        let rows = self.rows_of(out, out.cols());
        self.store(out, rows);
    }
}
