//! Flow between the prior's latents and the vocoder's input. It consists of couplings, each of which changes
//! half of the channels by a small WaveNet (arxiv.org/abs/1609.03499) of the other half. It is computed in
//! reverse.

use hanzo_engine_kernels::KernelError;
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{NamedWeights, SpeakerConditioning};
use crate::nn::{Compute, Conv, ConvShape, Matrix, Signal, sigmoid, tanh};

pub(super) struct Flow {
    couplings: Vec<CouplingLayer>,
}

struct CouplingLayer {
    pre: Matrix,
    wavenet: WaveNet,
    post: Matrix,
}

struct WaveNet {
    layers: Vec<(Conv, Matrix)>, // gates, then residual and skip outputs
    conditioning: Option<SpeakerConditioning>,
    hidden: usize,
}

impl Flow {
    pub(super) fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<Flow, LoadError> {
        let half = config.latents / 2;
        let coupling = |at: usize| -> Result<CouplingLayer, LoadError> {
            let name = |part: &str| format!("flow.flows.{at}.{part}");
            Ok(CouplingLayer {
                pre: named.linear(compute, &name("conv_pre"), [config.hidden, half])?,
                wavenet: WaveNet::load(compute, named, &name("wavenet"), config)?,
                post: named.linear(compute, &name("conv_post"), [half, config.hidden])?,
            })
        };
        Ok(Flow { couplings: (0..config.couplings).map(coupling).collect::<Result<_, _>>()? })
    }

    pub(super) fn run(
        &self,
        compute: &mut Compute,
        mut x: Signal,
        speaker: &[f32],
    ) -> Result<Signal, KernelError> {
        let half = x.cols / 2;
        for coupling in self.couplings.iter().rev() {
            // The channels are reversed before each coupling.
            let cols = x.cols;
            x.data.chunks_exact_mut(cols).for_each(<[f32]>::reverse);
            let mut first = Signal::zeros(x.rows, half);
            for row in 0..x.rows {
                first.row_mut(row).copy_from_slice(&x.row(row)[..half]);
            }
            let hidden = compute.linear(&coupling.pre, &first)?;
            let hidden = coupling.wavenet.run(compute, hidden, speaker)?;
            let mean = compute.linear(&coupling.post, &hidden)?;
            for row in 0..x.rows {
                let second = &mut x.row_mut(row)[half..];
                second.iter_mut().zip(mean.row(row)).for_each(|(x, mean)| *x -= mean);
            }
        }
        Ok(x)
    }
}

impl WaveNet {
    fn load(
        compute: &Compute,
        named: &NamedWeights<'_>,
        name: &str,
        config: &VitsConfig,
    ) -> Result<WaveNet, LoadError> {
        let hidden = config.hidden;
        let layer = |at: usize| -> Result<(Conv, Matrix), LoadError> {
            let dilation = config.wavenet_dilation.pow(at as u32);
            let shape = |kernel| ConvShape::same(kernel, dilation);
            let gates =
                named.conv(compute, &format!("{name}.in_layers.{at}"), [2 * hidden, hidden], shape)?;
            // The last layer has only a skip output.
            let said = if at + 1 < config.wavenet_layers { 2 * hidden } else { hidden };
            Ok((gates, named.linear(compute, &format!("{name}.res_skip_layers.{at}"), [said, hidden])?))
        };
        let channels = 2 * hidden * config.wavenet_layers;
        Ok(WaveNet {
            layers: (0..config.wavenet_layers).map(layer).collect::<Result<_, _>>()?,
            conditioning: SpeakerConditioning::load(
                named,
                &format!("{name}.cond_layer"),
                channels,
                config.speaker,
            )?,
            hidden,
        })
    }

    fn run(&self, compute: &mut Compute, mut x: Signal, speaker: &[f32]) -> Result<Signal, KernelError> {
        let hidden = self.hidden;
        let added = self.conditioning.as_ref().filter(|_| !speaker.is_empty()).map(|own| own.of(speaker));
        let none = vec![0.0; hidden];
        let mut out = Signal::zeros(x.rows, hidden);
        for (at, (gates, said)) in self.layers.iter().enumerate() {
            let gates = gates.run(compute, &x)?;
            let added = added.as_ref().map(|added| &added[at * 2 * hidden..][..2 * hidden]);
            let mut acts = compute.signal(x.rows, hidden);
            compute.rows(&mut acts.data, hidden, &|first, piece| {
                for (index, row) in piece.chunks_exact_mut(hidden).enumerate() {
                    let (values, gates) = gates.row(first + index).split_at(hidden);
                    let of_speaker = added.map_or((&none[..], &none[..]), |added| added.split_at(hidden));
                    let added = of_speaker.0.iter().zip(of_speaker.1);
                    for ((act, (value, gate)), (a, b)) in
                        row.iter_mut().zip(values.iter().zip(gates)).zip(added)
                    {
                        *act = tanh(value + a) * sigmoid(gate + b);
                    }
                }
            });
            let said = compute.linear(said, &acts)?;
            for row in 0..x.rows {
                let part = said.row(row);
                let last = said.cols == hidden;
                if !last {
                    x.row_mut(row).iter_mut().zip(part).for_each(|(x, part)| *x += part);
                }
                let part = if last { part } else { &part[hidden..] };
                out.row_mut(row).iter_mut().zip(part).for_each(|(out, part)| *out += part);
            }
        }
        Ok(out)
    }
}
