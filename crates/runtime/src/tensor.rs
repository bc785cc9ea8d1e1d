//! One tensor of a model file, as stored: its name there, type, shape and bytes.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use hanzo_engine_kernels::{DType, quant};

use crate::error::LoadError;
use crate::mapped::ModelBytes;

/// A tensor, row-major: the last dimension is contiguous.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The file, for errors.
    pub file: Arc<str>,
    /// Its name in the file.
    pub name: String,
    /// How its numbers are stored.
    pub dtype: DType,
    /// Outermost dimension first; the last is whole blocks.
    pub shape: Vec<usize>,
    /// Exactly the bytes that shape and type take.
    pub bytes: ModelBytes,
}

impl Tensor {
    /// Numbers in it.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has this shape.
    ///
    /// # Errors
    /// `Corrupt` with both shapes where it has another.
    pub(crate) fn check_shape(&self, expected: &[usize]) -> Result<(), LoadError> {
        if self.shape == expected {
            return Ok(());
        }
        Err(LoadError::Corrupt {
            file: self.file.to_string(),
            what: format!("tensor {}", self.name),
            reason: format!("expected {expected:?}, file has {:?}", self.shape),
        })
    }

    /// Whether it has this shape, or takes it: of a matrix whose codes lie in groups some formats do not say how long rows are.
    ///
    /// # Errors
    /// As [`Tensor::check_shape`].
    pub(crate) fn take_shape(&mut self, expected: &[usize]) -> Result<(), LoadError> {
        let block = self.dtype.block_weights();
        if let (&[all], &[rows, cols]) = (self.shape.as_slice(), expected)
            && block > 1
            && cols.is_multiple_of(block)
            && rows.checked_mul(cols) == Some(all)
        {
            self.shape = expected.to_vec();
        }
        self.check_shape(expected)
    }

    /// That its type is none that can be used so.
    pub(crate) fn unsupported_type(&self, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.file.to_string(),
            key: format!("tensor {}: element type", self.name),
            value: self.dtype.to_string(),
            reason: reason.to_owned(),
        }
    }

    /// The tensors that this one holds along its outermost dimension, sharing its bytes.
    pub fn parts(&self) -> impl Iterator<Item = Tensor> {
        let (count, shape) = (self.shape[0], &self.shape[1..]);
        // Whole, because a part is whole rows, and those are whole blocks.
        let part_bytes = self.bytes.len() / count;
        (0..count).map(move |index| Tensor {
            file: self.file.clone(),
            name: format!("{}[{index}]", self.name),
            dtype: self.dtype,
            shape: shape.to_vec(),
            bytes: self
                .bytes
                .slice(index * part_bytes..(index + 1) * part_bytes)
                .expect("inside, because all parts together are not longer than the whole"),
        })
    }

    /// Rows along its outermost dimension, sharing its bytes.
    ///
    /// # Panics
    /// Outside of its rows.
    pub fn rows(&self, rows: Range<usize>) -> Tensor {
        assert!(rows.start <= rows.end && rows.end <= self.shape[0], "rows inside the tensor");
        // A row of a vector is one number, and of a matrix whole blocks.
        let row_bytes = self.bytes.len() / self.shape[0];
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Tensor {
            file: self.file.clone(),
            name: self.name.clone(),
            dtype: self.dtype,
            shape,
            bytes: self
                .bytes
                .slice(rows.start * row_bytes..rows.end * row_bytes)
                .expect("inside, because its rows are"),
        }
    }

    /// Itself, or where it is of 8-bit floats, which are quantised for all who change numbers, the same in BF16.
    pub(crate) fn widened(self) -> Tensor {
        let (from, cols) = (self.dtype, self.shape.last().copied().unwrap_or_default());
        let Some(stored_bytes) = from.bytes_of(cols).filter(|&bytes| from.is_fp8() && bytes > 0) else {
            return self;
        };
        let source = self.bytes.clone();
        let make = move |range: Range<usize>, out: &mut [u8]| {
            let Some(stored) = source.slice(range.start * stored_bytes..range.end * stored_bytes) else {
                return;
            };
            let (stored, mut values) = (stored.read(), vec![0.0; cols]);
            for (stored, out) in stored.chunks_exact(stored_bytes).zip(out.chunks_exact_mut(2 * cols)) {
                quant::dequantize_row(from, stored, &mut values);
                quant::quantize_row(DType::BF16, &values, out);
            }
        };
        let rows = self.elements() / cols;
        let bytes = ModelBytes::of_rows(rows, 2 * cols, vec![self.bytes.clone()], make);
        Tensor { dtype: DType::BF16, bytes, ..self }
    }

    /// Its numbers. For norm weights, biases and the like, which files keep unquantised.
    ///
    /// # Errors
    /// `Unsupported` for any type but F32, F16, BF16 and 8-bit floats.
    pub fn to_f32(&self) -> Result<Vec<f32>, LoadError> {
        let bytes = self.bytes.read();
        let halves = |convert: fn([u8; 2]) -> f32| -> Vec<f32> {
            bytes.as_chunks::<2>().0.iter().map(|&bytes| convert(bytes)).collect()
        };
        match self.dtype {
            DType::F32 => {
                Ok(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
            }
            DType::F16 => Ok(halves(|bytes| f16::from_le_bytes(bytes).to_f32())),
            DType::BF16 => Ok(halves(|bytes| bf16::from_le_bytes(bytes).to_f32())),
            dtype if dtype.is_fp8() => {
                let mut values = vec![0.0; self.elements()];
                quant::dequantize_row(dtype, &bytes, &mut values);
                Ok(values)
            }
            _ => Err(self.unsupported_type("norms and biases are F32, F16 or BF16")),
        }
    }
}
