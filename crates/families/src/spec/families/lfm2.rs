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
    spec: Some(|base| spec(base, dense)),
    biases: Choice::NEVER,
    tied: true,
    settle: |config| {
        refuse_true(config, &["conv_bias"])?;
        if let Some(tied) = config.bool("tie_embedding")? {
            config.set("tie_word_embeddings", tied.into());
        }
        Ok(())
    },
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
    hugging_face: &[ModelType {
        name: "lfm2_moe",
        class: "Lfm2MoeForCausalLM",
        spec: Some(|base| spec(base, mixture)),
        ..TYPE
    }],
    gguf: &[Architecture { name: "lfm2moe", ..ARCHITECTURE }],
    goldens: &[both("states/lfm2-moe")],
};

const TAPS: Setting<usize> = count("conv_L_cache", "shortconv.l_cache", StateShape::TAPS_MAX).or_of_class(3);

/// The MLP of each layer.
type Mlps = Box<dyn Fn(usize) -> MlpSpec>;

/// A model, with the MLPs of `config.json` that a function reads.
fn spec(
    base: &Base<'_>,
    mlps: fn(&Base<'_>, &Config) -> Result<Mlps, LoadError>,
) -> Result<TransformerSpec, LoadError> {
    let state = StateSpec::convolution(base.hidden, base.file.required(&TAPS)?);
    let (heads, recurs, mlp) = match base.file {
        SettingsFile::HuggingFace(config) => {
            (base.heads()?, recurring(config, base.layers)?, mlps(base, config)?)
        }
        SettingsFile::Gguf(keys) => {
            let (heads, recurs) = hybrid_heads(keys, base.hidden)?;
            (heads, recurs, metadata::mlps(keys)?)
        }
    };
    let rope = base.rope(heads.head_dim)?;
    base.hybrid(rope, &recurs, state, base.attention(heads)?, mlp)
}

/// Layers with a convolution.
fn recurring(config: &Config, layers: usize) -> Result<Vec<bool>, LoadError> {
    match layers_by_type(config, "layer_types", layers, &["conv"], &["full_attention"])? {
        Some(recurs) => Ok(recurs),
        None => Ok(layers_in(config, "full_attn_idxs", layers)?
            .map_or(vec![false; layers], |attends| attends.iter().map(|attends| !attends).collect())),
    }
}

fn dense(base: &Base<'_>, config: &Config) -> Result<Mlps, LoadError> {
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
    let activation = base.activation;
    Ok(Box::new(move |_| MlpSpec::gated(ffn, activation)))
}

fn mixture(base: &Base<'_>, config: &Config) -> Result<Mlps, LoadError> {
    let dense = config.whole("num_dense_layers", LAYERS_MAX)?.unwrap_or(2);
    let mlp = MlpSpec::gated(base.ffn(dense > 0)?, base.activation);
    let experts = ExpertsSpec {
        activation: Activation::Silu,
        scoring: ExpertScoring::Sigmoid,
        scale: config.positive("routed_scaling_factor")?.unwrap_or(1.0),
        correction_bias: config.bool("use_expert_bias")?.unwrap_or(true),
        ..softmax(base, &EXPERTS, config.bool("norm_topk_prob")?.unwrap_or(true))?
    };
    Ok(Box::new(among((0..base.layers).map(|layer| layer < dense).collect(), mlp, experts)))
}
