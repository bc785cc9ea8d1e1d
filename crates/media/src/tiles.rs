//! Pictures in square tiles, followed by the whole: Idefics3 and SmolVLM (`image_processing_idefics3.py`). The
//! picture is resized so that its longer side is `longest`, then so that both sides are whole tiles, and cut.

use crate::error::PictureError;
use crate::options::Detail;
use crate::picture::{Frame, FrameSize, Picture, PreparedPicture};
use crate::resize::{Filter, resized};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Longer side in pixels. None: the picture's own.
    pub(crate) longest: Option<u32>,
    /// Side of a tile in pixels.
    pub(crate) side: u32,
    /// True if there are tiles.
    pub(crate) splits: bool,
}

/// Maximum side.
const LONGEST_MAX: u32 = 4096;

/// Size with a longer side of `longest`. Truncates as the reference does.
fn of_longest(height: u32, width: u32, longest: u32) -> FrameSize {
    let aspect = f64::from(width) / f64::from(height);
    let even = |pixels: f64| {
        let pixels = pixels as u32;
        pixels + pixels % 2
    };
    let (height, width) = match width >= height {
        true => (even(f64::from(longest) / aspect), longest),
        false => (longest, even(f64::from(longest) * aspect)),
    };
    FrameSize { height: height.max(1), width: width.max(1) }
}

/// Limits both sides to [`LONGEST_MAX`].
fn below_most(FrameSize { height, width }: FrameSize) -> FrameSize {
    let aspect = f64::from(width) / f64::from(height);
    let (height, width) = match width >= height {
        true if width > LONGEST_MAX => ((f64::from(LONGEST_MAX) / aspect) as u32, LONGEST_MAX),
        false if height > LONGEST_MAX => (LONGEST_MAX, (f64::from(LONGEST_MAX) * aspect) as u32),
        _ => (height, width),
    };
    FrameSize { height: height.max(1), width: width.max(1) }
}

impl Tiles {
    pub(crate) fn frames_max(&self) -> usize {
        if !self.splits {
            return 1;
        }
        let parts = self.longest.unwrap_or(LONGEST_MAX).min(LONGEST_MAX).div_ceil(self.side) as usize;
        if parts > 1 { parts * parts + 1 } else { 1 }
    }

    /// Rounds both sides up to whole tiles.
    fn in_parts(&self, height: u32, width: u32) -> FrameSize {
        let aspect = f64::from(width) / f64::from(height);
        let whole = |pixels: u32| pixels.div_ceil(self.side) * self.side;
        match width >= height {
            true => {
                let width = whole(width);
                FrameSize { height: whole((f64::from(width) / aspect) as u32), width }
            }
            false => {
                let height = whole(height);
                FrameSize { height, width: whole((f64::from(height) * aspect) as u32) }
            }
        }
    }

    pub(crate) fn prepare(
        &self,
        picture: Picture,
        filter: Filter,
        detail: Detail,
    ) -> Result<PreparedPicture, PictureError> {
        let (width, height) = (picture.width, picture.height);
        let from = [height, width];
        let mut picture = picture;
        if let Some(longest) = self.longest {
            let size = below_most(of_longest(height, width, longest));
            picture = resized(picture, size, filter);
        } else if picture.width.max(picture.height) > LONGEST_MAX {
            return Err(PictureError::Shape { width, height });
        }
        let one = FrameSize::square(self.side);
        if !detail.splits(self.splits) {
            return Ok(PreparedPicture::of_frame(from, resized(picture, one, filter)));
        }
        let size = self.in_parts(picture.height, picture.width);
        if size.height == 0 || size.width == 0 {
            return Err(PictureError::Shape { width, height });
        }
        picture = resized(picture, size, filter);
        if size == one {
            return Ok(PreparedPicture::of_frame(from, picture));
        }
        let (rows, cols) = (size.height / self.side, size.width / self.side);
        let places = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
        let part = |start: u32| [start * self.side, (start + 1) * self.side];
        let mut frames: Vec<Frame> =
            places.map(|(row, col)| picture.cut(part(row), part(col)).into()).collect();
        frames.push(resized(picture, one, filter).into());
        Ok(PreparedPicture { from, frames, rows, cols })
    }
}
