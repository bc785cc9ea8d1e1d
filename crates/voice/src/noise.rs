//! Seeded random numbers: SplitMix64 (prng.di.unimi.it/splitmix64.c), and normal numbers by Box and Muller.
//! They are the same on every machine, independent of other jobs.

/// Stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Noise {
    state: u64,
    spare: Option<f64>,
}

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise { state: seed, spare: None }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform number above 0, at most 1.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Normal number with mean 0 and variance 1.
    pub(crate) fn normal(&mut self) -> f32 {
        if let Some(spare) = self.spare.take() {
            return spare as f32;
        }
        let (radius, angle) =
            ((-2.0 * self.uniform().ln()).sqrt(), 2.0 * std::f64::consts::PI * self.uniform());
        self.spare = Some(radius * angle.sin());
        (radius * angle.cos()) as f32
    }
}
