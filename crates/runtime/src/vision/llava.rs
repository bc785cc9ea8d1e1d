//! LLaVA 1.5 and LLaVA-NeXT: the output of one of CLIP's layers, through an MLP. A class token stands before the
//! patches. LLaVA-NeXT encodes a picture as a whole, and on a canvas of squares, each on its own. Of the canvas,
//! only the rows with parts of the picture are kept, and a learned row ends each line.

use serde_json::Value;

use super::spec::{Family, LearnedPositions, Reads, TowerSpec};
use super::{pixtral, vit};
use crate::error::LoadError;
use crate::limits::{PATCHES_MAX, VOCAB_MAX};
use crate::spec::Config;

/// Whether the model's tower is supported. Otherwise its text model runs alone.
pub(super) fn knows(config: &Config) -> Result<bool, LoadError> {
    let is_next = config.string("model_type")? == Some("llava_next");
    let vision = config.object("vision_config")?;
    let kind = vision.as_ref().map(|vision| vision.string("model_type")).transpose()?.flatten();
    let several = matches!(config.get("vision_feature_layer"), Some(Value::Array(list)) if list.len() > 1);
    Ok(!several
        && matches!((kind, is_next), (None | Some("clip_vision_model"), _) | (Some("pixtral"), false)))
}

/// Whether the MLP after a tower has biases. Its activation must be the usual one.
pub(super) fn mlp(config: &Config, usual_bias: bool) -> Result<bool, LoadError> {
    match config.string("projector_hidden_act")?.unwrap_or("gelu") {
        "gelu" => Ok(config.bool("multimodal_projector_bias")?.unwrap_or(usual_bias)),
        other => Err(config.unsupported("projector_hidden_act", other, "gelu is known")),
    }
}

/// Number of layers up to the one that is read, out of `layers`.
pub(super) fn layers_read(config: &Config, layers: usize, usual: i64) -> Result<usize, LoadError> {
    const KEY: &str = "vision_feature_layer";
    let layer = match config.get(KEY) {
        None => Some(usual),
        Some(Value::Array(list)) if list.len() == 1 => list[0].as_i64(),
        Some(value) => value.as_i64(),
    };
    let Some(layer) = layer else {
        let value = config.get(KEY).map(ToString::to_string).unwrap_or_default();
        return Err(config.unsupported(KEY, value, "one layer is read, whose number it must be"));
    };
    // Hidden states: before the first layer, and after each.
    let states = layers as i64 + 1;
    let from_first = if layer < 0 { states + layer } else { layer };
    match usize::try_from(from_first) {
        Ok(count @ 1..) if count <= layers => Ok(count),
        _ => Err(config.corrupt(KEY, format!("{layer} is none of {layers} layers"))),
    }
}

/// Token in place of a picture.
pub(super) fn image_token(config: &Config, usual: usize) -> Result<u32, LoadError> {
    let token = match config.whole("image_token_id", VOCAB_MAX)? {
        Some(token) => Some(token),
        None => config.whole("image_token_index", VOCAB_MAX)?,
    };
    Ok(token.unwrap_or(usual) as u32)
}

/// Describes the tower. `config` is the whole model's. Frames have sides of `frame` pixels, or consist of up to
/// `squares` squares of that size. The text model's rows have `text_hidden` elements.
pub(super) fn spec(
    config: &Config,
    frame: Option<usize>,
    squares: usize,
    text_hidden: usize,
) -> Result<TowerSpec, LoadError> {
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let is_next = config.string("model_type")? == Some("llava_next");
    match vision.string("model_type")?.unwrap_or("clip_vision_model") {
        "clip_vision_model" => {}
        "pixtral" if !is_next && frame.is_none() => return pixtral::spec(config, text_hidden),
        other => {
            let reason = "LLaVA's tower is CLIP's or, of LLaVA itself, Pixtral's, with its own image processor beside it";
            return Err(vision.unsupported("model_type", other, reason));
        }
    }
    let mut vit = vit::read(&vision, &vit::CLIP)?;
    let side = vit.image / vit.patch;
    let frame = frame.unwrap_or(0);
    let fits = side > 0 && frame == vit.image && (!is_next || frame.is_multiple_of(vit.patch));
    if !fits || side * side * squares > PATCHES_MAX || is_next != (squares > 1) {
        let reason = format!("{squares} squares of {frame} pixels, and the tower's are of {}", vit.image);
        return Err(vision.corrupt("image_size", reason));
    }
    const SELECT: &str = "vision_feature_select_strategy";
    match config.string(SELECT)?.unwrap_or("default") {
        "default" => {}
        other => {
            let reason = "rows are of patches alone (default)";
            return Err(config.unsupported(SELECT, other, reason));
        }
    }
    let count = layers_read(config, vit.layers.layers.len(), -2)?;
    vit.layers.layers.truncate(count);
    vit.layers.embedding_norm = true;
    let bias = mlp(config, true)?;
    let tower = TowerSpec {
        patch: vit.patch,
        frame: Some(side * vit.patch),
        squares_max: squares,
        patches_max: side * side * squares,
        learned: Some(LearnedPositions { side, between: false }),
        first: true,
        reads: Reads { inner: text_hidden, bias, ..Reads::default() },
        lines: is_next,
        image_token: image_token(config, 32_000)?,
        ..TowerSpec::bare(Family::Llava, vit.placed(side * side + 1), text_hidden)
    };
    tower.checked(&vision)
}
