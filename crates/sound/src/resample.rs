//! Resampling with a windowed sinc (Kaiser), as a polyphase filter bank. Output sample `n` is the sound at
//! exactly `n / to` seconds: the filter is symmetric and its delay is removed. Frequencies above half the lower
//! rate are 100 dB down, those below 0.92 of it are unchanged.

/// Attenuation of the stopband in dB.
const STOPBAND_DB: f64 = 100.0;
/// End of the passband, as a share of half the lower rate.
const PASSBAND: f64 = 0.92;
/// Maximum number of stored phases. Ratios that need more are interpolated linearly between two of them.
const PHASES_MAX: u64 = 1024;
/// Number of parallel sums.
const LANES: usize = 8;

/// Resampler for one channel.
pub struct Resampler {
    /// Ratio in lowest terms: `to` output samples for `from` input samples.
    to: u64,
    from: u64,
    phases: u64,
    /// (phases + 1, taps): one phase in each row. The last row is the first phase of the next sample.
    bank: Vec<f32>,
    taps: usize,
    /// Number of samples before an output's position that it depends on.
    before: usize,
    /// Input needed for later outputs. It begins with input sample `first`, which may be before the sound.
    kept: Vec<f32>,
    first: i64,
    /// Input samples so far.
    taken: u64,
    /// Output samples so far.
    made: u64,
    same: bool,
}

impl Resampler {
    /// Creates a resampler between two rates. Neither may be 0.
    pub fn new(from: u32, to: u32) -> Resampler {
        assert!(from > 0 && to > 0, "rates are checked before");
        let divisor = gcd(u64::from(from), u64::from(to));
        let (from, to) = (u64::from(from) / divisor, u64::from(to) / divisor);
        let same = from == to;
        // In input samples. The cutoff is in the middle of the transition band.
        let scale = (to as f64 / from as f64).min(1.0);
        let width = 1.0 - PASSBAND;
        let cut = scale * (1.0 - width / 2.0);
        let beta = 0.1102 * (STOPBAND_DB - 8.7);
        let order = (STOPBAND_DB - 7.95) / (2.285 * std::f64::consts::PI * width * scale);
        let half = if same { 0 } else { (order / 2.0).ceil() as usize };
        let taps = (2 * half).next_multiple_of(LANES);
        let phases = to.min(PHASES_MAX);
        let mut bank = Vec::with_capacity(if same { 0 } else { (phases as usize + 1) * taps });
        for phase in 0..if same { 0 } else { phases + 1 } {
            let shift = phase as f64 / phases as f64;
            let row: Vec<f64> = (0..taps)
                .map(|tap| {
                    // The output is between taps `half - 1` and `half`, or at the first of them.
                    let at = tap as f64 - (half as f64 - 1.0) - shift;
                    cut * sinc(cut * at) * kaiser(at / half as f64, beta)
                })
                .collect();
            // Normalise, so that every phase keeps a constant unchanged.
            let sum: f64 = row.iter().sum();
            bank.extend(row.iter().map(|weight| (weight / sum) as f32));
        }
        let before = half.saturating_sub(1);
        Resampler {
            to,
            from,
            phases,
            bank,
            taps,
            before,
            kept: vec![0.0; before],
            first: -(before as i64),
            taken: 0,
            made: 0,
            same,
        }
    }

    /// Takes samples, and appends the outputs that are complete.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.taken += samples.len() as u64;
        if self.same {
            out.extend_from_slice(samples);
            self.made += samples.len() as u64;
            return;
        }
        self.kept.extend_from_slice(samples);
        self.make(u64::MAX, out);
    }

    /// Ends the sound, and appends the rest. In total there are as many outputs as the sound's length, rounded
    /// up.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if self.same {
            return;
        }
        self.kept.resize(self.kept.len() + self.taps, 0.0);
        let all = (u128::from(self.taken) * u128::from(self.to)).div_ceil(u128::from(self.from));
        self.make(u64::try_from(all).unwrap_or(u64::MAX), out);
    }

    fn make(&mut self, end: u64, out: &mut Vec<f32>) {
        let before = -(self.before as i64);
        while self.made < end {
            let position = u128::from(self.made) * u128::from(self.from);
            let whole = (position / u128::from(self.to)) as i64;
            let rest = (position % u128::from(self.to)) as u64;
            let start = (whole + before - self.first) as usize;
            let Some(window) = self.kept.get(start..start + self.taps) else { break };
            let scaled = u128::from(rest) * u128::from(self.phases);
            let (phase, between) = ((scaled / u128::from(self.to)) as usize, scaled % u128::from(self.to));
            let row = |phase: usize| &self.bank[phase * self.taps..(phase + 1) * self.taps];
            let low = dot(window, row(phase));
            out.push(match between {
                0 => low,
                between => {
                    let share = between as f32 / self.to as f32;
                    low + share * (dot(window, row(phase + 1)) - low)
                }
            });
            self.made += 1;
        }
        let next = (u128::from(self.made) * u128::from(self.from) / u128::from(self.to)) as i64 + before;
        let done = usize::try_from(next - self.first).unwrap_or(0).min(self.kept.len());
        self.kept.drain(..done);
        self.first += done as i64;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x.abs() < 1e-12 { 1.0 } else { x.sin() / x }
}

/// Kaiser window at `at` in -1..=1.
fn kaiser(at: f64, beta: f64) -> f64 {
    if at.abs() > 1.0 { 0.0 } else { bessel(beta * (1.0 - at * at).sqrt()) / bessel(beta) }
}

/// Modified Bessel function of the first kind, order 0.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term) = (1.0, 1.0);
    for k in 1..200 {
        let part = x / (2.0 * f64::from(k));
        term *= part * part;
        sum += term;
        if term < sum * 1e-18 {
            break;
        }
    }
    sum
}
