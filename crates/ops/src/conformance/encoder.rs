//! Checks of `add_embedding` and `matmul_activated`.

use super::bounds::{CaseErrors, FLOAT, dot_sigma, flush_slack, operand_sigma, same_bits};
use super::extent::every;
use super::linear::{activations, gather};
use super::mlp::act_sigma;
use super::random::Random;
use super::rig::{Rig, whole_batch};
use super::weights::{Weights, quantised, supported};
use crate::reference::formulas;
use crate::{Activation, AnyBackend, Batch, DType, RowIds};

const LENGTHS: [u32; 5] = [1, 11, 3, 12, 6];
const ROWS: usize = 33;
const WIDTH: usize = 1280;
const ACTIVATIONS: [Activation; 6] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::ReluSquared,
];

/// Checks `add_embedding` for every supported type: by position and offset, by token type, with and without types;
/// plain floats to the bit.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_add_embedding(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS, WIDTH, 1);
    let mut random = Random::new(50);
    let mut batch = whole_batch(&LENGTHS);
    let typed = Batch { types: (0..ROWS).map(|_| random.below(3) as u32).collect(), ..batch.clone() };
    // Positions are those of the batch, whatever the row.
    batch.positions.iter_mut().rev().step_by(2).for_each(|position| *position += 5);
    for (i, dtype) in supported(&rig.backend).into_iter().enumerate() {
        // Sometimes wider than a device may unpack at a time.
        let cols = if quantised(dtype) { (3 + i % 3) * dtype.block_weights() } else { [100, 1100][i % 2] };
        let table = Weights::random(dtype, 40, cols, &mut random);
        let matrix = rig.matrix(std::slice::from_ref(&table));
        for (name, batch, ids) in [
            ("positions", &batch, RowIds::Positions { offset: 0 }),
            ("positions from 2 on", &batch, RowIds::Positions { offset: 2 }),
            ("types", &typed, RowIds::Types),
            ("types, none given", &batch, RowIds::Types),
        ] {
            let before = random.normals(ROWS * cols);
            let mut out = rig.upload_sum(&before, cols);
            rig.step(batch, |rig| rig.backend.add_embedding(&matrix, ids, &mut out));
            let what = format!("add_embedding of {dtype} [40, {cols}], {name}");
            let found = rig.download(&what, &out, ROWS, cols);
            let mut errors = CaseErrors::new(what);
            for row in 0..ROWS {
                let id = match ids {
                    RowIds::Positions { offset } => batch.positions[row] + offset,
                    RowIds::Types => batch.types.get(row).copied().unwrap_or(0),
                };
                let weights = table.row(id as usize);
                for (col, &weight) in weights.iter().enumerate() {
                    // As for `embed`, and a sum rounds once more.
                    let group = &weights[col / 32 * 32..cols.min(col / 32 * 32 + 32)];
                    let largest = group.iter().fold(0.0f32, |m, w| m.max(w.abs()));
                    let at = row * cols + col;
                    let slack =
                        if quantised(dtype) { largest / 512.0 + 1e-6 + 1e-7 * before[at].abs() } else { 0.0 };
                    errors.check(row, col, found[at], before[at] + weight, 0.0, f64::from(slack));
                }
            }
            errors.finish();
        }
    }
}

/// Checks `matmul_activated` for every supported type and activation, with and without bias, and the same bits for a
/// row in any batch; every activation within 1e-6 over its whole range.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_matmul_activated(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS, WIDTH, 1);
    let mut random = Random::new(51);
    for (i, dtype) in supported(&rig.backend).into_iter().enumerate() {
        let unit = dtype.block_weights();
        for (j, (rows, cols)) in [(100, 320), (17, 768), (48, 256)]
            .map(|(rows, cols)| (rows, cols / unit * unit))
            .into_iter()
            .enumerate()
            .skip(i % every(3))
            .step_by(every(3))
        {
            let cols = cols.max(unit);
            let weights = Weights::random(dtype, rows, cols, &mut random);
            let bias = random.normals(rows);
            let bias = ((i + j) % 3 != 0).then_some(&bias[..]);
            check_product(&mut rig, &weights, bias, ACTIVATIONS[(i + j) % ACTIVATIONS.len()], &mut random);
        }
    }
    for activation in ACTIVATIONS {
        let weights = Weights::random(DType::F32, 50, 200, &mut random);
        let bias = random.normals(50);
        check_product(&mut rig, &weights, Some(&bias), activation, &mut random);
        rig.with_sums(|rig| check_product(rig, &weights, Some(&bias), activation, &mut random));
        check_curve(&mut rig, activation);
    }
}

fn activated(
    rig: &mut Rig,
    weights: &Weights,
    bias: Option<&[f32]>,
    activation: Activation,
    x: &[f32],
) -> Vec<f32> {
    let (outputs, cols) = (weights.shape.rows, weights.shape.cols);
    let rows = x.len() / cols;
    let matrix = rig.matrix(std::slice::from_ref(weights));
    let bias = bias.map(|bias| rig.vector(bias));
    let x = rig.upload(x, cols);
    let mut out = rig.blank(rows, outputs);
    rig.step(&whole_batch(&[rows as u32]), |rig| {
        rig.backend.matmul_activated(&matrix, bias.as_ref(), activation, &x, &mut out);
    });
    rig.download("matmul_activated", &out, rows, outputs)
}

fn check_product(
    rig: &mut Rig,
    weights: &Weights,
    bias: Option<&[f32]>,
    activation: Activation,
    random: &mut Random,
) {
    let (outputs, cols, dtype) = (weights.shape.rows, weights.shape.cols, weights.shape.dtype);
    let with = if bias.is_some() { " with bias" } else { "" };
    let what = format!("matmul_activated, {activation:?} of {dtype} [{outputs}, {cols}]{with}");
    let x = activations(ROWS, cols, random);
    let all = activated(rig, weights, bias, activation, &x);
    let mut errors = CaseErrors::of_operands(what.clone(), rig.rounding);
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for output in 0..outputs {
            let weights = weights.row(output);
            let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
            let sum = formulas::dot(weights, x) + bias;
            let sum_sigma = dot_sigma(rig.rounding, weights, x, quantised(dtype)) + FLOAT * bias.abs();
            let sigma = act_sigma(activation, sum, sum_sigma).hypot(FLOAT * sum);
            let expected = formulas::activate(activation, sum) as f32;
            errors.check(row, output, all[row * outputs + output], expected, sigma, flush_slack(weights));
        }
    }
    errors.finish();
    for batch in [1, 2, 4, 9, 17].into_iter().step_by(every(3)) {
        let chosen = &random.permutation(ROWS)[..batch];
        let found = activated(rig, weights, bias, activation, &gather(&x, cols, chosen));
        same_bits(&format!("{what}, batch of {batch}"), &found, &gather(&all, outputs, chosen), outputs);
    }
}

/// Checks the activation alone, with a matrix of one column that holds its arguments.
fn check_curve(rig: &mut Rig, activation: Activation) {
    let arguments: Vec<f32> = (0..1280)
        .map(|i| (i as f32 - 640.0) / 64.0)
        .map(|x| if x.abs() > 9.5 { x * x * x * x * x } else { x })
        .collect();
    let weights = Weights::of(DType::F32, arguments.len(), 1, &arguments);
    let found = activated(rig, &weights, None, activation, &[1.0]);
    for (&x, found) in arguments.iter().zip(found) {
        let expected = formulas::activate(activation, f64::from(x));
        let error = (f64::from(found) - expected).abs();
        // The argument is a weight, which a device may round, and the result is an operand.
        let argument = operand_sigma(rig.rounding) * f64::from(x).abs();
        let sigma =
            act_sigma(activation, f64::from(x), argument).hypot(operand_sigma(rig.rounding) * expected);
        assert!(
            error <= 1e-6 + 2e-7 * expected.abs() + 8.0 * sigma,
            "matmul_activated, {activation:?}({x}) is {found}, not {expected}: off by {error:e}"
        );
    }
}
