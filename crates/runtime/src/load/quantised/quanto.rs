//! Quanto: bytes with a scale for each row, or 2 and 4 bits with a scale and a shift for each group.

use std::ops::Range;

use hanzo_engine_ops::DType;

use super::made::Affine;
use super::numbers::Numbers;
use super::settings::Settings;
use super::{Parts, corrupt, refused, scaled};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// `X._data` and `X._scale` of a weight `X`: `w = scale * number`.
pub(super) fn bytes(settings: &Settings, parts: &mut Parts, name: &str) -> Result<Tensor, LoadError> {
    let mut weight = parts.take(&format!("{name}._data"))?;
    let scales = parts.take(&format!("{name}._scale"))?;
    name.clone_into(&mut weight.name);
    match weight.dtype {
        DType::I8 => scaled::bytes(settings, weight, &scales, None, 1.0),
        DType::F8_E4M3 | DType::F8_E5M2 => scaled::floats(settings, weight, &scales),
        _ => Err(refused(&weight, "Quanto's weights are bytes or 8-bit floats, or packed beside a shift")),
    }
}

/// `X._data._data`, `X._scale` and `X._shift` of a weight `X`. Groups are rows, which are divided into as many parts
/// as codes fit a byte, with the first part in the lowest bits. The shift is a float, subtracted from the product, or
/// an integer, subtracted from the code. The file does not contain the number of groups in a row of the matrix, so the
/// result is flat.
pub(super) fn groups(parts: &mut Parts, name: &str) -> Result<Tensor, LoadError> {
    let weight = parts.take(&format!("{name}._data._data"))?;
    let scales = parts.take(&format!("{name}._scale"))?;
    let shifts = parts.take(&format!("{name}._shift"))?;
    let &[stored, group] = weight.shape.as_slice() else {
        return Err(corrupt(&weight, format!("expected groups of codes, found {:?}", weight.shape)));
    };
    let groups = scales.elements();
    let bits = [4, 2].into_iter().find(|bits| groups.div_ceil(8 / bits) == stored);
    let (Some(bits), DType::U8) = (bits, weight.dtype) else {
        let reason = format!("{:?} of {} are not {groups} groups of 2 or 4 bits", weight.shape, weight.dtype);
        return Err(corrupt(&weight, reason));
    };
    if shifts.elements() != groups {
        return Err(corrupt(&shifts, format!("{:?} for {groups} groups", shifts.shape)));
    }
    if !group.is_multiple_of(32) {
        return Err(refused(&weight, "groups of Quanto's are read in whole 32 weights"));
    }
    let (scale, shift) = (Numbers::scales(&scales, None)?, Numbers::of(&shifts)?);
    let of_codes = matches!(shifts.dtype, DType::I8 | DType::U8);
    let sources = vec![weight.bytes.clone(), scales.bytes, shifts.bytes];
    let bytes = weight.bytes.clone();
    let affine = Affine {
        bits: bits as u32,
        rows: groups,
        cols: group,
        group,
        group_of: None,
        codes: move |range: Range<usize>, out: &mut [u8]| {
            for (at, out) in range.zip(out.chunks_exact_mut(group)) {
                let (bytes, low) = (&bytes[at % stored * group..][..group], bits * (at / stored));
                out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte >> low & ((1 << bits) - 1));
            }
        },
        factors: move |at, _| {
            let (scale, shift) = (scale.at(at), shift.at(at));
            (scale, if of_codes { -(scale * shift) } else { -shift })
        },
    };
    let mut tensor = affine.tensor(&weight, name.to_owned(), sources);
    tensor.shape = vec![groups * group];
    Ok(tensor)
}
