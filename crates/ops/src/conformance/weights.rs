//! Random weights of every type: random codes, so that every bit of a block matters, under scales like those of
//! real files, among them zeros, subnormals, large ones and both signs.

use half::f16;

use super::random::Random;
use crate::quant::{can_dequantize, dequantize_row, quantize_row};
use crate::{AnyBackend, DType, MatrixShape, MatrixSource};

/// Part of a matrix, in a file's form and as numbers.
pub(super) struct Weights {
    pub(super) shape: MatrixShape,
    pub(super) bytes: Vec<u8>,
    pub(super) floats: Vec<f32>, // (rows, cols)
}

impl Weights {
    pub(super) fn random(dtype: DType, rows: usize, cols: usize, random: &mut Random) -> Self {
        let shape = MatrixShape { rows, cols, dtype };
        let size = dtype
            .bytes_of(rows * cols)
            .unwrap_or_else(|| panic!("{dtype}: {cols} columns are not whole blocks"));
        let mut bytes = vec![0; size];
        let row_size = size / rows;
        for (row, bytes) in bytes.chunks_exact_mut(row_size).enumerate() {
            match dtype {
                DType::F32 | DType::F16 | DType::BF16 => {
                    let weights: Vec<f32> = random.normals(cols).iter().map(|w| w * 0.05).collect();
                    quantize_row(dtype, &weights, bytes);
                }
                _ => bytes
                    .chunks_exact_mut(dtype.block_bytes())
                    .for_each(|block| fill(dtype, block, row, random)),
            }
        }
        let mut floats = vec![0.0; rows * cols];
        dequantize_row(dtype, &bytes, &mut floats);
        Self { shape, bytes, floats }
    }

    /// Numbers, `(rows, cols)`, as a type that can be encoded keeps them.
    pub(super) fn of(dtype: DType, rows: usize, cols: usize, numbers: &[f32]) -> Self {
        let size = dtype
            .bytes_of(rows * cols)
            .unwrap_or_else(|| panic!("{dtype}: {cols} columns are not whole blocks"));
        let (mut bytes, mut floats) = (vec![0; size], vec![0.0; rows * cols]);
        quantize_row(dtype, numbers, &mut bytes);
        dequantize_row(dtype, &bytes, &mut floats);
        Self { shape: MatrixShape { rows, cols, dtype }, bytes, floats }
    }

    pub(super) fn source(&self) -> MatrixSource<'_> {
        MatrixSource { name: "weights", shape: self.shape, bytes: &self.bytes }
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.floats[row * self.shape.cols..][..self.shape.cols]
    }
}

/// Types that a backend supports; the reference must be able to decode each. Of affine types that differ only in the
/// length of their groups it has one, except for those of 4 bits.
pub(super) fn supported(backend: &AnyBackend) -> Vec<DType> {
    let types: Vec<DType> = DType::ALL.iter().copied().filter(|&dtype| backend.supports(dtype)).collect();
    for &dtype in &types {
        assert!(
            can_dequantize(dtype),
            "{} supports {dtype}, which no reference can check",
            backend.facts().device
        );
    }
    let is_of_many = |dtype: &DType| dtype.affine().is_some_and(|(bits, group)| bits != 4 && group != 64);
    let types: Vec<DType> = types.into_iter().filter(|dtype| !is_of_many(dtype)).collect();
    assert!(!types.is_empty(), "{} supports no type at all", backend.facts().device);
    types
}

/// Whether a backend may round activations to 8 bits for these weights.
pub(super) fn quantised(dtype: DType) -> bool {
    dtype.block_weights() > 1
}

/// Offset of a block's f16 scale, offset of its minimum, and the usual size of the scale.
fn scales(dtype: DType) -> (usize, Option<usize>, f32) {
    match dtype {
        DType::Q1_0 => (0, None, 0.04),
        DType::Q2_0 => (0, None, 0.03),
        DType::Q4_0 => (0, None, 6e-3),
        DType::Q4_1 => (0, Some(2), 6e-3),
        DType::Q5_0 => (0, None, 3e-3),
        DType::Q5_1 => (0, Some(2), 3e-3),
        DType::Q8_0 => (0, None, 4e-4),
        DType::Q2_K => (80, Some(82), 2e-3),
        DType::Q3_K => (108, None, 5e-4),
        DType::Q4_K => (0, Some(2), 1e-4),
        DType::Q5_K => (0, Some(2), 5e-5),
        DType::Q6_K => (208, None, 2e-5),
        DType::IQ4_NL => (0, None, 4e-4),
        DType::IQ4_XS => (0, None, 2e-5),
        DType::IQ1_S => (0, None, 3e-3),
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => (0, None, 3e-4),
        DType::IQ3_XXS | DType::IQ3_S => (0, None, 1e-4),
        DType::TQ1_0 => (52, None, 0.02),
        DType::TQ2_0 => (64, None, 0.02),
        _ => unreachable!("{dtype} has no half-precision scale, or none that is known here"),
    }
}

/// Fills a block with random codes under a plausible scale. Of each eight rows one has large scales, one tiny ones, and
/// one only zeros (if the format has a zero scale).
fn fill(dtype: DType, block: &mut [u8], row: usize, random: &mut Random) {
    block.iter_mut().for_each(|byte| *byte = random.bits() as u8);
    let factor = match row % 8 {
        3 => 100.0,
        5 => 0.004,
        6 => 0.0,
        _ => 0.25 + random.uniform(),
    };
    if dtype == DType::MXFP4 {
        block[0] = if factor == 0.0 { 110 } else { (121 + random.below(4)) as u8 };
        return;
    }
    if dtype == DType::NVFP4 {
        // Four scales of 8 bits, of 16 weights each: 0, the least of all, some hundredth, or one.
        for scale in &mut block[..4] {
            *scale = match row % 8 {
                3 => 0x38,
                5 => 0x01,
                6 => 0x00,
                _ => 0x04 + random.below(12) as u8,
            };
        }
        return;
    }
    if dtype == DType::IQ1_M {
        // The scale lies in the top nibbles of four words, the lowest first.
        let bits = f16::from_f32(3e-3 * factor).to_bits();
        for part in 0..4 {
            let byte = &mut block[49 + 2 * part];
            *byte = (*byte & 15) | ((bits >> (4 * part) & 15) << 4) as u8;
        }
        return;
    }
    if let Some((bits, _)) = dtype.affine() {
        let scale = 0.05 / (1u32 << bits) as f32 * factor * if random.below(4) == 0 { -1.0 } else { 1.0 };
        let bias = scale * -((1u32 << bits) as f32) * random.uniform();
        block[..4].copy_from_slice(&scale.to_le_bytes());
        block[4..8].copy_from_slice(&bias.to_le_bytes());
        return;
    }
    if dtype.is_fp8() {
        // No NaN, which is two of 256 codes.
        block.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte ^= 1);
        let scale = 3e-4 * factor * if random.below(4) == 0 { -1.0f32 } else { 1.0 };
        block[..4].copy_from_slice(&scale.to_le_bytes());
        return;
    }
    let (scale_at, min_at, usual) = scales(dtype);
    let mut put =
        |at: usize, scale: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    let sign = if random.below(4) == 0 { -1.0 } else { 1.0 };
    put(scale_at, sign * usual * factor);
    if let Some(at) = min_at {
        // Q4_1 and Q5_1 add their minimum as it is; the K-quants subtract a multiple of up to 63 (15 for Q2_K).
        let min = if matches!(dtype, DType::Q4_1 | DType::Q5_1) { -8.0 * usual } else { 4.0 * usual };
        put(at, min * factor * (0.5 + random.uniform()));
    }
}
