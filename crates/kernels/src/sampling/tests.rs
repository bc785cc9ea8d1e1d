//! The fast draw against the formula, and the arithmetic they share.

use proptest::prelude::*;

use super::draw::{RowScratch, draw_row};
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
    draws.wait(Ticket::default(), &mut Vec::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cut and drawn without a sort, by blocks and buckets: the token is the one that full sorts give.
    #[test]
    fn the_fast_draw_is_the_formula(
        n in 1usize..3000, seed in any::<u64>(), spread in 0.1f32..6.0, ties in any::<bool>(),
        temperature in 0.05f32..2.0, top_k in 0u32..4000, top_p in 0.01f32..=1.0, min_p in 0.0f32..0.5,
        uniform in 0.0f64..1.0, logprobs in prop::option::of(0u32..25),
        masked in prop::option::of(prop::collection::vec(prop::sample::select(vec![0, !0, 1, 0x8000_0000, 0x1234_5678]), 1..100)),
    ) {
        let mut state = seed;
        let mut logits: Vec<f32> = (0..n).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 6.0 * spread
        }).collect();
        if ties {
            logits.iter_mut().for_each(|x| *x = x.round());
        }
        let spec = SampleSpec { temperature, top_k, top_p, min_p, uniform, logprobs, ..SampleSpec::default() };
        let mask = masked.as_deref();
        let expected = reference::draw(&logits, &spec, &[], mask);
        prop_assert_eq!(draw_row(&mut logits, &spec, &[], mask, &mut RowScratch::default()), expected);
    }
}
