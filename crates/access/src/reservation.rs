//! Reservation of a key's tokens for a request. Tokens are reserved before it runs and charged as they are
//! produced. The rest is given back at its end.

use std::time::{Duration, Instant};

use tonic::{Request, Status, metadata::MetadataMap};

use crate::{
    pass::Pass,
    rate::locked,
    refusal::{Refusal, TokensFault},
};

/// Minimum tokens of each answer if the request states no `max_tokens`.
const OPEN_ANSWER_TOKENS: u32 = 1024;
/// Metadata of a call to an engine: the tokens that its inputs may take together.
const INPUT_TOKENS_MAX: &str = "input-tokens-max";
/// `error-code` of a call whose inputs take more.
pub const INPUTS_OVER: &str = "inputs_over_tokens";
/// Divisor of a minute's tokens: share of an answer if the request states no `max_tokens`.
const OPEN_ANSWER_SHARE: u32 = 4;

/// Reserved tokens. Dropping it gives back those that were not charged.
#[derive(Debug)]
pub struct Reservation {
    pass: Pass,
    left: u32,
    abandoned: u32, // charged if it is dropped before it is settled, as when the client leaves
}

/// Tokens that a request may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of all answers together.
    pub completion: u64,
}

/// Tokens that the inputs of a request may take. Their number is known once they are tokenized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InputsNeed {
    /// Estimate, which is mostly too low.
    pub least: u64,
    /// Maximum.
    pub most: u64,
}

/// Tells an engine the tokens that the inputs of a call may take together; None: any number.
pub fn bound_inputs<T>(mut request: Request<T>, most: Option<u32>) -> Request<T> {
    if let Some(most) = most {
        request.metadata_mut().insert(INPUT_TOKENS_MAX, most.into());
    }
    request
}

/// Tokens that the inputs of a call may take together; None: any number.
pub fn inputs_bound(metadata: &MetadataMap) -> Option<u32> {
    metadata.get(INPUT_TOKENS_MAX)?.to_str().ok()?.parse().ok()
}

impl Need {
    /// Total tokens, if a minute of the key has that many.
    pub(crate) fn within(self, limit: u32) -> Result<u32, Refusal> {
        let Need { prompt, completion } = self;
        let total = prompt.saturating_add(completion);
        u32::try_from(total).ok().filter(|total| *total <= limit).ok_or(Refusal::TooManyTokens {
            limit,
            prompt,
            completion,
            fault: match prompt >= u64::from(limit) {
                true => TokensFault::Prompt,
                false => TokensFault::Completion,
            },
        })
    }
}

impl Pass {
    /// Reserves the tokens that a request may take.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] if they are not available yet, [`Refusal::TooManyTokens`] if the limit is lower.
    pub fn reserve(&self, need: Need) -> Result<Reservation, Refusal> {
        let mut reservation = Reservation::none(self.clone());
        reservation.renew(need)?;
        Ok(reservation)
    }

    /// Reserves the tokens of inputs: as many as they may take, or all that are left, and at least the estimate.
    ///
    /// # Errors
    /// As [`Pass::reserve`].
    pub fn reserve_inputs(&self, need: InputsNeed) -> Result<Reservation, Refusal> {
        let mut reservation = self.reserve(Need { prompt: need.least, completion: 0 })?;
        if let Some((limit, bucket)) = self.tokens() {
            let (mut bucket, now) = (locked(bucket), Instant::now());
            let more = need.most.saturating_sub(u64::from(reservation.left));
            let more = u32::try_from(more).unwrap_or(u32::MAX).min(bucket.level(limit, now).remaining);
            if bucket.reserve(more, limit, now).is_ok() {
                reservation.left += more;
            }
        }
        // The work may be done by then, so leaving early is not free.
        reservation.abandoned = u32::try_from(need.least).unwrap_or(u32::MAX);
        Ok(reservation)
    }

    /// Bound of the tokens of each of `answers` if the request states none: a share of the tokens left in this
    /// minute, and at least `least`. None: the key has no limit.
    pub(crate) fn open_answer(&self, prompt: u64, answers: u32, least: u32) -> Option<u32> {
        let (limit, bucket) = self.tokens()?;
        let of_each = |tokens: u64| u32::try_from(tokens / u64::from(answers.max(1))).unwrap_or(u32::MAX);
        let usual = (limit / OPEN_ANSWER_SHARE).max(OPEN_ANSWER_TOKENS);
        let most = of_each(u64::from(limit).saturating_sub(prompt)).min(usual);
        let remaining = locked(bucket).level(limit, Instant::now()).remaining;
        let there = of_each(u64::from(remaining).saturating_sub(prompt));
        // An answer of a few tokens is useless: the request rather waits for a share of its maximum.
        Some(there.clamp(most.div_ceil(OPEN_ANSWER_SHARE), most.max(1)).max(least).max(1))
    }
}

impl Reservation {
    /// Reserves nothing: tokens are charged as they are produced.
    pub(crate) fn none(pass: Pass) -> Reservation {
        Reservation { pass, left: 0, abandoned: 0 }
    }

    /// Tokens that the inputs of a call may take with this reservation; None: the key has no limit.
    pub fn inputs_bound(&self) -> Option<u32> {
        self.pass.limits_tokens().then_some(self.left)
    }

    /// Ends the reservation of a call that failed. If its inputs take more than was reserved, the error becomes
    /// the key's refusal.
    pub fn failed(mut self, status: Status) -> Result<Refusal, Status> {
        let reserved = self.left;
        self.release();
        let is_over = status.metadata().get("error-code").is_some_and(|code| code == INPUTS_OVER);
        let Some((limit, bucket)) = self.pass.tokens().filter(|_| is_over) else { return Err(status) };
        if reserved >= limit {
            let prompt = u64::from(limit).saturating_add(1);
            return Ok(Refusal::TooManyTokens { limit, prompt, completion: 0, fault: TokensFault::Prompt });
        }
        // The inputs are not all counted. A full minute has the most that they could get.
        let full = locked(bucket).level(limit, Instant::now()).reset;
        Ok(Refusal::Tokens { limit, retry_after: full.max(Duration::from_secs(1)) })
    }

    /// Replaces the reservation by one for `need`.
    ///
    /// # Errors
    /// As [`Pass::reserve`]. Then nothing is reserved.
    pub fn renew(&mut self, need: Need) -> Result<(), Refusal> {
        self.release();
        let Some((limit, bucket)) = self.pass.tokens() else { return Ok(()) };
        let tokens = need.within(limit)?;
        let taken = locked(bucket).reserve(tokens, limit, Instant::now());
        taken.map_err(|retry_after| Refusal::Tokens { limit, retry_after })?;
        self.left = tokens;
        Ok(())
    }

    /// Charges tokens, reserved ones first.
    pub fn charge(&mut self, tokens: u32) {
        self.abandoned = 0;
        let reserved = tokens.min(self.left);
        self.left -= reserved;
        self.pass.spend(tokens - reserved);
    }

    /// Charges tokens that could not be foreseen.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] if they are neither reserved nor available. The reserved ones are charged even then.
    pub fn charge_more(&mut self, tokens: u32) -> Result<(), Refusal> {
        let reserved = tokens.min(self.left);
        self.left -= reserved;
        let Some((limit, bucket)) = self.pass.tokens() else { return Ok(()) };
        let taken = locked(bucket).reserve(tokens - reserved, limit, Instant::now());
        taken.map_err(|retry_after| Refusal::Tokens { limit, retry_after })
    }

    /// Gives back the tokens that were not charged.
    pub fn release(&mut self) {
        self.abandoned = 0;
        let left = std::mem::take(&mut self.left);
        if let Some((limit, bucket)) = self.pass.tokens().filter(|_| left > 0) {
            locked(bucket).give_back(left, limit, Instant::now());
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.charge(self.abandoned);
        self.release();
    }
}
