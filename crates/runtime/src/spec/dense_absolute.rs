//! Dense decoders without rotary embedding, as data: positions are learned embeddings added to those of tokens, or
//! scores decrease with distance (ALiBi).

use super::dense::{Family, LLAMA, Said};
use super::dense_own::{rename, set_alibi, turn_nothing};
use super::{Alibi, Config, NormKind, PositionTable, TransformerSpec};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, HEADS_MAX, WIDTH_MAX};

const GPT2: Family = Family {
    model_type: "gpt2",
    class: "GPT2LMHeadModel",
    norm: NormKind::Layer { bias: true },
    eps: ("layer_norm_epsilon", 1e-5),
    qkv_bias: Said::Always(true),
    output_bias: Said::Always(true),
    mlp_bias: Said::Always(true),
    gated: false,
    activation: ("activation_function", "gelu_new"),
    tied: true,
    settle: gpt2,
    own: |config, spec| {
        if !config.bool("scale_attn_weights")?.unwrap_or(true) {
            spec.layers.iter_mut().for_each(|layer| layer.attention.scale = 1.0);
        }
        learn_positions(spec, 0);
        Ok(())
    },
    refused: &["scale_attn_by_inverse_layer_idx"],
    ..LLAMA
};

pub(super) const FAMILIES: &[Family] = &[
    GPT2,
    Family {
        model_type: "gpt_bigcode",
        class: "GPTBigCodeForCausalLM",
        activation: ("activation_function", "gelu_pytorch_tanh"),
        settle: |config| {
            gpt2(config)?;
            if config.bool("multi_query")?.unwrap_or(true) {
                config.set("num_key_value_heads", 1.into());
            }
            Ok(())
        },
        ..GPT2
    },
    Family {
        model_type: "opt",
        class: "OPTForCausalLM",
        norm: NormKind::Layer { bias: true },
        // Its class has a fixed value.
        eps: ("", 1e-5),
        qkv_bias: Said::By("enable_bias", true),
        output_bias: Said::By("enable_bias", true),
        mlp_bias: Said::By("enable_bias", true),
        gated: false,
        activation: ("activation_function", "relu"),
        tied: true,
        settle: opt,
        own: |_, spec| {
            learn_positions(spec, 2);
            Ok(())
        },
        refused: &["_remove_final_layer_norm"],
        ..LLAMA
    },
    Family {
        model_type: "bloom",
        class: "BloomForCausalLM",
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        qkv_bias: Said::Always(true),
        output_bias: Said::Always(true),
        mlp_bias: Said::Always(true),
        gated: false,
        // Its class has a fixed value.
        activation: ("", "gelu_pytorch_tanh"),
        tied: true,
        settle: bloom,
        own: |_, spec| {
            spec.embedding_norm = true;
            set_alibi(spec, Alibi::PLAIN);
            Ok(())
        },
        refused: &["apply_residual_connection_post_layernorm"],
        ..LLAMA
    },
    Family {
        model_type: "mpt",
        class: "MptForCausalLM",
        norm: NormKind::Layer { bias: false },
        eps: ("layer_norm_epsilon", 1e-5),
        qkv_bias: Said::Always(false),
        output_bias: Said::Always(false),
        gated: false,
        // Its class has a fixed value.
        activation: ("", "gelu"),
        tied: true,
        settle: mpt,
        own: mpt_own,
        refused: &["logit_scale"],
        ..LLAMA
    },
];

/// Replaces rotation by a table with a row for each position, from row `offset` on.
fn learn_positions(spec: &mut TransformerSpec, offset: u32) {
    let rows = (spec.context_tokens_max + offset) as usize;
    spec.positions = Some(PositionTable { rows, offset });
    turn_nothing(spec);
}

/// Sets the MLP's width to four times the hidden size, if the settings give none.
fn settle_ffn(config: &mut Config) -> Result<(), LoadError> {
    if config.count("intermediate_size", WIDTH_MAX)?.is_none() {
        config.set("intermediate_size", (4 * config.required("hidden_size", WIDTH_MAX)?).into());
    }
    Ok(())
}

pub(super) fn gpt2(config: &mut Config) -> Result<(), LoadError> {
    rename(
        config,
        &[
            ("n_embd", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("n_positions", "max_position_embeddings"),
            ("n_ctx", "max_position_embeddings"),
            ("n_inner", "intermediate_size"),
        ],
    );
    settle_ffn(config)
}

fn opt(config: &mut Config) -> Result<(), LoadError> {
    rename(config, &[("ffn_dim", "intermediate_size")]);
    for key in ["do_layer_norm_before", "layer_norm_elementwise_affine"] {
        if config.bool(key)? == Some(false) {
            return Err(config.unsupported(key, false, "this build cannot run models that say so"));
        }
    }
    let hidden = config.required("hidden_size", WIDTH_MAX)?;
    match config.count("word_embed_proj_dim", WIDTH_MAX)? {
        Some(embedded) if embedded != hidden => {
            let reason = format!("embeddings must be as wide as hidden states, {hidden}");
            Err(config.unsupported("word_embed_proj_dim", embedded, reason))
        }
        _ => Ok(()),
    }
}

fn bloom(config: &mut Config) -> Result<(), LoadError> {
    rename(
        config,
        &[
            ("n_embed", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("seq_length", "max_position_embeddings"),
        ],
    );
    if config.count("max_position_embeddings", CONTEXT_TOKENS_MAX)?.is_none() {
        // The context of training: nothing in the network limits it.
        config.set("max_position_embeddings", 2048.into());
    }
    settle_ffn(config)
}

fn mpt(config: &mut Config) -> Result<(), LoadError> {
    // The makers' class and the library's differ in upper and lower case.
    config.set("architectures", serde_json::Value::Null);
    rename(
        config,
        &[
            ("d_model", "hidden_size"),
            ("n_layers", "num_hidden_layers"),
            ("n_heads", "num_attention_heads"),
            ("max_seq_len", "max_position_embeddings"),
        ],
    );
    if config.bool("no_bias")? == Some(false) {
        return Err(config.unsupported("no_bias", false, "this build cannot run models that have biases"));
    }
    if config.get("expansion_ratio").is_some_and(|ratio| ratio.as_f64() != Some(4.0)) {
        let value = config.get("expansion_ratio").map(ToString::to_string).unwrap_or_default();
        return Err(config.unsupported("expansion_ratio", value, "4 is known"));
    }
    settle_ffn(config)
}

fn mpt_own(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let Some(attention) = config.object("attn_config")? else {
        set_alibi(spec, Alibi::PLAIN);
        return Ok(());
    };
    for key in ["clip_qkv", "prefix_lm", "qk_ln", "qk_gn", "kv_n_heads", "sliding_window_size"] {
        let nothing = |value: &serde_json::Value| {
            value.is_null() || value == false || value.as_i64().is_some_and(|number| number <= 0)
        };
        if let Some(value) = attention.get(key).filter(|value| !nothing(value)) {
            return Err(attention.unsupported(key, value, "this build cannot run models that have it"));
        }
    }
    if let Some(kind) = attention.string("attn_type")?.filter(|kind| *kind != "multihead_attention") {
        return Err(attention.unsupported("attn_type", kind, "multihead_attention is known"));
    }
    if attention.bool("alibi")? == Some(false) {
        return Err(attention.unsupported("alibi", false, "this build knows this family's ALiBi alone"));
    }
    if let Some(scale) = attention.positive("softmax_scale")? {
        spec.layers.iter_mut().for_each(|layer| layer.attention.scale = scale);
    }
    // The makers' class reads it, the library's does not; no published model has another value.
    if let Some(exponent) = attention.count("alibi_bias_max", HEADS_MAX)?.filter(|&exponent| exponent != 8) {
        return Err(attention.unsupported("alibi_bias_max", exponent, "8 is known"));
    }
    set_alibi(spec, Alibi::PLAIN);
    Ok(())
}
