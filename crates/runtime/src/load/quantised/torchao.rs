//! TorchAO's tensors in safetensors: `X._weight_qdata` and accompanying tensors, distinguished by types and shapes.

use std::ops::Range;

use hanzo_engine_ops::DType;

use super::made::{Affine, four_bit_codes};
use super::numbers::{Numbers, Words};
use super::packed::{expect, flat, group_of};
use super::settings::Settings;
use super::{Parts, corrupt, refused, scaled};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// Suffix of the first part's name.
pub(super) const CODES: &str = "._weight_qdata";

/// A matrix of the module `stem`.
pub(super) fn matrix(settings: &Settings, parts: &mut Parts, stem: &str) -> Result<Tensor, LoadError> {
    let part = |name: &str| format!("{stem}._weight_{name}");
    let mut weight = parts.take(&format!("{stem}{CODES}"))?;
    if let Some(factors) = parts.take_if_there(&part("act_pre_scale")) {
        return Err(refused(&factors, "factors of activations are not read"));
    }
    weight.name = format!("{stem}.weight");
    if weight.dtype == DType::I32 && weight.shape.len() == 4 {
        return tiles(weight, &parts.take(&part("scale_and_zero"))?);
    }
    match weight.dtype {
        DType::I8 | DType::U8 | DType::F8_E4M3 | DType::F8_E5M2 => {}
        _ => return Err(refused(&weight, "TorchAO's weights in this layout are for one device")),
    }
    let scales = parts.take(&part("scale"))?;
    let zeros = parts.take_if_there(&part("zero_point"));
    match (weight.dtype, zeros) {
        (DType::F8_E4M3 | DType::F8_E5M2, None) => scaled::floats(settings, weight, &scales),
        (DType::I8, zeros) if zeros.as_ref().is_none_or(|zeros| zeros.dtype == DType::I8) => {
            scaled::bytes(settings, weight, &scales, zeros.as_ref(), 1.0)
        }
        (DType::I8 | DType::U8, Some(zeros)) => halves(&weight, &scales, &zeros),
        _ => Err(refused(&weight, "TorchAO's integers, 4-bit integers and 8-bit floats are read")),
    }
}

/// Signed codes of 4 bits, two a byte, the first in the low half, with groups outermost in the accompanying tensors:
/// `w = scale * code + zero`.
fn halves(weight: &Tensor, scales: &Tensor, zeros: &Tensor) -> Result<Tensor, LoadError> {
    let ([rows, half], [groups, _]) = (flat(weight)?, flat(scales)?);
    let cols = 2 * half;
    let group = group_of(weight, cols, groups)?;
    expect(scales, &[groups, rows])?;
    expect(zeros, &[groups, rows])?;
    let (scale, zero) = (Numbers::scales(scales, None)?, Numbers::of(zeros)?);
    let sources = vec![weight.bytes.clone(), scales.bytes.clone(), zeros.bytes.clone()];
    let bytes = weight.bytes.clone();
    let affine = Affine {
        bits: 4,
        rows,
        cols,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            let stored = &bytes[range.start * half..range.end * half];
            for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(stored) {
                *out = [byte & 15 ^ 8, byte >> 4 ^ 8];
            }
        },
        factors: move |row, of| {
            let scale = scale.at(of * rows + row);
            (scale, zero.at(of * rows + row) - 8.0 * scale)
        },
    };
    Ok(affine.tensor(weight, weight.name.clone(), sources))
}

/// Codes in the order in which the threads of a warp hold them: `(rows / 8, cols / (16 k), 32, k / 2)` words, and
/// pairs of scale and zero `(groups, rows, 2)`: `w = scale * (code - 8) + zero`. Matrices are padded to whole tiles; a
/// padded one has a shape that no model expects, and is refused for it.
fn tiles(weight: Tensor, pairs: &Tensor) -> Result<Tensor, LoadError> {
    let (&[tiles, across, 32, words], &[groups, rows, 2]) = (weight.shape.as_slice(), pairs.shape.as_slice())
    else {
        let reason = format!("{:?} codes and {:?} scales are no tiles", weight.shape, pairs.shape);
        return Err(corrupt(&weight, reason));
    };
    let cols = 32 * words * across;
    if rows != 8 * tiles {
        return Err(corrupt(&weight, format!("{tiles} tiles for {rows} outputs")));
    }
    let group = group_of(&weight, cols, groups)?;
    let (codes, pair) = (Words::of(&weight)?, Numbers::scales(pairs, None)?);
    let sources = vec![weight.bytes.clone(), pairs.bytes.clone()];
    let code = move |row: usize, col: usize| {
        let (tile, of) = (col / (32 * words), col % (32 * words));
        let (word, of) = (of / 32, of % 32);
        // Two tiles of 16 inputs a word; a thread has two neighbours of each eight.
        let thread = row % 8 * 4 + of % 8 / 2;
        let at = of / 8;
        let nibble = at + 4 * (of % 2);
        let place = ((row / 8 * across + tile) * 32 + thread) * words + word;
        (codes.at(place) >> (4 * nibble) & 15) as u8
    };
    let factors = move |row, of| {
        let at = 2 * (of * rows + row);
        let scale = pair.at(at);
        (scale, pair.at(at + 1) - 8.0 * scale)
    };
    let affine = four_bit_codes([rows, cols], group, code, factors);
    Ok(affine.tensor(&weight, weight.name.clone(), sources))
}
