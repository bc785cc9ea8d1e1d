//! HiFi-GAN (arxiv.org/abs/2010.05646): what was said becomes longer step by step, until a row is a sample. Piper's smaller voices
//! have its smaller blocks.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{Conditioning, Named};
use crate::nn::{Compute, Conv, ConvShape, Signal, TransposedConv, leaky_relu};

/// Before the last convolution, whatever the others have.
const LAST_SLOPE: f32 = 0.01;

pub(super) struct Vocoder {
    pre: Conv,
    conditioning: Option<Conditioning>,
    stages: Vec<Stage>,
    post: Conv,
    slope: f32,
}

struct Stage {
    up: TransposedConv,
    blocks: Vec<Block>,
}

/// Pairs of convolutions, or single ones, each around which its input goes.
struct Block {
    steps: Vec<(Conv, Option<Conv>)>,
}

impl Vocoder {
    pub(super) fn load(
        compute: &Compute,
        named: &Named<'_>,
        config: &VitsConfig,
    ) -> Result<Vocoder, LoadError> {
        let straight =
            |kernel: usize| ConvShape { stride: 1, dilation: 1, padding: (kernel / 2, kernel / 2) };
        let pre = named.conv(compute, "decoder.conv_pre", [0, config.latents], straight)?;
        let mut channels = named.shape("decoder.conv_pre.weight")?[0];
        let conditioning = Conditioning::load(named, "decoder.cond", channels, config.speaker)?;
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

    /// Samples.
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
        for stage in &self.stages {
            leaky_relu(compute, &mut x, None, self.slope);
            x = stage.up.run(compute, &x)?;
            let mut sum: Option<Signal> = None;
            for block in &stage.blocks {
                let y = block.run(compute, x.clone(), self.slope)?;
                match &mut sum {
                    Some(sum) => sum.add(&y),
                    None => sum = Some(y),
                }
            }
            if let Some(sum) = sum {
                x = sum;
                x.scale(1.0 / stage.blocks.len() as f32);
            }
        }
        leaky_relu(compute, &mut x, None, LAST_SLOPE);
        let mut samples = self.post.run(compute, &x)?.data;
        samples.iter_mut().for_each(|sample| *sample = sample.tanh());
        Ok(samples)
    }
}

impl Block {
    fn load(
        compute: &Compute,
        named: &Named<'_>,
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

    fn run(&self, compute: &mut Compute, mut x: Signal, slope: f32) -> Result<Signal, KernelError> {
        for (first, second) in &self.steps {
            let mut y = x.clone();
            leaky_relu(compute, &mut y, None, slope);
            y = first.run(compute, &y)?;
            if let Some(second) = second {
                leaky_relu(compute, &mut y, None, slope);
                y = second.run(compute, &y)?;
            }
            x.add(&y);
        }
        Ok(x)
    }
}
