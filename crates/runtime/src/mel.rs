//! Whisper's input features: the logarithm of a sound's power in bands of the mel scale, one frame for every 10 ms
//! (transformers' `WhisperFeatureExtractor`). Frames are computed as samples arrive. [`normalize`] applies the
//! floor relative to a window's loudest number, which depends on the whole window. [`unfold`] prepares the input of
//! the convolutions that read the frames.

use std::f32::consts::TAU;

/// Samples per second. Sound is one channel of f32 between -1 and 1.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples of a frame.
pub(crate) const FRAME: usize = 400;
/// Samples from one frame to the next.
pub(crate) const HOP: usize = 160;
/// Frequencies of a frame.
const BINS: usize = FRAME / 2 + 1;
/// Factors of [`FRAME`], in the order of the transform's passes.
const RADICES: [usize; 4] = [5, 5, 4, 4];

/// Mel filters for one number of bands, with the transform before them.
#[derive(Debug)]
pub(crate) struct MelBank {
    window: Vec<f32>,              // (FRAME)
    twiddles: Vec<[f32; 2]>,       // (FRAME): the roots of unity
    bands: Vec<(usize, Vec<f32>)>, // first frequency of each, and its weights from there on
}

/// Frames of a sound whose samples arrive in parts.
#[derive(Debug)]
pub(crate) struct MelFrames {
    /// Samples that future frames need; the first are mirrored before the sound's start.
    samples: Vec<f32>,
    begun: bool,
}

fn mel_of(hertz: f64) -> f64 {
    if hertz < 1000.0 { 3.0 * hertz / 200.0 } else { 15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

fn hertz_of(mel: f64) -> f64 {
    if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}

impl MelBank {
    /// Creates `bands` filters with Slaney's scale and area normalisation.
    pub(crate) fn new(bands: usize) -> MelBank {
        let last = mel_of(SAMPLE_RATE as f64 / 2.0);
        let edges: Vec<f64> =
            (0..bands + 2).map(|edge| hertz_of(last * edge as f64 / (bands + 1) as f64)).collect();
        let bin_hertz = SAMPLE_RATE as f64 / FRAME as f64;
        let band = |at: usize| {
            let [low, middle, high] = [edges[at], edges[at + 1], edges[at + 2]];
            let weight = |bin: usize| {
                let hertz = bin as f64 * bin_hertz;
                let rising = (hertz - low) / (middle - low);
                let falling = (high - hertz) / (high - middle);
                (rising.min(falling).max(0.0) * 2.0 / (high - low)) as f32
            };
            let weights: Vec<f32> = (0..BINS).map(weight).collect();
            let first = weights.iter().position(|&weight| weight > 0.0).unwrap_or(0);
            let end = weights.iter().rposition(|&weight| weight > 0.0).map_or(first, |last| last + 1);
            (first, weights[first..end].to_vec())
        };
        let turn = |at: usize| TAU * at as f32 / FRAME as f32;
        MelBank {
            window: (0..FRAME).map(|at| 0.5 - 0.5 * turn(at).cos()).collect(),
            twiddles: (0..FRAME)
                .map(|at| {
                    let angle = -std::f64::consts::TAU * at as f64 / FRAME as f64;
                    [angle.cos() as f32, angle.sin() as f32]
                })
                .collect(),
            bands: (0..bands).map(band).collect(),
        }
    }

    /// Bands of a frame.
    pub(crate) fn bands(&self) -> usize {
        self.bands.len()
    }

    /// Computes frames of two stretches of samples at once, one after the other in the output: one is the real part
    /// of the transform's input, the other the imaginary part.
    fn pair(&self, stretches: [&[f32]; 2], work: &mut Work, out: &mut Vec<f32>) {
        for (at, window) in self.window.iter().enumerate() {
            work.re[at] = stretches[0][at] * window;
            work.im[at] = stretches[1][at] * window;
        }
        self.transform(work);
        for (part, powers) in work.powers.iter_mut().enumerate() {
            for (bin, power) in powers.iter_mut().enumerate() {
                let mirror = (FRAME - bin) % FRAME;
                let (a, b) = ([work.re[bin], work.im[bin]], [work.re[mirror], work.im[mirror]]);
                let (re, im) = match part {
                    0 => (a[0] + b[0], a[1] - b[1]),
                    _ => (a[1] + b[1], b[0] - a[0]),
                };
                *power = 0.25 * (re * re + im * im);
            }
        }
        for powers in &work.powers {
            for (first, weights) in &self.bands {
                let power: f32 = weights.iter().zip(&powers[*first..]).map(|(w, p)| w * p).sum();
                out.push(power.max(1e-10).log10());
            }
        }
    }

    /// Discrete Fourier transform in place, by Stockham's passes.
    fn transform(&self, work: &mut Work) {
        let (mut length, mut stride) = (FRAME, 1);
        for radix in RADICES {
            let groups = length / radix;
            for group in 0..groups {
                for out in 0..radix {
                    // exp(-2πi · group · out / length), and the roots of the small transform.
                    let turn = self.twiddles[group * out * stride % FRAME];
                    let to = stride * (radix * group + out);
                    let mut factors = [[0.0f32; 2]; 5];
                    for (part, factor) in factors.iter_mut().enumerate().take(radix) {
                        let root = self.twiddles[part * out % radix * (FRAME / radix)];
                        *factor =
                            [root[0] * turn[0] - root[1] * turn[1], root[0] * turn[1] + root[1] * turn[0]];
                    }
                    let (re, im) = (&mut work.next_re[to..to + stride], &mut work.next_im[to..to + stride]);
                    re.fill(0.0);
                    im.fill(0.0);
                    for (part, [cos, sin]) in factors.into_iter().enumerate().take(radix) {
                        let from = stride * (group + groups * part);
                        let (x, y) = (&work.re[from..from + stride], &work.im[from..from + stride]);
                        for at in 0..stride {
                            re[at] += x[at] * cos - y[at] * sin;
                            im[at] += x[at] * sin + y[at] * cos;
                        }
                    }
                }
            }
            std::mem::swap(&mut work.re, &mut work.next_re);
            std::mem::swap(&mut work.im, &mut work.next_im);
            (length, stride) = (groups, stride * radix);
        }
    }
}

/// Buffers of a transform.
struct Work {
    re: Vec<f32>,
    im: Vec<f32>,
    next_re: Vec<f32>,
    next_im: Vec<f32>,
    powers: [[f32; BINS]; 2],
}

impl MelFrames {
    /// Creates the frames of a sound that has not started.
    pub(crate) fn new() -> MelFrames {
        MelFrames { samples: Vec::new(), begun: false }
    }

    /// Adds samples, and appends the frames that they complete to `out`, `(frames, bands)`.
    pub(crate) fn push(&mut self, bank: &MelBank, samples: &[f32], out: &mut Vec<f32>) {
        self.samples.extend_from_slice(samples);
        let half = FRAME / 2;
        if !self.begun {
            if self.samples.len() <= half {
                return;
            }
            // Frames are centred on their time, so the first ones see the sound mirrored.
            let mirrored: Vec<f32> = self.samples[1..=half].iter().rev().copied().collect();
            self.samples.splice(0..0, mirrored);
            self.begun = true;
        }
        let mut work = Work {
            re: vec![0.0; FRAME],
            im: vec![0.0; FRAME],
            next_re: vec![0.0; FRAME],
            next_im: vec![0.0; FRAME],
            powers: [[0.0; BINS]; 2],
        };
        let ready = (self.samples.len().checked_sub(FRAME)).map_or(0, |more| more / HOP + 1);
        for frame in (0..ready).step_by(2) {
            let one = &self.samples[frame * HOP..][..FRAME];
            let two = if frame + 1 < ready { &self.samples[(frame + 1) * HOP..][..FRAME] } else { one };
            let before = out.len();
            bank.pair([one, two], &mut work, out);
            out.truncate(before + (ready - frame).min(2) * bank.bands());
        }
        self.samples.drain(..ready * HOP);
    }

    /// Ends the sound with silence. Appends the last frames with any of its samples.
    pub(crate) fn finish(&mut self, bank: &MelBank, out: &mut Vec<f32>) {
        self.push(bank, &[0.0; FRAME], out);
    }
}

/// Clamps numbers far below a window's maximum, and scales them towards 0. Silent frames must have the number
/// [`SILENCE`] before.
pub(crate) fn normalize(frames: &mut [f32]) {
    let loudest = frames.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let floor = loudest - 8.0;
    frames.iter_mut().for_each(|value| *value = (value.max(floor) + 4.0) / 4.0);
}

/// Logarithm that stands for no power.
pub(crate) const SILENCE: f32 = -10.0;

/// Unfolded input of a convolution with three taps: rows `first` to `first + 2` of `x`, with the three neighbours
/// of each number side by side. Rows outside are zeros.
pub(crate) fn unfold(x: &[f32], cols: usize, first: isize, out: &mut [f32]) {
    for tap in 0..3 {
        let row =
            usize::try_from(first + tap as isize).ok().and_then(|row| x.get(row * cols..(row + 1) * cols));
        let to = out.iter_mut().skip(tap).step_by(3);
        match row {
            Some(row) => to.zip(row).for_each(|(to, from)| *to = *from),
            None => to.for_each(|to| *to = 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_the_sum_it_stands_for() {
        let bank = MelBank::new(80);
        let signal: Vec<f32> = (0..FRAME).map(|at| ((at * at * 7 + 3 * at) % 101) as f32 - 50.0).collect();
        let mut work = Work {
            re: signal.clone(),
            im: signal.iter().rev().copied().collect(),
            next_re: vec![0.0; FRAME],
            next_im: vec![0.0; FRAME],
            powers: [[0.0; BINS]; 2],
        };
        let (re, im) = (work.re.clone(), work.im.clone());
        bank.transform(&mut work);
        for bin in [0, 1, 7, 100, 200, 399] {
            let (mut x, mut y) = (0.0f64, 0.0f64);
            for at in 0..FRAME {
                let (sin, cos) = (-std::f64::consts::TAU * (bin * at) as f64 / FRAME as f64).sin_cos();
                x += f64::from(re[at]) * cos - f64::from(im[at]) * sin;
                y += f64::from(re[at]) * sin + f64::from(im[at]) * cos;
            }
            let error = (x - f64::from(work.re[bin])).abs() + (y - f64::from(work.im[bin])).abs();
            assert!(error < 0.02, "frequency {bin}: {error}");
        }
    }

    #[test]
    fn parts_of_a_sound_make_the_frames_of_the_whole() {
        let bank = MelBank::new(80);
        let sound: Vec<f32> = (0..5_000).map(|at| (at as f32 * 0.05).sin() * 0.3).collect();
        let frames = |cuts: &[usize]| {
            let (mut frames, mut out) = (MelFrames::new(), Vec::new());
            let mut rest = &sound[..];
            for &cut in cuts {
                let (part, after) = rest.split_at(cut);
                frames.push(&bank, part, &mut out);
                rest = after;
            }
            frames.push(&bank, rest, &mut out);
            frames.finish(&bank, &mut out);
            out
        };
        let whole = frames(&[]);
        assert_eq!(whole.len() / 80, (5_000 + FRAME / 2) / HOP + 1);
        for cuts in [&[1, 199, 1, 800][..], &[100; 20], &[2_500]] {
            let parts = frames(cuts);
            assert_eq!(parts.len(), whole.len());
            let worst = parts.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-2, "{worst}");
        }
    }
}
