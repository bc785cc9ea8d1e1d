//! Blocks of a scan in the order of its data (T.81, A.2). They become samples at once, or are kept as
//! coefficients until the last scan.

use super::bits::Bits;
use super::idct;
use super::segments::{Component, FrameHeader, Scan, Segments};
use super::{Block, JpegFailure};

/// Decoder of entropy-coded blocks.
pub(super) trait Coder<'a> {
    /// Decodes the next block of the scan's component `part`. Returns the last zigzag index that may be
    /// non-zero.
    fn block(&mut self, part: usize, block: &mut Block) -> usize;
    /// Continues after a restart marker.
    fn restart(&mut self);
    /// Ends an MCU. If it needed more data than available, it is the last of its segment.
    fn end_unit(&mut self);
    /// Returns true if the segment has no more data.
    fn is_dry(&self) -> bool;
    /// Bit reader.
    fn bits(&self) -> &Bits<'a>;
}

/// Destination of decoded blocks.
pub(super) trait Blocks {
    /// Decodes and stores the block of a component at `[column, row]`.
    fn put(&mut self, component: usize, place: [usize; 2], decode: impl FnOnce(&mut Block) -> usize);
}

/// End of a scan's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanEnd {
    /// Offset after the data.
    pub(super) at: usize,
    /// Marker that was read.
    pub(super) marker: Option<u8>,
    /// Last row of MCUs with data.
    pub(super) last_row: usize,
}

/// Decodes a scan.
pub(super) fn read<'a>(
    frame: &FrameHeader,
    scan: &Scan,
    coder: &mut impl Coder<'a>,
    blocks: &mut impl Blocks,
    segments: &Segments,
) -> Result<ScanEnd, JpegFailure> {
    let restart_interval = segments.tables.restart_interval;
    let single = match &scan.parts[..] {
        [part] => Some((part.component, &frame.components[part.component])),
        _ => None,
    };
    let [across, down] = single.map_or(frame.units, |(_, component)| component.blocks);
    let (mut left, mut last_row) = (restart_interval, 0);
    for row in 0..down {
        segments.go_on()?;
        for col in 0..across {
            if restart_interval > 0 {
                if left == 0 {
                    coder.restart();
                    left = restart_interval;
                }
                left -= 1;
            }
            if !coder.is_dry() {
                last_row = single.map_or(row, |(_, component)| row / component.down);
            }
            match single {
                Some((index, _)) => blocks.put(index, [col, row], |block| coder.block(0, block)),
                None => unit(frame, scan, [col, row], coder, blocks),
            }
            coder.end_unit();
        }
        if coder.bits().is_cut {
            return Err(JpegFailure::Cut);
        }
    }
    let (at, marker) = coder.bits().place();
    Ok(ScanEnd { at, marker, last_row })
}

/// Decodes an MCU of several components.
fn unit<'a>(
    frame: &FrameHeader,
    scan: &Scan,
    [col, row]: [usize; 2],
    coder: &mut impl Coder<'a>,
    blocks: &mut impl Blocks,
) {
    for (index, part) in scan.parts.iter().enumerate() {
        let Component { across, down, .. } = frame.components[part.component];
        for y in 0..down {
            for x in 0..across {
                let place = [col * across + x, row * down + y];
                blocks.put(part.component, place, |block| coder.block(index, block));
            }
        }
    }
}

/// Samples of a component.
#[derive(Debug)]
pub(super) struct SamplePlane {
    /// Samples in a row, including padding.
    pub(super) stride: usize,
    /// Columns and rows of samples within the picture.
    pub(super) size: [usize; 2],
    samples: Vec<u8>,
    steps: [i16; 64],
}

impl SamplePlane {
    fn new(component: &Component) -> SamplePlane {
        let [across, down] = component.stored.map(|blocks| blocks * 8);
        // libjpeg-turbo multiplies with signed 16-bit steps.
        let steps = component.steps.unwrap_or([0; 64]).map(|step| step as i16);
        SamplePlane { stride: across, size: component.samples, samples: vec![0; across * down], steps }
    }

    /// Converts a block of coefficients to samples.
    #[inline(always)]
    pub(super) fn set(&mut self, [col, row]: [usize; 2], block: &Block, last: usize) {
        let samples = idct::samples(block, &self.steps, last);
        let first = row * 8 * self.stride + col * 8;
        if let Some(place) = self.samples.get_mut(first..) {
            for (line, samples) in place.chunks_mut(self.stride).zip(&samples) {
                line[..8].copy_from_slice(samples);
            }
        }
    }

    /// Samples of a row within the picture. Rows beyond the last repeat it.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        let first = row.min(self.size[1] - 1) * self.stride;
        &self.samples[first..first + self.size[0]]
    }
}

/// Planes of a frame with a single scan of all components.
#[derive(Debug)]
pub(super) struct Planes(pub(super) Vec<SamplePlane>);

impl Planes {
    /// Creates the planes of a frame's components.
    pub(super) fn new(frame: &FrameHeader) -> Planes {
        Planes(frame.components.iter().map(SamplePlane::new).collect())
    }
}

impl Blocks for Planes {
    #[inline(always)]
    fn put(&mut self, component: usize, place: [usize; 2], decode: impl FnOnce(&mut Block) -> usize) {
        let mut block = [0; 64];
        let last = decode(&mut block);
        self.0[component].set(place, &block, last);
    }
}

/// Coefficients of a component.
#[derive(Debug)]
pub(super) struct ComponentCoefficients {
    across: usize,
    blocks: Vec<Block>,
}

impl ComponentCoefficients {
    /// Blocks of a row.
    pub(super) fn row(&self, row: usize) -> &[Block] {
        &self.blocks[row * self.across..][..self.across]
    }

    /// Converts all blocks to samples.
    ///
    /// # Errors
    /// As [`Segments::go_on`].
    pub(super) fn plane(
        &self,
        component: &Component,
        segments: &Segments,
    ) -> Result<SamplePlane, JpegFailure> {
        let mut plane = SamplePlane::new(component);
        for row in 0..component.blocks[1] {
            segments.go_on()?;
            for (col, block) in self.row(row)[..component.blocks[0]].iter().enumerate() {
                let is_flat = block[1..].iter().all(|&value| value == 0);
                plane.set([col, row], block, if is_flat { 0 } else { 63 });
            }
        }
        Ok(plane)
    }

    /// Converts all blocks to samples. `change` modifies each block first.
    ///
    /// # Errors
    /// As [`Segments::go_on`].
    pub(super) fn plane_of(
        &self,
        component: &Component,
        segments: &Segments,
        change: impl Fn([usize; 2], &mut Block),
    ) -> Result<SamplePlane, JpegFailure> {
        let mut plane = SamplePlane::new(component);
        for row in 0..component.blocks[1] {
            segments.go_on()?;
            for (col, block) in self.row(row)[..component.blocks[0]].iter().enumerate() {
                let mut block = *block;
                change([col, row], &mut block);
                plane.set([col, row], &block, 63);
            }
        }
        Ok(plane)
    }
}

/// Coefficients of a frame with several scans.
#[derive(Debug)]
pub(super) struct Coefficients(pub(super) Vec<ComponentCoefficients>);

impl Coefficients {
    /// Creates the coefficients of a frame's components, all 0.
    pub(super) fn new(frame: &FrameHeader) -> Coefficients {
        let stored = |component: &Component| {
            let [across, down] = component.stored;
            ComponentCoefficients { across, blocks: vec![[0; 64]; across * down] }
        };
        Coefficients(frame.components.iter().map(stored).collect())
    }
}

impl Blocks for Coefficients {
    #[inline(always)]
    fn put(&mut self, component: usize, [col, row]: [usize; 2], decode: impl FnOnce(&mut Block) -> usize) {
        let stored = &mut self.0[component];
        decode(&mut stored.blocks[row * stored.across + col]);
    }
}
