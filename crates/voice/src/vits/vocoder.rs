//! HiFi-GAN vocoder (arxiv.org/abs/2010.05646): upsamples latents step by step, until a place is a sample.
//! Piper's smaller voices have its smaller blocks.

use hanzo_engine_ops::{KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{NamedWeights, SpeakerConditioning};
use crate::nn::{ConvExtras, Device, KernelWeights, LineConvolution, Program, Signal, same};

/// Slope before the last convolution, independent of the others.
const LAST_SLOPE: f32 = 0.01;

pub(super) struct Vocoder {
    pre: KernelWeights,
    conditioning: Option<SpeakerConditioning>,
    stages: Vec<Stage>,
    post: KernelWeights,
    slope: f32,
}

struct Stage {
    up: KernelWeights,
    blocks: Vec<Block>,
}

/// Residual block: pairs of convolutions, or single ones, each with a skip connection.
struct Block {
    steps: Vec<(KernelWeights, Option<KernelWeights>)>,
}

fn leaky<'a>(slope: f32) -> ConvExtras<'a> {
    ConvExtras { before: Some(PointActivation::LeakyRelu { slope }), ..ConvExtras::default() }
}

impl Vocoder {
    pub(super) fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<Vocoder, LoadError> {
        let straight = |kernel: usize| LineConvolution::plain(kernel, [kernel / 2; 2]).kernel_use();
        let pre = named.conv(device, "decoder.conv_pre", [0, config.latents], straight)?;
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
            let plain = LineConvolution::plain(kernel, [padding; 2]);
            let of = LineConvolution { stride, transposed: true, ..plain }.kernel_use();
            let up = device.kernel(&name, sizes, &numbers, Some(&bias), of)?;
            channels = outputs;
            let count = config.block_dilations.len();
            let blocks = config.block_dilations.iter().enumerate().map(|(of_stage, dilations)| {
                Block::load(
                    device,
                    named,
                    &format!("decoder.resblocks.{}", at * count + of_stage),
                    channels,
                    dilations,
                )
            });
            stages.push(Stage { up, blocks: blocks.collect::<Result<_, _>>()? });
        }
        let post = named.conv(device, "decoder.conv_post", [1, channels], straight)?;
        Ok(Vocoder { pre, conditioning, stages, post, slope: config.slope })
    }

    /// Records the ops from latents to samples. Each stage runs as a step, so that its memory can be freed.
    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        latents: Signal,
        speaker: &[f32],
    ) -> Result<Signal, KernelError> {
        let mut x = p.conv(&self.pre, &latents, ConvExtras::default())?;
        p.free(latents);
        if let Some(own) = self.conditioning.as_ref().filter(|_| !speaker.is_empty()) {
            p.add_each(&x, &own.of(speaker))?;
        }
        for stage in &self.stages {
            let longer = p.conv(&stage.up, &x, leaky(self.slope))?;
            p.free(std::mem::replace(&mut x, longer));
            let mut sum: Option<Signal> = None;
            for block in &stage.blocks {
                let y = block.record(p, &x, self.slope)?;
                match &sum {
                    Some(sum) => {
                        p.add(sum, &y, 0, 1.0);
                        p.free(y);
                    }
                    None => sum = Some(y),
                }
            }
            if let Some(sum) = sum {
                p.scale(&sum, 1.0 / stage.blocks.len() as f32);
                p.free(std::mem::replace(&mut x, sum));
            }
            p.run()?;
        }
        let samples = p.conv(&self.post, &x, leaky(LAST_SLOPE))?;
        p.free(x);
        p.activate(PointActivation::Tanh, &samples);
        Ok(samples)
    }
}

impl Block {
    fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        name: &str,
        channels: usize,
        dilations: &[usize],
    ) -> Result<Block, LoadError> {
        let conv = |part: String, dilation: usize| {
            named.conv(device, &part, [channels, channels], |kernel| same(kernel, dilation))
        };
        let pairs = named.has(&format!("{name}.convs1.0.weight"));
        let step =
            |(at, &dilation): (usize, &usize)| -> Result<(KernelWeights, Option<KernelWeights>), LoadError> {
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

    fn record(&self, p: &mut Program<'_>, x: &Signal, slope: f32) -> Result<Signal, KernelError> {
        let mut done: Option<Signal> = None;
        for (first, second) in &self.steps {
            let from = done.as_ref().unwrap_or(x);
            let y = match second {
                Some(second) => {
                    let between = p.conv(first, from, leaky(slope))?;
                    let y = p.conv(second, &between, ConvExtras { add: Some(from), ..leaky(slope) })?;
                    p.free(between);
                    y
                }
                None => p.conv(first, from, ConvExtras { add: Some(from), ..leaky(slope) })?,
            };
            if let Some(old) = done.replace(y) {
                p.free(old);
            }
        }
        match done {
            Some(done) => Ok(done),
            None => p.copy(x),
        }
    }
}
