//! The operator's bounds of pictures: how large one is shown to a model where its request says nothing, and at most.

use hanzo_engine_media::PixelRoom;

use super::{ConfigError, EngineSection, ModelConfig};
use crate::limits;

impl EngineSection {
    /// The bounds of pictures; `own` is a model's own default.
    pub(crate) fn picture_room(&self, own: Option<u64>) -> PixelRoom {
        let room = PixelRoom::default();
        PixelRoom { usual: own.or(self.picture_pixels), most: self.picture_pixels_max.unwrap_or(room.most) }
    }

    /// Whether the bounds are within what any tower takes.
    pub(super) fn check_pictures(&self, models: &[ModelConfig]) -> Result<(), ConfigError> {
        let own = models.iter().map(|model| ("models", model.picture_pixels));
        let all = [
            ("engine.picture_pixels", self.picture_pixels),
            ("engine.picture_pixels_max", self.picture_pixels_max),
        ];
        let (least, most) = (limits::PICTURE_PIXELS.start(), limits::PICTURE_PIXELS.end());
        for (key, pixels) in all.into_iter().chain(own) {
            if let Some(pixels) = pixels.filter(|pixels| !limits::PICTURE_PIXELS.contains(pixels)) {
                let of_model = if key == "models" { "picture_pixels " } else { "" };
                let reason = format!("{of_model}must be {least} to {most}, not {pixels}");
                return Err(ConfigError::Value { key, reason });
            }
        }
        Ok(())
    }
}
