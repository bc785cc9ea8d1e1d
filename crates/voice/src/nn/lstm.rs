//! Bidirectional LSTM (PyTorch's `LSTM`, one layer). The input part is one matrix product over all time steps.
//! The recurrent part runs step by step, with the two directions in parallel.

use std::sync::{Mutex, PoisonError};

use hanzo_engine_kernels::KernelError;

use super::{Compute, Matrix, Signal, sigmoid, tanh};

/// Weights of one direction with PyTorch's shapes: `(4 * hidden, inputs)`, `(4 * hidden, hidden)` and the sum
/// of both biases. Gates are in the order input, forget, cell, output.
pub(crate) struct Direction {
    pub(crate) input: Vec<f32>,
    pub(crate) hidden: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

/// Bidirectional LSTM.
pub(crate) struct Lstm {
    input: Matrix,            // (2 * 4 * hidden, inputs)
    recurrent: [Vec<f32>; 2], // (hidden, 4 * hidden)
    hidden: usize,
}

impl Lstm {
    pub(crate) fn new(
        compute: &Compute,
        name: &str,
        inputs: usize,
        directions: [Direction; 2],
    ) -> Result<Lstm, KernelError> {
        let hidden = directions[0].bias.len() / 4;
        let turned = |weight: &[f32]| -> Vec<f32> {
            (0..hidden)
                .flat_map(|from| (0..4 * hidden).map(move |gate| weight[gate * hidden + from]))
                .collect()
        };
        let recurrent = [turned(&directions[0].hidden), turned(&directions[1].hidden)];
        let [forward, backward] = directions;
        let weight = [forward.input, backward.input].concat();
        let bias = [forward.bias, backward.bias].concat();
        let input = compute.pack(name, (8 * hidden, inputs), &weight, Some(&bias))?;
        Ok(Lstm { input, recurrent, hidden })
    }

    /// Output of shape `(rows, 2 * hidden)`: forward, then backward.
    pub(crate) fn run(&self, compute: &mut Compute, x: &Signal) -> Result<Signal, KernelError> {
        let added = compute.linear(&self.input, x)?;
        let hidden = self.hidden;
        let ways = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
        compute.each(2, &|way| {
            let out = self.direction(way, &added);
            *ways[way].lock().unwrap_or_else(PoisonError::into_inner) = out;
        });
        let [forward, backward] = ways.map(|way| way.into_inner().unwrap_or_else(PoisonError::into_inner));
        let part = |data| Signal::from_data(x.rows, hidden, data);
        Ok(Signal::beside(&[&part(forward), &part(backward)]))
    }

    fn direction(&self, way: usize, added: &Signal) -> Vec<f32> {
        let (hidden, rows) = (self.hidden, added.rows);
        let (mut state, mut cell) = (vec![0.0_f32; hidden], vec![0.0_f32; hidden]);
        let mut gates = vec![0.0_f32; 4 * hidden];
        let mut out = vec![0.0; rows * hidden];
        for step in 0..rows {
            let row = if way == 0 { step } else { rows - 1 - step };
            gates.copy_from_slice(&added.row(row)[way * 4 * hidden..][..4 * hidden]);
            add_product(&mut gates, &state, &self.recurrent[way]);
            for unit in 0..hidden {
                let [input, forget, candidate, output] = [0, 1, 2, 3].map(|gate| gates[gate * hidden + unit]);
                cell[unit] = sigmoid(forget) * cell[unit] + sigmoid(input) * tanh(candidate);
                state[unit] = sigmoid(output) * tanh(cell[unit]);
            }
            out[row * hidden..][..hidden].copy_from_slice(&state);
        }
        out
    }
}

/// Computes `gates += Σ_j state[j] * weight[j]`, four rows at a time, so that sums are loaded and stored a
/// quarter as often.
fn add_product(gates: &mut [f32], state: &[f32], weight: &[f32]) {
    let width = gates.len();
    let (fours, rest) = state.as_chunks::<4>();
    for (four, rows) in fours.iter().zip(weight.chunks_exact(4 * width)) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|row| &rows[row * width..][..width]);
        for i in 0..width {
            gates[i] += four[0] * a[i] + four[1] * b[i] + four[2] * c[i] + four[3] * d[i];
        }
    }
    let done = fours.len() * 4;
    for (index, &factor) in rest.iter().enumerate() {
        let row = &weight[(done + index) * width..][..width];
        gates.iter_mut().zip(row).for_each(|(gate, &weight)| *gate += factor * weight);
    }
}
