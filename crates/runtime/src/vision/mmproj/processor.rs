//! Settings of a tower's image processor, in the form of `preprocessor_config.json`.

use serde_json::{Map, Value, json};

use super::Projector::{Gemma3, Idefics3, Mlp, Pixtral, Qwen2, Qwen3, Qwen25};
use super::{Tower, object};
use crate::error::LoadError;

impl Tower<'_> {
    /// Settings of `preprocessor_config.json`.
    pub(super) fn processor(&self) -> Result<Map<String, Value>, LoadError> {
        const MERGE: &str = "clip.vision.mm_patch_merge_type";
        let metadata = self.metadata();
        let (image, patch) = (self.count("image_size")?, self.count("patch_size")?);
        let number = |key: &str| metadata.u32(&format!("clip.vision.{key}"));
        let mut settings = match self.projector {
            Mlp => {
                let square = json!({"height": image, "width": image});
                match metadata.integers("clip.vision.image_grid_pinpoints")? {
                    Some(_) if metadata.string(MERGE)? != Some("spatial_unpad") => {
                        let reason = "with squares of a canvas spatial_unpad is known";
                        return Err(metadata.corrupt(MERGE, reason));
                    }
                    Some(sides) => json!({
                        "image_processor_type": "LlavaNextImageProcessor",
                        "crop_size": square,
                        "size": {"shortest_edge": image},
                        "image_grid_pinpoints": sides.chunks(2).collect::<Vec<_>>(),
                    }),
                    None => {
                        let pads = metadata.string("clip.vision.image_aspect_ratio")? != Some("square");
                        json!({
                            "image_processor_type": "LlavaImageProcessor",
                            "do_pad": pads,
                            "crop_size": square,
                            "size": {"shortest_edge": image},
                        })
                    }
                }
            }
            Qwen2 | Qwen25 | Qwen3 => {
                // Settings of the files that were published with the models.
                let usual = match self.projector {
                    Qwen3 => [65_536, 16_777_216],
                    _ => [3_136, 12_845_056],
                };
                json!({
                    "image_processor_type": "Qwen2VLImageProcessor",
                    "patch_size": patch,
                    "merge_size": number("spatial_merge_size")?.unwrap_or(2),
                    "min_pixels": number("image_min_pixels")?.unwrap_or(usual[0]),
                    "max_pixels": number("image_max_pixels")?.unwrap_or(usual[1]),
                })
            }
            Gemma3 => json!({
                "image_processor_type": "Gemma3ImageProcessor",
                "size": {"height": image, "width": image},
            }),
            Idefics3 => json!({
                "image_processor_type": "Idefics3ImageProcessor",
                "max_image_size": {"longest_edge": image},
                "size": {"longest_edge": number("preproc_image_size")?.unwrap_or(image.saturating_mul(4))},
            }),
            Pixtral => json!({
                "image_processor_type": "PixtralImageProcessor",
                "patch_size": patch,
                "size": {"longest_edge": number("preproc_image_size")?.unwrap_or(image)},
            }),
        };
        for name in ["image_mean", "image_std"] {
            let key = format!("clip.vision.{name}");
            let colors = metadata.floats(&key)?.ok_or_else(|| metadata.missing(&key))?;
            settings[name] = colors.into();
        }
        Ok(object(settings))
    }
}
