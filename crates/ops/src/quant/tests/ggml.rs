//! Errors of the encoders beside those of GGML's own (golden/ggml_errors.py says how they were measured).

use super::*;

const COLS: usize = 1024;
const ROWS: usize = 24;

/// A type, and how far GGML's blocks are from three kinds of weights: alone and, where the type reads it, with an importance for
/// each column.
const GGML: &[(DType, &[f64])] = &[
    (DType::Q2_K, &[0.292320, 0.249820, 0.376523, 0.279996, 0.151951, 0.139184]),
    (DType::Q3_K, &[0.149352, 0.138101, 0.173053, 0.161048, 0.110595, 0.098850]),
    (DType::Q4_K, &[0.070540, 0.067739, 0.091091, 0.086929, 0.035166, 0.034042]),
    (DType::Q5_K, &[0.035670, 0.034025, 0.046860, 0.044723, 0.017736, 0.016968]),
    (DType::Q6_K, &[0.017558, 0.016693, 0.023615, 0.022760, 0.013147, 0.012473]),
    (DType::IQ4_NL, &[0.075578, 0.072897, 0.091157, 0.087657, 0.063910, 0.061768]),
    (DType::IQ4_XS, &[0.076217, 0.073626, 0.091950, 0.088637, 0.064478, 0.062482]),
    (DType::Q4_0, &[0.084431, 0.078570, 0.110512, 0.105391, 0.062292, 0.056123]),
    (DType::Q4_1, &[0.077090, 0.066784, 0.102459, 0.085320, 0.035534, 0.033608]),
    (DType::Q5_0, &[0.042557, 0.039529, 0.057252, 0.055006, 0.031182, 0.028115]),
    (DType::Q5_1, &[0.037495, 0.032302, 0.049010, 0.041611, 0.017282, 0.016200]),
    (DType::Q8_0, &[0.005262, 0.007514, 0.003940]),
    (DType::TQ1_0, &[0.792174, 0.794802, 0.731740]),
    (DType::TQ2_0, &[0.792174, 0.794802, 0.731740]),
    (DType::MXFP4, &[0.112855, 0.132633, 0.109708]),
];

/// The same numbers as the script's.
fn uniforms(count: usize, mut seed: u64) -> Vec<f32> {
    (0..count)
        .map(|_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 40) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect()
}

/// Weights like a layer's; with heavy tails; with parts that are far from zero.
fn kinds() -> [Vec<f32>; 3] {
    let parts = uniforms(12 * ROWS * COLS, 7);
    let normal: Vec<f32> = parts.chunks_exact(12).map(|parts| parts.iter().sum::<f32>() * 0.02).collect();
    let heavy = normal.iter().map(|w| w * w.abs() * 40.0).collect();
    let shifted = normal.iter().enumerate().map(|(at, w)| w + 0.03 * (at / 64 % 3) as f32).collect();
    [normal, heavy, shifted]
}

fn error(dtype: DType, weights: &[f32], columns: Option<&[f32]>) -> f64 {
    let mut bytes = vec![0; dtype.bytes_of(weights.len()).unwrap()];
    for (row, out) in weights.chunks_exact(COLS).zip(bytes.chunks_exact_mut(dtype.bytes_of(COLS).unwrap())) {
        quantize_rows(dtype, row, columns, out);
    }
    let mut found = vec![0.0; weights.len()];
    dequantize_row(dtype, &bytes, &mut found);
    let weigh = |at: usize| columns.map_or(1.0, |columns| f64::from(columns[at % COLS]));
    let (mut off, mut size) = (0.0, 0.0);
    for (at, (&w, &found)) in weights.iter().zip(&found).enumerate() {
        off += weigh(at) * (f64::from(w) - f64::from(found)).powi(2);
        size += weigh(at) * f64::from(w).powi(2);
    }
    (off / size).sqrt()
}

#[test]
fn encoders_err_no_more_than_ggml_s() {
    let columns: Vec<f32> = uniforms(COLS, 11).iter().map(|x| x.abs() * 4.0 + 0.01).collect();
    let mut worse = Vec::new();
    for &(dtype, expected) in GGML {
        let each = expected.len() / 3;
        let mut ratios = Vec::new();
        for (at, weights) in kinds().iter().enumerate() {
            for (with, &ggml) in expected[at * each..][..each].iter().enumerate() {
                let ratio = error(dtype, weights, (with == 1).then_some(&columns)) / ggml;
                // The figures have six places.
                if ratio > 1.0 + 1e-4 {
                    worse.push((dtype, at, with, ratio));
                }
                ratios.push(format!("{ratio:.4}"));
            }
        }
        println!("{dtype}: {}", ratios.join(" "));
    }
    assert!(worse.is_empty(), "{worse:?}");
}
