//! Ternary types TQ1_0 and TQ2_0: 256 weights of -1, 0 or 1 times one f16 scale.
//!
//! TQ2_0 has `64 bytes of codes, d f16`, two bits a weight, in two halves of four planes of 32 bytes. TQ1_0 has `48
//! bytes of five digits, 4 bytes of four digits, d f16`. A byte is a fraction of 256 in base 3, so that the highest
//! digit is the whole part of 3 times the byte. Its planes are as long as the run of bytes they come from. There are
//! three runs: 32, 16 and 4 bytes.

use super::{half_at, inverse, put_half};

/// Runs of bytes of TQ1_0: (first byte, number of bytes, first weight, number of weights).
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 32, 0, 160), (32, 16, 160, 80), (48, 4, 240, 16)];

/// `w = d * (digit - 1)`.
#[inline]
pub(super) fn tq1_0(block: &[u8; 54], codes: &mut [i8; 256], scales: &mut [f32; 16]) {
    *scales = [half_at(block, 52); 16];
    let (first, rest) = codes.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    digits::<32>(&block[..32], first);
    digits::<16>(&block[32..48], second);
    digits::<4>(&block[48..52], third);
}

/// Decodes the planes of a run of N bytes, the highest digit's first.
#[inline]
fn digits<const N: usize>(bytes: &[u8], codes: &mut [i8]) {
    let mut fractions: [u8; N] = std::array::from_fn(|i| bytes[i]);
    for plane in codes.as_chunks_mut::<N>().0 {
        for (code, fraction) in plane.iter_mut().zip(&mut fractions) {
            // Three times the fraction reaches 256 from 86 on, and 512 from 171 on.
            *code = i8::from(*fraction >= 86) + i8::from(*fraction >= 171) - 1;
            *fraction = fraction.wrapping_mul(3);
        }
    }
}

/// `w = d * (q - 1)`, q up to 3, though encoders stop at 2.
#[inline]
pub(super) fn tq2_0(block: &[u8; 66], codes: &mut [i8; 256], scales: &mut [f32; 16]) {
    *scales = [half_at(block, 64); 16];
    for (half, bytes) in codes.as_chunks_mut::<128>().0.iter_mut().zip(block.as_chunks::<32>().0) {
        for (plane, codes) in half.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = (byte >> (2 * plane) & 3) as i8 - 1;
            }
        }
    }
}

/// The scale is the largest magnitude. Other weights round to ± that or to zero, halves away from zero.
pub(super) fn encode_tq1_0(weights: &[f32], block: &mut [u8]) {
    let digit = rounding(weights, block, 52);
    for (at, bytes, first, count) in RUNS {
        for i in 0..bytes {
            let planes = count / bytes;
            let number = (0..planes).fold(0, |n, plane| 3 * n + digit(weights[first + plane * bytes + i]));
            // Four digits are followed by a fifth, zero. The fraction of 256 is rounded up, so that the decoded digits
            // equal the encoded ones.
            let number = if planes == 4 { 3 * number } else { number };
            block[at + i] = (number * 256).div_ceil(243) as u8;
        }
    }
}

/// Same as TQ1_0.
pub(super) fn encode_tq2_0(weights: &[f32], block: &mut [u8]) {
    let digit = rounding(weights, block, 64);
    for (i, byte) in block[..64].iter_mut().enumerate() {
        let first = i / 32 * 128 + i % 32;
        *byte =
            (0..4).fold(0, |byte, plane| byte | (digit(weights[first + 32 * plane]) as u8) << (2 * plane));
    }
}

/// Stores a block's scale and returns the rounding to digits 0, 1 and 2.
fn rounding(weights: &[f32], block: &mut [u8], scale_at: usize) -> impl Fn(f32) -> u16 + use<> {
    let d = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    put_half(block, scale_at, d);
    let id = inverse(d);
    move |w| ((w * id).round().clamp(-1.0, 1.0) + 1.0) as u16
}
