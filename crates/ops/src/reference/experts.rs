//! Reference implementation of mixtures of experts.

use super::{ReferenceBackend, ReferenceBuffer, ReferenceExperts, formulas};
use crate::{MoeOperands, MoeParams, MoeWeights, NO_EXPERT, StepLimits};

/// Asserts that the limits allow a mixture, and that its matrices fit each other.
pub(super) fn check_limits(
    limits: &StepLimits,
    weights: &MoeWeights<'_, ReferenceBackend>,
    params: &MoeParams,
) {
    let MoeOperands { router, experts: ReferenceExperts { gate_up, down }, .. } = weights;
    let (experts, used) = (router.rows, params.experts_used);
    assert_eq!(
        (gate_up.len(), down.len()),
        (experts, experts),
        "gate, up and down for each row of the router"
    );
    params.check(experts);
    assert!(experts <= limits.experts && used <= limits.experts_used, "more experts than the step's limits");
    let width = down[0].cols;
    let parts = if params.gated { 2 } else { 1 };
    let widest = experts.max(router.cols).max(parts * width);
    assert!(widest <= limits.width, "experts wider than the step's limits");
    for (gate_up, down) in gate_up.iter().zip(down) {
        assert_eq!((gate_up.rows, gate_up.cols), (parts * width, router.cols), "gate and up of an expert");
        assert_eq!((down.rows, down.cols), (router.cols, width), "down of an expert");
    }
    let lengths = |vector: Option<&Vec<f32>>, length: usize| vector.is_none_or(|of| of.len() == length);
    let of_experts = [weights.router_bias, weights.correction, weights.expert_scale];
    assert!(of_experts.into_iter().all(|of| lengths(of, experts)), "one an expert");
    assert!(lengths(weights.up_bias, experts * parts * width), "a bias for each of the first products");
    assert!(lengths(weights.down_bias, experts * router.cols), "a bias for each output of an expert");
}

/// The contract's `moe`. Returns the experts of each row.
pub(super) fn moe(
    rows: usize,
    weights: &MoeWeights<'_, ReferenceBackend>,
    params: &MoeParams,
    x: &ReferenceBuffer,
    hidden: &mut ReferenceBuffer,
    out: &mut ReferenceBuffer,
) -> Vec<u32> {
    let MoeOperands { router, experts: ReferenceExperts { gate_up, down }, .. } = weights;
    let (cols, width) = (router.cols, down[0].cols);
    x.check(rows, cols, "x");
    hidden.check(rows, params.experts_used * width, "hidden");
    out.check(rows, cols, "out");
    let routed = weights.routed.unwrap_or(x);
    routed.check(rows, cols, "routed");
    let bias = |of: Option<&Vec<f32>>, at: usize| of.map_or(0.0, |bias| f64::from(bias[at]));
    let mut all = vec![NO_EXPERT; rows * params.experts_used];
    for row in 0..rows {
        let score =
            |e: usize| (formulas::dot(router.row(e), routed.row(row)) + bias(weights.router_bias, e)) as f32;
        let scores: Vec<f32> = (0..router.rows).map(score).collect();
        let correction = weights.correction.map(|correction| &correction[..]);
        let Some(chosen) = formulas::route(&scores, params, correction) else {
            out.row_mut(row).fill(f32::NAN);
            continue;
        };
        let mut sums = vec![0.0; cols];
        for (i, &(expert, weight)) in chosen.iter().enumerate() {
            let weight = weight * weights.expert_scale.map_or(1.0, |scale| f64::from(scale[expert]));
            all[row * params.experts_used + i] = expert as u32;
            let (before, after) = if params.scales_input { (weight, 1.0) } else { (1.0, weight) };
            let x: Vec<f32> = x.row(row).iter().map(|&x| (before * f64::from(x)) as f32).collect();
            let hidden = &mut hidden.row_mut(row)[i * width..][..width];
            let rows_first = expert * gate_up[expert].rows;
            for (i, hidden) in hidden.iter_mut().enumerate() {
                let product =
                    |i| formulas::dot(gate_up[expert].row(i), &x) + bias(weights.up_bias, rows_first + i);
                let factor = match params.gated {
                    true => formulas::factor(params.activation, product(width + i)),
                    false => 1.0,
                };
                *hidden = (formulas::activate(params.activation, product(i)) * factor) as f32;
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                let bias = bias(weights.down_bias, expert * cols + i);
                *sum += after * (formulas::dot(down[expert].row(i), hidden) + bias);
            }
        }
        for (out, sum) in out.row_mut(row).iter_mut().zip(sums) {
            *out = sum as f32;
        }
    }
    all
}

/// The contract's `add_shared`.
pub(super) fn add_shared(
    rows: usize,
    gate: Option<&Vec<f32>>,
    x: &ReferenceBuffer,
    shared: &ReferenceBuffer,
    out: &mut ReferenceBuffer,
) {
    shared.check(rows, out.cols, "shared");
    for row in 0..rows {
        let factor = gate.map_or(1.0, |gate| {
            x.check(rows, gate.len(), "x");
            1.0 / (1.0 + (-formulas::dot(gate, x.row(row))).exp())
        });
        for (out, &shared) in out.row_mut(row).iter_mut().zip(shared.row(row)) {
            *out = (f64::from(*out) + factor * f64::from(shared)) as f32;
        }
    }
}
