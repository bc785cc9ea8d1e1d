//! Formula of each op on one row: sums and functions in f64 in a fixed order, rounded to f32 once at the end.
//! Independent of batches, caches and devices.

use crate::{
    Activation, ExpertGroups, ExpertScoring, MoeParams, PositionBias, RopeKind, SelfAttentionParams,
};

/// `Σ a[i] b[i]`, over eight interleaved partial sums.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "a dot product of unequal lengths");
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = [0.0f64; 8];
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            lanes[i] += f64::from(a[i]) * f64::from(b[i]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    lanes.iter().sum::<f64>() + rest
}

/// `out[i] = x[i] / sqrt(mean(x²) + eps) * weight[i]` (arxiv.org/abs/1910.07467).
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = dot(x, x) / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (f64::from(x) * factor * f64::from(weight)) as f32;
    }
}

/// `out[i] = (x[i] - mean) / sqrt(variance + eps) * weight[i] + bias[i]` (arxiv.org/abs/1607.06450).
pub fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    let count = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    let factor = 1.0 / (variance + f64::from(eps)).sqrt();
    for (i, out) in out.iter_mut().enumerate() {
        let bias = bias.map_or(0.0, |bias| f64::from(bias[i]));
        *out = ((f64::from(x[i]) - mean) * factor * f64::from(weight[i]) + bias) as f32;
    }
}

/// Rotates pair i of a head by `position * inv_freq[i]` radians, a product in f32 as in training: `(a, b)` becomes
/// `magnitude * (a cos - b sin, a sin + b cos)`. Elements past `2 * inv_freq.len()` stay.
pub fn rotate(head: &mut [f32], kind: RopeKind, inv_freq: &[f32], magnitude: f32, position: u32) {
    rotate_by(head, kind, inv_freq, magnitude, |_| position);
}

/// Same as [`rotate`], with a separate position for each pair.
pub fn rotate_by(
    head: &mut [f32],
    kind: RopeKind,
    inv_freq: &[f32],
    magnitude: f32,
    position: impl Fn(usize) -> u32,
) {
    let pairs = inv_freq.len();
    assert!(2 * pairs <= head.len(), "rotary embedding of {pairs} pairs on a head of {}", head.len());
    for (i, inv_freq) in inv_freq.iter().enumerate() {
        let (first, second) = match kind {
            RopeKind::Neox => (i, i + pairs),
            RopeKind::Interleaved => (2 * i, 2 * i + 1),
        };
        let (sin, cos) = f64::from(position(i) as f32 * inv_freq).sin_cos();
        let (a, b) = (f64::from(head[first]), f64::from(head[second]));
        head[first] = (f64::from(magnitude) * (a * cos - b * sin)) as f32;
        head[second] = (f64::from(magnitude) * (a * sin + b * cos)) as f32;
    }
}

/// Attention of one head: `out = Σ_j p_j v_j`, `p = softmax(scores)`. `scores` holds one number for each key and is
/// overwritten. A sink takes its share of the softmax and adds nothing (arxiv.org/abs/2309.17453). Keys are taken in
/// the given order.
pub fn attend<'a>(
    scores: &mut [f64],
    values: impl Iterator<Item = &'a [f32]>,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
    let largest = scores.iter().copied().fold(sink, f64::max);
    let mut total = (sink - largest).exp();
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        total += *score;
    }
    let mut sums = vec![0.0f64; out.len()];
    for (weight, value) in scores.iter().zip(values) {
        for (sum, &value) in sums.iter_mut().zip(value) {
            *sum += weight * f64::from(value);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = (sum / total) as f32;
    }
}

/// Subtracts `slope` from scores of keys for each token between them and the query (ALiBi, arxiv.org/abs/2108.12409).
pub fn lose_by_distance(scores: &mut [f64], slope: f32, position: u32, keys: impl Iterator<Item = u32>) {
    for (score, key) in scores.iter_mut().zip(keys) {
        *score -= f64::from(slope) * f64::from(position - key);
    }
}

/// `scale * (q · k)`, then `cap * tanh(score / cap)` if there is a cap.
pub fn score(query: &[f32], key: &[f32], scale: f32, softcap: Option<f32>) -> f64 {
    let score = f64::from(scale) * dot(query, key);
    softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
}

/// Addend to the score of query i and key j of head `head`, whose query and key are given.
pub fn position_bias(
    params: &SelfAttentionParams<&Vec<f32>, &[u32]>,
    head: usize,
    i: u32,
    query: &[f32],
    j: u32,
    key: &[f32],
) -> f64 {
    // From -reach to reach, as an index from 0.
    let clamped = |distance: i64, reach: u32| {
        let reach = i64::from(reach);
        (distance.clamp(-reach, reach) + reach) as usize
    };
    let distance = i64::from(i) - i64::from(j);
    match &params.bias {
        PositionBias::None => 0.0,
        PositionBias::Alibi { slopes } => -f64::from(slopes[head]) * distance.abs() as f64,
        PositionBias::ByDistance { table, reach } => {
            f64::from(table[head * (2 * *reach as usize + 1) + clamped(-distance, *reach)])
        }
        PositionBias::Disentangled { keys, queries, bucket_of, reach, .. } => {
            let head_dim = params.heads.head_dim;
            let bucket = bucket_of[clamped(distance, *reach)] as usize;
            let at = bucket * params.heads.q_width() + head * head_dim;
            let keys = keys.map_or(0.0, |keys| dot(query, &keys[at..][..head_dim]));
            let queries = queries.map_or(0.0, |queries| dot(key, &queries[at..][..head_dim]));
            f64::from(params.scale) * (keys + queries)
        }
    }
}

/// Non-linearity of an MLP: ReLU `max(x, 0)`, or its square; SiLU `x / (1 + exp(-x))`; GELU `x/2 (1 + erf(x / √2))`,
/// or with `tanh(√(2/π) (x + 0.044715 x³))` for the `erf` (arxiv.org/abs/1606.08415).
pub fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu | Activation::ReluSquared if x < 0.0 => 0.0,
        Activation::Relu => x,
        Activation::ReluSquared => x * x,
        Activation::ClampedSwish => {
            let x = x.min(CLAMP);
            x / (1.0 + (-1.702 * x).exp())
        }
    }
}

/// Bound of the inputs of [`Activation::ClampedSwish`].
const CLAMP: f64 = 7.0;

/// Factor by which a gate's activation is multiplied: the other product, which one activation changes.
pub fn factor(activation: Activation, up: f64) -> f64 {
    match activation {
        Activation::ClampedSwish => up.clamp(-CLAMP, CLAMP) + 1.0,
        _ => up,
    }
}

/// Weights of all scores by the scoring, before the chosen ones are weighed against each other.
pub fn expert_weights(scores: &[f32], params: &MoeParams) -> Vec<f64> {
    let largest = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = scores.iter().map(|&score| (f64::from(score) - largest).exp()).sum();
    let weight = |&score: &f32| match params.scoring {
        ExpertScoring::Softmax | ExpertScoring::Near { .. } => (f64::from(score) - largest).exp() / total,
        ExpertScoring::Sigmoid => 1.0 / (1.0 + (-f64::from(score)).exp()),
    };
    scores.iter().map(weight).collect()
}

/// Distance of an expert's score below another's, relative to the larger of that and its own magnitude. It decides
/// whether the expert is near ([`ExpertScoring::Near`]).
pub fn apart(score: f32, from: f32) -> f64 {
    (f64::from(from) - f64::from(score)) / f64::from(score.abs().max(from))
}

/// Weights of experts chosen in this order, each relative to those near it.
fn near_weights(scores: &[f32], order: &[usize], reach: f32) -> Vec<f64> {
    let weight = |at: usize| {
        let top = scores[order[at]];
        // If both are zero they are not apart.
        let far = |expert: usize| apart(scores[expert], top) > f64::from(reach);
        let near = (0..scores.len()).filter(|expert| !order[..at].contains(expert) && !far(*expert));
        1.0 / near.map(|expert| (f64::from(scores[expert]) - f64::from(top)).exp()).sum::<f64>()
    };
    (0..order.len()).map(weight).collect()
}

/// Keys by which experts are chosen, -∞ for experts of groups that are not. Second, the scores of the groups.
pub fn expert_keys(scores: &[f32], params: &MoeParams, correction: Option<&[f32]>) -> (Vec<f64>, Vec<f64>) {
    let mut keys: Vec<f64> = match params.chooses_by_weight(correction.is_some()) {
        true => expert_weights(scores, params),
        false => scores.iter().map(|&score| f64::from(score)).collect(),
    };
    if let Some(correction) = correction {
        keys.iter_mut().zip(correction).for_each(|(key, &correction)| *key += f64::from(correction));
    }
    let Some(ExpertGroups { count, used, best }) = params.groups else { return (keys, Vec::new()) };
    let size = keys.len() / count;
    let worth = |group: &[f64]| {
        let mut group = group.to_vec();
        group.sort_by(|a, b| b.total_cmp(a));
        group[..best].iter().sum::<f64>()
    };
    let worths: Vec<f64> = keys.chunks_exact(size).map(worth).collect();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| worths[b].partial_cmp(&worths[a]).expect("sums of numbers are numbers"));
    for &group in &order[used..] {
        keys[group * size..][..size].fill(f64::NEG_INFINITY);
    }
    (keys, worths)
}

/// Experts and their weights, in descending order of the keys that they are chosen by, with ties broken by the lower
/// index. `None` if a score is NaN.
pub fn route(scores: &[f32], params: &MoeParams, correction: Option<&[f32]>) -> Option<Vec<(usize, f64)>> {
    if scores.iter().any(|score| score.is_nan()) {
        return None;
    }
    let (keys, _) = expert_keys(scores, params, correction);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // A stable sort keeps equal scores in the order of their indices. (0 and -0 are equal.)
    order.sort_by(|&a, &b| keys[b].partial_cmp(&keys[a]).expect("numbers, as asserted above, have an order"));
    order.truncate(params.experts_used);
    let mut weights: Vec<f64> = match params.scoring {
        ExpertScoring::Near { reach } => near_weights(scores, &order, reach),
        _ => {
            let all = expert_weights(scores, params);
            order.iter().map(|&expert| all[expert]).collect()
        }
    };
    let total: f64 = weights.iter().sum();
    if params.normalized && total != 0.0 {
        weights.iter_mut().for_each(|weight| *weight /= total);
    }
    weights.iter_mut().for_each(|weight| *weight *= f64::from(params.scale));
    Some(order.into_iter().zip(weights).collect())
}

/// The error function by its series of positive terms,
/// `2/√π exp(-x²) Σ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n+1))`, which loses no digits to cancellation.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
