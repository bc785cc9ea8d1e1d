//! Addends to attention scores that depend on the distance of two tokens, and the derived numbers: slopes, buckets of
//! distances, and tables expanded over distances for the kernels. Positive distances are `query - key` here, except in
//! [`learned_table`].

/// Position bias: addend to attention scores by the positions of two tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Nothing.
    None,
    /// ALiBi: `-slope * |i - j|`, with a slope for each head (arxiv.org/abs/2108.12409; symmetric in encoders).
    Alibi(Alibi),
    /// A learned number for each head and bucket of distances, the same in all layers (MPNet).
    Learned {
        /// Buckets.
        buckets: usize,
        /// Distance from which on all are in one bucket.
        distance_max: u32,
    },
    /// DeBERTa's (arxiv.org/abs/2006.03654).
    Disentangled(DisentangledAttention),
    /// Causal mask in an encoder (CLIP's text): nothing for tokens before, and a large negative number for tokens
    /// after, so that they are not seen.
    Behind,
}

/// Addend to the score of an invisible token: its weight is 0 beside any visible one.
const UNSEEN: f32 = -1e30;

/// Table of [`Distance::Behind`] by `key - query`, from -1 to 1: `(heads, 3)`.
pub fn behind_table(heads: usize) -> Vec<f32> {
    [0.0, 0.0, UNSEEN].repeat(heads)
}

/// Steepness of ALiBi's slopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alibi {
    /// The last head's slope is 2 to the power of minus this, if the number of heads is a power of two.
    pub exponent_max: u32,
}

impl Alibi {
    /// The value of the paper.
    pub const PLAIN: Alibi = Alibi { exponent_max: 8 };

    /// Slope of each head: powers of a ratio. If the number of heads is not a power of two, slopes of twice as many
    /// heads fill the gap.
    pub fn slopes(self, heads: usize) -> Vec<f32> {
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

/// DeBERTa's terms between contents and distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisentangledAttention {
    /// Whether queries are multiplied with the distances' keys (`c2p`).
    pub keys: bool,
    /// Whether keys are multiplied with the distances' queries (`p2c`).
    pub queries: bool,
    /// Whether both use the projections of tokens (`share_att_key`), not separate ones.
    pub shared: bool,
    /// Whether the embedding of distances is first layer-normed.
    pub normed: bool,
    /// Assignment of distances to its rows.
    pub buckets: Buckets,
}

/// Assignment of distances to the rows of an embedding, as in DeBERTa: exact near zero and logarithmic beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Half the number of rows; distance 0 takes row `span`.
    pub span: u32,
    /// Distance up to which buckets are used, half of them logarithmic. None: each distance has its own row.
    pub distance_max: Option<u32>,
}

impl Buckets {
    /// Number of rows of the embedding.
    pub fn rows(&self) -> usize {
        2 * self.span as usize
    }

    /// Row of a distance.
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

    /// Logarithmic bucket, in f32 as in training.
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

/// MPNet's learned biases, `weights` of (buckets, heads), expanded to `(heads, 2 * distance_max + 1)` by `key - query`
/// from `-distance_max`.
pub fn learned_table(weights: &[f32], heads: usize, buckets: usize, distance_max: u32) -> Vec<f32> {
    let reach = i64::from(distance_max);
    (0..heads)
        .flat_map(|head| {
            (-reach..=reach)
                .map(move |distance| weights[learned_bucket(distance, buckets, distance_max) * heads + head])
        })
        .collect()
}

/// T5's bucket of `key - query`: half of the buckets for each sign; of those, half are exact and half logarithmic.
fn learned_bucket(distance: i64, buckets: usize, distance_max: u32) -> usize {
    let half = buckets / 2;
    let ahead = if distance > 0 { half } else { 0 };
    let distance = distance.unsigned_abs() as usize;
    let exact = half / 2;
    if distance < exact {
        return ahead + distance;
    }
    // In f32, as in training.
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

    /// Buckets computed by the transformers library for 32 buckets up to distance 128.
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
