//! Pictures as squares of one size: resized, or cropped from the centre (Gemma 3, SigLIP, CLIP and LLaVA).
//! LLaVA-NeXT adds the picture on a canvas of several squares, of the best size in a list
//! (`image_processing_llava_next.py`).

use crate::error::{PictureError, ProcessorError};
use crate::options::Detail;
use crate::picture::{FrameSize, Picture, PreparedPicture};
use crate::resize::{Filter, resize, resize_on_square, resized};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Square {
    /// Side in pixels.
    pub(crate) side: u32,
    /// Colour on which a non-square picture is padded first.
    pub(crate) padded: Option<[u8; 3]>,
    /// If true, the shorter side is resized to the square's and the centre is cropped. Otherwise both sides are
    /// resized.
    pub(crate) cropped: bool,
}

/// Maximum pixels of the resized picture from which the centre is cropped.
const RESIZED_PIXELS_MAX: u64 = 50_000_000;

/// Places a picture on a canvas of one colour, at row `top` and column `left`.
fn on_canvas(
    picture: &Picture,
    FrameSize { height, width }: FrameSize,
    top: u32,
    left: u32,
    color: [u8; 3],
) -> Picture {
    let mut rgb = color.repeat(height as usize * width as usize);
    let (line, own) = (width as usize * 3, picture.width as usize * 3);
    let lines = rgb.chunks_exact_mut(line).skip(top as usize);
    for (to, from) in lines.zip(picture.rgb.chunks_exact(own)) {
        to[left as usize * 3..][..own].copy_from_slice(from);
    }
    Picture { width, height, rgb }
}

impl Square {
    pub(crate) fn prepare(&self, picture: Picture, filter: Filter) -> Result<PreparedPicture, PictureError> {
        let from = [picture.height, picture.width];
        Ok(PreparedPicture::of_frame(from, self.of(picture, filter)?))
    }

    fn of(&self, mut picture: Picture, filter: Filter) -> Result<Picture, PictureError> {
        let side = self.side;
        if let Some(color) = self.padded {
            let longest = picture.width.max(picture.height);
            picture = match longest == side {
                true => {
                    let (top, left) = ((longest - picture.height) / 2, (longest - picture.width) / 2);
                    on_canvas(&picture, FrameSize::square(longest), top, left, color)
                }
                false => resize_on_square(&picture, side, filter, color),
            };
        }
        let Picture { width, height, .. } = picture;
        if !self.cropped {
            return Ok(resized(picture, FrameSize::square(side), filter));
        }
        let (short, long) = (u64::from(width.min(height)), u64::from(width.max(height)));
        let long = u64::from(side) * long / short;
        if long * u64::from(side) > RESIZED_PIXELS_MAX {
            return Err(PictureError::Shape { width, height });
        }
        let long = long as u32;
        let (height, width) = if width <= height { (long, side) } else { (side, long) };
        let picture = resized(picture, FrameSize { height, width }, filter);
        let (top, left) = ((picture.height - side) / 2, (picture.width - side) / 2);
        Ok(picture.cut([top, top + side], [left, left + side]))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grids {
    /// Square for the whole picture.
    pub(crate) square: Square,
    /// Heights and widths of canvases, multiples of the square's side.
    canvases: Vec<[u32; 2]>,
}

/// Maximum squares of a canvas.
const SQUARES_MAX: u32 = 64;

impl Grids {
    pub(crate) fn new(square: Square, canvases: Vec<[u32; 2]>) -> Result<Grids, ProcessorError> {
        let side = square.side;
        let fits = |&[height, width]: &[u32; 2]| {
            let whole = height.is_multiple_of(side) && width.is_multiple_of(side);
            whole && (1..=SQUARES_MAX).contains(&((height / side).saturating_mul(width / side)))
        };
        if canvases.is_empty() || canvases.len() > 256 || !canvases.iter().all(fits) {
            let reason =
                format!("is no list of canvases, each of 1 to {SQUARES_MAX} squares of {side} pixels");
            return Err(ProcessorError::new("image_grid_pinpoints", reason));
        }
        Ok(Grids { square, canvases })
    }

    pub(crate) fn squares_max(&self) -> u32 {
        let side = self.square.side;
        self.canvases.iter().map(|[height, width]| height / side * (width / side)).max().unwrap_or(1)
    }

    /// Chooses the canvas that shows most of the picture's pixels, and among equals the one with the least
    /// unused area.
    fn best(&self, height: u32, width: u32) -> [u32; 2] {
        let own = u64::from(height) * u64::from(width);
        let (mut best, mut most, mut least) = (self.canvases[0], 0, u64::MAX);
        for &canvas in &self.canvases {
            let [rows, cols] = canvas.map(f64::from);
            let scale = (cols / f64::from(width)).min(rows / f64::from(height));
            let [wide, high] = [width, height].map(|side| (f64::from(side) * scale) as u64);
            let seen = (wide * high).min(own);
            let wasted = u64::from(canvas[0]) * u64::from(canvas[1]) - seen;
            if seen > most || seen == most && wasted < least {
                (best, most, least) = (canvas, seen, wasted);
            }
        }
        best
    }

    pub(crate) fn prepare(
        &self,
        picture: Picture,
        filter: Filter,
        detail: Detail,
    ) -> Result<PreparedPicture, PictureError> {
        let (height, width, side) = (picture.height, picture.width, self.square.side);
        let canvas = self.best(height, width);
        let [rows, cols] = canvas.map(f64::from);
        let (by_width, by_height) = (cols / f64::from(width), rows / f64::from(height));
        let size = match by_width < by_height {
            true => (((f64::from(height) * by_width).ceil() as u32).min(canvas[0]), canvas[1]),
            false => (canvas[0], ((f64::from(width) * by_height).ceil() as u32).min(canvas[1])),
        };
        if size.0 == 0 || size.1 == 0 {
            return Err(PictureError::Shape { width, height });
        }
        let mut frames = Vec::with_capacity(2);
        if detail != Detail::Low {
            let (top, left) = ((canvas[0] - size.0) / 2, (canvas[1] - size.1) / 2);
            let canvas = FrameSize { height: canvas[0], width: canvas[1] };
            let small = resize(&picture, size.1, size.0, filter);
            frames.push(on_canvas(&small, canvas, top, left, [0; 3]).into());
        }
        frames.insert(0, resized(picture, FrameSize::square(side), filter).into());
        let [rows, cols] = if frames.len() > 1 { canvas.map(|pixels| pixels / side) } else { [0; 2] };
        Ok(PreparedPicture { from: [height, width], frames, rows, cols })
    }
}
