//! Reference implementation of the ops of codecs and vocoders.

use super::{ReferenceBackend, ReferenceBuffer, ReferenceMatrix, formulas};
use crate::{PointActivation, RelativeParams};

/// Added to the frequency of a snake that is divided by.
const LEAST: f64 = 1e-9;

/// Activation of a number in a column.
pub(super) fn activated(activation: &PointActivation<&Vec<f32>>, col: usize, number: f32) -> f32 {
    let x = f64::from(number);
    let activated = match *activation {
        PointActivation::Snake { alpha } => {
            let alpha = f64::from(alpha[col]);
            x + (alpha * x).sin().powi(2) / (alpha + LEAST)
        }
        PointActivation::LeakyRelu { slope } if x < 0.0 => f64::from(slope) * x,
        PointActivation::Elu { alpha } if x < 0.0 => f64::from(alpha) * x.exp_m1(),
        PointActivation::LeakyRelu { .. } | PointActivation::Elu { .. } => x,
        PointActivation::Tanh => x.tanh(),
        PointActivation::Mlp(activation) => formulas::activate(activation, x),
    };
    activated as f32
}

impl ReferenceBackend {
    pub(super) fn activate(&mut self, activation: &PointActivation<&Vec<f32>>, out: &mut ReferenceBuffer) {
        let rows = self.step().rows();
        out.check(rows, out.cols, "out");
        if let PointActivation::Snake { alpha } = activation {
            assert_eq!(alpha.len(), out.cols, "a frequency for each column");
        }
        for row in 0..rows {
            for (col, number) in out.row_mut(row).iter_mut().enumerate() {
                *number = activated(activation, col, *number);
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

    pub(super) fn relative_attention(
        &mut self,
        qkv: &ReferenceBuffer,
        params: &RelativeParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let (batch, heads) = (self.step(), params.heads);
        let (dim, width) = (heads.head_dim, heads.q_width());
        assert!(heads.heads == heads.kv_heads && params.keys.len() == (2 * params.reach + 1) * dim);
        assert_eq!(params.keys.len(), params.values.len(), "a value for each near key");
        qkv.check(batch.rows(), heads.qkv_width(), "qkv");
        out.check(batch.rows(), width, "out");
        let near = |numbers: &[f32], row, key, i| {
            params.near(row, key).map_or(0.0, |distance| f64::from(numbers[distance * dim + i]))
        };
        for span in &batch.sequences {
            let rows = span.row_first as usize..(span.row_first + span.rows) as usize;
            for (row, head) in rows.clone().flat_map(|row| (0..heads.heads).map(move |head| (row, head))) {
                let part = |row: usize, side: usize| &qkv.row(row)[side * width + head * dim..][..dim];
                let score = |key: usize| {
                    let products = part(row, 0).iter().zip(part(key, 1)).enumerate();
                    let products = products
                        .map(|(i, (&q, &k))| f64::from(q) * (f64::from(k) + near(params.keys, row, key, i)));
                    products.sum::<f64>() * f64::from(params.scale)
                };
                let scores: Vec<f64> = rows.clone().map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..dim {
                    let value = |key| f64::from(part(key, 2)[i]) + near(params.values, row, key, i);
                    let weighted = rows.clone().zip(&weights).map(|(key, weight)| weight / sum * value(key));
                    out.row_mut(row)[head * dim + i] = weighted.sum::<f64>() as f32;
                }
            }
        }
    }
}
