//! Tensor of a model file, as stored: name, type, shape and bytes.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use hanzo_engine_ops::{DType, quant};

use crate::error::LoadError;
use crate::mapped::ModelBytes;

/// Tensor in row-major order: the last dimension is contiguous.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name of the file, for errors.
    pub file: Arc<str>,
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, the outermost first; the last consists of whole quantisation blocks.
    pub shape: Vec<usize>,
    /// Exactly the bytes for its shape and type.
    pub bytes: ModelBytes,
}

/// Tensor as stored in its file, of any type.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Element type, as the file names it.
    pub dtype: String,
    /// Number of elements.
    pub elements: u64,
    /// Bytes in the file.
    pub bytes: u64,
}

impl Tensor {
    /// Number of elements.
    #[inline]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks the shape.
    ///
    /// # Errors
    /// `Corrupt` with both shapes if it differs.
    pub fn check_shape(&self, expected: &[usize]) -> Result<(), LoadError> {
        if self.shape == expected {
            return Ok(());
        }
        Err(self.corrupt(format!("expected {expected:?}, file has {:?}", self.shape)))
    }

    /// Error for a tensor that makes no sense.
    pub fn corrupt(&self, reason: impl Into<String>) -> LoadError {
        let what = format!("tensor {}", self.name);
        LoadError::Corrupt { file: self.file.to_string(), what, reason: reason.into() }
    }

    /// Checks the shape, or sets it: for a matrix whose codes lie in groups, some formats do not state the length
    /// of its rows.
    ///
    /// # Errors
    /// As for [`Tensor::check_shape`].
    pub fn take_shape(&mut self, expected: &[usize]) -> Result<(), LoadError> {
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

    /// Error for a type that cannot be used here.
    pub fn unsupported_type(&self, reason: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.file.to_string(),
            key: format!("tensor {}: element type", self.name),
            value: self.dtype.to_string(),
            reason: reason.to_owned(),
        }
    }

    /// The tensors along the outermost dimension, sharing its bytes.
    pub fn parts(&self) -> impl Iterator<Item = Tensor> {
        let (count, shape) = (self.shape[0], &self.shape[1..]);
        // A part is whole rows, and a row is whole blocks, so nothing is left over.
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

    /// Rows along the outermost dimension, sharing its bytes.
    ///
    /// # Panics
    /// If `rows` is out of bounds.
    pub fn rows(&self, rows: Range<usize>) -> Tensor {
        assert!(rows.start <= rows.end && rows.end <= self.shape[0], "rows inside the tensor");
        // A row of a vector is one number; a row of a matrix is whole blocks.
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

    /// Converts 8-bit floats to BF16 when read. Other types stay as they are. Code that changes weights expects
    /// 8-bit floats to be dequantised.
    pub fn widened(self) -> Tensor {
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

    /// Elements as floats. For norm weights, biases and the like, which files keep unquantised.
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

    /// Elements as floats. Matrices are decoded from any type that has a decoder.
    ///
    /// # Errors
    /// `Unsupported` for other types, and for vectors as [`Tensor::to_f32`].
    pub fn decoded(&self) -> Result<Vec<f32>, LoadError> {
        if self.shape.len() < 2 || !quant::can_dequantize(self.dtype) {
            return self.to_f32();
        }
        let mut values = vec![0.0; self.elements()];
        quant::dequantize_row(self.dtype, &self.bytes.read(), &mut values);
        Ok(values)
    }
}
