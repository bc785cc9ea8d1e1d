//! Sampling: from a row of logits to a token. The caller supplies random numbers and the history of tokens; a
//! [`SampleSpec`] is plain data for one row. [`reference`](crate::reference) computes this formula literally:
//!
//! 0. the bias of the model's head and its soft cap, on all logits ([`soft_cap`]); then the row's mask: logits of
//!    tokens outside it become -inf;
//! 1. the repetition penalty, on the logit of each token that was seen; then adjustments, in their order, each on one
//!    token's logit;
//! 2. at temperature 0: the largest logit, with ties broken by the lowest id, and nothing after this;
//! 3. the `top_k` largest, with ties broken by lower ids, and of them those that `top_n_sigma` keeps
//!    ([`sigma_floor`]);
//! 4. the temperature by their entropy, within `temperature_range` ([`dynamic_temperature`]);
//! 5. weights `e^x`, `x = (logit - largest) / temperature`, of those tokens, and 0 of all others, by
//!    [`exp_nonpositive`];
//! 6. masses: weights as integers ([`mass`]), so that their sums do not depend on an order;
//! 7. typical sampling: the smallest set of tokens whose `-x` is nearest to its mean ([`Moments::mean`]), with ties
//!    broken by lower ids, whose mass is at least `typical_p` of all. A token's `-ln p` is as far from the entropy as
//!    its `-x` is from the mean;
//! 8. of those, the smallest set of heaviest weights, with ties broken by lower ids, whose mass is at least `top_p` of
//!    theirs; and of them those of at least `min_p` of the heaviest;
//! 9. XTC: if two or more tokens have at least `xtc_threshold` of the remaining mass, all of these except the lightest
//!    are removed; of equals the highest id stays;
//! 10. of those, all with at least `probability_min` of the remaining mass, and the heaviest, of equals the lowest id;
//! 11. the first token, in order of id, at which the running sum of masses exceeds `uniform` times their sum.
//!
//! All of it is sums of integers and plain IEEE operations in a fixed order, so every device draws the same token from
//! the same logits. A row gives no token if its logits hold NaN or +inf, or if all tokens are ruled out. Log
//! probabilities are of the distribution after the mask, which the model was asked to choose from, and before
//! temperature and adjustments.
//!
//! A row whose token is given draws nothing. It returns that token, to report its log probability among all tokens.

mod draw;
mod numbers;
mod selection;
mod shaped;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use draw::{Draw, DrawScratch, Draws, Ticket};
pub use numbers::{Moments, Spread, deviation, dynamic_temperature, exp, ln, sigma_floor};

/// Largest vocabulary whose sum of masses fits an integer.
pub const SAMPLED_VOCAB_MAX: usize = (1 << (63 - MASS_ONE_LOG2)) - 1;

/// Sampling settings of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpec {
    /// Temperature; 0: the most likely token.
    pub temperature: f32,
    /// Only the k most likely tokens; 0: all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities reach this sum, in (0, 1]; 1: all.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the most likely one, in [0, 1].
    pub min_p: f32,
    /// Random number to draw with, in [0, 1); unused at temperature 0.
    pub uniform: f64,
    /// Further settings that shape the distribution.
    pub shape: Shape,
    /// `Some(k)`: report the log probabilities of the token and of the k most likely tokens.
    pub logprobs: Option<u32>,
    /// Token that is already known, below the vocabulary; nothing is drawn or adjusted.
    pub given: Option<u32>,
    /// Repetition penalty on tokens that were seen, applied as [`Change::Penalize`]; 1: none.
    pub repetition: f32,
    /// The row's part of [`SampleSpecs::seen`].
    pub seen: Range<u32>,
    /// The row's part of [`SampleSpecs::adjustments`].
    pub adjustments: Range<u32>,
    /// Index in [`SampleSpecs::masks`] of the mask of allowed tokens; none: all tokens.
    pub mask: Option<u32>,
}

/// Greedy sampling without adjustments or reports.
impl Default for SampleSpec {
    fn default() -> SampleSpec {
        SampleSpec {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            uniform: 0.0,
            shape: Shape::default(),
            logprobs: None,
            given: None,
            repetition: 1.0,
            seen: 0..0,
            adjustments: 0..0,
            mask: None,
        }
    }
}

/// Sampling settings beyond temperature, top-k, top-p and min-p. The default changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Top-nσ: keeps logits at most so many standard deviations of all logits below the largest; 0: all
    /// (arxiv.org/abs/2411.07641).
    pub top_n_sigma: f32,
    /// Dynamic temperature: the temperature is lowered by this if one token has all probability, and raised by this if
    /// all are equal; 0: fixed temperature.
    pub temperature_range: f32,
    /// Exponent on the normalised entropy that places the temperature in that range.
    pub temperature_exponent: f32,
    /// Typical sampling: keeps the tokens whose surprise is nearest to the entropy and whose probabilities reach this
    /// sum, in (0, 1]; 1: all (arxiv.org/abs/2202.00666).
    pub typical_p: f32,
    /// XTC: removes every token with this probability, in [0, 1], except the least likely of them; above 0.5: removes
    /// none.
    pub xtc_threshold: f32,
    /// Keeps only tokens of at least this probability, in [0, 1], and the most likely one; 0: all. Above 0, the drawn
    /// token's probability is reported.
    pub probability_min: f32,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            top_n_sigma: 0.0,
            temperature_range: 0.0,
            temperature_exponent: 1.0,
            typical_p: 1.0,
            xtc_threshold: 1.0,
            probability_min: 0.0,
        }
    }
}

impl Shape {
    /// Whether these settings change nothing.
    pub fn is_neutral(&self) -> bool {
        self.top_n_sigma == 0.0
            && self.temperature_range == 0.0
            && self.typical_p == 1.0
            && self.xtc_threshold > 0.5
            && self.probability_min == 0.0
    }
}

/// Change of the logit of one token, made before everything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// Token; outside the vocabulary it has no effect.
    pub token: u32,
    /// Change of its logit.
    pub change: Change,
}

/// A change of a logit. A logit of -inf, a token that is ruled out, stays so; others stay finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Adds; -inf rules the token out.
    Add(f32),
    /// Repetition penalty: divides a positive logit and multiplies any other, by a finite number above 0
    /// (arxiv.org/abs/1909.05858).
    Penalize(f32),
}

/// Sampling settings of all rows of a step. Plain data that a GPU backend uploads as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSpecs {
    /// Settings of each of the batch's logit rows, in their order.
    pub rows: Vec<SampleSpec>,
    /// Adjustments of all rows, one run each.
    pub adjustments: Vec<Adjustment>,
    /// Tokens seen by all rows, one run each: bit `t % 32` of word `t / 32` of a run is set if token t was seen. A
    /// bitmap, because there are many, and a step adds only one.
    pub seen: Vec<u32>,
    /// Masks, one after the other: bit `t % 32` of word `t / 32` is set if token t is allowed.
    pub masks: Vec<u32>,
    /// Words of one mask; tokens beyond them are not allowed.
    pub mask_words: usize,
    /// Soft cap on logits, applied before everything but the bias; part of the model, the same in each step.
    pub softcap: Option<f32>,
    /// Bias added to the logits first of all, `(vocab)`.
    pub bias: Option<Arc<[f32]>>,
}

/// Changes that a row of [`SampleSpecs`] makes to logits before anything is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Edits<'a> {
    pub(crate) softcap: Option<f32>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) mask: Option<&'a [u32]>,
    pub(crate) seen: &'a [u32],
    pub(crate) adjustments: &'a [Adjustment],
}

/// A drawn token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: u32,
    /// Log probability of the token, if requested.
    pub logprob: Option<TokenLogprob>,
    /// Probability of the token among those that it was drawn from, if [`Shape::probability_min`] is above 0; none at
    /// temperature 0.
    pub probability: Option<f64>,
}

/// Log probability of a token, in the distribution after the row's mask and before temperature and adjustments.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
    /// Most likely tokens, best first, with ties broken by the lower id; none that is ruled out.
    pub top: Vec<(u32, f32)>,
}

impl SampleSpecs {
    /// Clears the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.adjustments.clear();
        self.seen.clear();
        self.masks.clear();
    }

    /// Mask of a row, if it has one.
    #[inline]
    pub fn mask_of(&self, row: usize) -> Option<&[u32]> {
        let index = self.rows[row].mask? as usize;
        Some(&self.masks[index * self.mask_words..][..self.mask_words])
    }

    /// The adjustments of a row.
    #[inline]
    pub fn adjustments_of(&self, row: usize) -> &[Adjustment] {
        let Range { start, end } = self.rows[row].adjustments;
        &self.adjustments[start as usize..end as usize]
    }

    /// Tokens that a row has seen, as bits.
    #[inline]
    pub fn seen_of(&self, row: usize) -> &[u32] {
        let Range { start, end } = self.rows[row].seen;
        &self.seen[start as usize..end as usize]
    }

    /// Changes that a row makes to logits.
    pub(crate) fn edits_of(&self, row: usize) -> Edits<'_> {
        Edits {
            softcap: self.softcap,
            bias: self.bias.as_deref(),
            mask: self.mask_of(row),
            seen: self.seen_of(row),
            adjustments: self.adjustments_of(row),
        }
    }
}

impl Change {
    /// The changed logit.
    pub fn apply(self, logit: f32) -> f32 {
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        let changed = match self {
            Change::Add(f32::NEG_INFINITY) => return f32::NEG_INFINITY,
            Change::Add(addend) => logit + addend,
            Change::Penalize(penalty) if logit > 0.0 => logit / penalty,
            Change::Penalize(penalty) => logit * penalty,
        };
        // Infinities would not survive the subtraction of the largest.
        changed.clamp(f32::MIN, f32::MAX)
    }
}

/// Soft cap: `cap * tanh(logit / cap)` (Gemma 2). NaN and infinities stay as they are.
#[inline(always)]
pub fn soft_cap(cap: f32, logit: f32) -> f32 {
    if !logit.is_finite() {
        return logit;
    }
    let e = exp_nonpositive(-2.0 * (logit / cap).abs());
    (cap * ((1.0 - e) / (1.0 + e))).copysign(logit)
}

/// Weight 1 as a mass. Masses below half of 2^-40 count as nothing: one draw in 10^12.
const MASS_ONE_LOG2: u32 = 40;
/// Adding this to a weight in 0..=1 leaves its mass in the low bits: the float's unit in the last place is 2^-40.
const MASS_MAGIC: f64 = (1u64 << (52 - MASS_ONE_LOG2)) as f64;

/// A weight, 0 to 1, as an integer: the nearest multiple of 2^-40.
#[inline(always)]
pub fn mass(weight: f32) -> u64 {
    (f64::from(weight) + MASS_MAGIC).to_bits() - MASS_MAGIC.to_bits()
}

/// A sum of masses as a real number, in units of weight.
pub(crate) fn mass_to_weight(mass: u64) -> f64 {
    mass as f64 / (1u64 << MASS_ONE_LOG2) as f64
}

/// e^x for x at most 0, relative error under 3e-7; 0 below -87 (Cephes' polynomial, without fused operations).
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer held in the low bits
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x < -87.0 { 0.0 } else { y * f32::from_bits(exponent) }
}
