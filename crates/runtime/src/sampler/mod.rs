//! Sampling parameters of a completion: its bias and penalties become adjustments of logits, and its seed gives the
//! random numbers. Each completion has its own sampler. The device does the sampling itself
//! ([`hanzo_engine_ops::sampling`]). Grammars are elsewhere, and the seed is the only source of randomness.

mod dry;
mod history;
mod params;
mod random;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use hanzo_engine_ops::{
    Adjustment, Change, SampleSpec, SampleSpecs, SampledToken, Shape,
    sampling::{exp, ln},
};

pub use dry::{DRY_BREAKERS, Dry};
pub use params::{Mirostat, SamplingParams};

use dry::Repetitions;
use history::History;
pub(crate) use random::Random;

use crate::tokenizer::Tokenizer;

/// XTC has its own random numbers, so that the same numbers sample tokens with and without it.
const XTC_SEED: u64 = 0x5854_435f_7365_6564;

/// Sampler of one completion.
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
    /// Creates the sampler of a completion. `seed` is the completion's own (the request's plus the choice's
    /// number); `params` have been validated for `vocab` tokens; `prompt` counts for penalties; `tokenizer` gives the
    /// texts of tokens to DRY.
    pub fn new(
        params: &SamplingParams,
        seed: u64,
        vocab: usize,
        prompt: &[u32],
        tokenizer: &Arc<Tokenizer>,
    ) -> Sampler {
        Sampler {
            random: Random::new(seed),
            xtc_random: Random::new(seed ^ XTC_SEED),
            history: History::new(params, vocab, prompt),
            repetitions: params.dry.as_ref().map(|dry| Repetitions::new(dry, tokenizer, prompt)),
            surprise_max: params.mirostat.map_or(0.0, |mirostat| 2.0 * f64::from(mirostat.tau)),
            params: Arc::new(params.clone()),
        }
    }

    /// Whether it depends on the previous token, which must then be known first.
    pub fn reads_history(params: &SamplingParams) -> bool {
        params.penalizes() || params.dry.is_some() || params.mirostat.is_some()
    }

    /// Adds the sampling of the next token. `banned` tokens are excluded now, such as end of sequence before
    /// `min_tokens`. At temperature 0 no random number is used; otherwise exactly one, and one more for XTC if it
    /// is on.
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

    /// Adds a forced token, regardless of its logit. Uses no random number.
    pub fn force(&mut self, token: u32, specs: &mut SampleSpecs) {
        let first = specs.adjustments.len() as u32;
        specs.adjustments.push(Adjustment { token, change: Change::Add(f32::MAX) });
        specs.rows.push(SampleSpec {
            logprobs: self.params.logprobs.map(u32::from),
            adjustments: first..first + 1,
            ..SampleSpec::default()
        });
    }

    /// Advances by one token like [`Sampler::ask`], without adding a sampling: a copy has already done so.
    pub fn pass(&mut self) {
        self.next_uniform();
        self.leaves_out_tops();
    }

    fn next_uniform(&mut self) -> f64 {
        if self.params.temperature == 0.0 { 0.0 } else { self.random.uniform() }
    }

    /// Draws XTC's random number for a token: whether it excludes the top choices.
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
                // Above 0, so that the token's own probability is reported.
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
        // The penalty applies to the logit after its bias, but devices penalise first.
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

    /// Adds a token that comes next.
    pub fn remember(&mut self, token: u32) {
        self.history.push(token);
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.push(token);
        }
    }

    /// Learns a sampled token and its probability.
    pub fn learn(&mut self, sampled: &SampledToken) {
        self.remember(sampled.token);
        if let (Some(Mirostat { tau, eta }), Some(probability)) = (self.params.mirostat, sampled.probability)
        {
            let surprise = -ln(probability) / std::f64::consts::LN_2;
            self.surprise_max -= f64::from(eta) * (surprise - f64::from(tau));
        }
    }
}
