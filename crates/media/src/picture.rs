//! Pixels of a picture, and the frames that a vision tower reads of it.

/// Upright picture in RGB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Columns; at least 1.
    pub width: u32,
    /// Rows; at least 1.
    pub height: u32,
    /// Pixels: `(height, width, 3)`.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// Cuts out rows `top` to `bottom` and columns `left` to `right`; the ends are excluded.
    pub(crate) fn cut(&self, [top, bottom]: [u32; 2], [left, right]: [u32; 2]) -> Picture {
        let lines = self.rgb.chunks_exact(self.width as usize * 3);
        let lines = lines.skip(top as usize).take((bottom - top) as usize);
        let rgb = lines.flat_map(|line| &line[left as usize * 3..right as usize * 3]).copied().collect();
        Picture { width: right - left, height: bottom - top, rgb }
    }
}

/// Size of a frame in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameSize {
    pub(crate) height: u32,
    pub(crate) width: u32,
}

impl FrameSize {
    /// Size with equal sides.
    pub(crate) fn square(side: u32) -> FrameSize {
        FrameSize { height: side, width: side }
    }
}

/// Input of one pass of the tower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Pixels: `(height, width, 3)`.
    pub rgb: Vec<u8>,
}

impl From<Picture> for Frame {
    fn from(Picture { width, height, rgb }: Picture) -> Frame {
        Frame { width, height, rgb }
    }
}

/// Preprocessed picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedPicture {
    /// Original rows and columns.
    pub from: [u32; 2],
    /// Frames: the parts row by row, then the whole; or the whole alone; or the whole, then the canvas.
    pub frames: Vec<Frame>,
    /// Rows of parts; 0 if not split.
    pub rows: u32,
    /// Columns of parts.
    pub cols: u32,
}

impl PreparedPicture {
    /// Picture of one frame, which is not split.
    pub(crate) fn of_frame(from: [u32; 2], frame: impl Into<Frame>) -> PreparedPicture {
        PreparedPicture { from, frames: vec![frame.into()], rows: 0, cols: 0 }
    }
}
