//! AWQ: 4-bit codes with a scale and a zero point for each group of inputs, in the order of its kernels. All become
//! affine blocks without loss. Marlin's layout, which some tools write for AWQ too, is in [`super::marlin`].

use std::ops::Range;

use hanzo_engine_ops::DType;

use super::made::{Affine, four_bit_codes};
use super::numbers::{Numbers, Words};
use super::packed::{expect, flat, group_of};
use super::settings::{Method, Settings};
use super::{Parts, corrupt};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// Output of each nibble of AWQ's words, from the lowest on.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// AWQ matrix: like GPTQ's, with the inputs outermost and words along the outputs (`gemm`), or with the outputs
/// outermost (`gemv`, and `gemv_fast` in its own order).
pub(super) fn matrix(settings: &Settings, parts: &mut Parts, stem: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.qweight"))?;
    let zeros = parts.take(&format!("{stem}.qzeros"))?;
    let scales = parts.take(&format!("{stem}.scales"))?;
    if settings.method == Method::AwqGemvFast {
        return gemv_fast(settings, stem, weight, zeros, scales);
    }
    if settings.method == Method::AwqGemv {
        return gemv(settings, stem, weight, zeros, scales);
    }
    let [outer, words] = flat(&weight)?;
    let (codes, zero, scale) = (Words::of(&weight)?, Words::of(&zeros)?, Numbers::scales(&scales, None)?);
    let sources = vec![weight.bytes.clone(), zeros.bytes.clone(), scales.bytes.clone()];
    let (rows, cols) = (8 * words, outer);
    let [groups, _] = flat(&scales)?;
    let group = group_of(&weight, cols, groups)?;
    expect(&scales, &[groups, rows])?;
    expect(&zeros, &[groups, words])?;
    let affine = Affine {
        bits: 4,
        rows,
        cols,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            for col in 0..cols {
                for word in range.start / 8..range.end.div_ceil(8) {
                    let code = codes.at(col * words + word);
                    for (nibble, of) in AWQ_ORDER.into_iter().enumerate() {
                        let row = 8 * word + of;
                        if range.contains(&row) {
                            out[(row - range.start) * cols + col] = (code >> (4 * nibble) & 15) as u8;
                        }
                    }
                }
            }
        },
        factors: move |row, of| {
            let nibble = AWQ_ORDER.iter().position(|&of| of == row % 8).expect("all eight are there");
            let zero = zero.at(of * words + row / 8) >> (4 * nibble) & 15;
            let scale = scale.at(of * rows + row);
            (scale, -(scale * zero as f32))
        },
    };
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}

/// AWQ `gemv` matrix: like GPTQ's, with the outputs outermost and words along the inputs.
fn gemv(
    settings: &Settings,
    stem: &str,
    weight: Tensor,
    zeros: Tensor,
    scales: Tensor,
) -> Result<Tensor, LoadError> {
    let [outer, words] = flat(&weight)?;
    let (codes, zero, scale) = (Words::of(&weight)?, Words::of(&zeros)?, Numbers::scales(&scales, None)?);
    let sources = vec![weight.bytes.clone(), zeros.bytes.clone(), scales.bytes.clone()];
    let (rows, cols) = (outer, 8 * words);
    let group = settings.group.unwrap_or(cols);
    if group == 0 || !cols.is_multiple_of(group) {
        return Err(corrupt(&weight, format!("rows of {cols} weights are no groups of {group}")));
    }
    // Rows are padded beyond the number of groups.
    let ([_, zero_words], [_, scale_cols]) = (flat(&zeros)?, flat(&scales)?);
    expect(&zeros, &[rows, zero_words])?;
    expect(&scales, &[rows, scale_cols])?;
    if scale_cols < cols / group || 8 * zero_words < cols / group {
        return Err(corrupt(&scales, format!("too few for {} groups", cols / group)));
    }
    let code = move |row, col| codes.code(4, row * words, 1, col) as u8;
    let factors = move |row, of| {
        let scale = scale.at(row * scale_cols + of);
        (scale, -(scale * zero.code(4, row * zero_words, 1, of) as f32))
    };
    let affine = four_bit_codes([rows, cols], group, code, factors);
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}

/// AWQ `gemv_fast` matrix: words of 16 bits, each with a code of four neighbouring places of the same four rows, and
/// zero points that are already multiplied and negated: `w = scale * code + zero`.
fn gemv_fast(
    settings: &Settings,
    stem: &str,
    weight: Tensor,
    zeros: Tensor,
    scales: Tensor,
) -> Result<Tensor, LoadError> {
    if weight.dtype != DType::I16 {
        return Err(corrupt(&weight, format!("expected 16-bit integers, found {}", weight.dtype)));
    }
    let [fourths, cols] = flat(&weight)?;
    let (rows, group) = (4 * fourths, settings.group.unwrap_or(cols));
    if !cols.is_multiple_of(64) || group == 0 || !cols.is_multiple_of(group) {
        return Err(corrupt(
            &weight,
            format!("rows of {cols} weights are no groups of {group}, in units of 64"),
        ));
    }
    // There may be more rows of them than groups.
    let [stored, _] = flat(&scales)?;
    expect(&scales, &[stored, rows])?;
    expect(&zeros, &[stored, rows])?;
    if stored < cols / group {
        return Err(corrupt(&scales, format!("too few for {} groups", cols / group)));
    }
    let (scale, zero) = (Numbers::scales(&scales, None)?, Numbers::of(&zeros)?);
    let sources = vec![weight.bytes.clone(), zeros.bytes, scales.bytes];
    let words = weight.bytes.clone();
    let code = move |row: usize, col: usize| {
        let at = row % 4 * 64 + col / 32 % 2 * 32 + place_in_32(col % 32);
        let word = row / 4 * cols + col / 64 * 64 + at / 4;
        let byte = words[2 * word + at % 4 / 2];
        byte >> (4 * (at % 2)) & 15
    };
    let factors = move |row, of| (scale.at(of * rows + row), zero.at(of * rows + row));
    let affine = four_bit_codes([rows, cols], group, code, factors);
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}

/// Position of one of 32 neighbouring codes of a row: eights of each fourth pair, the even ones first.
const fn place_in_32(col: usize) -> usize {
    let (of_eight, pair, second) = (col / 8, col / 2 % 4, col % 2);
    8 * pair + 4 * second + of_eight
}
