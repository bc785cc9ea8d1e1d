//! Numbers in memory: how many there are, and whether they are what they are said to be.

use super::DEVICE;
use crate::quant::{can_dequantize, dequantize_row, quantize_row};
use crate::{DType, KernelError, MatrixShape, MatrixSource};

/// What is left of numbers that are stored in this type.
pub(super) fn store_rounded(dtype: DType, from: &[f32], to: &mut [f32]) {
    let size = dtype.bytes_of(from.len()).expect("heads are whole blocks, because `kv` refuses others");
    let mut bytes = vec![0; size];
    quantize_row(dtype, from, &mut bytes);
    dequantize_row(dtype, &bytes, to);
}

/// Numbers in memory, or that there is none.
pub(super) fn filled(count: usize, value: f32, what: &'static str) -> Result<Vec<f32>, KernelError> {
    let mut values = Vec::new();
    let bytes = count.saturating_mul(size_of::<f32>());
    let failed = |_| KernelError::OutOfMemory { device: DEVICE.to_owned(), bytes, what };
    values.try_reserve_exact(count).map_err(failed)?;
    values.resize(count, value);
    Ok(values)
}

/// Refuses a part of a matrix that is not what it says.
pub(super) fn check_source(part: &MatrixSource<'_>, cols_all: usize) -> Result<(), KernelError> {
    let MatrixShape { rows, cols, dtype } = part.shape;
    let tensor = part.name.to_owned();
    if !can_dequantize(dtype) {
        return Err(KernelError::UnsupportedType { tensor, dtype, device: DEVICE.to_owned() });
    }
    if cols != cols_all {
        let reason = format!("{cols} columns beside a part of {cols_all}");
        return Err(KernelError::BadShape { tensor, reason });
    }
    let Some(expected) = dtype.bytes_of(cols).and_then(|row| row.checked_mul(rows)) else {
        let reason = format!("a row of {cols} is not whole blocks of {} ({dtype})", dtype.block_weights());
        return Err(KernelError::BadShape { tensor, reason });
    };
    if part.bytes.len() != expected {
        return Err(KernelError::WrongSize { tensor, rows, cols, dtype, expected, found: part.bytes.len() });
    }
    Ok(())
}
