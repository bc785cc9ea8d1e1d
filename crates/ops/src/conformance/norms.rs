//! Checks of `rms_norm`, of `layer_norm`, of both after an addition, and of a layer norm of some columns.

use super::bounds::{CaseErrors, FLOAT, hold, same_bits};
use super::linear::{activations, gather};
use super::random::Random;
use super::rig::{Rig, rows_batch};
use crate::reference::formulas;
use crate::{AnyBackend, BufferRole, LayerNormParams, NormColumns, Rounding};

const ROWS_MAX: usize = 33;
const SHAPES: [(usize, usize, f32); 7] = [
    (1, 64, 1e-6),
    (ROWS_MAX, 64, 1e-5),
    (16, 33, 1e-6),
    (7, 5, 1e-2),
    (9, 1000, 1e-6),
    (3, 4096, 1e-5),
    (17, 320, 1e-12),
];

/// Checks `rms_norm`: any width, zero, tiny and huge rows, the same bits in any batch.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_rms_norm(make: &dyn Fn() -> AnyBackend) {
    check(make, 10, "rms_norm", |rig, x, cols, weight, eps| {
        let rows = x.len() / cols;
        let weight = rig.vector(weight);
        let x = rig.upload_sum(x, cols);
        let mut out = rig.blank(rows, cols);
        rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.rms_norm(&x, &weight, eps, &mut out));
        rig.download("rms_norm", &out, rows, cols)
    });
    check_parts(make);
}

/// Checks parts of rows that are normed separately.
fn check_parts(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 4096, 1);
    let mut random = Random::new(16);
    for (rows, cols, parts) in [(5, 33, 3), (ROWS_MAX, 64, 2)] {
        let weight = random.normals(cols);
        let mut x = activations(rows * parts, cols, &mut random);
        hold(rig.rounding, &mut x);
        let (weights, buffer) = (rig.vector(&weight), rig.upload_sum(&x, parts * cols));
        let mut out = rig.blank(rows, parts * cols);
        rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.rms_norm(&buffer, &weights, 1e-6, &mut out));
        let found = rig.download("rms_norm", &out, rows, parts * cols);
        compare(&format!("rms_norm in {parts} parts"), rig.rounding, &found, &x, &weight, 1e-6);
    }
}

/// Checks `add_rms_norm`: as `rms_norm`, and the residual to the bit.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_add_rms_norm(make: &dyn Fn() -> AnyBackend) {
    check(make, 11, "add_rms_norm", |rig, sum, cols, weight, eps| {
        let rows = sum.len() / cols;
        let weight = rig.vector(weight);
        // Halves add up exactly to the row whose norm is expected.
        let half: Vec<f32> = sum.iter().map(|v| v * 0.5).collect();
        let twice: Vec<f32> = half.iter().map(|v| v * 2.0).collect();
        let mut residual = rig.upload_sum(&half, cols);
        let x = rig.upload(&half, cols);
        let mut out = rig.blank(rows, cols);
        rig.step(&rows_batch(&vec![0; rows]), |rig| {
            rig.backend.add_rms_norm(&mut residual, &x, &weight, eps, &mut out);
        });
        same_bits("add_rms_norm, residual", &rig.download("residual", &residual, rows, cols), &twice, cols);
        rig.download("add_rms_norm", &out, rows, cols)
    });
    check_unequal_halves(make);
}

/// Checks a residual and an addend that differ, so that one cannot be mistaken for the other.
fn check_unequal_halves(make: &dyn Fn() -> AnyBackend) {
    let (rows, cols) = (6, 96);
    let mut rig = Rig::for_rows(make(), ROWS_MAX, cols, 1);
    let mut random = Random::new(12);
    let (before, mut x) = (random.normals(rows * cols), random.normals(rows * cols));
    hold(rig.rounding, &mut x);
    let after: Vec<f32> = before.iter().zip(&x).map(|(a, b)| a + b).collect();
    let weight = rig.vector(&vec![1.0; cols]);
    let mut residual = rig.upload_sum(&before, cols);
    let added = rig.upload(&x, cols);
    let mut out = rig.blank(rows, cols);
    rig.step(&rows_batch(&vec![0; rows]), |rig| {
        rig.backend.add_rms_norm(&mut residual, &added, &weight, 1e-6, &mut out);
    });
    same_bits("add_rms_norm, residual", &rig.download("residual", &residual, rows, cols), &after, cols);
    same_bits("add_rms_norm, x", &rig.download("x", &added, rows, cols), &x, cols);
    let found = rig.download("add_rms_norm", &out, rows, cols);
    compare("add_rms_norm", rig.rounding, &found, &after, &vec![1.0; cols], 1e-6);
}

/// Checks `layer_norm`: any width, with and without a bias, rows far from 0, zero, tiny and huge rows, the same bits
/// in any batch.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_layer_norm(make: &dyn Fn() -> AnyBackend) {
    check_layers(make, 13, "layer_norm", |rig, x, cols, params, out| {
        let x = rig.upload_sum(x, cols);
        rig.step(&rows_batch(&vec![0; out.1]), |rig| rig.backend.layer_norm(&x, params, &mut out.0));
    });
}

/// Checks `add_layer_norm`: as `layer_norm`, and the residual to the bit.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_add_layer_norm(make: &dyn Fn() -> AnyBackend) {
    check_layers(make, 14, "add_layer_norm", |rig, sum, cols, params, out| {
        // A quarter and three quarters, which cannot be mistaken for each other and add up to the bit.
        let quarter: Vec<f32> = sum.iter().map(|v| v * 0.25).collect();
        let rest: Vec<f32> = sum.iter().zip(&quarter).map(|(sum, quarter)| sum - quarter).collect();
        let total: Vec<f32> = quarter.iter().zip(&rest).map(|(a, b)| a + b).collect();
        let (mut residual, x) = (rig.upload_sum(&rest, cols), rig.upload(&quarter, cols));
        rig.step(&rows_batch(&vec![0; out.1]), |rig| {
            rig.backend.add_layer_norm(&mut residual, &x, params, &mut out.0);
        });
        same_bits(
            "add_layer_norm, residual",
            &rig.download("residual", &residual, out.1, cols),
            &total,
            cols,
        );
        same_bits("add_layer_norm, x", &rig.download("x", &x, out.1, cols), &quarter, cols);
    });
}

/// Checks `layer_norm_columns`: the normed columns have the bits of `layer_norm`, all together or in separate parts,
/// and the others stay as they were.
///
/// # Panics
/// If a bit differs.
pub fn check_layer_norm_columns(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 4096, 1);
    let mut random = Random::new(15);
    for (case, (rows, cols, first, count, width)) in [
        (ROWS_MAX, 192, 64, 64, 64),
        (5, 64, 0, 64, 64),
        (9, 100, 37, 33, 33),
        (1, 3000, 1000, 1000, 1000),
        (7, 200, 24, 128, 32),
        (3, 90, 10, 70, 14),
    ]
    .into_iter()
    .enumerate()
    {
        let (weights, biases) = (random.normals(count), random.normals(count));
        let (weight, bias) = (rig.vector(&weights), rig.vector(&biases));
        let bias = (case % 2 == 0).then_some(&bias);
        let params = LayerNormParams { weight: &weight, bias, eps: 1e-3 };
        let mut x = activations(rows, cols, &mut random);
        hold(rig.rounding, &mut x);
        let mut found = rig.upload(&x, cols);
        rig.step(&rows_batch(&vec![0; rows]), |rig| {
            rig.backend.layer_norm_columns(&mut found, NormColumns { first, width }, &params);
        });
        let mut expected = x.clone();
        for at in (0..count).step_by(width) {
            let part = x.chunks_exact(cols).flat_map(|row| &row[first + at..first + at + width]).copied();
            let part = rig.upload(&part.collect::<Vec<f32>>(), width);
            let mut normed = rig.blank(rows, width);
            let (weight, bias) = (rig.vector(&weights[at..at + width]), rig.vector(&biases[at..at + width]));
            let bias = (case % 2 == 0).then_some(&bias);
            let params = LayerNormParams { weight: &weight, bias, eps: 1e-3 };
            rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.layer_norm(&part, &params, &mut normed));
            let normed = rig.download("layer_norm", &normed, rows, width);
            for (row, normed) in expected.chunks_exact_mut(cols).zip(normed.chunks_exact(width)) {
                row[first + at..first + at + width].copy_from_slice(normed);
            }
        }
        let what = format!("layer_norm_columns {first}..{} by {width} of [{rows}, {cols}]", first + count);
        same_bits(&what, &rig.download("layer_norm_columns", &found, rows, cols), &expected, cols);
    }
}

/// Runs a layer norm on rows of every awkward kind; `run` writes to a buffer of so many rows.
fn check_layers(
    make: &dyn Fn() -> AnyBackend,
    seed: u64,
    name: &str,
    run: impl Fn(&mut Rig, &[f32], usize, &LayerNormParams<&crate::Vector>, &mut (crate::Buffer, usize)),
) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 4096, 1);
    let mut random = Random::new(seed);
    for (case, (rows, cols, eps)) in SHAPES.into_iter().enumerate() {
        let (weight, bias) = (random.normals(cols), random.normals(cols));
        let mut x = activations(rows, cols, &mut random);
        // Every third row lies far from 0, where a difference of squares would lose all digits.
        for row in x.chunks_exact_mut(cols).step_by(3) {
            row.iter_mut().for_each(|x| *x += 300.0);
        }
        hold(rig.rounding, &mut x);
        let bias = (case % 3 != 1).then_some(&bias[..]);
        let (weights, biases) = (rig.vector(&weight), bias.map(|bias| rig.vector(bias)));
        let params = LayerNormParams { weight: &weights, bias: biases.as_ref(), eps };
        let with = if bias.is_some() { ", with bias" } else { "" };
        let what = format!("{name} [{rows}, {cols}], eps {eps:e}{with}");
        let rounding = rig.rounding;
        let mut normed = |x: &[f32]| {
            let rows = x.len() / cols;
            let mut out = (rig.blank(rows, cols), rows);
            run(&mut rig, x, cols, &params, &mut out);
            rig.download(name, &out.0, rows, cols)
        };
        let all = normed(&x);
        let mut errors = CaseErrors::of_operands(what.clone(), rounding);
        for (row, x) in x.chunks_exact(cols).enumerate() {
            let mut expected = vec![0.0; cols];
            formulas::layer_norm(x, &weight, bias, eps, &mut expected);
            for (col, sigma) in layer_sigmas(x, &weight, bias, eps).into_iter().enumerate() {
                errors.check(row, col, all[row * cols + col], expected[col], sigma, 1e-28);
            }
        }
        errors.finish();
        for batch in [1, 2, 5, 16].into_iter().filter(|&batch| batch <= rows) {
            let chosen = &random.permutation(rows)[..batch];
            let found = normed(&gather(&x, cols, chosen));
            same_bits(&format!("{what}, batch of {batch}"), &found, &gather(&all, cols, chosen), cols);
        }
    }
}

/// σ of a layer norm: the mean is rounded like its numbers, which moves a number's distance from it. Besides [`FLOAT`]
/// of the output itself, the variance may be off by that much.
fn layer_sigmas(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let size = x.iter().map(|&x| f64::from(x).abs()).sum::<f64>() / count;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    let factor = 1.0 / (variance + f64::from(eps)).sqrt();
    // An error of the mean enters the variance squared.
    let mean_sigma = 0.1 * FLOAT * size;
    let stretch = FLOAT + (8.0 * mean_sigma * factor).powi(2);
    let sigma = |(i, &x): (usize, &f32)| {
        let apart = (f64::from(x) - mean).abs();
        let bias = bias.map_or(0.0, |bias| f64::from(bias[i]).abs());
        f64::from(weight[i]).abs() * factor * (mean_sigma + apart * stretch) + FLOAT * bias
    };
    x.iter().enumerate().map(sigma).collect()
}

fn check(
    make: &dyn Fn() -> AnyBackend,
    seed: u64,
    name: &str,
    mut run: impl FnMut(&mut Rig, &[f32], usize, &[f32], f32) -> Vec<f32>,
) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 4096, 1);
    let mut random = Random::new(seed);
    for (i, (rows, cols, eps)) in SHAPES.into_iter().enumerate() {
        rig.role = [BufferRole::Operand, BufferRole::Residual][i % 2];
        let weight = random.normals(cols);
        let mut x = activations(rows, cols, &mut random);
        hold(rig.rounding, &mut x);
        let all = run(&mut rig, &x, cols, &weight, eps);
        let what = format!("{name} [{rows}, {cols}], eps {eps:e}");
        compare(&what, rig.rounding, &all, &x, &weight, eps);
        for batch in [1, 2, 5, 16].into_iter().filter(|&batch| batch <= rows) {
            let chosen = &random.permutation(rows)[..batch];
            let found = run(&mut rig, &gather(&x, cols, chosen), cols, &weight, eps);
            same_bits(&format!("{name} [{batch}, {cols}]"), &found, &gather(&all, cols, chosen), cols);
        }
    }
}

fn compare(what: &str, rounding: Rounding, found: &[f32], x: &[f32], weight: &[f32], eps: f32) {
    let cols = weight.len();
    let mut errors = CaseErrors::of_operands(what.to_owned(), rounding);
    for (row, x) in x.chunks_exact(cols).enumerate() {
        let mut expected = vec![0.0; cols];
        formulas::rms_norm(x, weight, eps, &mut expected);
        for (col, &expected) in expected.iter().enumerate() {
            // A row of 1e-36 may be flushed to zero; with any eps its result is below 1e-29.
            let sigma = FLOAT * f64::from(expected).abs();
            errors.check(row, col, found[row * cols + col], expected, sigma, 1e-28);
        }
    }
    errors.finish();
}
