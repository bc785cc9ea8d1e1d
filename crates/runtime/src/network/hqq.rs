//! HQQ's quantiser (github.com/mobiusml/hqq, `optimize_weights_proximal`): a group's codes are spread evenly from its least weight to its
//! largest, and the code that stands for zero is moved until what they miss is least. Groups lie along the rows, so codes and factors
//! are those of the affine types ([`DType::affine`]), and their kernels compute with them.

use hanzo_engine_ops::{DType, quant};

/// The norm of what is missed, below one: few weights may be missed by much.
const NORM: f32 = 0.7;
/// How much of what is missed by much counts as if it were not there.
const BETA: f32 = 10.0;
const ROUNDS: usize = 20;
/// Added and taken away, it rounds what is below 2^22 to the nearest whole number, the even one of two.
const WHOLE: f32 = 12_582_912.0;
/// Sums in so many parts, which the processor adds side by side.
const PARTS: usize = 8;

/// Whole blocks of an affine type.
pub(super) fn quantize(dtype: DType, weights: &[f32], out: &mut [u8]) {
    let (bits, group) = dtype.affine().expect("HQQ is asked for with affine types alone");
    let mut codes = [0; 128];
    for (weights, out) in weights.chunks_exact(group).zip(out.chunks_exact_mut(dtype.block_bytes())) {
        let codes = &mut codes[..group];
        let (scale, bias) = quantize_group(((1u32 << bits) - 1) as f32, weights, codes);
        quant::put_affine_block(bits, scale, bias, codes, out);
    }
}

/// The codes of a group, from 0 to `top`, and the scale and bias that make them weights.
fn quantize_group(top: f32, weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (min, max) =
        weights.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), w| (min.min(*w), max.max(*w)));
    let scale = top / (max - min);
    if !(scale.is_finite() && (1.0 / scale).is_finite()) {
        codes.fill(0);
        return (1.0, min);
    }
    let mut zero = -min * scale;
    let mut best = (f32::INFINITY, zero);
    // Where the last round moves it is looked at too.
    for _ in 0..=ROUNDS {
        let (mut missed, mut zeros) = ([0.0; PARTS], [0.0; PARTS]);
        let mut much = false;
        for weights in weights.chunks_exact(PARTS) {
            for (part, w) in weights.iter().enumerate() {
                let exact = w * scale;
                let code = code(exact + zero, top);
                let miss = w - (code - zero) / scale;
                missed[part] += miss.abs();
                zeros[part] += code - exact;
                much |= is_much(miss, BETA);
            }
        }
        let missed: f32 = missed.iter().sum();
        // It may have to become worse before it becomes better.
        if missed < best.0 {
            best = (missed, zero);
        }
        let mut sum: f32 = zeros.iter().sum();
        if much {
            let kept = |w: &f32| shrunk(w - (code(w * scale + zero, top) - zero) / scale, BETA) * scale;
            sum += weights.iter().map(kept).sum::<f32>();
        }
        let next = sum / weights.len() as f32;
        if next == zero {
            break;
        }
        zero = next;
    }
    let zero = best.1;
    for (to, w) in codes.iter_mut().zip(weights) {
        *to = code(w * scale + zero, top) as u8;
    }
    (1.0 / scale, -zero / scale)
}

fn code(exact: f32, top: f32) -> f32 {
    exact.max(0.0).min(top) + WHOLE - WHOLE
}

/// Whether [`shrunk`] may leave anything of it, as it does where `beta * miss^(2 - NORM)` is above one. Of errors of codes it seldom does.
fn is_much(miss: f32, beta: f32) -> bool {
    beta * miss.abs().max(miss * miss) > 1.0
}

/// What is missed by so much that it counts as if the weight were less extreme.
fn shrunk(miss: f32, beta: f32) -> f32 {
    let size = miss.abs();
    if size == 0.0 {
        return 0.0;
    }
    (size - size.powf(NORM - 1.0) / beta).max(0.0).copysign(miss)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 8;
    const COLS: usize = 256;

    fn missed(dtype: DType, weights: &[f32], quantize: impl Fn(&[f32], &mut [u8])) -> f32 {
        let mut bytes = vec![0; dtype.bytes_of(weights.len()).unwrap()];
        quantize(weights, &mut bytes);
        let mut made = vec![0.0; weights.len()];
        quant::dequantize_row(dtype, &bytes, &mut made);
        let missed = weights.iter().zip(&made).map(|(w, made)| f64::from((w - made).abs()));
        (missed.sum::<f64>() / weights.len() as f64) as f32
    }

    /// Weights as golden/make_hqq.py draws them, and what HQQ's own library misses of them.
    #[test]
    fn codes_miss_no_more_than_hqq_s_own() {
        let mut file: &[u8] = include_bytes!("golden/hqq.bin");
        let mut words = |count: usize| -> Vec<[u8; 4]> {
            let (some, rest) = file.split_at(4 * count);
            file = rest;
            some.as_chunks().0.to_vec()
        };
        for kind in ["normal", "outliers", "large", "all above zero"] {
            let weights: Vec<f32> = words(ROWS * COLS).into_iter().map(f32::from_le_bytes).collect();
            for _ in 0..4 {
                let [bits, group, theirs] = words(3).try_into().unwrap();
                let (bits, group) = (u32::from_le_bytes(bits), u32::from_le_bytes(group) as usize);
                let (dtype, theirs) = (DType::of_affine(bits, group).unwrap(), f32::from_le_bytes(theirs));
                let ours = missed(dtype, &weights, |weights, out| quantize(dtype, weights, out));
                let plain = missed(dtype, &weights, |weights, out| quant::quantize_row(dtype, weights, out));
                // It stops all groups where their error together is least, this each where its own is.
                assert!(ours <= theirs && ours > 0.9 * theirs, "{kind}, {dtype}: {ours}, theirs {theirs}");
                // Of few codes it is worth one that zero is among them, as MLX has it.
                assert!(ours < plain || bits == 2, "{kind}, {dtype}: {ours}, by MLX's rule {plain}");
            }
        }
        assert!(file.is_empty());
    }

    #[test]
    fn groups_of_one_number_are_that_number() {
        for number in [0.0, -3.5e-30, 1e30, f32::MIN_POSITIVE] {
            let dtype = DType::AFQ4_G32;
            assert_eq!(missed(dtype, &[number; 64], |weights, out| quantize(dtype, weights, out)), 0.0);
        }
    }

    #[test]
    fn what_is_missed_by_little_counts_in_full() {
        for (miss, beta) in [(0.1, BETA), (-0.16, BETA), (0.001, 100.0), (0.0, BETA)] {
            assert_eq!(shrunk(miss, beta), 0.0, "{miss} {beta}");
        }
        // 2 - 2^-0.3 / 10.
        assert!((shrunk(-2.0, BETA) + 1.918_775).abs() < 1e-5);
        for miss in [0.18f32, 0.5, 1.0, 3.0, 100.0] {
            assert!(is_much(miss, BETA) && shrunk(miss, BETA) > 0.0, "{miss}");
        }
    }
}
