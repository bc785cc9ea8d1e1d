//! Ops along lines against numbers worked out by hand.

use super::*;
use crate::LayerNormParams;

#[test]
fn an_instance_norm_is_a_scale_and_a_shift() {
    let mut backend = ready(SHAPE);
    // Two channels, three places in rows of two, of which the last is left over.
    let x = buffer(&mut backend, 4, &[1.0, 10.0, 2.0, 10.0, 3.0, 10.0, 9.0, 9.0]);
    let (weight, bias) = (vec![2.0, 3.0], vec![0.5, -1.0]);
    let params = LayerNormParams { weight: &weight, bias: Some(&bias), eps: 0.25 };
    let mut out = buffer(&mut backend, 4, &[0.0; 8]);
    backend.begin(&prompt(2)).unwrap();
    backend.run(Op::InstanceAffine { x: &x, places: Some(3), params, out: &mut out });
    backend.end().unwrap();
    // Variances 2/3 and 0, means 2 and 10.
    let factor = 2.0 / (2.0_f32 / 3.0 + 0.25).sqrt();
    close(&out.values[..4], &[factor, 6.0, 0.5 - 2.0 * factor, -61.0]);
}

#[test]
fn mirrored_places_stand_before_the_others() {
    let mut backend = ready(SHAPE);
    let x = buffer(&mut backend, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut out = buffer(&mut backend, 2, &[0.0; 10]);
    backend.begin(&prompt(3)).unwrap();
    backend.run(Op::Mirror { x: &x, channels: 2, places: None, before: 2, out: &mut out });
    backend.end().unwrap();
    close(&out.values, &[5.0, 6.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

/// Gates of one unit, so that each step is one formula.
#[test]
fn an_lstm_runs_both_ways() {
    let mut backend = ready(SHAPE);
    let rows = [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [-0.3, 0.9, 1.1, 0.2, 0.4, -0.6, 0.3, -0.1]];
    let recurrent = vec![0.5, -0.4, 0.3, 0.2, 0.1, 0.6, -0.7, 0.8];
    let gates = buffer(&mut backend, 8, rows.as_flattened());
    let mut out = buffer(&mut backend, 2, &[0.0; 4]);
    backend.begin(&prompt(2)).unwrap();
    backend.run(Op::Lstm { gates: &gates, recurrent: &recurrent, out: &mut out });
    backend.end().unwrap();
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let step = |gates: &[f32], weights: &[f32], [h, c]: [f32; 2]| {
        let of = |at: usize| gates[at] + weights[at] * h;
        let c = sigmoid(of(1)) * c + sigmoid(of(0)) * of(2).tanh();
        [sigmoid(of(3)) * c.tanh(), c]
    };
    let first = step(&rows[0][..4], &recurrent[..4], [0.0; 2]);
    let second = step(&rows[1][..4], &recurrent[..4], first);
    let last = step(&rows[1][4..], &recurrent[4..], [0.0; 2]);
    let before = step(&rows[0][4..], &recurrent[4..], last);
    close(&out.values, &[first[0], before[0], second[0], last[0]]);
}
