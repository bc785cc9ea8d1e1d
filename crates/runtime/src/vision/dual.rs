//! CLIP and SigLIP: a vision transformer over frames of one size, with pooling to a single vector in the same space
//! as texts' vectors. CLIP pools the class token before the patches; SigLIP has a learned query.

use hanzo_engine_ops::Activation;
use serde_json::Map;

use super::spec::{Family, LearnedPositions, Pooling, Reads, TowerSpec};
use super::vit;
use crate::error::LoadError;
use crate::head::HeadActivation;
use crate::limits::PATCHES_MAX;
use crate::spec::{Config, DenseSpec};

/// Reads `vision_config`. Settings that older files repeat in `vision_config_dict` take precedence.
fn vision_config(config: &Config) -> Result<Config, LoadError> {
    let mut vision = match config.object("vision_config")? {
        Some(vision) => vision,
        None => Config::new(config.file.clone(), Map::new()),
    };
    if let Some(again) = config.object("vision_config_dict")? {
        for (key, value) in again.settings.iter().filter(|(_, value)| !value.is_null()) {
            vision.set(key, value.clone());
        }
    }
    Ok(vision)
}

/// Describes the tower. `config` is the whole model's; frames have sides of `frame` pixels, and vectors
/// `dimensions` elements.
pub(super) fn spec(config: &Config, frame: usize, dimensions: usize) -> Result<TowerSpec, LoadError> {
    let is_clip = config.string("model_type")? == Some("clip");
    let vision = vision_config(config)?;
    let clip = vit::Usual { patch: 32, ..vit::CLIP };
    let mut vit = vit::read(&vision, if is_clip { &clip } else { &vit::SIGLIP })?;
    let side = vit.image / vit.patch;
    if side == 0 || frame != vit.image || side * side > PATCHES_MAX {
        let reason =
            format!("frames have {frame} pixels in a line, and the tower's {side} patches of {}", vit.patch);
        return Err(vision.corrupt("image_size", reason));
    }
    let hidden = vit.layers.hidden;
    let heads = vit.layers.heads().heads;
    let pooled = match vit.layers.layers.first().and_then(|layer| layer.mlp.dense()) {
        Some(&DenseSpec { ffn, activation, .. }) if !is_clip => {
            let activation = match activation {
                Activation::GeluTanh => HeadActivation::GeluTanh,
                Activation::GeluErf => HeadActivation::Gelu,
                other => {
                    let reason = "gelu and gelu_pytorch_tanh are known beside a query that is learned";
                    return Err(vision.unsupported("hidden_act", format!("{other:?}"), reason));
                }
            };
            Pooling::Probe { heads, ffn, activation }
        }
        _ => Pooling::First,
    };
    if !is_clip && vision.bool("vision_use_head")? == Some(false) {
        let reason = "without it a picture has no vector";
        return Err(vision.unsupported("vision_use_head", "false", reason));
    }
    if !is_clip && dimensions != hidden {
        let reason = format!("vectors of texts have {dimensions} elements, and those of pictures {hidden}");
        return Err(config.corrupt("projection_size", reason));
    }
    vit.layers.embedding_norm = is_clip;
    let before = usize::from(is_clip);
    let tower = TowerSpec {
        patch: vit.patch,
        patch_bias: !is_clip,
        frame: Some(side * vit.patch),
        first: is_clip,
        patches_max: side * side,
        learned: Some(LearnedPositions { side, between: false }),
        reads: Reads { normed: true, ..Reads::default() },
        pooled: Some(pooled),
        ..TowerSpec::bare(Family::Dual, vit.placed(side * side + before), dimensions)
    };
    tower.checked(&vision)
}
