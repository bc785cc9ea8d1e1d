//! Pictures on a canvas of square tiles, each of which goes through the vision tower (Llama 3.2 Vision,
//! `image_processing_mllama.py`). Of all canvases of up to `tiles` tiles, the one with the smallest upscaling
//! is chosen, or else the smallest downscaling. The picture is placed in the upper left corner, on black.

use crate::error::PictureError;
use crate::options::Detail;
use crate::picture::{Frame, FrameSize, Picture, PreparedPicture};
use crate::resize::{Filter, resized};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Canvas {
    /// Side of a tile in pixels.
    pub(crate) side: u32,
    /// Maximum number of tiles.
    pub(crate) tiles: u32,
}

impl Canvas {
    /// Rows and columns of tiles for a picture of size `[height, width]`.
    fn arranged(self, [height, width]: [u32; 2], tiles: u32) -> [u32; 2] {
        let scale = |[high, wide]: [u32; 2]| {
            let of = |squares: u32, pixels: u32| f64::from(squares * self.side) / f64::from(pixels);
            of(high, height).min(of(wide, width))
        };
        let all = || {
            let all = (1..=tiles).flat_map(|high| (1..=tiles).map(move |wide| [high, wide]));
            all.filter(|[high, wide]| high * wide <= tiles)
        };
        let larger = all().map(scale).filter(|&scale| scale >= 1.0).reduce(f64::min);
        let smaller = || all().map(scale).fold(0.0, f64::max);
        let wanted = larger.unwrap_or_else(smaller);
        let alike = all().filter(|&one| scale(one) == wanted);
        alike.min_by_key(|[high, wide]| high * wide).unwrap_or([1, 1])
    }

    pub(crate) fn prepare(
        self,
        picture: Picture,
        filter: Filter,
        detail: Detail,
    ) -> Result<PreparedPicture, PictureError> {
        let from @ [height, width] = [picture.height, picture.width];
        let tiles = if detail == Detail::Low { 1 } else { self.tiles };
        let arranged = self.arranged(from, tiles);
        let canvas = arranged.map(|squares| squares * self.side);
        let target = [0, 1].map(|side| from[side].clamp(self.side.min(canvas[side]), canvas[side]));
        let [down, along] = [0, 1].map(|side| f64::from(target[side]) / f64::from(from[side]));
        let scaled = |pixels: u32, scale: f64, most: u32| ((f64::from(pixels) * scale) as u32).clamp(1, most);
        let size = match along < down {
            true => [scaled(height, along, target[0]), target[1]],
            false => [target[0], scaled(width, down, target[1])],
        };
        let small = resized(picture, FrameSize { height: size[0], width: size[1] }, filter);
        let mut rgb = vec![0; canvas[0] as usize * canvas[1] as usize * 3];
        let lines = rgb.chunks_exact_mut(canvas[1] as usize * 3);
        for (to, line) in lines.zip(small.rgb.chunks_exact(size[1] as usize * 3)) {
            to[..line.len()].copy_from_slice(line);
        }
        let frame = Frame { width: canvas[1], height: canvas[0], rgb };
        Ok(PreparedPicture::of_frame(from, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference values of `get_optimal_tiled_canvas` and `get_image_size_fit_to_canvas` in transformers 5.23.
    #[test]
    fn canvases_are_the_references() {
        let of = |side, from| Canvas { side, tiles: 4 }.arranged(from, 4);
        assert_eq!([of(56, [56, 56]), of(56, [40, 30]), of(56, [57, 57])], [[1, 1], [1, 1], [2, 2]]);
        assert_eq!([of(56, [90, 150]), of(56, [7, 100]), of(56, [120, 33])], [[2, 2], [1, 2], [3, 1]]);
        assert_eq!(
            [of(560, [3000, 4000]), of(560, [100, 9000]), of(560, [1120, 1121])],
            [[2, 2], [1, 4], [2, 2]]
        );
        let [height, width] = [3, 9];
        let picture = Picture { width, height, rgb: vec![200; 3 * 9 * 3] };
        let canvas = Canvas { side: 8, tiles: 4 };
        let prepared = canvas.prepare(picture.clone(), Filter::Bilinear, Detail::Own).unwrap();
        let frame = &prepared.frames[0];
        assert_eq!((frame.height, frame.width, prepared.frames.len()), (8, 16, 1));
        let bright =
            |line: usize| frame.rgb[line * 48..][..48].iter().filter(|&&value| value > 0).count() / 3;
        // Its sides are between those of a tile and of the canvas, so it is not resized.
        assert_eq!([bright(0), bright(2), bright(3), bright(7)], [9, 9, 0, 0]);
        let low = canvas.prepare(picture, Filter::Bilinear, Detail::Low).unwrap();
        assert_eq!((low.frames[0].height, low.frames[0].width), (8, 8));
    }
}
