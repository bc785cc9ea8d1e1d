//! HQQ: `w = scale * (code - zero)`, codes packed across the matrix, groups along its rows.

use std::ops::Range;

use hanzo_engine_ops::DType;

use super::made::{Affine, of_f16};
use super::numbers::Numbers;
use super::{Parts, corrupt, refused};
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// A number that accompanies a matrix in a separate tensor.
fn setting(parts: &mut Parts, stem: &str, key: &str) -> Result<usize, LoadError> {
    let tensor = parts.take(&format!("{stem}.{key}"))?;
    integers(&tensor)?.first().copied().ok_or_else(|| corrupt(&tensor, "it is empty".into()))
}

fn integers(tensor: &Tensor) -> Result<Vec<usize>, LoadError> {
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word) as usize
    };
    let size = match tensor.dtype {
        DType::I64 | DType::I32 | DType::U8 | DType::U32 => tensor.dtype.block_bytes(),
        _ => return Err(corrupt(tensor, format!("expected whole numbers, found {}", tensor.dtype))),
    };
    Ok(tensor.bytes.chunks_exact(size).take(8).map(number).collect())
}

/// Packing of codes: in parts of so many rows, with the first part in the highest bits of each byte or word.
struct PackedCodes {
    bytes: ModelBytes,
    /// Bits reserved for a code in its byte or word; the code has `bits` of these.
    places: usize,
    bits: usize,
    /// Bytes of a word.
    word: usize,
    /// Rows of codes in one bit position, and their length.
    part: usize,
    width: usize,
}

impl PackedCodes {
    /// Codes in a word, and the distance in bits between them.
    fn of_bits(bits: usize) -> (usize, usize) {
        match bits {
            3 => (10, 3),
            1 | 2 | 4 => (8 / bits, bits),
            _ => (1, 8),
        }
    }

    /// Codes of a row, from a column on.
    fn codes(&self, row: usize, col: usize, out: &mut [u8]) {
        let first = self.word * (row % self.part * self.width + col);
        let (stored, down) = (&self.bytes[first..][..self.word * out.len()], row / self.part);
        let mask = ((1u16 << self.bits) - 1) as u8;
        if self.word == 4 {
            let words = stored.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word));
            out.iter_mut().zip(words).for_each(|(out, word)| *out = (word >> (27 - 3 * down)) as u8 & mask);
        } else {
            let low = 8 - self.places * (down + 1);
            out.iter_mut().zip(stored).for_each(|(out, byte)| *out = byte >> low & mask);
        }
    }
}

/// Settings beside a matrix that do not change its numbers.
const UNUSED: [&str; 13] = [
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "stores_quant_config",
    "channel_wise",
    "offload_meta",
    "optimize",
    "round_zero",
    "encoded_state_dict",
    "quant_zero_scale",
];

/// Rows and columns in `X.shape`.
fn matrix_shape(tensor: &Tensor) -> Result<[usize; 2], LoadError> {
    match integers(tensor)?.as_slice() {
        &[rows, cols] if rows > 0 && cols > 0 && rows.checked_mul(cols).is_some() => Ok([rows, cols]),
        shape => Err(corrupt(tensor, format!("no shape of a matrix: {shape:?}"))),
    }
}

/// `X.W_q`, `X.scale`, `X.zero` and the settings that accompany them. The matrix is divided into groups along its
/// rows, one a row (axis 1), or into columns of groups (axis 0). These rows are divided into as many parts as codes
/// fit a byte, or ten of 3 bits a word.
pub(super) fn matrix(parts: &mut Parts, stem: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.W_q"))?;
    let (scales, zeros) = (parts.take(&format!("{stem}.scale"))?, parts.take(&format!("{stem}.zero"))?);
    let bits = setting(parts, stem, "nbits")?;
    let group = setting(parts, stem, "group_size")?;
    let shape_tensor = parts.take(&format!("{stem}.shape"))?;
    let axis = setting(parts, stem, "axis")?;
    for key in UNUSED {
        parts.take_if_there(&format!("{stem}.{key}"));
    }
    if !matches!(bits, 1..=6 | 8) {
        return Err(refused(&weight, format!("HQQ's codes of {bits} bits; 1 to 6 and 8 are read")));
    }
    if !matches!(axis, 0 | 1) {
        return Err(corrupt(&weight, format!("groups along axis {axis} of a matrix")));
    }
    let [rows, cols] = matrix_shape(&shape_tensor)?;
    let along = if axis == 1 { cols } else { rows * cols };
    if group == 0 || !along.is_multiple_of(group) {
        return Err(corrupt(&weight, format!("rows of {cols} weights are no groups of {group}")));
    }
    let groups = rows * cols / group;
    let (in_word, places) = PackedCodes::of_bits(bits);
    let [tall, width] = if axis == 1 { [groups, group] } else { [group, groups] };
    let (part, word) = (tall.div_ceil(in_word), if bits == 3 { 4 } else { 1 });
    // Codes may be stored as floats of the same bytes.
    let expected = part.checked_mul(width).and_then(|codes| codes.checked_mul(word));
    if expected != Some(weight.bytes.len()) || (bits != 3 && !tall.is_multiple_of(in_word)) {
        return Err(corrupt(
            &weight,
            format!("{:?} of {} for [{rows}, {cols}] codes of {bits} bits", weight.shape, weight.dtype),
        ));
    }
    for tensor in [&scales, &zeros] {
        if tensor.elements() != groups {
            return Err(corrupt(tensor, format!("{:?} for {groups} groups", tensor.shape)));
        }
    }
    let (scale, zero) = (Numbers::scales(&scales, None)?, Numbers::of(&zeros)?);
    let packed = PackedCodes { bytes: weight.bytes.clone(), places, bits, word, part, width };
    let sources = vec![weight.bytes.clone(), scales.bytes, zeros.bytes];
    let name = format!("{stem}.weight");
    if axis == 0 {
        return Ok(of_f16(&weight, name, [rows, cols], sources, move |row, col| {
            let at = row * cols + col;
            let (of, mut code) = (at % groups, [0]);
            packed.codes(at / groups, of, &mut code);
            scale.at(of) * (f32::from(code[0]) - zero.at(of))
        }));
    }
    let in_row = cols / group;
    let affine = Affine {
        bits: bits.max(2) as u32,
        rows,
        cols,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            let of_groups = (range.start * in_row..range.end * in_row).zip(out.chunks_exact_mut(group));
            of_groups.for_each(|(at, out)| packed.codes(at, 0, out));
        },
        factors: move |row, of| {
            let at = row * in_row + of;
            let scale = scale.at(at);
            (scale, -(scale * zero.at(at)))
        },
    };
    Ok(affine.tensor(&weight, name, sources))
}
