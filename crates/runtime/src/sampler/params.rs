//! Sampling parameters of a request, and their accepted ranges.

use serde::{Deserialize, Serialize};

use super::Dry;
use crate::{
    error::RequestError,
    limits::{DYNATEMP_EXPONENT_MAX, LOGIT_BIAS_MAX, MIROSTAT_TAU_MAX, TOP_LOGPROBS_MAX, TOP_N_SIGMA_MAX},
};

/// Sampling parameters. The default is neutral: greedy, without penalties or reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Temperature, 0 to 2; 0 takes the most likely token and draws nothing.
    pub temperature: f32,
    /// Keep only the k most likely tokens; 0: off.
    pub top_k: u32,
    /// Keep only the smallest set of most likely tokens whose probabilities reach this sum, in (0, 1]; 1: off.
    pub top_p: f32,
    /// Keep only tokens at least this fraction as likely as the most likely one, in [0, 1]; 0: off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the completion; above 0, 1: off.
    pub repetition_penalty: f32,
    /// Subtracted for each time a token was generated; -2 to 2, 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that were generated; -2 to 2, 0: off.
    pub presence_penalty: f32,
    /// Number of last tokens of prompt and completion that the penalties above count; `None`: all.
    pub repeat_last_n: Option<u32>,
    /// DRY penalty for repetitions of several tokens.
    pub dry: Option<Dry>,
    /// Keep only logits at most this many standard deviations below the largest; 0: off.
    pub top_n_sigma: f32,
    /// Range of dynamic temperature: it goes down by this if the next token is certain, and up if it is not; 0 to
    /// 2, 0: off.
    pub dynatemp_range: f32,
    /// Exponent of dynamic temperature, applied to the normalised entropy, which gives the place in that range.
    pub dynatemp_exponent: f32,
    /// Keep only tokens whose surprise is nearest to the entropy, until their probabilities reach this sum, in (0,
    /// 1]; 1: off.
    pub typical_p: f32,
    /// Probability with which XTC excludes the top choices, in [0, 1]; 0: off.
    pub xtc_probability: f32,
    /// XTC keeps only the least likely of the tokens with at least this probability; in [0, 1], above 0.5 it has no
    /// effect.
    pub xtc_threshold: f32,
    /// Mirostat: keeps the average surprise of tokens at a target.
    pub mirostat: Option<Mirostat>,
    /// Values added to tokens' logits, -100 to 100; entries of one token add up. At most [`LOGIT_BIAS_MAX`]
    /// entries.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the first completion; completion i uses seed + i.
    pub seed: u64,
    /// `Some(k)`: report each token's log probability and the k most likely tokens, 0 to 20.
    pub logprobs: Option<u8>,
}

/// Mirostat 2 (arxiv.org/abs/2007.14966): tokens more surprising than a bound are excluded. The bound starts at
/// twice `tau`, and moves by `eta` for each bit by which the sampled token was more surprising than `tau`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mirostat {
    /// Target surprise in bits.
    pub tau: f32,
    /// Learning rate of the bound, in [0, 1].
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Mirostat { tau: 5.0, eta: 0.1 }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: None,
            dry: None,
            top_n_sigma: 0.0,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: None,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Whether it has a penalty for previous tokens.
    pub(super) fn penalizes(&self) -> bool {
        let penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty);
        penalties != (1.0, 0.0, 0.0)
    }

    /// Checks every range, for a model of `vocab` tokens. Errors name the protocol's field.
    pub fn validate(&self, vocab: usize) -> Result<(), RequestError> {
        within("temperature", self.temperature, 0.0, 2.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        if self.top_p == 0.0 {
            return Err(RequestError::invalid("top_p", "must be above 0 and at most 1, not 0"));
        }
        within("min_p", self.min_p, 0.0, 1.0)?;
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            let reason = format!("must be a finite number above 0, not {}", self.repetition_penalty);
            return Err(RequestError::invalid("repetition_penalty", reason));
        }
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        self.dry.as_ref().map_or(Ok(()), Dry::validate)?;
        within("top_n_sigma", self.top_n_sigma, 0.0, TOP_N_SIGMA_MAX)?;
        within("dynatemp_range", self.dynatemp_range, 0.0, 2.0)?;
        within("dynatemp_exponent", self.dynatemp_exponent, 0.0, DYNATEMP_EXPONENT_MAX)?;
        within("typical_p", self.typical_p, 0.0, 1.0)?;
        if self.typical_p == 0.0 {
            return Err(RequestError::invalid("typical_p", "must be above 0 and at most 1, not 0"));
        }
        within("xtc_probability", self.xtc_probability, 0.0, 1.0)?;
        within("xtc_threshold", self.xtc_threshold, 0.0, 1.0)?;
        if let Some(Mirostat { tau, eta }) = self.mirostat {
            within("mirostat_tau", tau, 0.0, MIROSTAT_TAU_MAX)?;
            within("mirostat_eta", eta, 0.0, 1.0)?;
        }
        if self.logit_bias.len() > LOGIT_BIAS_MAX {
            let reason = format!("must have at most {LOGIT_BIAS_MAX} entries, not {}", self.logit_bias.len());
            return Err(RequestError::invalid("logit_bias", reason));
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                let reason = format!("token {token} is not in the vocabulary of {vocab} tokens");
                return Err(RequestError::invalid("logit_bias", reason));
            }
            within("logit_bias", bias, -100.0, 100.0)?;
        }
        match self.logprobs {
            Some(k) if usize::from(k) > TOP_LOGPROBS_MAX => {
                let reason = format!("must be 0 to {TOP_LOGPROBS_MAX}, not {k}");
                Err(RequestError::invalid("top_logprobs", reason))
            }
            _ => Ok(()),
        }
    }
}

fn within(field: &'static str, value: f32, low: f32, high: f32) -> Result<(), RequestError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(RequestError::invalid(field, format!("must be {low} to {high}, not {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_protocol() {
        let neutral = SamplingParams::default;
        assert_eq!(neutral().validate(10), Ok(()));
        let bad = |params: SamplingParams| match params.validate(10) {
            Err(RequestError::Invalid { field, .. }) => field,
            other => panic!("accepted or wrong error: {other:?}"),
        };
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.01, 2.01] {
            assert_eq!(bad(SamplingParams { temperature: value, ..neutral() }), "temperature");
        }
        for value in [f32::NAN, f32::INFINITY, 0.0, -0.1, 1.01] {
            assert_eq!(bad(SamplingParams { top_p: value, ..neutral() }), "top_p");
        }
        for value in [f32::NAN, -0.1, 1.01] {
            assert_eq!(bad(SamplingParams { min_p: value, ..neutral() }), "min_p");
        }
        for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            assert_eq!(bad(SamplingParams { repetition_penalty: value, ..neutral() }), "repetition_penalty");
        }
        for value in [f32::NAN, f32::INFINITY, -2.01, 2.01] {
            assert_eq!(bad(SamplingParams { frequency_penalty: value, ..neutral() }), "frequency_penalty");
            assert_eq!(bad(SamplingParams { presence_penalty: value, ..neutral() }), "presence_penalty");
        }
        let nan = f32::NAN;
        for value in [nan, f32::INFINITY, -0.1, 101.0] {
            assert_eq!(bad(SamplingParams { top_n_sigma: value, ..neutral() }), "top_n_sigma");
            assert_eq!(bad(SamplingParams { dynatemp_range: value, ..neutral() }), "dynatemp_range");
            assert_eq!(bad(SamplingParams { dynatemp_exponent: value, ..neutral() }), "dynatemp_exponent");
            assert_eq!(bad(SamplingParams { typical_p: value, ..neutral() }), "typical_p");
            assert_eq!(bad(SamplingParams { xtc_probability: value, ..neutral() }), "xtc_probability");
            assert_eq!(bad(SamplingParams { xtc_threshold: value, ..neutral() }), "xtc_threshold");
            let mirostat = |tau, eta| SamplingParams { mirostat: Some(Mirostat { tau, eta }), ..neutral() };
            assert_eq!(bad(mirostat(value, 0.1)), "mirostat_tau");
            assert_eq!(bad(mirostat(5.0, value)), "mirostat_eta");
        }
        assert_eq!(bad(SamplingParams { typical_p: 0.0, ..neutral() }), "typical_p");
        for entry in [(0, f32::NAN), (0, 100.5), (0, -101.0), (10, 1.0)] {
            assert_eq!(bad(SamplingParams { logit_bias: vec![entry], ..neutral() }), "logit_bias");
        }
        let many = vec![(0, 1.0); LOGIT_BIAS_MAX + 1];
        assert_eq!(bad(SamplingParams { logit_bias: many, ..neutral() }), "logit_bias");
        let most = SamplingParams { logit_bias: vec![(0, 1.0); LOGIT_BIAS_MAX], ..neutral() };
        assert_eq!(most.validate(10), Ok(()));
        assert_eq!(bad(SamplingParams { logprobs: Some(21), ..neutral() }), "top_logprobs");
        let edges = SamplingParams {
            temperature: 2.0,
            top_k: u32::MAX,
            top_p: 1e-6,
            min_p: 1.0,
            repetition_penalty: 1e-30,
            frequency_penalty: -2.0,
            presence_penalty: 2.0,
            top_n_sigma: TOP_N_SIGMA_MAX,
            dynatemp_range: 2.0,
            dynatemp_exponent: 0.0,
            typical_p: 1e-6,
            xtc_probability: 1.0,
            xtc_threshold: 0.0,
            mirostat: Some(Mirostat { tau: 0.0, eta: 1.0 }),
            repeat_last_n: Some(0),
            logit_bias: vec![(9, -100.0), (9, 100.0)],
            logprobs: Some(20),
            ..neutral()
        };
        assert_eq!(edges.validate(10), Ok(()));
    }
}
