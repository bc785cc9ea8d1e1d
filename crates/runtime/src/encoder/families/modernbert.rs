//! ModernBERT: norms before its halves, two rotary bases, local layers between global ones, gated MLPs.

use serde_json::Value;

use super::{
    ClassifierPlan, HeadLayerPlan, Plan, SIZE_KEYS, activation, epsilon, gated, head_activation, post_norm,
    refuse, tied,
};
use crate::error::LoadError;
use crate::head::{HeadActivation, HeadInput};
use crate::limits::{CONTEXT_TOKENS_MAX, LAYERS_MAX};
use crate::spec::{
    Config, GateUp, Mask, MaskedLmSpec, Names, NormKind, NormOrder, NormSpec, TransformerSpec,
};

const NAMES: Names = Names {
    prefix: "model.",
    token_embedding: "embeddings.tok_embeddings",
    embedding_norm: "embeddings.norm",
    final_norm: "final_norm",
    layer: "layers.",
    qkv: Some("attn.Wqkv"),
    attention_output: "attn.Wo",
    attention_norm: "attn_norm",
    gate_up: Some(GateUp { name: "mlp.Wi", gate_first: true }),
    down: "mlp.Wo",
    mlp_norm: "mlp_norm",
    lm_dense: "head.dense",
    lm_norm: "head.norm",
    head: "decoder",
    head_bias: "decoder.bias",
    ..Names::NONE
};

const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";
/// Which of the spec's rotary embeddings each turns by.
const GLOBAL_ROPE: usize = 0;
const LOCAL_ROPE: usize = 1;

pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
    refuse(config, &["mlp_bias"])?;
    let truth = |key: &str, default: bool| Ok::<_, LoadError>(config.bool(key)?.unwrap_or(default));
    let activation = activation(config, "hidden_activation", "gelu")?;
    let eps = epsilon(config, "norm_eps", 1e-5)?;
    let spec = post_norm(config, &SIZE_KEYS, eps, gated(activation, false))?;
    let (norm_bias, attention_bias) = (truth("norm_bias", false)?, truth("attention_bias", false)?);
    let head_dim = spec.heads().head_dim;
    let [global, local] = rope_bases(config)?;
    let masks = masks(config, spec.layers.len())?;
    let spec = TransformerSpec {
        ropes: vec![super::whole_rope(global, head_dim), super::whole_rope(local, head_dim)],
        norm: NormSpec { kind: NormKind::Layer { bias: norm_bias }, eps },
        ..spec.with_layers(|index, layer| {
            let attention = &mut layer.attention;
            // The sum of the embeddings is normed already.
            layer.order = if index == 0 { NormOrder::PreMlp } else { NormOrder::Pre };
            (attention.qkv_bias, attention.output_bias) = (attention_bias, attention_bias);
            attention.mask = masks[index].0;
            attention.rope = Some(masks[index].1);
        })
    };
    let head = head_activation(config, "classifier_activation", "gelu")?;
    let head_bias = truth("classifier_bias", false)?;
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: NAMES,
        classifier: ClassifierPlan {
            input: match config.string("classifier_pooling")?.unwrap_or("cls") {
                "cls" => HeadInput::Cls,
                "mean" => HeadInput::Mean,
                other => {
                    return Err(config.unsupported("classifier_pooling", other, "cls and mean are known"));
                }
            },
            layers: vec![
                HeadLayerPlan {
                    name: "head.dense",
                    in_encoder: false,
                    bias: head_bias,
                    activation: head,
                    norm: Some("head.norm"),
                },
                HeadLayerPlan {
                    name: "classifier",
                    in_encoder: false,
                    bias: true,
                    activation: HeadActivation::Identity,
                    norm: None,
                },
            ],
        },
        masked_lm: match super::activation(config, "classifier_activation", "gelu") {
            Ok(activation) => Some(MaskedLmSpec {
                activation,
                dense_bias: head_bias,
                tied: tied(config)?,
                decoder_bias: truth("decoder_bias", true)?,
            }),
            // A tanh, which only classifiers can have here.
            Err(_) => None,
        },
        heads: &["head.", "decoder.", "classifier."],
    })
}

/// What each layer sees and which rope it turns by: every third is global unless settings say otherwise.
fn masks(config: &Config, count: usize) -> Result<Vec<(Mask, usize)>, LoadError> {
    const TYPES: &str = "layer_types";
    let window = config.whole("local_attention", CONTEXT_TOKENS_MAX)?.unwrap_or(128);
    let global = (Mask::Whole { reach: None }, GLOBAL_ROPE);
    let local = (Mask::Whole { reach: Some(window as u32 / 2) }, LOCAL_ROPE);
    let every = config.count("global_attn_every_n_layers", LAYERS_MAX)?.unwrap_or(3);
    let Some(types) = config.typed(TYPES, "a list of layer types", Value::as_array)? else {
        return Ok((0..count)
            .map(|layer| if layer.is_multiple_of(every) { global } else { local })
            .collect());
    };
    if types.len() != count {
        return Err(config.corrupt(TYPES, format!("{} types for {count} layers", types.len())));
    }
    let of_type = |value: &Value| match value.as_str() {
        Some(GLOBAL) => Ok(global),
        Some(LOCAL) => Ok(local),
        _ => Err(config.unsupported(TYPES, value, format!("{GLOBAL} and {LOCAL} are known"))),
    };
    types.iter().map(of_type).collect()
}

/// Of global and of local layers, from `rope_parameters` or, in older files, settings of their own.
fn rope_bases(config: &Config) -> Result<[f32; 2], LoadError> {
    refuse(config, &["rope_scaling"])?;
    let nested = config.object("rope_parameters")?;
    let base = |layer_type: &str, key: &str, default: f32| {
        let Some(settings) = nested.as_ref().map(|nested| nested.object(layer_type)).transpose()?.flatten()
        else {
            return Ok(config.positive(key)?.unwrap_or(default));
        };
        for (key, value) in &settings.settings {
            let known = key == "rope_theta" || (key == "rope_type" && value == "default");
            if !known && !value.is_null() {
                return Err(settings.unsupported(key, value, "frequencies that are not stretched are known"));
            }
        }
        Ok(settings.positive("rope_theta")?.unwrap_or(default))
    };
    if let Some(nested) = &nested
        && let Some((key, value)) = nested.settings.iter().find(|(key, _)| *key != GLOBAL && *key != LOCAL)
    {
        return Err(nested.unsupported(key, value, format!("{GLOBAL} and {LOCAL} are known")));
    }
    Ok([base(GLOBAL, "global_rope_theta", 160_000.0)?, base(LOCAL, "local_rope_theta", 10_000.0)?])
}
