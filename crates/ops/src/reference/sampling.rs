//! Literal implementation of the formula of [`crate::sampling`], with full sorts.

use crate::sampling::{
    Change, Edits, Moments, SampleSpec, SampledToken, Spread, TokenLogprob, dynamic_temperature,
    exp_nonpositive, mass, mass_to_weight, sigma_floor, soft_cap,
};

/// Draws from `(vocab)` logits. `None` if they are not numbers or all are ruled out.
pub(crate) fn draw(logits: &[f32], spec: &SampleSpec, edits: Edits<'_>) -> Option<SampledToken> {
    let bias = |token: usize| edits.bias.map_or(0.0, |bias| bias[token]);
    let biased = logits.iter().enumerate().map(|(token, logit)| logit + bias(token));
    let capped = |logit: f32| edits.softcap.map_or(logit, |cap| soft_cap(cap, logit));
    let logits: Vec<f32> = biased.map(capped).collect();
    let logits = &logits[..];
    if !are_numbers(logits) {
        return None;
    }
    if let Some(token) = spec.given {
        let logprob = |top| logprob(logits, token, top as usize);
        return Some(SampledToken { token, logprob: spec.logprobs.map(logprob), probability: None });
    }
    let has =
        |bits: &[u32], token: usize| bits.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
    let allowed = |token: usize| edits.mask.is_none_or(|mask| has(mask, token));
    let kept = |(token, &logit): (usize, &f32)| if allowed(token) { logit } else { f32::NEG_INFINITY };
    let logits: Vec<f32> = logits.iter().enumerate().map(kept).collect();
    let mut adjusted = logits.clone();
    for (token, logit) in adjusted.iter_mut().enumerate() {
        if has(edits.seen, token) {
            *logit = Change::Penalize(spec.repetition).apply(*logit);
        }
    }
    for adjustment in edits.adjustments {
        if let Some(logit) = adjusted.get_mut(adjustment.token as usize) {
            *logit = adjustment.change.apply(*logit);
        }
    }
    if !are_numbers(&logits) || !are_numbers(&adjusted) {
        return None;
    }
    let order = descending(&adjusted);
    let (token, probability) =
        if spec.temperature == 0.0 { (order[0], None) } else { draw_token(&adjusted, &order, spec)? };
    let logprob = spec.logprobs.map(|top| logprob(&logits, token as u32, top as usize));
    Some(SampledToken { token: token as u32, logprob, probability })
}

fn draw_token(logits: &[f32], order: &[usize], spec: &SampleSpec) -> Option<(usize, Option<f64>)> {
    let (shape, largest) = (&spec.shape, logits[order[0]]);
    let top_k = if spec.top_k == 0 { order.len() } else { order.len().min(spec.top_k as usize) };
    let mut left = order[..top_k].to_vec();
    if shape.top_n_sigma > 0.0 {
        let mut spread = Spread::default();
        logits.iter().for_each(|&logit| spread.add(largest, logit));
        let floor = sigma_floor(largest, shape.top_n_sigma, &spread);
        left.retain(|&id| logits[id] >= floor);
    }
    let temperature = if shape.temperature_range > 0.0 {
        let mut moments = Moments::default();
        left.iter().for_each(|&id| moments.add(logits[id] - largest, exp_nonpositive(logits[id] - largest)));
        dynamic_temperature(spec, &moments)
    } else {
        spec.temperature
    };
    let mut weights = vec![0.0; logits.len()];
    for &id in &left {
        weights[id] = exp_nonpositive((logits[id] - largest) / temperature);
    }
    left.retain(|&id| mass(weights[id]) > 0);
    if shape.typical_p < 1.0 {
        let mut moments = Moments::default();
        left.iter().for_each(|&id| moments.add((logits[id] - largest) / temperature, weights[id]));
        let mean = moments.mean() as f32;
        let far: Vec<f32> =
            logits.iter().map(|logit| -((logit - largest) / temperature + mean).abs()).collect();
        left.sort_by(|&a, &b| far[b].total_cmp(&far[a]).then(a.cmp(&b)));
        left = reaching(&left, &weights, shape.typical_p);
    }
    left.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let min_p = spec.min_p * left.first().map_or(0.0, |&heaviest| weights[heaviest]);
    left = reaching(&left, &weights, spec.top_p);
    left.retain(|&id| weights[id] >= min_p);
    let sum = sum_of(&left, &weights);
    let has = |id: usize, share: f32| mass(weights[id]) as f64 >= f64::from(share) * sum as f64;
    let tops = left.iter().filter(|&&id| has(id, shape.xtc_threshold)).count();
    if tops >= 2 {
        left.drain(..tops - 1);
    }
    let sum = sum_of(&left, &weights);
    let least = f64::from(shape.probability_min) * sum as f64;
    let heaviest = *left.first()?;
    left.retain(|&id| id == heaviest || mass(weights[id]) as f64 >= least);
    let sum = sum_of(&left, &weights);
    let at = ((spec.uniform * sum as f64) as u64).min(sum.checked_sub(1)?);
    left.sort_unstable();
    let mut passed = 0;
    let token = left.into_iter().find(|&id| {
        passed += mass(weights[id]);
        passed > at
    })?;
    let probability = mass(weights[token]) as f64 / sum as f64;
    Some((token, (shape.probability_min > 0.0).then_some(probability)))
}

fn sum_of(ids: &[usize], weights: &[f32]) -> u64 {
    ids.iter().map(|&id| mass(weights[id])).sum()
}

/// The first of `ids` whose masses together reach that share of all.
fn reaching(ids: &[usize], weights: &[f32], share: f32) -> Vec<usize> {
    let total = sum_of(ids, weights);
    let target = ((f64::from(share) * total as f64).ceil() as u64).clamp(1, total.max(1));
    let mut sum = 0;
    let reach = ids.iter().position(|&id| {
        sum += mass(weights[id]);
        sum >= target
    });
    ids[..reach.map_or(ids.len(), |at| at + 1)].to_vec()
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

/// Ids of values, largest first, with ties broken by the lowest id.
fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let by_value = |a: &usize, b: &usize| values[*b].partial_cmp(&values[*a]);
    order.sort_by(|a, b| by_value(a, b).expect("no value is NaN, as the caller has seen").then(a.cmp(b)));
    order
}

fn are_numbers(logits: &[f32]) -> bool {
    logits.iter().all(|&logit| logit < f32::INFINITY) && logits.iter().any(|&logit| logit > f32::NEG_INFINITY)
}
