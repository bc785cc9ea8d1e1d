//! Gemma 3: SigLIP's layers over frames of one size, the mean over squares of patches, a norm and one matrix. In
//! the text model, rows of a picture attend to each other in both directions.

use super::spec::{Family, LearnedPositions, Reads, TowerNorm, TowerSpec};
use super::vit;
use crate::error::LoadError;
use crate::limits::{PATCHES_MAX, VOCAB_MAX};
use crate::spec::{Config, Names};

/// SigLIP's tensor names in Gemma 3 and LLaVA.
pub(super) const NAMES: Names = Names { prefix: "vision_tower.", ..vit::NAMES };

/// Tokens before and after a picture's rows.
pub(super) const MARKS: [&str; 2] = ["<start_of_image>", "<end_of_image>"];

/// Describes the tower. `config` is the whole model's; frames have sides of `frame` pixels, and the text model's
/// rows `text_hidden` elements.
pub(super) fn spec(config: &Config, frame: usize, text_hidden: usize) -> Result<TowerSpec, LoadError> {
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let vit = vit::read(&vision, &vit::SIGLIP)?;
    let side = vit.image / vit.patch;
    let rows = config.count("mm_tokens_per_image", PATCHES_MAX)?.unwrap_or(256);
    let rows_side = rows.isqrt();
    let whole = rows_side > 0 && side.is_multiple_of(rows_side) && frame == vit.image;
    if !whole || rows_side * rows_side != rows || side * side > PATCHES_MAX {
        let reason = format!(
            "frames of {frame} pixels are no whole squares for {rows} rows of the {side} x {side} patches of {} pixels",
            vit.image
        );
        return Err(config.corrupt("mm_tokens_per_image", reason));
    }
    let token = |key: &str| config.whole(key, VOCAB_MAX);
    let image_token = match token("image_token_id")? {
        Some(token) => token,
        None => token("image_token_index")?.unwrap_or(262_144),
    };
    let eps = vit.layers.norm.eps;
    let tower = TowerSpec {
        patch: vit.patch,
        patch_bias: true,
        joined: side / rows_side,
        frame: Some(side * vit.patch),
        patches_max: side * side,
        learned: Some(LearnedPositions { side, between: false }),
        reads: Reads {
            normed: true,
            mean: true,
            norm: Some(TowerNorm { eps, from_one: true }),
            ..Reads::default()
        },
        mutual: true,
        image_token: image_token as u32,
        ..TowerSpec::bare(Family::Gemma3, vit.placed(side * side), text_hidden)
    };
    tower.checked(&vision)
}
