//! Nomic's BERT: rotary positions, a gated MLP or a plain one, experts in every so many layers, no biases unless settings
//! say so.

use hanzo_engine_ops::{Activation, RopeKind};

use super::{
    Plan, SIZE_KEYS, SizeKeys, activation, activation_named, dense, dense_classifier, epsilon, gated,
    masked_lm, plain, post_norm, refuse, saved_rope, type_vocab,
};
use crate::error::LoadError;
use crate::head::HeadActivation;
use crate::limits::{CONTEXT_TOKENS_MAX, EXPERTS_MAX, LAYERS_MAX, WIDTH_MAX};
use crate::spec::{Config, DenseSpec, ExpertNames, ExpertsSpec, MlpSpec, Names, RopeSpec, TransformerSpec};

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
    router: "mlp.router.layer",
    experts: ExpertNames {
        ups: "mlp.experts.mlp.w1",
        downs: "mlp.experts.mlp.w2",
        bias: "mlp.experts.bias",
        ..ExpertNames::NONE
    },
    mlp_norm: "norm2",
    lm_dense: "cls.predictions.transform.dense",
    lm_norm: "cls.predictions.transform.layer_norm",
    head: "cls.predictions.decoder",
    head_bias: "cls.predictions.decoder.bias",
    ..Names::NONE
};

/// Those of a plain MLP.
const PLAIN: Names = Names { up: "mlp.fc1", ..NAMES };

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
    "expert_choice_router",
    "moe_normalize_expert_weights",
    "num_shared_experts",
    "parallel_block",
    "prenorm",
    "rotary_emb_scale_base",
    "scale_attn_by_inverse_layer_idx",
    "use_rms_norm",
];

pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
    match config.get("rope_parameters") {
        Some(_) => saved(config),
        None => published(config),
    }
}

/// As the library's own class saves it: the same tensors, its sizes in the words of other models.
fn saved(config: &Config) -> Result<Plan, LoadError> {
    let mlp = gated(activation(config, "hidden_act", "silu")?, false);
    let eps = epsilon(config, "layer_norm_eps", 1e-12)?;
    let spec = post_norm(config, &SIZE_KEYS, eps, mlp)?;
    let head_dim = spec.heads().head_dim;
    if let Some(other) = config.count("head_dim", WIDTH_MAX)?.filter(|&other| other != head_dim) {
        return Err(config.unsupported(
            "head_dim",
            other,
            format!("heads of {head_dim}, which split a hidden state"),
        ));
    }
    let spec = TransformerSpec {
        type_vocab: type_vocab(config, 2)?,
        ropes: saved_rope(config, 1000.0, head_dim)?.into_iter().collect(),
        ..spec.with_layers(|_, layer| {
            let attention = &mut layer.attention;
            (attention.qkv_bias, attention.output_bias, attention.rope) = (false, false, Some(0));
        })
    };
    planned(config, spec, NAMES)
}

/// What is the same in both.
fn planned(config: &Config, spec: TransformerSpec, names: Names) -> Result<Plan, LoadError> {
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names,
        classifier: dense_classifier(dense("pooler.dense", true, HeadActivation::Tanh), "classifier"),
        masked_lm: masked_lm(config, Activation::GeluErf)?,
        heads: &["pooler.", "cls.", "classifier."],
    })
}

/// As the model's makers publish it, with the code of their own.
fn published(config: &Config) -> Result<Plan, LoadError> {
    const GATES: &str = "activation_function";
    refuse(config, REFUSED)?;
    let up_bias = config.bool("mlp_fc1_bias")?.unwrap_or(false);
    let down_bias = config.bool("mlp_fc2_bias")?.unwrap_or(false);
    let name = config.string(GATES)?.unwrap_or("gelu");
    let mlp = match name {
        "swiglu" => gated(Activation::Silu, down_bias),
        "geglu" => gated(Activation::GeluErf, down_bias),
        _ => {
            let Some(activation) = activation_named(name) else {
                let reason =
                    "swiglu, geglu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu and silu are known";
                return Err(config.unsupported(GATES, name, reason));
            };
            DenseSpec { up_bias, down_bias, ..plain(activation) }
        }
    };
    if up_bias != (!mlp.gated && down_bias) {
        let reason = match mlp.gated {
            true => "a gate and what it multiplies have no biases",
            false => "both of an MLP's matrices have biases or none has",
        };
        return Err(config.unsupported("mlp_fc1_bias", up_bias, reason));
    }
    if config.bool("scale_attn_weights")? == Some(false) {
        return Err(config.unsupported("scale_attn_weights", false, "scores are always scaled"));
    }
    let eps = epsilon(config, "layer_norm_epsilon", 1e-12)?;
    let spec = post_norm(config, &KEYS, eps, mlp)?;
    let bias = config.bool("qkv_proj_bias")?.unwrap_or(false);
    let rope = rope(config, spec.heads().head_dim)?;
    // Beyond the length it was trained with, a stretched model's frequencies would follow each input's length.
    let stretched = config.f32("rotary_scaling_factor")?.is_some_and(|factor| factor != 0.0);
    let trained = config.count("max_trained_positions", CONTEXT_TOKENS_MAX)?.unwrap_or(2048) as u32;
    let experts = experts(config, mlp, &spec)?;
    let spec = TransformerSpec {
        type_vocab: type_vocab(config, 2)?,
        ropes: vec![rope],
        context_tokens_max: match stretched {
            true => spec.context_tokens_max.min(trained),
            false => spec.context_tokens_max,
        },
        ..spec.with_layers(|index, layer| {
            let attention = &mut layer.attention;
            (attention.qkv_bias, attention.output_bias, attention.rope) = (bias, bias, Some(0));
            if let Some((experts, every)) = experts
                && index % every == 1
            {
                layer.mlp = MlpSpec::Experts(experts);
            }
        })
    };
    planned(config, spec, if mlp.gated { NAMES } else { PLAIN })
}

/// The experts, each a plain MLP as wide as the others', and every how many layers they stand, beginning with the second.
fn experts(
    config: &Config,
    mlp: DenseSpec,
    spec: &TransformerSpec,
) -> Result<Option<(ExpertsSpec, usize)>, LoadError> {
    const EVERY: &str = "moe_every_n_layers";
    let Some(every) = config.whole(EVERY, LAYERS_MAX)?.filter(|&every| every > 0) else {
        refuse(config, &["num_experts"])?;
        return Ok(None);
    };
    if every == 1 {
        return Err(config.unsupported(EVERY, every, "experts in every second layer or fewer are known"));
    }
    if mlp.gated {
        return Err(config.unsupported(
            EVERY,
            every,
            "experts with a plain MLP are known, not with a gated one",
        ));
    }
    if let Some(parts) = config.whole("ffn_div", WIDTH_MAX)?.filter(|&parts| parts != 1) {
        return Err(config.unsupported("ffn_div", parts, "experts as wide as n_inner are known"));
    }
    let (count, used) =
        (config.required("num_experts", EXPERTS_MAX)?, config.required("moe_top_k", EXPERTS_MAX)?);
    if used > count {
        return Err(config.corrupt("moe_top_k", format!("{used} of {count} experts")));
    }
    // What an expert counts for is its share in the softmax over all of them.
    let experts = ExpertsSpec {
        activation: mlp.activation,
        gated: false,
        bias: true,
        down_transposed: true,
        ..ExpertsSpec::softmax(count, used, spec.layers[0].mlp.inner_width(), false)
    };
    Ok(Some((experts, every)))
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
    Ok(RopeSpec::plain(
        kind,
        config.positive("rotary_emb_base")?.unwrap_or(10_000.0),
        (head_dim as f32 * fraction) as usize,
    ))
}
