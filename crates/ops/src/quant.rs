//! GGML's block formats, decoded and encoded one row at a time, naively and exactly. This defines the meaning of a
//! file's bytes; the layouts of fast kernels are made from it or checked against it. The formats are those of
//! github.com/ggml-org/ggml (`ggml-common.h`); [`DType`] gives each one's block size.
//!
//! Additional block formats are the affine ones ([`DType::affine`]), by MLX's formulas, and those of 8-bit floats
//! ([`DType::is_fp8`]).
//!
//! Not supported are the integers and GGML's types for activations ([`can_dequantize`] tells which types are), and
//! encoders for the codebook types of 1 to 3 bits, which are useless without an importance matrix.

mod affine;
#[cfg(test)]
mod affine_tests;
mod block32;
mod codebook;
mod encode;
mod fp8;
#[cfg(test)]
mod fp8_tests;
mod grids;
mod iq;
mod kquant;
mod search;
mod signs;
mod ternary;
#[cfg(test)]
mod tests;
#[allow(unsafe_code)] // calls of functions for instructions that were detected
mod vectors;

use half::f16;

pub use affine::{affine_codes, put_affine_block};
pub use codebook::{FP4_VALUES, IQ4_VALUES, e8m0_half};
pub use fp8::{e4m3, fp8_scale, put_fp8_block, to_e4m3};
pub use grids::codebook_of;
pub use kquant::{scale_min, scales_q3};
pub use signs::affine_of;

use crate::DType;

/// Whether [`dequantize_row`] supports this type.
#[inline]
pub const fn can_dequantize(dtype: DType) -> bool {
    can_quantize(dtype) || has_groups(dtype) || matches!(dtype, DType::NVFP4)
}

/// Whether [`quantize_row`] supports this type.
#[inline]
pub const fn can_quantize(dtype: DType) -> bool {
    use DType::*;
    dtype.affine().is_some()
        || dtype.is_fp8()
        || matches!(dtype, F32 | F16 | BF16 | Q1_0 | Q2_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0)
        || matches!(dtype, Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_NL | IQ4_XS | MXFP4 | TQ1_0 | TQ2_0)
}

/// Whether [`decode_groups`] supports this type.
#[inline]
pub const fn has_groups(dtype: DType) -> bool {
    use DType::*;
    matches!(dtype, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | TQ1_0 | TQ2_0)
}

/// Decodes whole blocks (one row, or many contiguous ones) to numbers, bit for bit as GGML's reference does. `bytes`
/// are little endian and may have any alignment.
///
/// # Panics
/// If [`can_dequantize`] is false for the type, `out` is not whole blocks, or `bytes` is not their size.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        dtype.bytes_of(out.len()),
        Some(bytes.len()),
        "{dtype}: bytes do not make {} weights",
        out.len()
    );
    if let Some((bits, group)) = dtype.affine() {
        let blocks = bytes.chunks_exact(dtype.block_bytes());
        return blocks.zip(out.chunks_exact_mut(group)).for_each(|(b, w)| affine::decode(bits, b, w));
    }
    let decode: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => return vectors::floats(dtype, bytes, out),
        DType::FP8 | DType::FP8_G32 => fp8::decode,
        DType::Q1_0 => signs::decode_q1_0,
        DType::Q2_0 => signs::decode_q2_0,
        DType::NVFP4 => codebook::decode_nvfp4,
        DType::Q4_0 => block32::decode_q4_0,
        DType::Q4_1 => block32::decode_q4_1,
        DType::Q5_0 => block32::decode_q5_0,
        DType::Q5_1 => block32::decode_q5_1,
        DType::Q8_0 => block32::decode_q8_0,
        DType::Q2_K => kquant::decode_q2,
        DType::Q3_K => kquant::decode_q3,
        DType::Q4_K => kquant::decode_q4,
        DType::Q5_K => kquant::decode_q5,
        DType::Q6_K => kquant::decode_q6,
        DType::IQ4_NL => codebook::decode_iq4_nl,
        DType::IQ4_XS => codebook::decode_iq4_xs,
        DType::MXFP4 => codebook::decode_mxfp4,
        _ if has_groups(dtype) => {
            let blocks = bytes.chunks_exact(dtype.block_bytes());
            return blocks.zip(out.as_chunks_mut::<256>().0).for_each(|(b, w)| scale_groups(dtype, b, w));
        }
        _ => panic!("{dtype} cannot be dequantised; can_dequantize says so"),
    };
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    for (block, weights) in blocks.zip(out.chunks_exact_mut(dtype.block_weights())) {
        decode(block, weights);
    }
}

/// Decodes one block of 256 weights to signed bytes and a scale for each 16 of them, for kernels that keep blocks as
/// stored. Weight i is `scales[i / 16] * codes[i]`, an exact product with the same bits as from [`dequantize_row`].
/// Codes lie within ±62.
///
/// # Panics
/// If [`has_groups`] is false for the type, or `block` is not one block.
#[inline]
pub fn decode_groups(dtype: DType, block: &[u8], codes: &mut [i8; 256], scales: &mut [f32; 16]) {
    match dtype {
        DType::IQ1_S => iq::iq1_s(sized(block), bytemuck::cast_mut(codes), scales),
        DType::IQ1_M => iq::iq1_m(sized(block), bytemuck::cast_mut(codes), scales),
        DType::IQ2_XXS => iq::iq2_xxs(sized(block), bytemuck::cast_mut(codes), scales),
        DType::IQ2_XS => iq::iq2_xs(sized(block), bytemuck::cast_mut(codes), scales),
        DType::IQ2_S => iq::iq2_s(sized(block), bytemuck::cast_mut(codes), scales),
        DType::IQ3_XXS => iq::iq3_xxs(sized(block), bytemuck::cast_mut(codes), scales),
        DType::IQ3_S => iq::iq3_s(sized(block), bytemuck::cast_mut(codes), scales),
        DType::TQ1_0 => ternary::tq1_0(sized(block), codes, scales),
        DType::TQ2_0 => ternary::tq2_0(sized(block), codes, scales),
        _ => panic!("{dtype} has no groups of codes; has_groups says so"),
    }
}

/// Decodes a block by [`decode_groups`] to its numbers.
fn scale_groups(dtype: DType, block: &[u8], weights: &mut [f32; 256]) {
    let (mut codes, mut scales) = ([0; 256], [0.0; 16]);
    decode_groups(dtype, block, &mut codes, &mut scales);
    for (i, w) in weights.iter_mut().enumerate() {
        *w = scales[i / 16] * f32::from(codes[i]);
    }
}

/// A block as an array of its size.
#[inline]
fn sized<const N: usize>(block: &[u8]) -> &[u8; N] {
    let Ok(sized) = block.try_into() else { panic!("a block of {N} bytes was given as {}", block.len()) };
    sized
}

/// Encodes whole blocks, with the rounding and the scale search of GGML's reference quantisers (without an importance
/// matrix). Numbers must be finite; those beyond the range of a block's f16 scale overflow it.
///
/// # Panics
/// If [`can_quantize`] is false for the type, `weights` is not whole blocks, or `out` is not their size.
pub fn quantize_row(dtype: DType, weights: &[f32], out: &mut [u8]) {
    quantize_rows(dtype, weights, None, out);
}

/// Same as [`quantize_row`] for rows in which errors of column i have the weight `importance[i]`, a finite number that
/// is not negative. It applies to types with a choice of scales: K-quants, Q4_0 to Q5_1, IQ4_NL and IQ4_XS. Others
/// ignore it.
///
/// # Panics
/// As [`quantize_row`], and if `weights` is not whole rows of as many columns.
pub fn quantize_rows(dtype: DType, weights: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    rows(dtype, weights, importance, encode::Rule::Ggml, out);
}

fn rows(dtype: DType, weights: &[f32], importance: Option<&[f32]>, rule: encode::Rule, out: &mut [u8]) {
    assert_eq!(
        dtype.bytes_of(weights.len()),
        Some(out.len()),
        "{dtype}: out does not fit {} weights",
        weights.len()
    );
    assert!(can_quantize(dtype), "{dtype} cannot be quantised; can_quantize says so");
    match importance.map(|importance| (importance, dtype.bytes_of(importance.len()))) {
        Some((importance, Some(bytes))) if bytes > 0 => {
            assert_eq!(weights.len() % importance.len(), 0, "{dtype}: no whole rows of {}", importance.len());
            let rows = weights.chunks_exact(importance.len()).zip(out.chunks_exact_mut(bytes));
            rows.for_each(|(row, out)| vectors::row(dtype, rule, row, Some(importance), out));
        }
        Some((importance, _)) => panic!("{dtype}: {} columns are no whole blocks", importance.len()),
        None => vectors::row(dtype, rule, weights, None, out),
    }
}

/// Same as [`quantize_rows`], for numbers that need not match another program's: quantisation at load time. For a
/// block of MXFP4 it takes GGML's exponent or one of the two next to it, whichever has the least squared error,
/// weighted by column.
///
/// # Panics
/// As [`quantize_rows`].
pub fn fit_rows(dtype: DType, weights: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    rows(dtype, weights, importance, encode::Rule::Fitted, out);
}

/// Reads an f16 at a byte offset.
#[inline]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes a number as f16 at a byte offset.
fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The reciprocal; 0 for 0, so that a block of zeros has scale 0 and codes 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
