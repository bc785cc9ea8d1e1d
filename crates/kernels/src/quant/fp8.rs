//! 8-bit floats with 4 bits of exponent and 3 of mantissa (E4M3 of arXiv 2209.05433, as `float8_e4m3fn` has it): no infinities,
//! and NaN where both are all ones. [`crate::DType::is_fp8`] says how a block lies in memory.

/// Where the floats of a block begin.
const FLOATS_AT: usize = 4;
/// The largest number.
const LARGEST: f32 = 448.0;

/// The number of a byte.
#[inline(always)]
pub fn e4m3(byte: u8) -> f32 {
    let magnitude = byte & 0x7f;
    if magnitude == 0x7f {
        return f32::NAN;
    }
    // Exponent and mantissa in the places that f32 has for them; what the exponents count from differs by 120.
    let value = f32::from_bits(u32::from(magnitude) << 20) * f32::from_bits((120 + 127) << 23);
    if byte < 0x80 { value } else { -value }
}

/// The nearest number's byte, the even one of two; of what is out of range the largest.
#[inline(always)]
pub fn to_e4m3(x: f32) -> u8 {
    let size = if x.abs() < LARGEST { x.abs() } else { LARGEST };
    // Subnormals are multiples of 2^-9, and what is rounded up to the eighth of them is the first normal number.
    let subnormal = (size * 512.0 + 8_388_608.0).to_bits() & 0xff;
    let bits = size.to_bits();
    let normal = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
    let code = if size < 0.015_625 { subnormal } else { normal };
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// A block's scale.
pub fn fp8_scale(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// A block of its parts.
pub fn put_fp8_block(scale: f32, floats: &[u8], block: &mut [u8]) {
    block[..FLOATS_AT].copy_from_slice(&scale.to_le_bytes());
    block[FLOATS_AT..].copy_from_slice(floats);
}

pub(super) fn decode(block: &[u8], out: &mut [f32]) {
    let scale = fp8_scale(block);
    for (w, &byte) in out.iter_mut().zip(&block[FLOATS_AT..]) {
        *w = scale * e4m3(byte);
    }
}

/// The scale makes the largest magnitude the largest number; each weight takes the nearest.
#[inline(always)]
pub(super) fn encode(weights: &[f32], block: &mut [u8]) {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let scale = largest / LARGEST;
    block[..FLOATS_AT].copy_from_slice(&scale.to_le_bytes());
    // Of a scale of nothing all would be the largest.
    if scale == 0.0 {
        return block[FLOATS_AT..].fill(0);
    }
    for (byte, w) in block[FLOATS_AT..].iter_mut().zip(weights) {
        *byte = to_e4m3(w / scale);
    }
}
