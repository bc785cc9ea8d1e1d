//! Durations of symbols, as logarithms of frames. They are sampled by spline flows (arxiv.org/abs/1906.04032)
//! conditioned on the text or, in models without those, computed by two convolutions.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{NamedWeights, SpeakerConditioning};
use crate::nn::{ChannelAffine, Compute, Conv, ConvShape, Matrix, Signal, layer_norm};
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
    pre: Matrix,
    convolutions: Separable,
    proj: Matrix,
    conditioning: Option<SpeakerConditioning>,
    translate: Vec<f32>,
    scale: Vec<f32>,
    splines: Vec<SplineFlow>, // in the order of the reverse pass
}

pub(super) struct ConvolutionPredictor {
    first: (Conv, ChannelAffine),
    second: (Conv, ChannelAffine),
    proj: Matrix,
    conditioning: Option<SpeakerConditioning>,
    eps: f32,
}

/// Depthwise convolutions with growing dilation, each followed by a pointwise one.
struct Separable {
    layers: Vec<SeparableLayer>,
}

struct SeparableLayer {
    taps: Vec<f32>, // (channels, kernel)
    bias: Vec<f32>,
    kernel: usize,
    dilation: usize,
    norm: ChannelAffine,
    pointwise: Matrix,
    pointwise_norm: ChannelAffine,
}

struct SplineFlow {
    pre: Matrix,
    convolutions: Separable,
    proj: Matrix,
    bins: usize,
    bound: f32,
}

impl Durations {
    pub(super) fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<Durations, LoadError> {
        let hidden = config.hidden;
        let name = |part: &str| format!("duration_predictor.{part}");
        if !config.draws_durations {
            let conv = |at: usize, inputs: usize| -> Result<(Conv, ChannelAffine), LoadError> {
                let weight = name(&format!("conv_{at}"));
                let channels = named.shape(&format!("{weight}.weight"))?[0];
                let shape =
                    |kernel: usize| ConvShape { stride: 1, dilation: 1, padding: (kernel / 2, kernel / 2) };
                let conv = named.conv(compute, &weight, [channels, inputs], shape)?;
                Ok((conv, named.norm(&name(&format!("norm_{at}")), channels)?))
            };
            let first = conv(1, hidden)?;
            let channels = first.1.scale.len();
            return Ok(Durations::Computed(ConvolutionPredictor {
                second: conv(2, channels)?,
                first,
                proj: named.linear(compute, &name("proj"), [1, channels])?,
                conditioning: SpeakerConditioning::load(named, &name("cond"), hidden, config.speaker)?,
                eps: config.norm_eps,
            }));
        }
        let flow = |at: usize| SplineFlow::load(compute, named, &name(&format!("flows.{at}")), config);
        // The first flow does not affect the result.
        let splines = (2..=config.duration_flows).rev().map(flow).collect::<Result<_, _>>()?;
        Ok(Durations::Drawn(Drawn {
            pre: named.linear(compute, &name("conv_pre"), [hidden, hidden])?,
            convolutions: Separable::load(compute, named, &name("conv_dds"), config)?,
            proj: named.linear(compute, &name("conv_proj"), [hidden, hidden])?,
            conditioning: SpeakerConditioning::load(named, &name("cond"), hidden, config.speaker)?,
            translate: named.vector(&name("flows.0.translate"), CHANNELS)?,
            scale: named.inverse_scales(&name("flows.0"), CHANNELS)?,
            splines,
        }))
    }

    /// Log duration of each row.
    pub(super) fn run(
        &self,
        compute: &mut Compute,
        hidden: &Signal,
        speaker: &[f32],
        noise_scale: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        match self {
            Durations::Drawn(drawn) => drawn.run(compute, hidden, speaker, noise_scale, noise),
            Durations::Computed(computed) => computed.run(compute, hidden, speaker),
        }
    }
}

fn add_each(x: &mut Signal, added: &[f32]) {
    let cols = x.cols;
    for row in x.data.chunks_exact_mut(cols) {
        row.iter_mut().zip(added).for_each(|(x, added)| *x += added);
    }
}

impl ConvolutionPredictor {
    fn run(&self, compute: &mut Compute, hidden: &Signal, speaker: &[f32]) -> Result<Vec<f32>, KernelError> {
        let mut x = hidden.clone();
        if let Some(own) = self.conditioning.as_ref().filter(|_| !speaker.is_empty()) {
            add_each(&mut x, &own.of(speaker));
        }
        for (conv, norm) in [&self.first, &self.second] {
            x = conv.run(compute, &x)?;
            x.data.iter_mut().for_each(|x| *x = x.max(0.0));
            layer_norm(&mut x, self.eps, norm);
        }
        Ok(compute.linear(&self.proj, &x)?.data)
    }
}

impl Drawn {
    fn run(
        &self,
        compute: &mut Compute,
        hidden: &Signal,
        speaker: &[f32],
        noise_scale: f32,
        noise: &mut Noise,
    ) -> Result<Vec<f32>, KernelError> {
        let mut known = compute.linear(&self.pre, hidden)?;
        if let Some(own) = self.conditioning.as_ref().filter(|_| !speaker.is_empty()) {
            add_each(&mut known, &own.of(speaker));
        }
        self.convolutions.run(compute, &mut known)?;
        let known = compute.linear(&self.proj, &known)?;
        let rows = hidden.rows;
        let mut draw = || -> Vec<f32> { (0..rows).map(|_| noise.normal() * noise_scale).collect() };
        let mut latents = [draw(), draw()];
        for flow in &self.splines {
            latents.reverse();
            let [first, second] = &mut latents;
            flow.back(compute, &known, first, second)?;
        }
        latents.reverse();
        let [mut logs, _] = latents;
        logs.iter_mut().for_each(|log| *log = (*log - self.translate[0]) * self.scale[0]);
        Ok(logs)
    }
}

impl Separable {
    fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        name: &str,
        config: &VitsConfig,
    ) -> Result<Separable, LoadError> {
        let hidden = config.hidden;
        let layer = |at: usize| -> Result<SeparableLayer, LoadError> {
            let part = |part: &str| format!("{name}.{part}.{at}");
            let ([_, _, kernel], taps) =
                named.shaped(&format!("{}.weight", part("convs_dilated")), [hidden, 1, 0])?;
            if kernel % 2 == 0 {
                return Err(named.corrupt(&part("convs_dilated"), format!("a kernel of {kernel}")));
            }
            Ok(SeparableLayer {
                taps,
                bias: named.vector(&format!("{}.bias", part("convs_dilated")), hidden)?,
                kernel,
                dilation: kernel.pow(at as u32),
                norm: named.norm(&part("norms_1"), hidden)?,
                pointwise: named.linear(compute, &part("convs_pointwise"), [hidden, hidden])?,
                pointwise_norm: named.norm(&part("norms_2"), hidden)?,
            })
        };
        Ok(Separable { layers: (0..config.separable_layers).map(layer).collect::<Result<_, _>>()? })
    }

    fn run(&self, compute: &mut Compute, x: &mut Signal) -> Result<(), KernelError> {
        for layer in &self.layers {
            let mut y = layer.depthwise(x);
            layer_norm(&mut y, EPS, &layer.norm);
            y.data.iter_mut().for_each(|x| *x = gelu(*x));
            let mut y = compute.linear(&layer.pointwise, &y)?;
            layer_norm(&mut y, EPS, &layer.pointwise_norm);
            y.data.iter_mut().for_each(|x| *x = gelu(*x));
            x.add(&y);
        }
        Ok(())
    }
}

impl SeparableLayer {
    fn depthwise(&self, x: &Signal) -> Signal {
        let mut out = Signal::zeros(x.rows, x.cols);
        let reach = self.dilation * (self.kernel - 1) / 2;
        for row in 0..x.rows {
            let sums = out.row_mut(row);
            sums.copy_from_slice(&self.bias);
            for tap in 0..self.kernel {
                let from = (row + tap * self.dilation).checked_sub(reach).filter(|&from| from < x.rows);
                let Some(from) = from else { continue };
                for (channel, (sum, value)) in sums.iter_mut().zip(x.row(from)).enumerate() {
                    *sum += self.taps[channel * self.kernel + tap] * value;
                }
            }
        }
        out
    }
}

impl SplineFlow {
    fn load(
        compute: &Compute,
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
            pre: named.linear(compute, &format!("{name}.conv_pre"), [config.hidden, 1])?,
            convolutions: Separable::load(compute, named, &format!("{name}.conv_dds"), config)?,
            proj: named.linear(compute, &proj_name, [outputs, config.hidden])?,
            bins,
            bound: config.spline_bound,
        })
    }

    /// Inverts the splines on `second`, which depend on `first` and the text.
    fn back(
        &self,
        compute: &mut Compute,
        known: &Signal,
        first: &[f32],
        second: &mut [f32],
    ) -> Result<(), KernelError> {
        let first = Signal::from_data(first.len(), 1, first.to_vec());
        let mut x = compute.linear(&self.pre, &first)?;
        x.add(known);
        let hidden = x.cols;
        self.convolutions.run(compute, &mut x)?;
        let numbers = compute.linear(&self.proj, &x)?;
        let scale = 1.0 / (hidden as f32).sqrt();
        for (row, value) in second.iter_mut().enumerate() {
            let (widths, rest) = numbers.row(row).split_at(self.bins);
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

/// GELU with the error function.
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Error function within 1.2e-7 (Numerical Recipes, `erfc` by a Chebyshev fit), in double precision.
fn erf(x: f32) -> f32 {
    let x = f64::from(x);
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    const TERMS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let sum = TERMS.iter().fold(0.0, |sum, term| sum * t + term);
    let tail = t * (-x * x + sum).exp();
    (if x >= 0.0 { 1.0 - tail } else { tail - 1.0 }) as f32
}
