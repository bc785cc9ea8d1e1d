//! Gemma 3's text model as an encoder (EmbeddingGemma): attention to both sides, RMS norms around both halves, two
//! rotary bases, local layers between global ones.

use hanzo_engine_ops::{HeadShape, RopeKind};
use serde_json::Value;

use super::{Plan, SIZE_KEYS, SizeKeys, activation, epsilon, gated, post_norm, refuse, whole_attention};
use crate::error::LoadError;
use crate::head::HeadInput;
use crate::limits::{CONTEXT_TOKENS_MAX, HEADS_MAX, LAYERS_MAX};
use crate::spec::{
    AttentionSpec, Config, Mask, Names, NormKind, NormOrder, NormSpec, QkNorm, RopeScaling, RopeSpec,
    TransformerSpec,
};

const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";
const GLOBAL_ROPE: usize = 0;
const LOCAL_ROPE: usize = 1;

pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
    refuse(config, &["attn_logit_softcapping", "final_logit_softcapping"])?;
    let activation = activation(config, "hidden_activation", "gelu_pytorch_tanh")?;
    let eps = epsilon(config, "rms_norm_eps", 1e-6)?;
    let keys = SizeKeys { head_dim: Some(("head_dim", 256)), ..SIZE_KEYS };
    let spec = post_norm(config, &keys, eps, gated(activation, false))?;
    let bias = config.bool("attention_bias")?.unwrap_or(false);
    let shape = spec.heads();
    let kv_heads = config.count("num_key_value_heads", HEADS_MAX)?.unwrap_or(shape.heads);
    let [global, local] = ropes(config, shape.head_dim)?;
    let masks = masks(config, spec.layers.len())?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: QkNorm::Heads,
        scale: 1.0 / config.positive("query_pre_attn_scalar")?.unwrap_or(256.0).sqrt(),
        ..whole_attention(HeadShape { kv_heads, ..shape })
    };
    let spec = TransformerSpec {
        embedding_scale: (spec.hidden as f32).sqrt(),
        embedding_norm: false,
        norm: NormSpec { kind: NormKind::Rms { from_one: true }, eps },
        ropes: vec![global, local],
        ..spec.with_layers(|index, layer| {
            let (mask, rope) = masks[index];
            layer.order = NormOrder::Sandwich;
            layer.attention = AttentionSpec { mask, rope: Some(rope), ..attention.clone() };
        })
    };
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: Names::GEMMA,
        classifier: super::ClassifierPlan { input: HeadInput::Cls, layers: Vec::new() },
        masked_lm: None,
        heads: &["lm_head."],
    })
}

/// What each layer sees and which rope it turns by: every sixth is global unless settings say otherwise.
fn masks(config: &Config, count: usize) -> Result<Vec<(Mask, usize)>, LoadError> {
    const TYPES: &str = "layer_types";
    let window = config.required("sliding_window", CONTEXT_TOKENS_MAX)? as u32;
    let global = (Mask::Whole { reach: None }, GLOBAL_ROPE);
    let local = (Mask::Whole { reach: Some(window / 2) }, LOCAL_ROPE);
    let Some(types) = config.typed(TYPES, "a list of layer types", Value::as_array)? else {
        let every = match config.count("sliding_window_pattern", LAYERS_MAX)? {
            Some(every) => every,
            None => config.count("_sliding_window_pattern", LAYERS_MAX)?.unwrap_or(6),
        };
        let of_number = |number: usize| if number.is_multiple_of(every) { global } else { local };
        return Ok((1..=count).map(of_number).collect());
    };
    if types.len() != count {
        return Err(config.corrupt(TYPES, format!("{} types for {count} layers", types.len())));
    }
    let of_type = |value: &Value| match value.as_str() {
        Some(GLOBAL) => Ok(global),
        Some(LOCAL) => Ok(local),
        _ => Err(config.unsupported(TYPES, value, format!("{GLOBAL} and {LOCAL} are known"))),
    };
    types.iter().map(of_type).collect()
}

/// Of global and of local layers, from `rope_parameters` or, in older files, settings of their own.
fn ropes(config: &Config, head_dim: usize) -> Result<[RopeSpec; 2], LoadError> {
    let rope = |base, scaling| RopeSpec {
        kind: RopeKind::Neox,
        base,
        dim: head_dim,
        scaling,
        factors: None,
        magnitude: 1.0,
        axes: None,
        long: None,
    };
    let Some(nested) = config.object("rope_parameters")? else {
        let global = config.positive("rope_theta")?.unwrap_or(1_000_000.0);
        let local = config.positive("rope_local_base_freq")?.unwrap_or(10_000.0);
        let stretched = match config.object("rope_scaling")? {
            Some(settings) => scaling(&settings)?,
            None => RopeScaling::None,
        };
        return Ok([rope(global, stretched), rope(local, RopeScaling::None)]);
    };
    let of_type = |layer_type: &str, default: f32| {
        let Some(settings) = nested.object(layer_type)? else { return Err(nested.missing(layer_type)) };
        Ok(rope(settings.positive("rope_theta")?.unwrap_or(default), scaling(&settings)?))
    };
    Ok([of_type(GLOBAL, 1_000_000.0)?, of_type(LOCAL, 10_000.0)?])
}

fn scaling(settings: &Config) -> Result<RopeScaling, LoadError> {
    const KNOWN: &[&str] = &["rope_theta", "rope_type", "type", "factor"];
    if let Some((key, value)) = settings.settings.iter().find(|(key, _)| !KNOWN.contains(&key.as_str())) {
        return Err(settings.unsupported(key, value, "this build does not know what to do with it"));
    }
    let kind = match settings.string("rope_type")? {
        Some(kind) => kind,
        None => settings.string("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => {
            let factor = settings.positive("factor")?.ok_or_else(|| settings.missing("factor"))?;
            Ok(RopeScaling::Linear { factor })
        }
        other => Err(settings.unsupported("rope_type", other, "default and linear are known")),
    }
}
