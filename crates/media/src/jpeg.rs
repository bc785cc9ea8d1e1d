//! JPEG decoder, bit-exact with libjpeg-turbo's defaults and Pillow's `convert("RGB")`. Supports sequential and
//! progressive files of 8 bits a sample, with Huffman or arithmetic coding. Lossless, hierarchical and 12-bit
//! files are refused.

mod arithmetic;
mod bits;
mod colour;
mod huffman;
mod idct;
mod scan;
mod segments;
mod smooth;
#[cfg(test)]
mod tests;
mod upsample;

use std::mem::take;

use self::arithmetic::Arithmetic;
use self::bits::Bits;
use self::colour::Space;
use self::huffman::{Progressive, Sequential};
use self::scan::{Blocks, Coefficients, Planes, SamplePlane, ScanEnd};
use self::segments::{FrameHeader, Next, Scan, Segments};
use self::smooth::CoefficientProgress;
use self::upsample::UpsampledPlane;
use crate::error::PictureError;

/// Coefficients of 8 x 8 samples, row by row.
type Block = [i16; 64];

/// Position in a block by zigzag index. Runs beyond the last index end there.
static ZIGZAG: [u8; 80] = {
    let mut places = [63; 80];
    let (mut at, mut sum) = (0, 0);
    while sum < 15 {
        let mut step = 0;
        while step <= sum {
            let (row, col) = if sum % 2 == 0 { (sum - step, step) } else { (step, sum - step) };
            if row < 8 && col < 8 {
                places[at] = (row * 8 + col) as u8;
                at += 1;
            }
            step += 1;
        }
        sum += 1;
    }
    places
};

/// Reason why a file cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JpegFailure {
    /// The file is truncated.
    Cut,
    /// The file is invalid or uses an unsupported feature.
    Broken(&'static str),
    /// The caller's limits refuse the file.
    Refused(PictureError),
}

impl From<JpegFailure> for PictureError {
    fn from(failure: JpegFailure) -> Self {
        let reason = match failure {
            JpegFailure::Refused(error) => return error,
            JpegFailure::Cut => "it is cut short: the file ends before the marker of its end",
            JpegFailure::Broken(reason) => reason,
        };
        PictureError::Broken { format: "JPEG", reason: reason.to_owned() }
    }
}

/// Decoded file.
#[derive(Debug)]
pub(crate) struct DecodedJpeg {
    /// Columns.
    pub(crate) width: usize,
    /// Rows.
    pub(crate) height: usize,
    /// Channels: 1 or 3.
    pub(crate) channels: usize,
    /// Pixels: `(height, width, channels)`.
    pub(crate) bytes: Vec<u8>,
    /// Exif data.
    pub(crate) exif: Option<Vec<u8>>,
}

/// Decodes a file with at most `scans_max` scans, whose width and height pass `check`. Nothing is decoded
/// before that check. Takes at most three times the memory of the pixels. Calls `interrupted` between rows of
/// blocks.
///
/// # Errors
/// As the check, [`PictureError::TooManyScans`], [`PictureError::Broken`] and [`PictureError::Interrupted`].
pub(crate) fn decode(
    data: &[u8],
    scans_max: usize,
    interrupted: &dyn Fn() -> bool,
    check: impl FnOnce(u32, u32) -> Result<(), PictureError>,
) -> Result<DecodedJpeg, PictureError> {
    let mut segments = Segments::new(data, interrupted);
    let first = segments.next()?;
    let (Next::Scan(scan), Some(frame)) = (first, segments.frame.take()) else {
        return Err(JpegFailure::Broken("it has no picture").into());
    };
    check(frame.width as u32, frame.height as u32)?;
    let several = frame.is_progressive || scan.parts.len() < frame.components.len();
    let (frame, planes) = match several {
        true => in_scans(&mut segments, frame, scan, scans_max)?,
        false => {
            let mut planes = Planes::new(&frame);
            read(&mut segments, &frame, &scan, &mut planes)?;
            segments.frame = Some(frame);
            // All samples were read, so a missing end marker does no harm.
            if matches!(segments.next(), Ok(Next::Scan(_)) | Err(JpegFailure::Broken(_))) {
                return Err(JpegFailure::Broken("it has more scans than components").into());
            }
            (segments.frame.take(), planes.0)
        }
    };
    let frame = frame.ok_or(JpegFailure::Broken("it has no picture"))?;
    let space = Space::of(&frame, &segments.tables);
    let bytes = pixels(&frame, planes, space, &segments)?;
    let channels = space.channels();
    Ok(DecodedJpeg {
        width: frame.width,
        height: frame.height,
        channels,
        bytes,
        exif: take(&mut segments.tables.exif),
    })
}

/// Reads all scans of a frame into coefficients, then converts these to samples.
fn in_scans(
    segments: &mut Segments,
    mut frame: FrameHeader,
    mut scan: Scan,
    scans_max: usize,
) -> Result<(Option<FrameHeader>, Vec<SamplePlane>), JpegFailure> {
    let (mut coefficients, mut progress) = (Coefficients::new(&frame), CoefficientProgress::new(&frame));
    let mut scans = 0;
    loop {
        scans += 1;
        if scans > scans_max {
            return Err(JpegFailure::Refused(PictureError::TooManyScans { scans, max: scans_max }));
        }
        if frame.is_progressive {
            check_progression(&scan)?;
            progress.note(&scan);
        }
        progress.last_row = read(segments, &frame, &scan, &mut coefficients)?.last_row;
        segments.frame = Some(frame);
        let next = segments.next()?;
        frame = segments.frame.take().ok_or(JpegFailure::Broken("it has no picture"))?;
        match next {
            Next::Scan(next) => scan = next,
            Next::End => break,
        }
    }
    let smooths = frame.is_progressive && progress.has_gaps(&frame);
    let planes = coefficients.0.into_iter().enumerate().map(|(index, stored)| match smooths {
        true => progress.plane(&frame, index, &stored, segments),
        false => stored.plane(&frame.components[index], segments),
    });
    let planes = planes.collect::<Result<_, JpegFailure>>()?;
    Ok((Some(frame), planes))
}

/// Checks that a progressive scan has either DC or AC coefficients, and refines by one bit.
fn check_progression(scan: &Scan) -> Result<(), JpegFailure> {
    let is_band = match scan.band {
        [0, last] => last == 0,
        [first, last] => first <= last && last < 64 && scan.parts.len() == 1,
    };
    let refines_a_bit = scan.high == 0 || scan.high == scan.low + 1;
    match is_band && refines_a_bit && scan.low <= 13 {
        true => Ok(()),
        false => Err(JpegFailure::Broken("a progressive scan has a band or bits that there are not")),
    }
}

/// Reads the data of a scan.
fn read(
    segments: &mut Segments,
    frame: &FrameHeader,
    scan: &Scan,
    blocks: &mut impl Blocks,
) -> Result<ScanEnd, JpegFailure> {
    let (tables, bits) = (&segments.tables, Bits::new(segments.data, segments.at));
    let end = if frame.is_arithmetic {
        let mut coder = Arithmetic::new(bits, tables, scan, frame.is_progressive)?;
        scan::read(frame, scan, &mut coder, blocks, segments)?
    } else if frame.is_progressive {
        scan::read(frame, scan, &mut Progressive::new(bits, tables, scan)?, blocks, segments)?
    } else {
        scan::read(frame, scan, &mut Sequential::new(bits, tables, scan)?, blocks, segments)?
    };
    (segments.at, segments.marker) = (end.at, end.marker);
    Ok(end)
}

/// Converts planes to pixels.
fn pixels(
    frame: &FrameHeader,
    planes: Vec<SamplePlane>,
    space: Space,
    segments: &Segments,
) -> Result<Vec<u8>, JpegFailure> {
    let factors = |index: usize| {
        let component = &frame.components[index];
        [frame.unit[0] / component.across, frame.unit[1] / component.down]
    };
    let planes = planes.into_iter().enumerate();
    let mut planes: Vec<UpsampledPlane> =
        planes.map(|(at, plane)| UpsampledPlane::new(plane, factors(at))).collect();
    let line = frame.width * space.channels();
    let mut bytes = vec![0; line * frame.height];
    for (row, out) in bytes.chunks_exact_mut(line).enumerate() {
        segments.go_on()?;
        let rows: Vec<&[u8]> = planes.iter_mut().map(|plane| &plane.row(row)[..frame.width]).collect();
        space.convert(&rows, out);
    }
    Ok(bytes)
}
