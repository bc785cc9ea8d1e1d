//! Dense decoders whose own code names settings and tensors in its own way, as data. Their settings are put under the usual names
//! first, so that one reader reads them all.

use hanzo_engine_kernels::RopeKind;
use serde_json::Value;

use super::dense::{Family, GLM, LLAMA, Said, set_logits};
use super::{Config, NormKind, NormOrder, TransformerSpec};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, HEADS_MAX, WIDTH_MAX};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        model_type: "gpt_neox",
        class: "GPTNeoXForCausalLM",
        order: NormOrder::ParallelApart,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        qkv_bias: Said::By("attention_bias", true),
        output_bias: Said::By("attention_bias", true),
        mlp_bias: Said::Always(true),
        gated: false,
        activation: ("hidden_act", "gelu"),
        turned: 0.25,
        settle: |config| {
            rename(config, &[("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")]);
            Ok(())
        },
        own: |config, spec| {
            if !config.bool("use_parallel_residual")?.unwrap_or(true) {
                set_order(spec, NormOrder::Pre);
            }
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_type: "falcon",
        class: "FalconForCausalLM",
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        qkv_bias: Said::By("bias", false),
        output_bias: Said::By("bias", false),
        mlp_bias: Said::By("bias", false),
        gated: false,
        activation: ("activation", "gelu"),
        tied: true,
        settle: falcon,
        own: |config, spec| {
            let apart = !config.bool("new_decoder_architecture")?.unwrap_or(false);
            if apart && !config.bool("parallel_attn")?.unwrap_or(true) {
                set_order(spec, NormOrder::Pre);
            }
            Ok(())
        },
        refused: &["alibi"],
        ..LLAMA
    },
    Family {
        model_type: "helium",
        class: "HeliumForCausalLM",
        eps: ("rms_norm_eps", 1e-8),
        output_bias: Said::Always(false),
        head_dim: Some(128),
        rope_kind: RopeKind::Interleaved,
        ..LLAMA
    },
    Family {
        model_type: "internlm2",
        class: "InternLM2ForCausalLM",
        qkv_bias: Said::By("bias", false),
        output_bias: Said::By("bias", false),
        ..LLAMA
    },
    Family {
        model_type: "internlm3",
        class: "InternLM3ForCausalLM",
        qkv_bias: Said::By("qkv_bias", false),
        output_bias: Said::Always(false),
        refused: &["bias"],
        ..LLAMA
    },
    Family {
        model_type: "chatglm",
        class: "ChatGLMModel",
        settle: chatglm,
        refused: &["add_bias_linear", "apply_residual_connection_post_layernorm", "pre_seq_len"],
        ..GLM
    },
    Family {
        model_type: "qwen",
        class: "QWenLMHeadModel",
        eps: ("layer_norm_epsilon", 1e-6),
        qkv_bias: Said::Always(true),
        output_bias: Said::Always(false),
        settle: qwen,
        ..LLAMA
    },
    Family { model_type: "baichuan", class: "BaichuanForCausalLM", settle: baichuan, ..LLAMA },
    Family {
        model_type: "orion",
        class: "OrionForCausalLM",
        norm: NormKind::Layer { bias: true },
        eps: ("rms_norm_eps", 1e-5),
        ..LLAMA
    },
    Family { model_type: "xverse", class: "XverseForCausalLM", ..LLAMA },
    Family {
        model_type: "exaone",
        class: "ExaoneForCausalLM",
        eps: ("layer_norm_epsilon", 1e-5),
        settle: |config| {
            rename(config, &[("num_layers", "num_hidden_layers"), ("activation_function", "hidden_act")]);
            Ok(())
        },
        ..LLAMA
    },
    Family { model_type: "minicpm", class: "MiniCPMForCausalLM", tied: true, own: minicpm, ..LLAMA },
];

/// Puts settings under the usual names, where those say nothing.
fn rename(config: &mut Config, names: &[(&str, &str)]) {
    for &(theirs, usual) in names {
        if config.get(usual).is_none()
            && let Some(value) = config.get(theirs).cloned()
        {
            config.set(usual, value);
        }
    }
}

fn set_order(spec: &mut TransformerSpec, order: NormOrder) {
    spec.layers.iter_mut().for_each(|layer| layer.order = order);
}

fn falcon(config: &mut Config) -> Result<(), LoadError> {
    rename(
        config,
        &[
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("n_head_kv", "num_kv_heads"),
            ("ffn_hidden_size", "intermediate_size"),
        ],
    );
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let renewed = config.bool("new_decoder_architecture")?.unwrap_or(false);
    // One norm for each half, of which only the later of its two forms has one for both.
    if renewed && config.count("num_ln_in_parallel_attn", 2)?.unwrap_or(2) != 1 {
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

fn chatglm(config: &mut Config) -> Result<(), LoadError> {
    // Files name the network, or the class for conversations around it.
    config.set("architectures", Value::Null);
    if let Some(padded) = config.get("padded_vocab_size").cloned() {
        config.set("vocab_size", padded);
    }
    rename(
        config,
        &[
            ("num_layers", "num_hidden_layers"),
            ("ffn_hidden_size", "intermediate_size"),
            ("seq_length", "max_position_embeddings"),
            ("layernorm_epsilon", "rms_norm_eps"),
            ("kv_channels", "head_dim"),
            ("add_qkv_bias", "attention_bias"),
        ],
    );
    if config.bool("multi_query_attention")?.unwrap_or(false) {
        rename(config, &[("multi_query_group_num", "num_key_value_heads")]);
    }
    for (key, usual) in [("rmsnorm", true), ("post_layer_norm", true)] {
        if config.bool(key)?.is_some_and(|is| is != usual) {
            return Err(config.unsupported(key, !usual, "this build cannot run models that say so"));
        }
    }
    let ratio = config.positive("rope_ratio")?.unwrap_or(1.0);
    config.set("rope_theta", (1e4 * f64::from(ratio)).into());
    if config.bool("tie_word_embeddings")?.is_some() {
        // What the class makes of it: its head is a matrix of its own whatever is said.
        config.set("tie_word_embeddings", false.into());
    }
    Ok(())
}

fn qwen(config: &mut Config) -> Result<(), LoadError> {
    // Within the length of training neither the base nor queries depend on the length.
    let trained = config.count("seq_length", CONTEXT_TOKENS_MAX)?;
    if let Some(trained) = trained {
        config.set("max_position_embeddings", trained.into());
    }
    if config.bool("no_bias")? == Some(false) {
        return Err(config.unsupported("no_bias", false, "this build cannot run models that have biases"));
    }
    let both = config.required("intermediate_size", WIDTH_MAX)?;
    config.set("intermediate_size", (both / 2).into());
    rename(
        config,
        &[
            ("kv_channels", "head_dim"),
            ("rotary_emb_base", "rope_theta"),
            ("rotary_pct", "partial_rotary_factor"),
        ],
    );
    Ok(())
}

fn baichuan(config: &mut Config) -> Result<(), LoadError> {
    // The classes of its two generations differ in a letter's case.
    config.set("architectures", Value::Null);
    if config.get("max_position_embeddings").is_none() && config.get("model_max_length").is_some() {
        let value = config.get("model_max_length").map(ToString::to_string).unwrap_or_default();
        let reason = "models with this setting in place of max_position_embeddings see distances by ALiBi, \
                      which decoders here cannot";
        return Err(config.unsupported("model_max_length", value, reason));
    }
    if config.count("vocab_size", usize::MAX)? == Some(NORMED_HEAD) {
        let reason = "Baichuan 2 norms the rows of its head, which this build does not";
        return Err(config.unsupported("vocab_size", NORMED_HEAD, reason));
    }
    Ok(())
}

/// Tokens of Baichuan 2's vocabulary. No setting says that its head is normed.
const NORMED_HEAD: usize = 125_696;

fn minicpm(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    spec.embedding_scale = config.positive("scale_emb")?.unwrap_or(1.0);
    let base = config.positive("dim_model_base")?;
    set_logits(spec, base.map_or(1.0, |base| base / spec.hidden as f32), None);
    let depth = config.positive("scale_depth")?.unwrap_or(1.0);
    let residual = depth / (spec.layers.len() as f32).sqrt();
    spec.layers.iter_mut().for_each(|layer| layer.residual_scale = residual);
    Ok(())
}
