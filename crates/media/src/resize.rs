//! Resizing identical to Pillow's, to the byte (`Resample.c`): filter weights for each row and column of the
//! result, rounded to 22 bits, columns first, with 8-bit intermediate values. Models were trained on such
//! pixels.

use std::f64::consts::PI;
use std::num::NonZero;
use std::thread;

use crate::lanes::{HALF, LANES, PRECISION, Strip, rounded, sums};
use crate::picture::{FrameSize, Picture};

/// Resampling filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Mean of the covered pixels.
    Box,
    /// Triangle.
    Bilinear,
    /// Hamming's cosine window.
    Hamming,
    /// Keys' cubic, a = -0.5.
    Bicubic,
    /// Windowed sinc with 3 lobes.
    Lanczos,
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        match self {
            Filter::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Hamming => match x.abs() {
                0.0 => 1.0,
                x if x >= 1.0 => 0.0,
                x => {
                    let x = x * PI;
                    // Pillow's constants have single precision.
                    x.sin() / x * (f64::from(0.54_f32) + f64::from(0.46_f32) * x.cos())
                }
            },
            Filter::Bicubic => {
                const A: f64 = -0.5;
                match x.abs() {
                    x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
                    x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
                    _ => 0.0,
                }
            }
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * PI;
    x.sin() / x
}

/// For each element of the result, its first source element and the weights.
struct Weights {
    firsts: Vec<(usize, usize)>, // (first, count) for each element of the result
    values: Vec<i32>,            // (result, most)
    most: usize,
}

impl Weights {
    fn new(filter: Filter, from: usize, to: usize) -> Weights {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let most = support.ceil() as usize * 2 + 1;
        let mut weights = Weights { firsts: Vec::with_capacity(to), values: vec![0; to * most], most };
        let mut row = vec![0.0; most];
        for (index, out) in weights.values.chunks_exact_mut(most).enumerate() {
            let center = (index as f64 + 0.5) * scale;
            let first = (center - support + 0.5).max(0.0) as usize;
            let count = ((center + support + 0.5) as usize).min(from) - first;
            let mut sum = 0.0;
            for (x, weight) in row[..count].iter_mut().enumerate() {
                *weight = filter.at(((x + first) as f64 - center + 0.5) * (1.0 / stretch));
                sum += *weight;
            }
            for (out, weight) in out.iter_mut().zip(&row[..count]) {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                let half = if weight < 0.0 { -0.5 } else { 0.5 };
                *out = (half + weight * f64::from(1 << PRECISION)) as i32;
            }
            weights.firsts.push((first, count));
        }
        weights
    }

    fn of(&self, index: usize) -> (usize, &[i32]) {
        let (first, count) = self.firsts[index];
        (first, &self.values[index * self.most..][..count])
    }
}

/// Resizes a picture.
///
/// # Panics
/// If the new size is 0.
pub fn resize(picture: &Picture, width: u32, height: u32, filter: Filter) -> Picture {
    assert!(width > 0 && height > 0, "a picture of {width} x {height}");
    let columns = |of: &Picture| resize_columns(of, width, filter);
    let rows = |of: &Picture| resize_rows(of, height, filter);
    match (width == picture.width, height == picture.height) {
        (true, true) => picture.clone(),
        (false, true) => columns(picture),
        (true, false) => rows(picture),
        (false, false) if rows_first(picture, width, height) => columns(&rows(picture)),
        (false, false) => rows(&columns(picture)),
    }
}

/// Picture of this size, unchanged if it has this size already.
///
/// # Panics
/// If the new size is 0.
pub(crate) fn resized(picture: Picture, FrameSize { height, width }: FrameSize, filter: Filter) -> Picture {
    match (picture.height, picture.width) == (height, width) {
        true => picture,
        false => resize(&picture, width, height, filter),
    }
}

/// Returns true if Pillow resizes rows first: since version 13, if rows shrink by more than twice as much as
/// columns.
fn rows_first(from: &Picture, width: u32, height: u32) -> bool {
    let [from_width, from_height, width, height] = [from.width, from.height, width, height].map(i64::from);
    height < from_height && from_height - height > 2 * (from_width - width)
}

/// Resizes a picture centred on a square of one colour, whose side is the picture's longer one. The square may
/// have many times the picture's pixels, so it is never built.
///
/// # Panics
/// If the new size is 0.
pub(crate) fn resize_on_square(picture: &Picture, side: u32, filter: Filter, color: [u8; 3]) -> Picture {
    assert!(side > 0, "a picture of nothing");
    let (width, height) = (picture.width as usize, picture.height as usize);
    let (longest, to) = (width.max(height), side as usize);
    let (top, left) = ((longest - height) / 2, (longest - width) / 2);
    let weights = Weights::new(filter, longest, to);
    // Sums of a line of that colour alone. The picture's differences from it are added. Sums are integers, so
    // the result is exact even if intermediate sums wrap.
    let plain = |index: usize| {
        let sum: i32 = weights.of(index).1.iter().sum();
        color.map(|value| HALF.wrapping_add(i32::from(value).wrapping_mul(sum)))
    };
    let plain: Vec<[i32; 3]> = (0..to).map(plain).collect();
    let line: Vec<u8> = plain.iter().flat_map(|sum| sum.map(rounded)).collect();
    let mut rgb = line.repeat(longest);
    let lines = rgb.chunks_exact_mut(to * 3).skip(top);
    for (source, out) in picture.rgb.chunks_exact(width * 3).zip(lines) {
        let (source, out) = (source.as_chunks::<3>().0, out.as_chunks_mut::<3>().0);
        for (index, (out, mut sum)) in out.iter_mut().zip(plain.iter().copied()).enumerate() {
            let (first, weights) = weights.of(index);
            let (from, end) = (first.max(left), (first + weights.len()).min(left + width));
            for column in from..end {
                for ((sum, &value), own) in sum.iter_mut().zip(&source[column - left]).zip(color) {
                    let differs = i32::from(value) - i32::from(own);
                    *sum = sum.wrapping_add(differs * weights[column - first]);
                }
            }
            *out = sum.map(rounded);
        }
    }
    // Columns come first here, as `rows_first` decides for a square that stays one.
    resize_rows(&Picture { width: side, height: longest as u32, rgb }, side, filter)
}

/// Minimum bytes for a thread. Less than a millisecond of work is not worth one.
const BAND_BYTES: usize = 1 << 20;

/// Fills a picture's lines in parallel, if there are enough. Each thread gets a multiple of `unit` lines.
/// `fill` gets the first line's number, the lines, and scratch memory. The caller's thread allocates that,
/// because memory that a thread allocates may be kept for later threads.
fn in_bands<S: Send>(
    rgb: &mut [u8],
    line: usize,
    unit: usize,
    scratch: impl Fn() -> S,
    fill: impl Fn(usize, &mut [u8], &mut S) + Sync,
) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(rgb.len() / BAND_BYTES).min(4);
    let lines = (rgb.len() / line).div_ceil(threads.max(1)).next_multiple_of(unit).max(unit);
    thread::scope(|scope| {
        let mut bands = rgb.chunks_mut(lines * line).enumerate().map(|(band, out)| (band * lines, out));
        let first = bands.next();
        for (from, out) in bands {
            let (fill, mut scratch) = (&fill, scratch());
            scope.spawn(move || fill(from, out, &mut scratch));
        }
        if let Some((from, out)) = first {
            fill(from, out, &mut scratch());
        }
    });
}

fn resize_columns(picture: &Picture, width: u32, filter: Filter) -> Picture {
    let (from, to) = (picture.width as usize, width as usize);
    let weights = Weights::new(filter, from, to);
    let mut rgb = vec![0; picture.height as usize * to * 3];
    let strip = || Strip::new(from * 3);
    in_bands(&mut rgb, to * 3, LANES, strip, |first, rgb, strip| {
        // Several lines at a time, whose pixels in a column are adjacent.
        let sources = picture.rgb[first * from * 3..].chunks(from * 3 * LANES);
        for (sources, outs) in sources.zip(rgb.chunks_mut(to * 3 * LANES)) {
            let pixels = strip.take(sources.chunks_exact(from * 3)).as_chunks::<3>().0;
            for index in 0..to {
                let (first, weights) = weights.of(index);
                let pixels = &pixels[first..first + weights.len()];
                for color in 0..3 {
                    let values = pixels.iter().map(|colors| colors[color]);
                    let made = sums(values.zip(weights.iter().copied()));
                    for (out, value) in outs[index * 3 + color..].iter_mut().step_by(to * 3).zip(made) {
                        *out = value;
                    }
                }
            }
        }
    });
    Picture { width, height: picture.height, rgb }
}

fn resize_rows(picture: &Picture, height: u32, filter: Filter) -> Picture {
    let row = picture.width as usize * 3;
    let weights = Weights::new(filter, picture.height as usize, height as usize);
    let mut rgb = vec![0; height as usize * row];
    let alone = || ();
    in_bands(&mut rgb, row, 1, alone, |from, rgb, ()| {
        for (index, out) in rgb.chunks_exact_mut(row).enumerate() {
            let (first, weights) = weights.of(from + index);
            let lines = &picture.rgb[first * row..(first + weights.len()) * row];
            let (whole, rest) = out.as_chunks_mut::<LANES>();
            let behind = whole.len() * LANES;
            for (place, out) in whole.iter_mut().enumerate() {
                let values = lines.chunks_exact(row).map(|line| &line.as_chunks().0[place]);
                *out = sums(values.zip(weights).map(|(values, &weight)| (*values, weight)));
            }
            if !rest.is_empty() {
                let last = |line: &[u8]| {
                    let mut values = [0; LANES];
                    values[..row - behind].copy_from_slice(&line[behind..]);
                    values
                };
                let made = sums(lines.chunks_exact(row).map(last).zip(weights.iter().copied()));
                rest.copy_from_slice(&made[..rest.len()]);
            }
        }
    });
    Picture { width: picture.width, height, rgb }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large enough for several threads, with sides that no number of lines divides.
    #[test]
    fn bands_are_the_picture() {
        let (width, height, line) = (1201, 1733, 1201 * 3);
        let source: Vec<u8> =
            (0..width * height * 3).map(|place| (place * 31 + place / line * 7) as u8).collect();
        for (unit, threads_may_be) in [(1, 1..=4), (LANES, 1..=4)] {
            let (mut copy, bands) = (vec![0; source.len()], std::sync::Mutex::new(Vec::new()));
            let alone = || ();
            in_bands(&mut copy, line, unit, alone, |first, out, ()| {
                out.copy_from_slice(&source[first * line..][..out.len()]);
                bands.lock().unwrap().push((first, out.len() / line));
            });
            assert_eq!(copy, source);
            let bands = bands.into_inner().unwrap();
            assert!(threads_may_be.contains(&bands.len()), "{bands:?}");
            assert!(bands.iter().all(|&(first, _)| first % unit == 0), "{bands:?}");
        }
        in_bands(&mut [], 3, LANES, || (), |_, _, ()| unreachable!("nothing is filled"));
    }
}
