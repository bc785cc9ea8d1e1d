//! GPT-2, and StarCoder and SantaCoder, which have its form: a learned embedding of positions.

use super::*;

/// Settings that all of its form name differently.
pub(super) const RENAMES: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_positions", "max_position_embeddings"),
    ("n_ctx", "max_position_embeddings"),
    ("n_inner", "intermediate_size"),
];

/// The transformers library's GPT2 class.
const NAMES: Names = Names {
    position_embedding: "wpe",
    qkv: Some("attn.c_attn"),
    inputs_first: true,
    attention_output: "attn.c_proj",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    mlp_norm: "ln_2",
    ..Names::TRANSFORMER
};

const TYPE: ModelType = ModelType {
    name: "gpt2",
    class: "GPT2LMHeadModel",
    names: &NAMES,
    norm: NormKind::Layer { bias: true },
    eps: ("layer_norm_epsilon", 1e-5),
    biases: Choice::ALWAYS,
    mlp_bias: Choice::Always(true),
    gated: false,
    activation: ("activation_function", "gelu_new"),
    tied: true,
    renames: RENAMES,
    settle: set_ffn,
    own: |config, spec| {
        if !config.bool("scale_attn_weights")?.unwrap_or(true) {
            spec.layers.iter_mut().for_each(|layer| layer.attention.scale = 1.0);
        }
        learn_positions(spec, 0);
        Ok(())
    },
    refused: &["scale_attn_by_inverse_layer_idx"],
    ..ModelType::DENSE
};

const ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    names: &Names::GGUF_FUSED,
    positions: Positions::Learned,
    ..Architecture::DENSE
};

pub(super) const GPT2: Family =
    Family { title: "GPT-2", hugging_face: &[TYPE], gguf: &[ARCHITECTURE], goldens: &[both("dense/gpt2")] };

pub(super) const GPT_BIGCODE: Family = Family {
    title: "StarCoder, SantaCoder",
    hugging_face: &[ModelType {
        name: "gpt_bigcode",
        class: "GPTBigCodeForCausalLM",
        names: &Names { inputs_first: false, qkv_by_group: true, ..NAMES },
        activation: ("activation_function", "gelu_pytorch_tanh"),
        settle: |config| {
            set_ffn(config)?;
            if config.bool("multi_query")?.unwrap_or(true) {
                config.set("num_key_value_heads", 1.into());
            }
            Ok(())
        },
        ..TYPE
    }],
    gguf: &[Architecture { name: "starcoder", ..ARCHITECTURE }],
    goldens: &[both("dense/gpt-bigcode"), alone("dense/gpt-bigcode-heads")],
};
