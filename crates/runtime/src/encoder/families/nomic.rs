//! Nomic's BERT: rotary positions, a gated MLP, no biases unless settings say so.

use hanzo_engine_kernels::{Activation, RopeKind};

use super::{Plan, SizeKeys, dense, dense_classifier, epsilon, masked_lm, post_norm, refuse, type_vocab};
use crate::encoder::head::HeadActivation;
use crate::encoder::names::Names;
use crate::encoder::spec::{EncoderSpec, LayerSpec, MlpSpec};
use crate::error::LoadError;
use crate::limits::CONTEXT_TOKENS_MAX;
use crate::spec::{Config, RopeScaling, RopeSpec};

const NAMES: Names = Names {
    prefix: "bert.",
    embedding_norm: "emb_ln",
    layer: "encoder.layers.",
    qkv: Some("attn.Wqkv"),
    attention_output: "attn.out_proj",
    attention_norm: "norm1",
    gate: "mlp.fc12",
    up: "mlp.fc11",
    down: "mlp.fc2",
    mlp_norm: "norm2",
    lm_dense: "cls.predictions.transform.dense",
    lm_norm: "cls.predictions.transform.layer_norm",
    lm_decoder: "cls.predictions.decoder",
    lm_bias: "cls.predictions.decoder.bias",
    ..Names::NONE
};

const KEYS: SizeKeys = SizeKeys {
    hidden: "n_embd",
    layers: "n_layer",
    heads: "n_head",
    ffn: "n_inner",
    positions: "n_positions",
    head_dim: None,
};

/// Settings that make another model of it.
const REFUSED: &[&str] = &[
    "causal",
    "mlp_fc1_bias",
    "parallel_block",
    "prenorm",
    "rotary_emb_scale_base",
    "scale_attn_by_inverse_layer_idx",
    "use_rms_norm",
];

pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
    const GATES: &str = "activation_function";
    refuse(config, REFUSED)?;
    let activation = match config.string(GATES)?.unwrap_or("gelu") {
        "swiglu" => Activation::Silu,
        "geglu" => Activation::GeluErf,
        other => return Err(config.unsupported(GATES, other, "swiglu and geglu are known")),
    };
    if config.bool("scale_attn_weights")? == Some(false) {
        return Err(config.unsupported("scale_attn_weights", false, "scores are always scaled"));
    }
    let down_bias = config.bool("mlp_fc2_bias")?.unwrap_or(false);
    let eps = epsilon(config, "layer_norm_epsilon", 1e-12)?;
    let spec = post_norm(config, &KEYS, eps, MlpSpec::Gated { activation, down_bias })?;
    let bias = config.bool("qkv_proj_bias")?.unwrap_or(false);
    let rope = rope(config, spec.heads.head_dim)?;
    // Beyond the length it was trained with, a stretched model's frequencies would follow each input's length.
    let stretched = config.f32("rotary_scaling_factor")?.is_some_and(|factor| factor != 0.0);
    let trained = config.count("max_trained_positions", CONTEXT_TOKENS_MAX)?.unwrap_or(2048) as u32;
    let spec = EncoderSpec {
        layers: vec![LayerSpec { rope: Some(0), reach: None }; spec.layers.len()],
        type_vocab: type_vocab(config, 2)?,
        ropes: vec![rope],
        qkv_bias: bias,
        output_bias: bias,
        input_tokens_max: if stretched { spec.input_tokens_max.min(trained) } else { spec.input_tokens_max },
        ..spec
    };
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: NAMES,
        classifier: dense_classifier(dense("pooler.dense", true, HeadActivation::Tanh), "classifier"),
        masked_lm: masked_lm(config, Activation::GeluErf)?,
        heads: &["pooler.", "cls.", "classifier."],
    })
}

fn rope(config: &Config, head_dim: usize) -> Result<RopeSpec, LoadError> {
    const FRACTION: &str = "rotary_emb_fraction";
    let fraction = config.f32(FRACTION)?.unwrap_or(0.0);
    if !(fraction > 0.0 && fraction <= 1.0) {
        let reason = "positions are rotary: a share above 0 of each head, up to 1, is turned";
        return Err(config.unsupported(FRACTION, fraction, reason));
    }
    let kind = match config.bool("rotary_emb_interleaved")?.unwrap_or(false) {
        true => RopeKind::Interleaved,
        false => RopeKind::Neox,
    };
    Ok(RopeSpec {
        kind,
        base: config.positive("rotary_emb_base")?.unwrap_or(10_000.0),
        dim: (head_dim as f32 * fraction) as usize,
        scaling: RopeScaling::None,
        factors: None,
        magnitude: 1.0,
    })
}
