//! Reader of decoders that are data alone: dense ones, and mixtures in the form of Mixtral or Qwen 3.

use hanzo_engine_model_files::error::LoadError;
use hanzo_engine_ops::Activation;

use super::layers::windows;
use super::sparse_layers;
use super::{Base, Checks, Choice, MixtureLayers, ModelType};
use crate::limits::{EXPERTS_MAX, WIDTH_MAX};
use crate::spec::{Config, DenseSpec, ExpertsSpec, MlpSpec, TransformerSpec};

/// Reads a model whose type is data alone.
pub(crate) fn read(base: &Base<'_>, config: &Config) -> Result<TransformerSpec, LoadError> {
    let (of, heads) = (base.of, base.heads()?);
    refuse_biases(of, config)?;
    let attention = base.attention(heads)?;
    let rope = base.rope(base.turned(heads.head_dim)?)?;
    let experts = experts(of, config, base.layers)?;
    let sparse =
        |layer: usize| experts.as_ref().filter(|(_, sparse)| sparse[layer]).map(|&(experts, _)| experts);
    let dense = DenseSpec {
        ffn: base.ffn((0..base.layers).any(|layer| sparse(layer).is_none()))?,
        activation: base.activation,
        gated: of.gated,
        up_bias: of.mlp_bias.read(config)?,
        down_bias: of.mlp_bias.read(config)?,
    };
    let windows = windows(of, config, base.layers)?;
    let mlp = |layer| match sparse(layer) {
        Some(experts) => MlpSpec::Experts(ExpertsSpec { activation: base.activation, ..experts }),
        None => MlpSpec::Dense(dense),
    };
    let mut spec = base.with_windows(rope, &attention, &windows, |_| Some(0), mlp)?;
    (of.own)(config, &mut spec)?;
    Ok(spec)
}

fn refuse_biases(of: &ModelType, config: &Config) -> Result<(), LoadError> {
    let never = of.checks == Checks::Llama && matches!(of.biases[0], Choice::Always(false));
    if never && config.bool("attention_bias")?.unwrap_or(false) {
        return Err(config.unsupported("attention_bias", true, "this family has no such biases"));
    }
    Ok(())
}

/// Name of a non-linearity with parameters for each layer.
pub(crate) const XIELU: &str = "xielu";

pub(crate) fn activation(of: &ModelType, config: &Config) -> Result<Activation, LoadError> {
    let (key, usual) = of.activation;
    let dense = of.checks == Checks::Dense;
    let named = match config.string(key)? {
        Some(named) => named,
        // Gemma's first files have this key but mean the default of their class.
        None if key == "hidden_activation" => usual,
        None => config.string("hidden_act")?.unwrap_or(usual),
    };
    let unknown = |named: &str| {
        let known = match dense {
            true => "silu, gelu, gelu_new, gelu_pytorch_tanh, relu and relu2 are known",
            false => "silu, gelu, gelu_new and gelu_pytorch_tanh are known",
        };
        config.unsupported(key, named, known)
    };
    match named {
        // It has parameters for each layer, so it is no activation of the kernels.
        XIELU if usual == XIELU => Ok(Activation::Silu),
        "relu" | "relu2" if !dense => Err(unknown(named)),
        named => by_name(named).ok_or_else(|| unknown(named)),
    }
}

fn by_name(name: &str) -> Option<Activation> {
    match name {
        "silu" | "swish" => Some(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Some(Activation::GeluTanh),
        "gelu" => Some(Activation::GeluErf),
        "relu" => Some(Activation::Relu),
        "relu2" => Some(Activation::ReluSquared),
        _ => None,
    }
}

impl ModelType {
    /// Non-linearity if no setting says: silu also for one with parameters, which is none of the kernels.
    pub(crate) fn usual_activation(&self) -> Activation {
        by_name(self.activation.1).unwrap_or(Activation::Silu)
    }
}

/// Mixture of experts of some layers, and the layers that have it.
fn experts(
    of: &ModelType,
    config: &Config,
    layers: usize,
) -> Result<Option<(ExpertsSpec, Vec<bool>)>, LoadError> {
    const NAMES: [&str; 2] = ["num_experts", "num_local_experts"];
    let (ffn, normalized, sparse) = match of.experts {
        MixtureLayers::Never => return Ok(None),
        MixtureLayers::All => ("intermediate_size", true, vec![true; layers]),
        MixtureLayers::Some => {
            let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
            ("moe_intermediate_size", normalized, sparse_layers(config, layers)?)
        }
    };
    let all = of.experts == MixtureLayers::All;
    // The library has used both names for the same class.
    let counts = [config.whole(NAMES[0], EXPERTS_MAX)?, config.whole(NAMES[1], EXPERTS_MAX)?];
    let experts = match counts {
        [Some(one), Some(other)] if one != other => {
            return Err(config.corrupt(NAMES[0], format!("it is {one}, and {} is {other}", NAMES[1])));
        }
        [one, other] => one.or(other).ok_or_else(|| config.missing(NAMES[usize::from(all)]))?,
    };
    if experts == 0 && all {
        return Err(config.corrupt(NAMES[1], "it is 0"));
    }
    if experts == 0 || !sparse.contains(&true) {
        return Ok(None);
    }
    let used = config.required("num_experts_per_tok", EXPERTS_MAX)?;
    let ffn = config.required(ffn, WIDTH_MAX)?;
    Ok(Some((ExpertsSpec::softmax(experts, used, ffn, normalized), sparse)))
}
