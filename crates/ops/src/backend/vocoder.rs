//! Parameters of ops that codecs, vocoders and the networks before them need.

use super::{Activation, HeadShape};

/// Non-linearity of each number of a row.
#[derive(Clone, Copy, Debug)]
pub enum PointActivation<V> {
    /// `x + sin²(alpha * x) / (alpha + 1e-9)` (arxiv.org/abs/2006.08195).
    Snake {
        /// Frequency of each column.
        alpha: V,
    },
    /// `x` above 0, otherwise `slope * x`.
    LeakyRelu {
        /// The slope.
        slope: f32,
    },
    /// `x` above 0, otherwise `alpha * (exp(x) - 1)` (arxiv.org/abs/1511.07289).
    Elu {
        /// Magnitude of the limit.
        alpha: f32,
    },
    /// `tanh(x)`
    Tanh,
    /// The non-linearity of an MLP.
    Mlp(Activation),
}

impl<V: Copy> PointActivation<V> {
    /// The same with another kind of vector.
    pub fn with<T>(&self, vector: impl FnOnce(V) -> T) -> PointActivation<T> {
        match *self {
            PointActivation::Snake { alpha } => PointActivation::Snake { alpha: vector(alpha) },
            PointActivation::LeakyRelu { slope } => PointActivation::LeakyRelu { slope },
            PointActivation::Elu { alpha } => PointActivation::Elu { alpha },
            PointActivation::Tanh => PointActivation::Tanh,
            PointActivation::Mlp(activation) => PointActivation::Mlp(activation),
        }
    }
}

/// Attention with learned keys and values of near places (arxiv.org/abs/1803.02155).
#[derive(Clone, Copy, Debug)]
pub struct RelativeParams<V> {
    /// Heads, as many of keys and values as of queries.
    pub heads: HeadShape,
    /// Factor on the dot products.
    pub scale: f32,
    /// Largest distance of a near place.
    pub reach: usize,
    /// Key of each distance from `-reach` to `reach`, `(2 * reach + 1, head_dim)`, the same for all heads.
    pub keys: V,
    /// Value of each distance, in the same shape.
    pub values: V,
}

impl<V: Copy> RelativeParams<V> {
    /// The same with another kind of vector.
    pub fn with<T>(&self, vector: impl Fn(V) -> T) -> RelativeParams<T> {
        let RelativeParams { heads, scale, reach, keys, values } = *self;
        RelativeParams { heads, scale, reach, keys: vector(keys), values: vector(values) }
    }

    /// Number of the distance from a row to a key, if the key is near.
    #[inline]
    pub fn near(&self, row: usize, key: usize) -> Option<usize> {
        (key + self.reach).checked_sub(row).filter(|&distance| distance <= 2 * self.reach)
    }
}
