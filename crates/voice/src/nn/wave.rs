//! Functions of single numbers, over whole signals and in a form that compilers make vectors of.

use super::{Affine, Compute, Signal};

/// Added and taken away again, it leaves the nearest whole number of one below 4 million.
const ROUND: f32 = 12_582_912.0;

/// `sin²(x)`, within 1e-6: of the distance to the nearest multiple of π, whose sign does not matter.
#[inline(always)]
fn sin_squared(x: f32) -> f32 {
    const INV_PI: f32 = std::f32::consts::FRAC_1_PI;
    // π in two parts: the first has so few digits that its multiples are exact.
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

/// `y + sin²(alpha · y) / alpha` of `y = x · scale + shift`, channel by channel (arxiv.org/abs/2006.08195).
pub(crate) fn snake(compute: &Compute, x: &mut Signal, affine: &Affine, alpha: &[f32], inverse: &[f32]) {
    let cols = x.cols;
    compute.rows(&mut x.data, cols, &|_, piece| {
        for row in piece.chunks_exact_mut(cols) {
            let channels = affine.scale.iter().zip(&affine.shift).zip(alpha.iter().zip(inverse));
            for (value, ((scale, shift), (alpha, inverse))) in row.iter_mut().zip(channels) {
                let y = *value * scale + shift;
                *value = y + inverse * sin_squared(alpha * y);
            }
        }
    });
}

/// `max(y, slope · y)` of `y = x · scale + shift`.
pub(crate) fn leaky_relu(compute: &Compute, x: &mut Signal, affine: Option<&Affine>, slope: f32) {
    let cols = x.cols;
    compute.rows(&mut x.data, cols, &|_, piece| {
        for row in piece.chunks_exact_mut(cols) {
            match affine {
                Some(affine) => {
                    for (value, (scale, shift)) in row.iter_mut().zip(affine.scale.iter().zip(&affine.shift))
                    {
                        let y = *value * scale + shift;
                        *value = y.max(slope * y);
                    }
                }
                None => row.iter_mut().for_each(|y| *y = y.max(slope * *y)),
            }
        }
    });
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
