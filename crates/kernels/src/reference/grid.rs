//! Reference implementation of convolutions over grids.

use super::{ReferenceBackend, ReferenceBuffer, ReferenceMatrix};
use crate::ConvParams;

/// Places of a grid, in the order of its rows.
fn places([depth, height, width]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..depth * height * width).map(move |row| [row / width / height, row / width % height, row % width])
}

/// Row of a place.
fn row_of([z, y, x]: [usize; 3], [_, height, width]: [usize; 3]) -> usize {
    (z * height + y) * width + x
}

/// Place at the other side of a tap, `at * stride + tap * dilation - padding`; none outside of `extents`.
fn moved(params: &ConvParams, extents: [usize; 3], at: [usize; 3], tap: [usize; 3]) -> Option<[usize; 3]> {
    let mut place = [0; 3];
    for axis in 0..3 {
        let whole = at[axis] * params.stride[axis] + tap[axis] * params.dilation[axis];
        let own = whole.checked_sub(params.padding[axis][0])?;
        place[axis] = Some(own).filter(|&own| own < extents[axis])?;
    }
    Some(place)
}

impl ReferenceBackend {
    /// First rows of the batch's grids.
    fn grids(&self, params: &ConvParams) -> Vec<usize> {
        let rows: usize = params.input.iter().product();
        let own = self.step().sequences.iter().map(|span| {
            assert_eq!(span.rows as usize, rows, "a sequence is a whole grid");
            span.row_first as usize
        });
        own.collect()
    }

    pub(super) fn conv(
        &mut self,
        x: &ReferenceBuffer,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        params: &ConvParams,
        out: &mut ReferenceBuffer,
    ) {
        let (grids, output) = (self.grids(params), params.output());
        let rows: usize = output.iter().product();
        let (outputs, channels) = (weight.rows, x.cols / params.groups);
        assert_eq!(weight.cols, channels * params.taps(), "a weight for each channel of a group and tap");
        assert!(weight.rows.max(weight.cols) <= self.limits().width, "a matrix wider than the step's limits");
        assert!(x.cols.is_multiple_of(params.groups) && outputs.is_multiple_of(params.groups));
        x.check(self.step().rows(), x.cols, "x");
        out.check(grids.len() * rows, outputs, "out");
        for (grid, &first) in grids.iter().enumerate() {
            for at in places(output) {
                for of in 0..outputs {
                    let group = of / (outputs / params.groups);
                    let mut sum = bias.map_or(0.0, |bias| f64::from(bias[of]));
                    for (tap, of_tap) in places(params.kernel).enumerate() {
                        let Some(place) = moved(params, params.input, at, of_tap) else { continue };
                        let read = &x.row(first + row_of(place, params.input))[group * channels..];
                        for (channel, &number) in read[..channels].iter().enumerate() {
                            let weight = weight.row(of)[channel * params.taps() + tap];
                            sum += f64::from(weight) * f64::from(number);
                        }
                    }
                    out.row_mut(grid * rows + row_of(at, output))[of] = sum as f32;
                }
            }
        }
    }

    pub(super) fn conv_transpose(
        &mut self,
        x: &ReferenceBuffer,
        weight: &ReferenceMatrix,
        bias: Option<&Vec<f32>>,
        params: &ConvParams,
        out: &mut ReferenceBuffer,
    ) {
        let (grids, output) = (self.grids(params), params.output_transposed());
        let rows: usize = output.iter().product();
        let (channels, own) = (x.cols, weight.cols / params.taps());
        let outputs = own * params.groups;
        assert_eq!(weight.rows, channels, "weights for each channel");
        assert!(weight.rows.max(weight.cols) <= self.limits().width, "a matrix wider than the step's limits");
        assert!(channels.is_multiple_of(params.groups) && weight.cols.is_multiple_of(params.taps()));
        x.check(self.step().rows(), channels, "x");
        out.check(grids.len() * rows, outputs, "out");
        for (grid, &first) in grids.iter().enumerate() {
            let start = |of: usize| bias.map_or(0.0, |bias| f64::from(bias[of]));
            let mut sums: Vec<f64> = (0..rows * outputs).map(|at| start(at % outputs)).collect();
            for at in places(params.input) {
                let read = x.row(first + row_of(at, params.input));
                for (tap, of_tap) in places(params.kernel).enumerate() {
                    let Some(place) = moved(params, output, at, of_tap) else { continue };
                    let written = &mut sums[row_of(place, output) * outputs..][..outputs];
                    for (channel, &number) in read.iter().enumerate() {
                        let group = channel / (channels / params.groups);
                        for (of, sum) in written[group * own..][..own].iter_mut().enumerate() {
                            *sum +=
                                f64::from(weight.row(channel)[of * params.taps() + tap]) * f64::from(number);
                        }
                    }
                }
            }
            for (row, sums) in sums.chunks_exact(outputs).enumerate() {
                let to = out.row_mut(grid * rows + row);
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum as f32);
            }
        }
    }
}
