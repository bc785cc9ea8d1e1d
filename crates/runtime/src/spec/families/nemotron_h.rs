//! Nemotron-H: Mamba 2's states, few attention layers without rotation, and MLPs or mixtures after some of them, which
//! its files number as separate layers.

use super::*;

/// The transformers library's NemotronH class.
pub(super) const NAMES: Names = Names {
    prefix: "backbone.",
    token_embedding: "embeddings",
    final_norm: "norm_f",
    halves_apart: true,
    query: "mixer.q_proj",
    key: "mixer.k_proj",
    value: "mixer.v_proj",
    state: StateNames {
        input: "mixer.in_proj[input].",
        gate: "mixer.in_proj[gate].",
        step: "mixer.in_proj[step].",
        step_bias: "mixer.dt_bias",
        convolution: "mixer.conv1d.",
        decay: "mixer.A_log",
        skip: "mixer.D",
        norm: "mixer.norm.weight",
        output: "mixer.out_proj.",
        stacks: &[("mixer.in_proj.weight", StateStack::GateInputStep)],
        ..StateNames::NONE
    },
    attention_output: "mixer.o_proj",
    attention_norm: "norm",
    up: "mixer.up_proj",
    down: "mixer.down_proj",
    router: "mixer.gate",
    router_bias: "mixer.gate.e_score_correction_bias",
    experts: ExpertNames {
        up: "mixer.experts.{}.up_proj.weight",
        down: "mixer.experts.{}.down_proj.weight",
        ..ExpertNames::NONE
    },
    shared_up: "mixer.shared_experts.up_proj",
    shared_down: "mixer.shared_experts.down_proj",
    mlp_norm: "mlp_norm",
    ..Names::HUGGING_FACE
};

const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h",
    names: &Names { halves_apart: true, ..Names::GGUF_MAMBA },
    permuted: true,
    predicts_more: true,
    read: |of, keys| from_metadata(of, keys, false),
    ..Architecture::HYBRID
};

pub(super) const NEMOTRON_H: Family = Family {
    title: "Nemotron-H, Nemotron Nano 2 and 3",
    hugging_face: &[ModelType {
        name: "nemotron_h",
        class: "NemotronHForCausalLM",
        names: &NAMES,
        predicts_more: true,
        read: from_settings,
        eps: ("layer_norm_epsilon", 1e-5),
        ..ModelType::OWN
    }],
    gguf: &[
        ARCHITECTURE,
        Architecture {
            name: "nemotron_h_moe",
            read: |of, keys| from_metadata(of, keys, true),
            ..ARCHITECTURE
        },
    ],
    goldens: &[both("states/nemotron-h"), both("states/nemotron-h-moe")],
};

/// Kind of one of the file's layers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    State,
    Attention,
    Dense,
    Experts,
}

/// Joins the file's layers to layers of both sublayers: a state or attention, and the MLP that follows it, if any.
///
/// # Errors
/// The number of the file's layer that does not follow a first sublayer.
fn joined(halves: &[Half]) -> Result<Vec<(Half, Option<Half>)>, usize> {
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
fn dense(ffn: usize) -> MlpSpec {
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

fn from_settings(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
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
    let eps = config.positive(of.eps.0)?.unwrap_or(of.eps.1);
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
    let layers = layers_of(&layers, (heads, state), (ffn, experts));
    let sizes = [config.required("vocab_size", VOCAB_MAX)?, hidden];
    let context = config.required("max_position_embeddings", CONTEXT_TOKENS_MAX)?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps };
    Ok(TransformerSpec {
        head: HeadSpec::plain(config.bool("tie_word_embeddings")?.unwrap_or(false)),
        ..TransformerSpec::bare(of.name, sizes, layers, norm, context)
    })
}

/// A network's layers of these sublayers.
fn layers_of(
    layers: &[(Half, Option<Half>)],
    (heads, state): (HeadShape, StateSpec),
    (ffn, experts): (usize, Option<ExpertsSpec>),
) -> Vec<LayerSpec> {
    let layer = |&(first, mlp): &(Half, Option<Half>)| LayerSpec {
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
    };
    layers.iter().map(layer).collect()
}

fn experts(config: &Config) -> Result<ExpertsSpec, LoadError> {
    Ok(ExpertsSpec {
        activation: Activation::ReluSquared,
        gated: false,
        scoring: ExpertScoring::Sigmoid,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        correction_bias: true,
        groups: groups(config)?,
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

const FFN: &str = "feed_forward_length";

/// Reads a file whose lists number attention, states and MLPs as separate layers.
fn from_metadata(of: &Architecture, keys: &Keys<'_>, moe: bool) -> Result<TransformerSpec, LoadError> {
    let [vocab, hidden] = [keys.vocab()?, keys.required("embedding_length", WIDTH_MAX)?];
    let [count, all] = keys.layers()?;
    let (heads, without_heads) = hybrid_heads(keys, hidden, all)?;
    let widths = keys.metadata.integers(&keys.key(FFN))?;
    let Some(widths) = widths.filter(|widths| widths.len() == all) else {
        return Err(keys.unsupported(FFN, "another list", "a number for each layer is known"));
    };
    let half = |(&width, &without): (&i64, &bool)| match (width, without) {
        (0, true) => Half::State,
        (0, false) => Half::Attention,
        _ if moe => Half::Experts,
        _ => Half::Dense,
    };
    let halves: Vec<Half> = widths.iter().zip(&without_heads).map(half).take(count).collect();
    let layers = joined(&halves).map_err(|number| {
        keys.unsupported(FFN, number, "an MLP follows what attends or keeps a state, and no other MLP")
    })?;
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: keys.epsilon()? };
    let first = halves.iter().position(|&half| half == Half::State).unwrap_or(0);
    let state = metadata::mamba(keys, norm.eps, first)?;
    let experts = if moe { Some(experts_of_metadata(keys)?) } else { None };
    let ffn = widths.iter().copied().find(|&width| width != 0).unwrap_or(0);
    let ffn = usize::try_from(ffn).ok().filter(|&ffn| ffn <= WIDTH_MAX);
    let alike = widths.iter().all(|&width| width == 0 || usize::try_from(width).ok() == ffn);
    let Some(ffn) = ffn.filter(|_| alike) else {
        return Err(keys.unsupported(FFN, format!("{widths:?}"), "all MLPs must have the same"));
    };
    let layers = layers_of(&layers, (heads, state), (ffn, experts));
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    Ok(TransformerSpec {
        head: HeadSpec::plain(!keys.has(Part::Head.weight())),
        ..TransformerSpec::bare(of.name, [vocab, hidden], layers, norm, context)
    })
}

fn experts_of_metadata(keys: &Keys<'_>) -> Result<ExpertsSpec, LoadError> {
    if let Some(other) = keys.whole("expert_gating_func", 4)?.filter(|&func| func != 0 && func != 2) {
        return Err(keys.unsupported("expert_gating_func", other, "2 is known"));
    }
    Ok(ExpertsSpec {
        activation: Activation::ReluSquared,
        gated: false,
        scoring: ExpertScoring::Sigmoid,
        scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0),
        correction_bias: true,
        groups: metadata::groups(keys, 2)?,
        shared: Some(SharedExpert {
            ffn: keys.required("expert_shared_feed_forward_length", WIDTH_MAX)?,
            gate: false,
        }),
        ..ExpertsSpec::softmax(
            keys.required("expert_count", EXPERTS_MAX)?,
            keys.required("expert_used_count", EXPERTS_MAX)?,
            keys.required("expert_feed_forward_length", WIDTH_MAX)?,
            keys.metadata.bool(&keys.key("expert_weights_norm"))?.unwrap_or(false),
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
