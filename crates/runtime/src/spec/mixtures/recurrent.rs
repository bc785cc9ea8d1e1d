//! Decoders with recurrent states in some layers: Qwen3-Next and Qwen3.5, three of whose four layers are gated delta
//! nets; the others have attention with a gate on its output.

use hanzo_engine_kernels::{RopeKind, StateRule, StateShape};
use serde_json::Value;

use super::{Base, Read, rope, turned};
use crate::error::LoadError;
use crate::limits::{EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::hf::sparse_layers;
use crate::spec::{
    AttentionSpec, Config, ExpertsSpec, MlpSpec, NormKind, NormSpec, QkNorm, SharedExpert, StateSpec,
    TransformerSpec,
};

pub(super) const FAMILIES: &[(&str, &str, Read)] = &[
    ("qwen3_next", "Qwen3NextForCausalLM", |config| qwen(config, Mlps::Some)),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", |config| qwen(config, Mlps::Dense)),
    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", |config| qwen(config, Mlps::Experts)),
];

/// Layers that are mixtures of experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mlps {
    Dense,
    Experts,
    /// As `decoder_sparse_step` and `mlp_only_layers` say.
    Some,
}

fn qwen(config: &Config, mlps: Mlps) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(config)?;
    for (key, known) in [("attention_bias", false), ("attn_output_gate", true)] {
        if let Some(value) = config.bool(key)?.filter(|&value| value != known) {
            return Err(config.unsupported(key, value, format!("of this family only {known} is known")));
        }
    }
    let heads = base.heads(config)?;
    let shape = StateShape {
        rule: StateRule::Delta,
        key_heads: config.required("linear_num_key_heads", HEADS_MAX)?,
        value_heads: config.required("linear_num_value_heads", HEADS_MAX)?,
        key_dim: config.required("linear_key_head_dim", HEAD_DIM_MAX)?,
        value_dim: config.required("linear_value_head_dim", HEAD_DIM_MAX)?,
        taps: config.required("linear_conv_kernel_dim", StateShape::TAPS_MAX)?,
        tiled: false,
    };
    let recurs = linear_layers(config, base.layers)?;
    let sparse = match mlps {
        Mlps::Dense => vec![false; base.layers],
        Mlps::Experts => vec![true; base.layers],
        Mlps::Some => sparse_layers(config, base.layers)?,
    };
    let ffn = if sparse.contains(&false) { config.required("intermediate_size", WIDTH_MAX)? } else { 0 };
    let experts = match sparse.contains(&true) {
        true => Some(experts(config, &base, mlps)?),
        false => None,
    };
    let dim = turned(config, heads.head_dim, 0.25)?;
    let (rope, _) = rope(config, (RopeKind::Neox, dim), (1e4, base.context))?;
    let family = config.string("model_type")?.unwrap_or("qwen3_next");
    let eps = config.positive("rms_norm_eps")?.unwrap_or(1e-6);
    let spec = base.spec(config, family, (rope, eps), |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(StateSpec::delta(shape, eps)),
            false => {
                AttentionSpec { output_gate: true, qk_norm: QkNorm::Heads, ..AttentionSpec::causal(heads) }
            }
        };
        let mlp = match experts {
            Some(experts) if sparse[layer] => MlpSpec::Experts(experts),
            _ => MlpSpec::gated(ffn, base.activation),
        };
        (attention, mlp)
    })?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: true }, ..spec.norm };
    Ok(TransformerSpec { norm, ..spec })
}

fn experts(config: &Config, base: &Base, mlps: Mlps) -> Result<ExpertsSpec, LoadError> {
    let normalized = match mlps {
        // The class reads no such setting.
        Mlps::Experts => true,
        _ => config.bool("norm_topk_prob")?.unwrap_or(true),
    };
    let ffn = config.required("shared_expert_intermediate_size", WIDTH_MAX)?;
    Ok(ExpertsSpec {
        activation: base.activation,
        shared: Some(SharedExpert { ffn, gate: true }),
        ..ExpertsSpec::softmax(
            config.required("num_experts", EXPERTS_MAX)?,
            config.required("num_experts_per_tok", EXPERTS_MAX)?,
            config.required("moe_intermediate_size", WIDTH_MAX)?,
            normalized,
        )
    })
}

/// Layers with recurrent states.
fn linear_layers(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    const TYPES: &str = "layer_types";
    let Some(types) = config.typed(TYPES, "a list", Value::as_array)? else {
        let interval = config.count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
        return Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect());
    };
    if types.len() != layers {
        return Err(config.corrupt(TYPES, format!("{} types for {layers} layers", types.len())));
    }
    let recurs = |of: &Value| match of.as_str() {
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(config.unsupported(TYPES, of, "linear_attention and full_attention are known")),
    };
    types.iter().map(recurs).collect()
}
