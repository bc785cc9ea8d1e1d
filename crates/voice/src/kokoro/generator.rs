//! iSTFTNet with a source signal. Harmonics of the pitch, plus noise, are transformed and added to the signal
//! at each resolution. The output is the magnitudes and phases of short frames.

use std::f64::consts::TAU;

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::blocks::{SnakeBlock, conv};
use super::{KokoroConfig, SAMPLE_RATE};
use crate::nn::{Bent, Compute, Conv, ConvShape, Signal, Stft, TransposedConv};
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
    post: Conv,
    stft: Stft,
    samples_per_frame: usize,
}

/// Upsampling stage.
struct Stage {
    source: Conv,
    source_block: SnakeBlock,
    up: TransposedConv,
    blocks: Vec<SnakeBlock>,
}

impl Generator {
    pub(super) fn load(
        compute: &Compute,
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
            let up = TransposedConv::new(compute, &up_name, sizes, &numbers, Some(&bias), (rate, padding))?;
            // The source is reduced to the resolution of this stage.
            let stride: usize = config.upsample_rates[index + 1..].iter().product();
            let (taps, shape, source_kernel) = match index + 1 == stages {
                true => (1, ConvShape::same(1, 1), 11),
                false => {
                    let padding = stride.div_ceil(2);
                    (2 * stride, ConvShape { stride, dilation: 1, padding: (padding, padding) }, 7)
                }
            };
            let source_name = name(&format!("noise_convs.{index}"));
            let block = |part: String, kernel: usize, dilations: &[usize]| {
                SnakeBlock::load(compute, weights, &name(&part), (channels, kernel), dilations, config.style)
            };
            let count = config.block_kernels.len();
            let of_stage = config.block_kernels.iter().zip(&config.block_dilations).enumerate();
            let blocks = of_stage.map(|(at, (&kernel, dilations))| {
                block(format!("resblocks.{}", index * count + at), kernel, dilations)
            });
            Ok(Stage {
                source: conv(compute, weights, &source_name, [channels, bins, taps], shape)?,
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
            post: conv(compute, weights, &name("conv_post"), [bins, 0, 7], ConvShape::same(7, 1))?,
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

    pub(super) fn run(
        &self,
        compute: &mut Compute,
        mut x: Signal,
        style: &[f32],
        pitch: &[f32],
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        let leaky = |slope| Bent::Leaky { affine: None, slope };
        let source = self.stft.transform(compute, &self.source(pitch, noise));
        for (index, stage) in self.stages.iter().enumerate() {
            let joins = stage.source.run(compute, &source)?;
            let joined = stage.source_block.run(compute, &joins, style)?;
            compute.spent(joins.data);
            let longer = stage.up.run(compute, &x, leaky(0.1))?;
            compute.spent(std::mem::replace(&mut x, longer).data);
            if index + 1 == self.stages.len() {
                x = with_mirrored_row(x);
            }
            compute.add(&mut x, &joined, 1.0);
            compute.spent(joined.data);
            let mut sum: Option<Signal> = None;
            for (at, block) in stage.blocks.iter().enumerate() {
                let y = block.run(compute, &x, style)?;
                let share = if at + 1 == stage.blocks.len() { 1.0 / stage.blocks.len() as f32 } else { 1.0 };
                match &mut sum {
                    Some(sum) => {
                        compute.add(sum, &y, share);
                        compute.spent(y.data);
                    }
                    None => sum = Some(y),
                }
            }
            let sum = sum.expect("config.json was checked to have blocks");
            compute.spent(std::mem::replace(&mut x, sum).data);
        }
        let mut spectrum = self.post.run_bent(compute, &x, leaky(0.01), None)?;
        compute.spent(x.data);
        let (cols, bins) = (spectrum.cols, spectrum.cols / 2);
        compute.rows(&mut spectrum.data, cols, &|_, piece| {
            for row in piece.chunks_exact_mut(cols) {
                let (magnitudes, angles) = row.split_at_mut(bins);
                magnitudes.iter_mut().for_each(|x| *x = x.exp());
                angles.iter_mut().for_each(|x| *x = x.sin());
            }
        });
        Ok(self.stft.inverse(compute, &spectrum))
    }
}

/// Adds one row before the first: a copy of the second row.
fn with_mirrored_row(x: Signal) -> Signal {
    let mut data = Vec::with_capacity(x.data.len() + x.cols);
    data.extend_from_slice(x.row(1.min(x.rows - 1)));
    data.extend_from_slice(&x.data);
    Signal { rows: x.rows + 1, cols: x.cols, data }
}
