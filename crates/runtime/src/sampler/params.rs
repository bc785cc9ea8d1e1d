//! How a request wants its tokens chosen, and the ranges that are accepted.

use crate::{
    error::RequestError,
    limits::{LOGIT_BIAS_MAX, TOP_LOGPROBS_MAX},
};

/// How tokens are chosen. The default is neutral: greedy, nothing penalised, nothing reported.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 to 2; 0 takes the most likely token and draws nothing.
    pub temperature: f32,
    /// Only the k most likely tokens; 0: off.
    pub top_k: u32,
    /// Only the smallest set of most likely tokens whose probabilities reach this sum, in (0, 1]; 1: off.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the most likely one, in [0, 1]; 0: off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the completion; above 0, 1: off.
    pub repetition_penalty: f32,
    /// Subtracted for each time a token was generated; -2 to 2, 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that were generated; -2 to 2, 0: off.
    pub presence_penalty: f32,
    /// Added to a token's logit, -100 to 100; entries of one token add up. At most [`LOGIT_BIAS_MAX`] of them.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the first completion; completion i draws with seed + i.
    pub seed: u64,
    /// `Some(k)`: report each token's log probability and the k most likely tokens, 0 to 20.
    pub logprobs: Option<u8>,
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
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
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
            logit_bias: vec![(9, -100.0), (9, 100.0)],
            logprobs: Some(20),
            ..neutral()
        };
        assert_eq!(edges.validate(10), Ok(()));
    }
}
