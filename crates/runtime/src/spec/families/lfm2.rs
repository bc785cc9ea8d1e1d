//! LFM2 and LFM2.5: short convolutions in most layers, attention in few, and MLPs or sigmoid experts.

use super::*;

const TYPE: ModelType = ModelType {
    name: "lfm2",
    class: "Lfm2ForCausalLM",
    names: &Names {
        final_norm: "embedding_norm",
        query_norm: "self_attn.q_layernorm",
        key_norm: "self_attn.k_layernorm",
        state: StateNames {
            input: "conv.in_proj.",
            convolution: "conv.conv.",
            output: "conv.out_proj.",
            ..StateNames::NONE
        },
        attention_output: "self_attn.out_proj",
        attention_norm: "operator_norm",
        gate: "feed_forward.w1",
        up: "feed_forward.w3",
        down: "feed_forward.w2",
        router: "feed_forward.gate",
        router_bias: "feed_forward.expert_bias",
        experts: ExpertNames {
            gate: "feed_forward.experts.{}.w1.weight",
            up: "feed_forward.experts.{}.w3.weight",
            down: "feed_forward.experts.{}.w2.weight",
            ..ExpertNames::NONE
        },
        mlp_norm: "ffn_norm",
        ..Names::HUGGING_FACE
    },
    read: dense,
    eps: ("norm_eps", 1e-5),
    qk_norm: QkNorm::Heads,
    rope_base: 1e6,
    ..ModelType::OWN
};

const ARCHITECTURE: Architecture = Architecture {
    name: "lfm2",
    names: &Names {
        final_norm: "token_embd_norm",
        state: StateNames {
            input: "shortconv.in_proj.",
            convolution: "shortconv.conv.",
            output: "shortconv.out_proj.",
            ..StateNames::NONE
        },
        ..Names::GGUF
    },
    read: |of, keys| {
        let (spec, _) = read_hybrid(of, keys, |hidden, _, _| {
            let taps = keys.required("shortconv.l_cache", StateShape::TAPS_MAX)?;
            Ok(StateSpec::convolution(hidden, taps))
        })?;
        Ok(spec)
    },
    ..Architecture::HYBRID
};

pub(super) const LFM2: Family = Family {
    title: "LFM2, LFM2.5",
    hugging_face: &[TYPE],
    gguf: &[ARCHITECTURE],
    goldens: &[both("states/lfm2")],
};

pub(super) const LFM2_MOE: Family = Family {
    title: "LFM2 MoE",
    hugging_face: &[ModelType { name: "lfm2_moe", class: "Lfm2MoeForCausalLM", read: mixture, ..TYPE }],
    gguf: &[Architecture { name: "lfm2moe", ..ARCHITECTURE }],
    goldens: &[both("states/lfm2-moe")],
};

/// A model with these MLPs.
fn with_mlps(base: &Base<'_>, mlp: impl Fn(usize) -> MlpSpec) -> Result<TransformerSpec, LoadError> {
    let config = base.config;
    refuse_true(config, &["conv_bias"])?;
    let heads = base.heads()?;
    let taps = config.count("conv_L_cache", StateShape::TAPS_MAX)?.unwrap_or(3);
    let state = StateSpec::convolution(base.hidden, taps);
    let types: (&[&str], &[&str]) = (&["full_attention"], &["conv"]);
    let attends = match layers_by_type(config, "layer_types", base.layers, types)? {
        Some(attends) => attends,
        None => layers_in(config, "full_attn_idxs", base.layers)?.unwrap_or_else(|| vec![true; base.layers]),
    };
    let (rope, _) = base.rope(heads.head_dim)?;
    let spec = base.spec(rope, |layer| {
        let attention = match attends[layer] {
            true => AttentionSpec { qk_norm: QkNorm::Heads, ..AttentionSpec::causal(heads) },
            false => AttentionSpec::of_state(state),
        };
        (attention, mlp(layer))
    })?;
    let tied = match config.bool("tie_embedding")? {
        Some(tied) => tied,
        None => config.bool("tie_word_embeddings")?.unwrap_or(true),
    };
    Ok(TransformerSpec { head: HeadSpec::plain(tied), ..spec })
}

fn dense(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    let mut ffn = match config.count("block_ff_dim", WIDTH_MAX)? {
        Some(ffn) => ffn,
        None => config.required("intermediate_size", WIDTH_MAX)?,
    };
    if config.bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        ffn = 2 * ffn / 3;
        let multiplier = match config.get("block_ffn_dim_multiplier") {
            Some(Value::Null) => None,
            _ => Some(config.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0)),
        };
        if let Some(multiplier) = multiplier {
            let multiple = config.count("block_multiple_of", WIDTH_MAX)?.unwrap_or(256);
            ffn = ((f64::from(multiplier) * ffn as f64) as usize).next_multiple_of(multiple);
        }
    }
    if !(1..=WIDTH_MAX).contains(&ffn) {
        return Err(config.corrupt("intermediate_size", format!("an MLP of {ffn} elements")));
    }
    with_mlps(&base, |_| MlpSpec::gated(ffn, base.activation))
}

fn mixture(of: &ModelType, config: &Config) -> Result<TransformerSpec, LoadError> {
    let base = Base::read(of, config)?;
    let dense = config.whole("num_dense_layers", LAYERS_MAX)?.unwrap_or(2);
    let mlp = MlpSpec::gated(base.ffn(dense > 0)?, base.activation);
    let experts = ExpertsSpec {
        activation: Activation::Silu,
        scoring: ExpertScoring::Sigmoid,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        correction_bias: config.bool("use_expert_bias")?.unwrap_or(true),
        ..softmax(&base, EXPERTS, config.bool("norm_topk_prob")?.unwrap_or(true))?
    };
    with_mlps(&base, among((0..base.layers).map(|layer| layer < dense).collect(), mlp, experts))
}
