//! Limits of picture sizes: the default when a request names none, and the maximum.

use hanzo_engine_media::PixelLimits;

use super::{ConfigError, EngineSection, ModelConfig};
use crate::limits;

impl EngineSection {
    /// Limits of picture sizes; `own` is the model's default.
    pub(crate) fn picture_limits(&self, own: Option<u64>) -> PixelLimits {
        let limits = PixelLimits::default();
        PixelLimits {
            usual: own.or(self.picture_pixels),
            most: self.picture_pixels_max.unwrap_or(limits.most),
        }
    }

    /// Checks that the limits are within what vision encoders take.
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
