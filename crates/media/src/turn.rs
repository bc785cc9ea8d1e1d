//! Pictures as they were seen, whichever way the camera was held.

use crate::decode::Picture;

/// The picture upright, by Exif's number of how it lies.
pub(crate) fn turned(picture: Picture, orientation: u16) -> Picture {
    let (width, height) = (picture.width as usize, picture.height as usize);
    let (right, bottom) = (width.saturating_sub(1), height.saturating_sub(1));
    // Where a pixel of the upright picture, at a column and a row, lies in this one.
    let place: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
        2 => |x, y, right, _| (right - x, y),
        3 => |x, y, right, bottom| (right - x, bottom - y),
        4 => |x, y, _, bottom| (x, bottom - y),
        5 => |x, y, _, _| (y, x),
        6 => |x, y, _, bottom| (y, bottom - x),
        7 => |x, y, right, bottom| (right - y, bottom - x),
        8 => |x, y, right, _| (right - y, x),
        _ => return picture,
    };
    let (cols, rows) = if orientation >= 5 { (height, width) } else { (width, height) };
    let (pixels, _) = picture.rgb.as_chunks::<3>();
    let mut rgb = Vec::with_capacity(picture.rgb.len());
    for row in 0..rows {
        for col in 0..cols {
            let (x, y) = place(col, row, right, bottom);
            rgb.extend_from_slice(&pixels[y * width + x]);
        }
    }
    Picture { width: cols as u32, height: rows as u32, rgb }
}
