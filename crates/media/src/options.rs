//! Options of a request for a picture, and the limits of its size.

use serde::{Deserialize, Serialize};

/// Level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    /// As in the processor's settings.
    #[default]
    Own,
    /// Whole picture only, in one frame.
    Low,
    /// Parts too, if the processor supports them.
    High,
}

impl Detail {
    /// Whether the picture is split, for a processor whose settings say `own`.
    pub(crate) fn splits(self, own: bool) -> bool {
        match self {
            Detail::Own => own,
            Detail::Low => false,
            Detail::High => true,
        }
    }
}

/// Request's options for a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureOptions {
    /// Level of detail.
    pub detail: Detail,
    /// Minimum pixels, overriding the processor.
    pub pixels_min: Option<u64>,
    /// Maximum pixels, overriding the processor.
    pub pixels_max: Option<u64>,
}

impl PictureOptions {
    /// Whether the request bounds the number of pixels.
    pub(crate) fn bounds_pixels(&self) -> bool {
        self.pixels_min.is_some() || self.pixels_max.is_some()
    }
}

/// Limits of a picture's pixels, set by the operator and by the vision encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelLimits {
    /// Default maximum. None: the processor's maximum. High detail ignores it.
    pub usual: Option<u64>,
    /// Absolute maximum.
    pub most: u64,
}

impl Default for PixelLimits {
    fn default() -> Self {
        PixelLimits { usual: None, most: u64::MAX }
    }
}
