//! Products of floats on every tier: how exact they are, what is not finite, and steps too large for one window.

use std::sync::Arc;

use super::product;
use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::quant::{dequantize_row, quantize_row};
use hanzo_engine_ops::{AnyBackend, DType, MatrixShape, MatrixSource};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Weights as a file holds them and as numbers, and their shape.
struct Weights {
    shape: MatrixShape,
    bytes: Vec<u8>,
    numbers: Vec<f32>,
}

impl Weights {
    fn new(dtype: DType, rows: usize, cols: usize, numbers: &[f32]) -> Weights {
        let mut bytes = vec![0; dtype.bytes_of(rows * cols).expect("floats have no blocks")];
        quantize_row(dtype, numbers, &mut bytes);
        let mut numbers = vec![0.0; rows * cols];
        dequantize_row(dtype, &bytes, &mut numbers);
        Weights { shape: MatrixShape { rows, cols, dtype }, bytes, numbers }
    }

    fn times(&self, tier: Tier, threads: usize, x: &[f32]) -> Vec<f32> {
        let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(threads)), tier));
        let source = MatrixSource { name: "w", shape: self.shape, bytes: &self.bytes };
        product(&mut backend, &source, x, x.len() / self.shape.cols).expect("a product")
    }
}

/// Numbers of mean 0 and variance 1, the same for a seed: sums of four uniform ones.
fn normals(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) * 3.0_f32.sqrt()).collect()
}

/// Errors as shares of `Σ|w x|`: root mean square, and the largest.
fn errors(weights: &Weights, x: &[f32], found: &[f32]) -> (f64, f64) {
    let MatrixShape { rows, cols, .. } = weights.shape;
    let (mut squares, mut largest) = (0.0, 0.0_f64);
    for (x, found) in x.chunks_exact(cols).zip(found.chunks_exact(rows)) {
        for (w, &found) in weights.numbers.chunks_exact(cols).zip(found) {
            let (mut sum, mut size) = (0.0, 0.0);
            for (&w, &x) in w.iter().zip(x) {
                sum += f64::from(w) * f64::from(x);
                size += (f64::from(w) * f64::from(x)).abs();
            }
            let error = (f64::from(found) - sum).abs() / size.max(1e-30);
            squares += error * error;
            largest = largest.max(error);
        }
    }
    ((squares / found.len() as f64).sqrt(), largest)
}

/// The figures that `amx::floats` states, with room for chance; rows that are not for the unit are as exact as f32.
#[test]
fn errors_are_those_of_f32_or_those_stated() {
    for (tier, dtype) in Tier::available().flat_map(|tier| FLOATS.map(|dtype| (tier, dtype))) {
        for cols in [5, 33, 384, 1536] {
            let weights = Weights::new(dtype, 48, cols, &normals(48 * cols, 7));
            let x = normals(40 * cols, 11);
            let (rms, largest) = errors(&weights, &x, &weights.times(tier, 2, &x));
            let (rms_max, largest_max) = if tier == Tier::Amx && cols > 16 {
                (1.4 * 4.4e-6 * (1.6 / cols as f64).sqrt(), 5.0 * 4.4e-6 * (1.6 / cols as f64).sqrt() + 2e-6)
            } else {
                (4e-7, 3e-6)
            };
            assert!(rms < rms_max && largest < largest_max, "{tier}, {dtype}, {cols}: {rms:e}, {largest:e}");
            // One number in each row outweighs all others.
            let mut spiky = x;
            spiky.iter_mut().step_by(cols).for_each(|x| *x = 1e4);
            let (rms, largest) = errors(&weights, &spiky, &weights.times(tier, 2, &spiky));
            assert!(rms < 1.5e-6 && largest < 1e-5, "{tier}, {dtype}, {cols}, spikes: {rms:e}, {largest:e}");
        }
    }
}

#[test]
fn infinities_stay_and_numbers_next_to_them_too() {
    for (tier, dtype) in Tier::available().flat_map(|tier| FLOATS.map(|dtype| (tier, dtype))) {
        let (rows, cols, count) = (20, 96, 20);
        let numbers: Vec<f32> = normals(rows * cols, 3).iter().map(|w| w.abs() + 0.1).collect();
        let weights = Weights::new(dtype, rows, cols, &numbers);
        let mut x = vec![0.5; count * cols];
        let plain = weights.times(tier, 2, &x);
        x[2 * cols + 7] = f32::INFINITY;
        x[3 * cols + 95] = f32::NEG_INFINITY;
        x[4 * cols] = f32::NAN;
        x[5 * cols + 40] = f32::from_bits(0x7f80_0001);
        x[6 * cols + 1] = f32::INFINITY;
        x[6 * cols + 2] = f32::NEG_INFINITY;
        // Rounds to no bfloat16, and times a tenth is a number.
        x[7 * cols..8 * cols].fill(0.0);
        x[7 * cols + 3] = f32::MAX;
        let found = weights.times(tier, 2, &x);
        for (row, found) in found.chunks_exact(rows).enumerate() {
            for (i, &found) in found.iter().enumerate() {
                let good = match row {
                    2 => found == f32::INFINITY,
                    3 => found == f32::NEG_INFINITY,
                    4..=6 => found.is_nan(),
                    7 => found == weights.numbers[i * cols + 3] * f32::MAX,
                    _ => found.to_bits() == plain[row * rows + i].to_bits(),
                };
                assert!(good, "{tier}, {dtype}: row {row}, output {i} is {found}");
            }
        }
        // A weight that is not finite makes what it is part of so, and nothing else.
        let mut numbers = numbers;
        numbers[5 * cols + 9] = f32::INFINITY;
        let weights = Weights::new(dtype, rows, cols, &numbers);
        for (row, found) in weights.times(tier, 2, &x[8 * cols..]).chunks_exact(rows).enumerate() {
            for (i, &found) in found.iter().enumerate() {
                let near = (found - plain[i]).abs() <= 1e-4 * plain[i].abs();
                assert!(
                    if i == 5 { found == f32::INFINITY } else { near },
                    "{tier}, {dtype}: {row}, {i}: {found}"
                );
            }
        }
    }
}

/// More columns than are prepared at a time, and than an item has; runs of inputs, and a last one that is none of 32.
#[test]
fn any_number_of_rows_has_the_same_bits() {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (tier, dtype) in Tier::available().flat_map(|tier| FLOATS.map(|dtype| (tier, dtype))) {
        for (rows, cols, count) in [(83, 1619, 1100), (33, 97, 70), (16, 5000, 900)] {
            if tier == Tier::Portable && count > 100 {
                continue;
            }
            let weights = Weights::new(dtype, rows, cols, &normals(rows * cols, 5));
            let mut x = normals(count * cols, 9);
            // Some rows are not for the matrix unit.
            x.iter_mut().step_by(7 * cols).for_each(|x| *x = 1e4);
            let all = weights.times(tier, 2, &x);
            assert!(bits(&weights.times(tier, 1, &x)) == bits(&all), "{tier}, {dtype}, {cols}: one thread");
            for (first, some) in
                [(0, 1), (7, 1), (3, 5), (count - 12, 12), (1, 16), (2, 17), (5, 48), (11, 57)]
            {
                let found = weights.times(tier, 2, &x[first * cols..][..some * cols]);
                let expected = &all[first * rows..][..some * rows];
                assert!(bits(&found) == bits(expected), "{tier}, {dtype}, {cols}: {some} rows from {first}");
            }
        }
    }
}
