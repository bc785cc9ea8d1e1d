//! The sampler and the host's sampling against a naive sampler that sorts everything, and against the exact
//! distribution.

use std::sync::LazyLock;

use hanzo_engine_ops::Draws;
use proptest::prelude::*;

use super::*;
use crate::text::{TextModel, tests::demo as open_demo};

fn demo() -> &'static TextModel {
    static DEMO: LazyLock<TextModel> = LazyLock::new(open_demo);
    &DEMO
}

impl Sampler {
    /// Draws the next token from (vocab) logits.
    fn sample(&mut self, logits: &mut [f32], banned: &[u32]) -> Option<SampledToken> {
        let (mut specs, mut draws, mut drawn) = (SampleSpecs::default(), Draws::default(), Vec::new());
        self.ask(banned, &mut specs);
        draws.draw(&specs, logits);
        let ticket = draws.submit();
        draws.wait(ticket, &mut drawn);
        let sampled = drawn.pop().flatten();
        sampled.iter().for_each(|sampled| self.learn(sampled));
        sampled
    }
}

/// Kept tokens and their probabilities by definition, in double precision with full sorts.
fn reference(
    params: &SamplingParams,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
    banned: &[u32],
) -> Vec<f64> {
    let l = penalized(params, logits, prompt, generated, banned);
    let mut order: Vec<usize> = (0..l.len()).collect();
    order.sort_by(|&a, &b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
    let mut p = vec![0.0; l.len()];
    if params.temperature == 0.0 {
        p[order[0]] = 1.0;
        return p;
    }
    let mut left = order.clone();
    if params.top_k > 0 {
        left.truncate(params.top_k as usize);
    }
    if params.top_n_sigma > 0.0 {
        let finite: Vec<f64> = l.iter().copied().filter(|x| x.is_finite()).collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;
        let variance = finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / finite.len() as f64;
        let floor = l[order[0]] - f64::from(params.top_n_sigma) * variance.sqrt();
        left.retain(|&id| l[id] >= floor);
    }
    let softmax = |ids: &[usize], temperature: f64| -> Vec<f64> {
        let weights: Vec<f64> = ids.iter().map(|&id| ((l[id] - l[order[0]]) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    };
    let entropy = |p: &[f64]| -p.iter().filter(|&&p| p > 0.0).map(|p| p * p.ln()).sum::<f64>();
    let mut temperature = f64::from(params.temperature);
    if params.dynatemp_range > 0.0 && left.len() > 1 {
        let range = f64::from(params.dynatemp_range);
        let (low, high) = ((temperature - range).max(0.0), temperature + range);
        let normalized = entropy(&softmax(&left, 1.0)) / (left.len() as f64).ln();
        temperature = low + (high - low) * normalized.powf(params.dynatemp_exponent.into());
    }
    let first = |sorted: Vec<(f64, usize)>, sum_min: f64| -> Vec<usize> {
        let mut sum = 0.0;
        let at = sorted.iter().position(|&(p, _)| {
            sum += p;
            sum >= sum_min
        });
        sorted[..at.map_or(sorted.len(), |at| at + 1)].iter().map(|&(_, id)| id).collect()
    };
    if params.typical_p < 1.0 {
        let of_left = softmax(&left, temperature);
        let entropy = entropy(&of_left);
        let mut typical: Vec<(f64, usize)> = of_left.into_iter().zip(left).collect();
        typical.sort_by(|a, b| (-a.0.ln() - entropy).abs().total_cmp(&(-b.0.ln() - entropy).abs()));
        left = first(typical, params.typical_p.into());
        left.sort_by(|&a, &b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
    }
    let of_left = softmax(&left, temperature);
    let least = of_left[0] * f64::from(params.min_p);
    let above = of_left.iter().filter(|&&p| p >= least).count();
    left = first(of_left.into_iter().zip(left).collect(), params.top_p.into());
    left.truncate(above);
    // With and without the top choices.
    let tops = softmax(&left, temperature).iter().filter(|&&p| p >= f64::from(params.xtc_threshold)).count();
    let xtc = f64::from(params.xtc_probability);
    for (part, left) in [(xtc, &left[tops.saturating_sub(1)..]), (1.0 - xtc, &left[..])] {
        let mut left = left.to_vec();
        if let Some(Mirostat { tau, .. }) = params.mirostat {
            // At the first token.
            let kept =
                softmax(&left, temperature).iter().filter(|p| -p.log2() <= 2.0 * f64::from(tau)).count();
            left.truncate(kept.max(1));
        }
        for (of_left, &id) in softmax(&left, temperature).into_iter().zip(&left) {
            p[id] += part * of_left;
        }
    }
    p
}

/// Logits after bias and penalties.
fn penalized(
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
    let last_n = params.repeat_last_n.map_or(usize::MAX, |n| n as usize);
    let generated_seen = &generated[generated.len().saturating_sub(last_n)..];
    let prompt_seen = &prompt[prompt.len().saturating_sub(last_n - generated_seen.len())..];
    for (id, x) in l.iter_mut().enumerate() {
        let id = id as u32;
        if prompt_seen.contains(&id) || generated_seen.contains(&id) {
            let penalty = f64::from(params.repetition_penalty);
            *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
        }
        let times = generated_seen.iter().filter(|&&t| t == id).count() as f64;
        if times > 0.0 {
            *x -= f64::from(params.frequency_penalty) * times + f64::from(params.presence_penalty);
        }
        if let Some(dry) = &params.dry {
            *x -= dry_penalty(dry, &[prompt, generated].concat(), id);
        }
    }
    banned.iter().for_each(|&t| l[t as usize] = f64::NEG_INFINITY);
    l
}

/// Reference by definition: the longest end of the text that also precedes the token elsewhere, without a breaker
/// in it.
fn dry_penalty(dry: &Dry, tokens: &[u32], token: u32) -> f64 {
    let model = demo();
    let breakers = &dry.breakers;
    let text_of = |token: u32| model.tokenizer.token_bytes(token).to_vec();
    let breaks = |text: &[u8]| {
        breakers.iter().any(|breaker| text.windows(breaker.len()).any(|part| part == breaker.as_bytes()))
    };
    // Whether a breaker ends in the token at `at`.
    let ends_at = |at: usize| {
        let whole: Vec<u8> = tokens[..=at].iter().flat_map(|&token| text_of(token)).collect();
        (0..text_of(tokens[at]).len()).any(|cut| {
            let text = &whole[..whole.len() - cut];
            breakers.iter().any(|breaker| text.ends_with(breaker.as_bytes()))
        })
    };
    let since =
        (0..tokens.len()).rev().find(|&at| ends_at(at)).map_or(tokens.len(), |at| tokens.len() - 1 - at);
    let last_n = dry.last_n.map_or(tokens.len(), |n| tokens.len().min(n as usize));
    let (tokens, allowed) = (&tokens[tokens.len() - last_n..], dry.allowed_length as usize);
    if tokens.len() <= allowed || since < allowed || breaks(&text_of(token)) {
        return 0.0;
    }
    let longest = (1..tokens.len()).filter(|&at| tokens[at] == token).map(|at| {
        let same = |length: &usize| tokens[at - length..at] == tokens[tokens.len() - length..];
        (0..=at.min(since)).filter(same).max().unwrap_or(0)
    });
    match longest.max() {
        Some(longest) if longest >= allowed => {
            f64::from(dry.multiplier) * f64::from(dry.base).powi((longest - allowed) as i32)
        }
        _ => 0.0,
    }
}

/// Draws `n` times from the same state and compares with `expected` by Pearson's chi-square at about six sigma.
fn assert_distribution(params: &SamplingParams, logits: &[f32], prompt: &[u32], expected: &[f64], n: usize) {
    let mut counts = vec![0usize; logits.len()];
    for seed in 0..n as u64 {
        let mut sampler = Sampler::new(params, seed, logits.len(), prompt, &demo().tokenizer);
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
        SamplingParams { typical_p: 0.4, ..neutral() },
        SamplingParams { typical_p: 0.9, top_p: 0.8, min_p: 0.1, temperature: 1.3, ..neutral() },
        SamplingParams { top_n_sigma: 1.2, ..neutral() },
        SamplingParams { dynatemp_range: 0.6, ..neutral() },
        SamplingParams { dynatemp_range: 1.5, dynatemp_exponent: 2.5, top_k: 9, ..neutral() },
        SamplingParams { xtc_probability: 1.0, ..neutral() },
        SamplingParams { xtc_probability: 0.4, xtc_threshold: 0.05, top_n_sigma: 2.0, ..neutral() },
        SamplingParams { mirostat: Some(Mirostat { tau: 1.6, eta: 0.1 }), ..neutral() },
        SamplingParams {
            mirostat: Some(Mirostat { tau: 2.0, eta: 0.1 }),
            xtc_probability: 0.5,
            typical_p: 0.95,
            top_k: 40,
            ..neutral()
        },
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
        let mut sampler = Sampler::new(&SamplingParams::default(), seed, 5, &[], &demo().tokenizer);
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
            Sampler::new(&params, 1, logits.len(), &[], &demo().tokenizer)
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
            let mut sampler = Sampler::new(&params, 3, 7, &[0, 1, 2, 3, 4, 5, 6], &demo().tokenizer);
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
        let mut sampler = Sampler::new(&params, seed, 1000, &[], &demo().tokenizer);
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
    let sampled = Sampler::new(&params, 1, 300, &[1, 2, 3], &demo().tokenizer)
        .sample(&mut logits.clone(), &[])
        .expect("finite");
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

#[test]
fn what_repeats_is_not_said_again() {
    let tokenizer = &demo().tokenizer;
    let tokens = |text: &str| tokenizer.encode(text, false).expect("tokens");
    let prompt = tokens("one two three four. One more: one two three");
    let [.., four] = tokens("one two three four")[..] else { panic!() };
    let penalty = |dry: Dry| {
        let mut repetitions = Repetitions::new(&dry, tokenizer, &prompt);
        let mut found = 0.0;
        repetitions.penalties(|token, penalty| {
            if token == four {
                found = penalty
            }
        });
        found
    };
    let dry = Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, last_n: None, breakers: Arc::default() };
    let whole = penalty(dry.clone());
    assert!(whole > 0.0 && penalty(Dry { multiplier: 1.6, ..dry.clone() }) == 2.0 * whole, "{whole}");
    assert!(penalty(Dry { base: 2.0, ..dry.clone() }) > whole);
    assert_eq!(penalty(Dry { allowed_length: 40, ..dry.clone() }), 0.0);
    assert_eq!(penalty(Dry { last_n: Some(4), ..dry.clone() }), 0.0);
    let broken = |breaker: &str| Arc::from([breaker.to_owned()]);
    // Breakers at the end, across two tokens, and in the next token.
    for breaker in ["three", "o thre", " four"] {
        assert_eq!(penalty(Dry { breakers: broken(breaker), ..dry.clone() }), 0.0, "{breaker}");
    }
    assert_eq!(penalty(Dry { breakers: broken("zebra"), ..dry.clone() }), whole);
    // Even for very long repetitions the penalty is a finite number.
    let long: Vec<u32> = (0..4000).map(|i| [7, 8][i % 2]).collect();
    let mut repetitions = Repetitions::new(&Dry { base: 1e30, ..dry }, tokenizer, &long);
    repetitions.penalties(|_, penalty| assert_eq!(penalty, f32::MAX));
}

#[test]
fn dry_is_refused_in_the_words_of_its_ranges() {
    let breakers: Arc<[String]> = Arc::default();
    let dry = |multiplier, base| {
        let dry = Dry { multiplier, base, allowed_length: 2, last_n: None, breakers: breakers.clone() };
        dry.validate().map_err(|error| error.to_string())
    };
    assert_eq!(dry(f32::MIN_POSITIVE, 1.0), Ok(()));
    for multiplier in [0.0, -0.5, f32::NAN, f32::INFINITY] {
        let error = format!("dry_multiplier: must be a finite number above 0, not {multiplier}");
        assert_eq!(dry(multiplier, 1.75), Err(error));
    }
    for base in [0.5, f32::NAN, f32::INFINITY] {
        assert_eq!(
            dry(0.8, base),
            Err(format!("dry_base: must be a finite number of at least 1, not {base}"))
        );
    }
}

#[test]
fn mirostat_reaches_the_surprise_that_it_aims_at() {
    for tau in [1.0, 3.0, 5.0] {
        let params = SamplingParams { mirostat: Some(Mirostat { tau, eta: 0.1 }), ..neutral() };
        let mut sampler = Sampler::new(&params, 5, 2000, &[], &demo().tokenizer);
        let mut bits = Vec::new();
        for step in 0..1500 {
            let sampled = sampler.sample(&mut pseudo_logits(2000, 1.2, step), &[]).expect("finite");
            bits.push(-sampled.probability.expect("told").log2());
        }
        let mean = bits[300..].iter().sum::<f64>() / (bits.len() - 300) as f64;
        assert!((mean - f64::from(tau)).abs() < 0.15, "{tau}: {mean}");
    }
}

#[test]
fn what_xtc_draws_of_leaves_the_other_numbers_alone() {
    let draw = |xtc_probability| {
        let params = SamplingParams { xtc_probability, xtc_threshold: 0.5, ..neutral() };
        let mut sampler = Sampler::new(&params, 42, 400, &[], &demo().tokenizer);
        let mut step = |i| sampler.sample(&mut pseudo_logits(400, 0.5, i), &[]).expect("finite").token;
        (0..30).map(&mut step).collect::<Vec<u32>>()
    };
    // No token has half of the probability: nothing is excluded, and the same numbers are used.
    assert_eq!(draw(0.0), draw(0.7));
}

/// Any parameters in their ranges give a token, the same each time, with log probabilities of a distribution.
#[test]
fn every_combination_draws_a_token() {
    let mut state = 0u64;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
    };
    for round in 0..10_000 {
        let vocab = 2 + next() as usize % 60;
        let mut of = |usual: f32, values: &[f32]| match next() % 2 {
            0 => usual,
            _ => values[next() as usize % values.len()],
        };
        let mut params = SamplingParams {
            temperature: of(1.0, &[0.0, f32::MIN_POSITIVE, 0.3, 2.0]),
            top_p: of(1.0, &[f32::MIN_POSITIVE, 0.1, 0.9]),
            min_p: of(0.0, &[0.05, 1.0]),
            typical_p: of(1.0, &[f32::MIN_POSITIVE, 0.2, 0.95]),
            xtc_probability: of(0.0, &[0.5, 1.0]),
            xtc_threshold: of(0.1, &[0.0, 0.3, 0.5, 1.0]),
            top_n_sigma: of(0.0, &[f32::MIN_POSITIVE, 1.0, 100.0]),
            dynatemp_range: of(0.0, &[f32::MIN_POSITIVE, 0.5, 2.0]),
            dynatemp_exponent: of(1.0, &[0.0, 0.2, 100.0]),
            repetition_penalty: of(1.0, &[f32::MIN_POSITIVE, 1.3, f32::MAX]),
            frequency_penalty: of(0.0, &[-2.0, 0.4, 2.0]),
            presence_penalty: of(0.0, &[-2.0, 0.4, 2.0]),
            mirostat: (of(0.0, &[1.0]) > 0.0)
                .then(|| Mirostat { tau: of(5.0, &[0.0, 100.0]), eta: of(0.1, &[0.0, 1.0]) }),
            dry: (of(0.0, &[1.0]) > 0.0).then(|| Dry {
                multiplier: of(0.8, &[f32::MIN_POSITIVE, f32::MAX]),
                base: of(1.75, &[1.0, f32::MAX]),
                allowed_length: of(2.0, &[0.0, 1.0, 9.0]) as u32,
                last_n: None,
                breakers: Arc::from(["\n".into(), "!".into(), "$%".into()]),
            }),
            ..neutral()
        };
        params.top_k = [0, 1, 5, u32::MAX][next() as usize % 4];
        params.repeat_last_n = [None, None, Some(0), Some(3)][next() as usize % 4];
        params.logprobs = [None, Some(0), Some(20)][next() as usize % 3];
        assert_eq!(params.validate(vocab), Ok(()), "{params:?}");
        let prompt: Vec<u32> = (0..next() % 20).map(|_| next() as u32 % vocab as u32).collect();
        let spread = [0.0, 1.0, 30.0, 1e30][next() as usize % 4];
        let banned: &[u32] = if next() % 2 == 0 { &[] } else { &[0] };
        let draw = || {
            let mut sampler = Sampler::new(&params, round, vocab, &prompt, &demo().tokenizer);
            let step = |step| {
                let mut logits = pseudo_logits(vocab, spread, round + step);
                if round % 7 == 0 {
                    logits[1..vocab - 1].fill(f32::NEG_INFINITY);
                }
                sampler.sample(&mut logits, banned)
            };
            (0..4).map(step).collect::<Vec<Option<SampledToken>>>()
        };
        let drawn = draw();
        assert_eq!(drawn, draw(), "{params:?}");
        for sampled in &drawn {
            let sampled = sampled.as_ref().unwrap_or_else(|| panic!("nothing of {params:?}"));
            assert!((sampled.token as usize) < vocab && !banned.contains(&sampled.token), "{params:?}");
            assert!(sampled.probability.is_none_or(|p| p > 0.0 && p <= 1.0), "{params:?}");
            let Some(logprob) = &sampled.logprob else { continue };
            let sum: f64 = logprob.top.iter().map(|&(_, logprob)| f64::from(logprob).exp()).sum();
            assert!(sum <= 1.0 + 1e-6 && logprob.top.iter().all(|top| top.1 <= 1e-6), "{sum} {params:?}");
            assert!(!logprob.logprob.is_nan() && logprob.logprob <= 1e-6, "{params:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// DRY and penalties that count only a few last tokens.
    #[test]
    fn what_repeats_is_penalized_by_the_definitions(
        seed in any::<u64>(), multiplier in 0.1f32..3.0, base in 1.0f32..3.0, allowed_length in 0u32..4,
        last_n in prop::option::of(0u32..40), repeat_last_n in prop::option::of(0u32..12), prompt in prop::collection::vec(0u32..12, 0..30),
        frequency in -2.0f32..2.0, repetition in 0.5f32..2.0, breakers in prop::sample::subsequence(vec!["#", "!\"", "$%&", "\"#\"", "''", "x"], 0..4),
    ) {
        let breakers: Vec<String> = breakers.into_iter().map(str::to_owned).collect();
        let breakers: Arc<[String]> = breakers.into();
        let params = SamplingParams {
            temperature: 0.0, repetition_penalty: repetition, frequency_penalty: frequency, repeat_last_n,
            dry: Some(Dry { multiplier, base, allowed_length, last_n, breakers }), ..neutral()
        };
        prop_assert_eq!(params.validate(12), Ok(()));
        let mut sampler = Sampler::new(&params, 0, 12, &prompt, &demo().tokenizer);
        let mut generated = Vec::new();
        for step in 0..12 {
            let mut logits = pseudo_logits(12, 0.3, seed.wrapping_add(step));
            let expected = reference(&params, &logits, &prompt, &generated, &[]);
            let token = sampler.sample(&mut logits, &[]).expect("finite").token;
            prop_assert_eq!(expected[token as usize], 1.0, "step {}", step);
            generated.push(token);
        }
    }

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
        let mut sampler = Sampler::new(&params, 0, 30, &prompt, &demo().tokenizer);
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
