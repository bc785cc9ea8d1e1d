//! Checks of `row_op`.

use super::bounds::{CaseErrors, FLOAT, hold, operand_sigma, same_bits};
use super::linear::gather;
use super::random::Random;
use super::rig::{Rig, rows_batch};
use crate::{AnyBackend, RowOp};

const ROWS_MAX: usize = 40;
const WIDTH_MAX: usize = 1024;
/// Additional columns of the other buffer.
const MORE: usize = 9;

/// Formula of an op: from a row, another row and a vector to results, each with the sum of its terms' magnitudes.
type Formula = fn(&[f32], &[f32], &[f32]) -> Vec<(f64, f64)>;
/// Constructor of an op from another buffer and a vector.
type Op<B, V> = for<'a> fn(&'a B, &'a V) -> RowOp<&'a B, &'a V>;

fn alike(values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    values.map(|value| (value, value.abs())).collect()
}

fn size(x: &[f32]) -> f64 {
    (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

/// xIELU with the settings of the case, and the size of its terms.
fn xielu(x: f64) -> (f64, f64) {
    match x > 0.0 {
        true => (0.7 * x * x + 0.5 * x, 0.7 * x * x + 0.5 * x),
        false => (1.3 * (x.min(-1e-6).exp_m1() - x) + 0.5 * x, 4.0 * x.abs()),
    }
}

/// Outliers of the first half of a row, by 0.7 deviations, and the other half. Each has the size of its terms.
fn outliers(x: &[f32]) -> Vec<(f64, f64)> {
    let (half, rest) = x.split_at(x.len() / 2);
    let mean = half.iter().map(|&x| f64::from(x)).sum::<f64>() / half.len() as f64;
    let variance = half.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / half.len() as f64;
    let cut = mean + 0.7 * variance.sqrt();
    let kept = half.iter().map(|&x| ((f64::from(x) - cut).max(0.0), f64::from(x).abs() + cut.abs()));
    kept.chain(rest.iter().map(|&x| (f64::from(x), 0.0))).collect()
}

/// Ops of rows, and formulas of their results.
fn row_cases() -> [(&'static str, Op<crate::Buffer, crate::Vector>, Formula); 10] {
    [
        (
            "rows times -1.75",
            |_, _| RowOp::Scale(-1.75),
            |x, _, _| alike(x.iter().map(|&x| -1.75 * f64::from(x))),
        ),
        (
            "rows times columns from 0",
            |by, _| RowOp::Multiply { by, first: 0 },
            |x, by, _| alike(x.iter().zip(by).map(|(&x, &by)| f64::from(x) * f64::from(by))),
        ),
        (
            "rows times columns from 5",
            |by, _| RowOp::Multiply { by, first: 5 },
            |x, by, _| alike(x.iter().zip(&by[5..]).map(|(&x, &by)| f64::from(x) * f64::from(by))),
        ),
        (
            "rows weighed",
            |_, weights| RowOp::Weigh(weights),
            |x, _, weights| {
                alike(x.iter().zip(weights).map(|(&x, &weight)| f64::from(x) * f64::from(weight)))
            },
        ),
        (
            "xielu of rows",
            |_, _| RowOp::Xielu { positive: 0.7, negative: 1.3, linear: 0.5 },
            |x, _, _| x.iter().map(|&x| xielu(x.into())).collect(),
        ),
        ("tanh of rows", |_, _| RowOp::Tanh, |x, _, _| alike(x.iter().map(|&x| f64::from(x).tanh()))),
        (
            "rows taken",
            |x, _| RowOp::Take { x, first: 7 },
            |old, x, _| alike(x[7..][..old.len()].iter().map(|&x| f64::from(x))),
        ),
        (
            "rows added",
            |x, _| RowOp::Add { x, first: 2, factor: -0.5 },
            |old, x, _| {
                let sum = |(&old, &x): (&f32, &f32)| {
                    let (old, x) = (f64::from(old), -0.5 * f64::from(x));
                    (old + x, old.abs() + x.abs())
                };
                old.iter().zip(&x[2..]).map(sum).collect()
            },
        ),
        ("outliers of rows", |_, _| RowOp::KeepOutliers { deviations: 0.7 }, |x, _, _| outliers(x)),
        (
            "rows beyond outliers",
            |_, _| RowOp::KeepOutliers { deviations: 9.0 },
            |x, _, _| {
                let half = x.len() / 2;
                x.iter()
                    .enumerate()
                    .map(|(at, &x)| (if at < half { 0.0 } else { f64::from(x) }, 0.0))
                    .collect()
            },
        ),
    ]
}

/// Checks `row_op` with one stream: every op, ragged widths, the same bits in any batch.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_row_op(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(26);
    for (name, op, formula) in row_cases() {
        for (rows, cols) in [(1, 64), (7, 34), (ROWS_MAX, 300)] {
            check(&mut rig, RowCase { name, op, formula }, rows, [cols, cols + MORE], &mut random);
        }
    }
    for (rows, cols) in [(1, 64), (7, 33), (ROWS_MAX, 300)] {
        let op: Op<crate::Buffer, crate::Vector> = |x, _| RowOp::MatchSize { x, least: 0.5 };
        let formula: Formula = |old, x, _| {
            let factor = size(x) / size(old).max(0.5);
            alike(old.iter().map(|&old| f64::from(old) * factor))
        };
        let name = "rows of the size of others";
        check(&mut rig, RowCase { name, op, formula }, rows, [cols; 2], &mut random);
    }
}

/// Checks `row_op` with several streams.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_streams(make: &dyn Fn() -> AnyBackend) {
    const WIDTH: usize = 37;
    const COUNT: usize = 3;
    const ROWS: usize = 6;
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(27);
    let put: Op<crate::Buffer, crate::Vector> = |x, _| RowOp::Put { x, first: 37 };
    let put_formula: Formula = |old, x, _| {
        let at = |(at, &old): (usize, &f32)| if (37..74).contains(&at) { x[at - 37] } else { old };
        alike(old.iter().enumerate().map(at).map(f64::from))
    };
    let case = RowCase { name: "streams put", op: put, formula: put_formula };
    check(&mut rig, case, ROWS, [COUNT * WIDTH, WIDTH], &mut random);
    let spread: Op<crate::Buffer, crate::Vector> = |x, _| RowOp::Spread { x, first: 1 };
    let spread_formula: Formula = |old, x, _| {
        let at = |(at, &old): (usize, &f32)| {
            let x = if at < 37 { 0.0 } else { f64::from(x[at % 37]) };
            (f64::from(old) + x, f64::from(old).abs() + x.abs())
        };
        old.iter().enumerate().map(at).collect()
    };
    let case = RowCase { name: "one stream spread", op: spread, formula: spread_formula };
    check(&mut rig, case, ROWS, [COUNT * WIDTH, WIDTH], &mut random);
    for (name, streams, plus) in [("streams mixed", COUNT, 0.0), ("one stream mixed", 1, 1.0)] {
        let rounding = rig.rounding;
        let mut numbers = |cols: usize| {
            let mut numbers = random.normals(ROWS * cols);
            hold(rounding, &mut numbers);
            numbers
        };
        let (base, x) = (numbers(COUNT * WIDTH), numbers(streams * WIDTH));
        let weights = numbers(COUNT * streams);
        let mut run = |rows: &[usize]| {
            let buffers = [(&base, COUNT * WIDTH), (&x, streams * WIDTH), (&weights, COUNT * streams)]
                .map(|(of, cols)| rig.upload_sum(&gather(of, cols, rows), cols));
            let [base, x, weights] = &buffers;
            let mut out = rig.blank_sum(rows.len(), COUNT * WIDTH);
            let op = RowOp::Mix { base, x, weights, plus };
            rig.step(&rows_batch(&vec![0; rows.len()]), |rig| rig.backend.row_op(&op, &mut out));
            rig.download(name, &out, rows.len(), COUNT * WIDTH)
        };
        let all = run(&(0..ROWS).collect::<Vec<_>>());
        same_bits(name, &run(&[ROWS - 1]), &all[(ROWS - 1) * COUNT * WIDTH..], COUNT * WIDTH);
        let mut errors = CaseErrors::of_operands(name.to_owned(), rounding);
        for (at, &found) in all.iter().enumerate() {
            let (row, col) = (at / (COUNT * WIDTH), at % (COUNT * WIDTH));
            let (stream, within) = (col / WIDTH, col % WIDTH);
            let (mut sum, mut sizes) = (f64::from(base[at]), f64::from(base[at]).abs());
            for from in 0..streams {
                let weight =
                    f64::from(plus) + f64::from(weights[row * COUNT * streams + stream * streams + from]);
                let part = weight * f64::from(x[row * streams * WIDTH + from * WIDTH + within]);
                (sum, sizes) = (sum + part, sizes + part.abs());
            }
            errors.check(row, col, found, sum as f32, FLOAT * sizes, 1e-28);
        }
        errors.finish();
    }
}

/// An op of rows with the formula of its result.
struct RowCase {
    name: &'static str,
    op: Op<crate::Buffer, crate::Vector>,
    formula: Formula,
}

/// Runs an op on rows, in one batch and the last row alone. `[cols, others]` are the columns of the rows and of those that it
/// reads.
fn check(
    rig: &mut Rig,
    RowCase { name, op, formula }: RowCase,
    rows: usize,
    [cols, others]: [usize; 2],
    random: &mut Random,
) {
    let (mut x, mut other) = (random.normals(rows * cols), random.normals(rows * others));
    hold(rig.rounding, &mut x);
    hold(rig.rounding, &mut other);
    let weights = random.normals(cols);
    let vector = rig.vector(&weights);
    let mut run = |rows: &[usize]| {
        let other = rig.upload(&gather(&other, others, rows), others);
        let mut out = rig.upload(&gather(&x, cols, rows), cols);
        rig.step(&rows_batch(&vec![0; rows.len()]), |rig| rig.backend.row_op(&op(&other, &vector), &mut out));
        rig.download(name, &out, rows.len(), cols)
    };
    let all = run(&(0..rows).collect::<Vec<_>>());
    same_bits(name, &run(&[rows - 1]), &all[(rows - 1) * cols..], cols);
    let mut errors = CaseErrors::of_operands(format!("{name} [{rows}, {cols}]"), rig.rounding);
    for (row, (x, other)) in x.chunks_exact(cols).zip(other.chunks_exact(others)).enumerate() {
        for (col, (expected, added)) in formula(x, other, &weights).into_iter().enumerate() {
            let sigma = FLOAT * added.hypot(expected);
            let sigma = sigma.hypot(operand_sigma(rig.rounding) * expected);
            errors.check(row, col, all[row * cols + col], expected as f32, sigma, 1e-28);
        }
    }
    errors.finish();
}
