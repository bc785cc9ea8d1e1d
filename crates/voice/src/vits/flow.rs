//! Flow between the prior's latents and the vocoder's input. It consists of couplings, each of which changes
//! half of the channels by a small WaveNet (arxiv.org/abs/1609.03499) of the other half. It is computed in
//! reverse.

use hanzo_engine_ops::{KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::{NamedWeights, SpeakerConditioning};
use crate::nn::{ConvExtras, DenseWeights, Device, KernelWeights, Program, Signal, same};

pub(super) struct Flow {
    couplings: Vec<CouplingLayer>,
    reverse: DenseWeights, // turns the order of the channels round
    half: usize,
}

struct CouplingLayer {
    pre: DenseWeights,
    wavenet: WaveNet,
    post: DenseWeights,
}

struct WaveNet {
    layers: Vec<(KernelWeights, DenseWeights)>, // gates, then residual and skip outputs
    conditioning: Option<SpeakerConditioning>,
    hidden: usize,
}

impl Flow {
    pub(super) fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<Flow, LoadError> {
        let (channels, half) = (config.latents, config.latents / 2);
        let coupling = |at: usize| -> Result<CouplingLayer, LoadError> {
            let name = |part: &str| format!("flow.flows.{at}.{part}");
            Ok(CouplingLayer {
                pre: named.linear(device, &name("conv_pre"), [config.hidden, half])?,
                wavenet: WaveNet::load(device, named, &name("wavenet"), config)?,
                post: named.linear(device, &name("conv_post"), [half, config.hidden])?,
            })
        };
        let mut reverse = vec![0.0; channels * channels];
        (0..channels).for_each(|channel| reverse[channel * channels + channels - 1 - channel] = 1.0);
        Ok(Flow {
            couplings: (0..config.couplings).map(coupling).collect::<Result<_, _>>()?,
            reverse: device.dense("flow", [channels; 2], &reverse, None)?,
            half,
        })
    }

    /// Records the ops from the prior's latents to the vocoder's.
    pub(super) fn record(
        &self,
        p: &mut Program<'_>,
        mut x: Signal,
        speaker: &[f32],
    ) -> Result<Signal, KernelError> {
        for coupling in self.couplings.iter().rev() {
            // The channels are reversed before each coupling.
            let reversed = p.dense(&self.reverse, &x)?;
            p.free(std::mem::replace(&mut x, reversed));
            let (first, second) = (p.take(&x, 0, self.half)?, p.take(&x, self.half, self.half)?);
            let hidden = p.dense(&coupling.pre, &first)?;
            let hidden = coupling.wavenet.record(p, hidden, speaker)?;
            let mean = p.dense(&coupling.post, &hidden)?;
            p.add(&second, &mean, 0, -1.0);
            p.put(&second, self.half, &x);
            [first, second, hidden, mean].into_iter().for_each(|value| p.free(value));
        }
        Ok(x)
    }
}

impl WaveNet {
    fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        name: &str,
        config: &VitsConfig,
    ) -> Result<WaveNet, LoadError> {
        let hidden = config.hidden;
        let layer = |at: usize| -> Result<(KernelWeights, DenseWeights), LoadError> {
            let dilation = config.wavenet_dilation.pow(at as u32);
            let of = |kernel| same(kernel, dilation);
            let gates = named.conv(device, &format!("{name}.in_layers.{at}"), [2 * hidden, hidden], of)?;
            // The last layer has only a skip output.
            let said = if at + 1 < config.wavenet_layers { 2 * hidden } else { hidden };
            Ok((gates, named.linear(device, &format!("{name}.res_skip_layers.{at}"), [said, hidden])?))
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

    /// Records the ops from `x` to the sum of the layers' skip outputs.
    fn record(&self, p: &mut Program<'_>, x: Signal, speaker: &[f32]) -> Result<Signal, KernelError> {
        let hidden = self.hidden;
        let added = self.conditioning.as_ref().filter(|_| !speaker.is_empty()).map(|own| own.of(speaker));
        let mut out: Option<Signal> = None;
        for (at, (gates, said)) in self.layers.iter().enumerate() {
            let gates = p.conv(gates, &x, ConvExtras::default())?;
            if let Some(added) = &added {
                p.add_each(&gates, &added[at * 2 * hidden..][..2 * hidden])?;
            }
            let acts = p.take(&gates, 0, hidden)?;
            p.activate(PointActivation::Tanh, &acts);
            p.gate(&gates, hidden, &acts);
            let outputs = p.dense(said, &acts)?;
            let skip = said.outputs - hidden; // first channel of the skip output
            if skip > 0 {
                p.add(&x, &outputs, 0, 1.0);
            }
            match &out {
                Some(out) => p.add(out, &outputs, skip, 1.0),
                None => out = Some(p.take(&outputs, skip, hidden)?),
            }
            [gates, acts, outputs].into_iter().for_each(|value| p.free(value));
        }
        p.free(x);
        Ok(out.expect("the settings were checked to have layers"))
    }
}
