//! The keys of a process, and what becomes of what a request presents.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard},
    time::{Duration, Instant},
};

use http::{HeaderMap, header};

use crate::{
    file::{FileError, KeysFile, Record},
    follow::{Follow, Seen, follow},
    guesses::Guesses,
    key::KeyDigest,
    pass::{Holder, Pass},
    rate::{Usage, locked},
    refusal::Refusal,
    secret::Secret,
};

/// What logs call the key that was set, which has no name.
const SET_KEY: &str = "api_key";

/// Time for which the keys of a file stay valid after it became unreadable. An editor that writes a file in place takes less.
pub const KEYS_GRACE: Duration = Duration::from_secs(5);

/// Why the file of keys cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysFault {
    /// The file, and what is wrong with it.
    pub reason: String,
    /// Since when.
    pub since: Instant,
    /// Its keys are refused.
    pub closed: bool,
}

/// Where a process has its keys from; nothing: no key is wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// One key that may do everything.
    pub api_key: Option<Secret>,
    /// A file of keys, each with what it may do.
    pub api_keys_file: Option<PathBuf>,
}

impl Settings {
    /// Whether a request needs a key.
    pub fn wants_keys(&self) -> bool {
        self.api_key.is_some() || self.api_keys_file.is_some()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.api_keys_file.iter().cloned().collect()
    }
}

/// Keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Those of the file.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The keys of a process.
#[derive(Debug)]
pub struct Access {
    settings: RwLock<Settings>,
    holders: RwLock<Arc<[Arc<Holder>]>>,
    guesses: Guesses,
    seen: Mutex<Option<Seen>>,       // the file, as it was read first
    fault: Mutex<Option<KeysFault>>, // of the file now
}

/// The keys that a request came with: as OpenAI's clients send them, and as Anthropic's do.
#[derive(Clone, Default)]
pub struct Presented<'a>([Option<&'a str>; 2]);

impl<'a> Presented<'a> {
    /// Those of an HTTP request, or of a call of gRPC.
    pub fn of(headers: &'a HeaderMap) -> Presented<'a> {
        // What is no text is no key.
        let text = |name| headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap_or("?"));
        let bearer = text(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let named = text(header::HeaderName::from_static("x-api-key")).map(str::trim);
        Presented([bearer, named].map(|key| key.filter(|key| !key.is_empty())))
    }
}

impl Access {
    /// Reads the keys.
    ///
    /// # Errors
    /// Where the file cannot be read, or says what it may not.
    pub fn open(settings: Settings) -> Result<Access, AccessError> {
        let access = Access {
            settings: RwLock::new(settings),
            holders: RwLock::default(),
            guesses: Guesses::default(),
            seen: Mutex::default(),
            fault: Mutex::default(),
        };
        *locked(&access.seen) = Some(Seen::of(&access.files()));
        access.read()?;
        Ok(access)
    }

    /// Takes other settings, and reads the file again at once. To be called in an asynchronous runtime, after
    /// [`Access::follow`].
    ///
    /// # Errors
    /// Where the file cannot be read, or says what it may not: all stays what it was.
    pub fn set(self: &Arc<Self>, settings: Settings) -> Result<(), AccessError> {
        let seen = Seen::of(&settings.files());
        let old = std::mem::replace(&mut *self.write(), settings);
        if let Err(error) = self.read() {
            *self.write() = old;
            return Err(error);
        }
        // A file that there was is followed, whatever its path.
        if old.api_keys_file.is_none() {
            follow(self, seen);
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Settings> {
        self.settings.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where no key is wanted.
    pub fn open_to_all() -> Access {
        Access {
            settings: RwLock::default(),
            holders: RwLock::default(),
            guesses: Guesses::default(),
            seen: Mutex::default(),
            fault: Mutex::default(),
        }
    }

    /// Whether a request needs a key.
    pub fn wants_keys(&self) -> bool {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).wants_keys()
    }

    /// What a request that presents that may do.
    ///
    /// # Errors
    /// [`Refusal::Missing`], [`Refusal::Wrong`], [`Refusal::Guessing`] or [`Refusal::KeysUnreadable`].
    pub fn admit(&self, presented: &Presented<'_>, from: Option<IpAddr>) -> Result<Pass, Refusal> {
        if !self.wants_keys() {
            return Ok(Pass::anyone());
        }
        let digests: Vec<KeyDigest> =
            presented.0.iter().flatten().filter_map(|key| KeyDigest::of(key)).collect();
        if presented.0.iter().flatten().next().is_none() {
            return Err(Refusal::Missing);
        }
        let holders = Arc::clone(&self.holders.read().unwrap_or_else(PoisonError::into_inner));
        let mut found = None;
        // To the end, wherever it is found.
        for holder in holders.iter() {
            for digest in &digests {
                if holder.digest.is(digest) {
                    found = Some(holder);
                }
            }
        }
        // Whoever comes by no address is one client.
        let (from, now) = (from.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), Instant::now());
        let closed = self.keys_fault().is_some_and(|fault| fault.closed);
        match (found, self.guesses.blocked(from, now)) {
            (Some(holder), _) if holder.random && closed => Err(Refusal::KeysUnreadable),
            (Some(holder), blocked) if holder.random || blocked.is_none() => Ok(Pass::of(Arc::clone(holder))),
            (_, Some(retry_after)) => Err(Refusal::Guessing { retry_after }),
            (_, None) => {
                self.guesses.wrong(from, now);
                // It may be a key of the file, which nobody can say now.
                Err(if closed { Refusal::KeysUnreadable } else { Refusal::Wrong })
            }
        }
    }

    /// Why the file of keys cannot be used, if it cannot.
    pub fn keys_fault(&self) -> Option<KeysFault> {
        let fault = locked(&self.fault).clone();
        fault.map(|fault| KeysFault { closed: fault.since.elapsed() >= KEYS_GRACE, ..fault })
    }

    /// Reads the file again. Where it cannot be read, or is wrong, its keys stay what they were for [`KEYS_GRACE`] and are refused
    /// from then on, until it can be read.
    pub fn reload(&self) {
        match self.read() {
            Ok(Some(keys)) => tracing::info!(keys, "the keys were read again"),
            Ok(None) => {}
            Err(error) => {
                let reason = error.to_string();
                let mut fault = locked(&self.fault);
                // It is tried again every second: the log has one line for each reason.
                if fault.as_ref().is_none_or(|fault| fault.reason != reason) {
                    let grace_s = KEYS_GRACE.as_secs();
                    tracing::error!(
                        %error,
                        "the file of keys cannot be read again: its keys are refused {grace_s} seconds after it became so, until it can"
                    );
                }
                let since = fault.as_ref().map_or_else(Instant::now, |fault| fault.since);
                *fault = Some(KeysFault { reason, since, closed: false });
            }
        }
    }

    /// The number of keys of the file, where there is one.
    fn read(&self) -> Result<Option<usize>, AccessError> {
        let mut holders = Vec::new();
        let old = Arc::clone(&self.holders.read().unwrap_or_else(PoisonError::into_inner));
        let usage = |name: &str| {
            let same = old.iter().find(|holder| holder.record.name == name);
            same.map_or_else(|| Arc::new(Usage::default()), |holder| Arc::clone(&holder.usage))
        };
        let settings = self.settings();
        if let Some(key) = &settings.api_key
            && let Some(digest) = KeyDigest::of(key.text())
        {
            let record = Record { name: SET_KEY.to_owned(), admin: true, ..Record::default() };
            holders.push(Arc::new(Holder { digest, record, random: false, usage: Arc::default() }));
        }
        let mut count = None;
        if let Some(path) = &settings.api_keys_file {
            let file = KeysFile::read(path)?;
            count = Some(file.keys.len());
            for record in file.keys {
                let Some(digest) = KeyDigest::from_hex(&record.sha256) else { continue };
                let usage = usage(&record.name);
                holders.push(Arc::new(Holder { digest, record, random: true, usage }));
            }
        }
        if count == Some(0) && settings.api_key.is_none() {
            tracing::warn!(
                "the file of keys has none: every request is refused; `hanzo-engine keys create` makes one"
            );
        }
        *self.holders.write().unwrap_or_else(PoisonError::into_inner) = holders.into();
        *locked(&self.fault) = None;
        Ok(count)
    }

    /// Follows the file until nobody has these keys any more. To be called in an asynchronous runtime; once is enough.
    pub fn follow(self: &Arc<Self>) {
        if let Some(seen) = locked(&self.seen).take() {
            follow(self, seen);
        }
    }
}

impl Follow for Access {
    fn files(&self) -> Vec<PathBuf> {
        self.settings().files()
    }

    fn changed(&self) {
        self.reload();
    }

    fn try_again(&self) -> bool {
        locked(&self.fault).is_some()
    }
}

#[cfg(test)]
mod tests;
