//! Random numbers of the sampler: xoshiro256** (Blackman and Vigna, 2018) seeded by splitmix64. They are specified
//! here so that a seed gives the same draws on every platform and in every release.

/// Random number generator; equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates the generator of a seed; every seed, zero included, is good.
    pub(crate) fn new(seed: u64) -> Self {
        let mut counter = seed;
        let state = std::array::from_fn(|_| {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = counter;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Random { state }
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1): the top 53 bits of one output, over 2^53.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first words of splitmix64(0), and of xoshiro256** on state [1, 2, 3, 4] (values of the reference
        // implementation).
        assert_eq!(Random::new(0).state[..2], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut random = Random { state: [1, 2, 3, 4] };
        let words: Vec<u64> = (0..5).map(|_| random.next()).collect();
        assert_eq!(words, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240, 1_216_172_134_540_287_360]);
    }

    #[test]
    fn uniform_is_in_range_and_centred() {
        let mut random = Random::new(7);
        let draws: Vec<f64> = (0..100_000).map(|_| random.uniform()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.005, "mean {mean}");
    }
}
