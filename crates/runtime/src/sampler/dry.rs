//! DRY ("don't repeat yourself", github.com/oobabooga/text-generation-webui/pull/5677): penalises a token that
//! would extend a copy of earlier text at the end. The longer the repetition, the larger the penalty. A repetition
//! does not span a sequence breaker.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    error::RequestError,
    limits::{DRY_BREAKER_BYTES_MAX, DRY_BREAKERS_MAX},
    tokenizer::Tokenizer,
};

/// Default sequence breakers.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// DRY parameters. A token that would extend a repetition of `length` tokens has its logit reduced by
/// `multiplier * base ^ (length - allowed_length)`, if `length` is at least `allowed_length`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dry {
    /// Above 0.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Repetitions of at least this many tokens are penalised.
    pub allowed_length: u32,
    /// Repetitions are sought in the last N tokens of prompt and answer. `None`: all.
    pub last_n: Option<u32>,
    /// Texts that end a repetition.
    pub breakers: Arc<[String]>,
}

impl Dry {
    /// Checks every range. Errors name the request's field.
    pub fn validate(&self) -> Result<(), RequestError> {
        let invalid = |field, reason| Err(RequestError::invalid(field, reason));
        if !(self.multiplier.is_finite() && self.multiplier > 0.0) {
            let reason = format!("must be a finite number above 0, not {}", self.multiplier);
            return invalid("dry_multiplier", reason);
        }
        if !(self.base.is_finite() && self.base >= 1.0) {
            return invalid("dry_base", format!("must be a finite number of at least 1, not {}", self.base));
        }
        let texts = &self.breakers;
        if texts.len() > DRY_BREAKERS_MAX {
            let reason = format!("must have at most {DRY_BREAKERS_MAX} texts, not {}", texts.len());
            return invalid("dry_sequence_breakers", reason);
        }
        if texts.iter().any(|text| text.is_empty() || text.len() > DRY_BREAKER_BYTES_MAX) {
            let reason = format!("each text must have 1 to {DRY_BREAKER_BYTES_MAX} bytes");
            return invalid("dry_sequence_breakers", reason);
        }
        Ok(())
    }

    fn longest_breaker(&self) -> usize {
        self.breakers.iter().map(String::len).max().unwrap_or(0)
    }

    /// True if a breaker ends in the bytes that follow the first `known`.
    fn breaker_ends_in(&self, bytes: &[u8], known: usize) -> bool {
        self.breakers.iter().any(|text| {
            let from = (known + 1).saturating_sub(text.len());
            bytes[from..].windows(text.len()).any(|window| window == text.as_bytes())
        })
    }
}

/// DRY state of a completion.
#[derive(Clone, Debug)]
pub(super) struct Repetitions {
    dry: Dry,
    tokenizer: Arc<Tokenizer>, // gives a token's text
    tokens: Vec<u32>,
    /// Number of tokens after the last one in which a breaker ends.
    since_breaker: usize,
    /// Last bytes of the text. A breaker may begin in them and end in the next token.
    last_bytes: Vec<u8>,
    /// Element k above 0 is the number of last tokens that equal the tokens k places earlier.
    repeated: Vec<u32>,
    /// Tokens that would extend a repetition, each with that repetition's length.
    next: Vec<(u32, u32)>,
}

impl Repetitions {
    /// Creates the state after a prompt.
    pub(super) fn new(dry: &Dry, tokenizer: &Arc<Tokenizer>, prompt: &[u32]) -> Repetitions {
        let mut repetitions = Repetitions {
            dry: dry.clone(),
            tokenizer: tokenizer.clone(),
            tokens: Vec::new(),
            since_breaker: 0,
            last_bytes: Vec::new(),
            repeated: Vec::new(),
            next: Vec::new(),
        };
        prompt.iter().for_each(|&token| repetitions.push(token));
        repetitions
    }

    /// Adds a token.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let known = self.last_bytes.len();
        self.last_bytes.extend_from_slice(self.tokenizer.token_bytes(token));
        if self.dry.breaker_ends_in(&self.last_bytes, known) {
            self.since_breaker = 0;
        } else {
            self.since_breaker += 1;
        }
        let kept = self.dry.longest_breaker().saturating_sub(1);
        self.last_bytes.drain(..self.last_bytes.len().saturating_sub(kept));
    }

    /// Penalties to subtract from logits; each token once, in ascending order.
    pub(super) fn penalties(&mut self, mut penalize: impl FnMut(u32, f32)) {
        let Dry { multiplier, base, allowed_length, last_n, .. } = self.dry;
        let allowed = allowed_length as usize;
        let last_n = last_n.map_or(usize::MAX, |n| n as usize).min(self.tokens.len());
        let longest = self.since_breaker.min(last_n);
        if last_n <= allowed || longest < allowed {
            return;
        }
        let tokens = &self.tokens[self.tokens.len() - last_n..];
        find_repeated(tokens, &mut self.repeated);
        self.next.clear();
        for (before, &repeated) in self.repeated.iter().enumerate().skip(1) {
            let length = (repeated as usize).min(longest);
            if length >= allowed {
                self.next.push((tokens[last_n - before], length as u32));
            }
        }
        // Keeps the longest repetition of each token; the sort puts it first.
        self.next.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.next.dedup_by_key(|next| next.0);
        for &(token, length) in &self.next {
            if !self.dry.breaker_ends_in(self.tokenizer.token_bytes(token), 0) {
                let penalty = f64::from(multiplier) * power(base.into(), length - allowed_length);
                penalize(token, penalty.min(f32::MAX.into()) as f32);
            }
        }
    }
}

/// For each k: number of last tokens that equal those k places earlier, by the Z algorithm on the reversed tokens.
fn find_repeated(tokens: &[u32], repeated: &mut Vec<u32>) {
    let n = tokens.len();
    let from_end = |at: usize| tokens[n - 1 - at];
    repeated.clear();
    repeated.resize(n, 0);
    let (mut begin, mut end) = (0, 0); // the match that reaches furthest
    for k in 1..n {
        let mut length = if k < end { (repeated[k - begin] as usize).min(end - k) } else { 0 };
        while k + length < n && from_end(length) == from_end(k + length) {
            length += 1;
        }
        repeated[k] = length as u32;
        if k + length > end {
            (begin, end) = (k, k + length);
        }
    }
}

/// Power by squaring: plain products in a fixed order, for reproducible results. Infinite if it is too large.
fn power(base: f64, mut exponent: u32) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}
