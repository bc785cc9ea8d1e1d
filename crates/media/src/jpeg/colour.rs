//! Conversion from a JPEG's colour space to RGB with libjpeg's integer arithmetic, and from CMYK as Pillow
//! does.

use super::segments::{FrameHeader, Tables};

/// Colour space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// Grey only.
    Grey,
    /// Red, green and blue.
    Rgb,
    /// YCbCr.
    Ycc,
    /// CMYK, inverted (255 less the ink) as Adobe's programs write it.
    Cmyk,
    /// Inverted CMYK with the three inks coded as YCbCr.
    Ycck,
}

impl Space {
    /// Detects the colour space as libjpeg does.
    pub(super) fn of(frame: &FrameHeader, tables: &Tables) -> Space {
        match (frame.components.len(), tables.is_jfif, tables.adobe) {
            (1, ..) => Space::Grey,
            (3, true, _) => Space::Ycc,
            (3, false, Some(0)) => Space::Rgb,
            (3, false, None) if frame.components.iter().map(|of| of.id()).eq(*b"RGB") => Space::Rgb,
            (3, ..) => Space::Ycc,
            (_, _, None | Some(0)) => Space::Cmyk,
            _ => Space::Ycck,
        }
    }

    /// Channels of the resulting pixels.
    pub(super) fn channels(self) -> usize {
        if self == Space::Grey { 1 } else { 3 }
    }

    /// Converts rows of components to a row of pixels.
    pub(super) fn convert(self, rows: &[&[u8]], out: &mut [u8]) {
        match (self, rows) {
            (Space::Grey, [grey, ..]) => out.copy_from_slice(&grey[..out.len()]),
            (Space::Rgb, [red, green, blue, ..]) => {
                let colours = red.iter().zip(*green).zip(*blue);
                for (pixel, ((red, green), blue)) in out.as_chunks_mut::<3>().0.iter_mut().zip(colours) {
                    *pixel = [*red, *green, *blue];
                }
            }
            (Space::Ycc, [y, cb, cr, ..]) => of_ycc(y, cb, cr, out),
            (Space::Cmyk, [cyan, magenta, yellow, black]) => {
                let inks = cyan.iter().zip(*magenta).zip(*yellow).zip(*black);
                for (pixel, (((cyan, magenta), yellow), black)) in
                    out.as_chunks_mut::<3>().0.iter_mut().zip(inks)
                {
                    *pixel = [cyan, magenta, yellow].map(|ink| with_black(255 - ink, *black));
                }
            }
            (Space::Ycck, [y, cb, cr, black]) => {
                of_ycc(y, cb, cr, out);
                for (pixel, black) in out.as_chunks_mut::<3>().0.iter_mut().zip(*black) {
                    *pixel = pixel.map(|ink| with_black(ink, *black));
                }
            }
            _ => {}
        }
    }
}

/// Multiplies an inverted ink by inverted black, rounded as in Pillow's `convert`.
fn with_black(ink: u8, black: u8) -> u8 {
    let product = u32::from(ink) * u32::from(black) + 128;
    black.saturating_sub((((product >> 8) + product) >> 8) as u8)
}

/// Pixels converted at once.
const LANES: usize = 16;

fn of_ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let pixels = out.len() / 3;
    let whole = pixels / LANES * LANES;
    let (lines, rest) = out.as_chunks_mut::<{ 3 * LANES }>();
    let [ys, cbs, crs] = [y, cb, cr].map(|row| row[..whole].as_chunks::<LANES>().0);
    for (((out, y), cb), cr) in lines.iter_mut().zip(ys).zip(cbs).zip(crs) {
        let mut colours = [[0; LANES]; 3];
        for lane in 0..LANES {
            let pixel = rgb(y[lane], cb[lane], cr[lane]);
            for (colour, value) in colours.iter_mut().zip(pixel) {
                colour[lane] = value;
            }
        }
        for (lane, pixel) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            *pixel = [colours[0][lane], colours[1][lane], colours[2][lane]];
        }
    }
    let behind = y[whole..].iter().zip(&cb[whole..]).zip(&cr[whole..]);
    for (pixel, ((&y, &cb), &cr)) in rest.as_chunks_mut::<3>().0.iter_mut().zip(behind) {
        *pixel = rgb(y, cb, cr);
    }
}

/// Converts one pixel. libjpeg's constants have 16 fractional bits. Their integer parts are split off, so that
/// the rest fits a signed 16-bit number.
#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let [cb, cr] = [cb, cr].map(|value| i16::from(value) - 128);
    let product = |value: i16, constant: i16| i32::from(value) * i32::from(constant);
    let (y, cb_whole, cr_whole) = (i32::from(y), i32::from(cb), i32::from(cr));
    // 1.402, 0.34414, 0.71414 and 1.772.
    let red = y + cr_whole + ((product(cr, 26345) + HALF) >> 16);
    let green = y - cr_whole + ((product(cb, -22554) + product(cr, 18734) + HALF) >> 16);
    let blue = y + 2 * cb_whole + ((product(cb, -14942) + HALF) >> 16);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}
