//! Matrices that are transformed when they are read, because files store them differently: with their inputs outermost
//! (GPT-2), with rows that must be divided by their lengths (Baichuan 2), or multiplied (Falcon-H1).

use hanzo_engine_ops::{DType, quant};

use super::resolve::Found;
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::spec::RowFactor;
use crate::tensor::Tensor;

/// Rows that are made together: a cache line for each stays available.
const ROWS_AT_ONCE: usize = 64;

/// Transposes a matrix to this shape.
pub(super) fn turn(found: &mut Found<'_>, name: &str, [rows, cols]: [usize; 2]) -> Result<(), LoadError> {
    let whole = found.take(name, &[cols, rows])?.widened();
    if whole.dtype.block_weights() != 1 {
        return Err(whole.unsupported_type(
            "matrices of this family have their inputs first, and blocks go along inputs",
        ));
    }
    let size = whole.dtype.block_bytes();
    let source = whole.bytes.clone();
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        let bytes = source.read();
        let parts = out.chunks_mut(ROWS_AT_ONCE * cols * size);
        for (first, part) in range.step_by(ROWS_AT_ONCE).zip(parts) {
            let count = part.len() / (cols * size);
            for col in 0..cols {
                let stored = &bytes[(col * rows + first) * size..][..count * size];
                for (row, number) in stored.chunks_exact(size).enumerate() {
                    part[(row * cols + col) * size..][..size].copy_from_slice(number);
                }
            }
        }
    };
    let bytes = ModelBytes::of_rows(rows, cols * size, vec![whole.bytes.clone()], make);
    found.put_back(Tensor { bytes, shape: vec![rows, cols], ..whole });
    Ok(())
}

/// Divides each row of a matrix by its length. Numbers are then below 1, so f16 keeps as many digits as any 16-bit
/// float.
pub(super) fn unit_rows(
    found: &mut Found<'_>,
    name: &str,
    [rows, cols]: [usize; 2],
) -> Result<(), LoadError> {
    let whole = found.take(name, &[rows, cols])?.widened();
    let stored = whole.dtype;
    if !matches!(stored, DType::F32 | DType::F16 | DType::BF16) {
        // By llama.cpp's instructions, files are made from a head that was divided before.
        if has_unit_rows(&whole, cols) {
            found.put_back(whole);
            return Ok(());
        }
        return Err(whole.unsupported_type(
            "rows of this model's head are yet to be divided by their lengths, which wants floats",
        ));
    }
    let stored_bytes = cols * stored.block_bytes();
    let source = whole.bytes.clone();
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        let bytes = source.read();
        let mut values = vec![0.0f32; cols];
        for (row, out) in range.zip(out.chunks_exact_mut(cols * DType::F16.block_bytes())) {
            quant::dequantize_row(stored, &bytes[row * stored_bytes..][..stored_bytes], &mut values);
            let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
            // As in the makers' class for rows of zeros.
            let length = squares.sqrt().max(1e-12);
            values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
            quant::quantize_row(DType::F16, &values, out);
        }
    };
    let bytes = ModelBytes::of_rows(rows, cols * DType::F16.block_bytes(), vec![whole.bytes.clone()], make);
    found.put_back(Tensor { bytes, dtype: DType::F16, ..whole });
    Ok(())
}

/// A matrix with its rows multiplied by factors. f16 replaces other 16-bit floats: numbers of 8 bits lose little in 11
/// bits.
pub(super) fn scaled(matrix: Tensor, factors: &[RowFactor]) -> Result<Tensor, LoadError> {
    let matrix = matrix.widened();
    let stored = matrix.dtype;
    let [rows, cols] = matrix.shape[..] else {
        return Err(matrix.unsupported_type("what rows are multiplied with is known of matrices alone"));
    };
    if !matches!(stored, DType::F32 | DType::F16 | DType::BF16) {
        return Err(matrix.unsupported_type(
            "rows of this family's matrices are yet to be multiplied, which wants floats",
        ));
    }
    let made = if stored == DType::F32 { DType::F32 } else { DType::F16 };
    let [stored_bytes, made_bytes] = [stored, made].map(|dtype| cols * dtype.block_bytes());
    let (source, factors) = (matrix.bytes.clone(), factors.to_vec());
    let make = move |range: std::ops::Range<usize>, out: &mut [u8]| {
        let bytes = source.read();
        let mut values = vec![0.0f32; cols];
        for (row, out) in range.zip(out.chunks_exact_mut(made_bytes)) {
            quant::dequantize_row(stored, &bytes[row * stored_bytes..][..stored_bytes], &mut values);
            for of in factors.iter().filter(|of| of.rows.contains(&row)) {
                values.iter_mut().for_each(|value| *value *= of.factor);
            }
            quant::quantize_row(made, &values, out);
        }
    };
    let bytes = ModelBytes::of_rows(rows, made_bytes, vec![matrix.bytes.clone()], make);
    Ok(Tensor { bytes, dtype: made, ..matrix })
}

/// Whether some of a quantised matrix's rows have length 1, up to quantisation errors.
fn has_unit_rows(matrix: &Tensor, cols: usize) -> bool {
    const EACH: usize = 64;
    let Some(row_bytes) = matrix.dtype.bytes_of(cols).filter(|_| quant::can_dequantize(matrix.dtype)) else {
        return false;
    };
    let bytes = matrix.bytes.read();
    let mut values = vec![0.0f32; cols];
    bytes.chunks_exact(row_bytes).step_by(EACH).all(|row| {
        quant::dequantize_row(matrix.dtype, row, &mut values);
        let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
        (0.9..1.1).contains(&squares.sqrt())
    })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::spec::huggingface_names;

    fn found(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Found<'static> {
        let file = "model.safetensors".into();
        let tensor = Tensor { name: "a".into(), dtype, shape: shape.to_vec(), bytes: bytes.into(), file };
        Found::new("model.safetensors", huggingface_names("gpt2"), vec![tensor]).unwrap()
    }

    #[test]
    fn rows_and_columns_change_places() {
        // More rows than are made together.
        let (rows, cols) = (150, 3);
        let stored: Vec<u8> = (0..rows * cols).flat_map(|at| (at as u16).to_le_bytes()).collect();
        let mut found = found(DType::F16, &[cols, rows], stored);
        turn(&mut found, "a", [rows, cols]).unwrap();
        let turned = found.take("a", &[rows, cols]).unwrap();
        let number =
            |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]) as usize;
        let all = turned.bytes.read();
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            assert_eq!(number(&all, row * cols + col), col * rows + row, "row {row}, column {col}");
        }
        // A part of it, as when queries, keys and values are split.
        assert_eq!(number(&turned.rows(70..140).bytes.read(), 1), rows + 70);
    }

    #[test]
    fn blocks_cannot_be_turned() {
        let mut found = found(DType::Q8_0, &[32, 32], vec![0; 32 * 34]);
        let error = turn(&mut found, "a", [32, 32]).unwrap_err().to_string();
        assert!(error.contains("tensor a: element type = Q8_0 is not supported"), "{error}");
    }

    /// Numbers as torch.nn.functional.normalize makes them.
    #[test]
    fn rows_have_length_one() {
        let stored: Vec<u8> =
            [3.0f32, 4.0, 0.5, -0.5, 0.0, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut of_floats = found(DType::F32, &[3, 2], stored);
        unit_rows(&mut of_floats, "a", [3, 2]).unwrap();
        let head = of_floats.take("a", &[3, 2]).unwrap();
        assert_eq!(
            head.to_f32().unwrap(),
            [0.6, 0.8, 0.707_106_77, -0.707_106_77, 0.0, 0.0].map(|x| { f16::from_f32(x).to_f32() })
        );
        // Blocks, of length 1 or of another.
        let blocks = |value: f32| {
            let mut bytes = vec![0; 34];
            quant::quantize_row(DType::Q8_0, &[value; 32], &mut bytes);
            found(DType::Q8_0, &[1, 32], bytes)
        };
        let mut divided = blocks(1.0 / 32f32.sqrt());
        unit_rows(&mut divided, "a", [1, 32]).unwrap();
        assert_eq!(divided.take("a", &[1, 32]).unwrap().dtype, DType::Q8_0);
        let error = unit_rows(&mut blocks(0.25), "a", [1, 32]).unwrap_err().to_string();
        assert!(error.contains("tensor a: element type = Q8_0 is not supported"), "{error}");
    }
}
