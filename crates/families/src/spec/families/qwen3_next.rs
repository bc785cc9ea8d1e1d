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
    spec: Some(|base| spec(base, Mlps::Some)),
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
        spec: Some(|base| spec(base, Mlps::Dense)),
        ..TYPE
    }],
    gguf: &[Architecture { name: "qwen35", ..ARCHITECTURE }],
    goldens: &[both("states/qwen3_5")],
};

pub(super) const QWEN3_5_MOE: Family = Family {
    title: "Qwen 3.5 MoE (text, of `qwen3_5_moe` too)",
    hugging_face: &[ModelType {
        name: "qwen3_5_moe_text",
        class: "Qwen3_5MoeForCausalLM",
        spec: Some(|base| spec(base, Mlps::Experts)),
        ..TYPE
    }],
    gguf: &[Architecture { name: "qwen35moe", ..ARCHITECTURE }],
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

const STATE: StateSettings = StateSettings {
    key_heads: count("linear_num_key_heads", "ssm.group_count", HEADS_MAX),
    value_heads: count("linear_num_value_heads", "ssm.time_step_rank", HEADS_MAX),
    key_dim: count("linear_key_head_dim", "ssm.state_size", HEAD_DIM_MAX),
    value_dim: count("linear_value_head_dim", "", HEAD_DIM_MAX),
    inner: count("", "ssm.inner_size", WIDTH_MAX),
    expand: count("", "", 0),
    taps: count("linear_conv_kernel_dim", "ssm.conv_kernel", StateShape::TAPS_MAX),
    bias: flag("", ""),
};
const INTERVAL: Setting<usize> =
    count("full_attention_interval", "full_attention_interval", LAYERS_MAX).or(4);
const SHARED: Setting<usize> =
    count("shared_expert_intermediate_size", "expert_shared_feed_forward_length", WIDTH_MAX);

fn spec(base: &Base<'_>, mlps: Mlps) -> Result<TransformerSpec, LoadError> {
    let file = base.file;
    let heads = base.heads()?;
    let mut state = StateSpec::delta(STATE.shape(base, StateRule::Delta)?, base.norm()?.eps);
    let (linear, full): (&[&str], &[&str]) = (&["linear_attention"], &["full_attention"]);
    let (listed, sparse) = match file {
        SettingsFile::HuggingFace(config) => {
            refuse_unless(config, "attention_bias", false)?;
            refuse_unless(config, "attn_output_gate", true)?;
            let sparse = match mlps {
                Mlps::Dense => vec![false; base.layers],
                Mlps::Experts => vec![true; base.layers],
                Mlps::Some => sparse_layers(config, base.layers)?,
            };
            (layers_by_type(config, "layer_types", base.layers, linear, full)?, sparse)
        }
        SettingsFile::Gguf(keys) => {
            if state.shape.value_dim != state.shape.key_dim {
                let reason = "heads of values as long as keys are known";
                return Err(file.unsupported(&STATE.inner, state.shape.value_width(), reason));
            }
            state.decay_as_log = false;
            // Heads of keys repeat as a whole, so that value heads of the same key head are far apart.
            state.shape.tiled = mlps != Mlps::Some;
            (
                keys.truths("attention.recurrent_layers", base.layers)?,
                vec![file.whole(&EXPERTS[0])? > 0; base.layers],
            )
        }
    };
    let recurs = match listed {
        Some(recurs) => recurs,
        None => {
            let interval = file.required(&INTERVAL)?;
            (1..=base.layers).map(|number| !number.is_multiple_of(interval)).collect()
        }
    };
    let ffn = base.ffn(sparse.contains(&false))?;
    let experts = if sparse.contains(&true) { Some(experts(base, mlps)?) } else { None };
    let attention = AttentionSpec { output_gate: true, ..base.attention(heads)? };
    let rope = base.rope(base.turned(heads.head_dim)?)?;
    base.hybrid(rope, &recurs, state, attention, |layer| match experts {
        Some(experts) if sparse[layer] => MlpSpec::Experts(experts),
        _ => MlpSpec::gated(ffn, base.activation),
    })
}

fn experts(base: &Base<'_>, mlps: Mlps) -> Result<ExpertsSpec, LoadError> {
    let (normalized, ffn) = match (base.file, base.file.count(&SHARED)?) {
        (SettingsFile::HuggingFace(_), None) => return Err(base.file.missing(&SHARED)),
        // The class of mixtures in all layers reads no such setting.
        (SettingsFile::HuggingFace(config), Some(ffn)) if mlps == Mlps::Some => {
            (config.bool("norm_topk_prob")?.unwrap_or(true), ffn)
        }
        // llama.cpp always normalises the weights of these architectures.
        (_, Some(ffn)) => (true, ffn),
        (SettingsFile::Gguf(_), None) => (true, base.ffn(true)?),
    };
    Ok(ExpertsSpec { shared: Some(SharedExpert { ffn, gate: true }), ..softmax(base, &EXPERTS, normalized)? })
}
