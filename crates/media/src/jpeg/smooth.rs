//! libjpeg's block smoothing: estimates the coefficients that an incomplete progressive file leaves out, from
//! the averages of the 24 surrounding blocks. Has no effect on a complete file.

use super::scan::{ComponentCoefficients, SamplePlane};
use super::segments::{Component, FrameHeader, Scan, Segments};
use super::{Block, JpegFailure};

/// Number of coefficients that are estimated, including the DC coefficient.
const ESTIMATED: usize = 10;

/// Missing bits of each coefficient of a component; negative if nothing is known.
#[derive(Clone, Debug)]
struct MissingBits {
    now: [i8; 64],
    /// State before the last scan.
    before: [i8; 64],
}

/// Progress of a frame's coefficients.
#[derive(Debug)]
pub(super) struct CoefficientProgress {
    components: Vec<MissingBits>,
    scans: usize,
    /// Last row of MCUs with data in the last scan.
    pub(super) last_row: usize,
}

impl CoefficientProgress {
    /// Creates the state of a frame before its first scan.
    pub(super) fn new(frame: &FrameHeader) -> CoefficientProgress {
        let none = MissingBits { now: [-1; 64], before: [-1; 64] };
        CoefficientProgress { components: vec![none; frame.components.len()], scans: 0, last_row: 0 }
    }

    /// Records a scan.
    pub(super) fn note(&mut self, scan: &Scan) {
        self.scans += 1;
        let [first, last] = scan.band;
        for part in &scan.parts {
            let missing = &mut self.components[part.component];
            for at in first.min(1)..=last.max(ESTIMATED - 1) {
                missing.before[at] = if self.scans > 1 { missing.now[at] } else { 0 };
            }
            missing.now[first..=last].fill(scan.low as i8);
        }
    }

    /// Returns true if coefficients are missing and can be estimated.
    pub(super) fn has_gaps(&self, frame: &FrameHeader) -> bool {
        let can = frame.components.iter().zip(&self.components).all(|(component, missing)| {
            let divides = |steps: [u16; 64]| PLACES.iter().all(|&place| steps[place] != 0);
            component.steps.is_some_and(divides) && missing.now[0] >= 0
        });
        can && self.components.iter().any(|missing| missing.now[1..ESTIMATED].iter().any(|&bits| bits != 0))
    }

    /// Samples of a component, with estimates.
    pub(super) fn plane(
        &self,
        frame: &FrameHeader,
        index: usize,
        stored: &ComponentCoefficients,
        segments: &Segments,
    ) -> Result<SamplePlane, JpegFailure> {
        let (component, missing) = (&frame.components[index], &self.components[index]);
        let before = if self.scans > 1 { missing.before } else { [-1; 64] };
        let steps = component.steps.unwrap_or([1; 64]).map(i64::from);
        stored.plane_of(component, segments, |place, block| {
            let is_known = place[1] / component.down <= self.last_row;
            let missing = if is_known { &missing.now } else { &before };
            let averages = averages(frame, component, stored, place);
            estimate(block, &averages, &steps, missing);
        })
    }
}

/// Positions in a block of the DC coefficient and of the first AC coefficients, in zigzag order.
const PLACES: [usize; ESTIMATED] = [0, 1, 8, 16, 9, 2, 3, 10, 17, 24];

type Kernel = [i32; 25];

/// Weights of the surrounding averages if only DC coefficients are known.
#[rustfmt::skip]
const ALONE: [Kernel; ESTIMATED] = [
    [-2, -6, -8, -6, -2, -6, 6, 42, 6, -6, -8, 42, 152, 42, -8, -6, 6, 42, 6, -6, -2, -6, -8, -6, -2],
    [-1, -1, 0, 1, 1, -3, 13, 0, -13, 3, -3, 38, 0, -38, 3, -3, 13, 0, -13, 3, -1, -1, 0, 1, 1],
    [-1, -3, -3, -3, -1, -1, 13, 38, 13, -1, 0, 0, 0, 0, 0, 1, -13, -38, -13, 1, 1, 3, 3, 3, 1],
    [0, 0, 1, 0, 0, 0, 2, 7, 2, 0, 0, -5, -14, -5, 0, 0, 2, 7, 2, 0, 0, 0, 1, 0, 0],
    [-1, 0, 0, 0, 1, 0, 9, 0, -9, 0, 0, 0, 0, 0, 0, 0, -9, 0, 9, 0, 1, 0, 0, 0, -1],
    [0, 0, 0, 0, 0, 0, 2, -5, 2, 0, 1, 7, -14, 7, 1, 0, 2, -5, 2, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, 2, 0, -2, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, -3, 1, 0, 0, 0, 0, 0, 0, 0, -1, 3, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, -3, 0, 3, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, -1, -2, -1, 0, 0, 0, 0, 0, 0],
];

/// Weights if some AC coefficients are known.
#[rustfmt::skip]
const BESIDE: [Kernel; 6] = [
    [0; 25],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -7, 50, 0, -50, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, -7, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, -50, 0, 0, 0, 0, 7, 0, 0],
    [0, 0, -1, 0, 0, 0, 0, 13, 0, 0, 0, 0, -24, 0, 0, 0, 0, 13, 0, 0, 0, 0, -1, 0, 0],
    [0, -1, 0, 1, 0, -1, 10, 0, -10, 1, 0, 0, 0, 0, 0, 1, -10, 0, 10, -1, 0, 1, 0, -1, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 13, -24, 13, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

/// Averages of a block and of those around it, row by row. Beyond the edges, the edge blocks repeat.
fn averages(
    frame: &FrameHeader,
    component: &Component,
    stored: &ComponentCoefficients,
    [col, row]: [usize; 2],
) -> Kernel {
    // libjpeg treats padding rows of the last MCU as part of the picture, except within that MCU.
    let is_last = row / component.down + 1 == frame.units[1];
    let rows = if is_last { component.blocks[1] } else { component.stored[1] };
    let first = row / component.down * component.down;
    let above = if is_last { (frame.units[1] - 1) * (rows - first) + row - first } else { row };
    let mut all = [0; 25];
    for (down, averages) in all.chunks_exact_mut(5).enumerate() {
        let line = match down {
            0 | 1 => row - (2 - down).min(above).min(row),
            _ => (row + down - 2).min(rows - 1),
        };
        let line = stored.row(line);
        for (across, average) in averages.iter_mut().enumerate() {
            *average = i32::from(line[(col + across).saturating_sub(2).min(component.blocks[0] - 1)][0]);
        }
    }
    all
}

fn estimate(block: &mut Block, averages: &Kernel, steps: &[i64; 64], missing: &[i8; 64]) {
    let is_alone = missing[1..ESTIMATED].iter().all(|&bits| bits == -1);
    let kernels = if is_alone { &ALONE[..] } else { &BESIDE };
    for (at, (kernel, &place)) in kernels.iter().zip(&PLACES).enumerate().skip(1) {
        if missing[at] != 0 && block[place] == 0 {
            let most = if missing[at] > 0 { (1 << missing[at]) - 1 } else { i64::MAX };
            block[place] = weighed(kernel, averages, [steps[0], steps[place]], most);
        }
    }
    if is_alone {
        block[0] = weighed(&ALONE[0], averages, [steps[0]; 2], i64::MAX);
    }
}

/// Weighted sum of averages as a coefficient, rounded, with a magnitude of at most `most`.
fn weighed(kernel: &Kernel, averages: &Kernel, [of_average, step]: [i64; 2], most: i64) -> i16 {
    let sum = kernel.iter().zip(averages).map(|(weight, average)| weight * average).sum::<i32>();
    let sum = of_average * i64::from(sum);
    let size = (((step << 7) + sum.abs()) / (step << 8)).min(most);
    (size * sum.signum()) as i16
}
