//! Nemotron-H: Mamba 2's states, few attention layers without rotation, and MLPs or mixtures after some of them, which
//! its files number as separate layers.

use hanzo_engine_kernels::{Activation, ExpertGroups, ExpertScoring, HeadShape, StateRule, StateShape};
use serde_json::Value;

use super::hybrids::refuse_true;
use super::or;
use crate::error::LoadError;
use crate::limits::{
    CONTEXT_TOKENS_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX,
    WIDTH_MAX,
};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, ExpertsSpec, HeadSpec, LayerSpec, MlpSpec, NormKind, NormOrder,
    NormSpec, SharedExpert, StateSpec, TransformerSpec,
};

/// Kind of one of the file's layers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::spec) enum Half {
    State,
    Attention,
    Dense,
    Experts,
}

/// Joins the file's layers to layers of both sublayers: a state or attention, and the MLP that follows it, if any.
///
/// # Errors
/// The number of the file's layer that does not follow a first sublayer.
pub(in crate::spec) fn joined(halves: &[Half]) -> Result<Vec<(Half, Option<Half>)>, usize> {
    let mut layers: Vec<(Half, Option<Half>)> = Vec::new();
    for (number, &half) in halves.iter().enumerate() {
        match (half, layers.last_mut()) {
            (Half::State | Half::Attention, _) => layers.push((half, None)),
            (_, Some((_, mlp @ None))) => *mlp = Some(half),
            _ => return Err(number),
        }
    }
    Ok(layers)
}

/// An ungated MLP with squared ReLU.
pub(in crate::spec) fn dense(ffn: usize) -> MlpSpec {
    let activation = Activation::ReluSquared;
    MlpSpec::Dense(DenseSpec { ffn, activation, gated: false, up_bias: false, down_bias: false })
}

const PATTERN: &str = "hybrid_override_pattern";

fn halves(config: &Config) -> Result<Vec<Half>, LoadError> {
    let half = |of: &str| match of {
        "M" | "mamba" | "linear_attention" => Some(Half::State),
        "*" | "attention" | "full_attention" => Some(Half::Attention),
        "-" | "mlp" => Some(Half::Dense),
        "E" | "moe" => Some(Half::Experts),
        _ => None,
    };
    let unknown =
        |key: &str, of: &str| config.unsupported(key, of, "states, attention, MLPs and mixtures are known");
    let halves: Vec<Half> = match config.string(PATTERN)? {
        Some(pattern) => {
            let marks = pattern.char_indices().map(|(at, mark)| &pattern[at..at + mark.len_utf8()]);
            marks.map(|mark| half(mark).ok_or_else(|| unknown(PATTERN, mark))).collect::<Result<_, _>>()?
        }
        None => {
            const TYPES: &str = "layers_block_type";
            let types =
                config.typed(TYPES, "a list", Value::as_array)?.ok_or_else(|| config.missing(PATTERN))?;
            let of = |value: &Value| {
                value.as_str().and_then(half).ok_or_else(|| unknown(TYPES, &value.to_string()))
            };
            types.iter().map(of).collect::<Result<_, _>>()?
        }
    };
    if halves.is_empty() || halves.len() > LAYERS_MAX {
        return Err(
            config.corrupt(PATTERN, format!("{} layers; 1 to {LAYERS_MAX} are possible", halves.len()))
        );
    }
    Ok(halves)
}

pub(super) fn nemotron(config: &Config) -> Result<TransformerSpec, LoadError> {
    refuse_true(config, &["attention_bias", "mamba_proj_bias", "use_bias"])?;
    for (key, known) in [("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")] {
        if let Some(value) = config.string(key)?.filter(|&value| value != known) {
            return Err(config.unsupported(key, value, format!("{known} is known")));
        }
    }
    if let Some(latent) = config.count("moe_latent_size", WIDTH_MAX)? {
        return Err(config.unsupported(
            "moe_latent_size",
            latent,
            "experts that read hidden states are known",
        ));
    }
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    let layers = joined(&halves(config)?).map_err(|number| {
        config.unsupported(PATTERN, number, "an MLP follows what attends or keeps a state, and no other MLP")
    })?;
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let head_dim = match config.count("head_dim", HEAD_DIM_MAX)? {
        Some(head_dim) => head_dim,
        None => config.required("attention_head_dim", HEAD_DIM_MAX)?,
    };
    let heads = HeadShape { heads, kv_heads: config.required("num_key_value_heads", HEADS_MAX)?, head_dim };
    let eps = config.positive("layer_norm_epsilon")?.unwrap_or(1e-5);
    let shape = StateShape {
        rule: StateRule::Ssd,
        key_heads: config.required("n_groups", HEADS_MAX)?,
        value_heads: config.required("mamba_num_heads", HEADS_MAX)?,
        key_dim: config.required("ssm_state_size", HEAD_DIM_MAX)?,
        value_dim: config.required("mamba_head_dim", HEAD_DIM_MAX)?,
        taps: config.required("conv_kernel", StateShape::TAPS_MAX)?,
        tiled: false,
    };
    let state = StateSpec::ssd(shape, config.bool("use_conv_bias")?.unwrap_or(true), eps);
    let mlps = || layers.iter().filter_map(|&(_, mlp)| mlp);
    let ffn = if mlps().any(|mlp| mlp == Half::Dense) {
        config.required("intermediate_size", WIDTH_MAX)?
    } else {
        0
    };
    let experts = if mlps().any(|mlp| mlp == Half::Experts) { Some(experts(config)?) } else { None };
    let layers = layers.iter().map(|&(first, mlp)| LayerSpec {
        order: NormOrder::Pre,
        attention: match first {
            Half::State => AttentionSpec::of_state(state),
            _ => AttentionSpec { rope: None, ..AttentionSpec::causal(heads) },
        },
        mlp: match (mlp, experts) {
            (None, _) => MlpSpec::None,
            (Some(Half::Experts), Some(experts)) => MlpSpec::Experts(experts),
            _ => dense(ffn),
        },
        residual_scale: 1.0,
    });
    let sizes = [config.required("vocab_size", VOCAB_MAX)?, hidden];
    let context = config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps };
    Ok(TransformerSpec {
        head: HeadSpec::plain(config.bool("tie_word_embeddings")?.unwrap_or(false)),
        ..TransformerSpec::bare("nemotron_h", sizes, layers.collect(), norm, context)
    })
}

fn experts(config: &Config) -> Result<ExpertsSpec, LoadError> {
    let groups = or(config, "n_group", EXPERT_GROUPS_MAX, 1)?;
    let used = or(config, "topk_group", EXPERT_GROUPS_MAX, 1)?;
    Ok(ExpertsSpec {
        activation: Activation::ReluSquared,
        gated: false,
        scoring: ExpertScoring::Sigmoid,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        correction_bias: true,
        groups: (groups > 1).then_some(ExpertGroups { count: groups, used, best: 2 }),
        // A single one, whatever number the settings give.
        shared: Some(SharedExpert {
            ffn: config.required("moe_shared_expert_intermediate_size", WIDTH_MAX)?,
            gate: false,
        }),
        ..ExpertsSpec::softmax(
            config.required("n_routed_experts", EXPERTS_MAX)?,
            config.required("num_experts_per_tok", EXPERTS_MAX)?,
            config.required("moe_intermediate_size", WIDTH_MAX)?,
            config.bool("norm_topk_prob")?.unwrap_or(true),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_joined_where_an_mlp_follows() {
        use Half::{Attention, Dense, Experts, State};
        let layers = joined(&[State, Dense, State, Attention, Experts]);
        assert!(layers == Ok(vec![(State, Some(Dense)), (State, None), (Attention, Some(Experts))]));
        assert!(joined(&[Dense, State]) == Err(0) && joined(&[State, Dense, Dense]) == Err(2));
    }
}
