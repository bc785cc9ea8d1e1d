//! Rotation of pictures to upright, by their orientation.

use crate::picture::Picture;

/// Side in pixels of a square that is rotated at a time, so that both its source and its destination stay in
/// the cache.
const TILE: usize = 32;

/// Rotates the picture upright by its Exif orientation.
pub(crate) fn turned(picture: Picture, orientation: u16) -> Picture {
    let (width, height) = (picture.width as usize, picture.height as usize);
    let (right, bottom) = (width.saturating_sub(1), height.saturating_sub(1));
    // Maps a column and row of the upright picture to a position in this one.
    match orientation {
        2 => moved(&picture, width, height, |x, y| (right - x, y)),
        3 => moved(&picture, width, height, |x, y| (right - x, bottom - y)),
        4 => moved(&picture, width, height, |x, y| (x, bottom - y)),
        5 => moved(&picture, height, width, |x, y| (y, x)),
        6 => moved(&picture, height, width, |x, y| (y, bottom - x)),
        7 => moved(&picture, height, width, |x, y| (right - y, bottom - x)),
        8 => moved(&picture, height, width, |x, y| (right - y, x)),
        _ => picture,
    }
}

/// Builds a picture of `cols` columns and `rows` rows, whose pixels `place` maps to positions in another
/// picture.
fn moved(
    picture: &Picture,
    cols: usize,
    rows: usize,
    place: impl Fn(usize, usize) -> (usize, usize),
) -> Picture {
    let width = picture.width as usize;
    let (pixels, _) = picture.rgb.as_chunks::<3>();
    let mut rgb = vec![0; picture.rgb.len()];
    let (out, _) = rgb.as_chunks_mut::<3>();
    for top in (0..rows).step_by(TILE) {
        for left in (0..cols).step_by(TILE) {
            for row in top..rows.min(top + TILE) {
                for col in left..cols.min(left + TILE) {
                    let (x, y) = place(col, row);
                    out[row * cols + col] = pixels[y * width + x];
                }
            }
        }
    }
    Picture { width: cols as u32, height: rows as u32, rgb }
}
