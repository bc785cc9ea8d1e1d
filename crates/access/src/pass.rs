//! What a request that was let in may do: which models it may use, what it may ask of the operator, and what its key has
//! left of its limits.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use crate::{
    file::Record,
    key::KeyDigest,
    models,
    rate::{Bucket, Level, Usage, locked},
    refusal::Refusal,
};

/// A key and who has it.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) digest: KeyDigest,
    pub(crate) record: Record,
    /// Nobody chose it, so nobody guesses it.
    pub(crate) random: bool,
    /// The same for as long as there is a key of that name.
    pub(crate) usage: Arc<Usage>,
}

/// What a request may do. Cloning it is cheap.
#[derive(Debug, Clone, Default)]
pub struct Pass(Option<Arc<Holder>>);

/// A request of a key that counts as running until this is dropped.
#[derive(Debug, Default)]
pub struct Running(Option<Arc<Usage>>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(usage) = &self.0 {
            let mut running = locked(&usage.running);
            *running = running.saturating_sub(1);
        }
    }
}

/// What a key has left in this minute; None: there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Of its requests.
    pub requests: Option<Level>,
    /// Of its tokens.
    pub tokens: Option<Level>,
}

impl Pass {
    /// Of anyone, where no key is wanted: everything is allowed.
    pub fn anyone() -> Pass {
        Pass(None)
    }

    pub(crate) fn of(holder: Arc<Holder>) -> Pass {
        Pass(Some(holder))
    }

    fn record(&self) -> Option<&Record> {
        self.0.as_ref().map(|holder| &holder.record)
    }

    /// The name of the key; None where no key is wanted.
    pub fn name(&self) -> Option<&str> {
        self.record().map(|record| record.name.as_str())
    }

    /// Takes a request of the minute and a place among those that run.
    ///
    /// # Errors
    /// The limit that has been reached. Nothing is taken then.
    pub fn enter(&self) -> Result<Running, Refusal> {
        let Some(holder) = &self.0 else { return Ok(Running(None)) };
        let (record, usage, now) = (&holder.record, &holder.usage, Instant::now());
        if let Some(limit) = record.tokens_per_minute {
            let waited = locked(&usage.tokens).wait(1, limit, now);
            waited.map_err(|retry_after| Refusal::Tokens { limit, retry_after })?;
        }
        let mut running = locked(&usage.running);
        if let Some(limit) = record.concurrency.filter(|limit| *running >= *limit) {
            return Err(Refusal::Running { limit });
        }
        if let Some(limit) = record.requests_per_minute {
            let taken = locked(&usage.requests).take(limit, now);
            taken.map_err(|retry_after| Refusal::Requests { limit, retry_after })?;
        }
        *running = running.saturating_add(1);
        Ok(Running(Some(Arc::clone(usage))))
    }

    /// Whether it may use the model of that name; empty: the only one, which a key with a list has to name.
    ///
    /// # Errors
    /// [`Refusal::Model`], with what it may use.
    pub fn use_model(&self, name: &str) -> Result<(), Refusal> {
        let Some(record) = self.record().filter(|record| !record.models.is_empty()) else { return Ok(()) };
        let allowed = || record.models.clone();
        match name {
            "" => Err(Refusal::NoModel { allowed: allowed() }),
            _ if self.sees_model(name) => Ok(()),
            _ => Err(Refusal::Model { name: name.chars().take(64).collect(), allowed: allowed() }),
        }
    }

    /// Whether a model of that name is one of those it may use.
    pub fn sees_model(&self, name: &str) -> bool {
        let patterns = self.record().map_or(&[][..], |record| &record.models);
        patterns.is_empty() || patterns.iter().any(|pattern| models::matches(pattern, name))
    }

    /// Whether it may do what the operator does.
    pub fn is_admin(&self) -> bool {
        self.record().is_none_or(|record| record.admin)
    }

    /// Refuses what is the operator's to ask.
    ///
    /// # Errors
    /// [`Refusal::Admin`].
    pub fn admin(&self, what: &str) -> Result<(), Refusal> {
        if self.is_admin() { Ok(()) } else { Err(Refusal::Admin { what: what.to_owned() }) }
    }

    /// The priority of a request that asks for that one (lower runs earlier; 0 where it asks for none): its key's own,
    /// or later.
    pub fn priority(&self, asked: i32) -> i32 {
        match (self.record().and_then(|record| record.priority), asked) {
            (None, asked) => asked,
            (Some(own), 0) => own,
            (Some(own), asked) => own.max(asked),
        }
    }

    /// The key's tokens per minute and what was used of them; None: there is no limit.
    pub(crate) fn tokens(&self) -> Option<(u32, &Mutex<Bucket>)> {
        let holder = self.0.as_ref()?;
        Some((holder.record.tokens_per_minute?, &holder.usage.tokens))
    }

    /// Whether its tokens are limited.
    pub fn limits_tokens(&self) -> bool {
        self.tokens().is_some()
    }

    /// Charges so many tokens.
    pub fn spend(&self, tokens: u32) {
        if let Some((limit, bucket)) = self.tokens() {
            locked(bucket).spend(tokens, limit, Instant::now());
        }
    }

    /// What is left of its limits.
    pub fn standing(&self) -> Standing {
        let Some(holder) = &self.0 else { return Standing::default() };
        let (record, usage, now) = (&holder.record, &holder.usage, Instant::now());
        Standing {
            requests: record.requests_per_minute.map(|limit| locked(&usage.requests).level(limit, now)),
            tokens: record.tokens_per_minute.map(|limit| locked(&usage.tokens).level(limit, now)),
        }
    }
}

impl std::fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}
