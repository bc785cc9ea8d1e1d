//! Short-time Fourier transform and its inverse for small sizes, by tables of cosines and sines. PyTorch's
//! conventions: a periodic Hann window, centred frames, mirrored edges.

use std::f64::consts::PI;

use super::Device;

/// Transform of `size` points with a step of `hop` samples.
pub(crate) struct Stft {
    size: usize,
    hop: usize,
    window: Vec<f32>,
    cosine: Vec<f32>, // (bins, size)
    sine: Vec<f32>,   // (bins, size)
}

impl Stft {
    pub(crate) fn new(size: usize, hop: usize) -> Stft {
        let turn = |product: usize| 2.0 * PI * (product % size) as f64 / size as f64;
        let bins = size / 2 + 1;
        let table = |function: fn(f64) -> f64| -> Vec<f32> {
            (0..bins).flat_map(|bin| (0..size).map(move |at| function(turn(bin * at)) as f32)).collect()
        };
        let window = (0..size).map(|at| (0.5 - 0.5 * turn(at).cos()) as f32).collect();
        Stft { size, hop, window, cosine: table(f64::cos), sine: table(f64::sin) }
    }

    /// Bins of a frame's spectrum.
    pub(crate) fn bins(&self) -> usize {
        self.size / 2 + 1
    }

    /// Spectrum `(frames, 2 * bins)`: magnitudes, then phases. There are `samples / hop + 1` frames.
    pub(crate) fn transform(&self, device: &Device, samples: &[f32]) -> Vec<f32> {
        let (half, bins, last) = (self.size / 2, self.bins(), samples.len() - 1);
        assert!(last >= half, "more samples than are mirrored");
        let mut out = vec![0.0; (samples.len() / self.hop + 1) * 2 * bins];
        device.rows(&mut out, 2 * bins, &|first, piece| {
            let mut frame = vec![0.0; self.size];
            for (index, row) in piece.chunks_exact_mut(2 * bins).enumerate() {
                let start = (first + index) * self.hop;
                for (at, value) in frame.iter_mut().enumerate() {
                    let place = (start + at).abs_diff(half);
                    let place = if place > last { 2 * last - place } else { place };
                    *value = samples[place] * self.window[at];
                }
                for bin in 0..bins {
                    let sum = |table: &[f32]| -> f32 {
                        table[bin * self.size..].iter().zip(&frame).map(|(factor, x)| factor * x).sum()
                    };
                    let real = sum(&self.cosine);
                    // The first and last bins of a real signal are real.
                    let imaginary = if bin == 0 || bin == half { 0.0 } else { -sum(&self.sine) };
                    // In mirrored frames (the first and the last) it is a rounding error, whose sign would
                    // change the phase by half a turn.
                    let imaginary = if imaginary.abs() < 1e-5 * real.abs() { 0.0 } else { imaginary };
                    row[bin] = real.hypot(imaginary);
                    row[bins + bin] = imaginary.atan2(real);
                }
            }
        });
        out
    }

    /// Returns `(frames - 1) * hop` samples for a spectrum `(frames, 2 * bins)`: magnitudes, then phases.
    pub(crate) fn inverse(&self, device: &Device, spectrum: &[f32]) -> Vec<f32> {
        let (half, bins) = (self.size / 2, self.bins());
        let count = spectrum.len() / (2 * bins);
        let mut frames = vec![0.0; count * self.size];
        device.rows(&mut frames, self.size, &|first, piece| {
            for (index, frame) in piece.chunks_exact_mut(self.size).enumerate() {
                let row = &spectrum[(first + index) * 2 * bins..][..2 * bins];
                for bin in 0..bins {
                    let (magnitude, angle) = (row[bin], row[bins + bin]);
                    let inner = bin != 0 && bin != half;
                    let factor = if inner { 2.0 } else { 1.0 } / self.size as f32;
                    let real = magnitude * angle.cos() * factor;
                    let imaginary = if inner { magnitude * angle.sin() * factor } else { 0.0 };
                    let (cosine, sine) = (&self.cosine[bin * self.size..], &self.sine[bin * self.size..]);
                    for (at, value) in frame.iter_mut().enumerate() {
                        *value += real * cosine[at] - imaginary * sine[at];
                    }
                }
                frame.iter_mut().zip(&self.window).for_each(|(value, window)| *value *= window);
            }
        });
        let length = (count - 1) * self.hop + self.size;
        let (mut sum, mut weight) = (vec![0.0_f32; length], vec![0.0_f32; length]);
        for (row, frame) in frames.chunks_exact(self.size).enumerate() {
            let start = row * self.hop;
            for (at, &value) in frame.iter().enumerate() {
                sum[start + at] += value;
                weight[start + at] += self.window[at] * self.window[at];
            }
        }
        let inner = half..length - half;
        sum[inner.clone()].iter().zip(&weight[inner]).map(|(sum, weight)| sum / weight).collect()
    }
}
