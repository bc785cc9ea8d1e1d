//! The K-quants: 256 weights a block, in groups of 16 or 32 whose scales are themselves quantised against one
//! half-precision scale.
//!
//! Where codes of 2 or 4 bits share bytes, the planes of a byte are weights 32 apart, so that a vector of 32 bytes
//! gives 32 consecutive weights with one shift and mask.

use super::block32::extreme;
use super::search::{affine_scale, symmetric_scale};
use super::{half_at, inverse, put_half};

/// Scale and minimum of group `j` of 8 in the 12 bytes of Q4_K and Q5_K, 6 bits each: groups 0–3 in the low 6
/// bits of bytes 0–3 and 4–7; groups 4–7 in the nibbles of bytes 8–11 and the two bits left in the others.
pub fn scale_min(scales: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let low = scales[j + 4];
        ((low & 15) | (scales[j - 4] >> 6) << 4, (low >> 4) | (scales[j] >> 6) << 4)
    }
}

/// The 16 scales in the 12 bytes of Q3_K, from -32 to 31: low nibbles in bytes 0–7, two high bits in bytes 8–11.
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

/// As Q4_K with `32 bytes of fifth bits` before the codes.
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

/// Searches each group's scale and minimum, quantises those to 4 bits against the largest, and rounds the weights
/// again with what is left of them.
pub(super) fn encode_q2(weights: &[f32], block: &mut [u8]) {
    let mut fits = [(0.0f32, 0.0f32); 16];
    for (fit, group) in fits.iter_mut().zip(weights.chunks_exact(16)) {
        *fit = affine_scale(group, 3, -0.5, 15);
    }
    let scale_max = fits.iter().fold(0.0f32, |m, f| m.max(f.0));
    let min_max = fits.iter().fold(0.0f32, |m, f| m.max(f.1));
    put_half(block, 80, scale_max / 15.0);
    put_half(block, 82, min_max / 15.0);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    let nibble =
        |value: f32, largest: f32| (15.0 * inverse(largest) * value).round_ties_even().min(15.0) as u8;
    let mut codes = [0; 256];
    for (group, (scale, min)) in fits.into_iter().enumerate() {
        let (scale, min) = (nibble(scale, scale_max), nibble(min, min_max));
        block[group] = scale | min << 4;
        let id = inverse(d * f32::from(scale));
        let min = dmin * f32::from(min);
        for i in group * 16..group * 16 + 16 {
            codes[i] = ((weights[i] + min) * id).round_ties_even().clamp(0.0, 3.0) as u8;
        }
    }
    put_two_bits(&mut block[16..80], &codes);
}

/// Searches each group's scale, quantises those to 6 bits, and rounds the weights again with what is left of them.
pub(super) fn encode_q3(weights: &[f32], block: &mut [u8]) {
    let mut scales = [0.0f32; 16];
    for (scale, group) in scales.iter_mut().zip(weights.chunks_exact(16)) {
        *scale = symmetric_scale(group, 4);
    }
    let largest = extreme(&scales);
    put_half(block, 108, largest / -32.0);
    let (d, to_code) = (half_at(block, 108), -32.0 * inverse(largest));
    block[..32].fill(0);
    block[96..108].fill(0);
    let mut codes = [0; 256];
    for (group, weights) in weights.chunks_exact(16).enumerate() {
        let scale = (to_code * scales[group]).round_ties_even().clamp(-32.0, 31.0);
        let code = (scale + 32.0) as u8;
        block[96 + group % 8] |= (code & 15) << (4 * (group / 8));
        block[104 + group % 4] |= (code >> 4) << (2 * (group / 4));
        let id = inverse(d * scale);
        for (j, w) in weights.iter().enumerate() {
            let i = group * 16 + j;
            codes[i] = ((w * id).round_ties_even().clamp(-4.0, 3.0) + 4.0) as u8;
            block[i % 32] |= (codes[i] >> 2) << (i / 32);
        }
    }
    put_two_bits(&mut block[32..96], &codes);
}

/// Searches each group's scale and minimum, quantises those against the largest, and rounds the weights again
/// with what is left of them.
pub(super) fn encode_q4(weights: &[f32], block: &mut [u8]) {
    let codes = encode_affine(weights, &mut block[..16], 15, -1.0, 20);
    put_four_bits(&mut block[16..], &codes);
}

/// As Q4_K with 31 steps.
pub(super) fn encode_q5(weights: &[f32], block: &mut [u8]) {
    let codes = encode_affine(weights, &mut block[..16], 31, -0.5, 15);
    block[16..48].fill(0);
    for (i, code) in codes.iter().enumerate() {
        block[16 + i % 32] |= (code >> 4) << (i / 32);
    }
    put_four_bits(&mut block[48..], &codes);
}

/// Searches each group's scale, quantises those to 8 bits, and rounds the weights again with what is left of them.
pub(super) fn encode_q6(weights: &[f32], block: &mut [u8]) {
    block.fill(0);
    let mut scales = [0.0f32; 16];
    for (scale, group) in scales.iter_mut().zip(weights.chunks_exact(16)) {
        *scale = symmetric_scale(group, 32);
    }
    let largest = extreme(&scales);
    if largest.abs() < super::search::EPSILON {
        return;
    }
    let to_code = -128.0 / largest;
    put_half(block, 208, 1.0 / to_code);
    let d = half_at(block, 208);
    for (group, weights) in weights.chunks_exact(16).enumerate() {
        let scale = (to_code * scales[group]).round_ties_even().clamp(-128.0, 127.0) as i8;
        block[192 + group] = scale as u8;
        let id = inverse(d * f32::from(scale));
        for (j, w) in weights.iter().enumerate() {
            let i = group * 16 + j;
            let code = ((w * id).round_ties_even().clamp(-32.0, 31.0) + 32.0) as u8;
            block[i / 128 * 64 + i % 64] |= (code & 15) << (4 * (i / 64 % 2));
            block[128 + i / 128 * 32 + i % 32] |= (code >> 4) << (2 * (i / 32 % 4));
        }
    }
}

/// Header and codes of Q4_K and Q5_K: `header` is `d f16, dmin f16, 12 bytes of scales`.
fn encode_affine(weights: &[f32], header: &mut [u8], steps: u8, first: f32, tries: u32) -> [u8; 256] {
    let mut fits = [(0.0f32, 0.0f32); 8];
    for (fit, group) in fits.iter_mut().zip(weights.chunks_exact(32)) {
        *fit = affine_scale(group, steps, first, tries);
    }
    let scale_max = fits.iter().fold(0.0f32, |m, f| m.max(f.0));
    let min_max = fits.iter().fold(0.0f32, |m, f| m.max(f.1));
    put_half(header, 0, scale_max / 63.0);
    put_half(header, 2, min_max / 63.0);
    let (d, dmin) = (half_at(header, 0), half_at(header, 2));
    let six_bits =
        |value: f32, largest: f32| (63.0 * inverse(largest) * value).round_ties_even().min(63.0) as u8;
    header[4..16].fill(0);
    let mut codes = [0; 256];
    for (group, (scale, min)) in fits.into_iter().enumerate() {
        let (scale, min) = (six_bits(scale, scale_max), six_bits(min, min_max));
        put_scale_min(&mut header[4..16], group, scale, min);
        let id = inverse(d * f32::from(scale));
        let min = dmin * f32::from(min);
        for i in group * 32..group * 32 + 32 {
            codes[i] = ((weights[i] + min) * id).round_ties_even().clamp(0.0, f32::from(steps)) as u8;
        }
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

/// The inverse of [`two_bits`], of the codes' low bits.
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

fn put_four_bits(bytes: &mut [u8], codes: &[u8; 256]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        let first = i / 32 * 64 + i % 32;
        *byte = (codes[first] & 15) | (codes[first + 32] & 15) << 4;
    }
}
