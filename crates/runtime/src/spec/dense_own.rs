//! Dense decoders with their own names of settings and tensors, or with unique computations, as data. Their settings
//! are first renamed to the usual names, so that one reader reads them all.

use hanzo_engine_kernels::RopeKind;
use serde_json::Value;

use super::dense::{Family, GLM, LLAMA, Said, XIELU, rope_settings, set_logits, unless_null};
use super::dense_absolute::gpt2;
use super::{
    Alibi, Config, Distance, HeadSpec, LatentShape, NormKind, NormOrder, Projection, QkNorm, TransformerSpec,
};
use crate::error::LoadError;
use crate::limits::{CONTEXT_TOKENS_MAX, HEAD_DIM_MAX, HEADS_MAX, WIDTH_MAX};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        model_type: "apertus",
        class: "ApertusForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        gated: false,
        activation: ("hidden_act", XIELU),
        qk_norm: QkNorm::Heads,
        rope_base: 12e6,
        own: |config, spec| {
            // No family of this name has another activation.
            if let Some(other) = config.string("hidden_act")?.filter(|&named| named != XIELU) {
                return Err(config.unsupported("hidden_act", other, "xielu is known"));
            }
            spec.curved = true;
            Ok(())
        },
        refused: &["mlp_bias", "post_norm"],
        ..LLAMA
    },
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
    Family {
        model_type: "baichuan",
        class: "BaichuanForCausalLM",
        settle: baichuan,
        own: baichuan_own,
        ..LLAMA
    },
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
    Family {
        model_type: "phi",
        class: "PhiForCausalLM",
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_eps", 1e-5),
        qkv_bias: Said::Always(true),
        output_bias: Said::Always(true),
        mlp_bias: Said::Always(true),
        gated: false,
        activation: ("hidden_act", "gelu_new"),
        turned: 0.5,
        own: |_, spec| {
            set_head_bias(spec);
            Ok(())
        },
        refused: &["qk_layernorm"],
        ..LLAMA
    },
    Family {
        model_type: "gptj",
        class: "GPTJForCausalLM",
        order: NormOrder::Parallel,
        norm: NormKind::Layer { bias: true },
        eps: ("layer_norm_epsilon", 1e-5),
        qkv_bias: Said::Always(false),
        output_bias: Said::Always(false),
        mlp_bias: Said::Always(true),
        gated: false,
        activation: ("activation_function", "gelu_new"),
        rope_kind: RopeKind::Interleaved,
        settle: gpt2,
        own: |config, spec| {
            if let Some(turned) = config.count("rotary_dim", HEAD_DIM_MAX)? {
                spec.ropes[0].dim = turned;
            }
            set_head_bias(spec);
            Ok(())
        },
        ..LLAMA
    },
    Family {
        model_type: "nemotron",
        class: "NemotronForCausalLM",
        norm: NormKind::LayerFromOne,
        eps: ("norm_eps", 1e-5),
        mlp_bias: Said::By("mlp_bias", false),
        gated: false,
        activation: ("hidden_act", "relu2"),
        turned: 0.5,
        refused: &[],
        ..LLAMA
    },
    Family {
        model_type: "arcee",
        class: "ArceeForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        mlp_bias: Said::By("mlp_bias", false),
        gated: false,
        activation: ("hidden_act", "relu2"),
        refused: &[],
        ..LLAMA
    },
    Family {
        model_type: "olmo",
        class: "OlmoForCausalLM",
        norm: NormKind::LayerUnit,
        // Its class has a fixed value.
        eps: ("", 1e-5),
        refused: &["clip_qkv", "mlp_bias"],
        ..LLAMA
    },
    Family {
        model_type: "hunyuan_v1_dense",
        class: "HunYuanDenseV1ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        qk_norm: QkNorm::Heads,
        settle: hunyuan,
        own: |_, spec| {
            spec.layers.iter_mut().for_each(|layer| layer.attention.norm_after_rope = true);
            Ok(())
        },
        ..LLAMA
    },
    Family { model_type: "minicpm", class: "MiniCPMForCausalLM", tied: true, own: minicpm, ..LLAMA },
    Family {
        model_type: "minicpm3",
        class: "MiniCPM3ForCausalLM",
        eps: ("rms_norm_eps", 1e-5),
        qkv_bias: Said::Always(false),
        output_bias: Said::Always(false),
        tied: true,
        settle: |config| {
            // Only the rotated part of a head counts for the rotary embedding.
            config.set("head_dim", config.required("qk_rope_head_dim", HEAD_DIM_MAX)?.into());
            Ok(())
        },
        own: minicpm3,
        refused: &["attention_bias", "mlp_bias"],
        ..LLAMA
    },
];

/// Replaces rotation by ALiBi.
pub(super) fn set_alibi(spec: &mut TransformerSpec, alibi: Alibi) {
    spec.distance = Distance::Alibi(alibi);
    turn_nothing(spec);
}

/// Disables rotation.
pub(super) fn turn_nothing(spec: &mut TransformerSpec) {
    spec.ropes.clear();
    spec.layers.iter_mut().for_each(|layer| layer.attention.rope = None);
}

/// Renames settings to the usual names, unless those are set.
pub(super) fn rename(config: &mut Config, names: &[(&str, &str)]) {
    for &(theirs, usual) in names {
        if config.get(usual).is_none_or(Value::is_null)
            && let Some(value) = config.get(theirs).cloned()
        {
            config.set(usual, value);
        }
    }
}

fn set_head_bias(spec: &mut TransformerSpec) {
    if let HeadSpec::Logits(head) = &mut spec.head {
        head.bias = true;
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

fn chatglm(config: &mut Config) -> Result<(), LoadError> {
    // Files name either the network's class or the conversation class around it.
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
        // Its class always has a separate head matrix, whatever the setting says.
        config.set("tie_word_embeddings", false.into());
    }
    Ok(())
}

fn qwen(config: &mut Config) -> Result<(), LoadError> {
    // Within the length of training, neither the base nor queries depend on the length.
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
    // The classes of its two generations differ in the case of one letter.
    config.set("architectures", Value::Null);
    // The larger models use ALiBi, and no setting says so.
    if config.get("max_position_embeddings").is_none_or(Value::is_null)
        && config.get("model_max_length").is_some()
    {
        rename(config, &[("model_max_length", "max_position_embeddings")]);
        config.set("alibi", true.into());
    }
    Ok(())
}

fn baichuan_own(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    if config.bool("alibi")?.unwrap_or(false) {
        set_alibi(spec, Alibi::PLAIN);
    }
    if let HeadSpec::Logits(head) = &mut spec.head {
        head.unit_rows = spec.vocab == NORMED_HEAD;
    }
    Ok(())
}

/// Vocabulary size of Baichuan 2, whose head is normed; no setting says so.
pub(super) const NORMED_HEAD: usize = 125_696;

fn minicpm(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    MiniCpmFactors {
        embedding: config.positive("scale_emb")?.unwrap_or(1.0),
        base: config.positive("dim_model_base")?,
        depth: Some(config.positive("scale_depth")?.unwrap_or(1.0)),
    }
    .set(spec);
    Ok(())
}

/// Factors of MiniCPM.
pub(super) struct MiniCpmFactors {
    /// Factor on embeddings.
    pub(super) embedding: f32,
    /// Numerator of the factor on logits, over the hidden size.
    pub(super) base: Option<f32>,
    /// Numerator of the factor on what sublayers add, over the square root of the number of layers.
    pub(super) depth: Option<f32>,
}

impl MiniCpmFactors {
    /// Factors of MiniCPM 3, which GGUF files do not contain.
    pub(super) const THIRD: MiniCpmFactors =
        MiniCpmFactors { embedding: 12.0, base: Some(256.0), depth: Some(1.4) };

    pub(super) fn set(&self, spec: &mut TransformerSpec) {
        spec.embedding_scale = self.embedding;
        set_logits(spec, self.base.map_or(1.0, |base| base / spec.hidden as f32), None);
        let residual = self.depth.map_or(1.0, |depth| depth / (spec.layers.len() as f32).sqrt());
        spec.layers.iter_mut().for_each(|layer| layer.residual_scale = residual);
    }
}

/// Epsilon of its class for norms of latents, whatever that of the other norms is.
pub(super) const MINICPM3_LATENT_EPS: f32 = 1e-6;

/// MiniCPM with latent attention, whose rotation pairs the halves of a head.
fn minicpm3(config: &Config, spec: &mut TransformerSpec) -> Result<(), LoadError> {
    let third = MiniCpmFactors::THIRD;
    MiniCpmFactors {
        embedding: config.positive("scale_emb")?.unwrap_or(third.embedding),
        base: unless_null(config, "dim_model_base", third.base)?,
        depth: unless_null(config, "scale_depth", third.depth)?,
    }
    .set(spec);
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let shape = LatentShape {
        heads,
        // Published files have it; null means that there is none.
        query_rank: config.count("q_lora_rank", WIDTH_MAX)?,
        rank: config.required("kv_lora_rank", WIDTH_MAX)?,
        nope_dim: config.required("qk_nope_head_dim", HEAD_DIM_MAX)?,
        rope_dim: config.required("qk_rope_head_dim", HEAD_DIM_MAX)?,
        value_dim: match config.count("v_head_dim", HEAD_DIM_MAX)? {
            Some(length) => length,
            None => spec.hidden / heads,
        },
        split_up: false,
    };
    set_latent(spec, shape);
    Ok(())
}

/// Gives all layers latent attention.
pub(super) fn set_latent(spec: &mut TransformerSpec, shape: LatentShape) {
    for layer in &mut spec.layers {
        layer.attention.projection = Projection::Latent(shape);
        layer.attention.scale = 1.0 / (shape.query_dim() as f32).sqrt();
        layer.attention.latent_eps = Some(MINICPM3_LATENT_EPS);
    }
}

/// Its files say "dynamic" for a base that does not depend on the length.
pub(super) fn hunyuan(config: &mut Config) -> Result<(), LoadError> {
    let settings = rope_settings(config, "full_attention")?;
    let named = settings.string("rope_type")?.or(settings.string("type")?);
    let (Some("dynamic"), Some(alpha)) = (named, settings.positive("alpha")?) else { return Ok(()) };
    let heads = config.required("num_attention_heads", HEADS_MAX)?;
    let of_hidden = config.required("hidden_size", WIDTH_MAX)? / heads;
    let dim = config.count("head_dim", HEAD_DIM_MAX)?.unwrap_or(of_hidden) as f64;
    let base = settings.positive("rope_theta")?.or(config.positive("rope_theta")?).unwrap_or(1e4);
    config.set("rope_theta", (f64::from(base) * f64::from(alpha).powf(dim / (dim - 2.0))).into());
    config.set("rope_scaling", Value::Null);
    config.set("rope_parameters", Value::Null);
    Ok(())
}
