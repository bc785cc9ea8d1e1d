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

#[test]
fn codes_are_looked_up_and_summed() {
    const ENTRIES: usize = 5;
    let mut backend = ready(SHAPE);
    let tables = numbers(2, 3 * ENTRIES * 4);
    let matrix = f32_matrix(&backend, 3 * ENTRIES, &tables);
    let codes = [[0, 4, 2], [3, 3, 3], [1, 0, 4]];
    let read = codes.as_flattened().iter().map(|&code| code as f32).collect::<Vec<_>>();
    let read = buffer(&mut backend, 3, &read);
    let mut out = backend.buffer(BufferRole::Operand, 3, 4).unwrap();
    backend.begin(&prompt(3)).unwrap();
    backend.run(Op::CodebookLookup { tables: &matrix, entries: ENTRIES, codes: &read, out: &mut out });
    backend.end().unwrap();
    for (row, [first, second, third]) in codes.into_iter().enumerate() {
        let of = |book: usize, code: usize, col: usize| tables[(book * ENTRIES + code) * 4 + col];
        let expected: Vec<f32> =
            (0..4).map(|col| of(0, first, col) + of(1, second, col) + of(2, third, col)).collect();
        close(&out.values[row * 4..][..4], &expected);
    }
}

/// Two rows, worked out by hand: near keys turn the softmax, near values are added.
#[test]
fn near_keys_and_values_count_by_their_distance() {
    let mut backend = ready(SHAPE);
    let heads = crate::HeadShape { heads: 1, kv_heads: 1, head_dim: 1 };
    let qkv = buffer(&mut backend, 3, &[1.0, 0.0, 2.0, 2.0, 0.0, 4.0]);
    let (keys, values) = (vec![1.0, 0.0, 3.0], vec![10.0, 20.0, 40.0]);
    let params = crate::RelativeParams { heads, scale: 0.5, reach: 1, keys: &keys, values: &values };
    let mut out = buffer(&mut backend, 1, &[0.0; 2]);
    backend.begin(&prompt(2)).unwrap();
    backend.run(Op::RelativeAttention { qkv: &qkv, params, out: &mut out });
    backend.end().unwrap();
    // The first row's scores are 0 and 3/2, of values 22 and 44; the second's 1 and 0, of values 12 and 24.
    let share = |score: f32, other: f32| score.exp() / (score.exp() + other.exp());
    let (first, second) = (share(1.5, 0.0), share(1.0, 0.0));
    close(&out.values, &[22.0 + 22.0 * first, 24.0 - 12.0 * second]);
}
