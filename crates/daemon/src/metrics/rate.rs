//! Rate over the last seconds: a ring of counters, one per second. One writer, any number of readers, no locks and
//! no timer.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// Seconds that the rate covers.
const WINDOW_S: u64 = 10;
/// Slots: the window, the current second, and spare ones so that a reader is not overtaken.
const SLOTS: usize = 16;
const _: () = assert!(WINDOW_S + 2 < SLOTS as u64);
/// Bits of a slot that hold the count; the others hold the second.
const COUNT_BITS: u32 = 40;

/// Rate per second over the last 10 whole seconds.
pub(crate) struct Rate {
    start: Instant,
    slots: [AtomicU64; SLOTS], // second << 40 | count
}

impl Default for Rate {
    fn default() -> Self {
        Self { start: Instant::now(), slots: Default::default() }
    }
}

impl Rate {
    /// Adds `n` at the time `now`.
    pub(crate) fn add(&self, n: u64, now: Instant) {
        self.add_at(self.second(now), n);
    }

    /// Current rate per second.
    pub(crate) fn per_second(&self, now: Instant) -> f64 {
        self.per_second_at(self.second(now))
    }

    // Begins above WINDOW_S, so that a slot of zeros is older than any window.
    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() + WINDOW_S + 1
    }

    fn add_at(&self, second: u64, n: u64) {
        let slot = &self.slots[second as usize % SLOTS];
        let held = slot.load(Relaxed);
        let before = if held >> COUNT_BITS == second { held & ((1 << COUNT_BITS) - 1) } else { 0 };
        slot.store(second << COUNT_BITS | (before + n).min((1 << COUNT_BITS) - 1), Relaxed);
    }

    fn per_second_at(&self, second: u64) -> f64 {
        let counted = |slot: &AtomicU64| {
            let held = slot.load(Relaxed);
            let of = held >> COUNT_BITS;
            if of < second && of + WINDOW_S >= second { held & ((1 << COUNT_BITS) - 1) } else { 0 }
        };
        self.slots.iter().map(counted).sum::<u64>() as f64 / WINDOW_S as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_ten_whole_seconds_count() {
        let rate = Rate::default();
        assert_eq!(rate.per_second(Instant::now()), 0.0);
        for second in 100..120 {
            rate.add_at(second, 3);
            rate.add_at(second, 4);
        }
        assert_eq!(rate.per_second_at(120), 7.0);
        assert_eq!(rate.per_second_at(125), 3.5);
        assert_eq!(rate.per_second_at(131), 0.0);
    }
}
