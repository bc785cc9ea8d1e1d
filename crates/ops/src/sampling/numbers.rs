//! Arithmetic of sampling beyond sums of masses: entropy, standard deviation, and elementary functions of a few
//! numbers for each row. Plain IEEE operations in a fixed order, because platform libraries differ in the last bits.

use std::f64::consts::{LN_2, SQRT_2};

use super::{SampleSpec, mass, mass_to_weight};

/// Upper bound of [`deviation`]: logits further below the largest count as being this far.
const DEVIATION_MAX: f32 = 4096.0;
/// Units of a deviation per 1.
const DEVIATION_ONE: f32 = 65_536.0;

/// Sums over tokens of the masses of weights `e^x`, and of `-x` times weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// Tokens that are not ruled out.
    pub count: u64,
    /// Sum of the masses of their weights.
    pub total: u64,
    /// Sum of the masses of `-x e^x`.
    pub surprise: u64,
}

impl Moments {
    /// Adds a token with this weight, which is above 0 if `x` is above -87.
    #[inline(always)]
    pub fn add(&mut self, x: f32, weight: f32) {
        self.count += u64::from(x > f32::NEG_INFINITY);
        self.total += mass(weight);
        // At most 1/e. Tokens too light to have a mass count for nothing.
        self.surprise += if weight > 0.0 { mass(weight * -x) } else { 0 };
    }

    /// Mean of `-x` in nats.
    pub fn mean(&self) -> f64 {
        self.surprise as f64 / self.total as f64
    }

    /// Entropy of the tokens in nats.
    pub fn entropy(&self) -> f64 {
        ln(mass_to_weight(self.total)) + self.mean()
    }
}

/// Sums over a row of the distances of its logits below the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Tokens that are not ruled out.
    pub count: u64,
    /// Sum of their [`deviation`]s.
    pub sum: u64,
    /// Sum of the deviations' squares, each divided by 2^16 and rounded down.
    pub squares: u64,
}

impl Spread {
    /// Adds a logit of a row with this largest logit.
    #[inline(always)]
    pub fn add(&mut self, maximum: f32, logit: f32) {
        if logit > f32::NEG_INFINITY {
            let deviation = u64::from(deviation(maximum, logit));
            self.count += 1;
            self.sum += deviation;
            self.squares += (deviation * deviation) >> 16;
        }
    }

    /// The standard deviation.
    pub fn standard_deviation(&self) -> f64 {
        let (count, one) = (self.count.max(1) as f64, f64::from(DEVIATION_ONE));
        let mean = self.sum as f64 / one / count;
        (self.squares as f64 / one / count - mean * mean).max(0.0).sqrt()
    }
}

/// Distance of a logit that is not ruled out below the largest, in units of 2^-16, rounded down; at most 4096.
#[inline(always)]
pub fn deviation(maximum: f32, logit: f32) -> u32 {
    ((maximum - logit).min(DEVIATION_MAX) * DEVIATION_ONE) as u32
}

/// Lowest logit that is at most `sigmas` standard deviations below the largest.
pub fn sigma_floor(maximum: f32, sigmas: f32, spread: &Spread) -> f32 {
    let floor = f64::from(maximum) - f64::from(sigmas) * spread.standard_deviation();
    // Rounding up could exceed the largest itself.
    (floor as f32).min(maximum)
}

/// Temperature by the entropy of the tokens at temperature 1: the range's lower end if one token has all probability,
/// its upper end if all are equal.
pub fn dynamic_temperature(spec: &SampleSpec, moments: &Moments) -> f32 {
    let (temperature, range) = (f64::from(spec.temperature), f64::from(spec.shape.temperature_range));
    if moments.count < 2 {
        return spec.temperature;
    }
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    let normalized = (moments.entropy() / ln(moments.count as f64)).clamp(0.0, 1.0);
    let exponent = f64::from(spec.shape.temperature_exponent);
    let place = match normalized {
        _ if exponent == 0.0 => 1.0,
        0.0 => 0.0,
        normalized => exp(exponent * ln(normalized)),
    };
    // At temperature 0 only the largest logit has weight, as it does at the smallest positive number.
    ((low + (high - low) * place) as f32).max(f32::MIN_POSITIVE)
}

/// Natural logarithm of a positive normal number, relative error of the order of 1e-15.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if fraction > SQRT_2 {
        (fraction, exponent) = (fraction / 2.0, exponent + 1);
    }
    // ln m = 2 artanh s, |s| < 0.172.
    let s = (fraction - 1.0) / (fraction + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for odd in (0..12).rev() {
        series = series * square + 1.0 / f64::from(2 * odd + 1);
    }
    exponent as f64 * LN_2 + 2.0 * s * series
}

/// e^x, relative error of the order of 1e-15; 0 below -708, not above e^709.
pub fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    let x = x.min(709.0);
    let n = (x / LN_2).round();
    // ln 2 in two parts. The first has few bits, so that the remainder is exact.
    let r = x - n * 0.693_147_180_369_123_8 - n * 1.908_214_929_270_587_7e-10;
    let mut series = 1.0;
    for term in (1..15).rev() {
        series = series * r / f64::from(term) + 1.0;
    }
    series * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}
