//! Random numbers: everything in a simulation is drawn from one seed, in a fixed order.

use std::ops::RangeInclusive;

/// Random generator (splitmix64).
pub(super) struct Random(u64);

impl Random {
    /// Creates a generator; the same seed gives the same numbers.
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed, 0x5eed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0, 0)
    }

    /// Random number below `bound`. The bias is negligible, because `bound` is small.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Random number in a range.
    pub(super) fn of(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Same as [`Random::of`], for sizes.
    pub(super) fn size(&mut self, range: RangeInclusive<usize>) -> usize {
        self.of(*range.start() as u64..=*range.end() as u64) as usize
    }

    /// True with this probability in percent.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Picks a random element.
    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

/// Hash of two numbers that depends on every bit of both.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
