//! Llama 3.2 Vision: tiles of one size. Its layers attend across all tiles of a picture. Then tile embeddings are
//! added again, and gated layers follow. A matrix projects their output, concatenated with that of some earlier
//! layers (`mosaic`).

use hanzo_engine_ops::{Activation, HeadShape};

use super::mosaic::MosaicSpec;
use super::spec::{COLORS, Family, Reads, TowerSpec};
use super::vit;
use crate::error::LoadError;
use crate::limits::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, PATCHES_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{
    AttentionSpec, Config, DenseSpec, LayerSpec, Mask, MlpSpec, Names, NormKind, NormOrder, NormSpec,
    TransformerSpec,
};
use crate::tensor::Tensor;

/// Tensor names after [`name_layers`].
pub(super) const NAMES: Names = Names {
    prefix: "vision_model.",
    final_norm: "no_norm",
    layer: "layers.",
    attention_output: "self_attn.o_proj",
    attention_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    ..vit::NAMES
};

/// Maximum tiles of a picture.
const TILES_MAX: usize = 16;

/// Describes the tower. `config` is the whole model's. Tiles have sides of `side` pixels, a picture has at most
/// `tiles` of them, and the text model's rows have `text_hidden` elements.
pub(super) fn spec(
    config: &Config,
    side: usize,
    tiles: usize,
    text_hidden: usize,
) -> Result<TowerSpec, LoadError> {
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let hidden = whole("hidden_size", WIDTH_MAX, 1280)?;
    let heads = whole("attention_heads", HEADS_MAX, 16)?;
    if !hidden.is_multiple_of(heads) || hidden / heads > HEAD_DIM_MAX {
        let reason = format!("hidden states of {hidden} do not split into {heads} heads");
        return Err(vision.corrupt("attention_heads", reason));
    }
    if whole("num_channels", WIDTH_MAX, COLORS)? != COLORS {
        return Err(vision.corrupt("num_channels", "pictures have three colours"));
    }
    let activation = activation(&vision)?;
    let [patch, tile] = tile(&vision, side, tiles)?;
    let (local, global) =
        (whole("num_hidden_layers", LAYERS_MAX, 32)?, vision.whole("num_global_layers", LAYERS_MAX)?);
    let count = local + global.unwrap_or(8);
    let between = between(&vision, local)?;
    let said = whole("vision_output_dim", WIDTH_MAX, 7680)?;
    if said != hidden * (1 + between.len()) || count > LAYERS_MAX {
        let reason =
            format!("{count} layers of {hidden} elements, of which {} are read beside", between.len());
        return Err(vision.corrupt("vision_output_dim", reason));
    }
    let ratios = match vision.get("supported_aspect_ratios") {
        None => 8,
        Some(list) => list.as_array().map_or(0, Vec::len),
    };
    let image_token = config.whole("image_token_index", VOCAB_MAX)?;
    let image_token = image_token.or(config.whole("image_token_id", VOCAB_MAX)?).unwrap_or(128_256);
    let text = config.object("text_config")?;
    let of_text = |key: &str| match &text {
        Some(text) => text.whole(key, VOCAB_MAX),
        None => Ok(None),
    };
    let vocab = of_text("vocab_size")?.unwrap_or(128_256);
    let Some(image_row) = image_token.checked_sub(vocab) else {
        let reason = format!("stands behind the {vocab} tokens of the vocabulary in this family");
        return Err(config.corrupt("image_token_index", reason));
    };
    let mosaic = MosaicSpec { tiles, local, between, ratios, image_row };
    if mosaic.arrangements().count() > ratios {
        let reason = format!("{ratios}, and {tiles} tiles can be arranged in more ways");
        return Err(vision.corrupt("supported_aspect_ratios", reason));
    }
    let ffn = whole("intermediate_size", WIDTH_MAX / 2, 5120)?;
    let eps = vision.positive("norm_eps")?.unwrap_or(1e-5);
    let mlp = DenseSpec { ffn, activation, gated: false, up_bias: true, down_bias: true };
    let layers = layers([hidden, heads, count], mlp, eps);
    let layers = layers.with_layers(|index, layer| layer.attention.gated_halves = index >= local);
    // The image token is outside the vocabulary, so another token stands in prompts; its row is given.
    let padding = config.whole("pad_token_id", VOCAB_MAX)?.or(of_text("pad_token_id")?).unwrap_or(128_004);
    let stand_in = if padding < vocab { padding } else { 0 };
    let tower = TowerSpec {
        patch,
        frame: Some(side),
        squares_max: tiles,
        patches_max: tile * tiles,
        reads: Reads { bias: true, ..Reads::default() },
        mosaic: Some(mosaic),
        image_token: image_token as u32,
        stand_in: Some(stand_in as u32),
        ..TowerSpec::bare(Family::Mllama, layers, text_hidden)
    };
    tower.checked(&vision)
}

/// Activation of the MLPs.
fn activation(vision: &Config) -> Result<Activation, LoadError> {
    match vision.string("hidden_act")?.unwrap_or("gelu") {
        "gelu" => Ok(Activation::GeluErf),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        "quick_gelu" => Ok(Activation::QuickGelu),
        other => {
            let reason = "gelu, gelu_pytorch_tanh and quick_gelu are known";
            Err(vision.unsupported("hidden_act", other, reason))
        }
    }
}

/// Side of a patch in pixels, and number of patches in a tile. Checks them against the image processor's tiles: up
/// to `tiles`, with sides of `side` pixels.
fn tile(vision: &Config, side: usize, tiles: usize) -> Result<[usize; 2], LoadError> {
    let whole = |key: &str, max, usual| Ok::<_, LoadError>(vision.count(key, max)?.unwrap_or(usual));
    let (image, patch) = (whole("image_size", WIDTH_MAX, 448)?, whole("patch_size", WIDTH_MAX, 14)?);
    let tile = (image / patch).saturating_mul(image / patch);
    if image != side || !image.is_multiple_of(patch) || tile.saturating_mul(tiles) > PATCHES_MAX {
        let reason = format!(
            "{tiles} tiles of {side} pixels a side, whose places are learned for {image} in patches of {patch}"
        );
        return Err(vision.corrupt("image_size", reason));
    }
    if whole("max_num_tiles", TILES_MAX, 4)? != tiles || tiles > TILES_MAX {
        let reason = format!("the image processor makes up to {tiles}, and {TILES_MAX} are possible");
        return Err(vision.corrupt("max_num_tiles", reason));
    }
    Ok([patch, tile])
}

/// Layers that attend across all tiles of a picture.
fn layers([hidden, heads, count]: [usize; 3], mlp: DenseSpec, eps: f32) -> TransformerSpec {
    let attention = AttentionSpec {
        mask: Mask::Whole { reach: None },
        rope: None,
        ..AttentionSpec::causal(HeadShape { heads, kv_heads: heads, head_dim: hidden / heads })
    };
    let layer = LayerSpec { order: NormOrder::Pre, attention, mlp: MlpSpec::Dense(mlp), residual_scale: 1.0 };
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, eps };
    TransformerSpec::bare("mllama_vision", [1, hidden], vec![layer; count], norm, PATCHES_MAX)
}

/// Intermediate layers whose output is read too.
fn between(vision: &Config, local: usize) -> Result<Vec<usize>, LoadError> {
    const KEY: &str = "intermediate_layers_indices";
    let Some(list) = vision.get(KEY) else { return Ok(vec![3, 7, 15, 23, 30]) };
    let number = |value: &serde_json::Value| {
        value.as_u64().and_then(|layer| usize::try_from(layer).ok()).filter(|&layer| layer < local)
    };
    let numbers = list.as_array().map(|list| list.iter().map(number).collect::<Option<Vec<usize>>>());
    let numbers = numbers.flatten().filter(|numbers| numbers.len() <= LAYERS_MAX);
    numbers.ok_or_else(|| vision.corrupt(KEY, format!("expected a list of layers below {local}")))
}

/// Numbers the layers of both kinds consecutively, and renames their gates.
pub(super) fn name_layers(tensors: &mut [Tensor], local: usize) {
    for tensor in tensors {
        let kinds =
            [("vision_model.transformer.layers.", 0), ("vision_model.global_transformer.layers.", local)];
        let found = kinds.iter().find_map(|(start, first)| {
            let (number, own) = tensor.name.strip_prefix(start)?.split_once('.')?;
            Some((first + number.parse::<usize>().ok().filter(|&n| n < LAYERS_MAX)?, own))
        });
        let Some((layer, own)) = found else { continue };
        let own = match own {
            "gate_attn" => "half_factor.0",
            "gate_ffn" => "half_factor.1",
            own => own,
        };
        tensor.name = format!("vision_model.layers.{layer}.{own}");
    }
}
