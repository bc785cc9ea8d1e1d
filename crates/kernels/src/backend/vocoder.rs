//! Parameters of ops that codecs and vocoders need.

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
}

impl<V: Copy> PointActivation<V> {
    /// The same with another kind of vector.
    pub fn with<T>(&self, vector: impl FnOnce(V) -> T) -> PointActivation<T> {
        match *self {
            PointActivation::Snake { alpha } => PointActivation::Snake { alpha: vector(alpha) },
            PointActivation::LeakyRelu { slope } => PointActivation::LeakyRelu { slope },
            PointActivation::Elu { alpha } => PointActivation::Elu { alpha },
        }
    }
}
