//! Permissions of an accepted request: the models that it may use, whether it may administer, and the rest of
//! its key's limits.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use crate::{
    file::Record,
    key::KeyDigest,
    models,
    rate::{Bucket, KeyUsage, Level, locked},
    refusal::Refusal,
    revocation::{KeyEnd, Revocation},
};

/// Key with its owner's record and usage.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) digest: KeyDigest,
    pub(crate) record: Record,
    /// Generated at random, so it cannot be guessed.
    pub(crate) random: bool,
    /// Shared with earlier readings of the file for as long as it has a key of that name.
    pub(crate) usage: Arc<KeyUsage>,
    /// Shared with earlier readings of the file that have the same key.
    pub(crate) revocation: Revocation,
}

/// Permissions of a request. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct Pass(Option<Arc<Holder>>);

/// Running request of a key. Counts against the key's concurrency until dropped.
#[derive(Debug, Default)]
pub struct RunningRequest(Option<Arc<KeyUsage>>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        if let Some(usage) = &self.0 {
            let mut running = locked(&usage.running);
            *running = running.saturating_sub(1);
        }
    }
}

/// Rest of a key's limits for this minute; None: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemainingLimits {
    /// Requests left.
    pub requests: Option<Level>,
    /// Tokens left.
    pub tokens: Option<Level>,
}

impl Pass {
    /// Grants everything, for servers without keys.
    pub fn anyone() -> Pass {
        Pass(None)
    }

    pub(crate) fn of(holder: Arc<Holder>) -> Pass {
        Pass(Some(holder))
    }

    fn record(&self) -> Option<&Record> {
        self.0.as_ref().map(|holder| &holder.record)
    }

    /// Wait for the end of the key.
    pub fn key_end(&self) -> KeyEnd {
        KeyEnd::of(self.0.as_ref().map(|holder| &holder.revocation))
    }

    /// Name of the key; None: the server wants no key.
    pub fn name(&self) -> Option<&str> {
        self.record().map(|record| record.name.as_str())
    }

    /// Takes one of the key's requests a minute and one of its concurrent requests.
    ///
    /// # Errors
    /// The limit that has been reached. Then nothing is taken.
    pub fn enter(&self) -> Result<RunningRequest, Refusal> {
        let Some(holder) = &self.0 else { return Ok(RunningRequest(None)) };
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
        Ok(RunningRequest(Some(Arc::clone(usage))))
    }

    /// Checks that the key may use the model of that name. An empty name means the only model; a key with a
    /// list must name it.
    ///
    /// # Errors
    /// [`Refusal::Model`] or [`Refusal::NoModel`], with the models that it may use.
    pub fn use_model(&self, name: &str) -> Result<(), Refusal> {
        let Some(record) = self.record().filter(|record| !record.models.is_empty()) else { return Ok(()) };
        let allowed = || record.models.clone();
        match name {
            "" => Err(Refusal::NoModel { allowed: allowed() }),
            _ if self.sees_model(name) => Ok(()),
            _ => Err(Refusal::Model { name: name.chars().take(64).collect(), allowed: allowed() }),
        }
    }

    /// Whether the key may use a model of that name.
    pub fn sees_model(&self, name: &str) -> bool {
        let patterns = self.record().map_or(&[][..], |record| &record.models);
        patterns.is_empty() || patterns.iter().any(|pattern| models::matches(pattern, name))
    }

    /// Whether the key has the admin scope.
    pub fn is_admin(&self) -> bool {
        self.record().is_none_or(|record| record.admin)
    }

    /// Refuses administrative requests of keys without the admin scope; `what` names the request.
    ///
    /// # Errors
    /// [`Refusal::Admin`].
    pub fn admin(&self, what: &str) -> Result<(), Refusal> {
        if self.is_admin() { Ok(()) } else { Err(Refusal::Admin { what: what.to_owned() }) }
    }

    /// Priority of a request that asks for `asked` (lower runs earlier; 0: none asked): the key's own, or a
    /// later one.
    pub fn priority(&self, asked: i32) -> i32 {
        match (self.record().and_then(|record| record.priority), asked) {
            (None, asked) => asked,
            (Some(own), 0) => own,
            (Some(own), asked) => own.max(asked),
        }
    }

    /// Key's tokens a minute and their usage; None: no limit.
    pub(crate) fn tokens(&self) -> Option<(u32, &Mutex<Bucket>)> {
        let holder = self.0.as_ref()?;
        Some((holder.record.tokens_per_minute?, &holder.usage.tokens))
    }

    /// Whether the key's tokens are limited.
    pub fn limits_tokens(&self) -> bool {
        self.tokens().is_some()
    }

    /// Charges tokens to the key.
    pub fn spend(&self, tokens: u32) {
        if let Some((limit, bucket)) = self.tokens() {
            locked(bucket).spend(tokens, limit, Instant::now());
        }
    }

    /// Rest of the key's limits.
    pub fn standing(&self) -> RemainingLimits {
        let Some(holder) = &self.0 else { return RemainingLimits::default() };
        let (record, usage, now) = (&holder.record, &holder.usage, Instant::now());
        RemainingLimits {
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
