//! Keys of a tower's file: those that are read, and those with a single supported value. Any other key is refused.

use std::fmt;

use super::Tower;
use crate::error::LoadError;
use crate::gguf::Value;

/// Keys below `clip.vision.` that are read, or repeat something that is.
const READ: &[&str] = &[
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "block_count",
    "embedding_length",
    "feature_layer",
    "feed_forward_length",
    "fullatt_block_indexes",
    "image_aspect_ratio",
    "image_crop_resolution",
    "image_grid_pinpoints",
    "image_max_pixels",
    "image_mean",
    "image_min_pixels",
    "image_size",
    "image_split_resolution",
    "image_std",
    "is_deepstack_layers",
    "mm_patch_merge_type",
    "mm_projector_type",
    "n_wa_pattern",
    "patch_size",
    "preproc_image_size",
    "projection_dim",
    "projector.rows",
    "projector.scale_factor",
    "projector_type",
    "spatial_merge_size",
    "window_size",
];

/// Keys below `clip.vision.` with a single supported value.
const USUAL: [(&str, Usual); 3] = [
    ("num_channels", Usual::Whole(3)),
    ("temporal_patch_size", Usual::Whole(2)),
    ("rope.freq_base", Usual::Number(1e4)),
];

/// Only supported value of a setting.
#[derive(Clone, Copy, Debug)]
pub(in crate::vision) enum Usual {
    Whole(u32),
    Number(f32),
    Text(&'static str),
}

impl Usual {
    pub(in crate::vision) fn is(self, value: &Value) -> bool {
        match (self, value) {
            (Usual::Whole(usual), Value::U32(found)) => usual == *found,
            (Usual::Whole(usual), Value::I32(found)) => i64::from(usual) == i64::from(*found),
            (Usual::Number(usual), Value::F32(found)) => usual == *found,
            (Usual::Text(usual), Value::String(found)) => usual == found,
            _ => false,
        }
    }
}

impl fmt::Display for Usual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Usual::Whole(usual) => write!(f, "{usual}"),
            Usual::Number(usual) => write!(f, "{usual}"),
            Usual::Text(usual) => f.write_str(usual),
        }
    }
}

impl Tower<'_> {
    /// Refuses unread settings, because they could change the tower.
    pub(super) fn check_keys(&self) -> Result<(), LoadError> {
        for (key, value) in self.metadata().iter() {
            let Some(own) = key.strip_prefix("clip.vision.") else { continue };
            let usual = USUAL.iter().find(|(name, _)| *name == own);
            if READ.contains(&own) || usual.is_some_and(|(_, usual)| usual.is(value)) {
                continue;
            }
            return Err(LoadError::Unsupported {
                file: self.metadata().file().to_owned(),
                key: key.to_owned(),
                value: value.to_string(),
                reason: match usual {
                    Some((_, usual)) => format!("only {usual} is known"),
                    None => "it is not known, so what it changes would be lost".into(),
                },
            });
        }
        Ok(())
    }
}
