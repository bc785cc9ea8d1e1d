//! Check of `gated_mlp`.

use super::bounds::{CaseErrors, FLOAT, dot_sigma, same_bits};
use super::extent::every;
use super::linear::gather;
use super::random::Random;
use super::rig::{Rig, rows_batch};
use super::weights::{Weights, quantised, supported};
use crate::reference::formulas::{activate, dot, factor};
use crate::{Activation, AnyBackend, DType, Rounding};

const ROWS_MAX: usize = 11;
pub(super) const ACTIVATIONS: [Activation; 3] = [Activation::Silu, Activation::GeluTanh, Activation::GeluErf];
const OTHER_ACTIVATIONS: [Activation; 4] =
    [Activation::QuickGelu, Activation::Relu, Activation::ReluSquared, Activation::ClampedSwish];

/// Checks `gated_mlp` for every supported type and activation, with parts of different types, and the same bits for a
/// row in any batch. `hidden` is unspecified; only `out` is compared.
///
/// # Panics
/// If a number is out of bounds or a bit differs.
pub fn check_gated_mlp(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 1024, 1);
    let mut random = Random::new(20);
    let types = supported(&rig.backend);
    for (i, &gate) in types.iter().enumerate() {
        let other = types[(i + 1) % types.len()];
        let cases = [(ACTIVATIONS[i % 3], [gate; 3]), (ACTIVATIONS[(i + 1) % 3], [gate, other, gate])];
        for (activation, types) in cases.into_iter().skip(i % every(2)).step_by(every(2)) {
            let mlp = Mlp::random(types, activation, 256, 512, &mut random);
            mlp.check(&mut rig, &mut random);
        }
    }
    // Widths that fill no tile, if a type allows them, and every activation at full float precision.
    for &dtype in types.iter().filter(|dtype| dtype.block_weights() <= 32) {
        let unit = if quantised(dtype) { 32 } else { 10 };
        for activation in ACTIVATIONS.into_iter().chain(OTHER_ACTIVATIONS).step_by(every(2)) {
            let mlp = Mlp::random([dtype; 3], activation, 3 * unit, 7 * unit, &mut random);
            mlp.check(&mut rig, &mut random);
            rig.with_sums(|rig| mlp.check(rig, &mut random));
        }
    }
}

struct Mlp {
    activation: Activation,
    gate_up: [Weights; 2],
    down: [Weights; 1],
}

impl Mlp {
    fn random(
        types: [DType; 3],
        activation: Activation,
        width: usize,
        hidden: usize,
        random: &mut Random,
    ) -> Self {
        let gate_up = [types[0], types[1]].map(|dtype| Weights::random(dtype, hidden, width, random));
        Self { activation, gate_up, down: [Weights::random(types[2], width, hidden, random)] }
    }

    fn name(&self) -> String {
        let [gate, up] = &self.gate_up;
        let [down] = &self.down;
        format!(
            "gated_mlp, {:?}, gate {}, up {}, down {} [{}, {}]",
            self.activation,
            gate.shape.dtype,
            up.shape.dtype,
            down.shape.dtype,
            down.shape.rows,
            down.shape.cols
        )
    }

    fn check(&self, rig: &mut Rig, random: &mut Random) {
        let width = self.down[0].shape.rows;
        let x = random.normals(ROWS_MAX * width);
        let (gate_up, down) = (rig.matrix(&self.gate_up), rig.matrix(&self.down));
        let rounding = rig.rounding;
        let mut run = |x: &[f32]| {
            let rows = x.len() / width;
            let buffer = rig.upload(x, width);
            let mut hidden = rig.blank(rows, self.down[0].shape.cols);
            let mut out = rig.blank(rows, width);
            rig.step(&rows_batch(&vec![0; rows]), |rig| {
                rig.backend.gated_mlp(&gate_up, &down, self.activation, &buffer, &mut hidden, &mut out);
            });
            rig.download("hidden", &hidden, rows, self.down[0].shape.cols);
            rig.download("gated_mlp", &out, rows, width)
        };
        let all = run(&x);
        let mut errors = CaseErrors::of_operands(self.name(), rounding);
        for (row, x) in x.chunks_exact(width).enumerate() {
            let [gate, up] = &self.gate_up;
            let expected = mlp_outputs(rounding, self.activation, gate, Some(up), &self.down[0], x, [&[]; 3]);
            for (col, (expected, sigma)) in expected.into_iter().enumerate() {
                errors.check(row, col, all[row * width + col], expected as f32, sigma, 1e-30);
            }
        }
        errors.finish();
        for batch in [1, 4, 9].into_iter().skip(every(3) - 1) {
            let chosen = &random.permutation(ROWS_MAX)[..batch];
            let found = run(&gather(&x, width, chosen));
            same_bits(
                &format!("{}, batch of {batch}", self.name()),
                &found,
                &gather(&all, width, chosen),
                width,
            );
        }
    }
}

/// Outputs of an MLP, each with its σ: the errors of gate and up pass through the activation to first order (and
/// through their product), are carried by down's weights, and combine with down's own error. Biases, if any, are of
/// gate, up and down. Without up, the activation is multiplied by 1.
pub(super) fn mlp_outputs(
    rounding: Rounding,
    activation: Activation,
    gate: &Weights,
    up: Option<&Weights>,
    down: &Weights,
    x: &[f32],
    biases: [&[f32]; 3],
) -> Vec<(f64, f64)> {
    let [gate_bias, up_bias, down_bias] = biases;
    let bias = |of: &[f32], i: usize| of.get(i).map_or(0.0, |&bias| f64::from(bias));
    let (mut hidden, mut variances) = (Vec::new(), Vec::new());
    let product = |weights: &Weights, i: usize| {
        let row = weights.row(i);
        (dot(row, x), dot_sigma(rounding, row, x, quantised(weights.shape.dtype)))
    };
    for i in 0..gate.shape.rows {
        let ((g, g_sigma), (u, u_sigma)) = (product(gate, i), up.map_or((1.0, 0.0), |up| product(up, i)));
        let g = g + bias(gate_bias, i);
        let u = if up.is_some() { factor(activation, u + bias(up_bias, i)) } else { u };
        let act = |g| activate(activation, g);
        let act_sigma = act_sigma(activation, g, g_sigma);
        hidden.push((act(g) * u) as f32);
        variances.push(
            (act_sigma * u).powi(2)
                + (act(g) * u_sigma).powi(2)
                + (act_sigma * u_sigma).powi(2)
                + (FLOAT * g * u).powi(2),
        );
    }
    let output = |(i, weights): (usize, &[f32])| {
        let own = dot_sigma(rounding, weights, &hidden, quantised(down.shape.dtype));
        let carried: f64 = weights.iter().zip(&variances).map(|(&w, v)| f64::from(w).powi(2) * v).sum();
        let bias = bias(down_bias, i);
        (dot(weights, &hidden) + bias, (own * own + carried + (FLOAT * bias).powi(2)).sqrt())
    };
    down.floats.chunks_exact(down.shape.cols).enumerate().map(output).collect()
}

/// σ of an activation of `x`, which itself has this σ.
pub(super) fn act_sigma(activation: Activation, x: f64, sigma: f64) -> f64 {
    let act = |x| activate(activation, x);
    let step = 1e-4 * (1.0 + x.abs());
    let slope = (act(x + step) - act(x - step)) / (2.0 * step);
    // If the curve bends (by at most 1.2) within the error, the square of the error moves the result too. If it
    // breaks, either side's slope may be the right one.
    let breaks = match activation {
        Activation::Relu => x.abs() < 8.0 * sigma,
        Activation::ClampedSwish => (x - 7.0).abs() < 8.0 * sigma,
        _ => false,
    };
    let slope = if breaks { 1.0 } else { slope };
    if activation == Activation::ReluSquared {
        return slope.abs() * sigma + sigma * sigma;
    }
    slope.abs() * sigma + (0.6 * sigma * sigma).min(1.2 * sigma)
}
