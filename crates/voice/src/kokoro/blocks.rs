//! Building blocks of Kokoro's networks: adaptive norms, and convolution blocks with them.

use hanzo_engine_ops::{KernelError, KernelUse, PointActivation, Vector, VectorId};
use hanzo_engine_runtime::LoadError;

use crate::nn::{
    ChannelAffine, ConvExtras, Device, KernelWeights, LineConvolution, LstmDirection, LstmWeights, Program,
    Signal, same,
};
use crate::weights::Weights;

/// As in PyTorch's norms.
const EPS: f32 = 1e-5;

/// Loads a convolution by name.
pub(super) fn conv(
    device: &Device,
    weights: &Weights,
    name: &str,
    expected: [usize; 3],
    of: KernelUse,
) -> Result<KernelWeights, LoadError> {
    let (sizes, numbers) = weights.shaped(&format!("{name}.weight"), expected)?;
    let bias = weights.vector_if(&format!("{name}.bias"), sizes[0])?;
    Ok(device.kernel(name, sizes, &numbers, bias.as_deref(), of)?)
}

/// Loads a bidirectional LSTM by name.
pub(super) fn lstm(device: &Device, weights: &Weights, name: &str) -> Result<LstmWeights, LoadError> {
    let ([gates, inputs], _) = weights.shaped(&format!("{name}.weight_ih_l0"), [0, 0])?;
    let direction = |suffix: &str| -> Result<LstmDirection, LoadError> {
        let named = |part: &str| format!("{name}.{part}_l0{suffix}");
        let (_, input) = weights.shaped(&named("weight_ih"), [gates, inputs])?;
        let (_, hidden) = weights.shaped(&named("weight_hh"), [gates, gates / 4])?;
        let mut bias = weights.vector(&named("bias_ih"), gates)?;
        let other = weights.vector(&named("bias_hh"), gates)?;
        bias.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        Ok(LstmDirection { input, hidden, bias })
    };
    Ok(device.lstm(name, inputs, [direction("")?, direction("_reverse")?])?)
}

/// Linear map from a style vector to a scale and a shift for each channel.
pub(super) struct Style {
    weight: Vec<f32>, // (2 * channels, style)
    bias: Vec<f32>,
    channels: usize,
}

impl Style {
    pub(super) fn load(
        weights: &Weights,
        name: &str,
        style: usize,
        channels: usize,
    ) -> Result<Style, LoadError> {
        let (_, weight) = weights.shaped(&format!("{name}.fc.weight"), [2 * channels, style])?;
        let bias = weights.vector(&format!("{name}.fc.bias"), 2 * channels)?;
        Ok(Style { weight, bias, channels })
    }

    /// Computes `(1 + scale, shift)`.
    pub(super) fn of(&self, style: &[f32]) -> ChannelAffine {
        let rows = self.weight.chunks_exact(style.len()).zip(&self.bias);
        let mut all: Vec<f32> =
            rows.map(|(row, bias)| row.iter().zip(style).map(|(w, s)| w * s).sum::<f32>() + bias).collect();
        let shift = all.split_off(self.channels);
        all.iter_mut().for_each(|factor| *factor += 1.0);
        ChannelAffine { scale: all, shift }
    }
}

/// Adaptive instance norm (AdaIN): each channel is normalised along time, then scaled and shifted by the style.
pub(super) struct AdaIn {
    style: Style,
    own: Option<(Vec<f32>, Vec<f32>)>,
}

impl AdaIn {
    pub(super) fn load(
        weights: &Weights,
        name: &str,
        style: usize,
        channels: usize,
    ) -> Result<AdaIn, LoadError> {
        let weight = weights.vector_if(&format!("{name}.norm.weight"), channels)?;
        let bias = weights.vector_if(&format!("{name}.norm.bias"), channels)?;
        Ok(AdaIn { style: Style::load(weights, name, style, channels)?, own: weight.zip(bias) })
    }

    /// Records the scale and shift for each channel of `x`, with the norm folded in.
    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        x: &Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let mut affine = self.style.of(style);
        if let Some((weight, bias)) = &self.own {
            let own = weight.iter().zip(bias);
            for ((scale, shift), (weight, bias)) in affine.scale.iter_mut().zip(&mut affine.shift).zip(own) {
                *shift += bias * *scale;
                *scale *= weight;
            }
        }
        p.instance_affine(&affine, EPS, x)
    }
}

/// Two convolutions with adaptive norms, and a shortcut (`AdainResBlk1d`).
pub(super) struct StyleBlock {
    norms: [AdaIn; 2],
    convs: [KernelWeights; 2],
    up: Option<LengthDoubler>,
    shortcut: Option<KernelWeights>,
}

/// Depthwise upsampling by 2, and the same by repetition.
struct LengthDoubler {
    pool: KernelWeights,
    repeat: KernelWeights,
}

impl LengthDoubler {
    /// Loads the upsampling of that name, if the model has it.
    fn load(
        device: &Device,
        weights: &Weights,
        name: &str,
        channels: usize,
    ) -> Result<Option<LengthDoubler>, LoadError> {
        let Some(bias) = weights.vector_if(&format!("{name}.bias"), channels)? else { return Ok(None) };
        let numbers = weights.vector(&format!("{name}.weight"), 3 * channels)?;
        let depthwise = |taps: usize, before: usize| {
            let plain = LineConvolution::plain(taps, [before, 0]);
            let mut of = LineConvolution { stride: 2, transposed: true, ..plain }.kernel_use();
            of.params.groups = channels;
            of
        };
        let (pool, ones) = (depthwise(3, 1), vec![1.0; 2 * channels]);
        Ok(Some(LengthDoubler {
            pool: device.kernel(name, [channels, 1, 3], &numbers, Some(&bias), pool)?,
            repeat: device.kernel(name, [channels, 1, 2], &ones, None, depthwise(2, 0))?,
        }))
    }
}

impl StyleBlock {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        name: &str,
        style: usize,
    ) -> Result<StyleBlock, LoadError> {
        let first = weights.shape(&format!("{name}.conv1.weight"))?;
        let (outputs, inputs) = (first.first().copied().unwrap_or(0), first.get(1).copied().unwrap_or(0));
        let named = |part: &str| format!("{name}.{part}");
        let shortcut = match inputs == outputs {
            true => None,
            false => Some(conv(device, weights, &named("conv1x1"), [outputs, inputs, 1], same(1, 1))?),
        };
        Ok(StyleBlock {
            norms: [
                AdaIn::load(weights, &named("norm1"), style, inputs)?,
                AdaIn::load(weights, &named("norm2"), style, outputs)?,
            ],
            convs: [
                conv(device, weights, &named("conv1"), [outputs, inputs, 3], same(3, 1))?,
                conv(device, weights, &named("conv2"), [outputs, outputs, 3], same(3, 1))?,
            ],
            up: LengthDoubler::load(device, weights, &named("pool"), inputs)?,
            shortcut,
        })
    }

    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        x: &Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let before = Some(PointActivation::<VectorId>::LeakyRelu { slope: 0.2 });
        let affine = self.norms[0].record(p, x, style)?;
        let bent = ConvExtras { affine: Some(&affine), before, add: None };
        let (first, around) = match &self.up {
            Some(up) => {
                let longer = p.conv(&up.pool, x, bent)?;
                let first = p.conv(&self.convs[0], &longer, ConvExtras::default())?;
                p.free(longer);
                (first, Some(p.conv(&up.repeat, x, ConvExtras::default())?))
            }
            None => (p.conv(&self.convs[0], x, bent)?, None),
        };
        p.free(affine);
        let affine = self.norms[1].record(p, &first, style)?;
        let mut y =
            p.conv(&self.convs[1], &first, ConvExtras { affine: Some(&affine), before, add: None })?;
        p.free(affine);
        p.free(first);
        let unchanged = around.as_ref().unwrap_or(x);
        match &self.shortcut {
            Some(shortcut) => {
                let sum =
                    p.conv(shortcut, unchanged, ConvExtras { add: Some(&y), ..ConvExtras::default() })?;
                p.free(std::mem::replace(&mut y, sum));
            }
            None => p.add(&y, unchanged, 0, 1.0),
        }
        around.into_iter().for_each(|value| p.free(value));
        p.scale(&y, std::f32::consts::FRAC_1_SQRT_2);
        Ok(y)
    }
}

/// Pairs of convolutions, the first of each dilated, with adaptive norms and snake activations
/// (`AdaINResBlock1`).
pub(super) struct SnakeBlock {
    pairs: Vec<[SnakeConv; 2]>,
}

struct SnakeConv {
    norm: AdaIn,
    alpha: Vector,
    conv: KernelWeights,
}

impl SnakeBlock {
    pub(super) fn load(
        device: &Device,
        weights: &Weights,
        name: &str,
        channels: usize,
        kernel: usize,
        dilations: &[usize],
        style: usize,
    ) -> Result<SnakeBlock, LoadError> {
        let one = |index: usize, half: usize, dilation: usize| -> Result<SnakeConv, LoadError> {
            let named = |part: &str| format!("{name}.{part}{half}.{index}");
            let of = same(kernel, dilation);
            Ok(SnakeConv {
                norm: AdaIn::load(weights, &named("adain"), style, channels)?,
                alpha: device.vector(&weights.vector(&named("alpha"), channels)?)?,
                conv: conv(device, weights, &named("convs"), [channels, channels, kernel], of)?,
            })
        };
        let pair = |(index, &dilation)| Ok([one(index, 1, dilation)?, one(index, 2, 1)?]);
        Ok(SnakeBlock { pairs: dilations.iter().enumerate().map(pair).collect::<Result<_, LoadError>>()? })
    }

    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        x: &Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let mut done: Option<Signal> = None;
        for [first, second] in &self.pairs {
            let from = done.as_ref().unwrap_or(x);
            let between = first.record(p, from, style, None)?;
            let y = second.record(p, &between, style, Some(from))?;
            p.free(between);
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

impl SnakeConv {
    fn record(
        &self,
        p: &mut Program<'_>,
        x: &Signal,
        style: &[f32],
        add: Option<&Signal>,
    ) -> Result<Signal, KernelError> {
        let affine = self.norm.record(p, x, style)?;
        let before = Some(PointActivation::Snake { alpha: self.alpha.id() });
        let out = p.conv(&self.conv, x, ConvExtras { affine: Some(&affine), before, add })?;
        p.free(affine);
        Ok(out)
    }
}
