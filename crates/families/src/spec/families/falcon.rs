//! Falcon 7B, 40B, 180B and Falcon 2: parallel sublayers with one norm or two, and few heads of keys.

use super::*;

/// The transformers library's Falcon class.
pub(super) const NAMES: Names = Names {
    prefix: "transformer.",
    token_embedding: "word_embeddings",
    final_norm: "ln_f",
    layer: "h.",
    qkv: Some("self_attention.query_key_value"),
    qkv_by_group: true,
    attention_output: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..Names::HUGGING_FACE
};

pub(super) const FALCON: Family = Family {
    title: "Falcon 7B, 40B, 180B, Falcon 2 (not RW)",
    hugging_face: &[ModelType {
        name: "falcon",
        class: "FalconForCausalLM",
        names: &Names {
            apart: Some(&Names { attention_norm: "ln_attn", mlp_norm: "ln_mlp", ..NAMES }),
            ..NAMES
        },
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        biases: [Choice::By("bias", false); 2],
        mlp_bias: Choice::By("bias", false),
        gated: false,
        activation: ("activation", "gelu"),
        tied: true,
        renames: &[
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("n_head_kv", "num_kv_heads"),
            ("ffn_hidden_size", "intermediate_size"),
        ],
        settle: falcon,
        own: |config, spec| {
            let apart = !config.bool("new_decoder_architecture")?.unwrap_or(false);
            let norms = config.count("num_ln_in_parallel_attn", 2)?;
            if apart && !config.bool("parallel_attn")?.unwrap_or(true) {
                set_order(spec, NormOrder::Pre);
            } else if norms.unwrap_or(if apart { 1 } else { 2 }) == 2 {
                set_order(spec, NormOrder::ParallelApart);
            }
            Ok(())
        },
        // Its class rounds ALiBi's addends to bfloat16 by the positions of keys, not by distances.
        refused: &["alibi"],
        ..ModelType::DENSE
    }],
    gguf: &[Architecture {
        name: "falcon",
        names: &Names {
            apart: Some(&Names { attention_norm: "attn_norm_2", mlp_norm: "attn_norm", ..Names::GGUF_FUSED }),
            ..Names::GGUF_FUSED
        },
        own: |keys, spec| {
            let said = keys.metadata.get(&keys.key("use_parallel_residual")).is_some();
            if !said && keys.find("blk.0.attn_norm_2.weight").is_some() {
                set_order(spec, NormOrder::ParallelApart);
            }
            Ok(())
        },
        ..Architecture::DENSE
    }],
    goldens: &[both("dense/falcon"), both("dense/falcon-grouped"), both("dense/falcon-apart")],
};

fn falcon(config: &mut Config) -> Result<(), LoadError> {
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let renewed = config.bool("new_decoder_architecture")?.unwrap_or(false);
    if !renewed && config.count("num_ln_in_parallel_attn", 2)? == Some(2) {
        let reason = "of this form only one norm for both halves is known";
        return Err(config.unsupported("num_ln_in_parallel_attn", 2, reason));
    }
    let kv_heads = match config.bool("multi_query")?.unwrap_or(true) {
        _ if renewed => config.count("num_kv_heads", HEADS_MAX)?.unwrap_or(heads),
        true => 1,
        false => heads,
    };
    config.set("num_key_value_heads", kv_heads.into());
    if config.get("intermediate_size").is_none() {
        config.set("intermediate_size", (4 * config.required("hidden_size", WIDTH_MAX)?).into());
    }
    if config.get("max_position_embeddings").is_none() {
        config.set("max_position_embeddings", 2048.into());
    }
    Ok(())
}
