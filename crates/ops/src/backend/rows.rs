//! Element-wise ops on rows in the contract, for model families that have more than attention, MLPs and norms.

/// Upper bound of the argument of the exponential in [`RowOp::Xielu`].
pub const XIELU_MOST: f32 = -1e-6;

/// An element-wise op on the batch's rows of a buffer `out`. `B` is another buffer, whose columns from `first` on are
/// read, and `V` a vector. A row may hold several streams: vectors of one width, side by side.
#[derive(Clone, Copy, Debug)]
pub enum RowOp<B, V> {
    /// `out[r] *= factor`.
    Scale(f32),
    /// `out[r] *= by[r][first..]`.
    Multiply {
        /// At least as many columns as `out`, counted from `first`.
        by: B,
        /// First column that is read.
        first: usize,
    },
    /// `out[r] *= weights`, one weight for each column.
    Weigh(V),
    /// `out[r] = tanh(out[r])`.
    Tanh,
    /// `out[r] = x[r][first..]`.
    Take {
        /// At least as many columns as `out`, counted from `first`.
        x: B,
        /// First column that is read.
        first: usize,
    },
    /// `out[r][first..] = x[r]`; the other columns of `out` stay as they are.
    Put {
        /// Any number of columns.
        x: B,
        /// First column that is written.
        first: usize,
    },
    /// `out[r] += factor * x[r][first..]`.
    Add {
        /// At least as many columns as `out`, counted from `first`.
        x: B,
        /// First column that is read.
        first: usize,
        /// The factor.
        factor: f32,
    },
    /// `out[r][s] += x[r]` for each stream s of `out` from stream `first` on; streams are as wide as `x`.
    Spread {
        /// A single stream.
        x: B,
        /// First stream that is changed.
        first: usize,
    },
    /// Mix of streams (AltUp, arxiv.org/abs/2301.13310). For each stream s of `out`, over the n streams t of `x`:
    /// `out[r][s] = base[r][s] + Σ_t (plus + weights[r][s * n + t]) * x[r][t]`.
    Mix {
        /// As many streams as `out`.
        base: B,
        /// The streams that are mixed.
        x: B,
        /// Weight for each pair of streams of `out` and `x`; the number of its columns gives the number of streams.
        weights: B,
        /// Added to every weight.
        plus: f32,
    },
    /// `out[r] *= rms(x[r]) / max(rms(out[r]), least)`, where `rms` is the root mean square.
    MatchSize {
        /// Rows with the wanted magnitude, as wide as `out`.
        x: B,
        /// Lower bound of the magnitude that is divided by.
        least: f32,
    },
    /// `out[r] = xielu(out[r])` (arxiv.org/abs/2411.13010, Apertus): `positive * v² + linear * v` for v above 0,
    /// otherwise `negative * (exp_m1(min(v, -1e-6)) - v) + linear * v`, where `exp_m1(v)` is `exp(v) - 1` without
    /// cancellation.
    Xielu {
        /// Factor on the square.
        positive: f32,
        /// Factor on the exponential.
        negative: f32,
        /// Factor on the linear term.
        linear: f32,
    },
    /// In the first half of the columns of `out[r]`, `max(v - mean - deviations * deviation, 0)` for each element v,
    /// with that half's mean and standard deviation (Gemma 3n's sparse activations).
    KeepOutliers {
        /// Number of standard deviations.
        deviations: f32,
    },
}

/// Columns of a stream, for buffers with these numbers of columns and a weight for each pair of their streams.
///
/// # Panics
/// If there are no such streams.
pub fn width_of(x_cols: usize, out_cols: usize, weights: usize) -> usize {
    let squared = x_cols * out_cols / weights;
    let width = squared.isqrt();
    let fits = width * width * weights == x_cols * out_cols
        && x_cols.is_multiple_of(width)
        && out_cols.is_multiple_of(width);
    assert!(fits, "{weights} weights for streams of {x_cols} and {out_cols} columns");
    width
}
