//! Types of 1 and 2 bits with one f16 scale: Q1_0, 128 signs, and Q2_0, 64 codes that count from -1.
//!
//! A block is `d f16`, then codes, with the codes of the first weights in the lowest bits of the first byte.

use super::affine::put_affine_block;
use super::{half_at, inverse, put_half};
use crate::DType;

/// `w = d` or `-d`.
pub(super) fn decode_q1_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, w) in out.iter_mut().enumerate() {
        *w = if block[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
    }
}

/// `w = d * (q - 1)`.
pub(super) fn decode_q2_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, w) in out.iter_mut().enumerate() {
        *w = d * (f32::from(block[2 + i / 4] >> (2 * (i % 4)) & 3) - 1.0);
    }
}

/// The scale is the mean magnitude.
pub(super) fn encode_q1_0(weights: &[f32], block: &mut [u8]) {
    let total: f32 = weights.iter().map(|w| w.abs()).sum();
    put_half(block, 0, total / weights.len() as f32);
    for (byte, weights) in block[2..].iter_mut().zip(weights.chunks_exact(8)) {
        *byte = weights.iter().rev().fold(0, |byte, &w| byte << 1 | u8::from(w >= 0.0));
    }
}

/// The scale is the largest magnitude. Other weights round to ± that or to zero, halves away from zero.
pub(super) fn encode_q2_0(weights: &[f32], block: &mut [u8]) {
    let d = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    put_half(block, 0, d);
    let id = inverse(d);
    for (byte, weights) in block[2..].iter_mut().zip(weights.chunks_exact(4)) {
        let code = |w: f32| ((w * id).round() + 1.0).clamp(0.0, 3.0) as u8;
        *byte = weights.iter().rev().fold(0, |byte, &w| byte << 2 | code(w));
    }
}

/// Affine type with the same numbers as Q1_0 or Q2_0, and blocks converted to it; `None` for any other type.
pub fn affine_of(dtype: DType, blocks: &[u8]) -> Option<(DType, Vec<u8>)> {
    let (affine, bits) = match dtype {
        DType::Q1_0 => (DType::AFQ2_G128, 1),
        DType::Q2_0 => (DType::AFQ2_G64, 2),
        _ => return None,
    };
    let mut made = vec![0; blocks.len() / dtype.block_bytes() * affine.block_bytes()];
    let of_both = blocks.chunks_exact(dtype.block_bytes()).zip(made.chunks_exact_mut(affine.block_bytes()));
    for (block, made) in of_both {
        let mut codes = [0; 128];
        let codes = &mut codes[..affine.block_weights()];
        for (i, code) in codes.iter_mut().enumerate() {
            *code = block[2 + i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
        }
        let d = half_at(block, 0);
        put_affine_block(2, if bits == 1 { 2.0 * d } else { d }, -d, codes, made);
    }
    Some((affine, made))
}
