//! Codebooks of the types of 1 to 3 bits, in a device's memory once, one after the other (`cuda/few_bits.cuh`).

use std::sync::{Arc, OnceLock};

use hanzo_engine_ops::{DType, KernelError, quant};

use crate::device::{Device, Memory};

/// Types with a codebook, in the order in which kernels find them. IQ1_M uses that of IQ1_S.
const TYPES: [DType; 6] =
    [DType::IQ1_S, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S];
/// Bytes of all codebooks, as kernels count them.
pub(crate) const BYTES: usize = 33_792;

/// Codebooks on a device, uploaded for the first matrix that needs them.
pub(crate) struct Codebooks<D: Device>(OnceLock<Arc<Memory<D>>>);

impl<D: Device> Default for Codebooks<D> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<D: Device> Codebooks<D> {
    /// Codebooks for matrices of these types, if they need any.
    pub(crate) fn of(
        &self,
        device: &D,
        mut types: impl Iterator<Item = DType>,
    ) -> Result<Option<Arc<Memory<D>>>, KernelError> {
        if !types.any(|dtype| quant::codebook_of(dtype).is_some()) {
            return Ok(None);
        }
        if let Some(memory) = self.0.get() {
            return Ok(Some(memory.clone()));
        }
        let all: Vec<u8> = TYPES.into_iter().filter_map(quant::codebook_of).flatten().copied().collect();
        assert_eq!(all.len(), BYTES, "codebooks are where kernels look for them");
        let memory = Memory::unknown(device, BYTES, "codebooks")?;
        memory.write(0, &all)?;
        Ok(Some(self.0.get_or_init(|| memory).clone()))
    }
}
