//! Search for the scales of groups of weights: try codes for several step widths, solve the least-squares scale for
//! each set of codes, and keep the best. Without column importance, large weights count for more, because they matter
//! more to a dot product and a plain least-squares fit would sacrifice them.
//!
//! Several groups are searched in parallel, a lane each. Each lane's sums run over its own weights in their order, so
//! every instruction set and any number of lanes give the same bits.

use super::IQ4_VALUES;

/// Groups whose largest magnitude is below this are stored as zeros.
pub(super) const EPSILON: f32 = 1e-15;

/// `N` numbers of each of `L` groups.
pub(super) type Lanes<const L: usize, const N: usize> = [[f32; L]; N];

/// Consecutive groups, one in each lane; missing groups are zeros.
#[inline(always)]
pub(super) fn lanes<const L: usize, const N: usize>(numbers: &[f32]) -> Lanes<L, N> {
    let mut lanes = [[0.0; L]; N];
    for (lane, group) in numbers.chunks_exact(N).take(L).enumerate() {
        for n in 0..N {
            lanes[n][lane] = group[n];
        }
    }
    lanes
}

/// Nearest integer, the even one of equals, for numbers below 2²²: the sum has no bits left for fractions.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    const INTEGERS: f32 = 12_582_912.0;
    (x + INTEGERS) - INTEGERS
}

/// Importance of a weight of types without minima: w².
#[inline(always)]
pub(super) fn squares<const L: usize, const N: usize>(weights: &Lanes<L, N>) -> Lanes<L, N> {
    let mut importance = *weights;
    for n in 0..N {
        for l in 0..L {
            importance[n][l] = weights[n][l] * weights[n][l];
        }
    }
    importance
}

/// Importance of a weight of types with minima: rms + |w|.
#[inline(always)]
pub(super) fn magnitudes<const L: usize, const N: usize>(weights: &Lanes<L, N>) -> Lanes<L, N> {
    let mut rms = [0.0; L];
    for row in weights {
        for l in 0..L {
            rms[l] += row[l] * row[l];
        }
    }
    for sum in &mut rms {
        *sum = (*sum / N as f32).sqrt();
    }
    let mut importance = *weights;
    for row in &mut importance {
        for l in 0..L {
            row[l] = rms[l] + row[l].abs();
        }
    }
    importance
}

/// Importance from known columns: `of * sqrt(spread + w²)`, or `of` alone without a spread. A group without
/// information, because no activation reached it, has equal importance everywhere.
#[inline(always)]
pub(super) fn known<const L: usize, const N: usize>(
    weights: &Lanes<L, N>,
    of: &Lanes<L, N>,
    spread: Option<[f32; L]>,
) -> Lanes<L, N> {
    let mut sum = [0.0; L];
    for row in of {
        for l in 0..L {
            sum[l] += row[l];
        }
    }
    let mut importance = *of;
    for n in 0..N {
        for l in 0..L {
            let known = if sum[l] > 0.0 { of[n][l] } else { 1.0 };
            importance[n][l] = match &spread {
                Some(spread) => known * (spread[l] + weights[n][l] * weights[n][l]).sqrt(),
                None => known,
            };
        }
    }
    importance
}

/// Sum of each group.
#[inline(always)]
pub(super) fn sums<const L: usize, const N: usize>(numbers: &Lanes<L, N>) -> [f32; L] {
    let mut sums = [0.0; L];
    for row in numbers {
        for l in 0..L {
            sums[l] += row[l];
        }
    }
    sums
}

/// The number of largest magnitude of each group, with its sign; the first of equals.
#[inline(always)]
fn extremes<const L: usize, const N: usize>(weights: &Lanes<L, N>) -> [f32; L] {
    let mut best = [0.0f32; L];
    for row in weights {
        for l in 0..L {
            best[l] = if row[l].abs() > best[l].abs() { row[l] } else { best[l] };
        }
    }
    best
}

/// Best scales so far.
struct Fits<const L: usize> {
    scale: [f32; L],
    best: [f32; L],
}

impl<const L: usize> Fits<L> {
    /// Keeps the better scale. The weighted error of the best scale for given codes is Σiw² - sum_wq² / sum_qq, so the
    /// quotient is maximised.
    #[inline(always)]
    fn keep(&mut self, sum_wq: &[f32; L], sum_qq: &[f32; L]) {
        for l in 0..L {
            let scale = sum_wq[l] / sum_qq[l];
            let better = (sum_qq[l] > 0.0) & (sum_wq[l] * sum_wq[l] > self.best[l] * sum_qq[l]);
            self.scale[l] = if better { scale } else { self.scale[l] };
            self.best[l] = if better { scale * sum_wq[l] } else { self.best[l] };
        }
    }

    /// Scales of the groups, 0 for groups of zeros.
    #[inline(always)]
    fn of(mut self, end: &[f32; L]) -> [f32; L] {
        for (scale, end) in self.scale.iter_mut().zip(end) {
            *scale = if end.abs() < EPSILON { 0.0 } else { *scale };
        }
        self.scale
    }
}

/// Offsets in tenths of a step by which codes reach further or less far than the levels; the first of equals is kept.
const TENTHS: [f32; 19] =
    [0.0, -9.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];

/// Best scale s for `w ≈ s * q` of each group, q from `-levels` to `levels - 1`. May be negative: the number of
/// largest magnitude takes the code that has no opposite.
#[inline(always)]
pub(super) fn symmetric_scales<const L: usize, const N: usize>(
    weights: &Lanes<L, N>,
    importance: &Lanes<L, N>,
    levels: f32,
) -> [f32; L] {
    scales_between(weights, importance, &extremes(weights), -levels, levels - 1.0)
}

/// Best scale s for `w ≈ s * q` of numbers that are not negative, q from 0 to `steps`.
#[inline(always)]
pub(super) fn positive_scale<const N: usize>(numbers: [f32; N], importance: [f32; N], steps: f32) -> f32 {
    let (numbers, importance) = (lanes::<1, N>(&numbers), lanes::<1, N>(&importance));
    // The largest takes the highest code.
    let end = [-extremes(&numbers)[0]];
    scales_between(&numbers, &importance, &end, 0.0, steps)[0]
}

/// Same as [`symmetric_scales`], for codes from `low` to `high`. `end` takes the bound of larger magnitude, or its place
/// below zero.
#[inline(always)]
fn scales_between<const L: usize, const N: usize>(
    weights: &Lanes<L, N>,
    importance: &Lanes<L, N>,
    end: &[f32; L],
    low: f32,
    high: f32,
) -> [f32; L] {
    let levels = if low < 0.0 { -low } else { high };
    let mut products = *weights;
    for n in 0..N {
        for l in 0..L {
            products[n][l] = importance[n][l] * weights[n][l];
        }
    }
    let mut fits = Fits { scale: [0.0; L], best: [0.0; L] };
    for tenths in TENTHS {
        let mut to_code = [0.0; L];
        for l in 0..L {
            to_code[l] = -(levels + 0.1 * tenths) / end[l];
        }
        let (mut sum_wq, mut sum_qq) = ([0.0f32; L], [0.0f32; L]);
        for n in 0..N {
            for l in 0..L {
                let q = nearest(to_code[l] * weights[n][l]).clamp(low, high);
                sum_wq[l] += products[n][l] * q;
                sum_qq[l] += importance[n][l] * q * q;
            }
        }
        fits.keep(&sum_wq, &sum_qq);
    }
    fits.of(end)
}

/// Passes over a group in which each code may change.
const DESCENTS: usize = 5;

/// Same as [`symmetric_scales`], for few levels. Code after code takes the value that fits the scale of the others
/// best, until none changes. Large weights count for more.
#[inline(always)]
pub(super) fn descended_scales<const L: usize, const N: usize>(
    weights: &Lanes<L, N>,
    levels: f32,
) -> [f32; L] {
    let (end, importance) = (extremes(weights), squares(weights));
    let mut codes = [[0.0f32; L]; N];
    let (mut sum_wq, mut sum_qq) = ([0.0f32; L], [0.0f32; L]);
    for n in 0..N {
        for l in 0..L {
            let q = nearest(-levels / end[l] * weights[n][l]).clamp(-levels, levels - 1.0);
            codes[n][l] = q;
            sum_wq[l] += importance[n][l] * weights[n][l] * q;
            sum_qq[l] += importance[n][l] * q * q;
        }
    }
    for _ in 0..DESCENTS {
        for n in 0..N {
            for l in 0..L {
                let (w, i, q) = (weights[n][l], importance[n][l], codes[n][l]);
                let (wq, qq) = (sum_wq[l] - i * w * q, sum_qq[l] - i * q * q);
                let next = nearest(w * qq / wq).clamp(-levels, levels - 1.0);
                let (next_wq, next_qq) = (wq + i * w * next, qq + i * next * next);
                // The rest keeps its sign, and the weighted error falls.
                let better = (wq * sum_wq[l] > 0.0)
                    & (next_qq > 0.0)
                    & (next_wq * next_wq * sum_qq[l] > sum_wq[l] * sum_wq[l] * next_qq);
                codes[n][l] = if better { next } else { q };
                sum_wq[l] = if better { next_wq } else { sum_wq[l] };
                sum_qq[l] = if better { next_qq } else { sum_qq[l] };
            }
        }
    }
    let mut scales = [0.0; L];
    for l in 0..L {
        let none = (end[l].abs() < EPSILON) | (sum_qq[l] <= 0.0);
        scales[l] = if none { 0.0 } else { sum_wq[l] / sum_qq[l] };
    }
    scales
}

/// Best scale s for `w ≈ s * q` of each group, q one of [`IQ4_VALUES`]. May be negative: the values reach further below
/// zero than above.
#[inline(always)]
pub(super) fn iq4_scales<const L: usize, const N: usize>(
    weights: &Lanes<L, N>,
    importance: &Lanes<L, N>,
) -> [f32; L] {
    let end = extremes(weights);
    let mut fits = Fits { scale: [0.0; L], best: [0.0; L] };
    // The extreme takes the far end of the longer side, or lies up to 7 before or beyond it; or it clips on the
    // shorter side.
    for step in 0..16u8 {
        let value = if step == 0 { 127.0 } else { f32::from(step) - 8.0 - 127.0 };
        let mut to_code = [0.0; L];
        for l in 0..L {
            to_code[l] = value / end[l];
        }
        let (mut sum_wq, mut sum_qq) = ([0.0f32; L], [0.0f32; L]);
        for n in 0..N {
            let mut q = [f32::from(IQ4_VALUES[0]); L];
            for pair in IQ4_VALUES.windows(2) {
                let (below, above) = (f32::from(pair[0]), f32::from(pair[1]));
                for l in 0..L {
                    q[l] +=
                        if 2.0 * (to_code[l] * weights[n][l]) >= below + above { above - below } else { 0.0 };
                }
            }
            for l in 0..L {
                sum_wq[l] += importance[n][l] * weights[n][l] * q[l];
                sum_qq[l] += importance[n][l] * q[l] * q[l];
            }
        }
        fits.keep(&sum_wq, &sum_qq);
    }
    fits.of(&end)
}

/// Code with the nearest value, the upper of equals.
#[inline(always)]
pub(super) fn iq4_code(w: f32) -> u8 {
    let mut code = 0;
    for pair in IQ4_VALUES.windows(2) {
        code += u8::from(2.0 * w >= f32::from(pair[0]) + f32::from(pair[1]));
    }
    code
}

/// Step widths to try: range / (steps + `first` + `width` k) for k from 0 to `last`.
#[derive(Clone, Copy)]
pub(super) struct Tries {
    pub(super) first: f32,
    pub(super) width: f32,
    pub(super) last: u8,
}

/// Best scale s and minimum m of each group, neither negative, for `w ≈ s * q - m`, q from 0 to `steps`. Each try
/// begins at the best minimum so far, as in llama.cpp.
#[inline(always)]
pub(super) fn affine_scales<const L: usize, const N: usize>(
    weights: &Lanes<L, N>,
    importance: &Lanes<L, N>,
    steps: f32,
    tries: Tries,
) -> ([f32; L], [f32; L]) {
    // A group of one sign keeps zero in its range, since the minimum cannot be negative.
    let (mut low, mut high) = ([0.0f32; L], [f32::NEG_INFINITY; L]);
    let (mut sum_i, mut sum_w) = ([0.0f32; L], [0.0f32; L]);
    for n in 0..N {
        for l in 0..L {
            let (w, i) = (weights[n][l], importance[n][l]);
            low[l] = if w < low[l] { w } else { low[l] };
            high[l] = if w > high[l] { w } else { high[l] };
            sum_i[l] += i;
            sum_w[l] += i * w;
        }
    }
    let (mut scale, mut min, mut best) = ([0.0f32; L], low, [f32::INFINITY; L]);
    let mut codes = [[0.0f32; L]; N];
    // First the plain one, which takes the whole range.
    for k in 0..=tries.last + 1 {
        let reach = if k == 0 { 0.0 } else { tries.first + tries.width * f32::from(k - 1) };
        let (mut sum_q, mut sum_qq, mut sum_wq) = ([0.0f32; L], [0.0f32; L], [0.0f32; L]);
        let mut to_code = [0.0; L];
        for l in 0..L {
            to_code[l] = (steps + reach) / (high[l] - min[l]);
        }
        for n in 0..N {
            for l in 0..L {
                let (w, i) = (weights[n][l], importance[n][l]);
                let q = nearest(to_code[l] * (w - min[l])).clamp(0.0, steps);
                codes[n][l] = q;
                sum_q[l] += i * q;
                sum_qq[l] += i * q * q;
                sum_wq[l] += i * q * w;
            }
        }
        let (mut try_scale, mut try_min, mut fits) = ([0.0f32; L], [0.0f32; L], [true; L]);
        for l in 0..L {
            let determinant = sum_i[l] * sum_qq[l] - sum_q[l] * sum_q[l];
            let scale = (sum_i[l] * sum_wq[l] - sum_w[l] * sum_q[l]) / determinant;
            let least = (sum_qq[l] * sum_w[l] - sum_q[l] * sum_wq[l]) / determinant;
            let positive = least > 0.0;
            let (scale, least) = if positive { (sum_wq[l] / sum_qq[l], 0.0) } else { (scale, least) };
            fits[l] = (k == 0) | (determinant > 0.0);
            (try_scale[l], try_min[l]) = if k == 0 { (1.0 / to_code[l], low[l]) } else { (scale, least) };
        }
        let mut error = [0.0f32; L];
        for n in 0..N {
            for l in 0..L {
                let off = try_scale[l] * codes[n][l] + try_min[l] - weights[n][l];
                error[l] += importance[n][l] * (off * off);
            }
        }
        for l in 0..L {
            let better = fits[l] & (error[l] < best[l]);
            best[l] = if better { error[l] } else { best[l] };
            scale[l] = if better { try_scale[l] } else { scale[l] };
            min[l] = if better { try_min[l] } else { min[l] };
        }
    }
    for l in 0..L {
        let flat = high[l] <= low[l];
        scale[l] = if flat { 0.0 } else { scale[l] };
        min[l] = if flat { -low[l] } else { -min[l] };
    }
    (scale, min)
}
