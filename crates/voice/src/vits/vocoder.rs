//! HiFi-GAN vocoder (arxiv.org/abs/2010.05646): upsamples latents step by step, until a row is a sample.
//! Piper's smaller voices have its smaller blocks.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{NamedWeights, SpeakerConditioning};
use crate::nn::{Bent, Compute, Conv, ConvShape, Signal, TransposedConv, tanh};

/// Slope before the last convolution, independent of the others.
const LAST_SLOPE: f32 = 0.01;

pub(super) struct Vocoder {
    pre: Conv,
    conditioning: Option<SpeakerConditioning>,
    stages: Vec<Stage>,
    post: Conv,
    slope: f32,
}

struct Stage {
    up: TransposedConv,
    blocks: Vec<Block>,
}

/// Residual block: pairs of convolutions, or single ones, each with a skip connection.
struct Block {
    steps: Vec<(Conv, Option<Conv>)>,
}

impl Vocoder {
    pub(super) fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<Vocoder, LoadError> {
        let straight =
            |kernel: usize| ConvShape { stride: 1, dilation: 1, padding: (kernel / 2, kernel / 2) };
        let pre = named.conv(compute, "decoder.conv_pre", [0, config.latents], straight)?;
        let mut channels = named.shape("decoder.conv_pre.weight")?[0];
        let conditioning = SpeakerConditioning::load(named, "decoder.cond", channels, config.speaker)?;
        let mut stages = Vec::new();
        for (at, &stride) in config.upsample_rates.iter().enumerate() {
            let name = format!("decoder.upsampler.{at}");
            let (sizes, numbers) = named.shaped(&format!("{name}.weight"), [channels, 0, 0])?;
            let [_, outputs, kernel] = sizes;
            if kernel < stride || outputs == 0 {
                return Err(named.corrupt(&name, format!("a kernel of {kernel} that steps by {stride}")));
            }
            let bias = named.vector(&format!("{name}.bias"), outputs)?;
            let padding = (kernel - stride) / 2;
            let up = TransposedConv::new(compute, &name, sizes, &numbers, Some(&bias), (stride, padding))?;
            channels = outputs;
            let count = config.block_dilations.len();
            let blocks = config.block_dilations.iter().enumerate().map(|(of_stage, dilations)| {
                Block::load(
                    compute,
                    named,
                    &format!("decoder.resblocks.{}", at * count + of_stage),
                    channels,
                    dilations,
                )
            });
            stages.push(Stage { up, blocks: blocks.collect::<Result<_, _>>()? });
        }
        let post = named.conv(compute, "decoder.conv_post", [1, channels], straight)?;
        Ok(Vocoder { pre, conditioning, stages, post, slope: config.slope })
    }

    /// Computes the samples.
    pub(super) fn run(
        &self,
        compute: &mut Compute,
        latents: &Signal,
        speaker: &[f32],
    ) -> Result<Vec<f32>, KernelError> {
        let mut x = self.pre.run(compute, latents)?;
        if let Some(own) = self.conditioning.as_ref().filter(|_| !speaker.is_empty()) {
            let (added, cols) = (own.of(speaker), x.cols);
            for row in x.data.chunks_exact_mut(cols) {
                row.iter_mut().zip(&added).for_each(|(x, added)| *x += added);
            }
        }
        let leaky = |slope| Bent::Leaky { affine: None, slope };
        for stage in &self.stages {
            let longer = stage.up.run(compute, &x, leaky(self.slope))?;
            compute.spent(std::mem::replace(&mut x, longer).data);
            let mut sum: Option<Signal> = None;
            for (at, block) in stage.blocks.iter().enumerate() {
                let y = block.run(compute, &x, leaky(self.slope))?;
                let share = if at + 1 == stage.blocks.len() { 1.0 / stage.blocks.len() as f32 } else { 1.0 };
                match &mut sum {
                    Some(sum) => {
                        compute.add(sum, &y, share);
                        compute.spent(y.data);
                    }
                    None => sum = Some(y),
                }
            }
            if let Some(sum) = sum {
                compute.spent(std::mem::replace(&mut x, sum).data);
            }
        }
        let mut samples = self.post.run_bent(compute, &x, leaky(LAST_SLOPE), None)?.data;
        compute.spent(x.data);
        compute
            .rows(&mut samples, 1, &|_, piece| piece.iter_mut().for_each(|sample| *sample = tanh(*sample)));
        Ok(samples)
    }
}

impl Block {
    fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        name: &str,
        channels: usize,
        dilations: &[usize],
    ) -> Result<Block, LoadError> {
        let conv = |part: String, dilation: usize| {
            named.conv(compute, &part, [channels, channels], |kernel| ConvShape::same(kernel, dilation))
        };
        let pairs = named.has(&format!("{name}.convs1.0.weight"));
        let step = |(at, &dilation): (usize, &usize)| -> Result<(Conv, Option<Conv>), LoadError> {
            Ok(match pairs {
                true => (
                    conv(format!("{name}.convs1.{at}"), dilation)?,
                    Some(conv(format!("{name}.convs2.{at}"), 1)?),
                ),
                false => (conv(format!("{name}.convs.{at}"), dilation)?, None),
            })
        };
        Ok(Block { steps: dilations.iter().enumerate().map(step).collect::<Result<_, _>>()? })
    }

    fn run(&self, compute: &mut Compute, x: &Signal, bent: Bent<'_>) -> Result<Signal, KernelError> {
        let mut done: Option<Signal> = None;
        for (first, second) in &self.steps {
            let from = done.as_ref().unwrap_or(x);
            let y = match second {
                Some(second) => {
                    let between = first.run_bent(compute, from, bent, None)?;
                    let y = second.run_bent(compute, &between, bent, Some(from))?;
                    compute.spent(between.data);
                    y
                }
                None => first.run_bent(compute, from, bent, Some(from))?,
            };
            if let Some(old) = done.replace(y) {
                compute.spent(old.data);
            }
        }
        Ok(done.unwrap_or_else(|| x.clone()))
    }
}
