//! Reference implementation of convolutions over grids.

use std::ops::Range;

use super::vocoder::activated;
use super::{ReferenceBackend, ReferenceBuffer, ReferenceMatrix};
use crate::backend::grid::{number_of, places};
use crate::{ConvParams, PointActivation};

/// Operands of a convolution.
pub(super) struct ConvOperands<'a> {
    pub(super) x: &'a ReferenceBuffer,
    pub(super) affine: Option<&'a ReferenceBuffer>,
    pub(super) before: Option<PointActivation<&'a Vec<f32>>>,
    pub(super) weight: &'a ReferenceMatrix,
    pub(super) bias: Option<&'a Vec<f32>>,
    pub(super) params: ConvParams,
    pub(super) add: Option<&'a ReferenceBuffer>,
    pub(super) out: &'a mut ReferenceBuffer,
}

/// A grid of the batch: its sizes, its input after the activation, and its numbers in the output.
struct Grid {
    params: ConvParams,
    x: Vec<f32>, // (places, channels)
    out: Range<usize>,
}

impl ReferenceBackend {
    /// Grids of the batch. `output` has the number of an output's places.
    fn grids(
        &self,
        operands: &ConvOperands<'_>,
        channels: usize,
        outputs: usize,
        output: impl Fn(&ConvParams) -> [usize; 3],
    ) -> Vec<Grid> {
        let (batch, x) = (self.step(), operands.x);
        x.check(batch.rows(), x.cols, "x");
        assert!(x.cols.is_multiple_of(channels), "rows hold whole places");
        if let Some(PointActivation::Snake { alpha }) = operands.before {
            assert_eq!(alpha.len(), channels, "a frequency for each channel");
        }
        let mut done = 0;
        let of = |(sequence, span): (usize, &crate::SequenceSpan)| {
            let rows = span.row_first as usize..(span.row_first + span.rows) as usize;
            let params = operands.params.of(rows.len(), x.cols / channels);
            let numbers =
                rows.flat_map(|row| x.row(row)).take(params.input.iter().product::<usize>() * channels);
            let numbers = numbers.enumerate();
            let x = numbers.map(|(at, &x)| {
                let channel = at % channels;
                let x = operands.affine.map_or(x, |affine| {
                    let [scale, shift] = [channel, channels + channel].map(|at| affine.row(sequence)[at]);
                    (f64::from(x) * f64::from(scale) + f64::from(shift)) as f32
                });
                operands.before.as_ref().map_or(x, |before| activated(before, channel, x))
            });
            let x = x.collect();
            let first = done;
            done += output(&params).iter().product::<usize>() * outputs;
            Grid { params, x, out: first..done }
        };
        batch.sequences.iter().enumerate().map(of).collect()
    }

    pub(super) fn conv(&mut self, operands: ConvOperands<'_>) {
        let ConvOperands { weight, bias, params, add, .. } = operands;
        let (taps, groups) = (params.taps(), params.groups);
        let (outputs, channels) = (weight.rows, weight.cols / taps);
        assert_eq!(weight.cols, channels * taps, "a weight for each channel of a group and tap");
        assert!(outputs.is_multiple_of(groups), "as many outputs in each group");
        let grids = self.grids(&operands, channels * groups, outputs, ConvParams::output);
        for Grid { params, x, out } in grids {
            let output = params.output();
            for at in places(output) {
                for of in 0..outputs {
                    let group = of / (outputs / groups);
                    let number = out.start + number_of(at, output) * outputs + of;
                    let mut sum = bias.map_or(0.0, |bias| f64::from(bias[of]));
                    sum += add.map_or(0.0, |add| f64::from(add.values[number]));
                    for (tap, of_tap) in places(params.kernel).enumerate() {
                        let Some(place) = params.moved(params.input, at, of_tap) else { continue };
                        let place = number_of(place, params.input) * groups + group;
                        for (channel, &number) in x[place * channels..][..channels].iter().enumerate() {
                            sum += f64::from(weight.row(of)[channel * taps + tap]) * f64::from(number);
                        }
                    }
                    operands.out.values[number] = sum as f32;
                }
            }
        }
    }

    pub(super) fn conv_transpose(&mut self, operands: ConvOperands<'_>) {
        let ConvOperands { weight, bias, params, .. } = operands;
        let (taps, groups) = (params.taps(), params.groups);
        let (channels, own) = (weight.rows, weight.cols / taps);
        let outputs = own * groups;
        assert!(channels.is_multiple_of(groups) && weight.cols.is_multiple_of(taps));
        let grids = self.grids(&operands, channels, outputs, ConvParams::output_transposed);
        for Grid { params, x, out } in grids {
            let output = params.output_transposed();
            let start = |of: usize| bias.map_or(0.0, |bias| f64::from(bias[of]));
            let mut sums: Vec<f64> = (0..out.len()).map(|at| start(at % outputs)).collect();
            for (at, read) in places(params.input).zip(x.chunks_exact(channels)) {
                for (tap, of_tap) in places(params.kernel).enumerate() {
                    let Some(place) = params.moved(output, at, of_tap) else { continue };
                    let written = &mut sums[number_of(place, output) * outputs..][..outputs];
                    for (channel, &number) in read.iter().enumerate() {
                        let group = channel / (channels / groups);
                        for (of, sum) in written[group * own..][..own].iter_mut().enumerate() {
                            *sum += f64::from(weight.row(channel)[of * taps + tap]) * f64::from(number);
                        }
                    }
                }
            }
            operands.out.values[out].iter_mut().zip(sums).for_each(|(to, sum)| *to = sum as f32);
        }
    }
}
