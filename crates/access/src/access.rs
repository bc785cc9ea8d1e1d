//! Set of keys that a process accepts, and the check of the keys that a request presents.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard},
    time::{Duration, Instant},
};

use http::{HeaderMap, header};

use crate::{
    file::{FileError, KeysFile, Record},
    follow::{FileStamps, Follow, follow},
    guesses::Guesses,
    key::KeyDigest,
    pass::{Holder, Pass},
    rate::{KeyUsage, locked},
    refusal::Refusal,
    secret::Secret,
};

/// Name in logs for the key of the settings, which has no record.
const SET_KEY: &str = "api_key";

/// Time for which a file's keys stay valid after it became unreadable. An editor that writes in place takes
/// less.
pub const KEYS_GRACE: Duration = Duration::from_secs(5);

/// Fault that keeps the key file from being used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysFault {
    /// Path of the file and the fault.
    pub reason: String,
    /// Time at which the fault was first seen.
    pub since: Instant,
    /// True when [`KEYS_GRACE`] has passed: the file's keys are refused.
    pub closed: bool,
}

/// Sources of a process's keys. Without any, requests need no key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AccessSettings {
    /// Single key with all permissions.
    pub api_key: Option<Secret>,
    /// Key file; each key has its own permissions and limits.
    pub api_keys_file: Option<PathBuf>,
}

impl AccessSettings {
    /// Whether a request needs a key.
    pub fn wants_keys(&self) -> bool {
        self.api_key.is_some() || self.api_keys_file.is_some()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.api_keys_file.iter().cloned().collect()
    }
}

/// Error of a key source.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Error of the key file.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Accepted keys of a process.
#[derive(Debug)]
pub struct Access {
    settings: RwLock<AccessSettings>,
    holders: RwLock<Arc<[Arc<Holder>]>>,
    guesses: Guesses,
    stamps: Mutex<Option<FileStamps>>, // state of the file at its first reading
    fault: Mutex<Option<KeysFault>>,   // current fault of the file
}

/// Keys that a request presents: a bearer token, as OpenAI's clients send, and `x-api-key`, as Anthropic's do.
#[derive(Clone, Default)]
pub struct PresentedKeys<'a>([Option<&'a str>; 2]);

impl<'a> PresentedKeys<'a> {
    /// Reads the keys from the headers of an HTTP request or a gRPC call.
    pub fn of(headers: &'a HeaderMap) -> PresentedKeys<'a> {
        // A value that is not ASCII text becomes `?`, which matches no key.
        let text = |name| headers.get(name).map(|value: &http::HeaderValue| value.to_str().unwrap_or("?"));
        let bearer = text(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let named = text(header::HeaderName::from_static("x-api-key")).map(str::trim);
        PresentedKeys([bearer, named].map(|key| key.filter(|key| !key.is_empty())))
    }
}

impl Access {
    /// Reads the keys.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn open(settings: AccessSettings) -> Result<Access, AccessError> {
        let access = Access {
            settings: RwLock::new(settings),
            holders: RwLock::default(),
            guesses: Guesses::default(),
            stamps: Mutex::default(),
            fault: Mutex::default(),
        };
        *locked(&access.stamps) = Some(FileStamps::of(&access.files()));
        access.read()?;
        Ok(access)
    }

    /// Replaces the settings and reads the key file at once. Must run in an async runtime, after
    /// [`Access::follow`].
    ///
    /// # Errors
    /// The file cannot be read or is invalid. The old settings stay in force.
    pub fn set(self: &Arc<Self>, settings: AccessSettings) -> Result<(), AccessError> {
        let stamps = FileStamps::of(&settings.files());
        let old = std::mem::replace(&mut *self.write(), settings);
        if let Err(error) = self.read() {
            *self.write() = old;
            return Err(error);
        }
        // If there was a key file before, the running watcher also follows the new path.
        if old.api_keys_file.is_none() {
            follow(self, stamps);
        }
        Ok(())
    }

    fn settings(&self) -> AccessSettings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, AccessSettings> {
        self.settings.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts every request without a key.
    pub fn open_to_all() -> Access {
        Access {
            settings: RwLock::default(),
            holders: RwLock::default(),
            guesses: Guesses::default(),
            stamps: Mutex::default(),
            fault: Mutex::default(),
        }
    }

    /// Whether a request needs a key.
    pub fn wants_keys(&self) -> bool {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).wants_keys()
    }

    /// Checks the presented keys of a request from address `from`.
    ///
    /// # Errors
    /// [`Refusal::Missing`], [`Refusal::Wrong`], [`Refusal::Guessing`] or [`Refusal::KeysUnreadable`].
    pub fn admit(&self, presented: &PresentedKeys<'_>, from: Option<IpAddr>) -> Result<Pass, Refusal> {
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
        // The search never stops early, so its time does not reveal the match.
        for holder in holders.iter() {
            for digest in &digests {
                if holder.digest.is(digest) {
                    found = Some(holder);
                }
            }
        }
        // Clients without an address share one count of wrong keys.
        let (from, now) = (from.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), Instant::now());
        let closed = self.keys_fault().is_some_and(|fault| fault.closed);
        match (found, self.guesses.blocked(from, now)) {
            (Some(holder), _) if holder.random && closed => Err(Refusal::KeysUnreadable),
            (Some(holder), blocked) if holder.random || blocked.is_none() => Ok(Pass::of(Arc::clone(holder))),
            (_, Some(retry_after)) => Err(Refusal::Guessing { retry_after }),
            (_, None) => {
                self.guesses.wrong(from, now);
                // While the file is unreadable, the key may be one of the file's.
                Err(if closed { Refusal::KeysUnreadable } else { Refusal::Wrong })
            }
        }
    }

    /// Current fault of the key file, if any.
    pub fn keys_fault(&self) -> Option<KeysFault> {
        let fault = locked(&self.fault).clone();
        fault.map(|fault| KeysFault { closed: fault.since.elapsed() >= KEYS_GRACE, ..fault })
    }

    /// Reads the file again. If it is unreadable or invalid, its keys stay valid for [`KEYS_GRACE`]. After that
    /// they are refused until the file can be read.
    pub fn reload(&self) {
        match self.read() {
            Ok(Some(keys)) => tracing::info!(keys, "the keys were read again"),
            Ok(None) => {}
            Err(error) => {
                let reason = error.to_string();
                let mut fault = locked(&self.fault);
                // The file is tried every second: each reason is logged once.
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

    /// Reads all keys. Returns the number of keys in the file, if there is a file.
    fn read(&self) -> Result<Option<usize>, AccessError> {
        let mut holders = Vec::new();
        let old = Arc::clone(&self.holders.read().unwrap_or_else(PoisonError::into_inner));
        let usage = |name: &str| {
            let same = old.iter().find(|holder| holder.record.name == name);
            same.map_or_else(|| Arc::new(KeyUsage::default()), |holder| Arc::clone(&holder.usage))
        };
        let revocation = |digest: &KeyDigest| {
            let same = old.iter().find(|holder| holder.digest.is(digest));
            same.map(|holder| holder.revocation.clone()).unwrap_or_default()
        };
        let settings = self.settings();
        if let Some(key) = &settings.api_key
            && let Some(digest) = KeyDigest::of(key.text())
        {
            let record = Record { name: SET_KEY.to_owned(), admin: true, ..Record::default() };
            let (usage, revocation) = (Arc::default(), revocation(&digest));
            holders.push(Arc::new(Holder { digest, record, random: false, usage, revocation }));
        }
        let mut count = None;
        if let Some(path) = &settings.api_keys_file {
            let file = KeysFile::read(path)?;
            count = Some(file.keys.len());
            for record in file.keys {
                let Some(digest) = KeyDigest::from_hex(&record.sha256) else { continue };
                let (usage, revocation) = (usage(&record.name), revocation(&digest));
                holders.push(Arc::new(Holder { digest, record, random: true, usage, revocation }));
            }
        }
        if count == Some(0) && settings.api_key.is_none() {
            tracing::warn!(
                "the file of keys has none: every request is refused; `hanzo-engine keys create` makes one"
            );
        }
        let is_left = |digest: &KeyDigest| holders.iter().any(|holder| holder.digest.is(digest));
        let revoked: Vec<_> = old.iter().filter(|holder| !is_left(&holder.digest)).collect();
        *self.holders.write().unwrap_or_else(PoisonError::into_inner) = holders.into();
        revoked.into_iter().for_each(|holder| holder.revocation.revoke());
        *locked(&self.fault) = None;
        Ok(count)
    }

    /// Watches the file for as long as `self` is in use. Must run in an async runtime, and be called once.
    pub fn follow(self: &Arc<Self>) {
        if let Some(stamps) = locked(&self.stamps).take() {
            follow(self, stamps);
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
