//! Reference implementation of ops along lines, besides convolutions.

use super::{ReferenceBackend, ReferenceBuffer};
use crate::LayerNormParams;

fn sigmoid(x: f64) -> f64 {
    (1.0 + (-x).exp()).recip()
}

impl ReferenceBackend {
    /// Numbers of each sequence's places.
    fn lines(&self, x: &ReferenceBuffer, channels: usize, places: Option<usize>) -> Vec<Vec<f32>> {
        x.check(self.step().rows(), x.cols, "x");
        assert!(x.cols.is_multiple_of(channels), "rows hold whole places");
        let of = |span: &crate::SequenceSpan| {
            let rows = span.row_first as usize..(span.row_first + span.rows) as usize;
            let held = rows.len() * x.cols;
            let count = places.map_or(held, |places| places * channels);
            assert!(count <= held, "more places than the rows hold");
            rows.flat_map(|row| x.row(row)).take(count).copied().collect()
        };
        self.step().sequences.iter().map(of).collect()
    }

    pub(super) fn instance_affine(
        &mut self,
        x: &ReferenceBuffer,
        places: Option<usize>,
        params: &LayerNormParams<&Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        let channels = params.weight.len();
        let lines = self.lines(x, channels, places);
        out.check(self.step().rows(), 2 * channels, "out");
        for (sequence, line) in lines.iter().enumerate() {
            for channel in 0..channels {
                let own = || line.iter().skip(channel).step_by(channels).map(|&x| f64::from(x));
                let count = own().count() as f64;
                let mean = own().sum::<f64>() / count;
                let variance = own().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                let factor = (variance + f64::from(params.eps)).sqrt().recip();
                let scale = factor * f64::from(params.weight[channel]);
                let bias = params.bias.map_or(0.0, |bias| f64::from(bias[channel]));
                out.row_mut(sequence)[channel] = scale as f32;
                out.row_mut(sequence)[channels + channel] = (bias - mean * scale) as f32;
            }
        }
    }

    pub(super) fn mirror(
        &mut self,
        x: &ReferenceBuffer,
        channels: usize,
        places: Option<usize>,
        before: usize,
        out: &mut ReferenceBuffer,
    ) {
        let mut all = Vec::new();
        for line in self.lines(x, channels, places) {
            let places: Vec<&[f32]> = line.chunks_exact(channels).collect();
            assert!(before < places.len(), "fewer mirrored places than there are");
            (1..=before).rev().for_each(|place| all.extend_from_slice(places[place]));
            all.extend_from_slice(&line);
        }
        out.values[..all.len()].copy_from_slice(&all);
    }

    pub(super) fn lstm(&mut self, gates: &ReferenceBuffer, recurrent: &[f32], out: &mut ReferenceBuffer) {
        let (batch, hidden) = (self.step(), gates.cols / 8);
        assert_eq!(recurrent.len(), 8 * hidden * hidden, "additions of each state to each gate");
        gates.check(batch.rows(), 8 * hidden, "gates");
        out.check(batch.rows(), 2 * hidden, "out");
        for (span, way) in batch.sequences.iter().flat_map(|span| [(span, 0), (span, 1)]) {
            let (mut state, mut cell) = (vec![0.0_f64; hidden], vec![0.0_f64; hidden]);
            for step in 0..span.rows {
                let row = span.row_first + if way == 0 { step } else { span.rows - 1 - step };
                let sum = |gate: usize| {
                    let of_state = |from: usize| recurrent[(way * hidden + from) * 4 * hidden + gate];
                    let products = state.iter().enumerate().map(|(from, h)| h * f64::from(of_state(from)));
                    f64::from(gates.row(row as usize)[way * 4 * hidden + gate]) + products.sum::<f64>()
                };
                let sums: Vec<f64> = (0..4 * hidden).map(sum).collect();
                for unit in 0..hidden {
                    let [input, forget, candidate, output] =
                        [0, 1, 2, 3].map(|gate| sums[gate * hidden + unit]);
                    cell[unit] = sigmoid(forget) * cell[unit] + sigmoid(input) * candidate.tanh();
                    state[unit] = sigmoid(output) * cell[unit].tanh();
                    out.row_mut(row as usize)[way * hidden + unit] = state[unit] as f32;
                }
            }
        }
    }
}
