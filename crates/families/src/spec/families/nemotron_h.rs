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
    ..Architecture::HYBRID
};

pub(super) const NEMOTRON_H: Family = Family {
    title: "Nemotron-H, Nemotron Nano 2 and 3",
    hugging_face: &[ModelType {
        name: "nemotron_h",
        class: "NemotronHForCausalLM",
        names: &NAMES,
        predicts_more: true,
        spec: Some(spec),
        settle,
        eps: ("layer_norm_epsilon", 1e-5),
        ..ModelType::OWN
    }],
    gguf: &[ARCHITECTURE, Architecture { name: "nemotron_h_moe", ..ARCHITECTURE }],
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

/// Kinds of the file's layers; in GGUF, the widths of their MLPs.
const PATTERN: Setting<usize> = count("hybrid_override_pattern", "feed_forward_length", 0);

fn halves(config: &Config) -> Result<Vec<Half>, LoadError> {
    const MARKS: &str = PATTERN.hugging_face;
    let half = |of: &str| match of {
        "M" | "mamba" | "linear_attention" => Some(Half::State),
        "*" | "attention" | "full_attention" => Some(Half::Attention),
        "-" | "mlp" => Some(Half::Dense),
        "E" | "moe" => Some(Half::Experts),
        _ => None,
    };
    let unknown =
        |key: &str, of: &str| config.unsupported(key, of, "states, attention, MLPs and mixtures are known");
    let halves: Vec<Half> = match config.string(MARKS)? {
        Some(pattern) => {
            let marks = pattern.char_indices().map(|(at, mark)| &pattern[at..at + mark.len_utf8()]);
            marks.map(|mark| half(mark).ok_or_else(|| unknown(MARKS, mark))).collect::<Result<_, _>>()?
        }
        None => {
            const TYPES: &str = "layers_block_type";
            let types =
                config.typed(TYPES, "a list", Value::as_array)?.ok_or_else(|| config.missing(MARKS))?;
            let of = |value: &Value| {
                value.as_str().and_then(half).ok_or_else(|| unknown(TYPES, &value.to_string()))
            };
            types.iter().map(of).collect::<Result<_, _>>()?
        }
    };
    if halves.is_empty() || halves.len() > LAYERS_MAX {
        return Err(config.corrupt(MARKS, format!("{} layers; 1 to {LAYERS_MAX} are possible", halves.len())));
    }
    Ok(halves)
}

fn settle(config: &mut Config) -> Result<(), LoadError> {
    refuse_true(config, &["attention_bias", "mamba_proj_bias", "use_bias"])?;
    refuse_unless_named(config, "mlp_hidden_act", "relu2")?;
    refuse_unless_named(config, "mamba_hidden_act", "silu")?;
    if let Some(latent) = config.count("moe_latent_size", WIDTH_MAX)? {
        return Err(config.unsupported(
            "moe_latent_size",
            latent,
            "experts that read hidden states are known",
        ));
    }
    // The list of layers says how many there are.
    config.set("num_hidden_layers", halves(config)?.len().into());
    Ok(())
}

const STATE: StateSettings = StateSettings {
    key_heads: count("n_groups", "ssm.group_count", HEADS_MAX),
    value_heads: count("mamba_num_heads", "ssm.time_step_rank", HEADS_MAX),
    key_dim: count("ssm_state_size", "ssm.state_size", HEAD_DIM_MAX),
    value_dim: count("mamba_head_dim", "", HEAD_DIM_MAX),
    expand: count("", "", 0),
    taps: count("conv_kernel", "ssm.conv_kernel", StateShape::TAPS_MAX),
    ..MAMBA_ALONE
};
const NORMALIZED: Setting<bool> = flag("norm_topk_prob", "expert_weights_norm").or_of_class(true);
const SHARED: Setting<usize> =
    count("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", WIDTH_MAX);

fn spec(base: &Base<'_>) -> Result<TransformerSpec, LoadError> {
    let (halves, heads, ffn) = match base.file {
        SettingsFile::HuggingFace(config) => {
            let halves = halves(config)?;
            let ffn = base.ffn(halves.contains(&Half::Dense))?;
            (halves, heads(config)?, ffn)
        }
        SettingsFile::Gguf(keys) => of_lists(base, keys)?,
    };
    let layers = joined(&halves).map_err(|number| {
        let reason = "an MLP follows what attends or keeps a state, and no other MLP";
        base.file.unsupported(&PATTERN, number, reason)
    })?;
    let state = STATE.ssd(base, halves.iter().position(|&half| half == Half::State).unwrap_or(0))?;
    let experts = if halves.contains(&Half::Experts) { Some(experts(base)?) } else { None };
    let layer = |index: usize| {
        let (first, mlp) = layers[index];
        let attention = match first {
            Half::State => AttentionSpec::of_state(state),
            _ => AttentionSpec { rope: None, ..AttentionSpec::causal(heads) },
        };
        let mlp = match (mlp, experts) {
            (None, _) => MlpSpec::None,
            (Some(Half::Experts), Some(experts)) => MlpSpec::Experts(experts),
            _ => dense(ffn),
        };
        (attention, mlp)
    };
    Base { layers: layers.len(), ..*base }.spec(None, layer)
}

fn heads(config: &Config) -> Result<HeadShape, LoadError> {
    Ok(HeadShape {
        heads: config.required("num_attention_heads", HEADS_MAX)?,
        kv_heads: config.required("num_key_value_heads", HEADS_MAX)?,
        head_dim: match config.count("head_dim", HEAD_DIM_MAX)? {
            Some(head_dim) => head_dim,
            None => config.required("attention_head_dim", HEAD_DIM_MAX)?,
        },
    })
}

/// Attention, states and MLPs from lists that number them as separate layers, with the heads and the width of MLPs.
fn of_lists(base: &Base<'_>, keys: &Keys<'_>) -> Result<(Vec<Half>, HeadShape, usize), LoadError> {
    let [_, all] = keys.layers()?;
    let (heads, without_heads) = hybrid_heads(keys, base.hidden)?;
    let widths = keys.metadata.integers(&keys.key(PATTERN.gguf))?;
    let Some(widths) = widths.filter(|widths| widths.len() == all) else {
        return Err(keys.unsupported(PATTERN.gguf, "another list", "a number for each layer is known"));
    };
    let sparse = base.file.whole(&ROUTED_EXPERTS[0])? > 0;
    let half = |(&width, &without): (&i64, &bool)| match (width, without) {
        (0, true) => Half::State,
        (0, false) => Half::Attention,
        _ if sparse => Half::Experts,
        _ => Half::Dense,
    };
    let halves = widths.iter().zip(&without_heads).map(half).take(base.layers).collect();
    let ffn = widths.iter().copied().find(|&width| width != 0).unwrap_or(0);
    let ffn = usize::try_from(ffn).ok().filter(|&ffn| ffn <= WIDTH_MAX);
    let alike = widths.iter().all(|&width| width == 0 || usize::try_from(width).ok() == ffn);
    match ffn.filter(|_| alike) {
        Some(ffn) => Ok((halves, heads, ffn)),
        None => Err(keys.unsupported(PATTERN.gguf, format!("{widths:?}"), "all MLPs must have the same")),
    }
}

fn experts(base: &Base<'_>) -> Result<ExpertsSpec, LoadError> {
    let file = base.file;
    if let SettingsFile::Gguf(keys) = file
        && keys.scoring()? == Some(ExpertScoring::Softmax)
    {
        return Err(keys.unsupported("expert_gating_func", 1, "2 is known"));
    }
    Ok(ExpertsSpec {
        activation: Activation::ReluSquared,
        gated: false,
        scoring: ExpertScoring::Sigmoid,
        scale: file.factor(&EXPERTS_SCALE)?,
        correction_bias: true,
        groups: groups(file, 2)?,
        // A single one, whatever number the settings give.
        shared: Some(SharedExpert { ffn: file.required(&SHARED)?, gate: false }),
        ..softmax(base, &ROUTED_EXPERTS, file.bool(&NORMALIZED)?.unwrap_or(false))?
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
