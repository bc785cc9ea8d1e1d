//! The types with one scale for 32 weights: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
//!
//! A block is `d f16`, for the `_1` types `m f16`, for the 5-bit types a `u32` of fifth bits (bit i of weight i),
//! then codes. Four-bit codes lie as 16 bytes: the low nibble of byte i is weight i, the high nibble weight i + 16.

use super::search::{Lanes, Tries, affine_scales, known, lanes, nearest, symmetric_scales};
use super::{half_at, inverse, put_half};

/// `w = d * (q - 8)`.
pub(super) fn decode_q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * (f32::from(nibble(&block[2..], i)) - 8.0);
    }
}

/// `w = d * q + m`.
pub(super) fn decode_q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * f32::from(nibble(&block[4..], i)) + m;
    }
}

/// `w = d * (q - 16)`.
pub(super) fn decode_q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * (f32::from(nibble(&block[6..], i) | fifth_bit(&block[2..], i)) - 16.0);
    }
}

/// `w = d * q + m`.
pub(super) fn decode_q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * f32::from(nibble(&block[8..], i) | fifth_bit(&block[4..], i)) + m;
    }
}

/// `w = d * q`, q signed.
pub(super) fn decode_q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (w, &q) in out.iter_mut().zip(&block[2..]) {
        *w = d * f32::from(q as i8);
    }
}

/// Maps the number of largest magnitude to code 0, whatever its sign, so that the scale uses the full range.
#[inline(always)]
pub(super) fn encode_q4_0(weights: &[f32], block: &mut [u8]) {
    let d = extreme(weights) / -8.0;
    put_half(block, 0, d);
    let id = inverse(d);
    put_nibbles(&mut block[2..], |i| ((weights[i] * id + 8.5) as u8).min(15));
}

/// Divides the range from minimum to maximum into 15 steps.
#[inline(always)]
pub(super) fn encode_q4_1(weights: &[f32], block: &mut [u8]) {
    let (min, max) = range(weights);
    let d = (max - min) / 15.0;
    put_half(block, 0, d);
    put_half(block, 2, min);
    let id = inverse(d);
    put_nibbles(&mut block[4..], |i| (((weights[i] - min) * id + 0.5) as u8).min(15));
}

/// Same as Q4_0 with 32 codes.
#[inline(always)]
pub(super) fn encode_q5_0(weights: &[f32], block: &mut [u8]) {
    let d = extreme(weights) / -16.0;
    put_half(block, 0, d);
    let id = inverse(d);
    put_fives(&mut block[2..], |i| ((weights[i] * id + 16.5) as u8).min(31));
}

/// Same as Q4_1 with 31 steps.
#[inline(always)]
pub(super) fn encode_q5_1(weights: &[f32], block: &mut [u8]) {
    let (min, max) = range(weights);
    let d = (max - min) / 31.0;
    put_half(block, 0, d);
    put_half(block, 2, min);
    let id = inverse(d);
    put_fives(&mut block[4..], |i| (((weights[i] - min) * id + 0.5) as u8).min(31));
}

/// Encodes up to eight blocks of Q4_0 or Q5_0 (`levels` 8 or 16) with known column importance, searching for the
/// scale. `mean_square` is of the whole row.
#[inline(always)]
pub(super) fn encode_symmetric(
    weights: &[f32],
    columns: &[f32],
    mean_square: f32,
    blocks: &mut [u8],
    levels: f32,
) {
    let w: Lanes<8, 32> = lanes(weights);
    let scales = symmetric_scales(&w, &known(&w, &lanes(columns), Some([mean_square; 8])), levels);
    let block_bytes = if levels == 8.0 { 18 } else { 22 };
    for (i, (block, w)) in blocks.chunks_exact_mut(block_bytes).zip(weights.chunks_exact(32)).enumerate() {
        put_half(block, 0, scales[i]);
        let id = inverse(half_at(block, 0));
        let code = |i: usize| (nearest(w[i] * id).clamp(-levels, levels - 1.0) + levels) as u8;
        if levels == 8.0 {
            put_nibbles(&mut block[2..], code);
        } else {
            put_fives(&mut block[2..], code);
        }
    }
}

/// Same as [`encode_symmetric`] for Q4_1 or Q5_1 (`steps` 15 or 31).
#[inline(always)]
pub(super) fn encode_affine(
    weights: &[f32],
    columns: &[f32],
    mean_square: f32,
    blocks: &mut [u8],
    steps: f32,
) {
    let w: Lanes<8, 32> = lanes(weights);
    let importance = known(&w, &lanes(columns), Some([mean_square; 8]));
    let (scales, mins) = affine_scales(&w, &importance, steps, Tries { first: -0.9, width: 0.05, last: 36 });
    let block_bytes = if steps == 15.0 { 20 } else { 24 };
    for (i, (block, w)) in blocks.chunks_exact_mut(block_bytes).zip(weights.chunks_exact(32)).enumerate() {
        put_half(block, 0, scales[i]);
        put_half(block, 2, -mins[i]);
        let (id, min) = (inverse(half_at(block, 0)), half_at(block, 2));
        let code = |i: usize| nearest((w[i] - min) * id).clamp(0.0, steps) as u8;
        if steps == 15.0 {
            put_nibbles(&mut block[4..], code);
        } else {
            put_fives(&mut block[4..], code);
        }
    }
}

/// Maps the largest magnitude to ±127; halves round away from zero.
#[inline(always)]
pub(super) fn encode_q8_0(weights: &[f32], block: &mut [u8]) {
    let d = extreme(weights).abs() / 127.0;
    put_half(block, 0, d);
    let id = inverse(d);
    for (q, w) in block[2..].iter_mut().zip(weights) {
        *q = (w * id).round() as i8 as u8;
    }
}

/// Code of weight `i` of 32 in 16 bytes.
pub(super) fn nibble(codes: &[u8], i: usize) -> u8 {
    if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 }
}

/// Packs 32 four-bit codes into 16 bytes.
#[inline(always)]
pub(super) fn put_nibbles(codes: &mut [u8], code: impl Fn(usize) -> u8) {
    for (i, byte) in codes.iter_mut().enumerate() {
        *byte = (code(i) & 15) | (code(i + 16) << 4);
    }
}

/// Fifth bit of weight `i`, shifted to its place above the nibble.
fn fifth_bit(bits: &[u8], i: usize) -> u8 {
    (bits[i / 8] >> (i % 8) & 1) << 4
}

/// Packs 32 five-bit codes: 4 bytes of fifth bits, then 16 bytes of nibbles.
#[inline(always)]
fn put_fives(bytes: &mut [u8], code: impl Fn(usize) -> u8) {
    let (high, low) = bytes.split_at_mut(4);
    for (byte, bits) in high.iter_mut().enumerate() {
        *bits = (0..8).fold(0, |bits, bit| bits | (code(byte * 8 + bit) >> 4) << bit);
    }
    put_nibbles(low, code);
}

/// The number of largest magnitude, with its sign; the first of equals.
#[inline(always)]
pub(super) fn extreme(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |best: f32, &w| if w.abs() > best.abs() { w } else { best })
}

#[inline(always)]
fn range(weights: &[f32]) -> (f32, f32) {
    weights.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &w| (lo.min(w), hi.max(w)))
}
