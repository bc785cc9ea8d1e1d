//! Mixtures of experts of Hugging Face with family-specific features: DeepSeek V2 and V3 and similar models, gpt-oss,
//! Qwen2-MoE, GLM-4.5 and dots.1. Each is a few settings of one description. Models whose attention is nearly Llama's
//! are in `families`, and Llama 4 is in `llama4`.

pub(super) mod falcon_h1;
pub(super) mod families;
mod hybrids;
mod llama4;
pub(super) mod mamba;
pub(super) mod nemotron;
mod recurrent;

use hanzo_engine_kernels::{Activation, ExpertGroups, ExpertScoring, HeadShape, RopeKind};
use serde_json::{Map, Value};

use super::hf::{activation, sparse_layers, stretched_context, windows_by_type};
use super::rope::{stretch, yarn_magnitude};
use super::{
    AttentionSpec, Config, ExpertsSpec, HeadSpec, LatentShape, LayerSpec, Mask, MlpSpec, NormKind, NormOrder,
    NormSpec, Projection, QkNorm, RopeSpec, SharedExpert, TransformerSpec,
};
use crate::error::LoadError;
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX,
    WIDTH_MAX,
};

type Read = fn(&Config) -> Result<TransformerSpec, LoadError>;

/// Model types, their classes, and their readers.
const FAMILIES: &[(&str, &str, Read)] = &[
    ("deepseek_v2", "DeepseekV2ForCausalLM", deepseek2),
    ("deepseek_v3", "DeepseekV3ForCausalLM", deepseek3),
    ("kimi_k2", "DeepseekV3ForCausalLM", deepseek3),
    ("gpt_oss", "GptOssForCausalLM", gpt_oss),
    ("qwen2_moe", "Qwen2MoeForCausalLM", qwen2_moe),
    ("glm4_moe", "Glm4MoeForCausalLM", glm4_moe),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", deepseek3),
    ("llama4_text", "Llama4ForCausalLM", llama4::llama4),
    ("dots1", "Dots1ForCausalLM", dots1),
];

/// Model types whose recurrent layers are not supported.
const RECURRENT: &[&str] = &["mamba", "jamba"];

/// Settings that would make another model of any of these, and are refused unless they are absent, null, false, zero
/// or empty.
const REFUSED: &[&str] =
    &["is_encoder_decoder", "mlp_bias", "quantization_config", "vision_config", "index_topk"];

fn all() -> impl Iterator<Item = &'static (&'static str, &'static str, Read)> {
    FAMILIES
        .iter()
        .chain(families::FAMILIES)
        .chain(recurrent::FAMILIES)
        .chain(hybrids::FAMILIES)
        .chain(mamba::FAMILIES)
        .chain(falcon_h1::FAMILIES)
}

/// Names of the model types that this file reads.
pub(super) fn known() -> impl Iterator<Item = &'static str> {
    all().map(|&(name, ..)| name)
}

/// Whether a family's files may have layers after the last that predict several tokens at once. They are skipped.
pub(crate) fn predicts_more(architecture: &str) -> bool {
    matches!(
        architecture,
        "deepseek_v3"
            | "kimi_k2"
            | "glm4_moe"
            | "glm4_moe_lite"
            | "deepseek2"
            | "glm4moe"
            | "ernie4_5_moe"
            | "bailing_moe_v2"
            | "bailingmoe2"
            | "exaone_moe"
            | "exaone-moe"
            | "qwen3_next"
            | "qwen3_5_text"
            | "qwen3_5_moe_text"
            | "nemotron_h"
            | "nemotron_h_moe"
            | "qwen3next"
            | "qwen35"
            | "qwen35moe"
    )
}

/// Reads a model of one of these families; `None` for any other.
pub(super) fn from_config(config: &Config, model_type: &str) -> Option<Result<TransformerSpec, LoadError>> {
    if RECURRENT.contains(&model_type) {
        let reason = "this build runs the states of Qwen3-Next, Qwen3.5, Granite 4, Bamba, Nemotron-H, Mamba 2, Falcon-H1 and LFM2, not of this family";
        return Some(Err(config.unsupported("model_type", model_type, reason)));
    }
    let &(_, class, read) = all().find(|&&(name, ..)| name == model_type)?;
    Some(check_settings(config, class).and_then(|()| read(config)?.checked(&config.file)))
}

fn check_settings(config: &Config, class: &str) -> Result<(), LoadError> {
    let nothing = |value: &Value| {
        matches!(value, Value::Null | Value::Bool(false))
            || value.as_f64() == Some(0.0)
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty)
    };
    for &key in REFUSED {
        if let Some(value) = config.get(key).filter(|value| !nothing(value)) {
            return Err(config.unsupported(key, value, "this build cannot run models that have it"));
        }
    }
    match config.get("architectures") {
        Some(classes) if !nothing(classes) => {
            let known = classes.as_array().is_some_and(|classes| classes.iter().any(|name| name == class));
            if known {
                Ok(())
            } else {
                Err(config.unsupported("architectures", classes, format!("{class} is known")))
            }
        }
        _ => Ok(()),
    }
}

/// Settings common to all of them.
struct Base {
    hidden: usize,
    layers: usize,
    context: usize,
    activation: Activation,
    /// Whether the head is the token embedding, if no setting says.
    tied: bool,
}

impl Base {
    fn read(config: &Config) -> Result<Self, LoadError> {
        Ok(Self {
            hidden: config.required("hidden_size", WIDTH_MAX)?,
            layers: config.required("num_hidden_layers", LAYERS_MAX)?,
            context: config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?,
            activation: activation(config)?,
            tied: false,
        })
    }

    fn heads(&self, config: &Config) -> Result<HeadShape, LoadError> {
        let heads = config.required("num_attention_heads", HEADS_MAX)?;
        let kv_heads = config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(heads);
        let head_dim = match config.count("head_dim", HEAD_DIM_MAX)? {
            Some(head_dim) => head_dim,
            None if self.hidden.is_multiple_of(heads) => self.hidden / heads,
            None => {
                let reason = format!("hidden states of {} do not split into {heads} heads", self.hidden);
                return Err(config.corrupt("num_attention_heads", reason));
            }
        };
        Ok(HeadShape { heads, kv_heads, head_dim })
    }

    /// A network of these layers.
    fn spec(
        &self,
        config: &Config,
        family: &str,
        (rope, eps): (RopeSpec, f32),
        layer: impl Fn(usize) -> (AttentionSpec, MlpSpec),
    ) -> Result<TransformerSpec, LoadError> {
        let layers = (0..self.layers).map(|index| {
            let (attention, mlp) = layer(index);
            LayerSpec { order: NormOrder::Pre, attention, mlp, residual_scale: 1.0 }
        });
        let eps = config.positive("rms_norm_eps")?.unwrap_or(eps);
        let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps };
        let sizes = [config.required("vocab_size", VOCAB_MAX)?, self.hidden];
        let context = stretched_context(&rope.scaling, self.context);
        Ok(TransformerSpec {
            ropes: vec![rope],
            head: HeadSpec::plain(config.bool("tie_word_embeddings")?.unwrap_or(self.tied)),
            ..TransformerSpec::bare(family, sizes, layers.collect(), norm, context)
        })
    }
}

/// A setting, or the family's default.
fn or(config: &Config, key: &str, max: usize, default: usize) -> Result<usize, LoadError> {
    Ok(config.whole(key, max)?.unwrap_or(default))
}

/// Rotary embedding, and the settings it was read from.
fn rope(
    config: &Config,
    (kind, dim): (RopeKind, usize),
    (base, context): (f32, usize),
) -> Result<(RopeSpec, Config), LoadError> {
    let settings = match config.object("rope_scaling")? {
        Some(settings) => Some(settings),
        None => config.object("rope_parameters")?,
    };
    let settings = settings.unwrap_or_else(|| Config::new(config.file.clone(), Map::new()));
    let base = match settings.positive("rope_theta")? {
        Some(base) => base,
        None => config.positive("rope_theta")?.unwrap_or(base),
    };
    let rope_type = match settings.string("rope_type")? {
        Some(rope_type) => rope_type.to_owned(),
        None => settings.string("type")?.unwrap_or("default").to_owned(),
    };
    let rope = stretch(RopeSpec::plain(kind, base, dim), (config, &settings), &rope_type, context)?;
    Ok((rope, settings))
}

/// Number of rotated elements of a head.
fn turned(config: &Config, head_dim: usize, default: f32) -> Result<usize, LoadError> {
    let inside = match config.object("rope_parameters")? {
        Some(settings) => settings.positive("partial_rotary_factor")?,
        None => None,
    };
    let factor = match inside {
        Some(factor) => factor,
        None => config.positive("partial_rotary_factor")?.unwrap_or(default),
    };
    Ok((head_dim as f32 * factor) as usize)
}

/// Routed experts under DeepSeek's names, with the shared experts.
fn routed(config: &Config, base: &Base) -> Result<ExpertsSpec, LoadError> {
    let name = match config.get("n_routed_experts") {
        None if config.get("num_experts").is_some() => "num_experts",
        _ => "n_routed_experts",
    };
    let (count, used) =
        (config.required(name, EXPERTS_MAX)?, config.required("num_experts_per_tok", EXPERTS_MAX)?);
    let ffn = config.required("moe_intermediate_size", WIDTH_MAX)?;
    let shared = or(config, "n_shared_experts", EXPERTS_MAX, 0)? * ffn;
    Ok(ExpertsSpec {
        activation: base.activation,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        shared: (shared > 0).then_some(SharedExpert { ffn: shared, gate: false }),
        ..ExpertsSpec::softmax(count, used, ffn, false)
    })
}

/// As `routed`, with DeepSeek-V3's scores and choice.
fn routed_by_sigmoid(config: &Config, base: &Base) -> Result<ExpertsSpec, LoadError> {
    // dots.1's files give the name of the choice where others give that of the scores.
    let dots = config.string("model_type")? == Some("dots1");
    for (key, known) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        let is_known = |value: &str| value == known || dots && value == "noaux_tc";
        if let Some(value) = config.string(key)?.filter(|&value| !is_known(value)) {
            return Err(config.unsupported(key, value, format!("{known} is known")));
        }
    }
    let (groups, used) =
        (or(config, "n_group", EXPERT_GROUPS_MAX, 1)?, or(config, "topk_group", EXPERT_GROUPS_MAX, 1)?);
    Ok(ExpertsSpec {
        scoring: ExpertScoring::Sigmoid,
        normalized: config.bool("norm_topk_prob")?.unwrap_or(true),
        correction_bias: true,
        groups: (groups > 1).then_some(ExpertGroups { count: groups, used, best: 2 }),
        ..routed(config, base)?
    })
}

/// Dense layers first, then mixtures; or as a list says.
fn after_dense(
    config: &Config,
    base: &Base,
    dense: usize,
    experts: ExpertsSpec,
) -> Result<impl Fn(usize) -> MlpSpec, LoadError> {
    const TYPES: &str = "mlp_layer_types";
    if let Some(step) = config.whole("moe_layer_freq", LAYERS_MAX)?.filter(|&step| step != 1) {
        return Err(config.unsupported("moe_layer_freq", step, "only 1 is known"));
    }
    let sparse: Vec<bool> = match config.typed(TYPES, "a list", Value::as_array)? {
        Some(types) if types.len() != base.layers => {
            let reason = format!("{} types for {} layers", types.len(), base.layers);
            return Err(config.corrupt(TYPES, reason));
        }
        Some(types) => {
            let sparse = types.iter().map(|of| match of.as_str() {
                Some("sparse") => Ok(true),
                Some("dense") => Ok(false),
                _ => Err(config.unsupported(TYPES, of, "dense and sparse are known")),
            });
            sparse.collect::<Result<_, _>>()?
        }
        None => {
            let dense = or(config, "first_k_dense_replace", LAYERS_MAX, dense)?;
            (0..base.layers).map(|layer| layer >= dense).collect()
        }
    };
    let ffn = if sparse.contains(&false) { config.required("intermediate_size", WIDTH_MAX)? } else { 0 };
    let activation = base.activation;
    Ok(move |layer: usize| match sparse[layer] {
        false => MlpSpec::gated(ffn, activation),
        true => MlpSpec::Experts(experts),
    })
}

fn deepseek2(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let mut experts = routed(config, &base)?;
    if let Some(value) = config.string("scoring_func")?.filter(|&value| value != "softmax") {
        return Err(config.unsupported("scoring_func", value, "softmax is known"));
    }
    if config.bool("norm_topk_prob")? == Some(true) {
        return Err(config.unsupported("norm_topk_prob", true, "the family's own class does not read it"));
    }
    match config.string("topk_method")?.unwrap_or("greedy") {
        "greedy" => {}
        "group_limited_greedy" => {
            let groups = config.required("n_group", EXPERT_GROUPS_MAX)?;
            let used = config.required("topk_group", EXPERT_GROUPS_MAX)?;
            experts.groups = Some(ExpertGroups { count: groups, used, best: 1 });
        }
        other => {
            return Err(config.unsupported(
                "topk_method",
                other,
                "greedy and group_limited_greedy are known",
            ));
        }
    }
    latent(config, &base, "deepseek_v2", (experts, 0))
}

fn deepseek3(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let experts = routed_by_sigmoid(config, &base)?;
    let family = config.string("model_type")?.unwrap_or("deepseek_v3");
    latent(config, &base, family, (experts, 3))
}

/// A network of latent attention.
fn latent(
    config: &Config,
    base: &Base,
    family: &str,
    (experts, dense): (ExpertsSpec, usize),
) -> Result<TransformerSpec, LoadError> {
    if config.bool("attention_bias")? == Some(true) {
        return Err(config.unsupported("attention_bias", true, "latents without biases are known"));
    }
    let shape = LatentShape {
        heads: config.required("num_attention_heads", HEADS_MAX)?,
        query_rank: config.count("q_lora_rank", WIDTH_MAX)?,
        rank: config.required("kv_lora_rank", WIDTH_MAX)?,
        nope_dim: config.required("qk_nope_head_dim", HEAD_DIM_MAX)?,
        rope_dim: config.required("qk_rope_head_dim", HEAD_DIM_MAX)?,
        value_dim: config.required("v_head_dim", HEAD_DIM_MAX)?,
        split_up: false,
    };
    // Interleaved pairs, unless the setting says halves; DeepSeek's own files have no setting.
    let kind = match config.bool("rope_interleave")?.unwrap_or(true) {
        true => RopeKind::Interleaved,
        false => RopeKind::Neox,
    };
    let (rope, settings) = rope(config, (kind, shape.rope_dim), (1e4, base.context))?;
    let mut scale = 1.0 / (shape.query_dim() as f32).sqrt();
    if let (Some(all_dim), Some(factor)) = (settings.f32("mscale_all_dim")?, settings.positive("factor")?) {
        let magnitude = if all_dim == 0.0 { 1.0 } else { yarn_magnitude(factor, all_dim) };
        scale *= magnitude * magnitude;
    }
    let attention = AttentionSpec {
        projection: Projection::Latent(shape),
        scale,
        ..AttentionSpec::causal(HeadShape { heads: shape.heads, kv_heads: 1, head_dim: shape.query_dim() })
    };
    let mlp = after_dense(config, base, dense, experts)?;
    base.spec(config, family, (rope, 1e-6), |layer| (attention.clone(), mlp(layer)))
}

fn gpt_oss(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    for (key, known) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if let Some(value) = config.f32(key)?.filter(|&value| value != known) {
            return Err(config.unsupported(key, value, format!("{known} is known")));
        }
    }
    let heads = base.heads(config)?;
    let window = config.count("sliding_window", CONTEXT_TOKENS_MAX)?.map(|window| window as u32);
    let windows = match config.get("layer_types") {
        Some(types) => windows_by_type(config, types, window, base.layers)?,
        None => (0..base.layers).map(|layer| window.filter(|_| layer % 2 == 0)).collect(),
    };
    let experts = ExpertsSpec {
        activation: Activation::ClampedSwish,
        router_bias: true,
        expert_bias: true,
        ..ExpertsSpec::softmax(
            config.required("num_local_experts", EXPERTS_MAX)?,
            config.required("num_experts_per_tok", EXPERTS_MAX)?,
            config.required("intermediate_size", WIDTH_MAX)?,
            true,
        )
    };
    let biased = config.bool("attention_bias")?.unwrap_or(true);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (150_000.0, base.context))?;
    base.spec(config, "gpt_oss", (rope, 1e-5), |layer| {
        let attention = AttentionSpec {
            mask: Mask::Causal { window: windows[layer] },
            qkv_bias: biased,
            output_bias: biased,
            sinks: true,
            ..AttentionSpec::causal(heads)
        };
        (attention, MlpSpec::Experts(experts))
    })
}

fn qwen2_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    if config.bool("use_sliding_window")? == Some(true) {
        return Err(config.unsupported("use_sliding_window", true, "windows of this family are not known"));
    }
    let heads = base.heads(config)?;
    let experts = ExpertsSpec {
        activation: base.activation,
        shared: Some(SharedExpert {
            ffn: config.required("shared_expert_intermediate_size", WIDTH_MAX)?,
            gate: true,
        }),
        ..ExpertsSpec::softmax(
            config.required("num_experts", EXPERTS_MAX)?,
            config.required("num_experts_per_tok", EXPERTS_MAX)?,
            config.required("moe_intermediate_size", WIDTH_MAX)?,
            config.bool("norm_topk_prob")?.unwrap_or(false),
        )
    };
    let sparse = sparse_layers(config, base.layers)?;
    let ffn = if sparse.contains(&false) { config.required("intermediate_size", WIDTH_MAX)? } else { 0 };
    let qkv_bias = config.bool("qkv_bias")?.unwrap_or(true);
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    base.spec(config, "qwen2_moe", (rope, 1e-6), |layer| {
        let attention = AttentionSpec { qkv_bias, ..AttentionSpec::causal(heads) };
        let mlp = match sparse[layer] {
            true => MlpSpec::Experts(experts),
            false => MlpSpec::gated(ffn, base.activation),
        };
        (attention, mlp)
    })
}

fn glm4_moe(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let (qkv_bias, normed) =
        (config.bool("attention_bias")?.unwrap_or(false), config.bool("use_qk_norm")?.unwrap_or(false));
    let dim = turned(config, heads.head_dim, 0.5)?;
    let (rope, _) = rope(config, (RopeKind::Neox, dim), (1e4, base.context))?;
    let mlp = after_dense(config, &base, 1, routed_by_sigmoid(config, &base)?)?;
    base.spec(config, "glm4_moe", (rope, 1e-5), |layer| {
        let qk_norm = if normed { QkNorm::Heads } else { QkNorm::None };
        (AttentionSpec { qkv_bias, qk_norm, ..AttentionSpec::causal(heads) }, mlp(layer))
    })
}

fn dots1(config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    let heads = base.heads(config)?;
    let biased = config.bool("attention_bias")?.unwrap_or(false);
    let types = config.get("layer_types").and_then(Value::as_array);
    if types.is_some_and(|types| types.iter().any(|of| of != "full_attention")) {
        return Err(config.unsupported(
            "layer_types",
            "sliding_attention",
            "windows of this family are not known",
        ));
    }
    let (rope, _) = rope(config, (RopeKind::Neox, heads.head_dim), (1e4, base.context))?;
    let normalized = config.bool("norm_topk_prob")?.unwrap_or(false);
    let experts = ExpertsSpec { normalized, ..routed_by_sigmoid(config, &base)? };
    let mlp = after_dense(config, &base, 0, experts)?;
    base.spec(config, "dots1", (rope, 1e-6), |layer| {
        let attention = AttentionSpec {
            qkv_bias: biased,
            output_bias: biased,
            qk_norm: QkNorm::Heads,
            ..AttentionSpec::causal(heads)
        };
        (attention, mlp(layer))
    })
}
