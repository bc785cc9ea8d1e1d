//! From a row of logits to a token. Random numbers, and what was said before, are the caller's: a [`SampleSpec`] is plain
//! data of one row. The formula, which [`reference`](crate::reference) computes as it is written here:
//!
//! 0. the bias of the model's head, its soft cap, to all logits ([`soft_cap`]), and the row's mask: the logits of tokens that are not in it become
//!    -inf;
//! 1. the repetition penalty, to the logit of each token that was seen, and then adjustments, in their order, each to one
//!    token's logit;
//! 2. at temperature 0, the largest logit, of equals the lowest id: done;
//! 3. the `top_k` largest, of equals the lower ids first, and of them those that `top_n_sigma` leaves ([`sigma_floor`]);
//! 4. the temperature that their entropy gives, within `temperature_range` ([`dynamic_temperature`]);
//! 5. weights `e^x`, `x = (logit - largest) / temperature`, of those, 0 of all others, by [`exp_nonpositive`];
//! 6. masses: weights as integers ([`mass`]), so that their sums do not depend on an order;
//! 7. the smallest set of tokens whose `-x` is nearest to its mean ([`Moments::mean`]), of equals the lower ids first, whose
//!    mass is at least `typical_p` of all: a token's `-ln p` is as far from the entropy as its `-x` from the mean;
//! 8. of those, the smallest set of heaviest weights, of equals the lower ids first, whose mass is at least `top_p` of theirs,
//!    and of them those of at least `min_p` of the heaviest;
//! 9. where two or more have `xtc_threshold` of the mass that is left, none of these but the lightest, of equals the highest id;
//! 10. of those, all with at least `probability_min` of the mass that is left, and the heaviest, of equals the lowest id;
//! 11. the first token, in order of id, at which the running sum of masses passes `uniform` of their sum.
//!
//! All of it is sums of integers and plain IEEE operations in a fixed order: every device draws the same token from the same
//! logits. A row whose logits hold NaN or +inf, or which are all ruled out, gives no token. Log probabilities are of the
//! distribution that the mask leaves, which is what the model was asked to choose from, before temperature and adjustments.
//!
//! A row whose token is given draws nothing: it gives that token, for its log probability among all.

mod draw;
mod numbers;
mod selection;
mod shaped;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use draw::DrawScratch;
pub use draw::{Draws, Ticket};
pub use numbers::{Moments, Spread, deviation, dynamic_temperature, exp, ln, sigma_floor};

/// Largest vocabulary: the sum of its masses fits an integer.
pub const SAMPLED_VOCAB_MAX: usize = (1 << (63 - MASS_ONE_LOG2)) - 1;

/// How the token of one row is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpec {
    /// 0: the most likely token.
    pub temperature: f32,
    /// Only the k most likely tokens; 0: all.
    pub top_k: u32,
    /// Only the most likely tokens whose probabilities reach this sum, in (0, 1]; 1: all.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the most likely one, in [0, 1].
    pub min_p: f32,
    /// The random number to draw with, in [0, 1); at temperature 0 it says nothing.
    pub uniform: f64,
    /// What else tells the tokens to draw from.
    pub shape: Shape,
    /// `Some(k)`: the log probabilities of the token and the k most likely ones are wanted.
    pub logprobs: Option<u32>,
    /// The token is known, below the vocabulary; nothing is drawn and nothing adjusted.
    pub given: Option<u32>,
    /// What [`Change::Penalize`] does with the logits of tokens that were seen; 1: nothing.
    pub repetition: f32,
    /// Its part of [`SampleSpecs::seen`].
    pub seen: Range<u32>,
    /// Its part of [`SampleSpecs::adjustments`].
    pub adjustments: Range<u32>,
    /// Which of [`SampleSpecs::masks`] says what it may be; none: anything.
    pub mask: Option<u32>,
}

/// Greedy, nothing adjusted, nothing reported.
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

/// Which tokens are drawn from, beyond temperature, top-k, top-p and min-p. The default changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Only logits at most so many standard deviations of all below the largest; 0: all (arxiv.org/abs/2411.07641).
    pub top_n_sigma: f32,
    /// The temperature is this much lower where there is one token, and this much higher where all are alike; 0: as it is.
    pub temperature_range: f32,
    /// What the normalized entropy is raised to, to say where in that range.
    pub temperature_exponent: f32,
    /// Only the tokens whose surprise is nearest to the entropy and whose probabilities reach this sum, in (0, 1]; 1: all
    /// (arxiv.org/abs/2202.00666).
    pub typical_p: f32,
    /// Leaves out every token with this probability, in [0, 1], but the least likely of them; above 0.5: none.
    pub xtc_threshold: f32,
    /// Only tokens of this probability, in [0, 1], and the most likely one; 0: all. Above 0 the token's own is told.
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
    /// Whether it changes nothing.
    pub fn is_neutral(&self) -> bool {
        self.top_n_sigma == 0.0
            && self.temperature_range == 0.0
            && self.typical_p == 1.0
            && self.xtc_threshold > 0.5
            && self.probability_min == 0.0
    }
}

/// What is done to the logit of one token before anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The token; one outside of the vocabulary has no logit.
    pub token: u32,
    /// What is done.
    pub change: Change,
}

/// A change of a logit. A logit of -inf, a token that is ruled out, stays so; others stay finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Adds; -inf rules the token out.
    Add(f32),
    /// Divides a positive and multiplies any other logit, by a finite number above 0: a repetition penalty
    /// (arxiv.org/abs/1909.05858).
    Penalize(f32),
}

/// How the tokens of a step are drawn. Plain data: a GPU backend uploads it as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleSpecs {
    /// One for each of the batch's logit rows, in their order.
    pub rows: Vec<SampleSpec>,
    /// Those of all rows, one run each.
    pub adjustments: Vec<Adjustment>,
    /// Which tokens were seen, of all rows, one run each: bit `t % 32` of word `t / 32` of a run is set where token t was. They
    /// are many, and the same from step to step but for one.
    pub seen: Vec<u32>,
    /// Masks, one after the other: bit `t % 32` of word `t / 32` is set where token t may be drawn.
    pub masks: Vec<u32>,
    /// Words of one mask; tokens beyond them may not be drawn.
    pub mask_words: usize,
    /// What the model does to logits, before anything else: a part of it, the same in each step.
    pub softcap: Option<f32>,
    /// What it adds to them before that, `(vocab)`.
    pub bias: Option<Arc<[f32]>>,
}

/// What a row of [`SampleSpecs`] does to logits before anything is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Edits<'a> {
    pub(crate) softcap: Option<f32>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) mask: Option<&'a [u32]>,
    pub(crate) seen: &'a [u32],
    pub(crate) adjustments: &'a [Adjustment],
}

/// A token that was drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log probability, where it was asked for.
    pub logprob: Option<TokenLogprob>,
    /// Its probability among the tokens that it was drawn from, where [`Shape::probability_min`] is above 0; at temperature 0
    /// none.
    pub probability: Option<f64>,
}

/// Log probability of a token, of the distribution that the row's mask leaves, before temperature and adjustments.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
    /// The most likely tokens, best first, of equals the lower id; none that is ruled out.
    pub top: Vec<(u32, f32)>,
}

impl SampleSpecs {
    /// Forgets the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.adjustments.clear();
        self.seen.clear();
        self.masks.clear();
    }

    /// The mask of a row, where it has one.
    pub fn mask_of(&self, row: usize) -> Option<&[u32]> {
        let index = self.rows[row].mask? as usize;
        Some(&self.masks[index * self.mask_words..][..self.mask_words])
    }

    /// The adjustments of a row.
    pub fn adjustments_of(&self, row: usize) -> &[Adjustment] {
        let Range { start, end } = self.rows[row].adjustments;
        &self.adjustments[start as usize..end as usize]
    }

    /// The tokens that a row has seen, as bits.
    pub fn seen_of(&self, row: usize) -> &[u32] {
        let Range { start, end } = self.rows[row].seen;
        &self.seen[start as usize..end as usize]
    }

    /// All that a row does to logits.
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
    /// What becomes of a logit.
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

/// `cap * tanh(logit / cap)` (Gemma 2); what is no number stays so.
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
