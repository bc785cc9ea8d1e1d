//! Sampling with a [`Shape`](super::Shape): one pass over the weights after the other, each of which sets the weights
//! of removed tokens to 0. There is no full sort.

use super::draw::DrawScratch;
use super::numbers::{Moments, Spread, dynamic_temperature, sigma_floor};
use super::selection::{self, SelectionBound, key, key_id};
use super::{SampleSpec, exp_nonpositive, mass};

/// Draws from logits, which are overwritten. Returns the token and its probability among those that it was drawn from.
pub(super) fn draw(
    logits: &mut [f32],
    maximum: f32,
    spec: &SampleSpec,
    scratch: &mut DrawScratch,
) -> Option<(u32, Option<f64>)> {
    let shape = &spec.shape;
    let DrawScratch { keys, exponents, .. } = scratch;
    let top_k = spec.top_k as usize;
    let mut cut = if (1..logits.len()).contains(&top_k) {
        selection::top_k(logits, top_k, keys)
    } else {
        SelectionBound::NONE
    };
    if shape.top_n_sigma > 0.0 {
        let mut spread = Spread::default();
        logits.iter().for_each(|&logit| spread.add(maximum, logit));
        cut = cut.or_above(sigma_floor(maximum, shape.top_n_sigma, &spread));
    }
    let temperature = if shape.temperature_range > 0.0 {
        dynamic_temperature(spec, &moments_at_one(logits, maximum, cut))
    } else {
        spec.temperature
    };
    if shape.typical_p < 1.0 {
        exponents.clear();
        exponents.extend(logits.iter().map(|&logit| (logit - maximum) / temperature));
    }
    let mut total = selection::weigh(logits, maximum, temperature, cut);
    let weights = logits;
    if shape.typical_p < 1.0 {
        total = typical(weights, exponents, share(shape.typical_p, total), keys);
    }
    if spec.top_p < 1.0 || spec.min_p > 0.0 {
        let heaviest = weights.iter().fold(0.0f32, |heaviest, &weight| heaviest.max(weight));
        let cut = selection::nucleus(weights, share(spec.top_p, total), spec.min_p * heaviest, keys);
        total = selection::leave(weights, |id, weight| selection::at_or_above(weight, id, cut));
    }
    if shape.xtc_threshold <= 0.5 {
        total = without_top_choices(weights, f64::from(shape.xtc_threshold) * total as f64, total);
    }
    if shape.probability_min > 0.0 {
        let least = f64::from(shape.probability_min) * total as f64;
        let heaviest = weights.iter().enumerate().map(|(id, &weight)| key(weight, id)).max()?;
        let heaviest = key_id(heaviest);
        total = selection::leave(weights, |id, weight| id == heaviest || mass(weight) as f64 >= least);
    }
    let token = selection::draw(weights, SelectionBound::NONE, spec.uniform)?;
    let probability = mass(weights[token as usize]) as f64 / total as f64;
    Some((token, (shape.probability_min > 0.0).then_some(probability)))
}

/// Fraction `part` of the total mass, at least 1.
fn share(part: f32, total: u64) -> u64 {
    ((f64::from(part) * total as f64).ceil() as u64).clamp(1, total)
}

/// Moments of the tokens up to the cut, at temperature 1.
fn moments_at_one(logits: &[f32], maximum: f32, cut: SelectionBound) -> Moments {
    let mut moments = Moments::default();
    for (id, &logit) in logits.iter().enumerate() {
        if selection::at_or_above(logit, id as u32, cut) {
            let x = logit - maximum;
            moments.add(x, exp_nonpositive(x));
        }
    }
    moments
}

/// Keeps the tokens whose exponents are nearest to their mean and together reach the mass `target`. Returns the
/// remaining mass.
fn typical(weights: &mut [f32], exponents: &[f32], target: u64, keys: &mut Vec<u64>) -> u64 {
    let mut moments = Moments::default();
    for (&weight, &x) in weights.iter().zip(exponents) {
        moments.add(x, weight);
    }
    let mean = moments.mean() as f32;
    let key_of = |id: usize| key(-(exponents[id] + mean).abs(), id);
    keys.clear();
    keys.extend((0..weights.len()).filter(|&id| mass(weights[id]) > 0).map(key_of));
    let last = selection::reaching(keys, target, |key| mass(weights[key_id(key) as usize])).unwrap_or(0);
    selection::leave(weights, |id, _| key_of(id as usize) >= last)
}

/// Removes all tokens with at least the mass `least` except the lightest, if there are two or more. Returns the
/// remaining mass.
fn without_top_choices(weights: &mut [f32], least: f64, total: u64) -> u64 {
    let is_top = |weight: f32| mass(weight) > 0 && mass(weight) as f64 >= least;
    let tops = weights.iter().enumerate().filter(|&(_, &weight)| is_top(weight));
    let (count, lightest) =
        tops.fold((0, u64::MAX), |(count, least), (id, &weight)| (count + 1, least.min(key(weight, id))));
    if count < 2 {
        return total;
    }
    selection::leave(weights, |id, weight| !is_top(weight) || id == key_id(lightest))
}
