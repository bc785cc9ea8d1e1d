//! Activations of the inputs of convolutions, and of whole rows, written so that compilers vectorise them.

use crate::cpu::lanes::{Kernel, Lanes, dispatch};
use crate::cpu::matmul::{get, put};
use crate::cpu::{CpuVector, Tier, math};
use hanzo_engine_ops::{Activation, PointActivation};

const LANES: usize = 16;

/// Adding and subtracting this constant rounds a number below 4 million to the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// Added to the frequency of a snake that is divided by.
const LEAST: f32 = 1e-9;

/// `sin²(x)`, within 1e-6, from the distance to the nearest multiple of π, whose sign does not matter.
#[inline(always)]
fn sin_squared(x: f32) -> f32 {
    const INV_PI: f32 = std::f32::consts::FRAC_1_PI;
    // π as a sum of two numbers. The first has few digits, so that its multiples are exact.
    const PI_HIGH: f32 = 3.140_625;
    const PI_LOW: f32 = 9.676_536e-4;
    let turns = (x * INV_PI + ROUND) - ROUND;
    let r = (x - turns * PI_HIGH) - turns * PI_LOW;
    let square = r * r;
    let poly = -2.505_21e-8_f32;
    let poly = poly * square + 2.755_731_9e-6;
    let poly = poly * square - 1.984_127e-4;
    let poly = poly * square + 8.333_333e-3;
    let poly = poly * square - 1.666_666_7e-1;
    let sine = r + r * square * poly;
    sine * sine
}

/// Change of the input of a convolution. Its vectors have a number for each channel.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct LineInput<'a> {
    /// Scale and shift, `y = x · scale + shift`.
    pub(in crate::cpu) affine: Option<[&'a [f32]; 2]>,
    /// Activation of `y`.
    pub(in crate::cpu) activation: LineActivation<'a>,
}

/// Activation of the input of a convolution.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum LineActivation<'a> {
    /// No activation.
    Plain,
    /// `max(y, slope · y)`
    Leaky { slope: f32 },
    /// `y + sin²(alpha · y) / alpha`, with the inverse of the frequencies.
    Snake { alpha: &'a [f32], inverse: &'a [f32] },
    /// Activation of an op that has no case of its own here.
    Point(Tier, PointActivation<&'a CpuVector>),
}

impl<'a> LineActivation<'a> {
    /// Activation of an op. `room` is filled with the inverse of frequencies.
    pub(in crate::cpu) fn of(
        tier: Tier,
        before: Option<PointActivation<&'a CpuVector>>,
        room: &'a mut [f32],
    ) -> LineActivation<'a> {
        match before {
            None => LineActivation::Plain,
            Some(PointActivation::LeakyRelu { slope }) if (0.0..=1.0).contains(&slope) => {
                LineActivation::Leaky { slope }
            }
            Some(PointActivation::Snake { alpha }) => {
                let alpha = alpha.numbers();
                let inverse = &mut room[..alpha.len()];
                inverse.iter_mut().zip(alpha).for_each(|(inverse, alpha)| *inverse = 1.0 / (alpha + LEAST));
                LineActivation::Snake { alpha, inverse }
            }
            Some(other) => LineActivation::Point(tier, other),
        }
    }
}

impl LineInput<'_> {
    /// Applies it to a row of channels.
    fn row(&self, row: &[f32], out: &mut [f32]) {
        match (self.affine, self.activation) {
            (None, LineActivation::Plain) => out.copy_from_slice(row),
            (None, LineActivation::Leaky { slope }) => {
                out.iter_mut().zip(row).for_each(|(out, &y)| *out = y.max(slope * y));
            }
            (Some([scale, shift]), LineActivation::Leaky { slope }) => {
                for ((out, &x), (scale, shift)) in out.iter_mut().zip(row).zip(scale.iter().zip(shift)) {
                    let y = x * scale + shift;
                    *out = y.max(slope * y);
                }
            }
            (Some([scale, shift]), LineActivation::Snake { alpha, inverse }) => {
                let channels = scale.iter().zip(shift).zip(alpha.iter().zip(inverse));
                for ((out, &x), ((scale, shift), (alpha, inverse))) in out.iter_mut().zip(row).zip(channels) {
                    let y = x * scale + shift;
                    *out = y + inverse * sin_squared(alpha * y);
                }
            }
            (affine, activation) => {
                out.copy_from_slice(row);
                if let Some([scale, shift]) = affine {
                    let numbers = out.iter_mut().zip(scale.iter().zip(shift));
                    numbers.for_each(|(out, (scale, shift))| *out = *out * scale + shift);
                }
                activation.change(out);
            }
        }
    }

    /// Writes a place of `x` through the activation, or zeros for none.
    pub(super) fn place(&self, x: &[f32], cols: usize, place: Option<usize>, out: &mut [f32]) {
        match place {
            Some(place) => self.row(&x[place * cols..][..cols], out),
            None => out.fill(0.0),
        }
    }
}

impl LineActivation<'_> {
    /// Applies it in place.
    fn change(&self, row: &mut [f32]) {
        match *self {
            LineActivation::Plain => {}
            LineActivation::Leaky { slope } => row.iter_mut().for_each(|y| *y = y.max(slope * *y)),
            LineActivation::Snake { alpha, inverse } => {
                for (y, (alpha, inverse)) in row.iter_mut().zip(alpha.iter().zip(inverse)) {
                    *y += inverse * sin_squared(alpha * *y);
                }
            }
            LineActivation::Point(tier, activation) => activate(tier, &activation, row),
        }
    }
}

/// Applies an activation to a row.
pub(in crate::cpu) fn activate(tier: Tier, activation: &PointActivation<&CpuVector>, row: &mut [f32]) {
    match *activation {
        PointActivation::Snake { alpha } => {
            for (y, alpha) in row.iter_mut().zip(alpha.numbers()) {
                *y += sin_squared(alpha * *y) / (alpha + LEAST);
            }
        }
        PointActivation::LeakyRelu { slope } => {
            row.iter_mut().for_each(|y| *y = if *y < 0.0 { slope * *y } else { *y });
        }
        PointActivation::Elu { alpha } => {
            row.iter_mut().filter(|y| **y < 0.0).for_each(|y| *y = alpha * y.exp_m1());
        }
        PointActivation::Tanh => bend(tier, row, None),
        PointActivation::Mlp(activation) => bend(tier, row, Some(activation)),
    }
}

/// Applies the non-linearity of an MLP, or a hyperbolic tangent, to a row.
fn bend(tier: Tier, row: &mut [f32], activation: Option<Activation>) {
    // SAFETY: the row is there, and the backend has checked its tier.
    unsafe { dispatch(tier, Bend { row, activation }) };
}

/// Kernel for a row: the non-linearity of an MLP, or a hyperbolic tangent.
struct Bend<'a> {
    row: &'a mut [f32],
    activation: Option<Activation>,
}

impl Kernel for Bend<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for part in self.row.chunks_mut(LANES) {
            // SAFETY: vectors are cut at the row's end.
            unsafe {
                let x = get::<L>(part.as_ptr(), part.len());
                let y = match self.activation {
                    Some(activation) => math::activate::<L>(activation, x),
                    None => math::tanh::<L>(x),
                };
                put::<L>(part.as_mut_ptr(), y, part.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_square_of_a_sine_is_near_enough() {
        for step in -200_000..200_000 {
            let x = step as f32 * 1e-3;
            let right = f64::from(x).sin().powi(2);
            assert!((f64::from(sin_squared(x)) - right).abs() < 2e-6, "{x}");
        }
    }
}
