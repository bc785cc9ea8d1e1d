//! Encoding of blocks, and decoding of floats, in loops that compilers turn into vectors ([`super::vectors`]). Every width
//! gives the same bits, because lanes are separate weights or groups ([`super::search`]).

use half::bf16;

use super::{affine, block32, codebook, fp8, kquant, put_half, signs, ternary};
use crate::DType;

/// Rule by which blocks are encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// GGML's rule, bit for bit.
    Ggml,
    /// As near to the weights as the type allows, if that differs from GGML's rule.
    Fitted,
}

/// Decodes floats.
#[inline(always)]
pub(super) fn floats_anywhere(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (w, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *w = f32::from_le_bytes(*bytes);
            }
        }
        DType::F16 => {
            for (w, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *w = widened(u16::from_le_bytes(*bytes));
            }
        }
        _ => {
            for (w, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *w = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

/// Converts f16 to f32. A product moves the exponents, which is exact and handles subnormals. NaN stays NaN, and
/// becomes quiet.
#[inline(always)]
fn widened(half: u16) -> f32 {
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff) << 13);
    let moved = (f32::from_bits(rest) * f32::from_bits((127 + 112) << 23)).to_bits();
    let quiet = if rest > 0x1f << 23 { 1 << 22 } else { 0 };
    let special = rest | 0xff << 23 | quiet;
    f32::from_bits(sign | if rest >= 0x1f << 23 { special } else { moved })
}

/// Encodes so many blocks of a type at a time. A call by name, which is inlined into each width.
macro_rules! blocks {
    ($dtype:expr, $count:expr, $weights:expr, $columns:expr, $out:expr, $encode:expr) => {{
        let (of, bytes) = ($count * $dtype.block_weights(), $count * $dtype.block_bytes());
        for (i, (weights, block)) in $weights.chunks(of).zip($out.chunks_mut(bytes)).enumerate() {
            let columns = $columns.map(|columns: &[f32]| &columns[i * of..i * of + weights.len()]);
            $encode(weights, columns, block);
        }
    }};
}

/// Same as [`blocks`], for an encoder without column importance.
macro_rules! alike {
    ($dtype:expr, $weights:expr, $out:expr, $encode:expr) => {{
        let blocks = $out.chunks_exact_mut($dtype.block_bytes());
        for (block, weights) in blocks.zip($weights.chunks_exact($dtype.block_weights())) {
            $encode(weights, block);
        }
    }};
}

/// Same as [`blocks`], for an encoder with column importance.
macro_rules! counted {
    ($dtype:expr, $weights:expr, $columns:expr, $out:expr, $encode:expr, $of:expr) => {{
        let mean_square = mean_square($weights);
        let (of, bytes) = (8 * $dtype.block_weights(), 8 * $dtype.block_bytes());
        let columns = $columns.chunks(of);
        for ((weights, block), columns) in $weights.chunks(of).zip($out.chunks_mut(bytes)).zip(columns) {
            $encode(weights, columns, mean_square, block, $of);
        }
    }};
}

#[inline(always)]
fn mean_square(weights: &[f32]) -> f32 {
    let mut sum = 0.0f32;
    for w in weights {
        sum += w * w;
    }
    sum / weights.len() as f32
}

/// Encodes blocks. If `columns` are given, the blocks are one row, and `columns` are the importance of its columns.
#[inline(always)]
pub(super) fn row_anywhere(
    dtype: DType,
    rule: Rule,
    weights: &[f32],
    columns: Option<&[f32]>,
    out: &mut [u8],
) {
    if let Some((bits, group)) = dtype.affine() {
        let blocks = out.chunks_exact_mut(dtype.block_bytes());
        return blocks.zip(weights.chunks_exact(group)).for_each(|(b, w)| affine::encode(bits, w, b));
    }
    match (dtype, columns) {
        (DType::F32, _) => {
            for (bytes, w) in out.as_chunks_mut::<4>().0.iter_mut().zip(weights) {
                *bytes = w.to_le_bytes();
            }
        }
        (DType::F16, _) => alike!(dtype, weights, out, |w: &[f32], b: &mut [u8]| put_half(b, 0, w[0])),
        (DType::BF16, _) => {
            for (bytes, w) in out.as_chunks_mut::<2>().0.iter_mut().zip(weights) {
                *bytes = bf16::from_f32(*w).to_le_bytes();
            }
        }
        (DType::FP8 | DType::FP8_G32, _) => alike!(dtype, weights, out, fp8::encode),
        (DType::Q1_0, _) => alike!(dtype, weights, out, signs::encode_q1_0),
        (DType::Q2_0, _) => alike!(dtype, weights, out, signs::encode_q2_0),
        (DType::Q4_0, None) => alike!(dtype, weights, out, block32::encode_q4_0),
        (DType::Q4_1, None) => alike!(dtype, weights, out, block32::encode_q4_1),
        (DType::Q5_0, None) => alike!(dtype, weights, out, block32::encode_q5_0),
        (DType::Q5_1, None) => alike!(dtype, weights, out, block32::encode_q5_1),
        (DType::Q4_0, Some(of)) => counted!(dtype, weights, of, out, block32::encode_symmetric, 8.0),
        (DType::Q4_1, Some(of)) => counted!(dtype, weights, of, out, block32::encode_affine, 15.0),
        (DType::Q5_0, Some(of)) => counted!(dtype, weights, of, out, block32::encode_symmetric, 16.0),
        (DType::Q5_1, Some(of)) => counted!(dtype, weights, of, out, block32::encode_affine, 31.0),
        (DType::Q8_0, _) => alike!(dtype, weights, out, block32::encode_q8_0),
        (DType::Q2_K, _) => blocks!(dtype, 1, weights, columns, out, kquant::encode_q2),
        (DType::Q3_K, _) => blocks!(dtype, 1, weights, columns, out, kquant::encode_q3),
        (DType::Q4_K, _) => blocks!(dtype, 1, weights, columns, out, kquant::encode_q4),
        (DType::Q5_K, _) => blocks!(dtype, 1, weights, columns, out, kquant::encode_q5),
        (DType::Q6_K, _) => blocks!(dtype, 1, weights, columns, out, kquant::encode_q6),
        (DType::IQ4_NL, _) => blocks!(dtype, 8, weights, columns, out, codebook::encode_iq4_nl),
        (DType::IQ4_XS, _) => blocks!(dtype, 1, weights, columns, out, codebook::encode_iq4_xs),
        (DType::MXFP4, _) if rule == Rule::Fitted => {
            blocks!(dtype, 1, weights, columns, out, codebook::fit_mxfp4);
        }
        (DType::MXFP4, _) => alike!(dtype, weights, out, codebook::encode_mxfp4),
        (DType::TQ1_0, _) => alike!(dtype, weights, out, ternary::encode_tq1_0),
        (DType::TQ2_0, _) => alike!(dtype, weights, out, ternary::encode_tq2_0),
        _ => panic!("{dtype} cannot be quantised; can_quantize says so"),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    use super::super::vectors::row_by_avx2;
    use super::super::vectors::{floats, row};
    use super::super::{can_quantize, dequantize_row, fit_rows, quantize_rows};
    use super::*;
    use half::f16;

    /// Roughly normal weights, and columns of which few matter much.
    fn numbers(count: usize) -> (Vec<f32>, Vec<f32>) {
        let mut seed = 5u64;
        let mut uniform = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 40) as f32 / (1 << 24) as f32
        };
        let weights = (0..count).map(|_| (0..12).map(|_| uniform() - 0.5).sum::<f32>() * 0.02).collect();
        (weights, (0..count).map(|_| uniform().powi(8) * 100.0).collect())
    }

    #[test]
    fn every_width_gives_the_same_bits() {
        let (mut weights, columns) = numbers(4096);
        weights[512..600].fill(0.0);
        weights[800..1100].iter_mut().for_each(|w| *w = w.abs());
        let of_ggml =
            DType::ALL.iter().filter(|&&dtype| can_quantize(dtype)).map(|&dtype| (dtype, Rule::Ggml));
        for (dtype, rule) in of_ggml.chain([(DType::MXFP4, Rule::Fitted)]) {
            for columns in [None, Some(&columns[..])] {
                let mut expected = vec![0xAA; dtype.bytes_of(weights.len()).unwrap()];
                row_anywhere(dtype, rule, &weights, columns, &mut expected);
                let mut out = vec![0x55; expected.len()];
                row(dtype, rule, &weights, columns, &mut out);
                assert!(out == expected, "{dtype}");
                #[cfg(target_arch = "x86_64")]
                if row_by_avx2(dtype, rule, &weights, columns, &mut out) {
                    assert!(out == expected, "{dtype} by AVX2");
                }
            }
        }
    }

    #[test]
    fn every_half_is_widened_exactly() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut out = vec![0.0; 1 << 16];
        floats(DType::F16, &bytes, &mut out);
        for (bits, found) in out.into_iter().enumerate() {
            let expected = f16::from_bits(bits as u16).to_f32();
            assert_eq!(found.to_bits(), expected.to_bits(), "{bits:#x}");
        }
    }

    type Quantise = fn(DType, &[f32], Option<&[f32]>, &mut [u8]);

    /// Fitted blocks of MXFP4 are never farther from their weights than GGML's, weighted by columns or not, and many
    /// are nearer.
    #[test]
    fn fitted_exponents_err_no_more_than_ggml_s() {
        let (normal, columns) = numbers(64 * 512);
        // Heavy tails: in some blocks one weight is far from the others.
        let heavy: Vec<f32> = normal.iter().zip(&columns).map(|(w, c)| w * (1.0 + c * c * 1e-2)).collect();
        // Ends of the range: nothing overflows, and zeros stay.
        let wide: Vec<f32> =
            heavy.iter().enumerate().map(|(i, w)| w * 10f32.powi((i / 32 % 70) as i32 - 40)).collect();
        for (name, weights, saved) in
            [("normal", &normal, 0.01), ("heavy", &heavy, 0.01), ("wide", &wide, 0.0)]
        {
            for importance in [None, Some(&columns[..512])] {
                let count = |i: usize| importance.map_or(1.0, |of| f64::from(of[i % 512]));
                let errors = |quantize: Quantise| {
                    let mut bytes = vec![0; DType::MXFP4.bytes_of(weights.len()).unwrap()];
                    quantize(DType::MXFP4, weights, importance, &mut bytes);
                    let mut out = vec![0.0; weights.len()];
                    dequantize_row(DType::MXFP4, &bytes, &mut out);
                    let each = out.iter().zip(weights.iter()).enumerate();
                    let each: Vec<f64> =
                        each.map(|(i, (a, b))| count(i) * (f64::from(*a) - f64::from(*b)).powi(2)).collect();
                    each.chunks(32).map(|block| block.iter().sum::<f64>()).collect::<Vec<_>>()
                };
                let (ggml, fitted) = (errors(quantize_rows), errors(fit_rows));
                for (block, (ggml, fitted)) in ggml.iter().zip(&fitted).enumerate() {
                    assert!(fitted <= ggml, "{name} block {block}: {fitted:e}, GGML {ggml:e}");
                }
                let nearer = ggml.iter().zip(&fitted).filter(|(ggml, fitted)| fitted < ggml).count();
                let ratio = fitted.iter().sum::<f64>() / ggml.iter().sum::<f64>();
                println!("{name}: {nearer} of {} blocks nearer, errors {ratio:.3}", ggml.len());
                assert!(nearer * 20 > ggml.len() && ratio <= 1.0 - saved, "{name}: {nearer}, {ratio}");
            }
        }
        let mut zeros = [1; 17];
        fit_rows(DType::MXFP4, &[0.0; 32], None, &mut zeros);
        assert_eq!(zeros, [0; 17]);
    }

    /// Errors of important columns shrink, in all types with a choice of scales.
    #[test]
    fn importance_is_honoured() {
        use DType::*;
        let (rows, (weights, columns)) = (16, numbers(16 * 512));
        let columns = &columns[..512];
        let error = |dtype: DType, importance: Option<&[f32]>| {
            let mut bytes = vec![0; dtype.bytes_of(weights.len()).unwrap()];
            quantize_rows(dtype, &weights, importance, &mut bytes);
            let mut out = vec![0.0; weights.len()];
            dequantize_row(dtype, &bytes, &mut out);
            let each = (0..rows * 512).map(|i| f64::from(columns[i % 512] * (out[i] - weights[i]).powi(2)));
            each.sum::<f64>()
        };
        for (dtype, bound) in [
            (Q2_K, 0.7),
            (Q3_K, 0.7),
            (Q4_K, 0.7),
            (Q5_K, 0.8),
            (Q6_K, 0.9),
            (Q4_0, 0.7),
            (Q4_1, 0.7),
            (Q5_0, 0.7),
            (Q5_1, 0.8),
            (IQ4_NL, 0.8),
            (IQ4_XS, 0.8),
        ] {
            let ratio = error(dtype, Some(columns)) / error(dtype, None);
            println!("{dtype} {ratio:.3}");
            assert!(ratio < bound, "{dtype}: {ratio}");
        }
        let mut known = vec![0; Q4_K.bytes_of(weights.len()).unwrap()];
        quantize_rows(Q4_K, &weights, Some(&[0.0; 512]), &mut known);
        let mut out = vec![0.0; weights.len()];
        dequantize_row(Q4_K, &known, &mut out);
        let off = out.iter().zip(&weights).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        let size = weights.iter().map(|w| w * w).sum::<f32>();
        assert!(off < 0.01 * size, "columns that nothing is known of: {}", off / size);
    }
}
