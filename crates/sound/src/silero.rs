//! Silero's network (github.com/snakers4/silero-vad, version 5 and 6, 16 kHz): how likely it is that somebody speaks in each 32 ms.
//! A spectrum by a convolution, four small convolutions, a cell that remembers, and a sum. Weights are its safetensors'.

use std::sync::Arc;

/// Samples of a chunk; it sees the last of those before it too.
pub(crate) const CHUNK: usize = 512;
const BEFORE: usize = 64;
/// What is mirrored behind a chunk.
const MIRRORED: usize = 64;
/// The spectrum's window and step, and its frequencies.
const WINDOW: usize = 256;
const STEP: usize = 128;
const BINS: usize = WINDOW / 2 + 1;
/// Spectra of a chunk.
const SPECTRA: usize = (BEFORE + CHUNK + MIRRORED - WINDOW) / STEP + 1;
/// How far each convolution steps; each sees three neighbours.
const STRIDES: [usize; 4] = [1, 2, 2, 1];
const TAPS: usize = 3;

/// What a file has of a tensor.
pub type Found = (Vec<usize>, Vec<f32>);

/// The network's numbers, for all sounds.
#[derive(Debug)]
pub struct SileroWeights {
    spectrum: Vec<f32>, // (2 * BINS, WINDOW)
    convolutions: Vec<Convolution>,
    hidden: usize,
    /// (4 * hidden, inputs) and (4 * hidden, hidden): input, forget, cell and output gates.
    input: Vec<f32>,
    memory: Vec<f32>,
    bias: Vec<f32>,
    last: Vec<f32>,
    last_bias: f32,
}

#[derive(Debug)]
struct Convolution {
    outputs: usize,
    inputs: usize,
    stride: usize,
    weight: Vec<f32>, // (outputs, inputs, TAPS)
    bias: Vec<f32>,
}

impl SileroWeights {
    /// Of the tensors that `find` knows by their names.
    ///
    /// # Errors
    /// Which tensor is missing or has another shape.
    pub fn new(find: impl Fn(&str) -> Option<Found>) -> Result<SileroWeights, String> {
        let shaped = |name: &str, expected: &[usize]| -> Result<Found, String> {
            let (shape, data) = find(name).ok_or_else(|| format!("tensor {name} is missing"))?;
            let fits = shape.len() == expected.len()
                && shape.iter().zip(expected).all(|(&is, &must)| must == 0 || is == must)
                && shape.iter().product::<usize>() == data.len()
                && !data.is_empty();
            if !fits {
                return Err(format!("tensor {name}: expected {expected:?} (0: any), file has {shape:?}"));
            }
            Ok((shape, data))
        };
        let spectrum = shaped("stft_conv.weight", &[2 * BINS, 1, WINDOW])?.1;
        let mut width = BINS;
        let mut convolutions = Vec::new();
        for (at, stride) in STRIDES.into_iter().enumerate() {
            let (shape, weight) = shaped(&format!("conv{}.weight", at + 1), &[0, width, TAPS])?;
            let bias = shaped(&format!("conv{}.bias", at + 1), &[shape[0]])?.1;
            convolutions.push(Convolution { outputs: shape[0], inputs: width, stride, weight, bias });
            width = shape[0];
        }
        let (shape, memory) = shaped("lstm_cell.weight_hh", &[0, 0])?;
        let hidden = shape[1];
        if shape[0] != 4 * hidden {
            return Err(format!("tensor lstm_cell.weight_hh: {shape:?} is no four gates"));
        }
        let input = shaped("lstm_cell.weight_ih", &[4 * hidden, width])?.1;
        let mut bias = shaped("lstm_cell.bias_ih", &[4 * hidden])?.1;
        let more = shaped("lstm_cell.bias_hh", &[4 * hidden])?.1;
        bias.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        let last = shaped("final_conv.weight", &[1, hidden, 1])?.1;
        let last_bias = shaped("final_conv.bias", &[1])?.1[0];
        Ok(SileroWeights { spectrum, convolutions, hidden, input, memory, bias, last, last_bias })
    }
}

/// The network in one sound.
pub(crate) struct Silero {
    weights: Arc<SileroWeights>,
    before: [f32; BEFORE],
    hidden: Vec<f32>,
    cell: Vec<f32>,
}

impl Silero {
    /// Of a sound that has not begun.
    pub(crate) fn new(weights: Arc<SileroWeights>) -> Silero {
        let nothing = vec![0.0; weights.hidden];
        Silero { before: [0.0; BEFORE], hidden: nothing.clone(), cell: nothing, weights }
    }

    /// How likely it is that somebody speaks in the next chunk.
    pub(crate) fn chance(&mut self, chunk: &[f32; CHUNK]) -> f32 {
        let weights = Arc::clone(&self.weights);
        let mut sound = [0.0; BEFORE + CHUNK + MIRRORED];
        sound[..BEFORE].copy_from_slice(&self.before);
        sound[BEFORE..BEFORE + CHUNK].copy_from_slice(chunk);
        self.before.copy_from_slice(&chunk[CHUNK - BEFORE..]);
        let end = BEFORE + CHUNK;
        for at in 0..MIRRORED {
            sound[end + at] = sound[end - 2 - at];
        }
        // (channel, time)
        let mut signal = vec![0.0; BINS * SPECTRA];
        for time in 0..SPECTRA {
            let window = &sound[time * STEP..time * STEP + WINDOW];
            let row = |row: usize| dot(window, &weights.spectrum[row * WINDOW..(row + 1) * WINDOW]);
            for bin in 0..BINS {
                signal[bin * SPECTRA + time] = row(bin).hypot(row(BINS + bin));
            }
        }
        let mut length = SPECTRA;
        for convolution in &weights.convolutions {
            (signal, length) = convolution.run(&signal, length);
        }
        // One moment is left.
        let inputs: Vec<f32> = signal.chunks_exact(length).map(|channel| channel[0]).collect();
        self.remember(&weights, &inputs);
        let sum: f32 =
            self.hidden.iter().zip(&weights.last).map(|(hidden, weight)| hidden.max(0.0) * weight).sum();
        sigmoid(sum + weights.last_bias)
    }

    fn remember(&mut self, weights: &SileroWeights, inputs: &[f32]) {
        let size = weights.hidden;
        let gates: Vec<f32> = (0..4 * size)
            .map(|gate| {
                let own = dot(inputs, &weights.input[gate * inputs.len()..(gate + 1) * inputs.len()]);
                own + dot(&self.hidden, &weights.memory[gate * size..(gate + 1) * size]) + weights.bias[gate]
            })
            .collect();
        for at in 0..size {
            let [input, forget, cell, output] = [0, 1, 2, 3].map(|gate| gates[gate * size + at]);
            self.cell[at] = sigmoid(forget) * self.cell[at] + sigmoid(input) * cell.tanh();
            self.hidden[at] = sigmoid(output) * self.cell[at].tanh();
        }
    }
}

impl Convolution {
    /// What is above zero of it, and how long that is; a zero stands before and behind.
    fn run(&self, signal: &[f32], length: usize) -> (Vec<f32>, usize) {
        let out_length = (length - 1) / self.stride + 1;
        let mut out = Vec::with_capacity(self.outputs * out_length);
        // Neighbours side by side: (time, input, tap).
        let mut rows = vec![0.0; out_length * self.inputs * TAPS];
        for (time, row) in rows.chunks_exact_mut(self.inputs * TAPS).enumerate() {
            for (input, taps) in row.chunks_exact_mut(TAPS).enumerate() {
                for (tap, value) in taps.iter_mut().enumerate() {
                    let at = (time * self.stride + tap).wrapping_sub(1);
                    *value = if at < length { signal[input * length + at] } else { 0.0 };
                }
            }
        }
        let width = self.inputs * TAPS;
        for (weight, bias) in self.weight.chunks_exact(width).zip(&self.bias) {
            out.extend(rows.chunks_exact(width).map(|row| (dot(row, weight) + bias).max(0.0)));
        }
        (out, out_length)
    }
}

/// Sums side by side, so that they can be vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (whole_a, rest_a) = a.split_at(a.len() / LANES * LANES);
    let (whole_b, rest_b) = b.split_at(whole_a.len().min(b.len()));
    for (a, b) in whole_a.chunks_exact(LANES).zip(whole_b.chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum::<f32>()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
