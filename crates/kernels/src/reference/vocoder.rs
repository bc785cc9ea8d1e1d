//! Reference implementation of the ops of codecs and vocoders.

use super::{ReferenceBackend, ReferenceBuffer};
use crate::PointActivation;

/// Added to the frequency of a snake that is divided by.
const LEAST: f64 = 1e-9;

impl ReferenceBackend {
    pub(super) fn activate(&mut self, activation: &PointActivation<&Vec<f32>>, out: &mut ReferenceBuffer) {
        let rows = self.step().rows();
        out.check(rows, out.cols, "out");
        if let PointActivation::Snake { alpha } = activation {
            assert_eq!(alpha.len(), out.cols, "a frequency for each column");
        }
        for row in 0..rows {
            for (col, number) in out.row_mut(row).iter_mut().enumerate() {
                let x = f64::from(*number);
                let activated = match *activation {
                    PointActivation::Snake { alpha } => {
                        let alpha = f64::from(alpha[col]);
                        x + (alpha * x).sin().powi(2) / (alpha + LEAST)
                    }
                    PointActivation::LeakyRelu { slope } if x < 0.0 => f64::from(slope) * x,
                    PointActivation::Elu { alpha } if x < 0.0 => f64::from(alpha) * x.exp_m1(),
                    PointActivation::LeakyRelu { .. } | PointActivation::Elu { .. } => x,
                };
                *number = activated as f32;
            }
        }
    }
}
