//! Products of 8-bit floats on every tier: every code, what is no number, and how exact they are, streamed and expanded.

use std::sync::Arc;

use super::product;
use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::quant::{dequantize_row, e4m3};
use hanzo_engine_ops::{AnyBackend, DType, MatrixShape, MatrixSource};

const TYPES: [DType; 2] = [DType::FP8, DType::FP8_G32];

/// A matrix whose rows have all codes but NaN's in turn, each row beginning with another, and a scale a block.
fn matrix(dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(dtype.bytes_of(rows * cols).expect("whole blocks"));
    let block = dtype.block_weights();
    for at in 0..rows * cols / block {
        let scale = 0.013 * (1.0 + (at % 7) as f32) * if at % 5 == 0 { -1.0 } else { 1.0 };
        bytes.extend(f32::to_le_bytes(scale));
        // 0x7f and 0xff are no numbers.
        let codes = (0..block).map(|i| ((at * block + i + at / 2) * 73 % 256) as u8);
        bytes.extend(codes.map(|code| if code & 0x7f == 0x7f { code - 9 } else { code }));
    }
    bytes
}

fn times(tier: Tier, dtype: DType, [rows, cols]: [usize; 2], bytes: &[u8], x: &[f32]) -> Vec<f32> {
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
    let source = MatrixSource { name: "w", shape: MatrixShape { rows, cols, dtype }, bytes };
    product(&mut backend, &source, x, x.len() / cols).expect("a product")
}

/// A row of ones and zeros takes a weight out: it is the scale times the code, whatever code it is.
#[test]
fn every_code_is_its_number() {
    for (tier, dtype) in Tier::available().flat_map(|tier| TYPES.map(|dtype| (tier, dtype))) {
        let [rows, cols] = [72, 256];
        let bytes = matrix(dtype, rows, cols);
        let mut numbers = vec![0.0; rows * cols];
        dequantize_row(dtype, &bytes, &mut numbers);
        let codes = bytes.chunks_exact(dtype.block_bytes()).flat_map(|block| &block[4..]);
        let mut seen: Vec<u8> = codes.copied().collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 254);
        let mut x = vec![0.0; cols * cols];
        x.iter_mut().step_by(cols + 1).for_each(|x| *x = 1.0);
        for (first, count) in [(0, 1), (1, 2), (3, 3), (6, 5), (11, 9), (20, 236)] {
            let found = times(tier, dtype, [rows, cols], &bytes, &x[first * cols..][..count * cols]);
            for (i, &found) in found.iter().enumerate() {
                let expected = numbers[i % rows * cols + first + i / rows];
                // Zeros have either sign in a sum.
                assert!(
                    found == expected,
                    "{tier}, {dtype}, {count} columns, {i}: {found:e} is not {expected:e}"
                );
            }
        }
    }
}

#[test]
fn errors_are_those_of_f32() {
    for (tier, dtype) in Tier::available().flat_map(|tier| TYPES.map(|dtype| (tier, dtype))) {
        let [rows, cols, count] = [83, 640, 40];
        let bytes = matrix(dtype, rows, cols);
        let mut numbers = vec![0.0; rows * cols];
        dequantize_row(dtype, &bytes, &mut numbers);
        let x: Vec<f32> = (0..count * cols).map(|i| ((i * 7919 % 1013) as f32 - 506.0) / 300.0).collect();
        let found = times(tier, dtype, [rows, cols], &bytes, &x);
        for (i, &found) in found.iter().enumerate() {
            let (w, x) = (&numbers[i % rows * cols..][..cols], &x[i / rows * cols..][..cols]);
            let products = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (sum, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
            let error = (f64::from(found) - sum).abs() / size;
            // What `amx::floats` states is more than f32's.
            let allowed = if tier == Tier::Amx { 4e-6 } else { 1e-6 };
            assert!(error < allowed, "{tier}, {dtype}, {i}: {error:e}");
        }
        // Alone, in part, and among all, on streams and on what is expanded, the bits are the same.
        for (first, some) in [(0, 1), (7, 2), (3, 3), (1, 7), (2, 9), (20, 17)] {
            let part = times(tier, dtype, [rows, cols], &bytes, &x[first * cols..][..some * cols]);
            let same = part.iter().zip(&found[first * rows..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{tier}, {dtype}: {some} rows from {first}");
        }
    }
}

/// A weight that is no number makes its row's products none, and no other's; nor does a scale that is none, or infinite.
#[test]
fn what_is_no_number_stays_none() {
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    for (tier, dtype) in Tier::available().flat_map(|tier| TYPES.map(|dtype| (tier, dtype))) {
        let [rows, cols] = [40, 256];
        let good = matrix(dtype, rows, cols);
        let row_bytes = good.len() / rows;
        let mut bad = good.clone();
        bad[5 * row_bytes + 4 + 17] = 0x7f;
        bad[23 * row_bytes + row_bytes - 1] = 0xff;
        bad[30 * row_bytes..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        bad[31 * row_bytes..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        for count in [1, 12, 33] {
            let x: Vec<f32> = (0..count * cols).map(|i| (i as f32 * 0.37).sin() + 0.1).collect();
            let [good, bad] = [&good, &bad].map(|bytes| times(tier, dtype, [rows, cols], bytes, &x));
            for (i, (good, bad)) in good.iter().zip(&bad).enumerate() {
                let near = (good - bad).abs() <= 1e-4 * good.abs() + 0.1;
                let right = if [5, 23, 30, 31].contains(&(i % rows)) { !bad.is_finite() } else { near };
                assert!(right, "{tier}, {dtype}, {count} columns, {i}: {bad} beside {good}");
            }
        }
    }
}
