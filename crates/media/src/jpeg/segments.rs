//! Segments of a JPEG file (ITU T.81, annex B): tables, frame header and scan headers.

use super::huffman::Code;
use super::{JpegFailure, ZIGZAG};
use crate::error::PictureError;

/// Component of a frame.
#[derive(Clone, Debug)]
pub(super) struct Component {
    id: u8,
    /// Horizontal sampling factor: blocks side by side in an MCU.
    pub(super) across: usize,
    /// Vertical sampling factor: blocks above each other in an MCU.
    pub(super) down: usize,
    table: usize,
    /// Quantization steps by position in a block. Set at the component's first scan.
    pub(super) steps: Option<[u16; 64]>,
    /// Columns and rows of blocks that contain samples of the picture.
    pub(super) blocks: [usize; 2],
    /// Columns and rows of blocks, padded to whole MCUs.
    pub(super) stored: [usize; 2],
    /// Columns and rows of samples.
    pub(super) samples: [usize; 2],
}

impl Component {
    /// Identifier used by scans.
    pub(super) fn id(&self) -> u8 {
        self.id
    }
}

/// Frame header.
#[derive(Clone, Debug)]
pub(super) struct FrameHeader {
    /// Columns of pixels.
    pub(super) width: usize,
    /// Rows of pixels.
    pub(super) height: usize,
    /// True if coefficients come in several scans, by bands and bits.
    pub(super) is_progressive: bool,
    /// True for arithmetic coding, false for Huffman coding.
    pub(super) is_arithmetic: bool,
    /// Maximum sampling factors `[across, down]` of the components.
    pub(super) unit: [usize; 2],
    /// Columns and rows of MCUs.
    pub(super) units: [usize; 2],
    /// Components: 1, 3 or 4.
    pub(super) components: Vec<Component>,
}

/// Component of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanComponent {
    /// Index of the frame's component.
    pub(super) component: usize,
    /// Index of its DC table.
    pub(super) dc: usize,
    /// Index of its AC table.
    pub(super) ac: usize,
}

/// Scan header.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    /// Components with data in this scan.
    pub(super) parts: Vec<ScanComponent>,
    /// First and last coefficient, in zigzag order.
    pub(super) band: [usize; 2],
    /// Successive approximation: bit position of the previous scan; 0 in a first scan.
    pub(super) high: u32,
    /// Successive approximation: bits left for later scans.
    pub(super) low: u32,
}

/// Tables and settings that segments define for later ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    steps: [Option<[u16; 64]>; 4],
    /// Huffman codes of DC coefficients.
    pub(super) dc: [Option<Code>; 4],
    /// Huffman codes of AC coefficients.
    pub(super) ac: [Option<Code>; 4],
    /// Arithmetic coding: bounds of small DC differences, the lower one in the low bits. T.81's defaults if
    /// unset.
    pub(super) dc_bounds: [Option<u8>; 16],
    /// Arithmetic coding: bound of low AC coefficients.
    pub(super) ac_bounds: [Option<u8>; 16],
    /// MCUs between restarts; 0 for none.
    pub(super) restart_interval: usize,
    /// True if a JFIF segment was found.
    pub(super) is_jfif: bool,
    /// Colour transform of an Adobe segment.
    pub(super) adobe: Option<u8>,
    /// Exif data.
    pub(super) exif: Option<Vec<u8>>,
}

/// Reason why reading segments stopped.
#[derive(Clone, Debug)]
pub(super) enum Next {
    /// Data of a scan follows.
    Scan(Scan),
    /// The image has ended.
    End,
}

/// Moves after the next marker and returns it. Skips other bytes and stuffed ones.
pub(super) fn next_marker(data: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        let found = data.get(*at..)?.iter().position(|&byte| byte == 0xff)?;
        *at += found + 1;
        while data.get(*at) == Some(&0xff) {
            *at += 1;
        }
        let marker = *data.get(*at)?;
        *at += 1;
        if marker != 0 {
            return Some(marker);
        }
    }
}

/// Reader of segments.
pub(super) struct Segments<'a> {
    /// Bytes of the file.
    pub(super) data: &'a [u8],
    /// Offset after the data that was read.
    pub(super) at: usize,
    /// Marker that was read and is not yet processed.
    pub(super) marker: Option<u8>,
    /// Frame header, once read.
    pub(super) frame: Option<FrameHeader>,
    /// Current tables.
    pub(super) tables: Tables,
    /// Returns true if the decoding should stop.
    pub(super) interrupted: &'a dyn Fn() -> bool,
}

fn broken<T>(reason: &'static str) -> Result<T, JpegFailure> {
    Err(JpegFailure::Broken(reason))
}

impl<'a> Segments<'a> {
    /// Creates a reader for a file that begins with the SOI marker.
    pub(super) fn new(data: &'a [u8], interrupted: &'a dyn Fn() -> bool) -> Segments<'a> {
        Segments { data, at: 2, marker: None, frame: None, tables: Tables::default(), interrupted }
    }

    /// Checks whether to continue.
    ///
    /// # Errors
    /// [`PictureError::Interrupted`] if the decoding should stop.
    pub(super) fn go_on(&self) -> Result<(), JpegFailure> {
        match (self.interrupted)() {
            true => Err(JpegFailure::Refused(PictureError::Interrupted)),
            false => Ok(()),
        }
    }

    /// Reads segments up to the next scan or the end of the image.
    pub(super) fn next(&mut self) -> Result<Next, JpegFailure> {
        loop {
            let marker = match self.marker.take() {
                Some(marker) => marker,
                None => next_marker(self.data, &mut self.at).ok_or(JpegFailure::Cut)?,
            };
            match marker {
                0xd9 => return Ok(Next::End),
                // Restart markers and TEM have no length.
                0xd0..=0xd7 | 0x01 => continue,
                0xd8 => return broken("a second image begins inside it"),
                0x02..=0xbf | 0xc8 | 0xde | 0xdf | 0xf0..=0xfd => {
                    return broken("it has a marker without a meaning");
                }
                _ => {}
            }
            let segment = self.segment()?;
            match marker {
                0xc0 | 0xc1 | 0xc2 | 0xc9 | 0xca => self.frame(marker, segment)?,
                0xc3 | 0xcb => return broken("it is a lossless JPEG, which is not read"),
                0xc4 => self.codes(segment)?,
                0xcc => self.conditioning(segment)?,
                0xc5..=0xc7 | 0xcd..=0xcf => return broken("it is a hierarchical JPEG, which is not read"),
                0xda => return Ok(Next::Scan(self.scan(segment)?)),
                0xdb => self.steps(segment)?,
                0xdd => match *segment {
                    [high, low] => {
                        self.tables.restart_interval = usize::from(u16::from_be_bytes([high, low]))
                    }
                    _ => return broken("its restart interval has another length than two bytes"),
                },
                0xe0..=0xef => self.application(marker, segment),
                // Comments, and DNL, whose number of lines is already in the frame header.
                _ => {}
            }
        }
    }

    /// Reads the contents of a segment after its marker.
    fn segment(&mut self) -> Result<&'a [u8], JpegFailure> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let [high, low, ..] = rest else { return Err(JpegFailure::Cut) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length < 2 {
            return broken("a segment is shorter than its own length");
        }
        let segment = rest.get(2..length).ok_or(JpegFailure::Cut)?;
        self.at += length;
        Ok(segment)
    }

    fn frame(&mut self, marker: u8, segment: &[u8]) -> Result<(), JpegFailure> {
        if self.frame.is_some() {
            return broken("it has two frames");
        }
        let Some((&[bits, h0, h1, w0, w1, count], components)) = segment.split_first_chunk::<6>() else {
            return broken("its frame header is too short");
        };
        let [width, height] = [[w0, w1], [h0, h1]].map(|side| usize::from(u16::from_be_bytes(side)));
        match (bits, count) {
            (12, _) => return broken("it has 12 bits a sample, and 8 are read"),
            (8, 1 | 3 | 4) => {}
            (8, _) => return broken("it has another number of components than 1, 3 or 4"),
            _ => return broken("it has another number of bits a sample than 8"),
        }
        if height == 0 {
            return broken("its header leaves the number of lines to a DNL segment, which is not read");
        }
        if width == 0 || components.len() != 3 * usize::from(count) {
            return broken("its frame header has no width or another length than it says");
        }
        let read = |&[id, factors, table]: &[u8; 3]| {
            let [across, down] = [factors >> 4, factors & 15].map(usize::from);
            let fits = (1..=4).contains(&across) && (1..=4).contains(&down);
            let (blocks, table) = ([0; 2], usize::from(table));
            let stored = blocks;
            let made = Component { id, across, down, table, steps: None, blocks, stored, samples: blocks };
            fits.then_some(made).ok_or(JpegFailure::Broken("a sampling factor is not between 1 and 4"))
        };
        let mut components = components.as_chunks::<3>().0.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let across = components.iter().map(|component| component.across).max().unwrap_or(1);
        let down = components.iter().map(|component| component.down).max().unwrap_or(1);
        let units = [width.div_ceil(8 * across), height.div_ceil(8 * down)];
        for component in &mut components {
            let factors = [component.across, component.down];
            if !across.is_multiple_of(factors[0]) || !down.is_multiple_of(factors[1]) {
                return broken("a component is sampled at a fraction of another's rate, which is not read");
            }
            component.samples = [(width * factors[0]).div_ceil(across), (height * factors[1]).div_ceil(down)];
            component.blocks = component.samples.map(|samples| samples.div_ceil(8));
            component.stored = [units[0] * factors[0], units[1] * factors[1]];
        }
        self.frame = Some(FrameHeader {
            width,
            height,
            is_progressive: matches!(marker, 0xc2 | 0xca),
            is_arithmetic: matches!(marker, 0xc9 | 0xca),
            unit: [across, down],
            units,
            components,
        });
        Ok(())
    }

    /// Reads Huffman tables.
    fn codes(&mut self, mut segment: &[u8]) -> Result<(), JpegFailure> {
        const BAD: &str = "a Huffman table is damaged";
        while let Some((&[index], rest)) = segment.split_first_chunk::<1>() {
            let Some((lengths, rest)) = rest.split_first_chunk::<16>() else { return broken(BAD) };
            let count = lengths.iter().map(|&count| usize::from(count)).sum::<usize>();
            let Some((values, rest)) = rest.split_at_checked(count).filter(|_| count <= 256) else {
                return broken(BAD);
            };
            let slot = match index {
                0..=3 => &mut self.tables.dc[usize::from(index)],
                0x10..=0x13 => &mut self.tables.ac[usize::from(index & 15)],
                _ => return broken("a Huffman table has another number than 0 to 3"),
            };
            *slot = Some(Code::new(lengths, values));
            segment = rest;
        }
        Ok(())
    }

    /// Reads arithmetic coding bounds.
    fn conditioning(&mut self, segment: &[u8]) -> Result<(), JpegFailure> {
        let (pairs, rest) = segment.as_chunks::<2>();
        for &[index, value] in pairs {
            match index {
                0..=15 if value & 15 <= value >> 4 => {
                    self.tables.dc_bounds[usize::from(index)] = Some(value);
                }
                16..=31 => self.tables.ac_bounds[usize::from(index & 15)] = Some(value),
                _ => return broken("a table of arithmetic coding is damaged"),
            }
        }
        if rest.is_empty() { Ok(()) } else { broken("a table of arithmetic coding is damaged") }
    }

    /// Reads quantization tables.
    fn steps(&mut self, mut segment: &[u8]) -> Result<(), JpegFailure> {
        while let Some((&[kind], rest)) = segment.split_first_chunk::<1>() {
            let (bytes, index) = (if kind >> 4 == 0 { 64 } else { 128 }, usize::from(kind & 15));
            let (Some((values, rest)), true) = (rest.split_at_checked(bytes), index < 4) else {
                return broken("a quantization table is damaged");
            };
            let mut steps = [0; 64];
            for (place, step) in ZIGZAG.iter().zip(values.chunks_exact(bytes / 64)) {
                steps[usize::from(*place)] = step.iter().fold(0, |step, &byte| step << 8 | u16::from(byte));
            }
            self.tables.steps[index] = Some(steps);
            segment = rest;
        }
        Ok(())
    }

    /// Reads application segments: colour spaces and Exif.
    fn application(&mut self, marker: u8, segment: &[u8]) {
        const EXIF: &[u8] = b"Exif\0\0";
        match marker {
            0xe0 if segment.starts_with(b"JFIF\0") && segment.len() >= 14 => self.tables.is_jfif = true,
            0xe1 if segment.starts_with(EXIF) => match &mut self.tables.exif {
                Some(exif) => exif.extend_from_slice(&segment[EXIF.len()..]),
                none => *none = Some(segment.to_vec()),
            },
            0xee if segment.starts_with(b"Adobe") && segment.len() >= 12 => {
                self.tables.adobe = Some(segment[11]);
            }
            _ => {}
        }
    }

    fn scan(&mut self, segment: &[u8]) -> Result<Scan, JpegFailure> {
        let Some(frame) = &mut self.frame else { return broken("a scan stands before the frame header") };
        let Some((&[count], rest)) = segment.split_first_chunk::<1>() else {
            return broken("a scan header is too short");
        };
        let count = usize::from(count);
        let Some((parts, &[first, last, bits])) = rest.split_last_chunk::<3>() else {
            return broken("a scan header is too short");
        };
        if parts.len() != 2 * count || !(1..=4).contains(&count) {
            return broken("a scan header has another length than it says");
        }
        let mut scan = Scan {
            parts: Vec::with_capacity(count),
            band: [first, last].map(usize::from),
            high: u32::from(bits >> 4),
            low: u32::from(bits & 15),
        };
        for &[id, tables] in parts.as_chunks::<2>().0 {
            let free = |at: &usize| scan.parts.iter().all(|part| part.component != *at);
            let found = (0..frame.components.len()).filter(free).find(|&at| frame.components[at].id == id);
            let Some(component) = found else { return broken("a scan names a component that there is not") };
            let [dc, ac] = [tables >> 4, tables & 15].map(usize::from);
            scan.parts.push(ScanComponent { component, dc, ac });
        }
        let of = |part: &ScanComponent| {
            frame.components[part.component].across * frame.components[part.component].down
        };
        if count > 1 && scan.parts.iter().map(of).sum::<usize>() > 10 {
            return broken("a unit of a scan has more than 10 blocks");
        }
        for part in &scan.parts {
            let component = &mut frame.components[part.component];
            if component.steps.is_none() {
                component.steps = self.tables.steps.get(component.table).copied().flatten();
            }
            if component.steps.is_none() {
                return broken("a quantization table is missing");
            }
        }
        Ok(scan)
    }
}
