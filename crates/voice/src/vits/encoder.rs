//! Text encoder: a transformer over symbols, whose attention uses relative positions up to a small distance.

use hanzo_engine_ops::{KernelError, PointActivation};
use hanzo_engine_runtime::LoadError;

use super::VitsConfig;
use super::names::NamedWeights;
use crate::nn::{
    ConvExtras, DenseWeights, Device, KernelWeights, LineConvolution, NearWeights, NormWeights, Program,
    Signal,
};

pub(super) struct TextEncoder {
    signs: Vec<f32>, // (signs, hidden), scaled
    hidden: usize,
    layers: Vec<EncoderLayer>,
    project: DenseWeights,
}

struct EncoderLayer {
    qkv: DenseWeights,
    near: NearWeights,
    out: DenseWeights,
    attention_norm: NormWeights,
    up: KernelWeights,
    down: KernelWeights,
    norm: NormWeights,
}

impl TextEncoder {
    pub(super) fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        config: &VitsConfig,
    ) -> Result<TextEncoder, LoadError> {
        let hidden = config.hidden;
        let mut signs = named.embedding(hidden)?;
        let scale = (hidden as f32).sqrt();
        signs.iter_mut().for_each(|number| *number *= scale);
        let layer = |at: usize| {
            EncoderLayer::load(device, named, &format!("text_encoder.encoder.layers.{at}"), config)
        };
        Ok(TextEncoder {
            signs,
            hidden,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            project: named.linear(device, "text_encoder.project", [2 * config.latents, hidden])?,
        })
    }

    /// Number of symbols.
    pub(super) fn signs(&self) -> usize {
        self.signs.len() / self.hidden
    }

    /// Records the ops from symbols to their hidden states, and to the means and log deviations of their latents.
    pub(super) fn record(&self, p: &mut Program<'_>, tokens: &[u32]) -> Result<[Signal; 2], KernelError> {
        let row = |&token: &u32| {
            let token = (token as usize).min(self.signs() - 1);
            &self.signs[token * self.hidden..][..self.hidden]
        };
        let numbers: Vec<f32> = tokens.iter().flat_map(row).copied().collect();
        let mut x = p.given(&numbers, self.hidden)?;
        for layer in &self.layers {
            let out = layer.record(p, &x)?;
            p.free(std::mem::replace(&mut x, out));
        }
        let stats = p.dense(&self.project, &x)?;
        Ok([x, stats])
    }
}

impl EncoderLayer {
    fn load(
        device: &Device,
        named: &NamedWeights<'_>,
        layer: &str,
        config: &VitsConfig,
    ) -> Result<EncoderLayer, LoadError> {
        let (hidden, inner) = (config.hidden, config.inner);
        let name = |part: &str| format!("{layer}.{part}");
        let (mut numbers, mut bias) = (Vec::new(), Vec::new());
        for part in ["q_proj", "k_proj", "v_proj"] {
            let (weight, addends) = named.matrix(&name(&format!("attention.{part}")), [hidden, hidden])?;
            numbers.extend(weight);
            bias.extend(addends);
        }
        let keys_name = name("attention.emb_rel_k");
        let ([_, places, head_dim], keys) = named.shaped(&keys_name, [1, 0, 0])?;
        let (_, values) = named.shaped(&name("attention.emb_rel_v"), [1, places, head_dim])?;
        if places % 2 == 0 || head_dim == 0 || !hidden.is_multiple_of(head_dim) {
            return Err(
                named.corrupt(&keys_name, format!("{places} places of {head_dim} numbers, of {hidden}"))
            );
        }
        // The length stays, for any kernel.
        let same =
            |kernel: usize| LineConvolution::plain(kernel, [(kernel - 1) / 2, kernel / 2]).kernel_use();
        Ok(EncoderLayer {
            qkv: device.dense(layer, [3 * hidden, hidden], &numbers, Some(&bias))?,
            near: device.near(hidden / head_dim, head_dim, places / 2, [&keys, &values])?,
            out: named.linear(device, &name("attention.out_proj"), [hidden, hidden])?,
            attention_norm: named.norm(device, &name("layer_norm"), hidden, config.norm_eps)?,
            up: named.conv(device, &name("feed_forward.conv_1"), [inner, hidden], same)?,
            down: named.conv(device, &name("feed_forward.conv_2"), [hidden, inner], same)?,
            norm: named.norm(device, &name("final_layer_norm"), hidden, config.norm_eps)?,
        })
    }

    /// Records the layer's ops. They change `x`.
    fn record(&self, p: &mut Program<'_>, x: &Signal) -> Result<Signal, KernelError> {
        let qkv = p.dense(&self.qkv, x)?;
        let seen = p.attend(&self.near, &qkv)?;
        let attended = p.dense(&self.out, &seen)?;
        let normed = p.add_norm(&self.attention_norm, x, &attended)?;
        let inner = p.conv(&self.up, &normed, ConvExtras::default())?;
        let relu =
            ConvExtras { before: Some(PointActivation::LeakyRelu { slope: 0.0 }), ..ConvExtras::default() };
        let down = p.conv(&self.down, &inner, relu)?;
        let out = p.add_norm(&self.norm, &normed, &down)?;
        [qkv, seen, attended, normed, inner, down].into_iter().for_each(|value| p.free(value));
        Ok(out)
    }
}
