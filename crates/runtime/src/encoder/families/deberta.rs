//! DeBERTa v2 and v3: scores between contents and distances.

use serde_json::Value;

use super::{
    Plan, SIZE_KEYS, activation, dense, dense_classifier, epsilon, head_activation, plain, post_norm,
    type_vocab, with_positions,
};
use crate::error::LoadError;
use crate::limits::WIDTH_MAX;
use crate::spec::{
    Buckets, Config, ConvolutionSpec, DisentangledAttention, Distance, MaskedLmSpec, Names, TransformerSpec,
};

const NAMES: Names = Names {
    prefix: "deberta.",
    distance_embedding: "encoder.rel_embeddings",
    distance_norm: "encoder.LayerNorm",
    convolution: "encoder.conv.conv",
    convolution_norm: "encoder.conv.LayerNorm",
    query: "attention.self.query_proj",
    key: "attention.self.key_proj",
    value: "attention.self.value_proj",
    distance_key: "attention.self.pos_key_proj",
    distance_query: "attention.self.pos_query_proj",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    lm_dense: "cls.predictions.transform.dense",
    lm_norm: "cls.predictions.transform.LayerNorm",
    head: "cls.predictions.decoder",
    head_bias: "cls.predictions.bias",
    ..Names::NONE
};

const HEADS: &[&str] = &["pooler.", "cls.", "classifier.", "lm_predictions.", "mask_predictions."];
const HEADS_AND_POSITIONS: &[&str] = &[
    "pooler.",
    "cls.",
    "classifier.",
    "lm_predictions.",
    "mask_predictions.",
    "embeddings.position_embeddings.",
];
/// Tokens that no convolution needs to see more of.
const CONVOLUTION_WINDOW_MAX: usize = 31;
/// Distances that no table needs to be longer for.
const DISTANCE_MAX: usize = 1 << 16;

pub(super) fn plan(config: &Config) -> Result<Plan, LoadError> {
    let activation = activation(config, "hidden_act", "gelu")?;
    let eps = epsilon(config, "layer_norm_eps", 1e-7)?;
    let mut spec = post_norm(config, &SIZE_KEYS, eps, plain(activation))?;
    for key in ["embedding_size", "pooler_hidden_size"] {
        if let Some(width) = config.count(key, WIDTH_MAX)?.filter(|&width| width != spec.hidden) {
            return Err(config.unsupported(
                key,
                width,
                format!("the hidden states' {} is known", spec.hidden),
            ));
        }
    }
    let head_dim = spec.heads().head_dim;
    if let Some(width) = config.count("attention_head_size", WIDTH_MAX)?.filter(|&width| width != head_dim) {
        let reason = format!("hidden_size / num_attention_heads = {head_dim} is known");
        return Err(config.unsupported("attention_head_size", width, reason));
    }
    spec.type_vocab = type_vocab(config, 0)?;
    spec.convolution = convolution(config)?;
    let positions = config.bool("position_biased_input")?.unwrap_or(true);
    if positions {
        spec = with_positions(spec, 0);
    }
    let kinds = kinds(config)?;
    let terms = 1 + kinds.iter().filter(|&&kind| kind).count();
    spec = spec.with_layers(|_, layer| layer.attention.scale = 1.0 / ((head_dim * terms) as f32).sqrt());
    if config.bool("relative_attention")?.unwrap_or(false) {
        spec.distance = Distance::Disentangled(disentangled(config, &spec, kinds)?);
    } else if terms > 1 {
        let kinds = config.get("pos_att_type").map(ToString::to_string).unwrap_or_default();
        return Err(config.unsupported("pos_att_type", kinds, "it needs relative_attention"));
    }
    let pooler = head_activation(config, "pooler_hidden_act", "gelu")?;
    Ok(Plan {
        spec: spec.checked(&config.file)?,
        names: NAMES,
        classifier: dense_classifier(dense("pooler.dense", false, pooler), "classifier"),
        masked_lm: match config.bool("legacy")? {
            // Another head, with a decoder of its own kind.
            Some(false) => None,
            _ => Some(MaskedLmSpec {
                activation,
                dense_bias: true,
                tied: super::tied(config)?,
                decoder_bias: true,
            }),
        },
        // Where positions are no input their table is there all the same.
        heads: match positions {
            true => HEADS,
            false => HEADS_AND_POSITIONS,
        },
    })
}

fn convolution(config: &Config) -> Result<Option<ConvolutionSpec>, LoadError> {
    const WINDOW: &str = "conv_kernel_size";
    let Some(window) = config.whole(WINDOW, CONVOLUTION_WINDOW_MAX)?.filter(|&window| window > 0) else {
        return Ok(None);
    };
    if window % 2 == 0 {
        return Err(config.unsupported(WINDOW, window, "an odd number of tokens has one in its middle"));
    }
    if let Some(groups) = config.whole("conv_groups", WIDTH_MAX)?.filter(|&groups| groups != 1) {
        return Err(config.unsupported("conv_groups", groups, "one group is known"));
    }
    Ok(Some(ConvolutionSpec { window, activation: activation(config, "conv_act", "tanh")? }))
}

/// Whether `c2p` and `p2c` are among the kinds of scores.
fn kinds(config: &Config) -> Result<[bool; 2], LoadError> {
    const KEY: &str = "pos_att_type";
    let names: Vec<&str> = match config.get(KEY) {
        None => Vec::new(),
        Some(Value::String(names)) => {
            names.split('|').map(str::trim).filter(|name| !name.is_empty()).collect()
        }
        Some(Value::Array(names)) => names.iter().map(|name| name.as_str().unwrap_or_default()).collect(),
        Some(other) => return Err(config.corrupt(KEY, format!("{other} is not a list"))),
    };
    if let Some(unknown) = names.iter().find(|name| !["c2p", "p2c"].contains(name)) {
        return Err(config.unsupported(KEY, unknown, "c2p and p2c are known"));
    }
    Ok([names.contains(&"c2p"), names.contains(&"p2c")])
}

fn disentangled(
    config: &Config,
    spec: &TransformerSpec,
    kinds: [bool; 2],
) -> Result<DisentangledAttention, LoadError> {
    // Both may be -1, which stands for absent.
    let above_zero = |key: &str| {
        let number = config.typed(key, "a whole number", Value::as_i64)?;
        match number.map(usize::try_from) {
            Some(Ok(number)) if number > DISTANCE_MAX => {
                Err(config.corrupt(key, format!("it is more than {DISTANCE_MAX}")))
            }
            Some(Ok(number)) if number > 0 => Ok(Some(number as u32)),
            _ => Ok(None),
        }
    };
    let distance_max = above_zero("max_relative_positions")?.unwrap_or(spec.context_tokens_max);
    let buckets = match above_zero("position_buckets")? {
        None => Buckets { span: distance_max, distance_max: None },
        Some(span) if span >= 4 && distance_max > span / 2 + 1 => {
            Buckets { span, distance_max: Some(distance_max) }
        }
        Some(span) => {
            return Err(config.unsupported(
                "position_buckets",
                span,
                "4 or more, and below twice the largest distance, can be used",
            ));
        }
    };
    let norms = config.string("norm_rel_ebd")?.unwrap_or("none");
    let normed = norms.split('|').any(|norm| norm.trim().eq_ignore_ascii_case("layer_norm"));
    if !normed && !norms.eq_ignore_ascii_case("none") {
        return Err(config.unsupported("norm_rel_ebd", norms, "none and layer_norm are known"));
    }
    let [keys, queries] = kinds;
    let shared = config.bool("share_att_key")?.unwrap_or(false);
    Ok(DisentangledAttention { keys, queries, shared, normed, buckets })
}
