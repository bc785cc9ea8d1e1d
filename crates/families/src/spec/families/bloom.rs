//! BLOOM: scores decrease with distance (ALiBi), and the embedding is normed.

use super::falcon;
use super::*;

pub(super) const BLOOM: Family = Family {
    title: "BLOOM",
    hugging_face: &[ModelType {
        name: "bloom",
        class: "BloomForCausalLM",
        names: &Names { embedding_norm: "word_embeddings_layernorm", ..falcon::NAMES },
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        biases: Choice::ALWAYS,
        mlp_bias: Choice::Always(true),
        gated: false,
        // Its class has a fixed value.
        activation: ("", "gelu_pytorch_tanh"),
        tied: true,
        renames: &[
            ("n_embed", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("seq_length", "max_position_embeddings"),
        ],
        settle: bloom,
        own: |_, spec| {
            spec.embedding_norm = true;
            set_alibi(spec, Alibi::PLAIN);
            Ok(())
        },
        refused: &["apply_residual_connection_post_layernorm"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "bloom",
        names: &Names::GGUF_FUSED,
        positions: Positions::Alibi,
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/bloom")],
};

fn bloom(config: &mut Config) -> Result<(), LoadError> {
    if config.count("max_position_embeddings", CONTEXT_TOKENS_MAX)?.is_none() {
        // The context of training: nothing in the network limits it.
        config.set("max_position_embeddings", 2048.into());
    }
    set_ffn(config)
}
