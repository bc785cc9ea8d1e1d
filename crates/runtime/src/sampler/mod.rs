//! What a completion brings to the drawing of its tokens: bias, what was said before and penalties for it, which become
//! adjustments of logits, and the random numbers of its seed. One sampler belongs to one completion. The drawing itself is
//! the device's ([`hanzo_engine_kernels::sampling`]). Absent: grammars, and any source of randomness besides the seed.

mod params;
mod random;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use hanzo_engine_kernels::{Adjustment, Change, SampleSpec, SampleSpecs};

pub use params::SamplingParams;
use random::Random;

/// The side of one completion in the choice of its tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: Arc<SamplingParams>,
    random: Random,
    seen: Seen,
    /// (token, times generated), by token; kept only where a penalty reads it.
    generated: Vec<(u32, u32)>,
}

/// The tokens of prompt and completion, each once; empty unless a repetition penalty reads it.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// One bit a token.
    present: Vec<u64>,
    tokens: Vec<u32>,
}

impl Sampler {
    /// The sampler of one completion. `seed` is the completion's own (the request's plus the choice's number);
    /// `params` have been validated for `vocab` tokens; `prompt` is what a repetition penalty looks back on.
    pub fn new(params: &SamplingParams, seed: u64, vocab: usize, prompt: &[u32]) -> Sampler {
        let mut seen = Seen::default();
        if params.repetition_penalty != 1.0 {
            seen.present = vec![0; vocab.div_ceil(64)];
            prompt.iter().for_each(|&token| seen.insert(token));
        }
        Sampler { params: Arc::new(params.clone()), random: Random::new(seed), seen, generated: Vec::new() }
    }

    /// Whether what it asks for depends on the token before: that must be known first.
    pub fn reads_history(params: &SamplingParams) -> bool {
        params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0
    }

    /// Adds how the next token is drawn. `banned` tokens are ruled out now, such as the end of sequence before `min_tokens`.
    /// At temperature 0 no random number is used; otherwise exactly one.
    pub fn ask(&mut self, banned: &[u32], specs: &mut SampleSpecs) {
        let SamplingParams { temperature, top_k, top_p, min_p, logprobs, .. } = *self.params;
        let uniform = self.next_uniform();
        let first = specs.adjustments.len() as u32;
        self.adjust(banned, &mut specs.adjustments);
        specs.rows.push(SampleSpec {
            temperature,
            top_k,
            top_p,
            min_p,
            uniform,
            logprobs: logprobs.map(u32::from),
            given: None,
            adjustments: first..specs.adjustments.len() as u32,
            mask: None,
        });
    }

    /// Goes on by one token as [`Sampler::ask`] does, and asks for nothing: that token was asked for of a copy.
    pub fn pass(&mut self) {
        self.next_uniform();
    }

    fn next_uniform(&mut self) -> f64 {
        if self.params.temperature == 0.0 { 0.0 } else { self.random.uniform() }
    }

    fn adjust(&self, banned: &[u32], adjustments: &mut Vec<Adjustment>) {
        let mut add = |token, change| adjustments.push(Adjustment { token, change });
        for &(token, bias) in &self.params.logit_bias {
            add(token, Change::Add(bias));
        }
        for &token in &self.seen.tokens {
            add(token, Change::Penalize(self.params.repetition_penalty));
        }
        for &(token, times) in &self.generated {
            let penalty = self.params.frequency_penalty * times as f32 + self.params.presence_penalty;
            add(token, Change::Add(-penalty));
        }
        for &token in banned {
            add(token, Change::Add(f32::NEG_INFINITY));
        }
    }

    /// The token was drawn.
    pub fn remember(&mut self, token: u32) {
        if self.params.repetition_penalty != 1.0 {
            self.seen.insert(token);
        }
        if self.params.frequency_penalty != 0.0 || self.params.presence_penalty != 0.0 {
            match self.generated.binary_search_by_key(&token, |&(token, _)| token) {
                Ok(at) => self.generated[at].1 += 1,
                Err(at) => self.generated.insert(at, (token, 1)),
            }
        }
    }
}

impl Seen {
    /// Adds a token; ids outside the vocabulary are left out.
    fn insert(&mut self, token: u32) {
        let bit = 1u64 << (token % 64);
        if let Some(word) = self.present.get_mut(token as usize / 64)
            && *word & bit == 0
        {
            *word |= bit;
            self.tokens.push(token);
        }
    }
}
