//! Dynamic resolution: a picture is resized as a whole, near its own size. Qwen bounds the number of pixels, Pixtral and
//! Mistral 3 the longer side. Both sides are multiples of the square (patch side times merge).

use crate::decode::Limits;
use crate::error::PictureError;
use crate::options::{Detail, PictureOptions, PixelLimits};
use crate::picture::{FrameSize, Picture, PreparedPicture};
use crate::resize::{Filter, resized};

/// Patches of a picture, and the rule for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DynamicResolution {
    /// Side of a patch in pixels.
    pub(crate) patch: u32,
    /// Patches per side that are merged into one token (`merge_size`).
    pub(crate) joined: u32,
    /// Rule that gives a picture's size.
    pub(crate) rule: SizeRule,
    /// If false, the picture keeps its size and pixel bounds do not apply.
    pub(crate) resizes: bool,
}

/// Minimum and maximum number of pixels.
#[derive(Clone, Copy)]
struct PixelBounds {
    least: u64,
    most: u64,
}

/// Rule for a picture's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeRule {
    /// Minimum and maximum number of pixels.
    Pixels(u64, u64),
    /// Maximum of the longer side in pixels.
    Longest(u32),
}

/// Maximum aspect ratio.
const ASPECT_MAX: f64 = 200.0;
/// Low detail: at most 512 x 512 pixels, as OpenAI's `low`.
const LOW_PIXELS: u64 = (LOW_SIDE as u64).pow(2);
const LOW_SIDE: u32 = 512;

impl DynamicResolution {
    /// Side of a square in pixels.
    pub(crate) fn square(&self) -> u32 {
        self.patch * self.joined
    }

    /// Minimum and maximum pixels. Minimum: of the request, else of the processor. Maximum: of the request, else
    /// by detail from operator or processor; never above `limits.most`.
    fn bounds(
        &self,
        own: PixelBounds,
        options: PictureOptions,
        limits: PixelLimits,
    ) -> Result<PixelBounds, PictureError> {
        let least = options.pixels_min.unwrap_or(own.least);
        // A requested minimum raises the default maximum, up to the processor's maximum.
        let usual =
            limits.usual.map_or(own.most, |usual| usual.max(options.pixels_min.unwrap_or(0).min(own.most)));
        let most = match options.detail {
            Detail::Low => usual.min(LOW_PIXELS),
            Detail::Own => usual,
            Detail::High => own.most,
        };
        let most = options.pixels_max.unwrap_or(most).min(limits.most);
        let least = if options.pixels_min.is_none() { least.min(most) } else { least };
        let square = u64::from(self.square()).pow(2);
        if least > most || most < square {
            return Err(PictureError::Bounds { least, most, square });
        }
        Ok(PixelBounds { least, most })
    }

    /// Resulting size. Rounds as Qwen's image processor does (`smart_resize` of
    /// `image_processing_qwen2_vl.py`).
    fn size(&self, picture: &Picture, bounds: PixelBounds) -> Result<FrameSize, PictureError> {
        let PixelBounds { least, most } = bounds;
        let shape = PictureError::Shape { width: picture.width, height: picture.height };
        let [height, width] = [picture.height, picture.width].map(f64::from);
        if height.max(width) / height.min(width) > ASPECT_MAX {
            return Err(shape);
        }
        let square = f64::from(self.square());
        let near = [height, width].map(|side| (side / square).round_ties_even() * square);
        let pixels = near[0] * near[1];
        let [height, width] = if pixels > most as f64 {
            let by = (height * width / most as f64).sqrt();
            [height, width].map(|side| (side / by / square).floor() * square).map(|side| side.max(square))
        } else if pixels < least as f64 {
            let by = (least as f64 / (height * width)).sqrt();
            [height, width].map(|side| (side * by / square).ceil() * square)
        } else {
            near
        };
        if height < square || width < square || height.max(width) > f64::from(u16::MAX) {
            return Err(shape);
        }
        Ok(FrameSize { height: height as u32, width: width as u32 })
    }

    /// Longer side after scaling the picture down to at most `pixels` pixels.
    fn longest_of(picture: &Picture, pixels: u64) -> u32 {
        let [height, width] = [picture.height, picture.width].map(f64::from);
        let by = (pixels as f64 / (height * width)).sqrt().min(1.0);
        ((height.max(width) * by) as u32).max(1)
    }

    /// Size with the longer side at most `longest`. Truncates as Pixtral's image
    /// processor does.
    fn size_of_longest(&self, picture: &Picture, longest: u32) -> Result<FrameSize, PictureError> {
        let [height, width] = [picture.height, picture.width].map(f64::from);
        let ratio = (height / f64::from(longest)).max(width / f64::from(longest));
        let [height, width] = match ratio > 1.0 {
            true => [height, width].map(|side| (side / ratio).floor() as u32),
            false => [picture.height, picture.width],
        };
        if height == 0 || width == 0 {
            return Err(PictureError::Shape { width: picture.width, height: picture.height });
        }
        let square = self.square();
        let [height, width] = [height, width].map(|side| side.div_ceil(square) * square);
        Ok(FrameSize { height, width })
    }

    pub(crate) fn prepare(
        &self,
        picture: Picture,
        filter: Filter,
        options: PictureOptions,
        limits: PixelLimits,
    ) -> Result<PreparedPicture, PictureError> {
        let from = [picture.height, picture.width];
        let size = match self.rule {
            SizeRule::Longest(_) if options.bounds_pixels() => return Err(PictureError::NoBounds),
            _ if !self.resizes => FrameSize { height: picture.height, width: picture.width },
            SizeRule::Pixels(least, most) => {
                self.size(&picture, self.bounds(PixelBounds { least, most }, options, limits)?)?
            }
            SizeRule::Longest(longest) => {
                let low = if options.detail == Detail::Low { LOW_SIDE } else { u32::MAX };
                let usual = limits.usual.filter(|_| options.detail != Detail::High).unwrap_or(u64::MAX);
                let bounded = Self::longest_of(&picture, usual.min(limits.most));
                self.size_of_longest(&picture, longest.min(low).min(bounded))?
            }
        };
        let max = Limits::default().pixels_max;
        if u64::from(size.height) * u64::from(size.width) > max {
            return Err(PictureError::Larger { width: size.width, height: size.height, max });
        }
        let square = self.square();
        if !size.height.is_multiple_of(square) || !size.width.is_multiple_of(square) {
            return Err(PictureError::Shape { width: picture.width, height: picture.height });
        }
        Ok(PreparedPicture::of_frame(from, resized(picture, size, filter)))
    }
}
