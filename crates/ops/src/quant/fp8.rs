//! 8-bit floats with 4 bits of exponent and 3 of mantissa (E4M3 of arXiv 2209.05433, as in `float8_e4m3fn`): no
//! infinities, and NaN if both are all ones. [`crate::DType::is_fp8`] describes the layout of a block.

/// Offset of the floats in a block.
const FLOATS_AT: usize = 4;
/// The largest number.
const LARGEST: f32 = 448.0;

/// Number of a byte.
#[inline(always)]
pub fn e4m3(byte: u8) -> f32 {
    let magnitude = byte & 0x7f;
    if magnitude == 0x7f {
        return f32::NAN;
    }
    // Exponent and mantissa moved to their places in f32; the exponent biases differ by 120.
    let value = f32::from_bits(u32::from(magnitude) << 20) * f32::from_bits((120 + 127) << 23);
    if byte < 0x80 { value } else { -value }
}

/// Byte of the nearest number, the even one of two; the largest number for values out of range.
#[inline(always)]
pub fn to_e4m3(x: f32) -> u8 {
    let size = if x.abs() < LARGEST { x.abs() } else { LARGEST };
    // Subnormals are multiples of 2^-9; rounding up to the eighth of them gives the first normal number.
    let subnormal = (size * 512.0 + 8_388_608.0).to_bits() & 0xff;
    let bits = size.to_bits();
    let normal = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
    let code = if size < 0.015_625 { subnormal } else { normal };
    code as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Scale of a block.
#[inline]
pub fn fp8_scale(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// Assembles a block from its parts.
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

/// Chooses the scale so that the largest magnitude becomes the largest number; each weight takes the nearest number.
#[inline(always)]
pub(super) fn encode(weights: &[f32], block: &mut [u8]) {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let scale = largest / LARGEST;
    block[..FLOATS_AT].copy_from_slice(&scale.to_le_bytes());
    // With a scale of zero all would be the largest number.
    if scale == 0.0 {
        return block[FLOATS_AT..].fill(0);
    }
    for (byte, w) in block[FLOATS_AT..].iter_mut().zip(weights) {
        *byte = to_e4m3(w / scale);
    }
}
