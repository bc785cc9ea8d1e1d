//! libjpeg's "fancy" upsampling: rows of a component at the picture's full width and height. A triangle filter
//! if a side is halved, otherwise repeated samples.

use super::scan::SamplePlane;

/// Upsampling method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    /// No upsampling.
    None,
    /// Interpolation between columns.
    Across,
    /// Interpolation between rows.
    Down,
    /// Interpolation between both.
    Both,
    /// Repetition by `[across, down]`.
    Repeat([usize; 2]),
}

/// Component with upsampled rows.
#[derive(Debug)]
pub(super) struct UpsampledPlane {
    plane: SamplePlane,
    filter: Filter,
    row: Vec<u8>,
    /// Samples of a row, with the outermost ones repeated at both ends.
    padded: Vec<u16>,
}

impl UpsampledPlane {
    /// Creates the upsampler for a component with one sample for each `factors` (across, down) pixels.
    pub(super) fn new(plane: SamplePlane, factors: [usize; 2]) -> UpsampledPlane {
        let is_wide = plane.size[0] > 2;
        let filter = match factors {
            [1, 1] => Filter::None,
            [2, 1] if is_wide => Filter::Across,
            [1, 2] => Filter::Down,
            [2, 2] if is_wide => Filter::Both,
            _ => Filter::Repeat(factors),
        };
        let width = plane.size[0];
        UpsampledPlane { filter, row: vec![0; width * factors[0]], padded: vec![0; width + 2], plane }
    }

    /// Returns a row of the picture, plus some padding.
    pub(super) fn row(&mut self, row: usize) -> &[u8] {
        let plane = &self.plane;
        match self.filter {
            Filter::None => return plane.row(row),
            Filter::Across => {
                let samples = plane.row(row).iter().map(|&sample| u16::from(sample));
                self.padded[1..].iter_mut().zip(samples).for_each(|(padded, sample)| *padded = sample);
                widen::<1, 2, 2>(&mut self.padded, &mut self.row);
            }
            Filter::Down => {
                let bias = if row.is_multiple_of(2) { 1 } else { 2 };
                for (out, sum) in self.row.iter_mut().zip(sums(plane, row)) {
                    *out = ((sum + bias) >> 2) as u8;
                }
            }
            Filter::Both => {
                self.padded[1..].iter_mut().zip(sums(plane, row)).for_each(|(padded, sum)| *padded = sum);
                widen::<8, 7, 4>(&mut self.padded, &mut self.row);
            }
            Filter::Repeat([across, down]) => {
                let samples = plane.row(row / down).iter();
                for (out, sample) in self.row.chunks_exact_mut(across).zip(samples) {
                    out.fill(*sample);
                }
            }
        }
        &self.row
    }
}

/// Sums for a doubled row: three times the nearer row plus the farther one.
fn sums(plane: &SamplePlane, row: usize) -> impl Iterator<Item = u16> {
    let near = row / 2;
    let far = if row.is_multiple_of(2) { near.saturating_sub(1) } else { near + 1 };
    let both = plane.row(near).iter().zip(plane.row(far));
    both.map(|(&near, &far)| 3 * u16::from(near) + u16::from(far))
}

/// Doubles a row: three times each sample plus its neighbour, plus a bias by side, divided by `1 << SHIFT`.
fn widen<const LEFT: u16, const RIGHT: u16, const SHIFT: u32>(padded: &mut [u16], out: &mut [u8]) {
    let last = padded.len() - 1;
    padded[0] = padded[1];
    padded[last] = padded[last - 1];
    let neighbours = padded[..last - 1].iter().zip(&padded[2..]);
    for ((pair, own), (left, right)) in
        out.as_chunks_mut::<2>().0.iter_mut().zip(&padded[1..]).zip(neighbours)
    {
        *pair = [((3 * own + left + LEFT) >> SHIFT) as u8, ((3 * own + right + RIGHT) >> SHIFT) as u8];
    }
}
