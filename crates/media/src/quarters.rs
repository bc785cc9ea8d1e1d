//! Pictures in quarters, followed by the whole, each near its own size: Idefics2
//! (`image_processing_idefics2.py`). A frame's longer side is limited first. Then both sides are raised to a
//! minimum, regardless of the aspect ratio.

use crate::error::PictureError;
use crate::options::Detail;
use crate::picture::{FrameSize, Picture, PreparedPicture};
use crate::resize::{Filter, resized};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quarters {
    /// Minimum and maximum side in pixels. None: frames keep their size.
    pub(crate) sides: Option<[u32; 2]>,
    /// True if there are quarters.
    pub(crate) splits: bool,
}

impl Quarters {
    pub(crate) fn frames_max(&self) -> usize {
        if self.splits { 5 } else { 1 }
    }

    /// Size of a frame. Truncates as the reference does.
    fn size(&self, height: u32, width: u32) -> FrameSize {
        let Some([shortest, longest]) = self.sides else { return FrameSize { height, width } };
        let aspect = f64::from(width) / f64::from(height);
        let (height, width) = if width >= height && width > longest {
            ((f64::from(longest) / aspect) as u32, longest)
        } else if height > width && height > longest {
            (longest, (f64::from(longest) * aspect) as u32)
        } else {
            (height, width)
        };
        FrameSize { height: height.max(shortest), width: width.max(shortest) }
    }

    pub(crate) fn prepare(
        &self,
        picture: Picture,
        filter: Filter,
        detail: Detail,
    ) -> Result<PreparedPicture, PictureError> {
        let (height, width) = (picture.height, picture.width);
        let splits = detail.splits(self.splits);
        let mut pictures = Vec::with_capacity(5);
        if splits {
            let (down, right) = (height / 2, width / 2);
            for (top, bottom) in [(0, down), (down, height)] {
                for (left, end) in [(0, right), (right, width)] {
                    pictures.push(picture.cut([top, bottom], [left, end]));
                }
            }
        }
        pictures.push(picture);
        if pictures.iter().any(|part| part.width == 0 || part.height == 0) {
            return Err(PictureError::Shape { width, height });
        }
        let frame = |part: Picture| {
            let size = self.size(part.height, part.width);
            resized(part, size, filter).into()
        };
        let parts = if splits { 2 } else { 0 };
        let frames = pictures.into_iter().map(frame).collect();
        Ok(PreparedPicture { from: [height, width], frames, rows: parts, cols: parts })
    }
}
