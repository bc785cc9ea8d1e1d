//! Convolutions over grids against sums that are made the other way round: from each input to the outputs that it reaches, and
//! of transposed ones from each output to the inputs that reach it.

use super::*;
use crate::ConvParams;

/// Numbers in steps of 1/8, so that sums are exact.
pub(super) fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed + i * 37 + i * i * 11) % 31) as f32 / 8.0 - 1.75).collect()
}

/// A batch of grids of so many places.
fn grids(count: usize, places: usize) -> Batch {
    let mut batch = Batch { sources: vec![RowSource::Embedding; count * places], ..Batch::default() };
    (0..count).for_each(|grid| batch.push_sequence(places, places, |_, at| (4 * grid + at) as u32));
    batch
}

/// Convolutions of grids of `channels` channels to `outputs`.
struct Case {
    grids: usize,
    channels: usize,
    outputs: usize,
    params: ConvParams,
}

impl Case {
    /// Runs a convolution, or a transposed one, with weights of `shape` and output of extents `output`. Returns the input, the weights, the bias and
    /// the output.
    fn run(&self, transposed: bool, shape: (usize, usize), output: [usize; 3]) -> [Vec<f32>; 4] {
        let (inside, outside) =
            (self.params.input.iter().product::<usize>(), output.iter().product::<usize>());
        let mut backend = ready(SHAPE);
        let (x, weights) = (numbers(3, self.grids * inside * self.channels), numbers(5, shape.0 * shape.1));
        let bias = numbers(8, self.outputs);
        let weight = &f32_matrix(&backend, shape.0, &weights);
        let read = buffer(&mut backend, self.channels, &x);
        let mut out = backend.buffer(BufferRole::Operand, self.grids * outside, self.outputs).unwrap();
        backend.begin(&grids(self.grids, inside)).unwrap();
        let (params, x_rows, bias_vector) = (self.params, &read, Some(&bias));
        let (affine, before, add) = (None, None, None);
        backend.run(match transposed {
            false => {
                Op::Conv { x: x_rows, affine, before, weight, bias: bias_vector, params, add, out: &mut out }
            }
            true => Op::ConvTranspose {
                x: x_rows,
                affine,
                before,
                weight,
                bias: bias_vector,
                params,
                out: &mut out,
            },
        });
        backend.end().unwrap();
        let found = out.values.clone();
        [x, weights, bias, found]
    }

    /// A convolution, checked.
    fn check(&self) {
        let Self { grids, channels, outputs, params } = *self;
        let (output, taps) = (params.output(), params.taps());
        let (inside, outside) = (params.input.iter().product::<usize>(), output.iter().product::<usize>());
        let own = channels / params.groups;
        let [x, weights, bias, found] = self.run(false, (outputs, own * taps), output);
        let mut expected: Vec<f32> = bias.iter().copied().cycle().take(grids * outside * outputs).collect();
        for grid in 0..grids {
            for (place, at) in every(params.input).enumerate() {
                for (tap, of_tap) in every(params.kernel).enumerate() {
                    let Some(to) = reached(&params, output, at, of_tap) else { continue };
                    for (channel, of) in pairs(channels, outputs, params.groups) {
                        let weight = weights[(of * own + channel % own) * taps + tap];
                        expected[(grid * outside + to) * outputs + of] +=
                            weight * x[(grid * inside + place) * channels + channel];
                    }
                }
            }
        }
        close(&found, &expected);
    }

    /// A transposed convolution, checked.
    fn check_transposed(&self) {
        let Self { grids, channels, outputs, params } = *self;
        let (output, taps) = (params.output_transposed(), params.taps());
        let (inside, outside) = (params.input.iter().product::<usize>(), output.iter().product::<usize>());
        let own = outputs / params.groups;
        let [x, weights, bias, found] = self.run(true, (channels, own * taps), output);
        let mut expected: Vec<f32> = bias.iter().copied().cycle().take(grids * outside * outputs).collect();
        for grid in 0..grids {
            for (place, at) in every(output).enumerate() {
                for (tap, of_tap) in every(params.kernel).enumerate() {
                    let Some(from) = reached(&params, params.input, at, of_tap) else { continue };
                    for (channel, of) in pairs(channels, outputs, params.groups) {
                        let weight = weights[(channel * own + of % own) * taps + tap];
                        expected[(grid * outside + place) * outputs + of] +=
                            weight * x[(grid * inside + from) * channels + channel];
                    }
                }
            }
        }
        close(&found, &expected);
    }
}

fn every([depth, height, width]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..depth).flat_map(move |z| (0..height).flat_map(move |y| (0..width).map(move |x| [z, y, x])))
}

/// Channels and outputs of the same group.
fn pairs(channels: usize, outputs: usize, groups: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..channels).flat_map(move |channel| (0..outputs).map(move |of| (channel, of)));
    all.filter(move |(channel, of)| channel * groups / channels == of * groups / outputs)
}

/// Place within `extents` from which a tap leads to another place, if one does.
fn reached(params: &ConvParams, extents: [usize; 3], at: [usize; 3], tap: [usize; 3]) -> Option<usize> {
    let mut row = 0;
    for axis in 0..3 {
        let moved = (at[axis] + params.padding[axis][0]).checked_sub(tap[axis] * params.dilation[axis])?;
        let to = moved / params.stride[axis];
        if moved % params.stride[axis] > 0 || to >= extents[axis] {
            return None;
        }
        row = row * extents[axis] + to;
    }
    Some(row)
}

#[test]
fn convolutions_of_pictures_are_sums_over_their_inputs() {
    let params = ConvParams::plane([4, 5], [3, 2]);
    assert_eq!(params.output(), [1, 2, 4]);
    Case { grids: 1, channels: 2, outputs: 3, params }.check();
    let params = ConvParams {
        stride: [1, 2, 1],
        padding: [[0, 0], [1, 1], [2, 0]],
        dilation: [1, 1, 2],
        groups: 2,
        ..params
    };
    assert_eq!(params.output(), [1, 2, 5]);
    Case { grids: 3, channels: 4, outputs: 6, params }.check();
}

#[test]
fn convolutions_of_pictures_over_time_are_sums_over_their_inputs() {
    let params = ConvParams {
        stride: [1, 2, 2],
        padding: [[2, 0], [1, 1], [0, 1]], // causal along the time
        ..ConvParams::new([3, 4, 2], [3, 3, 2])
    };
    assert_eq!(params.output(), [3, 2, 1]);
    Case { grids: 2, channels: 3, outputs: 2, params }.check();
}

#[test]
fn transposed_convolutions_of_lines_are_sums_over_their_outputs() {
    let params =
        ConvParams { stride: [1, 1, 3], padding: [[0, 0], [0, 0], [1, 2]], ..ConvParams::line(5, 4) };
    assert_eq!(params.output_transposed(), [1, 1, 13]);
    Case { grids: 2, channels: 3, outputs: 2, params }.check_transposed();
    let params = ConvParams { dilation: [1, 1, 2], groups: 2, ..params };
    assert_eq!(params.output_transposed(), [1, 1, 16]);
    Case { grids: 1, channels: 4, outputs: 6, params }.check_transposed();
}

#[test]
fn transposed_convolutions_of_pictures_are_sums_over_their_outputs() {
    let params = ConvParams {
        stride: [1, 2, 2],
        padding: [[0, 0], [1, 0], [1, 1]],
        ..ConvParams::plane([3, 4], [3, 2])
    };
    assert_eq!(params.output_transposed(), [1, 6, 6]);
    Case { grids: 3, channels: 2, outputs: 3, params }.check_transposed();
}
