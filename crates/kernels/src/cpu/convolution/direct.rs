//! Convolutions over any grid as plain loops: one output place after the other.

use super::{Grid, each_rows};
use crate::cpu::pool::PoolTurn;
use hanzo_engine_ops::ConvParams;
use hanzo_engine_ops::backend::grid::{number_of, place_of, places};

/// Weights in the shape that the op states.
#[derive(Debug)]
pub(super) struct Direct {
    weights: Vec<f32>,
}

/// Place of the input that a tap of a transposed convolution leads to a place of the output from.
fn origin(params: &ConvParams, at: [usize; 3], tap: [usize; 3]) -> Option<[usize; 3]> {
    let mut place = [0; 3];
    for axis in 0..3 {
        let whole = (at[axis] + params.padding[axis][0]).checked_sub(tap[axis] * params.dilation[axis])?;
        let own = whole / params.stride[axis];
        let whole = whole.is_multiple_of(params.stride[axis]);
        place[axis] = Some(own).filter(|&own| whole && own < params.input[axis])?;
    }
    Some(place)
}

impl Direct {
    pub(super) fn new(weights: Vec<f32>) -> Direct {
        Direct { weights }
    }

    pub(super) fn bytes(&self) -> usize {
        self.weights.len() * size_of::<f32>()
    }

    pub(super) fn run(
        &self,
        turn: &mut PoolTurn,
        channels: usize,
        outputs: usize,
        transposed: bool,
        Grid { params, x, before, bias, add, out }: Grid<'_>,
    ) {
        let (taps, groups) = (params.taps(), params.groups);
        let (inside, outside) = (channels / groups, outputs / groups);
        let extents = if transposed { params.output_transposed() } else { params.output() };
        let weight = |channel: usize, output: usize, tap: usize| match transposed {
            false => self.weights[(output * inside + channel % inside) * taps + tap],
            true => self.weights[(channel * outside + output % outside) * taps + tap],
        };
        each_rows(turn, out, outputs, &|first, piece| {
            let mut read = vec![0.0; channels];
            for (number, out) in (first..).zip(piece.chunks_exact_mut(outputs)) {
                match bias {
                    Some(bias) => out.copy_from_slice(bias),
                    None => out.fill(0.0),
                }
                let at = place_of(number, extents);
                for (tap, of_tap) in places(params.kernel).enumerate() {
                    let from = match transposed {
                        false => params.moved(params.input, at, of_tap),
                        true => origin(&params, at, of_tap),
                    };
                    let Some(from) = from else { continue };
                    before.place(x, channels, Some(number_of(from, params.input)), &mut read);
                    for (output, sum) in out.iter_mut().enumerate() {
                        let group = output / outside * inside;
                        let own = (group..group + inside).zip(&read[group..]);
                        *sum += own.map(|(channel, x)| weight(channel, output, tap) * x).sum::<f32>();
                    }
                }
                if let Some(add) = add {
                    out.iter_mut().zip(&add[number * outputs..]).for_each(|(sum, add)| *sum += add);
                }
            }
        });
    }
}
