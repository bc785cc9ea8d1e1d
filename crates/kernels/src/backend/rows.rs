//! What is done to rows number by number, in the contract: what families have beside attention, MLPs and norms.

/// An op on the batch's rows of a buffer `out`, each by itself. `B` is another buffer, of which the columns from `first` on are
/// read, and `V` a vector. Several rows of a width may stand beside each other in one buffer; they are called streams.
#[derive(Clone, Copy, Debug)]
pub enum RowOp<B, V> {
    /// `out[r] *= factor`.
    Scale(f32),
    /// `out[r] *= by[r][first..]`.
    Multiply {
        /// As many columns as `out` from `first` on.
        by: B,
        /// Where they begin.
        first: usize,
    },
    /// `out[r] *= weights`, of a number a column.
    Weigh(V),
    /// `out[r] = tanh(out[r])`.
    Tanh,
    /// `out[r] = x[r][first..]`.
    Take {
        /// As many columns as `out` from `first` on.
        x: B,
        /// Where they begin.
        first: usize,
    },
    /// `out[r][first..] = x[r]`; what `out` has besides stays.
    Put {
        /// Any columns.
        x: B,
        /// Where they go.
        first: usize,
    },
    /// `out[r] += factor * x[r][first..]`.
    Add {
        /// As many columns as `out` from `first` on.
        x: B,
        /// Where they begin.
        first: usize,
        /// The factor.
        factor: f32,
    },
    /// `out[r][s] += x[r]` for each stream s of `out` from `first` on, which are as wide as `x`.
    Spread {
        /// One stream.
        x: B,
        /// The first stream that is changed.
        first: usize,
    },
    /// `out[r][s] = base[r][s] + Σ_t (plus + weights[r][s * n + t]) * x[r][t]` for each stream s of `out`, over the n streams t of
    /// `x` (AltUp, arxiv.org/abs/2301.13310).
    Mix {
        /// As many streams as `out`.
        base: B,
        /// The streams that are mixed.
        x: B,
        /// A weight for each of one and each of the other; its columns tell how many there are.
        weights: B,
        /// Added to every weight.
        plus: f32,
    },
    /// `out[r] *= rms(x[r]) / max(rms(out[r]), least)`, `rms` being the root of the mean of the squares.
    MatchSize {
        /// Rows of the size that is wanted, as wide as `out`.
        x: B,
        /// No row is taken for smaller.
        least: f32,
    },
    /// `out[r] = xielu(out[r])` (arxiv.org/abs/2411.13010, Apertus): of a number v above 0 `positive * v² + linear * v`, of another
    /// `negative * (exp(min(v, -1e-6)) - 1 - v) + linear * v`.
    Xielu {
        /// What squares count for.
        positive: f32,
        /// What the exponential counts for.
        negative: f32,
        /// What the number itself does.
        linear: f32,
    },
    /// In the first half of the columns of `out[r]`, `max(v - mean - deviations * deviation, 0)` for each number v, of that half's
    /// mean and standard deviation (Gemma 3n's sparse activations).
    KeepOutliers {
        /// How many.
        deviations: f32,
    },
}
