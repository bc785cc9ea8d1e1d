//! Parameters of ops that encoders need beyond a decoder's: rows of whole sequences, without a cache.

use super::HeadShape;

/// Granularity of [`Op::AttendPart`](crate::Op::AttendPart): each part begins at a multiple of so many queries.
pub const QUERIES_PART: usize = 48;

/// Scale and shift of a layer norm (arxiv.org/abs/1607.06450).
#[derive(Clone, Copy, Debug)]
pub struct LayerNormParams<V> {
    /// Factor of each column.
    pub weight: V,
    /// Addend of each column.
    pub bias: Option<V>,
    /// Number added to the variance.
    pub eps: f32,
}

/// Columns of each row that a norm in place changes: as many as it has weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormColumns {
    /// First of the columns.
    pub first: usize,
    /// Columns of one norm, a divisor of their number: each part of so many is normed separately.
    pub width: usize,
}

/// Choice of an embedding table's row for each row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowIds {
    /// The row's position in its sequence, plus `offset`.
    Positions {
        /// Table row of position 0.
        offset: u32,
    },
    /// The row's token type, [`Batch::types`](crate::Batch::types).
    Types,
}

/// Addend to attention scores that depends on the positions of the query (row i of its sequence) and the key (row j).
#[derive(Clone, Copy, Debug)]
pub enum PositionBias<V, T> {
    /// Nothing.
    None,
    /// Symmetric ALiBi: `-slope[head] * |i - j|` (arxiv.org/abs/2108.12409).
    Alibi {
        /// (heads)
        slopes: V,
    },
    /// Learned bias of T5 and MPNet, with its buckets expanded: `table[head][clamp(j - i, -reach, reach) + reach]`.
    ByDistance {
        /// (heads, 2 * reach + 1)
        table: V,
        /// Distance from which on all biases are equal.
        reach: u32,
    },
    /// DeBERTa's content-to-position and position-to-content terms (arxiv.org/abs/2006.03654): `(q_i · keys[b] + k_j ·
    /// queries[b]) * scale`, `b = bucket_of[clamp(i - j, -reach, reach) + reach]`. Of `keys[b]` the part of the
    /// query's head is used, and of `queries[b]` likewise, with the key-value head that the query's head reads.
    Disentangled {
        /// (buckets, heads * head_dim); without it, that term is 0.
        keys: Option<V>,
        /// (buckets, heads * head_dim); without it, that term is 0.
        queries: Option<V>,
        /// Rows of `keys` and `queries`.
        buckets: u32,
        /// (2 * reach + 1), each below `buckets`.
        bucket_of: T,
        /// Distance from which on all buckets are equal.
        reach: u32,
    },
}

/// `softmax(scale * q·k + bias) · v` over the keys of the row's sequence that it may see.
#[derive(Clone, Copy, Debug)]
pub struct SelfAttentionParams<V, T> {
    /// The heads.
    pub heads: HeadShape,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys that a query sees on each side of itself: `|i - j| <= reach`. None: the whole sequence.
    pub reach: Option<u32>,
    /// Padding rows at the end of each sequence, which fill up an image's tiles (Llama 3.2 Vision). They do not see
    /// each other or themselves, but they see all rows before them and are seen by those. Fewer than the sequence's
    /// rows. 0 with a reach or a bias, or if the device does not support cross-attention.
    pub padding: u32,
    /// Addend to the scores.
    pub bias: PositionBias<V, T>,
}
