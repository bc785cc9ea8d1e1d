//! Pixtral and Mistral 3: frames of any size, rotary embeddings by row and column, and an MLP over patches, or over
//! squares of patches that a matrix has merged. In a prompt each line of rows ends with a token.

use hanzo_engine_ops::{Activation, HeadShape};

use super::llava::{image_token, layers_read, mlp};
use super::qwen::rope_of_places;
use super::spec::{COLORS, Family, Reads, TowerNorm, TowerSpec};
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, PATCHES_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, Names, NormKind, NormOrder, NormSpec,
    TransformerSpec,
};

pub(super) const NAMES: Names = Names {
    prefix: "vision_tower.",
    token_embedding: "no_tokens",
    embedding_norm: "ln_pre",
    final_norm: "post_layernorm",
    layer: "transformer.layers.",
    query: "attention.q_proj",
    key: "attention.k_proj",
    value: "attention.v_proj",
    attention_output: "attention.o_proj",
    attention_norm: "attention_norm",
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    mlp_norm: "ffn_norm",
    ..Names::NONE
};

/// Tokens at the end of a line, and of the last line.
pub(super) const LINE_ENDS: [&str; 2] = ["[IMG_BREAK]", "[IMG_END]"];

/// Describes the tower. `config` is the whole model's; the text model's rows have `text_hidden` elements.
pub(super) fn spec(config: &Config, text_hidden: usize) -> Result<TowerSpec, LoadError> {
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let joins = config.string("model_type")? == Some("mistral3");
    let hidden = whole("hidden_size", WIDTH_MAX, 1024)?;
    let heads = whole("num_attention_heads", HEADS_MAX, 16)?;
    let head_dim = hidden / heads;
    let said = whole("head_dim", HEAD_DIM_MAX, head_dim)?;
    let fits = hidden.is_multiple_of(heads) && head_dim.is_multiple_of(4) && head_dim == said;
    if !fits || head_dim > HEAD_DIM_MAX {
        let reason = format!("hidden states of {hidden} do not split into {heads} heads of quarters");
        return Err(vision.corrupt("num_attention_heads", reason));
    }
    if whole("num_channels", WIDTH_MAX, COLORS)? != COLORS {
        return Err(vision.corrupt("num_channels", "pictures have three colours"));
    }
    let activation = match vision.string("hidden_act")?.unwrap_or("gelu") {
        "gelu" => Activation::GeluErf,
        "silu" | "swish" => Activation::Silu,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        other => {
            let reason = "silu, gelu and gelu_pytorch_tanh are known";
            return Err(vision.unsupported("hidden_act", other, reason));
        }
    };
    let patch = whole("patch_size", WIDTH_MAX, 16)?;
    let joined = if joins { config.count("spatial_merge_size", 64)?.unwrap_or(2) } else { 1 };
    let mlp_layer = DenseSpec {
        ffn: whole("intermediate_size", WIDTH_MAX / 2, 4096)?,
        activation,
        gated: true,
        up_bias: false,
        down_bias: false,
    };
    let layer = LayerSpec {
        order: NormOrder::Pre,
        attention: AttentionSpec {
            mask: Mask::Whole { reach: None },
            ..AttentionSpec::causal(HeadShape { heads, kv_heads: heads, head_dim })
        },
        mlp: MlpSpec::Dense(mlp_layer),
        residual_scale: 1.0,
    };
    let norm = NormSpec { kind: NormKind::Rms { from_one: false }, eps: 1e-5 };
    let all = whole("num_hidden_layers", LAYERS_MAX, 24)?;
    let count = layers_read(config, all, -1)?;
    let mut layers = TransformerSpec::bare("pixtral", [1, hidden], vec![layer; count], norm, PATCHES_MAX);
    layers.embedding_norm = true;
    layers.ropes = vec![rope(&vision, head_dim)?];
    let text = config.object("text_config")?;
    let text_eps = text.as_ref().map(|text| text.positive("rms_norm_eps")).transpose()?.flatten();
    let given = joins.then_some(TowerNorm { eps: text_eps.unwrap_or(1e-5), from_one: false });
    let bias = mlp(config, !joins)?;
    let tower = TowerSpec {
        patch,
        joined,
        reads: Reads { norm: given, merged: joins, inner: text_hidden, bias, ..Reads::default() },
        image_token: image_token(config, if joins { 10 } else { 32_000 })?,
        ..TowerSpec::bare(Family::Pixtral, layers, text_hidden)
    };
    tower.checked(&vision)
}

/// Rotary embedding: pairs in a head's first half rotate by the row, those in its second half by the column, each
/// with every other frequency.
fn rope(vision: &Config, head_dim: usize) -> Result<crate::spec::RopeSpec, LoadError> {
    let settings = vision.object("rope_parameters")?;
    let base = match &settings {
        Some(settings) => {
            if let Some(other) =
                settings.string("rope_type")?.filter(|kind| !matches!(*kind, "default" | "axial"))
            {
                return Err(settings.unsupported("rope_type", other, "axial is known"));
            }
            settings.positive("rope_theta")?
        }
        None => vision.positive("rope_theta")?,
    };
    let base = base.unwrap_or(1e4);
    let quarter = head_dim / 4;
    let between = f64::from(base).powf(2.0 / head_dim as f64) as f32;
    let factors = (0..2 * quarter).map(|pair| if pair < quarter { 1.0 } else { between }).collect();
    Ok(crate::spec::RopeSpec { factors: Some(factors), ..rope_of_places(head_dim, base) })
}
