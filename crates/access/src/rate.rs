//! Usage of a key's limits: token buckets that refill evenly within a minute, and running requests.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

const MINUTE_S: f64 = 60.0;

/// Token bucket of one minute's limit, refilled evenly. Usage that was not foreseen is charged too, so the
/// level may fall below zero.
#[derive(Debug)]
pub(crate) struct Bucket {
    used: f64,
    at: Option<Instant>, // time of `used`
}

/// Level of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Limit a minute.
    pub limit: u32,
    /// Rest of the limit.
    pub remaining: u32,
    /// Time until the bucket is full.
    pub reset: Duration,
}

impl Bucket {
    pub(crate) const FULL: Bucket = Bucket { used: 0.0, at: None };

    fn refill(&mut self, per_minute: u32, now: Instant) {
        let passed_s = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.used = (self.used - passed_s * f64::from(per_minute) / MINUTE_S).max(0.0);
        self.at = Some(now);
    }

    /// Takes one unit, or returns the time until one is available.
    pub(crate) fn take(&mut self, per_minute: u32, now: Instant) -> Result<(), Duration> {
        self.reserve(1, per_minute, now)
    }

    /// Takes `count` units, or returns the time until they are available.
    pub(crate) fn reserve(&mut self, count: u32, per_minute: u32, now: Instant) -> Result<(), Duration> {
        self.wait(count, per_minute, now)?;
        self.used += f64::from(count);
        Ok(())
    }

    /// Checks that `count` units are available. The error is the time until they are.
    pub(crate) fn wait(&mut self, count: u32, per_minute: u32, now: Instant) -> Result<(), Duration> {
        self.refill(per_minute, now);
        let missing = self.used + f64::from(count) - f64::from(per_minute);
        match missing > 1e-9 {
            true => Err(seconds(missing * MINUTE_S / f64::from(per_minute.max(1)))),
            false => Ok(()),
        }
    }

    /// Gives back `count` units that were reserved and not used.
    pub(crate) fn give_back(&mut self, count: u32, per_minute: u32, now: Instant) {
        self.refill(per_minute, now);
        self.used = (self.used - f64::from(count)).max(0.0);
    }

    /// Takes `count` units even if fewer are left.
    pub(crate) fn spend(&mut self, count: u32, per_minute: u32, now: Instant) {
        self.refill(per_minute, now);
        self.used += f64::from(count);
    }

    pub(crate) fn level(&mut self, per_minute: u32, now: Instant) -> Level {
        self.refill(per_minute, now);
        let left = (f64::from(per_minute) - self.used).max(0.0);
        Level {
            limit: per_minute,
            // The cast rounds down, and a negative level cannot occur.
            remaining: (left + 1e-9) as u32,
            reset: seconds(self.used * MINUTE_S / f64::from(per_minute.max(1))),
        }
    }
}

/// Duration of `seconds`, clamped to a day.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))
}

/// Usage of a key's limits.
#[derive(Debug)]
pub(crate) struct KeyUsage {
    pub(crate) requests: Mutex<Bucket>,
    pub(crate) tokens: Mutex<Bucket>,
    pub(crate) running: Mutex<u32>,
}

impl Default for KeyUsage {
    fn default() -> KeyUsage {
        KeyUsage {
            requests: Mutex::new(Bucket::FULL),
            tokens: Mutex::new(Bucket::FULL),
            running: Mutex::default(),
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Bucket, Level};

    #[test]
    fn a_minute_has_so_many_and_they_come_back_evenly() {
        let (mut bucket, start) = (Bucket::FULL, Instant::now());
        for _ in 0..6 {
            bucket.take(6, start).unwrap();
        }
        assert_eq!(bucket.take(6, start), Err(Duration::from_secs(10)));
        assert_eq!(bucket.level(6, start), Level { limit: 6, remaining: 0, reset: Duration::from_secs(60) });
        let later = start + Duration::from_secs(10);
        bucket.take(6, later).unwrap();
        assert!(bucket.take(6, later).is_err());
        // A bucket never holds more than a minute's limit.
        let much_later = start + Duration::from_secs(3600);
        assert_eq!(bucket.level(6, much_later).remaining, 6);
    }

    #[test]
    fn what_was_spent_beyond_the_limit_is_waited_for() {
        let (mut bucket, start) = (Bucket::FULL, Instant::now());
        bucket.spend(150, 100, start);
        assert_eq!(bucket.level(100, start).remaining, 0);
        let wait = bucket.wait(1, 100, start).unwrap_err();
        assert_eq!(wait.as_secs_f64().round(), 31.0, "{wait:?}");
        assert!(bucket.wait(1, 100, start + wait + Duration::from_millis(1)).is_ok());
        // Reserved tokens come back, up to the limit.
        let mut bucket = Bucket::FULL;
        bucket.reserve(80, 100, start).unwrap();
        assert_eq!(bucket.reserve(30, 100, start).unwrap_err().as_secs_f64().round(), 6.0);
        bucket.give_back(80, 100, start);
        bucket.reserve(100, 100, start).unwrap();
        bucket.give_back(100, 100, start + Duration::from_secs(60));
        assert_eq!(bucket.level(100, start + Duration::from_secs(60)).remaining, 100);
        // A clock that stands still or a limit of zero does no harm.
        let mut none = Bucket::FULL;
        assert!(none.take(0, start).is_err());
    }
}
