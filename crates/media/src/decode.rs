//! Decoding of a file's bytes to RGB pixels. Size and number of pixels are read from the header, and checked,
//! before anything is decoded. Orientation, transparency, palettes, 16 bits, CMYK and multiple frames are
//! converted to plain RGB as the reference's `convert_to_rgb` does: transparency is blended onto white.

use std::cell::Cell;
use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::PictureError;
use crate::picture::Picture;
use crate::{exif, jpeg, turn};

/// Limits for untrusted files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a file.
    pub bytes_max: usize,
    /// Maximum pixels, width times height.
    pub pixels_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_max: 20 << 20, pixels_max: 50_000_000 }
    }
}

/// Maximum columns or rows of a picture. Resizing costs grow with the longer side, however short the other is.
/// Only PNG allows longer sides.
const SIDE_MAX: u32 = u16::MAX as u32;
/// Maximum scans of a JPEG. Files in use have 20 at most.
const SCANS_MAX: usize = 64;
/// Memory besides the decoded picture: palettes, profiles, tables.
const BESIDE_BYTES: usize = 64 << 20;
/// Maximum bytes of a GIF frame. Its number of pixels is checked before.
const GIF_FRAME_BYTES: NonZeroU64 = NonZeroU64::new(1 << 30).expect("it is not 0");

/// Supported format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// JPEG.
    Jpeg,
    /// PNG. Of an animation, the default image.
    Png,
    /// WebP. Of an animation, the first frame.
    WebP,
    /// GIF, first frame.
    Gif,
}

impl PictureFormat {
    /// Detects the format from a file's first bytes.
    pub fn of(bytes: &[u8]) -> Option<PictureFormat> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(PictureFormat::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(PictureFormat::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(PictureFormat::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(PictureFormat::Gif),
            _ => None,
        }
    }

    /// Name of the format.
    pub fn name(self) -> &'static str {
        match self {
            PictureFormat::Jpeg => "JPEG",
            PictureFormat::Png => "PNG",
            PictureFormat::WebP => "WebP",
            PictureFormat::Gif => "GIF",
        }
    }
}

/// Decodes a picture. Takes at most three times the memory of its pixels; a file cannot cause more than the
/// limits allow.
///
/// # Errors
/// The reason for refusing the file.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Picture, PictureError> {
    decode_until(bytes, limits, &|| false)
}

/// Decodes as [`decode`] does, until `interrupted` returns true. It is called often: between rows of a JPEG,
/// and while the file of another format is read.
///
/// # Errors
/// As [`decode`], and [`PictureError::Interrupted`].
pub fn decode_until(
    bytes: &[u8],
    limits: &Limits,
    interrupted: &dyn Fn() -> bool,
) -> Result<Picture, PictureError> {
    if bytes.is_empty() {
        return Err(PictureError::Empty);
    }
    if bytes.len() > limits.bytes_max {
        return Err(PictureError::TooManyBytes { bytes: bytes.len(), max: limits.bytes_max });
    }
    let format = PictureFormat::of(bytes).ok_or(PictureError::UnknownFormat)?;
    // Decoders are third-party code: a panic becomes an error of this picture only.
    let is_over = Cell::new(false);
    let file = || PictureFile { bytes: Cursor::new(bytes), interrupted, is_over: &is_over };
    let decoded = catch_unwind(AssertUnwindSafe(|| match format {
        PictureFormat::Jpeg => read_jpeg(bytes, limits, interrupted),
        PictureFormat::Png => read_png(file(), limits),
        PictureFormat::WebP => read_webp(file(), limits),
        PictureFormat::Gif => read_gif(file(), limits),
    }));
    if is_over.get() || interrupted() {
        return Err(PictureError::Interrupted);
    }
    let raw = decoded.unwrap_or_else(|_| Err(broken(format)("its decoder failed")))?;
    let Raw { width, height, exif, .. } = raw;
    let orientation = exif.as_deref().and_then(exif::orientation).unwrap_or(1);
    let rgb = to_rgb(raw.channels, raw.bytes);
    if rgb.len() as u64 != 3 * u64::from(width) * u64::from(height) {
        return Err(broken(format)("it has another number of pixels than its header says"));
    }
    if interrupted() {
        return Err(PictureError::Interrupted);
    }
    Ok(turn::turned(Picture { width, height, rgb }, orientation))
}

/// Bytes that a decoder gets in each read.
const PORTION_BYTES: usize = 4 << 10;

/// File for decoders that read in portions. Reads fail once the decoding is interrupted.
struct PictureFile<'a> {
    bytes: Cursor<&'a [u8]>,
    interrupted: &'a dyn Fn() -> bool,
    is_over: &'a Cell<bool>,
}

impl Read for PictureFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let portion = self.fill_buf()?;
        let count = portion.len().min(buffer.len());
        buffer[..count].copy_from_slice(&portion[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for PictureFile<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if (self.interrupted)() {
            self.is_over.set(true);
            return Err(io::Error::other("nobody waits for the picture"));
        }
        let rest = self.bytes.fill_buf()?;
        Ok(&rest[..rest.len().min(PORTION_BYTES)])
    }

    fn consume(&mut self, count: usize) {
        self.bytes.consume(count);
    }
}

impl Seek for PictureFile<'_> {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        self.bytes.seek(place)
    }
}

/// Pixels as a decoder returns them.
struct Raw {
    width: u32,
    height: u32,
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    channels: usize,
    bytes: Vec<u8>,
    exif: Option<Vec<u8>>,
}

fn broken<E: ToString>(format: PictureFormat) -> impl Fn(E) -> PictureError {
    move |error| PictureError::Broken { format: format.name(), reason: error.to_string() }
}

fn check_size(width: u32, height: u32, limits: &Limits) -> Result<(), PictureError> {
    if width == 0 || height == 0 {
        return Err(PictureError::Empty);
    }
    if u64::from(width) * u64::from(height) > limits.pixels_max {
        return Err(PictureError::TooManyPixels { width, height, max: limits.pixels_max });
    }
    if width.max(height) > SIDE_MAX {
        return Err(PictureError::TooLong { width, height, max: SIDE_MAX });
    }
    Ok(())
}

fn read_jpeg(bytes: &[u8], limits: &Limits, interrupted: &dyn Fn() -> bool) -> Result<Raw, PictureError> {
    let check = |width, height| check_size(width, height, limits);
    let decoded = jpeg::decode(bytes, SCANS_MAX, interrupted, check)?;
    let jpeg::DecodedJpeg { width, height, channels, bytes, exif } = decoded;
    Ok(Raw { width: width as u32, height: height as u32, channels, bytes, exif })
}

fn read_png(file: PictureFile, limits: &Limits) -> Result<Raw, PictureError> {
    let failed = broken::<png::DecodingError>;
    let own = png::Limits { bytes: BESIDE_BYTES };
    let mut decoder = png::Decoder::new_with_limits(file, own);
    // Palettes and fewer bits become 8 bits a channel. So do 16 bits, by their upper byte, as in the reference.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let header = decoder.read_header_info().map_err(failed(PictureFormat::Png))?;
    let (width, height) = (header.width, header.height);
    check_size(width, height, limits)?;
    let mut reader = decoder.read_info().map_err(failed(PictureFormat::Png))?;
    let exif = reader.info().exif_metadata.as_ref().map(|exif| exif.to_vec());
    let size = reader.output_buffer_size().ok_or_else(|| broken(PictureFormat::Png)("it is too large"))?;
    let mut bytes = vec![0; size];
    let frame = reader.next_frame(&mut bytes).map_err(failed(PictureFormat::Png))?;
    bytes.truncate(frame.buffer_size());
    Ok(Raw { width, height, channels: frame.color_type.samples(), bytes, exif })
}

fn read_webp(file: PictureFile, limits: &Limits) -> Result<Raw, PictureError> {
    let failed = broken::<image_webp::DecodingError>;
    let mut decoder = image_webp::WebPDecoder::new(file).map_err(failed(PictureFormat::WebP))?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, limits)?;
    decoder.set_memory_limit(BESIDE_BYTES);
    let exif = decoder.exif_metadata().ok().flatten();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let size = decoder.output_buffer_size().ok_or_else(|| broken(PictureFormat::WebP)("it is too large"))?;
    let mut bytes = vec![0; size];
    decoder.read_image(&mut bytes).map_err(failed(PictureFormat::WebP))?;
    Ok(Raw { width, height, channels, bytes, exif })
}

/// Decodes the first frame, at its position within the whole picture.
fn read_gif(file: PictureFile, limits: &Limits) -> Result<Raw, PictureError> {
    let failed = broken::<gif::DecodingError>;
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    options.set_memory_limit(gif::MemoryLimit::Bytes(GIF_FRAME_BYTES));
    let mut decoder = options.read_info(file).map_err(failed(PictureFormat::Gif))?;
    let (width, height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    check_size(width, height, limits)?;
    let Some(frame) = decoder.next_frame_info().map_err(failed(PictureFormat::Gif))? else {
        return Err(broken(PictureFormat::Gif)("it has no frame"));
    };
    let [left, top] = [frame.left, frame.top].map(usize::from);
    let (cols, rows) = (usize::from(frame.width), usize::from(frame.height));
    check_size(cols as u32, rows as u32, limits)?;
    let mut part = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut part).map_err(failed(PictureFormat::Gif))?;
    let whole = (width as usize, height as usize);
    if (left, top, cols, rows) == (0, 0, whole.0, whole.1) {
        return Ok(Raw { width, height, channels: 4, bytes: part, exif: None });
    }
    let mut bytes = vec![0; whole.0 * whole.1 * 4];
    let shown = cols.min(whole.0.saturating_sub(left)) * 4;
    for (row, line) in part.chunks_exact(cols * 4).enumerate().take(whole.1.saturating_sub(top)) {
        let first = ((top + row) * whole.0 + left) * 4;
        if let Some(place) = bytes.get_mut(first..first + shown) {
            place.copy_from_slice(&line[..shown]);
        }
    }
    Ok(Raw { width, height, channels: 4, bytes, exif: None })
}

/// Converts pixels of any number of channels to RGB.
fn to_rgb(channels: usize, raw: Vec<u8>) -> Vec<u8> {
    match channels {
        1 => raw.iter().flat_map(|&value| [value; 3]).collect(),
        2 => raw.as_chunks::<2>().0.iter().flat_map(|&[value, alpha]| [on_white(value, alpha); 3]).collect(),
        3 => raw,
        _ => {
            let pixels = raw.as_chunks::<4>().0.iter();
            pixels.flat_map(|&[r, g, b, alpha]| [r, g, b].map(|value| on_white(value, alpha))).collect()
        }
    }
}

/// Blends a value onto white, rounded as in Pillow's `alpha_composite`.
fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    let sum = ((value * alpha + 255 * (255 - alpha)) << 7) + (0x80 << 7);
    ((((sum >> 8) + sum) >> 8) >> 7) as u8
}
