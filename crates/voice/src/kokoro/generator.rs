//! iSTFTNet with a source signal. Harmonics of the pitch, plus noise, are transformed and added to the signal
//! at each resolution. The output is the magnitudes and phases of short frames.

use std::f64::consts::TAU;

use hanzo_engine_ops::{KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::blocks::{SnakeBlock, conv};
use super::{KokoroConfig, SAMPLE_RATE};
use crate::nn::{ConvExtras, Device, KernelWeights, LineConvolution, Program, Signal, Stft, same};
use crate::noise::Noise;
use crate::weights::Weights;

/// Amplitude of the source in voiced frames.
const SINE_AMPLITUDE: f32 = 0.1;
/// Amplitude of the added noise.
const NOISE_BESIDE: f32 = 0.003;
/// Pitch in Hz above which a frame is voiced.
const VOICED: f32 = 10.0;

pub(super) struct Generator {
    merge: Vec<f32>, // (harmonics): weights of the source
    merge_bias: f32,
    stages: Vec<Stage>,
    post: KernelWeights,
    stft: Stft,
    samples_per_frame: usize,
}

/// Upsampling stage.
struct Stage {
    source: KernelWeights,
    source_block: SnakeBlock,
    up: KernelWeights,
    blocks: Vec<SnakeBlock>,
}

impl Generator {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        config: &KokoroConfig,
    ) -> Result<Generator, LoadError> {
        let name = |part: &str| format!("decoder.generator.{part}");
        let stages = config.upsample_rates.len();
        let bins = config.fft + 2;
        let stage = |index: usize| -> Result<Stage, LoadError> {
            let (rate, kernel) = (config.upsample_rates[index], config.upsample_kernels[index]);
            let up_name = name(&format!("ups.{index}"));
            let (sizes, numbers) = weights.shaped(&format!("{up_name}.weight"), [0, 0, kernel])?;
            let channels = sizes[1];
            let bias = weights.vector(&format!("{up_name}.bias"), channels)?;
            let padding = (kernel - rate) / 2;
            let plain = LineConvolution::plain(kernel, [padding; 2]);
            let of = LineConvolution { stride: rate, transposed: true, ..plain }.kernel_use();
            let up = device.kernel(&up_name, sizes, &numbers, Some(&bias), of)?;
            // The source is reduced to the resolution of this stage.
            let stride: usize = config.upsample_rates[index + 1..].iter().product();
            let (taps, of, source_kernel) = match index + 1 == stages {
                true => (1, same(1, 1), 11),
                false => {
                    let padding = stride.div_ceil(2);
                    let plain = LineConvolution::plain(2 * stride, [padding; 2]);
                    (2 * stride, LineConvolution { stride, ..plain }.kernel_use(), 7)
                }
            };
            let source_name = name(&format!("noise_convs.{index}"));
            let block = |part: String, kernel: usize, dilations: &[usize]| {
                SnakeBlock::load(device, weights, &name(&part), channels, kernel, dilations, config.style)
            };
            let count = config.block_kernels.len();
            let of_stage = config.block_kernels.iter().zip(&config.block_dilations).enumerate();
            let blocks = of_stage.map(|(at, (&kernel, dilations))| {
                block(format!("resblocks.{}", index * count + at), kernel, dilations)
            });
            Ok(Stage {
                source: conv(device, weights, &source_name, [channels, bins, taps], of)?,
                source_block: block(format!("noise_res.{index}"), source_kernel, &[1, 3, 5])?,
                up,
                blocks: blocks.collect::<Result<_, _>>()?,
            })
        };
        let ([_, harmonics], merge) = weights.shaped(&name("m_source.l_linear.weight"), [1, 0])?;
        debug_assert_eq!(merge.len(), harmonics);
        Ok(Generator {
            merge,
            merge_bias: weights.vector(&name("m_source.l_linear.bias"), 1)?[0],
            stages: (0..stages).map(stage).collect::<Result<_, _>>()?,
            post: conv(device, weights, &name("conv_post"), [bins, 0, 7], same(7, 1))?,
            stft: Stft::new(config.fft, config.hop),
            samples_per_frame: config.samples_per_frame(),
        })
    }

    /// Source signal, one value a sample: harmonics of the pitch plus noise, or only noise. Phases accumulate
    /// over whole frames and are interpolated linearly between the frames' centres, as in `kokoro`, but in
    /// double precision, so that long texts stay exact.
    fn source(&self, pitch: &[f32], noise: &mut Noise) -> Vec<f32> {
        let (scale, harmonics, frames) = (self.samples_per_frame, self.merge.len(), pitch.len());
        // Phase at each frame's centre in turns, for each harmonic.
        let mut turns = vec![0.0_f64; frames * harmonics];
        let mut sum = vec![0.0_f64; harmonics];
        for (frame, &hz) in pitch.iter().enumerate() {
            for (harmonic, sum) in sum.iter_mut().enumerate() {
                *sum += f64::from((hz * (harmonic + 1) as f32 / SAMPLE_RATE as f32).rem_euclid(1.0));
                turns[frame * harmonics + harmonic] = *sum * scale as f64;
            }
        }
        let mut out = Vec::with_capacity(frames * scale);
        for sample in 0..frames * scale {
            let at = ((sample as f64 + 0.5) / scale as f64 - 0.5).max(0.0);
            let (low, part) = (at as usize, at.fract());
            let high = (low + 1).min(frames - 1);
            let voiced = pitch[sample / scale] > VOICED;
            let amplitude = if voiced { NOISE_BESIDE } else { SINE_AMPLITUDE / 3.0 };
            let mut merged = self.merge_bias;
            for (harmonic, weight) in self.merge.iter().enumerate() {
                let mut value = amplitude * noise.normal();
                if voiced {
                    let [from, to] = [low, high].map(|frame| turns[frame * harmonics + harmonic]);
                    let turn = (from + (to - from) * part).fract();
                    value += (turn * TAU).sin() as f32 * SINE_AMPLITUDE;
                }
                merged += weight * value;
            }
            out.push(merged.tanh());
        }
        out
    }

    /// Spectrum of the source signal, for a pitch in Hz, two values a frame.
    pub(super) fn source_spectrum(&self, device: &Device, pitch: &[f32], noise: &mut Noise) -> Vec<f32> {
        self.stft.transform(device, &self.source(pitch, noise))
    }

    /// Records the ops from the decoder's hidden states and the source's spectrum to what [`Generator::samples`] reads: the
    /// logarithms of the sound's magnitudes, and the arcsines of its phases. Each stage runs as a step, so that its memory can be
    /// freed.
    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        mut x: Signal,
        source: Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        for (index, stage) in self.stages.iter().enumerate() {
            let joins = p.conv(&stage.source, &source, ConvExtras::default())?;
            let joined = stage.source_block.record(p, &joins, style)?;
            p.free(joins);
            let longer = p.conv(&stage.up, &x, leaky(0.1))?;
            p.free(std::mem::replace(&mut x, longer));
            if index + 1 == self.stages.len() {
                let mirrored = p.mirror(&x, 1)?;
                p.free(std::mem::replace(&mut x, mirrored));
            }
            p.add(&x, &joined, 0, 1.0);
            p.free(joined);
            let mut sum: Option<Signal> = None;
            for block in &stage.blocks {
                let y = block.record(p, &x, style)?;
                match &sum {
                    Some(sum) => {
                        p.add(sum, &y, 0, 1.0);
                        p.free(y);
                    }
                    None => sum = Some(y),
                }
            }
            let sum = sum.expect("config.json was checked to have blocks");
            p.scale(&sum, 1.0 / stage.blocks.len() as f32);
            p.free(std::mem::replace(&mut x, sum));
            p.run()?;
        }
        let spectrum = p.conv(&self.post, &x, leaky(0.01))?;
        p.free(x);
        p.free(source);
        Ok(spectrum)
    }

    /// Samples of the spectrum that the recorded ops have computed.
    pub(super) fn samples(&self, device: &Device, mut spectrum: Vec<f32>) -> Vec<f32> {
        let bins = self.stft.bins();
        device.rows(&mut spectrum, 2 * bins, &|_, piece| {
            for row in piece.chunks_exact_mut(2 * bins) {
                let (magnitudes, angles) = row.split_at_mut(bins);
                magnitudes.iter_mut().for_each(|x| *x = x.exp());
                angles.iter_mut().for_each(|x| *x = x.sin());
            }
        });
        self.stft.inverse(device, &spectrum)
    }

    /// Channels of the source's spectrum.
    pub(super) fn source_channels(&self) -> usize {
        2 * self.stft.bins()
    }
}

fn leaky<'a>(slope: f32) -> ConvExtras<'a> {
    ConvExtras { before: Some(PointActivation::LeakyRelu { slope }), ..ConvExtras::default() }
}
