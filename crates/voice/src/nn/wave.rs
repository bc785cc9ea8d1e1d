//! Elementwise functions over whole signals, written so that compilers vectorise them.

use super::{ChannelAffine, Compute, Signal};

/// Adding and subtracting this constant rounds a number below 4 million to the nearest integer.
const ROUND: f32 = 12_582_912.0;

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

/// `e^x`, with a relative error of 2e-7. Results outside f32's range become its largest or smallest number.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // The logarithm of 2 as a sum of two numbers. The first has few digits, so that its multiples are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let rounded = x * LOG2_E + ROUND;
    let twos = rounded - ROUND;
    let r = (x - twos * LN_2_HIGH) - twos * LN_2_LOW;
    let poly = 1.984_127e-4_f32;
    let poly = poly * r + 1.388_888_9e-3;
    let poly = poly * r + 8.333_333e-3;
    let poly = poly * r + 4.166_666_6e-2;
    let poly = poly * r + 1.666_666_7e-1;
    let poly = poly * r + 0.5;
    let poly = poly * (r * r) + r + 1.0;
    // The integer is in the lowest bits of the rounded number.
    poly * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, within 3e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

/// Activation applied to the input of a convolution.
#[derive(Clone, Copy)]
pub(crate) enum Bent<'a> {
    /// No activation.
    Not,
    /// Leaky ReLU: `max(y, slope · y)` of `y = x · scale + shift`.
    Leaky { affine: Option<&'a ChannelAffine>, slope: f32 },
    /// Snake: `y + sin²(alpha · y) / alpha` of `y = x · scale + shift`, for each channel
    /// (arxiv.org/abs/2006.08195).
    Snake { affine: &'a ChannelAffine, alpha: &'a [f32], inverse: &'a [f32] },
}

impl Bent<'_> {
    /// Applies it to a row of channels.
    pub(crate) fn row(&self, row: &[f32], out: &mut [f32]) {
        let each = out.iter_mut().zip(row);
        match *self {
            Bent::Not => out.copy_from_slice(row),
            Bent::Leaky { affine: None, slope } => each.for_each(|(out, &y)| *out = y.max(slope * y)),
            Bent::Leaky { affine: Some(affine), slope } => {
                for ((out, &x), (scale, shift)) in each.zip(affine.scale.iter().zip(&affine.shift)) {
                    let y = x * scale + shift;
                    *out = y.max(slope * y);
                }
            }
            Bent::Snake { affine, alpha, inverse } => {
                let channels = affine.scale.iter().zip(&affine.shift).zip(alpha.iter().zip(inverse));
                for ((out, &x), ((scale, shift), (alpha, inverse))) in each.zip(channels) {
                    let y = x * scale + shift;
                    *out = y + inverse * sin_squared(alpha * y);
                }
            }
        }
    }
}

/// Computes `max(y, slope · y)`.
pub(crate) fn leaky_relu(compute: &Compute, x: &mut Signal, slope: f32) {
    let cols = x.cols;
    compute.rows(&mut x.data, cols, &|_, piece| piece.iter_mut().for_each(|y| *y = y.max(slope * *y)));
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

    #[test]
    fn powers_and_tangents_are_near_enough() {
        for step in -90_000..90_000 {
            let x = step as f32 * 1e-3;
            let right = f64::from(x).clamp(-87.0, 88.0).exp();
            assert!((f64::from(exp(x)) / right - 1.0).abs() < 3e-7, "{x}: {}", exp(x));
            let right = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - right).abs() < 4e-7, "{x}: {}", tanh(x));
        }
        assert_eq!((sigmoid(-200.0) < 1e-30, sigmoid(200.0)), (true, 1.0));
        assert!(tanh(f32::NAN).is_nan());
    }
}
