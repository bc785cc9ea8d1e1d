//! What a completion brings to the drawing of its tokens: bias, what was said before and penalties for it, which become
//! adjustments of logits, and the random numbers of its seed. One sampler belongs to one completion. The drawing itself is
//! the device's ([`hanzo_engine_kernels::sampling`]). Absent: grammars, and any source of randomness besides the seed.

mod dry;
mod history;
mod params;
mod random;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use hanzo_engine_kernels::{
    Adjustment, Change, SampleSpec, SampleSpecs, Sampled, Shape,
    sampling::{exp, ln},
};

pub use dry::{Breakers, DRY_BREAKERS, Dry};
pub use params::{Mirostat, SamplingParams};

use dry::Repetitions;
use history::History;
pub(crate) use random::Random;

/// The random numbers of XTC are those of another seed, so that with and without it the same numbers draw the same tokens.
const XTC_SEED: u64 = 0x5854_435f_7365_6564;

/// The side of one completion in the choice of its tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: Arc<SamplingParams>,
    random: Random,
    xtc_random: Random,
    history: History,
    repetitions: Option<Repetitions>,
    surprise_max: f64, // mirostat's mu, in bits
}

impl Sampler {
    /// The sampler of one completion. `seed` is the completion's own (the request's plus the choice's number);
    /// `params` have been validated for `vocab` tokens; `prompt` is what penalties look back on.
    pub fn new(params: &SamplingParams, seed: u64, vocab: usize, prompt: &[u32]) -> Sampler {
        Sampler {
            random: Random::new(seed),
            xtc_random: Random::new(seed ^ XTC_SEED),
            history: History::new(params, vocab, prompt),
            repetitions: params.dry.as_ref().map(|dry| Repetitions::new(dry, prompt)),
            surprise_max: params.mirostat.map_or(0.0, |mirostat| 2.0 * f64::from(mirostat.tau)),
            params: Arc::new(params.clone()),
        }
    }

    /// Whether what it asks for depends on the token before: that must be known first.
    pub fn reads_history(params: &SamplingParams) -> bool {
        params.penalizes() || params.dry.is_some() || params.mirostat.is_some()
    }

    /// Adds how the next token is drawn. `banned` tokens are ruled out now, such as the end of sequence before `min_tokens`.
    /// At temperature 0 no random number is used; otherwise exactly one, and one of XTC's where there is XTC.
    pub fn ask(&mut self, banned: &[u32], specs: &mut SampleSpecs) {
        let SamplingParams { temperature, top_k, top_p, min_p, logprobs, .. } = *self.params;
        let uniform = self.next_uniform();
        let (first, seen_first) = (specs.adjustments.len() as u32, specs.seen.len() as u32);
        self.adjust(banned, specs);
        specs.rows.push(SampleSpec {
            temperature,
            top_k,
            top_p,
            min_p,
            uniform,
            shape: if temperature == 0.0 { Shape::default() } else { self.shape() },
            logprobs: logprobs.map(u32::from),
            given: None,
            repetition: self.history.seen().0,
            seen: seen_first..specs.seen.len() as u32,
            adjustments: first..specs.adjustments.len() as u32,
            mask: None,
        });
    }

    /// Adds that the next token is this one, whatever its logit. No random number is used.
    pub fn force(&mut self, token: u32, specs: &mut SampleSpecs) {
        let first = specs.adjustments.len() as u32;
        specs.adjustments.push(Adjustment { token, change: Change::Add(f32::MAX) });
        specs.rows.push(SampleSpec {
            logprobs: self.params.logprobs.map(u32::from),
            adjustments: first..first + 1,
            ..SampleSpec::default()
        });
    }

    /// Goes on by one token as [`Sampler::ask`] does, and asks for nothing: that token was asked for of a copy.
    pub fn pass(&mut self) {
        self.next_uniform();
        self.leaves_out_tops();
    }

    fn next_uniform(&mut self) -> f64 {
        if self.params.temperature == 0.0 { 0.0 } else { self.random.uniform() }
    }

    /// XTC's random number of a token: whether it leaves out the top choices.
    fn leaves_out_tops(&mut self) -> bool {
        self.params.temperature > 0.0
            && self.params.xtc_probability > 0.0
            && self.xtc_random.uniform() < f64::from(self.params.xtc_probability)
    }

    fn shape(&mut self) -> Shape {
        let xtc = self.leaves_out_tops();
        let params = &self.params;
        let neutral = Shape::default();
        Shape {
            top_n_sigma: params.top_n_sigma,
            temperature_range: params.dynatemp_range,
            temperature_exponent: params.dynatemp_exponent,
            typical_p: params.typical_p,
            xtc_threshold: if xtc { params.xtc_threshold } else { neutral.xtc_threshold },
            probability_min: match params.mirostat {
                None => neutral.probability_min,
                // Above 0, so that the token's own is told.
                Some(_) => {
                    (exp(-self.surprise_max.max(0.0) * std::f64::consts::LN_2) as f32).max(f32::MIN_POSITIVE)
                }
            },
        }
    }

    fn adjust(&mut self, banned: &[u32], specs: &mut SampleSpecs) {
        let mut add = |token, change| specs.adjustments.push(Adjustment { token, change });
        for &(token, bias) in &self.params.logit_bias {
            add(token, Change::Add(bias));
        }
        let (repetition, seen) = self.history.seen();
        let seen_first = specs.seen.len();
        specs.seen.extend_from_slice(seen);
        // The penalty is for the logit that a bias has left, and devices penalize first.
        for &(token, _) in &self.params.logit_bias {
            let bit = 1 << (token % 32);
            if let Some(word) = specs.seen[seen_first..].get_mut(token as usize / 32)
                && *word & bit != 0
            {
                *word &= !bit;
                add(token, Change::Penalize(repetition));
            }
        }
        self.history.changes(&mut add);
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.penalties(|token, penalty| add(token, Change::Add(-penalty)));
        }
        for &token in banned {
            add(token, Change::Add(f32::NEG_INFINITY));
        }
    }

    /// The token comes next.
    pub fn remember(&mut self, token: u32) {
        self.history.push(token);
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.push(token);
        }
    }

    /// The token was drawn, and how likely it was is known.
    pub fn learn(&mut self, sampled: &Sampled) {
        self.remember(sampled.token);
        if let (Some(Mirostat { tau, eta }), Some(probability)) = (self.params.mirostat, sampled.probability)
        {
            let surprise = -ln(probability) / std::f64::consts::LN_2;
            self.surprise_max -= f64::from(eta) * (surprise - f64::from(tau));
        }
    }
}
