//! The formula of [`crate::sampling`] as it is written there, with full sorts.

use crate::sampling::{Adjustment, SampleSpec, Sampled, TokenLogprob, exp_nonpositive, mass, mass_to_weight};

/// Draws from `(vocab)` logits. `None` where they are not numbers, or all are ruled out.
pub(crate) fn draw(
    logits: &[f32],
    spec: &SampleSpec,
    adjustments: &[Adjustment],
    mask: Option<&[u32]>,
) -> Option<Sampled> {
    if !are_numbers(logits) {
        return None;
    }
    if let Some(token) = spec.given {
        let logprob = |top| logprob(logits, token, top as usize);
        return Some(Sampled { token, logprob: spec.logprobs.map(logprob) });
    }
    let allowed = |token: usize| match mask {
        Some(mask) => mask.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1),
        None => true,
    };
    let kept = |(token, &logit): (usize, &f32)| if allowed(token) { logit } else { f32::NEG_INFINITY };
    let logits: Vec<f32> = logits.iter().enumerate().map(kept).collect();
    let mut adjusted = logits.clone();
    for adjustment in adjustments {
        if let Some(logit) = adjusted.get_mut(adjustment.token as usize) {
            *logit = adjustment.change.apply(*logit);
        }
    }
    if !are_numbers(&logits) || !are_numbers(&adjusted) {
        return None;
    }
    let order = descending(&adjusted);
    let token = if spec.temperature == 0.0 { order[0] } else { draw_token(&adjusted, &order, spec)? };
    let logprob = spec.logprobs.map(|top| logprob(&logits, token as u32, top as usize));
    Some(Sampled { token: token as u32, logprob })
}

fn draw_token(logits: &[f32], order: &[usize], spec: &SampleSpec) -> Option<usize> {
    let largest = logits[order[0]];
    let top_k = if spec.top_k == 0 { order.len() } else { order.len().min(spec.top_k as usize) };
    let mut weights = vec![0.0; logits.len()];
    for &id in &order[..top_k] {
        weights[id] = exp_nonpositive((logits[id] - largest) / spec.temperature);
    }
    let total: u64 = weights.iter().map(|&weight| mass(weight)).sum();
    let target = (f64::from(spec.top_p) * total as f64).ceil() as u64;
    let mut masses = vec![0; logits.len()]; // of what is kept
    let mut sum = 0;
    for id in descending(&weights) {
        if sum >= target.clamp(1, total) || weights[id] < spec.min_p {
            break;
        }
        masses[id] = mass(weights[id]);
        sum += masses[id];
    }
    let at = ((spec.uniform * sum as f64) as u64).min(sum.checked_sub(1)?);
    let mut passed = 0;
    masses.iter().position(|mass| {
        passed += mass;
        passed > at
    })
}

fn logprob(logits: &[f32], token: u32, top: usize) -> TokenLogprob {
    let order = descending(logits);
    let largest = logits[order[0]];
    let total: u64 = logits.iter().map(|&logit| mass(exp_nonpositive(logit - largest))).sum();
    let log_total = mass_to_weight(total).ln();
    let of = |token: u32| (f64::from(logits[token as usize]) - f64::from(largest) - log_total) as f32;
    let possible = order.iter().filter(|&&id| logits[id] > f32::NEG_INFINITY);
    let top = possible.take(top).map(|&id| (id as u32, of(id as u32))).collect();
    TokenLogprob { token, logprob: of(token), top }
}

/// The ids of values, largest first, of equals the lowest id first.
fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let by_value = |a: &usize, b: &usize| values[*b].partial_cmp(&values[*a]);
    order.sort_by(|a, b| by_value(a, b).expect("no value is NaN, as the caller has seen").then(a.cmp(b)));
    order
}

fn are_numbers(logits: &[f32]) -> bool {
    logits.iter().all(|&logit| logit < f32::INFINITY) && logits.iter().any(|&logit| logit > f32::NEG_INFINITY)
}
