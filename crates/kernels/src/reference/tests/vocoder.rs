//! Ops of codecs and vocoders against their formulas.

use super::grid::numbers;
use super::*;
use crate::PointActivation;

/// Rows of three columns after an activation of them.
fn activated(activation: PointActivation<&Vec<f32>>, rows: &[f32]) -> Vec<f32> {
    let mut backend = ready(SHAPE);
    let mut out = buffer(&mut backend, 3, rows);
    backend.begin(&prompt(rows.len() as u32 / 3)).unwrap();
    backend.run(Op::Activate { activation, out: &mut out });
    backend.end().unwrap();
    out.values
}

/// By the identity `2 sin²(y) = 1 - cos(2y)`.
#[test]
fn a_snake_is_a_line_and_a_wave() {
    let (rows, alpha) = (numbers(1, 18), vec![0.5, 1.0, 3.0]);
    let wave = |x: f32, alpha: f32| x + (1.0 - (2.0 * alpha * x).cos()) / (2.0 * alpha);
    let expected: Vec<f32> = rows.iter().enumerate().map(|(i, &x)| wave(x, alpha[i % 3])).collect();
    close(&activated(PointActivation::Snake { alpha: &alpha }, &rows), &expected);
    let still = vec![0.0; 3];
    close(&activated(PointActivation::Snake { alpha: &still }, &rows), &rows);
}

#[test]
fn leaky_relu_and_elu_bend_at_zero() {
    let rows = [-2.0, -0.5, 0.0, 0.25, 3.0, -8.0];
    let leaky = activated(PointActivation::LeakyRelu { slope: 0.1 }, &rows);
    close(&leaky, &[-0.2, -0.05, 0.0, 0.25, 3.0, -0.8]);
    let elu = activated(PointActivation::Elu { alpha: 2.0 }, &rows);
    // 2 / e² - 2, 2 / √e - 2, 2 / e⁸ - 2
    close(&elu, &[-1.729_329_4, -0.786_938_7, 0.0, 0.25, 3.0, -1.999_329_1]);
}
