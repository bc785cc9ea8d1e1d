//! Silero voice activity detection (github.com/snakers4/silero-vad, versions 5 and 6, 16 kHz): the probability
//! of speech for each 32 ms. The network computes a spectrum by a convolution, then runs four small convolutions,
//! an LSTM cell and a weighted sum. Its authors publish the weights as `silero_vad_16k.safetensors`, which the
//! caller reads.

use std::sync::Arc;

/// New samples per chunk. The network also sees the last `BEFORE` samples of the previous chunk.
pub(crate) const CHUNK: usize = 512;
/// Samples of the previous chunk that the network sees again.
const BEFORE: usize = 64;
/// Samples mirrored after a chunk.
const MIRRORED: usize = 64;
/// Samples of a window. Each window gives a spectrum.
const WINDOW: usize = 256;
/// Samples from the start of a window to the start of the next.
const STEP: usize = 128;
/// Frequencies of a spectrum.
const BINS: usize = WINDOW / 2 + 1;
/// Number of spectra of a chunk.
const SPECTRA: usize = (BEFORE + CHUNK + MIRRORED - WINDOW) / STEP + 1;
/// Maximum width of a layer. Sides of tensors may be four times as long, because the LSTM has four gates.
const WIDTH_MAX: usize = 1024;
/// Strides of the convolutions.
const STRIDES: [usize; 4] = [1, 2, 2, 1];
/// Length of each convolution's kernel.
const TAPS: usize = 3;

/// Shape and data of a tensor in a file.
type Found = (Vec<usize>, Vec<f32>);

/// Weights of the network, shared by all audio streams.
#[derive(Debug)]
pub struct SileroWeights {
    /// Kernels of the spectrum, `(2 * BINS, WINDOW)`: cosines, then sines.
    spectrum: Vec<f32>,
    /// Convolutions after the spectrum, in order.
    convolutions: Vec<Convolution>,
    /// Width of the LSTM's state.
    hidden: usize,
    /// Weights of the LSTM's inputs, `(4 * hidden, inputs)`. Gates are in the order input, forget, cell, output.
    input: Vec<f32>,
    /// Weights of the LSTM's previous output, `(4 * hidden, hidden)`, with gates in the same order.
    memory: Vec<f32>,
    /// Sum of the LSTM's two biases, `4 * hidden`, with gates in the same order.
    bias: Vec<f32>,
    /// Weights of the final sum, `hidden`.
    last: Vec<f32>,
    /// Bias of the final sum.
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
    /// Loads the weights. `find` returns a tensor by name.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has the wrong shape; the error names it.
    pub fn new(find: impl Fn(&str) -> Option<Found>) -> Result<SileroWeights, String> {
        // 0 in the expected shape allows any size, up to the LSTM's four gates of the maximum width.
        let shaped = |name: &str, expected: &[usize]| -> Result<Found, String> {
            let (shape, data) = find(name).ok_or_else(|| format!("tensor {name} is missing"))?;
            let fits = shape.len() == expected.len()
                && shape.iter().zip(expected).all(|(&is, &must)| must == 0 || is == must)
                && shape.iter().all(|side| (1..=4 * WIDTH_MAX).contains(side))
                && shape.iter().product::<usize>() == data.len();
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

/// State of the network for one audio stream.
pub(crate) struct Silero {
    weights: Arc<SileroWeights>,
    before: [f32; BEFORE],
    hidden: Vec<f32>,
    cell: Vec<f32>,
}

impl Silero {
    /// Creates the state for a new audio stream.
    pub(crate) fn new(weights: Arc<SileroWeights>) -> Silero {
        let nothing = vec![0.0; weights.hidden];
        Silero { before: [0.0; BEFORE], hidden: nothing.clone(), cell: nothing, weights }
    }

    /// Probability of speech in the next chunk of [`CHUNK`] samples.
    pub(crate) fn chance(&mut self, chunk: &[f32]) -> f32 {
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
        // The length is 1 now.
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
    /// Convolution with zero padding and ReLU. Returns the output and its length.
    fn run(&self, signal: &[f32], length: usize) -> (Vec<f32>, usize) {
        let out_length = (length - 1) / self.stride + 1;
        let mut out = Vec::with_capacity(self.outputs * out_length);
        // Inputs as rows: (time, input, tap).
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

/// Dot product with parallel sums, so that the compiler vectorises it.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Sizes in `testdata/make_silero.py`: widths of the convolutions, and of the LSTM.
    const WIDTHS: [usize; 4] = [6, 5, 4, 6];
    const HIDDEN: usize = 7;
    const SAMPLES: usize = 30_000;

    /// Spectrum by its formula: cosines and sines in a Hann window.
    fn basis() -> Vec<f32> {
        let part = |at: usize| {
            let (row, n) = (at / WINDOW, (at % WINDOW) as f64);
            let turn = std::f64::consts::TAU / WINDOW as f64;
            let window = 0.5 - 0.5 * (turn * n).cos();
            let angle = turn * (row % BINS) as f64 * n;
            (window * if row < BINS { angle.cos() } else { -angle.sin() }) as f32
        };
        (0..2 * BINS * WINDOW).map(part).collect()
    }

    fn named(numbers: impl Fn(&str, usize) -> Vec<f32>) -> Vec<(String, Found)> {
        let mut shapes: Vec<(String, Vec<usize>)> =
            vec![("stft_conv.weight".into(), vec![2 * BINS, 1, WINDOW])];
        let mut inputs = BINS;
        for (at, width) in WIDTHS.into_iter().enumerate() {
            shapes.push((format!("conv{}.weight", at + 1), vec![width, inputs, TAPS]));
            shapes.push((format!("conv{}.bias", at + 1), vec![width]));
            inputs = width;
        }
        for (name, shape) in [
            ("lstm_cell.weight_ih", vec![4 * HIDDEN, inputs]),
            ("lstm_cell.weight_hh", vec![4 * HIDDEN, HIDDEN]),
            ("lstm_cell.bias_ih", vec![4 * HIDDEN]),
            ("lstm_cell.bias_hh", vec![4 * HIDDEN]),
            ("final_conv.weight", vec![1, HIDDEN, 1]),
            ("final_conv.bias", vec![1]),
        ] {
            shapes.push((name.to_owned(), shape));
        }
        shapes
            .into_iter()
            .map(|(name, shape)| {
                let data =
                    if name.starts_with("stft") { basis() } else { numbers(&name, shape.iter().product()) };
                (name, (shape, data))
            })
            .collect()
    }

    fn weights(tensors: &[(String, Found)]) -> Result<SileroWeights, String> {
        SileroWeights::new(|name| tensors.iter().find(|(own, _)| own == name).map(|(_, found)| found.clone()))
    }

    /// Network that detects only tones up to 2 kHz.
    pub(crate) fn of_low_tones() -> SileroWeights {
        let low = |at: usize, count: usize| if at < count { 0.05 } else { 0.0 };
        let tensors = named(|name, size| {
            let mut numbers = vec![0.0; size];
            match name {
                // The first channel sums the lower bins, and is passed on unchanged.
                "conv1.weight" => (0..BINS).for_each(|bin| numbers[bin * TAPS + 1] = low(bin, BINS / 4)),
                "conv2.weight" | "conv3.weight" | "conv4.weight" => numbers[1] = 1.0,
                // The cell stores it at once, and forgets its earlier state.
                "lstm_cell.weight_ih" => numbers[2 * HIDDEN * WIDTHS[3]] = 10.0,
                "lstm_cell.bias_ih" => {
                    numbers[..HIDDEN].fill(9.0);
                    numbers[HIDDEN..2 * HIDDEN].fill(-9.0);
                    numbers[3 * HIDDEN..].fill(9.0);
                }
                "final_conv.weight" => numbers[0] = 20.0,
                "final_conv.bias" => numbers[0] = -8.0,
                _ => {}
            }
            numbers
        });
        weights(&tensors).unwrap()
    }

    /// Equal to `sound` in make_silero.py.
    fn sound() -> Vec<f32> {
        let sample = |at: usize| {
            let n = at as f64;
            let voice = 0.3 * (0.05 * n + 3.0 * (0.0007 * n).sin()).sin() * (0.5 + 0.5 * (0.001 * n).sin());
            let noise = ((at * at * 7919) % 1000) as f64 / 1000.0 - 0.5;
            (voice + 0.05 * noise) as f32
        };
        (0..SAMPLES).map(sample).collect()
    }

    #[test]
    fn chances_are_those_of_its_makers_network() {
        let file = include_bytes!("../testdata/silero.bin");
        let all: Vec<f32> = file.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let at = std::cell::Cell::new(0);
        let tensors = named(|_, size| {
            at.set(at.get() + size);
            all[at.get() - size..at.get()].to_vec()
        });
        let right = &all[at.get()..];
        assert_eq!(right.len(), SAMPLES.div_ceil(CHUNK));
        let mut network = Silero::new(Arc::new(weights(&tensors).unwrap()));
        let mut samples = sound();
        samples.resize(right.len() * CHUNK, 0.0);
        for (at, (chunk, right)) in samples.chunks_exact(CHUNK).zip(right).enumerate() {
            let chance = network.chance(chunk);
            assert!((chance - right).abs() < 2e-5, "chunk {at}: {chance} is not {right}");
        }
    }

    #[test]
    fn what_is_no_such_network_is_refused_by_name() {
        let whole = named(|_, size| vec![0.0; size]);
        assert!(weights(&whole).is_ok());
        for at in 0..whole.len() {
            let mut without = whole.clone();
            let (name, _) = without.remove(at);
            assert_eq!(weights(&without).unwrap_err(), format!("tensor {name} is missing"));
            let mut other = whole.clone();
            other[at].1.0[0] += 1;
            assert!(weights(&other).unwrap_err().contains("tensor "), "{name}");
        }
    }
}
