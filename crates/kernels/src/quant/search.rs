//! The search for the scale of a group of weights: try codes for several step widths, solve the least-squares
//! scale for each set of codes, keep the best. Large weights count for more, since they matter more to a dot
//! product and a plain least-squares fit would sacrifice them.

use super::IQ4_VALUES;
use super::block32::extreme;

/// Groups whose largest magnitude is below this are stored as zeros.
pub(super) const EPSILON: f32 = 1e-15;

/// Best scale s for `w ≈ s * q`, q from `-levels` to `levels - 1`, squared errors weighted by w². May be negative:
/// the number of largest magnitude takes the code that has no opposite.
pub(super) fn symmetric_scale(weights: &[f32], levels: i32) -> f32 {
    let end = extreme(weights);
    if end.abs() < EPSILON {
        return 0.0;
    }
    let levels = levels as f32;
    let steps = std::iter::once(0).chain((-9..=9).filter(|&step| step != 0));
    let to_codes = steps.map(|step| -(levels + 0.1 * step as f32) / end);
    fitted_scale(weights, to_codes, |w| w.round_ties_even().clamp(-levels, levels - 1.0))
}

/// Best scale s for `w ≈ s * q`, q one of [`IQ4_VALUES`], squared errors weighted by w². May be negative: the
/// values reach further below zero than above.
pub(super) fn iq4_scale(weights: &[f32]) -> f32 {
    let end = extreme(weights);
    if end.abs() < EPSILON {
        return 0.0;
    }
    // The extreme takes the far end of the longer side, or lies up to 7 before or beyond it; or it clips on the
    // shorter side.
    let ends = std::iter::once(127.0).chain((-7..=7).map(|step| step as f32 - 127.0));
    fitted_scale(weights, ends.map(|value| value / end), |w| f32::from(IQ4_VALUES[iq4_code(w)]))
}

/// The code whose value is nearest, the upper of equals.
pub(super) fn iq4_code(w: f32) -> usize {
    IQ4_VALUES.windows(2).filter(|pair| 2.0 * w >= f32::from(pair[0]) + f32::from(pair[1])).count()
}

/// The scale with the least error among the best ones for the codes that each of `to_codes` gives.
fn fitted_scale(weights: &[f32], to_codes: impl Iterator<Item = f32>, round: impl Fn(f32) -> f32) -> f32 {
    let (mut scale, mut best) = (0.0, 0.0);
    for to_code in to_codes {
        // The weighted error of the best scale for given codes is Σw⁴ - sum_wq² / sum_qq: maximise the quotient.
        let (mut sum_wq, mut sum_qq) = (0.0f32, 0.0f32);
        for w in weights {
            let q = round(to_code * w);
            sum_wq += w * w * w * q;
            sum_qq += w * w * q * q;
        }
        if sum_qq > 0.0 && sum_wq * sum_wq > best * sum_qq {
            scale = sum_wq / sum_qq;
            best = scale * sum_wq;
        }
    }
    scale
}

/// Best scale s and minimum m, neither negative, for `w ≈ s * q - m`, q from 0 to `steps`; tries step widths of
/// range / (`steps` + `first` + 0.1 k) for k from 0 to `tries`. Squared errors are weighted by rms + |w|.
pub(super) fn affine_scale(weights: &[f32], steps: u8, first: f32, tries: u32) -> (f32, f32) {
    let rms = (weights.iter().map(|w| w * w).sum::<f32>() / weights.len() as f32).sqrt();
    let importance = |w: f32| rms + w.abs();
    // A group of one sign keeps zero in its range, since the minimum cannot be negative.
    let low = weights.iter().fold(0.0f32, |m, &w| m.min(w));
    let high = weights.iter().fold(f32::NEG_INFINITY, |m, &w| m.max(w));
    if high <= low {
        return (0.0, -low);
    }
    let steps = f32::from(steps);
    let code = |to_code: f32, w: f32| (to_code * (w - low)).round_ties_even().clamp(0.0, steps);
    let error = |to_code: f32, scale: f32, min: f32| -> f32 {
        weights.iter().map(|&w| importance(w) * (scale * code(to_code, w) + min - w).powi(2)).sum()
    };
    let sum_i: f32 = weights.iter().map(|&w| importance(w)).sum();
    let sum_w: f32 = weights.iter().map(|&w| importance(w) * w).sum();

    let plain = steps / (high - low);
    let (mut scale, mut min) = (1.0 / plain, low);
    let mut best = error(plain, scale, min);
    for k in 0..=tries {
        let to_code = (steps + first + 0.1 * k as f32) / (high - low);
        let (mut sum_q, mut sum_qq, mut sum_wq) = (0.0f32, 0.0f32, 0.0f32);
        for &w in weights {
            let (q, i) = (code(to_code, w), importance(w));
            sum_q += i * q;
            sum_qq += i * q * q;
            sum_wq += i * q * w;
        }
        let determinant = sum_i * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            continue;
        }
        let mut try_scale = (sum_i * sum_wq - sum_w * sum_q) / determinant;
        let mut try_min = (sum_qq * sum_w - sum_q * sum_wq) / determinant;
        if try_min > 0.0 {
            try_min = 0.0;
            try_scale = sum_wq / sum_qq;
        }
        let try_error = error(to_code, try_scale, try_min);
        if try_error < best {
            (best, scale, min) = (try_error, try_scale, try_min);
        }
    }
    (scale, -min)
}
