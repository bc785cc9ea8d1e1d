//! What attention's scores get from the distance of two tokens, and the numbers that follow: slopes, buckets of distances,
//! and tables spread out over distances for the kernels. Positive distances are `query - key` here, but for
//! [`learned_table`].

/// What attention's scores get from where two tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Nothing.
    None,
    /// `-slope * |i - j|`, a slope a head (arxiv.org/abs/2108.12409; of encoders seen from both sides).
    Alibi(Alibi),
    /// A learned number for each head and bucket of distances, the same in all layers (MPNet).
    Learned {
        /// Buckets.
        buckets: usize,
        /// From this distance on all are alike.
        distance_max: u32,
    },
    /// DeBERTa's (arxiv.org/abs/2006.03654).
    Disentangled(Disentangled),
    /// Nothing for what stands before a token, and so much less for what stands behind that it is not seen: an encoder whose tokens see
    /// those before them alone (CLIP's text).
    Behind,
}

/// What is added to the score of a token that is not to be seen: its weight is 0 beside any that is.
const UNSEEN: f32 = -1e30;

/// [`Distance::Behind`] by `key - query`, from -1 to 1: `(heads, 3)`.
pub(crate) fn behind_table(heads: usize) -> Vec<f32> {
    [0.0, 0.0, UNSEEN].repeat(heads)
}

/// How steep ALiBi's slopes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alibi {
    /// The last head's slope is 2 to the minus this, where heads are a power of two.
    pub exponent_max: u32,
}

impl Alibi {
    /// As in the paper.
    pub(crate) const PLAIN: Alibi = Alibi { exponent_max: 8 };

    /// The slope of each head: powers of a ratio, and those of twice as many heads in between where the heads are no power of
    /// two.
    pub(crate) fn slopes(self, heads: usize) -> Vec<f32> {
        let powers = |count: usize| {
            let first = 2f64.powf(-f64::from(self.exponent_max) / count as f64);
            (0..count).map(move |head| first.powi(head as i32 + 1) as f32)
        };
        if heads.is_power_of_two() {
            return powers(heads).collect();
        }
        let below = heads.next_power_of_two() / 2;
        powers(below).chain(powers(2 * below).step_by(2).take(heads - below)).collect()
    }
}

/// DeBERTa's scores between contents and distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disentangled {
    /// Queries meet the distances' keys (`c2p`).
    pub keys: bool,
    /// Keys meet the distances' queries (`p2c`).
    pub queries: bool,
    /// Both are made by the projections of the tokens' (`share_att_key`), not by projections of their own.
    pub shared: bool,
    /// The embedding of distances is layer normed first.
    pub normed: bool,
    /// Which row of it a distance takes.
    pub buckets: Buckets,
}

/// Which row of an embedding of distances a distance takes: DeBERTa's, exact near zero and by logarithm beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Rows are `2 * span`; distance 0 takes row `span`.
    pub span: u32,
    /// Distances are put into buckets up to this one, half of them by logarithm; none: each is its own.
    pub distance_max: Option<u32>,
}

impl Buckets {
    /// Rows of the embedding.
    pub fn rows(&self) -> usize {
        2 * self.span as usize
    }

    /// The row of a distance.
    pub fn row(&self, distance: i64) -> u32 {
        let bucket = match self.distance_max {
            None => distance,
            Some(distance_max) => self.logarithmic(distance, distance_max),
        };
        let span = i64::from(self.span);
        (bucket + span).clamp(0, 2 * span - 1) as u32
    }

    /// Rows of the distances from `-reach` to `reach`.
    pub fn table(&self, reach: u32) -> Vec<u32> {
        let reach = i64::from(reach);
        (-reach..=reach).map(|distance| self.row(distance)).collect()
    }

    /// In f32, as the models were trained with.
    fn logarithmic(&self, distance: i64, distance_max: u32) -> i64 {
        let middle = i64::from(self.span / 2);
        if distance.abs() <= middle {
            return distance;
        }
        let part = (distance.abs() as f32 / middle as f32).ln();
        let whole = (f64::from(distance_max - 1) / middle as f64) as f32;
        let log = (part / whole.ln() * (middle - 1) as f32).ceil() as i64 + middle;
        log * distance.signum()
    }
}

/// MPNet's learned biases, `weights` of (buckets, heads), spread out to `(heads, 2 * distance_max + 1)` by
/// `key - query` from `-distance_max`.
pub(crate) fn learned_table(weights: &[f32], heads: usize, buckets: usize, distance_max: u32) -> Vec<f32> {
    let reach = i64::from(distance_max);
    (0..heads)
        .flat_map(|head| {
            (-reach..=reach)
                .map(move |distance| weights[learned_bucket(distance, buckets, distance_max) * heads + head])
        })
        .collect()
}

/// T5's bucket of `key - query`: half of the buckets for each sign, of those half exact and half by logarithm.
fn learned_bucket(distance: i64, buckets: usize, distance_max: u32) -> usize {
    let half = buckets / 2;
    let ahead = if distance > 0 { half } else { 0 };
    let distance = distance.unsigned_abs() as usize;
    let exact = half / 2;
    if distance < exact {
        return ahead + distance;
    }
    // In f32, as the models were trained with.
    let part = (distance as f32 / exact as f32).ln();
    let whole = (f64::from(distance_max) / exact as f64).ln() as f32;
    let logarithmic = exact + (part / whole * (half - exact) as f32) as usize;
    ahead + logarithmic.min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper() {
        let eight: Vec<f32> = (1..=8).map(|power| 0.5f32.powi(power)).collect();
        assert_eq!(Alibi::PLAIN.slopes(8), eight);
        let twelve = Alibi::PLAIN.slopes(12);
        assert_eq!(twelve[..8], eight);
        for (slope, power) in twelve[8..].iter().zip([0.5, 1.5, 2.5, 3.5]) {
            assert!((slope - 2f32.powf(-power)).abs() < 1e-6, "{slope} for power {power}");
        }
        assert_eq!(Alibi::PLAIN.slopes(1), [2f32.powi(-8)]);
        let steeper = Alibi { exponent_max: 16 };
        assert_eq!(steeper.slopes(4), [4, 8, 12, 16].map(|power| 2f32.powi(-power)));
    }

    /// As computed by the transformers library for 32 buckets up to distance 128.
    #[test]
    fn learned_buckets_are_those_of_the_library() {
        let bucket = |distance| learned_bucket(distance, 32, 128);
        let near: Vec<usize> = (-9..=9).map(bucket).collect();
        assert_eq!(near, [8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23, 24, 24]);
        let far = [11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 500].map(bucket);
        assert_eq!(far.map(|bucket| bucket - 16), FAR);
    }

    const FAR: [usize; 17] = [8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15, 15];

    #[test]
    fn logarithmic_buckets_are_those_of_the_library() {
        let buckets = Buckets { span: 16, distance_max: Some(64) };
        let rows: Vec<u32> = [0, 1, 8, 9, 10, 12, 20, 40, 63, 64, 100].map(|d| buckets.row(d)).into();
        assert_eq!(rows, LOGARITHMIC);
        assert_eq!(buckets.row(-9), 32 - buckets.row(9));
        assert_eq!(buckets.row(-1000), 0);
        let plain = Buckets { span: 4, distance_max: None };
        assert_eq!(plain.table(5), [0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7]);
    }

    const LOGARITHMIC: [u32; 11] = [16, 17, 24, 25, 25, 26, 28, 30, 31, 31, 31];
}
