//! Reading of a decoder's [`TransformerSpec`] from a Hugging Face `config.json`. Settings mean what the transformers
//! library's class of the same name makes of them; settings that the class does not read have no effect. Settings
//! known to make another model of it (experts that the family does not have, quantised weights, soft caps) are
//! refused.

use hanzo_engine_kernels::{Activation, HeadShape, RopeKind};
use serde_json::{Map, Value};

use super::rope::{is_long, stretch, yarn_magnitude};
use super::unknown::unknown;
use super::{
    AttentionSpec, Config, ExpertsSpec, HeadSpec, LayerSpec, Mask, MlpSpec, NormKind, NormOrder, NormSpec,
    QkNorm, RopeScaling, RopeSpec, TransformerSpec, dense, gemma, mixtures, multimodal,
};
use crate::error::LoadError;
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX,
};

/// Properties of a model type that its settings do not contain.
struct Family {
    model_type: &'static str,
    class: &'static str,
    bias: Bias,
    qk_norm: bool,
    window: Window,
    /// Size of a head if `head_dim` is not given; otherwise `hidden_size / num_attention_heads`.
    head_dim: Option<usize>,
    /// Base of rope's frequencies if `rope_theta` is not given.
    rope_base: f32,
    /// Epsilon of the norms if `rms_norm_eps` is not given.
    norm_eps: f32,
    experts: Experts,
}

#[derive(Clone, Copy)]
enum Experts {
    Never,
    /// `intermediate_size` is of one expert, every layer is a mixture, weights are normalised.
    All,
    /// `moe_intermediate_size` is of one expert, layers are mixtures as `decoder_sparse_step` and `mlp_only_layers`
    /// say, weights are normalised if `norm_topk_prob` says so.
    Some,
}

#[derive(Clone, Copy)]
enum Bias {
    Never,
    /// On query, key and value projections.
    Qkv,
    /// On all four projections if `attention_bias` says so.
    AsConfigured,
}

#[derive(Clone, Copy)]
enum Window {
    Never,
    /// `sliding_window` on every layer.
    All,
    /// `sliding_window` on every layer, if `use_sliding_window` says so.
    AllIfUsed,
    /// `sliding_window` on the layers that `layer_types` or `max_window_layers` name, if `use_sliding_window` says so.
    Some,
}

const FAMILIES: &[Family] = &[
    Family {
        model_type: "llama",
        class: "LlamaForCausalLM",
        bias: Bias::AsConfigured,
        qk_norm: false,
        window: Window::Never,
        head_dim: None,
        rope_base: 1e4,
        norm_eps: 1e-6,
        experts: Experts::Never,
    },
    Family {
        model_type: "mistral",
        class: "MistralForCausalLM",
        bias: Bias::Never,
        qk_norm: false,
        window: Window::All,
        head_dim: None,
        rope_base: 1e4,
        norm_eps: 1e-6,
        experts: Experts::Never,
    },
    Family {
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        bias: Bias::Qkv,
        qk_norm: false,
        window: Window::Some,
        head_dim: None,
        rope_base: 1e4,
        norm_eps: 1e-6,
        experts: Experts::Never,
    },
    Family {
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        bias: Bias::AsConfigured,
        qk_norm: true,
        window: Window::Some,
        head_dim: Some(128),
        rope_base: 1e4,
        norm_eps: 1e-6,
        experts: Experts::Never,
    },
    Family {
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        bias: Bias::AsConfigured,
        qk_norm: true,
        window: Window::AllIfUsed,
        head_dim: None,
        rope_base: 1e4,
        norm_eps: 1e-6,
        experts: Experts::Some,
    },
    Family {
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        bias: Bias::Never,
        qk_norm: false,
        window: Window::All,
        head_dim: None,
        rope_base: 1e6,
        norm_eps: 1e-5,
        experts: Experts::All,
    },
];

/// Settings that would make another model of it, and are refused unless they are absent, null, false, zero or empty.
const REFUSED: &[&str] = &[
    "add_cross_attention",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "is_encoder_decoder",
    "mlp_bias",
    "n_routed_experts",
    "n_shared_experts",
    "quantization_config",
    "shared_expert_intermediate_size",
    "vision_config",
];

/// Whether a family reads a setting.
type ReadBy = fn(Experts) -> bool;

/// Settings of mixtures of experts, by the families that read them.
const EXPERT_SETTINGS: &[(&str, ReadBy)] = &[
    ("moe_intermediate_size", |experts| matches!(experts, Experts::Some)),
    ("num_experts", |experts| matches!(experts, Experts::Some)),
    ("num_local_experts", |experts| !matches!(experts, Experts::Never)),
];

/// Settings that would make another model of it, and are refused unless they are absent, null or 1.
const REFUSED_UNLESS_ONE: &[&str] = &[
    "attention_multiplier",
    "embedding_multiplier",
    "logit_scale",
    "logits_scaling",
    "partial_rotary_factor",
    "residual_multiplier",
];

/// Settings of `rope_scaling` and `rope_parameters` that are known.
/// Divisors of frequencies, which LongRoPE alone has.
const LONG_SETTINGS: &[&str] = &["long_factor", "short_factor"];
const ROPE_SETTINGS: &[&str] = &[
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
];

/// Reads a decoder's spec from `config.json`.
///
/// # Errors
/// `Missing`, `Corrupt` or `Unsupported` naming the key.
pub fn from_config(config: &Config) -> Result<TransformerSpec, LoadError> {
    let model_type = config.string("model_type")?.ok_or_else(|| config.missing("model_type"))?;
    if let Some(mixture) = mixtures::from_config(config, model_type) {
        return mixture;
    }
    if let Some(dense) = dense::from_config(config, model_type) {
        return dense;
    }
    if let Some(gemma) = gemma::from_config(config, model_type) {
        return gemma;
    }
    let Some(family) = FAMILIES.iter().find(|family| family.model_type == model_type) else {
        let known = FAMILIES
            .iter()
            .map(|family| family.model_type)
            .chain(mixtures::known())
            .chain(dense::known())
            .chain(gemma::known())
            .chain(multimodal::known())
            .chain(crate::encoder::encoders());
        return Err(config.unsupported("model_type", model_type, unknown(model_type, known)));
    };
    refuse(config, family)?;
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    let layers = config.required("num_hidden_layers", LAYERS_MAX)?;
    let heads = heads(config, family, hidden)?;
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let (qkv_bias, output_bias) = match family.bias {
        Bias::Never if biased => {
            return Err(config.unsupported("attention_bias", true, "this family has no such biases"));
        }
        Bias::Never => (false, false),
        Bias::Qkv => (true, false),
        Bias::AsConfigured => (biased, biased),
    };
    let context = config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?;
    let rope = rope(config, family, heads.head_dim, context)?;
    let activation = activation(config)?;
    let experts = experts(config, family, layers)?;
    let sparse =
        |layer: usize| experts.as_ref().filter(|(_, sparse)| sparse[layer]).map(|&(experts, _)| experts);
    let ffn = match (0..layers).all(|layer| sparse(layer).is_some()) {
        true => 0,
        false => config.required("intermediate_size", WIDTH_MAX)?,
    };
    let layers = windows(config, family, layers)?.into_iter().enumerate().map(|(layer, window)| LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec {
            mask: Mask::Causal { window },
            qkv_bias,
            output_bias,
            qk_norm: if family.qk_norm { QkNorm::Heads } else { QkNorm::None },
            ..AttentionSpec::causal(heads)
        },
        mlp: match sparse(layer) {
            Some(experts) => MlpSpec::Experts(ExpertsSpec { activation, ..experts }),
            None => MlpSpec::gated(ffn, activation),
        },
        residual_scale: 1.0,
    });
    let norm = NormSpec {
        kind: NormKind::Rms { from_one: false },
        eps: config.positive("rms_norm_eps")?.unwrap_or(family.norm_eps),
    };
    let sizes = [config.required("vocab_size", VOCAB_MAX)?, hidden];
    let context = stretched_context(&rope.scaling, context);
    TransformerSpec {
        ropes: vec![rope],
        head: HeadSpec::plain(config.bool("tie_word_embeddings")?.unwrap_or(false)),
        ..TransformerSpec::bare(model_type, sizes, layers.collect(), norm, context)
    }
    .checked(&config.file)
}

fn refuse(config: &Config, family: &Family) -> Result<(), LoadError> {
    for &key in REFUSED {
        if let Some(value) = config.get(key).filter(|value| !is_nothing(value)) {
            return Err(config.unsupported(key, value, "this build cannot run models that have it"));
        }
    }
    for (key, _) in EXPERT_SETTINGS.iter().filter(|(_, read_by)| !read_by(family.experts)) {
        if let Some(value) = config.get(key).filter(|value| !is_nothing(value)) {
            return Err(config.unsupported(key, value, "this family does not read it"));
        }
    }
    for &key in REFUSED_UNLESS_ONE {
        if let Some(value) = config.get(key).filter(|value| value.as_f64() != Some(1.0)) {
            return Err(config.unsupported(key, value, "this family knows no such factor"));
        }
    }
    if let Some(classes) = config.get("architectures")
        && !is_nothing(classes)
        && !classes.as_array().is_some_and(|classes| classes.iter().any(|class| class == family.class))
    {
        return Err(config.unsupported("architectures", classes, format!("{} is known", family.class)));
    }
    Ok(())
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn heads(config: &Config, family: &Family, hidden: usize) -> Result<HeadShape, LoadError> {
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    // Absent from configurations older than grouped queries.
    let kv_heads = config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(heads);
    let head_dim = match config.count("head_dim", HEAD_DIM_MAX)?.or(family.head_dim) {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) && hidden / heads <= HEAD_DIM_MAX => hidden / heads,
        None => {
            let reason = format!("hidden states of {hidden} do not split into {heads} heads");
            return Err(config.corrupt("num_attention_heads", reason));
        }
    };
    Ok(HeadShape { heads, kv_heads, head_dim })
}

/// Mixture of experts of some layers, and the layers that have it.
fn experts(
    config: &Config,
    family: &Family,
    layers: usize,
) -> Result<Option<(ExpertsSpec, Vec<bool>)>, LoadError> {
    const NAMES: [&str; 2] = ["num_experts", "num_local_experts"];
    let (ffn, normalized, sparse) = match family.experts {
        Experts::Never => return Ok(None),
        Experts::All => ("intermediate_size", true, vec![true; layers]),
        Experts::Some => {
            let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
            ("moe_intermediate_size", normalized, sparse_layers(config, layers)?)
        }
    };
    // The library has used both names for the same class.
    let counts = [config.whole(NAMES[0], EXPERTS_MAX)?, config.whole(NAMES[1], EXPERTS_MAX)?];
    let experts = match counts {
        [Some(one), Some(other)] if one != other => {
            return Err(config.corrupt(NAMES[0], format!("it is {one}, and {} is {other}", NAMES[1])));
        }
        [one, other] => one.or(other).ok_or_else(|| {
            let all = matches!(family.experts, Experts::All);
            config.missing(NAMES[usize::from(all)])
        })?,
    };
    if experts == 0 && matches!(family.experts, Experts::All) {
        return Err(config.corrupt(NAMES[1], "it is 0"));
    }
    if experts == 0 || !sparse.contains(&true) {
        return Ok(None);
    }
    let used = config.required("num_experts_per_tok", EXPERTS_MAX)?;
    let ffn = config.required(ffn, WIDTH_MAX)?;
    Ok(Some((ExpertsSpec::softmax(experts, used, ffn, normalized), sparse)))
}

/// Sparse layers: every `decoder_sparse_step`th, except those that `mlp_only_layers` names.
pub(super) fn sparse_layers(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    const DENSE: &str = "mlp_only_layers";
    let step = config.count("decoder_sparse_step", LAYERS_MAX)?.unwrap_or(1);
    let mut sparse: Vec<bool> = (1..=layers).map(|number| number.is_multiple_of(step)).collect();
    for value in config.typed(DENSE, "a list of layers", Value::as_array)?.into_iter().flatten() {
        let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok());
        let Some(is_sparse) = layer.and_then(|layer| sparse.get_mut(layer)) else {
            return Err(config.corrupt(DENSE, format!("{value} is not one of {layers} layers")));
        };
        *is_sparse = false;
    }
    Ok(sparse)
}

pub(super) fn activation(config: &Config) -> Result<Activation, LoadError> {
    match config.string("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "gelu" => Ok(Activation::GeluErf),
        other => {
            let reason = "silu, gelu, gelu_new and gelu_pytorch_tanh are known";
            Err(config.unsupported("hidden_act", other, reason))
        }
    }
}

fn windows(config: &Config, family: &Family, layers: usize) -> Result<Vec<Option<u32>>, LoadError> {
    let window = || {
        let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?;
        Ok::<_, LoadError>(window.map(|window| window as u32))
    };
    let layer_types = config.get("layer_types");
    match family.window {
        Window::Never | Window::All | Window::AllIfUsed => {
            let windowed = match family.window {
                Window::All => true,
                Window::AllIfUsed => config.bool("use_sliding_window")?.unwrap_or(false),
                _ => false,
            };
            let window = if windowed { window()? } else { None };
            let all_full = |types: &Value| {
                types.as_array().is_some_and(|types| types.iter().all(|layer_type| layer_type == FULL))
            };
            match layer_types {
                Some(types) if window.is_some() || !all_full(types) => {
                    Err(config.unsupported("layer_types", types, "this family has one type of layer"))
                }
                _ => Ok(vec![window; layers]),
            }
        }
        Window::Some => {
            let window = if config.bool("use_sliding_window")?.unwrap_or(false) { window()? } else { None };
            match layer_types {
                Some(types) => windows_by_type(config, types, window, layers),
                None => {
                    let first = config.whole("max_window_layers", LAYERS_MAX)?.unwrap_or(28);
                    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
                }
            }
        }
    }
}

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

pub(super) fn windows_by_type(
    config: &Config,
    types: &Value,
    window: Option<u32>,
    layers: usize,
) -> Result<Vec<Option<u32>>, LoadError> {
    let types = types.as_array().map_or(&[][..], Vec::as_slice);
    if types.len() != layers {
        return Err(config.corrupt("layer_types", format!("{} types for {layers} layers", types.len())));
    }
    types
        .iter()
        .map(|layer_type| match layer_type.as_str() {
            Some(FULL) => Ok(None),
            Some(SLIDING) => Ok(window),
            _ => {
                Err(config.unsupported("layer_types", layer_type, format!("{FULL} and {SLIDING} are known")))
            }
        })
        .collect()
}

fn rope(config: &Config, family: &Family, head_dim: usize, context: usize) -> Result<RopeSpec, LoadError> {
    // Newer configurations put all of rope into `rope_parameters`; in older ones `rope_scaling` accompanies
    // `rope_theta`.
    let settings = match config.object("rope_scaling")? {
        Some(settings) => Some(settings),
        None => config.object("rope_parameters")?,
    };
    let settings = settings.unwrap_or_else(|| Config::new(config.file.clone(), Map::new()));
    let rope_type = match settings.string("rope_type")? {
        Some(rope_type) => rope_type,
        None => settings.string("type")?.unwrap_or("default"),
    };
    for (key, value) in &settings.settings {
        let of_long = is_long(rope_type) && LONG_SETTINGS.contains(&key.as_str());
        if !ROPE_SETTINGS.contains(&key.as_str()) && !of_long {
            return Err(settings.unsupported(key, value, "this build does not know what to do with it"));
        }
    }
    if let Some(value) = settings.get("partial_rotary_factor").filter(|value| value.as_f64() != Some(1.0)) {
        return Err(settings.unsupported("partial_rotary_factor", value, "this family turns whole heads"));
    }
    let base = match settings.positive("rope_theta")? {
        Some(base) => base,
        None => config.positive("rope_theta")?.unwrap_or(family.rope_base),
    };
    stretch(RopeSpec::plain(RopeKind::Neox, base, head_dim), (config, &settings), rope_type, context)
}

pub(super) fn scaling(
    config: &Config,
    settings: &Config,
    rope_type: &str,
    context: usize,
) -> Result<(RopeScaling, f32), LoadError> {
    let required = |key: &str| settings.positive(key)?.ok_or_else(|| settings.missing(key));
    let original_context = || {
        const KEY: &str = "original_max_position_embeddings";
        let outside = config.count(KEY, CONTEXT_TOKENS_MAX)?;
        let inside = settings.count(KEY, CONTEXT_TOKENS_MAX)?;
        Ok::<_, LoadError>(outside.or(inside).unwrap_or(context) as u32)
    };
    match rope_type {
        "default" => Ok((RopeScaling::None, 1.0)),
        "linear" => Ok((RopeScaling::Linear { factor: required("factor")? }, 1.0)),
        "llama3" => {
            let scaling = RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context: original_context()?,
            };
            Ok((scaling, 1.0))
        }
        "yarn" => {
            let original_context = original_context()?;
            let factor = match settings.positive("factor")? {
                Some(factor) => factor,
                None => context as f32 / original_context as f32,
            };
            let weights = (settings.positive("mscale")?, settings.positive("mscale_all_dim")?);
            let magnitude = match (settings.positive("attention_factor")?, weights) {
                (Some(magnitude), _) => magnitude,
                (None, (Some(mscale), Some(all_dim))) => {
                    yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim)
                }
                (None, _) => yarn_magnitude(factor, 1.0),
            };
            let scaling = RopeScaling::Yarn {
                factor,
                beta_fast: settings.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: settings.positive("beta_slow")?.unwrap_or(1.0),
                original_context,
                truncate: settings.bool("truncate")?.unwrap_or(true),
            };
            Ok((scaling, magnitude))
        }
        other => Err(settings.unsupported("rope_type", other, "default, linear, llama3 and yarn are known")),
    }
}

/// Context stretched by YaRN, which is enabled by adding it to a configuration whose `max_position_embeddings` may
/// stay the same.
pub(super) fn stretched_context(scaling: &RopeScaling, context: usize) -> usize {
    match *scaling {
        RopeScaling::Yarn { factor, original_context, .. } => {
            let stretched = (f64::from(factor) * f64::from(original_context)) as usize;
            stretched.clamp(context, CONTEXT_TOKENS_MAX)
        }
        _ => context,
    }
}
