//! Checks of ops that multiply by a matrix or read its rows: `matmul`, `embed`, `logits`.

use super::bounds::{CaseErrors, dot_sigma, flush_slack, hold, same_bits};
use super::extent::every;
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use super::weights::{Weights, quantised, supported};
use crate::reference::ReferenceBackend;
use crate::{AnyBackend, DType, HeadOperands, Rounding};

/// Largest batch of these checks.
const ROWS_MAX: usize = 33;
/// Widest matrix of these checks.
const WIDTH_MAX: usize = 1280;

/// Checks `matmul` for every supported type: ragged shapes, with and without bias, every awkward kind of activation
/// row.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_matmul(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(1);
    for dtype in supported(&rig.backend) {
        for (rows, cols) in shapes(dtype).into_iter().step_by(every(3)) {
            let parts = [Weights::random(dtype, rows, cols, &mut random)];
            let batch = 1 + random.below(ROWS_MAX);
            check_parts(&mut rig, &parts, batch, &mut random);
            check_parts(&mut rig, &parts, ROWS_MAX, &mut random);
            if rows == 33 || cols == 320 || cols == 768 {
                rig.with_sums(|rig| check_parts(rig, &parts, batch, &mut random));
            }
        }
    }
}

/// Checks a matrix whose parts have different types, as query, key and value projections may.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_mixed_matrix(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(2);
    let types = supported(&rig.backend);
    for (i, &first) in types.iter().enumerate() {
        let second = types[(i + 1) % types.len()];
        let third = types[random.below(types.len())];
        for (cols, rows) in [(256, [5, 1, 3]), (768, [48, 16, 20])].into_iter().step_by(every(2)) {
            let parts: Vec<Weights> = [first, second, third]
                .iter()
                .zip(rows)
                .map(|(&dtype, rows)| Weights::random(dtype, rows, cols, &mut random))
                .collect();
            check_parts(&mut rig, &parts, 11, &mut random);
        }
    }
}

/// Checks for each supported type that a row has the same bits alone, among others, and in any order.
///
/// # Panics
/// If a bit differs.
pub fn check_matmul_invariance(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(3);
    for dtype in supported(&rig.backend) {
        let (rows, cols) = (50, 3 * dtype.block_weights().max(32));
        let parts = [Weights::random(dtype, rows, cols, &mut random)];
        let matrix = rig.matrix(&parts);
        let x = activations(ROWS_MAX, cols, &mut random);
        let all = multiply(&mut rig, &matrix, None, &x, cols, rows);
        let batches = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33];
        for batch in batches.into_iter().step_by(every(4)) {
            let chosen = &random.permutation(ROWS_MAX)[..batch];
            let x: Vec<f32> = gather(&x, cols, chosen);
            let found = multiply(&mut rig, &matrix, None, &x, cols, rows);
            let what = format!("matmul of {dtype} [{rows}, {cols}], batch of {batch}");
            same_bits(&what, &found, &gather(&all, rows, chosen), rows);
        }
    }
}

/// Checks `add_bias`, as exactly as the device rounds: a vector added to each row.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_add_bias(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(6);
    for (rows, cols) in [(1, 7), (9, 100), (ROWS_MAX, 256)] {
        let (bias, mut before) = (random.normals(cols), random.normals(rows * cols));
        hold(rig.rounding, &mut before);
        let vector = rig.vector(&bias);
        let mut out = rig.upload(&before, cols);
        rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.add_bias(&vector, &mut out));
        let what = format!("add_bias of {cols} to {rows} rows");
        let mut expected: Vec<f32> =
            before.iter().zip(bias.iter().cycle()).map(|(x, bias)| x + bias).collect();
        hold(rig.rounding, &mut expected);
        same_bits(&what, &rig.download(&what, &out, rows, cols), &expected, cols);
    }
}

/// Checks `embed` for every supported type; plain floats to the bit.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_embed(make: &dyn Fn() -> AnyBackend) {
    let vocab = 75;
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, vocab);
    let mut random = Random::new(4);
    for dtype in supported(&rig.backend) {
        let cols = if quantised(dtype) { 3 * dtype.block_weights() } else { 100 };
        let table = Weights::random(dtype, vocab, cols, &mut random);
        let matrix = rig.matrix(std::slice::from_ref(&table));
        for (rows, scale) in [(1, 1.0), (ROWS_MAX, 1.0), (9, 27.712_812), (16, 0.37)] {
            let mut tokens: Vec<u32> = (0..rows).map(|_| random.below(vocab) as u32).collect();
            tokens[0] = vocab as u32 - 1;
            tokens[rows / 2] = 0;
            let mut out = rig.blank_sum(rows, cols);
            rig.step(&rows_batch(&tokens), |rig| rig.backend.embed(&matrix, scale, &mut out));
            let what = format!("embed of {dtype} [{vocab}, {cols}] by {scale}");
            let found = rig.download(&what, &out, rows, cols);
            let mut errors = CaseErrors::new(what);
            for (row, &token) in tokens.iter().enumerate() {
                for (col, &weight) in table.row(token as usize).iter().enumerate() {
                    // Scales may be held in f16: the last bit of the largest of the block's group.
                    let group = &table.row(token as usize)[col / 32 * 32..cols.min(col / 32 * 32 + 32)];
                    let largest = group.iter().fold(0.0f32, |m, w| m.max(w.abs()));
                    let slack =
                        if quantised(dtype) { f64::from(scale * (largest / 512.0 + 1e-6)) } else { 0.0 };
                    errors.check(row, col, found[row * cols + col], scale * weight, 0.0, slack);
                }
            }
            errors.finish();
        }
    }
}

/// Checks `logits` for every supported type: the requested rows only, with the same bits whichever others are
/// requested.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_logits(make: &dyn Fn() -> AnyBackend) {
    let vocab = 333;
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 256, vocab);
    let rounding = rig.rounding;
    let mut random = Random::new(5);
    for dtype in supported(&rig.backend) {
        let (rows, cols) = (21, 256);
        let head = Weights::random(dtype, vocab, cols, &mut random);
        let matrix = rig.matrix(std::slice::from_ref(&head));
        let x = activations(rows, cols, &mut random);
        let buffer = if random.below(2) == 0 { rig.upload(&x, cols) } else { rig.upload_sum(&x, cols) };
        let mut run = |wanted: &[u32]| {
            let mut batch = rows_batch(&[0; 21]);
            batch.logit_rows = wanted.to_vec();
            let mut out = vec![f32::NAN; wanted.len() * vocab];
            rig.step(&batch, |rig| {
                ok("logits", rig.backend.logits(&HeadOperands::of(&matrix), buffer.id(), &mut out))
            });
            out
        };
        let every: Vec<u32> = (0..rows as u32).collect();
        let all = run(&every);
        let mut errors = CaseErrors::new(format!("logits of {dtype} [{vocab}, {cols}]"));
        compare(&mut errors, rounding, std::slice::from_ref(&head), None, &x, &all);
        errors.finish();
        assert!(run(&[]).is_empty());
        for wanted in [&[20][..], &[0], &[3, 4, 19], &[0, 2, 5, 7, 8, 11, 13, 16, 17]] {
            let chosen: Vec<usize> = wanted.iter().map(|&row| row as usize).collect();
            let what = format!("logits of {dtype} [{vocab}, {cols}], rows {wanted:?}");
            same_bits(&what, &run(wanted), &gather(&all, vocab, &chosen), vocab);
        }
    }
}

/// Rows of activations, one of each awkward kind, then ordinary ones.
pub(super) fn activations(rows: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * cols);
    // In small batches the awkward kinds would displace the ordinary row, so they start at a different one each time.
    let first = random.below(10);
    for row in 0..rows {
        let kind = (first + row) % 10;
        out.extend((0..cols).map(|i| match kind {
            0 => 0.0,
            1 => 1e6 * random.normal(),
            2 => 1e-6 * random.normal(),
            3 => 1e-36 * random.normal(),
            4 => random.uniform(),
            5 if random.below(50) == 0 => 30.0 * random.normal(),
            6 if i % 17 != 3 => 0.0,
            7 => 0.5,
            _ => random.normal(),
        }));
    }
    out
}

/// The chosen rows of `(rows, cols)`.
pub(super) fn gather(values: &[f32], cols: usize, chosen: &[usize]) -> Vec<f32> {
    chosen.iter().flat_map(|&row| values[row * cols..][..cols].iter().copied()).collect()
}

/// Shapes to try for a type: whole blocks, and rows that fill no tile.
fn shapes(dtype: DType) -> Vec<(usize, usize)> {
    match dtype.block_weights() {
        1 => vec![(3, 5), (1, 33), (16, 80), (17, 320), (100, 1000), (32, 1280)],
        32 => vec![(1, 32), (15, 64), (16, 96), (33, 288), (100, 544), (31, 1024)],
        _ => vec![(1, 256), (15, 512), (16, 256), (50, 768), (33, 1280)],
    }
}

fn multiply(
    rig: &mut Rig,
    matrix: &crate::Matrix,
    bias: Option<&[f32]>,
    x: &[f32],
    cols: usize,
    outputs: usize,
) -> Vec<f32> {
    let rows = x.len() / cols;
    let bias = bias.map(|bias| rig.vector(bias));
    let x = rig.upload(x, cols);
    let mut out = rig.blank(rows, outputs);
    rig.step(&rows_batch(&vec![0; rows]), |rig| rig.backend.matmul(matrix, bias.as_ref(), &x, &mut out));
    rig.download("matmul", &out, rows, outputs)
}

fn check_parts(rig: &mut Rig, parts: &[Weights], batch: usize, random: &mut Random) {
    let cols = parts[0].shape.cols;
    let outputs = parts.iter().map(|part| part.shape.rows).sum();
    let matrix = rig.matrix(parts);
    let x = activations(batch, cols, random);
    let bias = random.normals(outputs);
    for bias in [None, Some(&bias[..])] {
        let found = multiply(rig, &matrix, bias, &x, cols, outputs);
        let types: Vec<&str> = parts.iter().map(|part| part.shape.dtype.label()).collect();
        let bias_name = if bias.is_some() { " with bias" } else { "" };
        let what =
            format!("matmul of {} [{outputs}, {cols}]{bias_name}, batch of {batch}", types.join(" + "));
        let mut errors = CaseErrors::of_operands(what, rig.rounding);
        compare(&mut errors, rig.rounding, parts, bias, &x, &found);
        errors.finish();
    }
}

/// Checks `found`, `(rows, outputs)`, against the reference's product.
fn compare(
    errors: &mut CaseErrors,
    rounding: Rounding,
    parts: &[Weights],
    bias: Option<&[f32]>,
    x: &[f32],
    found: &[f32],
) {
    let cols = parts[0].shape.cols;
    let outputs: usize = parts.iter().map(|part| part.shape.rows).sum();
    let width = outputs.max(cols);
    let mut reference = Rig::for_rows(AnyBackend::new(ReferenceBackend::new()), x.len() / cols, width, 1);
    let matrix = reference.matrix(parts);
    let expected = multiply(&mut reference, &matrix, bias, x, cols, outputs);
    for (row, x) in x.chunks_exact(cols).enumerate() {
        let mut output = 0;
        for part in parts {
            for weights in part.floats.chunks_exact(cols) {
                let sigma = dot_sigma(rounding, weights, x, quantised(part.shape.dtype));
                let at = row * outputs + output;
                errors.check(row, output, found[at], expected[at], sigma, flush_slack(weights));
                output += 1;
            }
        }
    }
}
