//! HQQ: `w = scale * (code - zero)`, codes packed across the matrix, groups along its rows.

use std::ops::Range;

use hanzo_engine_kernels::DType;

use super::made::Affine;
use super::numbers::Numbers;
use super::{Parts, corrupt, refused};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// A number that lies beside a matrix, in a tensor of its own.
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

/// `X.W_q`, `X.scale`, `X.zero` and the settings beside them. Codes of 8, 4, 2 bits: the matrix is cut into groups, one a
/// row, and these rows into as many parts as codes fit a byte; the first part's codes are the highest bits.
pub(super) fn matrix(parts: &mut Parts, stem: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{stem}.W_q"))?;
    let (scales, zeros) = (parts.take(&format!("{stem}.scale"))?, parts.take(&format!("{stem}.zero"))?);
    let bits = setting(parts, stem, "nbits")?;
    let group = setting(parts, stem, "group_size")?;
    let shape_tensor = parts.take(&format!("{stem}.shape"))?;
    let axis = setting(parts, stem, "axis")?;
    for key in [
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
    ] {
        parts.take_if_there(&format!("{stem}.{key}"));
    }
    if !matches!(bits, 2 | 4 | 8) || weight.dtype != DType::U8 {
        return Err(refused(&weight, format!("HQQ's codes of {bits} bits; 2, 4 and 8 are read, in bytes")));
    }
    if axis != 1 {
        return Err(refused(
            &weight,
            "groups across the rows (axis 0); those along the rows (axis 1) are read",
        ));
    }
    let [rows, cols] = match integers(&shape_tensor)?.as_slice() {
        &[rows, cols] if rows > 0 && cols > 0 && rows.checked_mul(cols).is_some() => [rows, cols],
        shape => return Err(corrupt(&shape_tensor, format!("no shape of a matrix: {shape:?}"))),
    };
    if group == 0 || !cols.is_multiple_of(group) {
        return Err(corrupt(&weight, format!("rows of {cols} weights are no groups of {group}")));
    }
    let (groups, in_byte) = (rows * cols / group, 8 / bits);
    if !groups.is_multiple_of(in_byte) || weight.elements() != rows * cols / in_byte {
        return Err(corrupt(
            &weight,
            format!("{:?} bytes for [{rows}, {cols}] codes of {bits} bits", weight.shape),
        ));
    }
    for tensor in [&scales, &zeros] {
        if tensor.elements() != groups {
            return Err(corrupt(tensor, format!("{:?} for {groups} groups", tensor.shape)));
        }
    }
    let (scale, zero) = (Numbers::of(&scales)?, Numbers::of(&zeros)?);
    let (stored, part) = (weight.bytes.clone(), groups / in_byte);
    let in_row = cols / group;
    let affine = Affine {
        bits: bits as u32,
        rows,
        cols,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            let of_groups = (range.start * in_row..range.end * in_row).zip(out.chunks_exact_mut(group));
            for (at, out) in of_groups {
                let shift = 8 - bits * (at / part + 1);
                let bytes = &stored[at % part * group..][..group];
                out.iter_mut()
                    .zip(bytes)
                    .for_each(|(out, byte)| *out = byte >> shift & ((1u16 << bits) - 1) as u8);
            }
        },
        factors: move |row, of| {
            let at = row * in_row + of;
            let scale = scale.at(at);
            (scale, -(scale * zero.at(at)))
        },
    };
    let sources = vec![weight.bytes.clone(), scales.bytes, zeros.bytes];
    Ok(affine.tensor(&weight, format!("{stem}.weight"), sources))
}
