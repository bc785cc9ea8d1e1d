//! The faults of norms.

use super::{Fault, Faulty};
use crate::reference::formulas;

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
}
