//! Logits to a token: bias, repetition, frequency and presence penalties, temperature, top-k, top-p, min-p, draw,
//! in that order. One sampler belongs to one completion and remembers what was generated. Absent: grammars, and
//! any source of randomness besides the seed.

mod params;
mod random;
mod weights;

#[cfg(test)]
mod tests;

pub use params::SamplingParams;

use crate::job::TokenLogprob;
use random::Random;
use weights::Cut;

/// Chooses the tokens of one completion.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    random: Random,
    seen: Seen,
    /// (token, times generated), by token; kept only where a penalty reads it.
    generated: Vec<(u32, u32)>,
    /// (vocab) logits as the model gave them; kept only where logprobs are reported.
    raw: Vec<f32>,
    /// Scratch of the selections.
    keys: Vec<u64>,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log probability in the model's own distribution, when asked for.
    pub logprob: Option<TokenLogprob>,
}

/// The logits hold NaN or +inf, or every token is ruled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("logits are not finite")]
pub struct NotFinite;

/// The tokens of prompt and completion, each once; empty unless a repetition penalty reads it.
#[derive(Debug, Default)]
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
        let raw = Vec::with_capacity(if params.logprobs.is_some() { vocab } else { 0 });
        Sampler {
            params: params.clone(),
            random: Random::new(seed),
            seen,
            generated: Vec::new(),
            raw,
            keys: Vec::new(),
        }
    }

    /// Gives back what is only needed while a token is chosen: the completion waits.
    pub fn rest(&mut self) {
        self.raw = Vec::new();
        self.keys = Vec::new();
    }

    /// Chooses the next token from (vocab) logits, which are overwritten. `banned` tokens are ruled out now, such
    /// as the end of sequence before `min_tokens`. At temperature 0 the lowest id wins a tie; otherwise exactly
    /// one random number is drawn.
    pub fn sample(&mut self, logits: &mut [f32], banned: &[u32]) -> Result<Sampled, NotFinite> {
        let raw_maximum = weights::maximum(logits).ok_or(NotFinite)?;
        if self.params.logprobs.is_some() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        self.penalize(logits);
        for &token in banned {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let maximum = weights::maximum(logits).ok_or(NotFinite)?;
        let token = if self.params.temperature == 0.0 {
            logits.iter().position(|&logit| logit == maximum).ok_or(NotFinite)? as u32
        } else {
            self.draw(logits, maximum)?
        };
        self.remember(token);
        let logprob = self.params.logprobs.map(|alternatives| self.logprob(token, alternatives, raw_maximum));
        Ok(Sampled { token, logprob })
    }

    fn penalize(&self, logits: &mut [f32]) {
        // Infinities would not survive the subtraction of the maximum; -inf, a token ruled out, stays.
        let bounded = |x: f32| if x == f32::NEG_INFINITY { x } else { x.clamp(f32::MIN, f32::MAX) };
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = bounded(*logit + bias);
            }
        }
        let repetition = self.params.repetition_penalty;
        for &token in &self.seen.tokens {
            if let Some(logit) = logits.get_mut(token as usize) {
                let ruled_out = *logit == f32::NEG_INFINITY;
                let penalized = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
                *logit = if ruled_out { *logit } else { penalized.clamp(f32::MIN, f32::MAX) };
            }
        }
        for &(token, times) in &self.generated {
            if let Some(logit) = logits.get_mut(token as usize) {
                let penalty = self.params.frequency_penalty * times as f32 + self.params.presence_penalty;
                *logit = bounded(*logit - penalty);
            }
        }
    }

    fn draw(&mut self, logits: &mut [f32], maximum: f32) -> Result<u32, NotFinite> {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let top_k = top_k as usize;
        let top_k_cut = if (1..logits.len()).contains(&top_k) {
            weights::top_k(logits, top_k, &mut self.keys)
        } else {
            Cut::NONE
        };
        let total = weights::weigh(logits, maximum, temperature, top_k_cut);
        let cut = if top_p < 1.0 || min_p > 0.0 {
            let target = ((f64::from(top_p) * total as f64).ceil() as u64).clamp(1, total);
            weights::nucleus(logits, target, min_p, &mut self.keys)
        } else {
            Cut::NONE
        };
        weights::draw(logits, cut, self.random.uniform()).ok_or(NotFinite)
    }

    fn remember(&mut self, token: u32) {
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

    fn logprob(&mut self, token: u32, alternatives: u8, maximum: f32) -> TokenLogprob {
        let mass = |&logit: &f32| weights::mass(weights::exp_nonpositive(logit - maximum));
        let total: u64 = self.raw.iter().map(mass).sum();
        let log_total = weights::mass_to_weight(total).ln();
        let logprob = |token: u32| {
            let logit = self.raw[token as usize];
            (f64::from(logit) - f64::from(maximum) - log_total) as f32
        };
        weights::largest(&self.raw, alternatives.into(), &mut self.keys);
        self.keys.sort_unstable_by(|a, b| b.cmp(a));
        let top =
            self.keys.iter().map(|&key| weights::key_id(key)).map(|token| (token, logprob(token))).collect();
        TokenLogprob { token, logprob: logprob(token), top }
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
