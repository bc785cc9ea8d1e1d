//! Tokens of a key that a request may take. They are reserved before it runs, charged as they come, and what is left of them is given
//! back at its end.

use std::time::Instant;

use crate::{
    pass::Pass,
    rate::locked,
    refusal::{Refusal, TokensFault},
};

/// Tokens that each answer may have at least where the request states no `max_tokens`.
const OPEN_ANSWER_TOKENS: u32 = 1024;
/// Part of a minute's tokens that an answer may have where the request states no `max_tokens`.
const OPEN_ANSWER_SHARE: u32 = 4;

/// Tokens that are reserved; dropping it gives back those that were not charged.
#[derive(Debug)]
pub struct Reservation {
    pass: Pass,
    left: u32,
}

/// Tokens that a request may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Tokens of its prompt.
    pub prompt: u64,
    /// Tokens of all its answers together.
    pub completion: u64,
}

impl Need {
    /// The tokens, where a minute of the key has so many.
    fn within(self, limit: u32) -> Result<u32, Refusal> {
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
    /// [`Refusal::Tokens`] where they are not there yet, [`Refusal::TooManyTokens`] where no minute has so many.
    pub fn reserve(&self, need: Need) -> Result<Reservation, Refusal> {
        let mut reservation = Reservation::none(self.clone());
        reservation.renew(need)?;
        Ok(reservation)
    }

    /// The tokens that each of `answers` may have where the request states no bound, but at least `least`: those that are left of the
    /// minute, within a share of it. None: the key has no limit.
    pub(crate) fn open_answer(&self, prompt: u64, answers: u32, least: u32) -> Option<u32> {
        let (limit, bucket) = self.tokens()?;
        let of_each = |tokens: u64| u32::try_from(tokens / u64::from(answers.max(1))).unwrap_or(u32::MAX);
        let usual = (limit / OPEN_ANSWER_SHARE).max(OPEN_ANSWER_TOKENS);
        let most = of_each(u64::from(limit).saturating_sub(prompt)).min(usual);
        let remaining = locked(bucket).level(limit, Instant::now()).remaining;
        let there = of_each(u64::from(remaining).saturating_sub(prompt));
        // An answer of a few tokens helps nobody: a request waits for a share of what it may have.
        Some(there.clamp(most.div_ceil(OPEN_ANSWER_SHARE), most.max(1)).max(least).max(1))
    }
}

impl Reservation {
    /// No tokens, which are charged as they come.
    pub(crate) fn none(pass: Pass) -> Reservation {
        Reservation { pass, left: 0 }
    }

    /// Reserves the tokens of `need` in place of those that are left.
    ///
    /// # Errors
    /// As [`Pass::reserve`]. Nothing is reserved then.
    pub fn renew(&mut self, need: Need) -> Result<(), Refusal> {
        self.release();
        let Some((limit, bucket)) = self.pass.tokens() else { return Ok(()) };
        let tokens = need.within(limit)?;
        let taken = locked(bucket).reserve(tokens, limit, Instant::now());
        taken.map_err(|retry_after| Refusal::Tokens { limit, retry_after })?;
        self.left = tokens;
        Ok(())
    }

    /// Charges tokens: first those that are reserved, then others.
    pub fn charge(&mut self, tokens: u32) {
        let reserved = tokens.min(self.left);
        self.left -= reserved;
        self.pass.spend(tokens - reserved);
    }

    /// Charges tokens that nobody could foresee.
    ///
    /// # Errors
    /// [`Refusal::Tokens`] where they are neither reserved nor there. The reserved ones are charged.
    pub fn charge_more(&mut self, tokens: u32) -> Result<(), Refusal> {
        let reserved = tokens.min(self.left);
        self.left -= reserved;
        let Some((limit, bucket)) = self.pass.tokens() else { return Ok(()) };
        let taken = locked(bucket).reserve(tokens - reserved, limit, Instant::now());
        taken.map_err(|retry_after| Refusal::Tokens { limit, retry_after })
    }

    /// Gives back the tokens that were not charged.
    pub fn release(&mut self) {
        let left = std::mem::take(&mut self.left);
        if let Some((limit, bucket)) = self.pass.tokens().filter(|_| left > 0) {
            locked(bucket).give_back(left, limit, Instant::now());
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}
