//! The sampler and the host's draws against a naive sampler that sorts everything, and against the exact distribution.

use hanzo_engine_kernels::{Draws, Sampled};
use proptest::prelude::*;

use super::*;

impl Sampler {
    /// Draws the next token from (vocab) logits.
    fn sample(&mut self, logits: &mut [f32], banned: &[u32]) -> Option<Sampled> {
        let (mut specs, mut draws, mut drawn) = (SampleSpecs::default(), Draws::default(), Vec::new());
        self.ask(banned, &mut specs);
        draws.draw(&specs, logits);
        let ticket = draws.submit();
        draws.wait(ticket, &mut drawn);
        let sampled = drawn.pop().flatten();
        sampled.iter().for_each(|sampled| self.remember(sampled.token));
        sampled
    }
}

/// The kept tokens and their probabilities, by the definitions, in double precision with full sorts.
fn reference(
    params: &SamplingParams,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
    banned: &[u32],
) -> Vec<f64> {
    let mut l: Vec<f64> = logits.iter().map(|&x| f64::from(x) + 0.0).collect();
    for &(token, bias) in &params.logit_bias {
        l[token as usize] += f64::from(bias);
    }
    for (id, x) in l.iter_mut().enumerate() {
        let id = id as u32;
        if prompt.contains(&id) || generated.contains(&id) {
            let penalty = f64::from(params.repetition_penalty);
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
        let times = generated.iter().filter(|&&t| t == id).count() as f64;
        if times > 0.0 {
            *x -= f64::from(params.frequency_penalty) * times + f64::from(params.presence_penalty);
        }
    }
    banned.iter().for_each(|&t| l[t as usize] = f64::NEG_INFINITY);
    let mut order: Vec<usize> = (0..l.len()).collect();
    order.sort_by(|&a, &b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
    if params.temperature == 0.0 {
        let mut p = vec![0.0; l.len()];
        p[order[0]] = 1.0;
        return p;
    }
    let mut keep = l.len();
    if params.top_k > 0 {
        keep = keep.min(params.top_k as usize);
    }
    let weight = |id: usize| ((l[id] - l[order[0]]) / f64::from(params.temperature)).exp();
    let total: f64 = order[..keep].iter().map(|&id| weight(id)).sum();
    let mut sum = 0.0;
    let top_p = order[..keep].iter().position(|&id| {
        sum += weight(id) / total;
        sum >= f64::from(params.top_p)
    });
    let above = order[..keep].iter().filter(|&&id| weight(id) >= f64::from(params.min_p)).count();
    keep = keep.min(top_p.map_or(keep, |at| at + 1)).min(above);
    let total: f64 = order[..keep].iter().map(|&id| weight(id)).sum();
    let mut p = vec![0.0; l.len()];
    order[..keep].iter().for_each(|&id| p[id] = weight(id) / total);
    p
}

/// Draws `n` times from the same state and compares with `expected` by Pearson's chi-square at about six sigma.
fn assert_distribution(params: &SamplingParams, logits: &[f32], prompt: &[u32], expected: &[f64], n: usize) {
    let mut counts = vec![0usize; logits.len()];
    for seed in 0..n as u64 {
        let mut sampler = Sampler::new(params, seed, logits.len(), prompt);
        counts[sampler.sample(&mut logits.to_vec(), &[]).expect("finite").token as usize] += 1;
    }
    let (mut chi, mut cells, mut rare, mut rare_expected) = (0.0, 0.0, 0.0, 0.0);
    for (&count, &p) in counts.iter().zip(expected) {
        assert!(p > 0.0 || count == 0, "a token that was cut was drawn");
        let e = p * n as f64;
        if e >= 5.0 {
            chi += (count as f64 - e).powi(2) / e;
            cells += 1.0;
        } else {
            rare += count as f64;
            rare_expected += e;
        }
    }
    if rare_expected >= 5.0 {
        chi += (rare - rare_expected) * (rare - rare_expected) / rare_expected;
        cells += 1.0;
    }
    let freedom: f64 = cells - 1.0;
    assert!(
        chi <= freedom + 6.0 * (2.0 * freedom).sqrt() + 6.0,
        "chi-square {chi} with {freedom} degrees of freedom"
    );
}

fn pseudo_logits(n: usize, spread: f32, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    // A sum of uniforms: bell-shaped, like a model's.
    (0..n).map(|_| ((0..6).map(|_| random.uniform()).sum::<f64>() - 3.0) as f32 * spread).collect()
}

fn neutral() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::default() }
}

#[test]
fn draws_follow_the_exact_distribution() {
    let logits = pseudo_logits(50, 1.5, 1);
    let cases = [
        neutral(),
        SamplingParams { temperature: 0.5, ..neutral() },
        SamplingParams { temperature: 2.0, ..neutral() },
        SamplingParams { top_k: 7, ..neutral() },
        SamplingParams { top_p: 0.7, ..neutral() },
        SamplingParams { min_p: 0.2, ..neutral() },
        SamplingParams { repetition_penalty: 1.7, ..neutral() },
        SamplingParams { logit_bias: vec![(3, 2.0), (11, -100.0), (3, 0.5)], ..neutral() },
        SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, min_p: 0.05, ..neutral() },
    ];
    for params in cases {
        let prompt = [1, 4, 4, 9, 49];
        let expected = reference(&params, &logits, &prompt, &[], &[]);
        assert_distribution(&params, &logits, &prompt, &expected, 20_000);
    }
}

#[test]
fn a_large_vocabulary_follows_the_exact_distribution() {
    let logits = pseudo_logits(20_000, 2.5, 2);
    for params in
        [neutral(), SamplingParams { top_p: 0.9, ..neutral() }, SamplingParams { top_k: 300, ..neutral() }]
    {
        let expected = reference(&params, &logits, &[], &[], &[]);
        assert_distribution(&params, &logits, &[], &expected, 3_000);
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_a_tie_and_needs_no_seed() {
    let logits = [0.5, 3.0, -1.0, 3.0, 2.0];
    for seed in 0..20 {
        let mut sampler = Sampler::new(&SamplingParams::default(), seed, 5, &[]);
        assert_eq!(sampler.sample(&mut logits.to_vec(), &[]).expect("finite").token, 1);
        assert_eq!(sampler.sample(&mut logits.to_vec(), &[1]).expect("finite").token, 3);
        assert_eq!(sampler.sample(&mut logits.to_vec(), &[1, 3, 99]).expect("finite").token, 4);
    }
}

#[test]
fn what_is_not_finite_is_refused() {
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, ..neutral() };
        let sample = |mut logits: Vec<f32>, banned: &[u32]| {
            Sampler::new(&params, 1, logits.len(), &[])
                .sample(&mut logits, banned)
                .map(|sampled| sampled.token)
        };
        assert!(sample(vec![1.0; 40], &[]).is_some());
        for at in [0, 17, 39] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut logits = vec![1.0; 40];
                logits[at] = bad;
                assert_eq!(sample(logits, &[]), None);
            }
        }
        assert_eq!(sample(vec![f32::NEG_INFINITY; 40], &[]), None);
        assert_eq!(sample(vec![], &[]), None);
        assert_eq!(sample(vec![1.0, 2.0], &[0, 1]), None);
        assert_eq!(sample(vec![f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY], &[]), Some(1));
        assert_eq!(sample(vec![f32::MIN, f32::MAX], &[]), Some(1));
    }
}

#[test]
fn extreme_parameters_stay_finite() {
    let logits = [f32::MIN, -1e30, -1.0, 0.0, 1.0, 1e30, f32::MAX];
    for repetition_penalty in [f32::MIN_POSITIVE, 1e-30, 1e30, f32::MAX] {
        for temperature in [0.0, f32::MIN_POSITIVE, 1e-6, 2.0] {
            let params = SamplingParams {
                temperature,
                repetition_penalty,
                frequency_penalty: -2.0,
                presence_penalty: -2.0,
                logit_bias: vec![(6, 100.0), (0, -100.0)],
                ..neutral()
            };
            let mut sampler = Sampler::new(&params, 3, 7, &[0, 1, 2, 3, 4, 5, 6]);
            for _ in 0..4 {
                sampler.sample(&mut logits.to_vec(), &[]).expect("finite logits give a token");
            }
        }
    }
}

#[test]
fn a_seed_gives_the_same_tokens_in_every_release() {
    let params = SamplingParams { temperature: 1.0, top_p: 0.95, ..neutral() };
    let draw = |seed| {
        let mut sampler = Sampler::new(&params, seed, 1000, &[]);
        let mut step = |i| sampler.sample(&mut pseudo_logits(1000, 1.5, i), &[]).expect("finite").token;
        (0..8).map(&mut step).collect::<Vec<u32>>()
    };
    assert_eq!(draw(42), draw(42));
    assert_ne!(draw(42), draw(43));
    assert_eq!(
        draw(42),
        [89, 374, 657, 923, 987, 753, 702, 824],
        "the draws of seed 42 changed: users' seeds mean other texts now"
    );
}

#[test]
fn logprobs_are_of_the_untouched_distribution() {
    let logits = pseudo_logits(300, 2.0, 5);
    let params = SamplingParams {
        temperature: 1.5,
        top_k: 5,
        repetition_penalty: 3.0,
        logit_bias: vec![(7, 100.0)],
        logprobs: Some(4),
        ..neutral()
    };
    let sampled = Sampler::new(&params, 1, 300, &[1, 2, 3]).sample(&mut logits.clone(), &[]).expect("finite");
    assert_eq!(sampled.token, 7);
    let report = sampled.logprob.expect("asked for");
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let exact = |token: u32| (f64::from(logits[token as usize]) - total.ln()) as f32;
    assert_eq!(report.token, 7);
    assert!((report.logprob - exact(7)).abs() < 1e-5);
    let mut order: Vec<u32> = (0..300).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    assert_eq!(report.top.iter().map(|&(token, _)| token).collect::<Vec<_>>(), order[..4]);
    assert!(report.top.iter().all(|&(token, logprob)| (logprob - exact(token)).abs() < 1e-5));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Penalties and bias over a whole completion, decided greedily, agree with the definitions.
    #[test]
    fn penalties_agree_with_the_definitions(
        seed in any::<u64>(), repetition in 0.5f32..2.0, frequency in -2.0f32..2.0, presence in -2.0f32..2.0,
        prompt in prop::collection::vec(0u32..30, 0..10), bias in prop::collection::vec((0u32..30, -5.0f32..5.0), 0..5),
        banned in prop::collection::vec(0u32..30, 0..5),
    ) {
        let params = SamplingParams {
            temperature: 0.0, repetition_penalty: repetition, frequency_penalty: frequency,
            presence_penalty: presence, logit_bias: bias, ..neutral()
        };
        let mut sampler = Sampler::new(&params, 0, 30, &prompt);
        let mut generated = Vec::new();
        for step in 0..40 {
            let mut logits = pseudo_logits(30, 1.0, seed.wrapping_add(step));
            let expected = reference(&params, &logits, &prompt, &generated, &banned);
            let token = sampler.sample(&mut logits, &banned).expect("finite").token;
            prop_assert_eq!(expected[token as usize], 1.0, "step {}", step);
            generated.push(token);
        }
    }
}
