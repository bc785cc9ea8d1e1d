//! Whether a daemon is to be asked: a state that changes with what is seen of it, given the time. It asks no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{EJECTED_FIRST, EJECTED_MAX, FAILURES_IN_A_ROW_MAX, SOUND_AFTER};

/// What a daemon can be asked now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    /// Nobody has heard of it yet.
    Unknown,
    /// It serves since then.
    Up { since: Instant },
    /// It ends what runs and takes nothing new.
    Draining,
    /// It is left alone until then, for this reason.
    Out { until: Instant, reason: String },
}

impl State {
    /// As metrics and `/health` say it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            State::Unknown => "unknown",
            State::Up { .. } => "up",
            State::Draining => "draining",
            State::Out { .. } => "out",
        }
    }
}

/// A daemon's state, and how it came to it.
#[derive(Debug)]
pub(crate) struct Health {
    state: State,
    failures: u32,  // answers in a row that a sound daemon does not give
    ejections: u32, // since it was sound for a while
}

impl Health {
    /// Of a daemon nobody has asked.
    pub(crate) fn new() -> Health {
        Health { state: State::Unknown, failures: 0, ejections: 0 }
    }

    /// What it can be asked now.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// It said that it serves. One that is left alone stays so until its time.
    pub(crate) fn serves(&mut self, now: Instant) {
        match &self.state {
            State::Up { .. } => {}
            State::Out { until, .. } if now < *until => {}
            State::Unknown | State::Draining | State::Out { .. } => {
                self.failures = 0;
                self.state = State::Up { since: now };
            }
        }
    }

    /// It said that it takes nothing new.
    pub(crate) fn drains(&mut self) {
        self.state = State::Draining;
    }

    /// It was not reached, or lost. Whether it was asked until now.
    pub(crate) fn lost(&mut self, now: Instant, reason: &str) -> bool {
        let asked = !matches!(self.state, State::Out { .. });
        // What many calls lose at once is one loss.
        let over = matches!(&self.state, State::Out { until, .. } if now >= *until);
        if asked || over {
            self.leave_alone(now, reason);
        }
        asked
    }

    /// It answered a request as no sound daemon does. Whether it is left alone from now on.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        self.failures += 1;
        if self.failures < FAILURES_IN_A_ROW_MAX || !matches!(self.state, State::Up { .. }) {
            return false;
        }
        let reason = format!("{} requests in a row failed", self.failures);
        self.leave_alone(now, &reason);
        true
    }

    /// It did what a request asked of it.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
    }

    fn leave_alone(&mut self, now: Instant, reason: &str) {
        if matches!(&self.state, State::Up { since } if now.duration_since(*since) >= SOUND_AFTER) {
            self.ejections = 0;
        }
        let time = EJECTED_FIRST.saturating_mul(1 << self.ejections.min(16)).min(EJECTED_MAX);
        self.ejections += 1;
        self.failures = 0;
        self.state = State::Out { until: now + time, reason: reason.to_owned() };
    }

    /// How long until it may be asked whether it is back.
    pub(crate) fn left_alone_for(&self, now: Instant) -> Duration {
        match &self.state {
            State::Out { until, .. } => until.saturating_duration_since(now),
            State::Unknown | State::Up { .. } | State::Draining => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_lost_is_left_alone_longer_each_time_until_it_was_sound_for_a_while() {
        let mut now = Instant::now();
        let mut health = Health::new();
        health.serves(now);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(health.lost(now, "gone"));
            assert!(!health.lost(now, "gone"), "one loss is one");
            let wait = health.left_alone_for(now);
            waits.push(wait);
            health.serves(now + wait / 2);
            assert_eq!(health.state().word(), "out", "before its time");
            now += wait;
            health.serves(now);
            assert_eq!(health.state().word(), "up");
        }
        assert_eq!(waits[0], EJECTED_FIRST);
        assert_eq!(waits[1], EJECTED_FIRST * 2);
        assert_eq!(waits[7], EJECTED_MAX);
        now += SOUND_AFTER;
        health.lost(now, "gone");
        assert_eq!(health.left_alone_for(now), EJECTED_FIRST);
    }

    #[test]
    fn one_that_is_still_not_reached_waits_longer() {
        let now = Instant::now();
        let mut health = Health::new();
        assert!(health.lost(now, "refused"));
        let later = now + EJECTED_FIRST;
        assert!(!health.lost(later, "refused"));
        assert_eq!(health.left_alone_for(later), EJECTED_FIRST * 2);
    }

    #[test]
    fn failures_count_in_a_row() {
        let now = Instant::now();
        let mut health = Health::new();
        health.serves(now);
        for _ in 1..FAILURES_IN_A_ROW_MAX {
            assert!(!health.failed(now));
        }
        health.worked();
        for _ in 1..FAILURES_IN_A_ROW_MAX {
            assert!(!health.failed(now));
        }
        assert!(health.failed(now));
        assert_eq!(health.state().word(), "out");
    }

    #[test]
    fn one_that_drains_serves_again_when_it_says_so() {
        let now = Instant::now();
        let mut health = Health::new();
        health.drains();
        assert_eq!(health.state(), &State::Draining);
        health.serves(now);
        assert_eq!(health.state(), &State::Up { since: now });
    }
}
