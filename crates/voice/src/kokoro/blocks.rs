//! Building blocks of Kokoro's networks: adaptive norms, and convolution blocks with them.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use crate::nn::{
    Bent, ChannelAffine, Compute, Conv, ConvShape, DepthwiseUp, Lstm, LstmDirection, Signal, channel_stats,
};
use crate::weights::Weights;

/// As in PyTorch's norms.
const EPS: f32 = 1e-5;

/// Loads a convolution by name.
pub(super) fn conv(
    compute: &Compute,
    weights: &Weights,
    name: &str,
    expected: [usize; 3],
    shape: ConvShape,
) -> Result<Conv, LoadError> {
    let (sizes, numbers) = weights.shaped(&format!("{name}.weight"), expected)?;
    let bias = weights.vector_if(&format!("{name}.bias"), sizes[0])?;
    Ok(Conv::new(compute, name, sizes, &numbers, bias.as_deref(), shape)?)
}

/// Loads a bidirectional LSTM by name.
pub(super) fn lstm(compute: &Compute, weights: &Weights, name: &str) -> Result<Lstm, LoadError> {
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
    Ok(Lstm::new(compute, name, inputs, [direction("")?, direction("_reverse")?])?)
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

    /// Scale and shift for each channel of `x`, with the norm folded in.
    pub(super) fn of(&self, compute: &Compute, x: &Signal, style: &[f32]) -> ChannelAffine {
        let (mean, variance) = channel_stats(compute, x);
        let ChannelAffine { mut scale, mut shift } = self.style.of(style);
        for channel in 0..scale.len() {
            let mut factor = 1.0 / (variance[channel] + EPS).sqrt();
            let mut addend = -mean[channel] * factor;
            if let Some((weight, bias)) = &self.own {
                factor *= weight[channel];
                addend = addend * weight[channel] + bias[channel];
            }
            shift[channel] += addend * scale[channel];
            scale[channel] *= factor;
        }
        ChannelAffine { scale, shift }
    }
}

/// Two convolutions with adaptive norms, and a shortcut (`AdainResBlk1d`).
pub(super) struct StyleBlock {
    norms: [AdaIn; 2],
    convs: [Conv; 2],
    up: Option<DepthwiseUp>,
    shortcut: Option<Conv>,
}

impl StyleBlock {
    pub(super) fn load(
        compute: &Compute,
        weights: &Weights,
        name: &str,
        style: usize,
    ) -> Result<StyleBlock, LoadError> {
        let first = weights.shape(&format!("{name}.conv1.weight"))?;
        let (outputs, inputs) = (first.first().copied().unwrap_or(0), first.get(1).copied().unwrap_or(0));
        let same = ConvShape::same(3, 1);
        let named = |part: &str| format!("{name}.{part}");
        let up = match weights.vector_if(&named("pool.bias"), inputs)? {
            Some(bias) => Some(DepthwiseUp::new(weights.vector(&named("pool.weight"), 3 * inputs)?, bias)),
            None => None,
        };
        let shortcut = match inputs == outputs {
            true => None,
            false => {
                let shape = ConvShape::same(1, 1);
                Some(conv(compute, weights, &named("conv1x1"), [outputs, inputs, 1], shape)?)
            }
        };
        Ok(StyleBlock {
            norms: [
                AdaIn::load(weights, &named("norm1"), style, inputs)?,
                AdaIn::load(weights, &named("norm2"), style, outputs)?,
            ],
            convs: [
                conv(compute, weights, &named("conv1"), [outputs, inputs, 3], same)?,
                conv(compute, weights, &named("conv2"), [outputs, outputs, 3], same)?,
            ],
            up,
            shortcut,
        })
    }

    pub(super) fn run(
        &self,
        compute: &mut Compute,
        x: &Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let affine = self.norms[0].of(compute, x, style);
        let bent = Bent::Leaky { affine: Some(&affine), slope: 0.2 };
        let mut y = match &self.up {
            Some(up) => {
                let mut y = compute.signal(x.rows, x.cols);
                let rows = y.data.chunks_exact_mut(x.cols).enumerate();
                rows.for_each(|(at, row)| bent.row(x.row(at), row));
                self.convs[0].run(compute, &up.run(&y))?
            }
            None => self.convs[0].run_bent(compute, x, bent, None)?,
        };
        let affine = self.norms[1].of(compute, &y, style);
        let bent = Bent::Leaky { affine: Some(&affine), slope: 0.2 };
        let inner = self.convs[1].run_bent(compute, &y, bent, None)?;
        compute.spent(std::mem::replace(&mut y, inner).data);
        let around = match &self.up {
            Some(_) => &x.repeated(&vec![2; x.rows]),
            None => x,
        };
        match &self.shortcut {
            Some(shortcut) => y.add(&shortcut.run(compute, around)?),
            None => y.add(around),
        }
        y.scale(std::f32::consts::FRAC_1_SQRT_2);
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
    alpha: Vec<f32>,
    inverse: Vec<f32>,
    conv: Conv,
}

impl SnakeBlock {
    pub(super) fn load(
        compute: &Compute,
        weights: &Weights,
        name: &str,
        (channels, kernel): (usize, usize),
        dilations: &[usize],
        style: usize,
    ) -> Result<SnakeBlock, LoadError> {
        let one = |index: usize, half: usize, dilation: usize| -> Result<SnakeConv, LoadError> {
            let named = |part: &str| format!("{name}.{part}{half}.{index}");
            let alpha = weights.vector(&named("alpha"), channels)?;
            let inverse = alpha.iter().map(|alpha| 1.0 / alpha).collect();
            let shape = ConvShape::same(kernel, dilation);
            Ok(SnakeConv {
                norm: AdaIn::load(weights, &named("adain"), style, channels)?,
                alpha,
                inverse,
                conv: conv(compute, weights, &named("convs"), [channels, channels, kernel], shape)?,
            })
        };
        let pair = |(index, &dilation)| Ok([one(index, 1, dilation)?, one(index, 2, 1)?]);
        Ok(SnakeBlock { pairs: dilations.iter().enumerate().map(pair).collect::<Result<_, LoadError>>()? })
    }

    pub(super) fn run(
        &self,
        compute: &mut Compute,
        x: &Signal,
        style: &[f32],
    ) -> Result<Signal, KernelError> {
        let mut done: Option<Signal> = None;
        for [first, second] in &self.pairs {
            let from = done.as_ref().unwrap_or(x);
            let between = first.run(compute, from, style, None)?;
            let y = second.run(compute, &between, style, Some(from))?;
            compute.spent(between.data);
            if let Some(old) = done.replace(y) {
                compute.spent(old.data);
            }
        }
        Ok(done.unwrap_or_else(|| x.clone()))
    }
}

impl SnakeConv {
    fn run(
        &self,
        compute: &mut Compute,
        x: &Signal,
        style: &[f32],
        added: Option<&Signal>,
    ) -> Result<Signal, KernelError> {
        let affine = self.norm.of(compute, x, style);
        let bent = Bent::Snake { affine: &affine, alpha: &self.alpha, inverse: &self.inverse };
        self.conv.run_bent(compute, x, bent, added)
    }
}
