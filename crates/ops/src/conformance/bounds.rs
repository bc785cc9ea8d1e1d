//! Bounds of the differences between a backend's numbers and the reference's.
//!
//! Errors of many independent roundings add up like noise. So each element's bound is a standard deviation σ computed
//! from its data: no element may err by more than 8 σ, and the mean of the squared errors over a case may not exceed 2
//! σ². The first catches a block with a wrong scale or sign, the second anything that is slightly wrong everywhere.
//! Worst-case bounds would be some √cols wider and hide both.

use half::bf16;

use crate::{Operands, Rounding};

/// Standard deviations by which a single element may differ.
const ELEMENT_MAX: f64 = 8.0;
/// Bound of a case's mean squared error, in variances.
const MEAN_SQUARE_MAX: f64 = 2.0;
/// Relative error of sums and functions in f32: the σ for which 8 σ = 1e-5.
pub(super) const FLOAT: f64 = 1.25e-6;
/// Relative σ of rounding a number to f16: half of the largest error.
pub(super) const HALF: f64 = 1.0 / 4096.0;

/// Relative σ of rounding a number to bfloat16: half of the largest error, like [`HALF`].
const BF16: f64 = 1.0 / 512.0;

/// Relative σ of rounding one operand.
pub(super) fn operand_sigma(rounding: Rounding) -> f64 {
    match rounding.operands {
        Operands::F32 => 0.0,
        Operands::Bf16 => BF16,
    }
}

/// Rounds numbers to what a device's operands hold exactly, for checks that separate other errors from rounding.
pub(super) fn hold(rounding: Rounding, values: &mut [f32]) {
    if rounding.operands == Operands::Bf16 {
        for value in values {
            // Halves of the remaining numbers are exact too.
            *value = if value.abs() < 1e-34 { 0.0 } else { bf16::from_f32(*value).to_f32() };
        }
    }
}

/// Errors of one case.
pub(super) struct CaseErrors {
    what: String,
    /// Relative σ of storing a number.
    stored: f64,
    count: usize,
    squares: f64,
}

impl CaseErrors {
    /// Starts a case; `what` names the op, type and shape in failure messages.
    pub(super) fn new(what: String) -> Self {
        Self { what, stored: 0.0, count: 0, squares: 0.0 }
    }

    /// Same as [`CaseErrors::new`], for numbers in a buffer of operands.
    pub(super) fn of_operands(what: String, rounding: Rounding) -> Self {
        Self { stored: operand_sigma(rounding), ..Self::new(what) }
    }

    /// Checks one element, at a row and a column. `slack` is an absolute error that is always allowed.
    pub(super) fn check(
        &mut self,
        row: usize,
        col: usize,
        found: f32,
        expected: f32,
        sigma: f64,
        slack: f64,
    ) {
        let sigma = sigma.hypot(self.stored * f64::from(expected));
        let error = (f64::from(found) - f64::from(expected)).abs();
        let excess = error - slack - f64::from(expected).abs() * f64::from(f32::EPSILON);
        // NaN is not below any bound, so it fails here too.
        assert!(
            excess <= ELEMENT_MAX * sigma,
            "{}: row {row}, column {col} is {found}, not {expected}: off by {error:e}, allowed {:e}",
            self.what,
            ELEMENT_MAX * sigma + slack
        );
        if sigma > 0.0 {
            self.squares += (excess.max(0.0) / sigma).powi(2);
            self.count += 1;
        }
    }

    /// Checks the case as a whole.
    pub(super) fn finish(self) {
        // A handful of elements may be unlucky together; hundreds may not.
        let allowed = MEAN_SQUARE_MAX * self.count as f64 + 32.0;
        assert!(
            self.squares <= allowed,
            "{}: over {} elements the squared errors sum to {:.1} variances, allowed {allowed:.1}",
            self.what,
            self.count,
            self.squares
        );
    }
}

/// σ of a dot product of weights `w` with activations `a`.
///
/// Always [`FLOAT`] of `Σ|w a|`, for sums in f32. With bfloat16 operands also the separate rounding of both sides of
/// each product: `Σ 2 ([`BF16`] w a)²`. With quantised weights also:
/// - if the device says so, activations rounded to 1/127 of the largest of their 256 (or fewer): the rounding error is
///   uniform over one step, of variance step²/12, so `Σ_256 (max|a| / 127)² / 12 Σ w²`;
/// - the scales of weights and activations rounded to half precision: `Σ_32 (2⁻¹⁰ Σ|w a|)²`, and where a product
///   of scales is subnormal, 2⁻²⁵ for each of up to 16 steps of code.
pub(super) fn dot_sigma(rounding: Rounding, w: &[f32], a: &[f32], quantised: bool) -> f64 {
    let operand = 2.0 * operand_sigma(rounding).powi(2);
    let mut variance = 0.0;
    let mut total = 0.0;
    for (w, a) in w.chunks(256).zip(a.chunks(256)) {
        let step = a.iter().fold(0.0f64, |m, &a| m.max(f64::from(a).abs())) / 127.0;
        let mut squares = 0.0;
        for (w, a) in w.chunks(32).zip(a.chunks(32)) {
            let (mut products, mut sizes) = (0.0, 0.0);
            for (&w, &a) in w.iter().zip(a) {
                let (w, a) = (f64::from(w), f64::from(a).abs());
                products += w.abs() * a;
                sizes += a;
                squares += w * w;
                variance += operand * (w * a).powi(2);
            }
            total += products;
            if quantised {
                variance += (4.0 * HALF * products).powi(2) + (16.0 * sizes / 33_554_432.0).powi(2);
            }
        }
        if quantised && rounding.bytes_before_quantised {
            variance += step * step / 12.0 * squares;
        }
    }
    (variance + (FLOAT * total).powi(2)).sqrt()
}

/// Possible loss if activations are so small that a device flushes them, or their scale, to zero.
pub(super) fn flush_slack(w: &[f32]) -> f64 {
    1e-34 * w.iter().map(|&w| f64::from(w).abs()).sum::<f64>() + 1e-37
}

/// Asserts that two runs gave the same bits. Rows of `cols`.
pub(super) fn same_bits(what: &str, found: &[f32], expected: &[f32], cols: usize) {
    assert_eq!(found.len(), expected.len(), "{what}: different sizes");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            found.to_bits() == expected.to_bits(),
            "{what}: row {}, column {} is {found:e} in one batch and {expected:e} in another",
            i / cols,
            i % cols
        );
    }
}
