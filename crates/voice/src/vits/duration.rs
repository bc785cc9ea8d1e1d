//! Durations of symbols, as logarithms of frames. They are sampled by spline flows (arxiv.org/abs/1906.04032)
//! conditioned on the text or, in models without those, computed by two convolutions.

use hanzo_engine_ops::{Activation, KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{NamedWeights, SpeakerConditioning};
use crate::nn::{
    ConvExtras, DenseWeights, Device, KernelWeights, LineConvolution, NormWeights, Program, Signal, same,
};
use crate::noise::Noise;

/// Epsilon of the norms between depthwise convolutions, independent of the model's settings.
const EPS: f32 = 1e-5;
/// Minimum size of a bin, and minimum slope.
const LEAST: f32 = 1e-3;
/// Channels of the flows: the logarithm, and an auxiliary random one.
const CHANNELS: usize = 2;

pub(super) enum Durations {
    Drawn(Drawn),
    Computed(ConvolutionPredictor),
}

pub(super) struct Drawn {
    pre: DenseWeights,
    convolutions: Separable,
    proj: DenseWeights,
    conditioning: Option<SpeakerConditioning>,
    translate: Vec<f32>,
    scale: Vec<f32>,
    splines: Vec<SplineFlow>, // in the order of the reverse pass
}

pub(super) struct ConvolutionPredictor {
    first: (KernelWeights, NormWeights),
    second: (KernelWeights, NormWeights),
    proj: DenseWeights,
    conditioning: Option<SpeakerConditioning>,
}

/// Depthwise convolutions with growing dilation, each followed by a pointwise one.
struct Separable {
    layers: Vec<SeparableLayer>,
}

struct SeparableLayer {
    depthwise: KernelWeights,
    norm: NormWeights,
    pointwise: DenseWeights,
    pointwise_norm: NormWeights,
}

struct SplineFlow {
    pre: DenseWeights,
    convolutions: Separable,
    proj: DenseWeights,
    hidden: usize,
    bins: usize,
    bound: f32,
}

impl Durations {
    pub(super) fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<Durations, LoadError> {
        if !config.draws_durations {
            return Ok(Durations::Computed(ConvolutionPredictor::load(device, named, config)?));
        }
        let hidden = config.hidden;
        let name = |part: &str| format!("duration_predictor.{part}");
        let flow = |at: usize| SplineFlow::load(device, named, &name(&format!("flows.{at}")), config);
        // The first flow does not affect the result.
        let splines = (2..=config.duration_flows).rev().map(flow).collect::<Result<_, _>>()?;
        Ok(Durations::Drawn(Drawn {
            pre: named.linear(device, &name("conv_pre"), [hidden, hidden])?,
            convolutions: Separable::load(device, named, &name("conv_dds"), config)?,
            proj: named.linear(device, &name("conv_proj"), [hidden, hidden])?,
            conditioning: SpeakerConditioning::load(named, &name("cond"), hidden, config.speaker)?,
            translate: named.vector(&name("flows.0.translate"), CHANNELS)?,
            scale: named.inverse_scales(&name("flows.0"), CHANNELS)?,
            splines,
        }))
    }

    /// Records the ops from hidden states, which they may change, to what [`Durations::finish`] reads.
    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        hidden: Signal,
        speaker: &[f32],
    ) -> Result<Signal, KernelError> {
        match self {
            Durations::Drawn(drawn) => drawn.record(p, hidden, speaker),
            Durations::Computed(computed) => computed.record(p, hidden, speaker),
        }
    }

    /// Log duration of each row, from the value that the recorded ops have computed for so many rows.
    pub(super) fn finish(
        &self,
        device: &mut Device,
        known: Signal,
        rows: usize,
        noise_scale: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        match self {
            Durations::Drawn(drawn) => drawn.finish(device, known, rows, noise_scale, noise),
            Durations::Computed(_) => {
                let logs = device.program(rows).read(&known);
                device.spent(known);
                logs
            }
        }
    }
}

impl ConvolutionPredictor {
    fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<ConvolutionPredictor, LoadError> {
        let name = |part: &str| format!("duration_predictor.{part}");
        let conv = |at: usize, inputs: usize| -> Result<((KernelWeights, NormWeights), usize), LoadError> {
            let weight = name(&format!("conv_{at}"));
            let channels = named.shape(&format!("{weight}.weight"))?[0];
            let straight = |kernel: usize| LineConvolution::plain(kernel, [kernel / 2; 2]).kernel_use();
            let conv = named.conv(device, &weight, [channels, inputs], straight)?;
            let norm = named.norm(device, &name(&format!("norm_{at}")), channels, config.norm_eps)?;
            Ok(((conv, norm), channels))
        };
        let (first, channels) = conv(1, config.hidden)?;
        Ok(ConvolutionPredictor {
            first,
            second: conv(2, channels)?.0,
            proj: named.linear(device, &name("proj"), [1, channels])?,
            conditioning: SpeakerConditioning::load(named, &name("cond"), config.hidden, config.speaker)?,
        })
    }

    fn record(&self, p: &mut Program<'_>, mut x: Signal, speaker: &[f32]) -> Result<Signal, KernelError> {
        if let Some(own) = self.conditioning.as_ref().filter(|_| !speaker.is_empty()) {
            p.add_each(&x, &own.of(speaker))?;
        }
        for (conv, norm) in [&self.first, &self.second] {
            let y = p.conv(conv, &x, ConvExtras::default())?;
            p.activate(PointActivation::LeakyRelu { slope: 0.0 }, &y);
            let normed = p.norm(norm, &y)?;
            p.free(y);
            p.free(std::mem::replace(&mut x, normed));
        }
        let logs = p.dense(&self.proj, &x)?;
        p.free(x);
        Ok(logs)
    }
}

impl Drawn {
    fn record(&self, p: &mut Program<'_>, hidden: Signal, speaker: &[f32]) -> Result<Signal, KernelError> {
        let x = p.dense(&self.pre, &hidden)?;
        if let Some(own) = self.conditioning.as_ref().filter(|_| !speaker.is_empty()) {
            p.add_each(&x, &own.of(speaker))?;
        }
        self.convolutions.record(p, &x)?;
        let known = p.dense(&self.proj, &x)?;
        p.free(hidden);
        p.free(x);
        Ok(known)
    }

    fn finish(
        &self,
        device: &mut Device,
        known: Signal,
        rows: usize,
        noise_scale: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        let mut draw = || -> Vec<f32> { (0..rows).map(|_| noise.normal() * noise_scale).collect() };
        let mut latents = [draw(), draw()];
        for flow in &self.splines {
            latents.reverse();
            let [first, second] = &mut latents;
            flow.back(device, &known, first, second)?;
        }
        device.spent(known);
        latents.reverse();
        let [mut logs, _] = latents;
        logs.iter_mut().for_each(|log| *log = (*log - self.translate[0]) * self.scale[0]);
        Ok(logs)
    }
}

impl Separable {
    fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        name: &str,
        config: &VitsConfig,
    ) -> Result<Separable, LoadError> {
        let hidden = config.hidden;
        let layer = |at: usize| -> Result<SeparableLayer, LoadError> {
            let part = |part: &str| format!("{name}.{part}.{at}");
            let weight = part("convs_dilated");
            let (sizes, taps) = named.shaped(&format!("{weight}.weight"), [hidden, 1, 0])?;
            let kernel = sizes[2];
            if kernel % 2 == 0 {
                return Err(named.corrupt(&weight, format!("a kernel of {kernel}")));
            }
            let dilation = kernel.pow(at as u32);
            let mut of = same(kernel, dilation);
            of.params.groups = hidden;
            let bias = named.vector(&format!("{weight}.bias"), hidden)?;
            Ok(SeparableLayer {
                depthwise: device.kernel(&weight, sizes, &taps, Some(&bias), of)?,
                norm: named.norm(device, &part("norms_1"), hidden, EPS)?,
                pointwise: named.linear(device, &part("convs_pointwise"), [hidden, hidden])?,
                pointwise_norm: named.norm(device, &part("norms_2"), hidden, EPS)?,
            })
        };
        Ok(Separable { layers: (0..config.separable_layers).map(layer).collect::<Result<_, _>>()? })
    }

    /// Records the ops, which change `x`.
    fn record(&self, p: &mut Program<'_>, x: &Signal) -> Result<(), KernelError> {
        const GELU: Activation = Activation::GeluErf;
        for layer in &self.layers {
            let y = p.conv(&layer.depthwise, x, ConvExtras::default())?;
            let normed = p.norm(&layer.norm, &y)?;
            p.activate(PointActivation::Mlp(GELU), &normed);
            let mixed = p.dense(&layer.pointwise, &normed)?;
            let out = p.norm(&layer.pointwise_norm, &mixed)?;
            p.activate(PointActivation::Mlp(GELU), &out);
            p.add(x, &out, 0, 1.0);
            [y, normed, mixed, out].into_iter().for_each(|value| p.free(value));
        }
        Ok(())
    }
}

impl SplineFlow {
    fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        name: &str,
        config: &VitsConfig,
    ) -> Result<SplineFlow, LoadError> {
        let proj_name = format!("{name}.conv_proj");
        let outputs = named.shape(&format!("{proj_name}.weight"))?.first().copied().unwrap_or(0);
        let bins = (outputs + 1) / 3;
        if bins == 0 || 3 * bins - 1 != outputs {
            return Err(
                named.corrupt(&format!("{proj_name}.weight"), format!("{outputs} numbers are no spline's"))
            );
        }
        Ok(SplineFlow {
            pre: named.linear(device, &format!("{name}.conv_pre"), [config.hidden, 1])?,
            convolutions: Separable::load(device, named, &format!("{name}.conv_dds"), config)?,
            proj: named.linear(device, &proj_name, [outputs, config.hidden])?,
            hidden: config.hidden,
            bins,
            bound: config.spline_bound,
        })
    }

    /// Inverts the splines on `second`, which depend on `first` and the text.
    fn back(
        &self,
        device: &mut Device,
        known: &Signal,
        first: &[f32],
        second: &mut [f32],
    ) -> Result<(), KernelError> {
        let mut p = device.program(first.len());
        let first = p.given(first, 1)?;
        let x = p.dense(&self.pre, &first)?;
        p.add(&x, known, 0, 1.0);
        self.convolutions.record(&mut p, &x)?;
        let spline = p.dense(&self.proj, &x)?;
        p.run()?;
        let numbers = p.read(&spline)?;
        [first, x, spline].into_iter().for_each(|value| p.free(value));
        let scale = 1.0 / (self.hidden as f32).sqrt();
        for (row, value) in numbers.chunks_exact(3 * self.bins - 1).zip(second) {
            let (widths, rest) = row.split_at(self.bins);
            let (heights, slopes) = rest.split_at(self.bins);
            *value = self.inverse(
                *value,
                [widths, heights].map(|part| part.iter().map(|x| x * scale).collect()),
                slopes,
            );
        }
        Ok(())
    }

    /// Inverse of the spline at a value.
    fn inverse(&self, value: f32, [widths, heights]: [Vec<f32>; 2], slopes: &[f32]) -> f32 {
        if !(-self.bound..=self.bound).contains(&value) {
            return value;
        }
        let (widths, heights) = (self.edges(&widths), self.edges(&heights));
        let edge_slope = 1.0 - LEAST;
        // Beyond both ends the spline is linear.
        let slope = |at: usize| match at {
            0 => LEAST + edge_slope,
            at if at == self.bins => LEAST + edge_slope,
            at => LEAST + softplus(slopes[at - 1]),
        };
        let bin = (1..self.bins).take_while(|&at| value >= heights[at]).last().unwrap_or(0);
        let (width, height) = (widths[bin + 1] - widths[bin], heights[bin + 1] - heights[bin]);
        let delta = height / width;
        let (low, high) = (slope(bin), slope(bin + 1));
        let bend = low + high - 2.0 * delta;
        let above = value - heights[bin];
        let a = height * (delta - low) + above * bend;
        let b = height * low - above * bend;
        let c = -delta * above;
        let root = 2.0 * c / (-b - (b * b - 4.0 * a * c).max(0.0).sqrt());
        root * width + widths[bin]
    }

    /// Edges of the bins.
    fn edges(&self, numbers: &[f32]) -> Vec<f32> {
        let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let shares: Vec<f32> = numbers.iter().map(|number| (number - most).exp()).collect();
        let sum: f32 = shares.iter().sum();
        let (mut edges, mut at) = (vec![-self.bound], 0.0);
        for share in shares {
            at += LEAST + (1.0 - LEAST * self.bins as f32) * share / sum;
            edges.push(2.0 * self.bound * at - self.bound);
        }
        edges[self.bins] = self.bound;
        edges
    }
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
