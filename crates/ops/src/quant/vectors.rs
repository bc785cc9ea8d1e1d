//! Encoding and decoding with the widest vectors of this processor: the loops of [`super::encode`], compiled once for each
//! width. The only `unsafe` code of the crate is here: a call of a function whose instructions the processor has.

use super::encode::{Rule, floats_anywhere, row_anywhere};
use crate::DType;

/// Encodes blocks. If `columns` are given, the blocks are one row, and `columns` are the importance of its columns.
pub(super) fn row(dtype: DType, rule: Rule, weights: &[f32], columns: Option<&[f32]>, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx512() {
            // SAFETY: this processor has the instructions.
            return unsafe { row_avx512(dtype, rule, weights, columns, out) };
        }
        if has_avx2() {
            // SAFETY: this processor has the instructions.
            return unsafe { row_avx2(dtype, rule, weights, columns, out) };
        }
    }
    row_anywhere(dtype, rule, weights, columns, out);
}

/// Decodes floats.
pub(super) fn floats(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: this processor has the instructions.
        return unsafe { floats_avx2(dtype, bytes, out) };
    }
    floats_anywhere(dtype, bytes, out);
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn row_avx2(dtype: DType, rule: Rule, weights: &[f32], columns: Option<&[f32]>, out: &mut [u8]) {
    row_anywhere(dtype, rule, weights, columns, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
fn row_avx512(dtype: DType, rule: Rule, weights: &[f32], columns: Option<&[f32]>, out: &mut [u8]) {
    row_anywhere(dtype, rule, weights, columns, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn floats_avx2(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    floats_anywhere(dtype, bytes, out);
}

/// Encodes blocks by AVX2, if this processor has it.
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) fn row_by_avx2(
    dtype: DType,
    rule: Rule,
    weights: &[f32],
    columns: Option<&[f32]>,
    out: &mut [u8],
) -> bool {
    if has_avx2() {
        // SAFETY: this processor has the instructions.
        unsafe { row_avx2(dtype, rule, weights, columns, out) };
    }
    has_avx2()
}
