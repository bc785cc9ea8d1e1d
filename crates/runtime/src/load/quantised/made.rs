//! Weights of packable types that are made from a quantised module's tensors when they are read.

use std::ops::Range;

use half::{bf16, f16};
use hanzo_engine_ops::{DType, quant};

use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Rows that are made together.
const ROWS: usize = 64;

/// A matrix `w = scale * code + bias`.
pub(super) struct Affine<C, F> {
    pub(super) bits: u32,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Inputs that share a scale; divides `cols`.
    pub(super) group: usize,
    /// Group of each input, if inputs are not in the order of their groups.
    pub(super) group_of: Option<Vec<u32>>,
    /// Writes the codes of some rows, at most 64, one byte each.
    pub(super) codes: C,
    /// Scale and bias of a row's group.
    pub(super) factors: F,
}

impl<C, F> Affine<C, F>
where
    C: Fn(Range<usize>, &mut [u8]) + Send + Sync + 'static,
    F: Fn(usize, usize) -> (f32, f32) + Send + Sync + 'static,
{
    /// The matrix as a tensor, without loss: of an affine type if groups are whole blocks of one, else of F32. If
    /// neighbours belong to different groups it is F16, to which its numbers are rounded.
    pub(super) fn tensor(self, like: &Tensor, name: String, sources: Vec<ModelBytes>) -> Tensor {
        let Affine { bits, rows, cols, group, group_of, codes, factors } = self;
        if let Some(group_of) = group_of {
            return of_rows(like, name, DType::F16, [rows, cols], sources, move |range, out| {
                let mut some = vec![0; ROWS * cols];
                for (first, out) in range.clone().step_by(ROWS).zip(out.chunks_mut(ROWS * 2 * cols)) {
                    let part = first..range.end.min(first + ROWS);
                    codes(part.clone(), &mut some[..part.len() * cols]);
                    let rows = part.zip(some.chunks_exact(cols)).zip(out.chunks_exact_mut(2 * cols));
                    for ((row, codes), out) in rows {
                        let outs = out.as_chunks_mut::<2>().0.iter_mut();
                        for ((&code, &of), out) in codes.iter().zip(&group_of).zip(outs) {
                            let (scale, bias) = factors(row, of as usize);
                            *out = f16::from_f32(scale * f32::from(code) + bias).to_le_bytes();
                        }
                    }
                }
            });
        }
        let fits = |block: &usize| group.is_multiple_of(*block) && cols.is_multiple_of(*block);
        let dtype = [128, 64, 32].into_iter().find(fits).and_then(|block| DType::of_affine(bits, block));
        let dtype = dtype.unwrap_or(DType::F32);
        let (block, block_bytes) = (dtype.block_weights(), dtype.block_bytes());
        let make = move |range: Range<usize>, out: &mut [u8]| {
            let mut some = vec![0; ROWS * cols];
            let row_bytes = cols / block * block_bytes;
            for (first, out) in range.clone().step_by(ROWS).zip(out.chunks_mut(ROWS * row_bytes)) {
                let part = first..range.end.min(first + ROWS);
                let some = &mut some[..part.len() * cols];
                codes(part.clone(), some);
                let rows = part.zip(some.chunks_exact(cols)).zip(out.chunks_exact_mut(row_bytes));
                for ((row, codes), out) in rows {
                    if dtype == DType::F32 {
                        for (at, (&code, out)) in codes.iter().zip(out.as_chunks_mut::<4>().0).enumerate() {
                            let (scale, bias) = factors(row, at / group);
                            *out = (scale * f32::from(code) + bias).to_le_bytes();
                        }
                        continue;
                    }
                    let blocks = codes.chunks_exact(block).zip(out.chunks_exact_mut(block_bytes));
                    for (at, (codes, out)) in blocks.enumerate() {
                        let (scale, bias) = factors(row, at * block / group);
                        quant::put_affine_block(bits, scale, bias, codes, out);
                    }
                }
            }
        };
        of_rows(like, name, dtype, [rows, cols], sources, make)
    }
}

/// A matrix of 4-bit codes whose order in the file is not that of rows and columns; `code` returns that of a row and a
/// column.
pub(super) fn four_bit_codes<F>(
    [rows, cols]: [usize; 2],
    group: usize,
    code: impl Fn(usize, usize) -> u8 + Send + Sync + 'static,
    factors: F,
) -> Affine<impl Fn(Range<usize>, &mut [u8]) + Send + Sync + 'static, F> {
    let codes = move |range: Range<usize>, out: &mut [u8]| {
        for (row, out) in range.zip(out.chunks_exact_mut(cols)) {
            for (col, out) in out.iter_mut().enumerate() {
                *out = code(row, col);
            }
        }
    };
    Affine { bits: 4, rows, cols, group, group_of: None, codes, factors }
}

/// A tensor whose rows are made when they are read.
pub(super) fn of_rows(
    like: &Tensor,
    name: String,
    dtype: DType,
    [rows, cols]: [usize; 2],
    sources: Vec<ModelBytes>,
    make: impl Fn(Range<usize>, &mut [u8]) + Send + Sync + 'static,
) -> Tensor {
    let row_bytes = cols / dtype.block_weights() * dtype.block_bytes();
    Tensor {
        file: like.file.clone(),
        name,
        dtype,
        shape: vec![rows, cols],
        bytes: ModelBytes::of_rows(rows, row_bytes, sources, make),
    }
}

/// A tensor of BF16 with numbers rounded to the nearest; `number` returns that of a row and a column.
pub(super) fn of_bf16(
    like: &Tensor,
    name: String,
    sides: [usize; 2],
    sources: Vec<ModelBytes>,
    number: impl Fn(usize, usize) -> f32 + Send + Sync + 'static,
) -> Tensor {
    of_halves(like, name, DType::BF16, sides, sources, move |row, col| {
        bf16::from_f32(number(row, col)).to_le_bytes()
    })
}

/// A tensor of F16, which is more precise if no number is large.
pub(super) fn of_f16(
    like: &Tensor,
    name: String,
    sides: [usize; 2],
    sources: Vec<ModelBytes>,
    number: impl Fn(usize, usize) -> f32 + Send + Sync + 'static,
) -> Tensor {
    of_halves(like, name, DType::F16, sides, sources, move |row, col| {
        f16::from_f32(number(row, col)).to_le_bytes()
    })
}

fn of_halves(
    like: &Tensor,
    name: String,
    dtype: DType,
    [rows, cols]: [usize; 2],
    sources: Vec<ModelBytes>,
    number: impl Fn(usize, usize) -> [u8; 2] + Send + Sync + 'static,
) -> Tensor {
    of_rows(like, name, dtype, [rows, cols], sources, move |range, out| {
        for (row, out) in range.zip(out.chunks_exact_mut(2 * cols)) {
            for (col, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *out = number(row, col);
            }
        }
    })
}
