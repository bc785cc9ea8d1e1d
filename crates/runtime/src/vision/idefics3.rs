//! Idefics3 and SmolVLM: SigLIP's layers over frames of one size, and one matrix over squares of patches.

use super::spec::{Family, LearnedPositions, Reads, TowerSpec};
use super::vit;
use crate::error::LoadError;
use crate::limits::{PATCHES_MAX, VOCAB_MAX, WIDTH_MAX};
use crate::spec::{Config, Names};

/// SigLIP's tensor names in Idefics3 and SmolVLM.
pub(super) const NAMES: Names = Names { prefix: "vision_model.", ..vit::NAMES };

/// Describes the tower. `config` is the whole model's; frames have sides of `frame` pixels, and the text model's
/// rows `text_hidden` elements.
pub(super) fn spec(config: &Config, frame: usize, text_hidden: usize) -> Result<TowerSpec, LoadError> {
    let vision = config.object("vision_config")?.ok_or_else(|| config.missing("vision_config"))?;
    let vit = vit::read(&vision, &vit::IDEFICS3)?;
    let patch = vit.patch;
    let learned_side = vit.image / patch;
    let joined = config.count("scale_factor", WIDTH_MAX)?.unwrap_or(2);
    let side = frame / patch;
    if learned_side == 0 || side == 0 || !side.is_multiple_of(joined) || side * side > PATCHES_MAX {
        let reason = format!(
            "frames of {frame} pixels in patches of {patch}, {joined} x {joined} of them a row, are no whole rows or more \
             than {PATCHES_MAX} patches"
        );
        return Err(vision.corrupt("patch_size", reason));
    }
    let patches = side * side;
    let tower = TowerSpec {
        patch,
        patch_bias: true,
        joined,
        frame: Some(frame / patch * patch),
        patches_max: patches,
        learned: Some(LearnedPositions { side: learned_side, between: false }),
        reads: Reads { normed: true, ..Reads::default() },
        image_token: config.whole("image_token_id", VOCAB_MAX)?.unwrap_or(128_257) as u32,
        ..TowerSpec::bare(Family::Idefics3, vit.placed(patches), text_hidden)
    };
    tower.checked(&vision)
}
