//! Limits of picture sizes: the default when a request names none, and the maximum.

use hanzo_engine_media::PixelLimits;

use super::EngineSection;

impl EngineSection {
    /// Limits of picture sizes; `own` is the model's default.
    pub(crate) fn picture_limits(&self, own: Option<u64>) -> PixelLimits {
        let limits = PixelLimits::default();
        PixelLimits {
            usual: own.or(self.picture_pixels),
            most: self.picture_pixels_max.unwrap_or(limits.most),
        }
    }
}
