//! K-quants: 256 weights a block, in groups of 16 or 32 whose scales are themselves quantised against one f16 scale.
//!
//! If codes of 2 or 4 bits share bytes, the planes of a byte are weights 32 apart, so that a vector of 32 bytes gives
//! 32 consecutive weights with one shift and mask.

use super::block32::extreme;
use super::search::{
    Lanes, Tries, affine_scales, descended_scales, known, lanes, magnitudes, nearest, positive_scale,
    squares, sums, symmetric_scales,
};
use super::{half_at, inverse, put_half};

/// Scale and minimum of group `j` of 8 in the 12 bytes of Q4_K and Q5_K, 6 bits each: groups 0–3 in the low 6
/// bits of bytes 0–3 and 4–7; groups 4–7 in the nibbles of bytes 8–11 and the two bits left in the others.
#[inline]
pub fn scale_min(scales: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let low = scales[j + 4];
        ((low & 15) | (scales[j - 4] >> 6) << 4, (low >> 4) | (scales[j] >> 6) << 4)
    }
}

/// The 16 scales in the 12 bytes of Q3_K, from -32 to 31: low nibbles in bytes 0–7, two high bits in bytes 8–11.
#[inline]
pub fn scales_q3(scales: &[u8]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = scales[j % 8] >> (4 * (j / 8)) & 15;
        let high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// `16 bytes of scale | min nibbles, 64 bytes of codes, d f16, dmin f16`, groups of 16;
/// `w = d * scale * q - dmin * min`.
pub(super) fn decode_q2(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (group, weights) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(block[group] & 15);
        let min = dmin * f32::from(block[group] >> 4);
        for (i, w) in weights.iter_mut().enumerate() {
            *w = scale * f32::from(two_bits(&block[16..], group * 16 + i)) - min;
        }
    }
}

/// `32 bytes of third bits, 64 bytes of codes, 12 bytes of scales, d f16`, groups of 16;
/// `w = d * scale * q`, q from -4 to 3.
pub(super) fn decode_q3(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 108);
    let scales = scales_q3(&block[96..108]);
    for (i, w) in out.iter_mut().enumerate() {
        let high = block[i % 32] >> (i / 32) & 1;
        let q = (two_bits(&block[32..], i) | high << 2) as i8 - 4;
        *w = d * f32::from(scales[i / 16]) * f32::from(q);
    }
}

/// `d f16, dmin f16, 12 bytes of scales, 128 bytes of codes`, groups of 32; `w = d * scale * q - dmin * min`.
pub(super) fn decode_q4(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (group, weights) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&block[4..16], group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, w) in weights.iter_mut().enumerate() {
            *w = scale * f32::from(four_bits(&block[16..], group, i)) - min;
        }
    }
}

/// Same as Q4_K with `32 bytes of fifth bits` before the codes.
pub(super) fn decode_q5(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (group, weights) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&block[4..16], group);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (i, w) in weights.iter_mut().enumerate() {
            let high = (block[16 + i] >> group & 1) << 4;
            *w = scale * f32::from(four_bits(&block[48..], group, i) | high) - min;
        }
    }
}

/// `128 bytes of low nibbles, 64 bytes of high 2 bits, 16 scales i8, d f16`, groups of 16;
/// `w = d * scale * q`, q from -32 to 31.
pub(super) fn decode_q6(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (i, w) in out.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + i / 16] as i8);
        let low = block[i / 128 * 64 + i % 64] >> (4 * (i / 64 % 2)) & 15;
        let q = (low | two_bits(&block[128..192], i) << 4) as i8 - 32;
        *w = scale * f32::from(q);
    }
}

/// Mean of the squares of a block's weights, times `factor`, for each of its groups.
#[inline(always)]
fn spread<const L: usize>(weights: &[f32], factor: f32) -> Option<[f32; L]> {
    let mut sum = 0.0f32;
    for w in weights {
        sum += w * w;
    }
    Some([factor * sum / weights.len() as f32; L])
}

/// Scales and minima of a block of a type with minima, and their common factors.
struct FittedScales<const L: usize> {
    scales: [f32; L],
    mins: [f32; L],
    d: f32,
    dmin: f32,
}

/// Searches for each group's scale and minimum, and for the factors that these are quantised against in steps up to
/// `largest`: the largest of them, or the factors with the least error if column importance is known.
#[inline(always)]
fn fit_affine<const L: usize, const N: usize>(
    weights: &[f32],
    columns: Option<&[f32]>,
    steps: f32,
    tries: Tries,
    largest: f32,
    factor: f32,
) -> FittedScales<L> {
    let w: Lanes<L, N> = lanes(weights);
    match columns {
        None => {
            let (scales, mins) = affine_scales(&w, &magnitudes(&w), steps, tries);
            let (mut d, mut dmin) = (0.0f32, 0.0f32);
            for l in 0..L {
                (d, dmin) = (d.max(scales[l]), dmin.max(mins[l]));
            }
            FittedScales { scales, mins, d: d / largest, dmin: dmin / largest }
        }
        Some(columns) => {
            let importance = known(&w, &lanes(columns), spread(weights, factor));
            let finer = Tries { first: -0.9, width: 0.05, last: 36 };
            let (scales, mins) = affine_scales(&w, &importance, steps, finer);
            let of = sums(&importance);
            let d = positive_scale(scales, of, largest);
            FittedScales { scales, mins, d, dmin: positive_scale(mins, of, largest) }
        }
    }
}

/// Codes of a group.
#[inline(always)]
fn affine_codes(weights: &[f32], id: f32, min: f32, steps: f32, codes: &mut [u8]) {
    for (code, w) in codes.iter_mut().zip(weights) {
        *code = nearest((w + min) * id).clamp(0.0, steps) as u8;
    }
}

/// Searches for each group's scale and minimum, quantises those to 4 bits, and rounds the weights again with the
/// quantised scales.
#[inline(always)]
pub(super) fn encode_q2(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let tries = Tries { first: -0.5, width: 0.1, last: 15 };
    let fit = fit_affine::<16, 16>(weights, columns, 3.0, tries, 15.0, 1.0);
    put_half(block, 80, fit.d);
    put_half(block, 82, fit.dmin);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    let (to_scale, to_min) = (inverse(fit.d), inverse(fit.dmin));
    let mut codes = [0; 256];
    for (group, levels) in block[..16].iter_mut().enumerate() {
        let scale = nearest(to_scale * fit.scales[group]).clamp(0.0, 15.0) as u8;
        let min = nearest(to_min * fit.mins[group]).clamp(0.0, 15.0) as u8;
        *levels = scale | min << 4;
        let id = inverse(d * f32::from(scale));
        let at = group * 16..group * 16 + 16;
        affine_codes(&weights[at.clone()], id, dmin * f32::from(min), 3.0, &mut codes[at]);
    }
    put_two_bits(&mut block[16..80], &codes);
}

/// Searches for each group's scale, quantises the scales to 6 bits, and rounds the weights again with the quantised
/// scales.
#[inline(always)]
pub(super) fn encode_q3(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let w: Lanes<16, 16> = lanes(weights);
    let (scales, largest) = match columns {
        None => {
            let scales = descended_scales(&w, 4.0);
            (scales, extreme(&scales))
        }
        Some(columns) => {
            let importance = known(&w, &lanes(columns), spread(weights, 2.0));
            let scales = symmetric_scales(&w, &importance, 4.0);
            let fitted =
                symmetric_scales(&lanes::<1, 16>(&scales), &lanes::<1, 16>(&sums(&importance)), 32.0);
            (scales, -32.0 * fitted[0])
        }
    };
    put_half(block, 108, largest / -32.0);
    let (d, to_code) = (half_at(block, 108), -32.0 * inverse(largest));
    block[..32].fill(0);
    block[96..108].fill(0);
    let mut codes = [0; 256];
    for (group, weights) in weights.chunks_exact(16).enumerate() {
        let scale = nearest(to_code * scales[group]).clamp(-32.0, 31.0);
        let code = (scale + 32.0) as u8;
        block[96 + group % 8] |= (code & 15) << (4 * (group / 8));
        block[104 + group % 4] |= (code >> 4) << (2 * (group / 4));
        let id = inverse(d * scale);
        for (j, w) in weights.iter().enumerate() {
            codes[group * 16 + j] = (nearest(w * id).clamp(-4.0, 3.0) + 4.0) as u8;
        }
    }
    for (plane, codes) in codes.chunks_exact(32).enumerate() {
        for (byte, code) in block[..32].iter_mut().zip(codes) {
            *byte |= (code >> 2) << plane;
        }
    }
    put_two_bits(&mut block[32..96], &codes);
}

/// Searches for each group's scale and minimum, quantises those to 6 bits, and rounds the weights again with the
/// quantised scales.
#[inline(always)]
pub(super) fn encode_q4(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let tries = Tries { first: -1.0, width: 0.1, last: 20 };
    let codes = encode_affine(weights, columns, &mut block[..16], 15.0, tries);
    put_four_bits(&mut block[16..], &codes);
}

/// Same as Q4_K with 31 steps.
#[inline(always)]
pub(super) fn encode_q5(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    let tries = Tries { first: -0.5, width: 0.1, last: 15 };
    let codes = encode_affine(weights, columns, &mut block[..16], 31.0, tries);
    block[16..48].fill(0);
    for (group, codes) in codes.chunks_exact(32).enumerate() {
        for (byte, code) in block[16..48].iter_mut().zip(codes) {
            *byte |= (code >> 4) << group;
        }
    }
    put_four_bits(&mut block[48..], &codes);
}

/// Searches for each group's scale, quantises the scales to 8 bits, and rounds the weights again with the quantised
/// scales.
#[inline(always)]
pub(super) fn encode_q6(weights: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    block.fill(0);
    let w: Lanes<16, 16> = lanes(weights);
    let importance = match columns {
        None => squares(&w),
        Some(columns) => known(&w, &lanes(columns), None),
    };
    let scales = symmetric_scales(&w, &importance, 32.0);
    let largest = extreme(&scales);
    if largest.abs() < super::search::EPSILON {
        return;
    }
    let to_code = -128.0 / largest;
    put_half(block, 208, 1.0 / to_code);
    let d = half_at(block, 208);
    let mut codes = [0u8; 256];
    for (group, weights) in weights.chunks_exact(16).enumerate() {
        let scale = nearest(to_code * scales[group]).clamp(-128.0, 127.0) as i8;
        block[192 + group] = scale as u8;
        let id = inverse(d * f32::from(scale));
        for (code, w) in codes[group * 16..].iter_mut().zip(weights) {
            *code = (nearest(w * id).clamp(-32.0, 31.0) + 32.0) as u8;
        }
    }
    for (half, codes) in codes.chunks_exact(128).enumerate() {
        for i in 0..64 {
            block[half * 64 + i] = (codes[i] & 15) | (codes[64 + i] & 15) << 4;
        }
        for i in 0..32 {
            let high = |plane: usize| (codes[32 * plane + i] >> 4) << (2 * plane);
            block[128 + half * 32 + i] = high(0) | high(1) | high(2) | high(3);
        }
    }
}

/// Header and codes of Q4_K and Q5_K: `header` is `d f16, dmin f16, 12 bytes of scales`.
#[inline(always)]
fn encode_affine(
    weights: &[f32],
    columns: Option<&[f32]>,
    header: &mut [u8],
    steps: f32,
    tries: Tries,
) -> [u8; 256] {
    let fit = fit_affine::<8, 32>(weights, columns, steps, tries, 63.0, 2.0);
    put_half(header, 0, fit.d);
    put_half(header, 2, fit.dmin);
    let (d, dmin) = (half_at(header, 0), half_at(header, 2));
    let (to_scale, to_min) = (inverse(fit.d), inverse(fit.dmin));
    header[4..16].fill(0);
    let mut codes = [0; 256];
    for group in 0..8 {
        let scale = nearest(to_scale * fit.scales[group]).clamp(0.0, 63.0) as u8;
        let min = nearest(to_min * fit.mins[group]).clamp(0.0, 63.0) as u8;
        put_scale_min(&mut header[4..16], group, scale, min);
        let id = inverse(d * f32::from(scale));
        let at = group * 32..group * 32 + 32;
        affine_codes(&weights[at.clone()], id, dmin * f32::from(min), steps, &mut codes[at]);
    }
    codes
}

/// The inverse of [`scale_min`] on zeroed bytes.
fn put_scale_min(scales: &mut [u8], j: usize, scale: u8, min: u8) {
    if j < 4 {
        scales[j] |= scale;
        scales[j + 4] |= min;
    } else {
        scales[j + 4] = (scale & 15) | (min & 15) << 4;
        scales[j - 4] |= (scale >> 4) << 6;
        scales[j] |= (min >> 4) << 6;
    }
}

/// Two-bit code of weight `i`: each half of the block has 32 bytes of four planes.
fn two_bits(codes: &[u8], i: usize) -> u8 {
    codes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// Inverse of [`two_bits`], for the codes' low bits.
#[inline(always)]
fn put_two_bits(bytes: &mut [u8], codes: &[u8; 256]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        let first = i / 32 * 128 + i % 32;
        *byte = (0..4).fold(0, |byte, plane| byte | (codes[first + 32 * plane] & 3) << (2 * plane));
    }
}

/// Four-bit code of weight `i` of a group of 32: two groups share 32 bytes.
fn four_bits(codes: &[u8], group: usize, i: usize) -> u8 {
    codes[group / 2 * 32 + i] >> (4 * (group % 2)) & 15
}

#[inline(always)]
fn put_four_bits(bytes: &mut [u8], codes: &[u8; 256]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        let first = i / 32 * 64 + i % 32;
        *byte = (codes[first] & 15) | (codes[first + 32] & 15) << 4;
    }
}
