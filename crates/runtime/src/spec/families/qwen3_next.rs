//! Qwen3-Next and Qwen 3.5, three of whose four layers are gated delta nets; the others have attention with a gate on
//! its output.

use super::qwen2_moe;
use super::*;

/// The transformers library's Qwen3Next, Qwen3_5 and Qwen3_5Moe classes.
const NAMES: Names = Names {
    state: StateNames {
        query_gate: "self_attn.q_proj[gate].",
        input: "linear_attn.in_proj_qkv.",
        gate: "linear_attn.in_proj_z.",
        beta: "linear_attn.in_proj_b.",
        step: "linear_attn.in_proj_a.",
        step_bias: "linear_attn.dt_bias",
        convolution: "linear_attn.conv1d.",
        decay: "linear_attn.A_log",
        norm: "linear_attn.norm.weight",
        output: "linear_attn.out_proj.",
        stacks: &[
            ("linear_attn.in_proj_qkvz.weight", StateStack::QueryKeyValueGate),
            ("linear_attn.in_proj_ba.weight", StateStack::BetaStep),
        ],
        ..StateNames::NONE
    },
    ..qwen2_moe::NAMES
};

const TYPE: ModelType = ModelType {
    name: "qwen3_next",
    class: "Qwen3NextForCausalLM",
    names: &NAMES,
    predicts_more: true,
    read: |of, config| from_settings(of, config, Mlps::Some),
    norm: NormKind::Rms { from_one: true },
    biases: Choice::NEVER,
    qk_norm: QkNorm::Heads,
    turned: 0.25,
    ..ModelType::OWN
};

const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3next",
    // The second norm stands before the MLP.
    names: &Names { state: StateNames::GGUF, ..Names::GGUF_POST_ATTENTION },
    predicts_more: true,
    reads: &[
        &[
            "attention.recurrent_layers",
            "expert_count",
            "expert_feed_forward_length",
            "expert_shared_feed_forward_length",
            "expert_used_count",
            "full_attention_interval",
            "nextn_predict_layers",
        ],
        STATE_KEYS,
    ],
    read: |of, keys| from_metadata(of, keys, false),
    ..Architecture::DENSE
};

pub(super) const QWEN3_NEXT: Family = Family {
    title: "Qwen3-Next",
    hugging_face: &[TYPE],
    gguf: &[ARCHITECTURE],
    goldens: &[both("states/qwen3-next")],
};

pub(super) const QWEN3_5: Family = Family {
    title: "Qwen 3.5 (text, of `qwen3_5` too)",
    hugging_face: &[ModelType {
        name: "qwen3_5_text",
        class: "Qwen3_5ForCausalLM",
        read: |of, config| from_settings(of, config, Mlps::Dense),
        ..TYPE
    }],
    gguf: &[Architecture { name: "qwen35", read: |of, keys| from_metadata(of, keys, true), ..ARCHITECTURE }],
    goldens: &[both("states/qwen3_5")],
};

pub(super) const QWEN3_5_MOE: Family = Family {
    title: "Qwen 3.5 MoE (text, of `qwen3_5_moe` too)",
    hugging_face: &[ModelType {
        name: "qwen3_5_moe_text",
        class: "Qwen3_5MoeForCausalLM",
        read: |of, config| from_settings(of, config, Mlps::Experts),
        ..TYPE
    }],
    gguf: &[Architecture {
        name: "qwen35moe",
        read: |of, keys| from_metadata(of, keys, true),
        ..ARCHITECTURE
    }],
    goldens: &[both("states/qwen3_5-moe")],
};

/// Layers that are mixtures of experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mlps {
    Dense,
    Experts,
    /// As `decoder_sparse_step` and `mlp_only_layers` say.
    Some,
}

fn from_settings(of: &ModelType, config: &Config, mlps: Mlps) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    refuse_unless(config, "attention_bias", false)?;
    refuse_unless(config, "attn_output_gate", true)?;
    let heads = base.heads()?;
    let shape = StateShape {
        rule: StateRule::Delta,
        key_heads: config.required("linear_num_key_heads", HEADS_MAX)?,
        value_heads: config.required("linear_num_value_heads", HEADS_MAX)?,
        key_dim: config.required("linear_key_head_dim", HEAD_DIM_MAX)?,
        value_dim: config.required("linear_value_head_dim", HEAD_DIM_MAX)?,
        taps: config.required("linear_conv_kernel_dim", StateShape::TAPS_MAX)?,
        tiled: false,
    };
    let types: (&[&str], &[&str]) = (&["linear_attention"], &["full_attention"]);
    let recurs = match layers_by_type(config, "layer_types", base.layers, types)? {
        Some(recurs) => recurs,
        None => {
            let interval = config.count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
            (1..=base.layers).map(|number| !number.is_multiple_of(interval)).collect()
        }
    };
    let sparse = match mlps {
        Mlps::Dense => vec![false; base.layers],
        Mlps::Experts => vec![true; base.layers],
        Mlps::Some => sparse_layers(config, base.layers)?,
    };
    let ffn = base.ffn(sparse.contains(&false))?;
    let experts = match sparse.contains(&true) {
        true => Some(experts(&base, mlps)?),
        false => None,
    };
    let attention = AttentionSpec { output_gate: true, ..base.attention(heads)? };
    let state = StateSpec::delta(shape, base.eps()?);
    let (rope, _) = base.rope(base.turned(heads.head_dim)?)?;
    base.spec(rope, |layer| {
        let attention = match recurs[layer] {
            true => AttentionSpec::of_state(state),
            false => attention.clone(),
        };
        let mlp = match experts {
            Some(experts) if sparse[layer] => MlpSpec::Experts(experts),
            _ => MlpSpec::gated(ffn, base.activation),
        };
        (attention, mlp)
    })
}

fn experts(base: &Base<'_>, mlps: Mlps) -> Result<ExpertsSpec, LoadError> {
    let normalized = match mlps {
        // The class reads no such setting.
        Mlps::Experts => true,
        _ => base.config.bool("norm_topk_prob")?.unwrap_or(true),
    };
    let ffn = base.config.required("shared_expert_intermediate_size", WIDTH_MAX)?;
    let shared = Some(SharedExpert { ffn, gate: true });
    Ok(ExpertsSpec { shared, ..softmax(base, EXPERTS, normalized)? })
}

/// Reads a file in which heads of keys may repeat as a whole, so that value heads of the same key head are far apart.
fn from_metadata(of: &Architecture, keys: &Keys<'_>, tiled: bool) -> Result<TransformerSpec, LoadError> {
    let vocab = keys.vocab()?;
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let [count, _] = keys.layers()?;
    let context = keys.required("context_length", CONTEXT_TOKENS_MAX)?;
    let heads = keys.heads(hidden)?;
    let norm = NormSpec { kind: keys.norm_kind(), eps: keys.epsilon()? };
    let state = StateSpec { decay_as_log: false, ..StateSpec::delta(shape(keys, tiled)?, norm.eps) };
    let recurs = recurrent_layers(keys, count)?;
    let mlp = mlp(keys)?;
    let layer = |index: usize| LayerSpec {
        order: NormOrder::Pre,
        attention: match recurs[index] {
            true => AttentionSpec::of_state(state),
            false => {
                AttentionSpec { output_gate: true, qk_norm: QkNorm::Heads, ..AttentionSpec::causal(heads) }
            }
        },
        mlp: mlp.clone(),
        residual_scale: 1.0,
    };
    let layers = (0..count).map(layer).collect();
    Ok(TransformerSpec {
        ropes: vec![keys.rope(of.rope_kind(keys), heads.head_dim, context, None)?],
        head: HeadSpec::plain(!keys.has(Part::Head.weight())),
        ..TransformerSpec::bare(of.name, [vocab, hidden], layers, norm, context)
    })
}

fn shape(keys: &Keys<'_>, tiled: bool) -> Result<StateShape, LoadError> {
    let dim = keys.required("ssm.state_size", HEAD_DIM_MAX)?;
    let value_heads = keys.required("ssm.time_step_rank", HEADS_MAX)?;
    let inner = keys.required("ssm.inner_size", WIDTH_MAX)?;
    if inner != value_heads * dim {
        let reason = format!("{value_heads} heads of values as long as keys, {dim}, are known");
        return Err(keys.unsupported("ssm.inner_size", inner, &reason));
    }
    Ok(StateShape {
        rule: StateRule::Delta,
        key_heads: keys.required("ssm.group_count", HEADS_MAX)?,
        value_heads,
        key_dim: dim,
        value_dim: dim,
        taps: keys.required("ssm.conv_kernel", StateShape::TAPS_MAX)?,
        tiled,
    })
}

/// Layers with recurrent states.
fn recurrent_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, LoadError> {
    const LAYERS: &str = "attention.recurrent_layers";
    match keys.metadata.get(&keys.key(LAYERS)) {
        // The list may also have entries for layers after the last.
        Some(gguf::Value::Array(gguf::Array::Bool(of))) if of.len() >= layers => Ok(of[..layers].to_vec()),
        Some(_) => Err(keys.unsupported(LAYERS, "another list", "a truth value for each layer is known")),
        None => {
            let interval = keys.count("full_attention_interval", LAYERS_MAX)?.unwrap_or(4);
            Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect())
        }
    }
}

fn mlp(keys: &Keys<'_>) -> Result<MlpSpec, LoadError> {
    let Some(count) = keys.whole("expert_count", EXPERTS_MAX)?.filter(|&count| count > 0) else {
        return Ok(MlpSpec::gated(keys.required("feed_forward_length", WIDTH_MAX)?, Activation::Silu));
    };
    let used = keys.required("expert_used_count", EXPERTS_MAX)?;
    let ffn = keys.required("expert_feed_forward_length", WIDTH_MAX)?;
    let shared = match keys.count("expert_shared_feed_forward_length", WIDTH_MAX)? {
        Some(shared) => shared,
        None => keys.required("feed_forward_length", WIDTH_MAX)?,
    };
    // llama.cpp always normalises the weights of these architectures.
    Ok(MlpSpec::Experts(ExpertsSpec {
        shared: Some(SharedExpert { ffn: shared, gate: true }),
        ..ExpertsSpec::softmax(count, used, ffn, true)
    }))
}
