//! Tests of weights of the types of 1 to 3 bits: a GPU must read every number as the reference does, in every kernel.

use half::f16;
use hanzo_engine_kernels_cuda::{CudaBackend, Device};
use hanzo_engine_ops::{DType, quant};

use crate::driver::card;
use crate::products::{OUTPUTS, ROWS, products};
use crate::replay::numbers;

const TYPES: [DType; 11] = [
    DType::IQ1_S,
    DType::IQ1_M,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::Q1_0,
    DType::Q2_0,
];
/// Two blocks of 256.
const COLS: usize = 512;

/// Blocks of so many numbers, with any codes except NaN under a scale of 0.01.
pub(crate) fn blocks(dtype: DType, seed: usize, count: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..dtype.bytes_of(count).expect("whole blocks")).map(|_| random()).collect();
    let scale = f16::from_f32(0.01).to_bits();
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        match dtype {
            DType::FP8 | DType::FP8_G32 => {
                block.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte ^= 1);
                block[..4].copy_from_slice(&0.01f32.to_le_bytes());
            }
            // Four bits of it are the upper ones of each of four words.
            DType::IQ1_M => {
                for part in 0..4 {
                    let byte = &mut block[49 + 2 * part];
                    *byte = *byte & 15 | (scale >> (4 * part) << 4) as u8;
                }
            }
            DType::TQ1_0 => block[52..].copy_from_slice(&scale.to_le_bytes()),
            DType::TQ2_0 => block[64..].copy_from_slice(&scale.to_le_bytes()),
            _ => block[..2].copy_from_slice(&scale.to_le_bytes()),
        }
    }
    bytes
}

/// Checks that the kernels for few, some, tens of and many rows give a row the same bits, in split precision and, if
/// stacked with F32, in tf32; and the right numbers up to rounding.
pub(crate) fn check_types<D: Device>(make: &dyn Fn() -> CudaBackend<D>, types: &[DType]) {
    let x = numbers(3, ROWS * COLS);
    let stored = |(seed, &dtype): (usize, &DType)| {
        let count = OUTPUTS * COLS;
        if dtype.block_weights() > 1 && !quant::can_quantize(dtype) {
            return (dtype, blocks(dtype, seed, count));
        }
        let mut bytes = vec![0; dtype.bytes_of(count).expect("numbers")];
        quant::quantize_row(dtype, &numbers(4, count), &mut bytes);
        (dtype, bytes)
    };
    let matrices: Vec<(DType, Vec<u8>)> = types.iter().enumerate().map(stored).collect();
    let mut weights = Vec::new();
    for (dtype, bytes) in &matrices {
        let first = weights.len();
        weights.resize(first + OUTPUTS * COLS, 0.0);
        quant::dequantize_row(*dtype, bytes, &mut weights[first..]);
    }
    let all = products(make(), &matrices, (&x, COLS));
    let outputs = types.len() * OUTPUTS;
    for (row, found) in all.chunks(outputs).enumerate() {
        for (output, (found, weights)) in found.iter().zip(weights.chunks(COLS)).enumerate() {
            let terms = || weights.iter().zip(&x[row * COLS..]).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (right, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            assert!(
                (f64::from(*found) - right).abs() < 1e-6 * size,
                "output {output} of row {row} of {types:?}: {found} for {right}"
            );
        }
    }
    for rows in [1, 9, 17] {
        let few = products(make(), &matrices, (&x[..rows * COLS], COLS));
        let same = few.iter().zip(&all).all(|(few, all)| few.to_bits() == all.to_bits());
        assert!(same, "{rows} rows of {types:?} differ from the same of {ROWS}");
    }
}

#[test]
fn products_of_few_bits_agree_to_the_bit() {
    let card = card();
    let make = || CudaBackend::new(card.clone());
    for dtype in TYPES {
        check_types(&make, &[dtype]);
    }
    // Parts of several types, also with F32.
    check_types(&make, &[DType::IQ2_XXS, DType::IQ1_S, DType::TQ1_0]);
    check_types(&make, &[DType::F32, DType::IQ3_S]);
}
