//! Reference implementation of the ops of codecs and vocoders.

use super::{ReferenceBackend, ReferenceBuffer, ReferenceMatrix};
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

    pub(super) fn codebook_lookup(
        &mut self,
        tables: &ReferenceMatrix,
        entries: usize,
        codes: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) {
        let rows = self.step().rows();
        assert_eq!(tables.rows, codes.cols * entries, "a table for each column of codes");
        codes.check(rows, codes.cols, "codes");
        out.check(rows, tables.cols, "out");
        for row in 0..rows {
            let chosen = codes.row(row).iter().enumerate().map(|(book, &code)| {
                let entry = code as usize;
                assert!(entry as f32 == code && entry < entries, "code {code} of {entries}");
                tables.row(book * entries + entry)
            });
            let chosen: Vec<&[f32]> = chosen.collect();
            for (col, out) in out.row_mut(row).iter_mut().enumerate() {
                *out = chosen.iter().map(|entry| f64::from(entry[col])).sum::<f64>() as f32;
            }
        }
    }
}
