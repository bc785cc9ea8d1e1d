//! Checks of ops along lines, besides convolutions.

use super::bounds::{CaseErrors, FLOAT, hold, operand_sigma, same_bits};
use super::random::Random;
use super::rig::{Rig, whole_batch};
use crate::reference::ReferenceBackend;
use crate::{AnyBackend, BufferRole, HeadShape, LayerNormParams, Op, RelativeParams};

/// Rows of the sequences of a batch.
const LENGTHS: [u32; 4] = [23, 2, 5, 70];

/// Standard deviation that an expected number may have.
type Sigma<'a> = dyn Fn(f32) -> f64 + 'a;
/// Output of a device for rows of sequences of some lengths.
type RunLines<'a> = dyn Fn(AnyBackend, &[f32], &[u32]) -> Vec<f32> + 'a;

fn reference() -> AnyBackend {
    AnyBackend::new(ReferenceBackend::new())
}

fn total() -> usize {
    LENGTHS.iter().sum::<u32>() as usize
}

/// Compares an op with the reference, and each sequence alone with itself among the others. `run` gets a device, the rows of some
/// sequences of `x`, and their lengths; it returns rows of `cols`.
fn compare(
    what: &str,
    make: &dyn Fn() -> AnyBackend,
    (x, x_cols): (&[f32], usize),
    (cols, sigma): (usize, &Sigma<'_>),
    run: &RunLines<'_>,
) {
    let (found, expected) = (run(make(), x, &LENGTHS), run(reference(), x, &LENGTHS));
    let mut errors = CaseErrors::of_operands(what.to_owned(), make().facts().rounding);
    for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        errors.check(at / cols, at % cols, found, expected, sigma(expected), 0.0);
    }
    errors.finish();
    let (mut first, mut done) = (0, 0);
    for length in LENGTHS {
        let numbers = length as usize * x_cols;
        let alone = run(make(), &x[first..][..numbers], &[length]);
        same_bits(what, &alone, &found[done..][..alone.len()], cols);
        (first, done) = (first + numbers, done + alone.len());
    }
}

/// Checks `instance_affine`, also of numbers far from 0, whose variance is a small difference.
///
/// # Panics
/// If a number is further off than statistics in f32 are, or a bit depends on the batch.
pub fn check_instance_affine(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(64);
    for (channels, places, used, offset) in [(1, 1, None, 0.0), (3, 4, Some(7), 1.0), (40, 2, None, 30.0)] {
        let cols = channels * places;
        let mut x: Vec<f32> = random.normals(total() * cols).iter().map(|x| x + offset).collect();
        hold(make().facts().rounding, &mut x);
        let weight: Vec<f32> = (0..channels).map(|_| 0.5 + random.uniform()).collect();
        let bias = random.normals(channels);
        let run = |backend: AnyBackend, x: &[f32], lengths: &[u32]| {
            let rows = x.len() / cols;
            let mut rig = Rig::for_rows(backend, rows, 16, 1);
            rig.role = BufferRole::Residual;
            let (weight, bias) = (rig.vector(&weight), rig.vector(&bias));
            let (x, out) = (rig.upload(x, cols), rig.blank(rows, 2 * channels));
            let params = LayerNormParams { weight: weight.id(), bias: Some(bias.id()), eps: 1e-5 };
            let op = Op::InstanceAffine { x: x.id(), places: used, params, out: out.id() };
            rig.step(&whole_batch(lengths), |rig| rig.backend.run(&op));
            let written = rig.download("instance_affine", &out, rows, 2 * channels);
            written[..lengths.len() * 2 * channels].to_vec()
        };
        let what = format!("instance_affine of {channels} channels, {places} places a row, {used:?} used");
        let sigma = |expected: f32| FLOAT * (f64::from(expected.abs()) + 1.0);
        compare(&what, make, (&x, cols), (2 * channels, &sigma), &run);
    }
}

/// Checks `mirror`.
///
/// # Panics
/// If a bit differs.
pub fn check_mirror(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(65);
    for (channels, places, used, before) in [(1, 1, None, 1), (3, 4, Some(7), 3), (20, 2, None, 0)] {
        let cols = channels * places;
        let x = random.normals(total() * cols);
        let run = |backend: AnyBackend, x: &[f32], lengths: &[u32]| {
            let rows = x.len() / cols;
            let of = |&length: &u32| used.unwrap_or(length as usize * places) + before;
            let all: usize = lengths.iter().map(of).sum();
            let mut rig = Rig::for_rows(backend, rows.max(all), 16, 1);
            rig.role = BufferRole::Residual;
            let (x, out) = (rig.upload(x, cols), rig.blank(all, channels));
            let op = Op::Mirror { x: x.id(), channels, places: used, before, out: out.id() };
            rig.step(&whole_batch(lengths), |rig| rig.backend.run(&op));
            rig.download("mirror", &out, all, channels)
        };
        let what = format!("mirror of {before} of {channels} channels");
        compare(&what, make, (&x, cols), (channels, &|_| 0.0), &run);
    }
}

/// Checks `lstm`.
///
/// # Panics
/// If a number is further off than sums and functions in f32 are, or a bit depends on the batch.
pub fn check_lstm(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(66);
    for hidden in [1, 5, 16, 67] {
        let mut gates = random.normals(total() * 8 * hidden);
        hold(make().facts().rounding, &mut gates);
        // Small enough that errors do not grow along a sequence.
        let factor = 0.5 / (hidden as f32).sqrt();
        let recurrent: Vec<f32> = random.normals(8 * hidden * hidden).iter().map(|w| w * factor).collect();
        let run = |backend: AnyBackend, gates: &[f32], lengths: &[u32]| {
            let rows = gates.len() / (8 * hidden);
            let mut rig = Rig::for_rows(backend, rows, 16, 1);
            let recurrent = rig.vector(&recurrent);
            let (gates, out) = (rig.upload(gates, 8 * hidden), rig.blank(rows, 2 * hidden));
            let op = Op::Lstm { gates: gates.id(), recurrent: recurrent.id(), out: out.id() };
            rig.step(&whole_batch(lengths), |rig| rig.backend.run(&op));
            rig.download("lstm", &out, rows, 2 * hidden)
        };
        compare(
            &format!("lstm of {hidden}"),
            make,
            (&gates, 8 * hidden),
            (2 * hidden, &|_| 2.0 * FLOAT),
            &run,
        );
    }
}

/// Checks `relative_attention`.
///
/// # Panics
/// If a number is further off than softmax in f32 is, or a bit depends on the batch.
pub fn check_relative_attention(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(63);
    for (heads, head_dim, reach) in [(1, 3, 0), (2, 16, 4), (3, 96, 2)] {
        let shape = HeadShape { heads, kv_heads: heads, head_dim };
        let rounding = make().facts().rounding;
        let mut qkv = random.normals(total() * shape.qkv_width());
        hold(rounding, &mut qkv);
        let near = [(); 2].map(|()| random.normals((2 * reach + 1) * head_dim));
        let scale = (head_dim as f32).sqrt().recip();
        let run = |backend: AnyBackend, qkv: &[f32], lengths: &[u32]| {
            let rows = qkv.len() / shape.qkv_width();
            let mut rig = Rig::for_rows(backend, rows, 16, 1);
            let (x, out) = (rig.upload(qkv, shape.qkv_width()), rig.blank(rows, shape.q_width()));
            let [keys, values] = near.each_ref().map(|numbers| rig.vector(numbers));
            let (keys, values) = (keys.id(), values.id());
            let params = RelativeParams { heads: shape, scale, reach, keys, values };
            let op = Op::RelativeAttention { qkv: x.id(), params, out: out.id() };
            rig.step(&whole_batch(lengths), |rig| rig.backend.run(&op));
            rig.download("relative_attention", &out, rows, shape.q_width())
        };
        let what = format!("relative_attention of {shape:?}, reach {reach}");
        let sigma = 16.0 * FLOAT.hypot(operand_sigma(rounding));
        compare(&what, make, (&qkv, shape.qkv_width()), (shape.q_width(), &|_| sigma), &run);
    }
}
