//! Tests of the fast draw against the formula, and of the arithmetic they share.

use proptest::prelude::*;

use super::draw::{DrawScratch, draw_row};
use super::*;
use crate::reference;

#[test]
fn exp_is_accurate_and_monotonic() {
    let mut last = 1.0;
    for i in 0..90_000 {
        let x = -(i as f32) / 1000.0;
        let (got, exact) = (exp_nonpositive(x), f64::from(x).exp());
        if x >= -87.0 {
            assert!((f64::from(got) / exact - 1.0).abs() < 3e-7, "exp({x}) = {got}, not {exact}");
        } else {
            assert_eq!(got, 0.0);
        }
        assert!(got <= last * (1.0 + 2e-7));
        last = got;
    }
    assert_eq!(exp_nonpositive(0.0), 1.0);
    assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    assert_eq!(mass(1.0), 1 << 40);
    assert_eq!(mass(0.0), 0);
}

#[test]
fn a_soft_cap_is_the_hyperbolic_tangent() {
    for i in -4000..4000 {
        let logit = i as f32 / 20.0;
        let exact = 30.0 * (f64::from(logit) / 30.0).tanh();
        let found = f64::from(soft_cap(30.0, logit));
        assert!((found - exact).abs() < 4e-6 * exact.abs().max(1.0), "{logit}: {found}, not {exact}");
    }
    assert!(soft_cap(30.0, f32::NAN).is_nan());
    assert_eq!(soft_cap(30.0, f32::INFINITY), f32::INFINITY);
    assert_eq!(soft_cap(30.0, f32::MAX), 30.0);
}

#[test]
fn changes_keep_what_is_ruled_out_and_what_is_finite() {
    let out = f32::NEG_INFINITY;
    for change in [Change::Add(5.0), Change::Add(out), Change::Penalize(0.5), Change::Penalize(1e30)] {
        assert_eq!(change.apply(out), out);
    }
    assert_eq!(Change::Add(out).apply(f32::MAX), out);
    assert_eq!(Change::Add(f32::MAX).apply(f32::MAX), f32::MAX);
    assert_eq!(Change::Add(f32::MIN).apply(f32::MIN), f32::MIN);
    assert_eq!(Change::Penalize(f32::MIN_POSITIVE).apply(5.0), f32::MAX);
    assert_eq!(Change::Penalize(f32::MAX).apply(-3.0), f32::MIN);
    assert_eq!((Change::Penalize(2.0).apply(3.0), Change::Penalize(2.0).apply(-3.0)), (1.5, -6.0));
}

#[test]
#[should_panic = "is not the next to be waited for"]
fn a_step_is_waited_for_once() {
    let mut draws = Draws::default();
    let ticket = draws.submit();
    draws.wait(ticket, &mut Vec::new());
    draws.wait(Ticket::new(1), &mut Vec::new());
}

/// Settings; each is neutral half of the time.
fn shapes() -> impl Strategy<Value = Shape> {
    let or = |neutral: f32, values: std::ops::Range<f32>| prop_oneof![Just(neutral), values];
    let temperature = (or(0.0, 0.01..2.0), or(1.0, 0.0..4.0));
    (or(0.0, 0.1..4.0), temperature, or(1.0, 0.01..1.0), or(1.0, 0.0..0.5), or(0.0, 0.0001..0.9)).prop_map(
        |(
            top_n_sigma,
            (temperature_range, temperature_exponent),
            typical_p,
            xtc_threshold,
            probability_min,
        )| Shape {
            top_n_sigma,
            temperature_range,
            temperature_exponent,
            typical_p,
            xtc_threshold,
            probability_min,
        },
    )
}

#[test]
fn elementary_functions_are_accurate() {
    for i in 1..200_000 {
        let x = f64::from(i) * 1e-3;
        for x in [x, 1.0 / x, x * 1e15, x * 1e-20] {
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(1.0), "ln {x}: {} {}", ln(x), x.ln());
        }
        let x = (f64::from(i) - 100_000.0) * 7e-3;
        assert!((exp(x) / x.exp() - 1.0).abs() < 1e-14, "exp {x}: {} {}", exp(x), x.exp());
    }
    assert_eq!((ln(1.0), exp(0.0), exp(-1e300), exp(-709.0)), (0.0, 1.0, 0.0, 0.0));
    assert!(exp(1e300).is_finite());
}

#[test]
fn a_spread_is_the_standard_deviation_of_what_is_not_ruled_out() {
    let logits = [3.0, 1.5, f32::NEG_INFINITY, -2.25, 0.0, 3.0];
    let mut spread = Spread::default();
    logits.iter().for_each(|&logit| spread.add(3.0, logit));
    let finite: Vec<f64> = logits.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x)).collect();
    let mean = finite.iter().sum::<f64>() / 5.0;
    let exact = (finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 5.0).sqrt();
    assert!((spread.standard_deviation() - exact).abs() < 1e-4, "{} {exact}", spread.standard_deviation());
    assert!((f64::from(sigma_floor(3.0, 1.5, &spread)) - (3.0 - 1.5 * exact)).abs() < 1e-4);
    // The largest count at the largest distances: the sums fit.
    let most = SAMPLED_VOCAB_MAX as u64;
    let furthest = u64::from(deviation(f32::MAX, f32::MIN));
    assert!(most.checked_mul((furthest * furthest) >> 16).is_some());
    assert_eq!(deviation(1.0, 1.0), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Draws without a sort, by blocks and buckets, give the token of full sorts.
    #[test]
    fn the_fast_draw_is_the_formula(
        n in 1usize..3000, seed in any::<u64>(), spread in 0.1f32..6.0, ties in any::<bool>(),
        temperature in 0.05f32..2.0, top_k in 0u32..4000, top_p in 0.01f32..=1.0, min_p in 0.0f32..0.5,
        uniform in 0.0f64..1.0, logprobs in prop::option::of(0u32..25), shape in shapes(),
        masked in prop::option::of(prop::collection::vec(prop::sample::select(vec![0, !0, 1, 0x8000_0000, 0x1234_5678]), 1..100)),
        repetition in prop_oneof![Just(1.0), 0.3f32..3.0],
        seen in prop::collection::vec(prop::sample::select(vec![0, !0, 1, 0x8000_0000, 0x1234_5678]), 0..100),
    ) {
        let mut state = seed;
        let mut logits: Vec<f32> = (0..n).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 6.0 * spread
        }).collect();
        if ties {
            logits.iter_mut().for_each(|x| *x = x.round());
        }
        let spec = SampleSpec {
            temperature, top_k, top_p, min_p, uniform, shape, logprobs, repetition, ..SampleSpec::default()
        };
        let edits = Edits { softcap: None, bias: None, mask: masked.as_deref(), seen: &seen, adjustments: &[] };
        let expected = reference::draw(&logits, &spec, edits);
        let mut scratch = DrawScratch::new("cpu", n).expect("memory");
        let room = (scratch.keys.capacity(), scratch.exponents.capacity());
        prop_assert_eq!(draw_row(&mut logits, &spec, edits, &mut scratch), expected);
        prop_assert_eq!(room, (scratch.keys.capacity(), scratch.exponents.capacity()), "it has taken more than its plan");
    }
}
