//! Weights of a byte or half a byte with a scale: 8-bit integers, 8-bit floats, and 4-bit floats with a scale for
//! every 16 (NVFP4) or 32 (MXFP4).

use std::ops::Range;

use hanzo_engine_ops::{DType, quant};

use super::made::{Affine, of_bf16, of_rows};
use super::numbers::{Numbers, e5m2};
use super::settings::Settings;
use super::{corrupt, packed, refused};
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Assignment of scales to weights.
#[derive(Clone, Copy)]
enum Spread {
    One,
    Rows,
    /// Blocks of so many rows and columns, with so many of them side by side.
    Blocks([usize; 2], usize),
}

impl Spread {
    fn of(scales: &Tensor, [rows, cols]: [usize; 2], block: [usize; 2]) -> Result<Spread, LoadError> {
        let sides = [rows.div_ceil(block[0]), cols.div_ceil(block[1])];
        let shape = match scales.shape.as_slice() {
            &[experts, of_rows, across] => &[experts * of_rows, across][..],
            shape => shape,
        };
        match shape {
            _ if scales.elements() == 1 => Ok(Spread::One),
            &[count] | &[count, 1] if count == rows => Ok(Spread::Rows),
            &[a, b] if [a, b] == sides => Ok(Spread::Blocks(block, b)),
            &[a, b] if a == rows && b > 0 && cols.is_multiple_of(b) => Ok(Spread::Blocks([1, cols / b], b)),
            shape => Err(corrupt(
                scales,
                format!("{shape:?} scales for [{rows}, {cols}] weights, in blocks of {block:?}"),
            )),
        }
    }

    fn at(self, row: usize, col: usize) -> usize {
        match self {
            Spread::One => 0,
            Spread::Rows => row,
            Spread::Blocks([rows, cols], across) => row / rows * across + col / cols,
        }
    }
}

/// Rows and columns.
fn sides(tensor: &Tensor) -> Result<[usize; 2], LoadError> {
    match tensor.shape.as_slice() {
        &[rows, cols] => Ok([rows, cols]),
        shape => Err(corrupt(tensor, format!("expected a matrix, found {shape:?}"))),
    }
}

/// Type of scales that several formats store as bytes: powers of two (the MX formats of the Open Compute Project).
const EXPONENTS: Option<DType> = Some(DType::F8_E8M0);

/// `X.weight` of signed bytes: `w = scale * (byte - zero)`, with zero 0 if there is none. `divisor` divides every
/// scale.
pub(super) fn bytes(
    settings: &Settings,
    weight: Tensor,
    scales: &Tensor,
    zeros: Option<&Tensor>,
    divisor: f32,
) -> Result<Tensor, LoadError> {
    let [rows, cols] = sides(&weight)?;
    let spread = Spread::of(scales, [rows, cols], settings.block)?;
    let scale = Numbers::scales(scales, None)?;
    let zero = match zeros {
        None => None,
        Some(zeros) if zeros.shape == scales.shape => Some(Numbers::of(zeros)?),
        Some(zeros) => {
            return Err(corrupt(
                zeros,
                format!("{:?} zero points for {:?} scales", zeros.shape, scales.shape),
            ));
        }
    };
    let group = match spread {
        Spread::Blocks([_, across], _) => across,
        _ => cols,
    };
    let codes = weight.bytes.clone();
    let affine = Affine {
        bits: 8,
        rows,
        cols,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            let stored = &codes[range.start * cols..range.end * cols];
            out.iter_mut().zip(stored).for_each(|(out, byte)| *out = byte ^ 0x80);
        },
        factors: move |row, of| {
            let at = spread.at(row, of * group);
            let zero = zero.as_ref().map_or(0.0, |zero| zero.at(at));
            let scale = scale.at(at) / divisor;
            (scale, -(scale * (128.0 + zero)))
        },
    };
    let sources = vec![weight.bytes.clone(), scales.bytes.clone()];
    Ok(affine.tensor(&weight, weight.name.clone(), sources))
}

/// `X.weight` of 8-bit floats and their scales: `w = float * scale`. Floats with 4 bits of exponent are stored with
/// their scales, in blocks as long as rows and scales allow. Others, and rows of no whole blocks, become BF16. Scales
/// that are bytes are powers of two (MXFP8). Several matrices may follow one another.
pub(super) fn floats(settings: &Settings, weight: Tensor, scales: &Tensor) -> Result<Tensor, LoadError> {
    let shape = weight.shape.clone();
    let made = flat_floats(settings, weight, scales)?;
    Ok(Tensor { shape, ..made })
}

fn flat_floats(settings: &Settings, weight: Tensor, scales: &Tensor) -> Result<Tensor, LoadError> {
    let (experts, [rows, cols]) = match *weight.shape.as_slice() {
        [experts, rows, cols] => (experts, [experts * rows, cols]),
        _ => (1, sides(&weight)?),
    };
    if experts > 1 && scales.shape.len() == 3 && !(rows / experts).is_multiple_of(settings.block[0]) {
        let whole = scales.shape[..2] == weight.shape[..2];
        if !whole {
            return Err(refused(&weight, "blocks of scales end within a matrix"));
        }
    }
    let spread = Spread::of(scales, [rows, cols], settings.block)?;
    let scale = Numbers::scales(scales, EXPONENTS)?;
    let shared = match spread {
        Spread::Blocks([_, across], _) => across,
        _ => cols,
    };
    let of_blocks = DType::of_fp8(cols, shared).filter(|_| weight.dtype == DType::F8_E4M3);
    if let Some(dtype) = of_blocks {
        let sources = vec![weight.bytes.clone(), scales.bytes.clone()];
        let (stored, block, block_bytes) = (weight.bytes.clone(), dtype.block_weights(), dtype.block_bytes());
        let make = move |range: Range<usize>, out: &mut [u8]| {
            for (row, out) in range.zip(out.chunks_exact_mut(cols / block * block_bytes)) {
                for (at, out) in out.chunks_exact_mut(block_bytes).enumerate() {
                    let floats = &stored[row * cols + at * block..][..block];
                    quant::put_fp8_block(scale.at(spread.at(row, at * block)), floats, out);
                }
            }
        };
        return Ok(of_rows(&weight, weight.name.clone(), dtype, [rows, cols], sources, make));
    }
    let decode = if weight.dtype == DType::F8_E5M2 { e5m2 } else { quant::e4m3 };
    let stored = weight.bytes.clone();
    let sources = vec![weight.bytes.clone(), scales.bytes.clone()];
    let number =
        move |row: usize, col: usize| decode(stored[row * cols + col]) * scale.at(spread.at(row, col));
    Ok(of_bf16(&weight, weight.name.clone(), [rows, cols], sources, number))
}

/// 4-bit floats, two a byte, the first in the low half, with an 8-bit scale for each 16 and a factor for all of them.
/// Several matrices may follow one another.
pub(super) fn nvfp4(weight: &Tensor, name: String, scales: &Tensor, all: f32) -> Result<Tensor, LoadError> {
    let [rows, half] = packed::flat(weight)?;
    let cols = 2 * half;
    if weight.dtype != DType::U8 || !cols.is_multiple_of(16) {
        return Err(corrupt(
            weight,
            format!("{:?} of {} are not 4-bit floats in groups of 16", weight.shape, weight.dtype),
        ));
    }
    let mut expected = weight.shape.clone();
    expected[weight.shape.len() - 1] = cols / 16;
    scales.check_shape(&expected)?;
    let scale = Numbers::scales(scales, Some(DType::F8_E4M3))?;
    let stored = weight.bytes.clone();
    let sources = vec![weight.bytes.clone(), scales.bytes.clone()];
    let number = move |row: usize, col: usize| {
        let code = stored[row * half + col / 2] >> (4 * (col % 2)) & 15;
        f32::from(quant::FP4_VALUES[usize::from(code)]) * 0.5 * scale.at(row * (cols / 16) + col / 16) * all
    };
    let made = of_bf16(weight, name, [rows, cols], sources, number);
    expected[weight.shape.len() - 1] = cols;
    Ok(Tensor { shape: expected, ..made })
}

/// Factor of all scales of a matrix.
pub(super) fn factor(all: &Tensor) -> Result<f32, LoadError> {
    match all.elements() {
        1 => Ok(Numbers::scales(all, None)?.at(0)),
        _ => Err(corrupt(all, format!("expected one number, found {:?}", all.shape))),
    }
}

/// 4-bit floats, two a byte, the first in the low half, with a power of two for each 32: the same numbers in GGML's
/// blocks. `rows` and `cols` are of weights; several matrices may follow one another.
pub(super) fn mxfp4(
    weight: &Tensor,
    name: String,
    scales: &Tensor,
    [rows, cols]: [usize; 2],
) -> Result<Tensor, LoadError> {
    if !cols.is_multiple_of(32) || !matches!(weight.dtype, DType::U8 | DType::U32) {
        return Err(refused(weight, format!("[{rows}, {cols}] are not 4-bit floats in groups of 32")));
    }
    if !matches!(scales.dtype, DType::U8 | DType::F8_E8M0) {
        return Err(refused(
            scales,
            "scales of this type are not understood; MXFP4's are exponents of 8 bits",
        ));
    }
    if scales.bytes.len() != rows * cols / 32 || weight.bytes.len() != rows * cols / 2 {
        return Err(corrupt(scales, format!("{:?} scales for [{rows}, {cols}] weights", scales.shape)));
    }
    let sources = vec![weight.bytes.clone(), scales.bytes.clone()];
    let [codes, exponents]: [ModelBytes; 2] = [weight.bytes.clone(), scales.bytes.clone()];
    let blocks = cols / 32;
    Ok(of_rows(weight, name, DType::MXFP4, [rows, cols], sources, move |range, out| {
        let first = range.start * blocks;
        for (at, out) in out.chunks_exact_mut(DType::MXFP4.block_bytes()).enumerate() {
            let codes = &codes[16 * (first + at)..16 * (first + at + 1)];
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            out[0] = exponents[first + at];
            for (i, out) in out[1..].iter_mut().enumerate() {
                *out = code(i) | code(i + 16) << 4;
            }
        }
    }))
}

/// GGML's blocks of 4-bit floats. Their products with 8-bit scales are exact in BF16. `all` are factors of the matrix,
/// or of each of several matrices that follow one another.
pub(super) fn ggml_nvfp4(weight: Tensor, all: Option<&Tensor>) -> Result<Tensor, LoadError> {
    let Some((&cols, outer)) = weight.shape.split_last() else {
        return Err(corrupt(&weight, "expected a matrix".into()));
    };
    let rows: usize = outer.iter().product();
    let factors = match all {
        None => vec![1.0],
        Some(all) => {
            if all.elements() != 1 && (outer.len() < 2 || all.elements() != outer[0]) {
                return Err(corrupt(all, format!("{:?} factors for {:?} weights", all.shape, weight.shape)));
            }
            let numbers = Numbers::of(all)?;
            (0..all.elements()).map(|at| numbers.at(at)).collect()
        }
    };
    let row_bytes = DType::NVFP4.bytes_of(cols).ok_or_else(|| corrupt(&weight, "not whole blocks".into()))?;
    let (stored, each) = (weight.bytes.clone(), rows / factors.len());
    let make = move |range: Range<usize>, out: &mut [u8]| {
        let mut numbers = vec![0.0; cols];
        for (row, out) in range.zip(out.chunks_exact_mut(2 * cols)) {
            quant::dequantize_row(
                DType::NVFP4,
                &stored[row * row_bytes..(row + 1) * row_bytes],
                &mut numbers,
            );
            for (number, out) in numbers.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = half::bf16::from_f32(number * factors[row / each]).to_le_bytes();
            }
        }
    };
    let shape = weight.shape.clone();
    let sources = vec![weight.bytes.clone()];
    let made = of_rows(&weight, weight.name.clone(), DType::BF16, [rows, cols], sources, make);
    Ok(Tensor { shape, ..made })
}
