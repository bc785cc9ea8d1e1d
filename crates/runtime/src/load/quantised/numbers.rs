//! Numbers in the types of scales, zero points and weights of quantised checkpoints.

use half::{bf16, f16};
use hanzo_engine_ops::{DType, quant::e4m3};

use super::refused;
use crate::error::LoadError;
use crate::mapped::ModelBytes;
use crate::tensor::Tensor;

/// Numbers of a tensor, one at a time.
#[derive(Clone)]
pub(super) struct Numbers {
    bytes: ModelBytes,
    dtype: DType,
}

impl Numbers {
    /// # Errors
    /// `Unsupported` for types that cannot be read here.
    pub(super) fn of(tensor: &Tensor) -> Result<Self, LoadError> {
        use DType::*;
        let known = [F32, F16, BF16, F64, I8, U8, F8_E4M3, F8_E5M2, F8_E8M0];
        if !known.contains(&tensor.dtype) {
            return Err(refused(tensor, "scales and zero points are floats or bytes"));
        }
        Ok(Self { bytes: tensor.bytes.clone(), dtype: tensor.dtype })
    }

    /// Scales. Bytes stand for 8-bit floats of type `bytes_as`, if the format stores those as bytes.
    ///
    /// # Errors
    /// `Unsupported` for a type that scales cannot have.
    pub(super) fn scales(tensor: &Tensor, bytes_as: Option<DType>) -> Result<Self, LoadError> {
        use DType::*;
        let dtype = match (tensor.dtype, bytes_as) {
            (U8, Some(dtype)) => dtype,
            (dtype @ (F32 | F16 | BF16 | F64 | F8_E4M3 | F8_E5M2 | F8_E8M0), _) => dtype,
            _ => return Err(refused(tensor, "scales of this type are not understood; floats are read")),
        };
        Ok(Self { bytes: tensor.bytes.clone(), dtype })
    }

    /// Number `i`, in the tensor's order.
    pub(super) fn at(&self, i: usize) -> f32 {
        let size = self.dtype.block_bytes();
        let bytes = &self.bytes[i * size..(i + 1) * size];
        match (self.dtype, bytes) {
            (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (DType::I8, &[byte]) => f32::from(byte as i8),
            (DType::U8, &[byte]) => f32::from(byte),
            (DType::F8_E4M3, &[byte]) => e4m3(byte),
            (DType::F8_E5M2, &[byte]) => e5m2(byte),
            (DType::F8_E8M0, &[byte]) => e8m0(byte),
            (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (_, bytes) => bytes.first_chunk().map_or(f32::NAN, |bytes| f64::from_le_bytes(*bytes) as f32),
        }
    }
}

/// An 8-bit float with 5 bits of exponent: the upper byte of an IEEE half.
pub(super) fn e5m2(byte: u8) -> f32 {
    f16::from_le_bytes([0, byte]).to_f32()
}

/// A power of two.
pub(super) fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// 32-bit words.
#[derive(Clone)]
pub(super) struct Words(ModelBytes);

impl Words {
    /// # Errors
    /// `Corrupt` if a tensor has another type.
    pub(super) fn of(tensor: &Tensor) -> Result<Self, LoadError> {
        if !matches!(tensor.dtype, DType::I32 | DType::U32) {
            return Err(super::corrupt(tensor, format!("expected 32-bit integers, found {}", tensor.dtype)));
        }
        Ok(Self(tensor.bytes.clone()))
    }

    pub(super) fn at(&self, i: usize) -> u32 {
        let bytes = &self.0[4 * i..4 * i + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Code `i` of a string of bits whose words are `stride` apart, from word `first` on. A code may span two words.
    pub(super) fn code(&self, bits: u32, first: usize, stride: usize, i: usize) -> u32 {
        let (word, shift) = (i * bits as usize / 32, (i * bits as usize % 32) as u32);
        let low = self.at(first + word * stride) >> shift;
        let high = if shift + bits > 32 { self.at(first + (word + 1) * stride) << (32 - shift) } else { 0 };
        (low | high) & ((1 << bits) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_by_hand() {
        assert_eq!((e5m2(0x3c), e5m2(0xc0), e5m2(0x01)), (1.0, -2.0, 2f32.powi(-16)));
        assert_eq!((e8m0(127), e8m0(128), e8m0(0)), (1.0, 2.0, 2f32.powi(-127)));
    }
}
