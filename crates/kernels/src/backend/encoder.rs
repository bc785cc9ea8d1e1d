//! Ops that encoders need beyond a decoder's: rows of whole sequences, without a cache. They are a separate trait, so
//! that a device may support decoders first.

use std::ops::Range;

use super::{Backend, HeadShape, QkvParams};

/// Granularity of [`EncoderOps::attend_part`]: each part begins at a multiple of so many queries.
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

/// A device that runs an encoder's steps.
pub trait EncoderOps: Backend {
    /// Input columns of a convolution along the tokens (im2col): `out[r][c * window + t] = x[r + t - window / 2][c]`,
    /// or 0 outside r's sequence. `window` is odd; `out` is `(rows, cols * window)`.
    fn unfold(&mut self, x: &Self::Buffer, window: usize, out: &mut Self::Buffer);

    /// Works in place on rows of `[q | k | v]`: norms queries and keys and rotates them by each row's position. Values
    /// stay as they are, and no cache is written.
    fn rope(&mut self, qkv: &mut Self::Buffer, params: &QkvParams<&Self::Vector>);

    /// Attention inside each sequence of the batch, all of which must be whole (`context == rows`). Queries, keys and
    /// values are the sequence's rows of `[q | k | v]`, in f32; `out` is `(rows, heads * head_dim)`. There is no
    /// cache.
    fn self_attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &SelfAttentionParams<&Self::Vector, &[u32]>,
        out: &mut Self::Buffer,
    );

    /// Whether [`EncoderOps::attend_part`] is supported, for callers that must interleave other work with a long
    /// sequence.
    fn attends_in_parts(&self) -> bool {
        false
    }

    /// Attention of some queries of one sequence to all of it, without reach, padding or bias. `rows` of `qkv` are the
    /// sequence's `[q | k | v]`, from any step. `queries` count from its first row, begin at a multiple of
    /// [`QUERIES_PART`], and are as many as the batch has rows. `out` is `(queries, heads * head_dim)`, bit for bit
    /// equal to [`EncoderOps::self_attention`] of the whole sequence.
    ///
    /// # Panics
    /// If [`EncoderOps::attends_in_parts`] is false.
    fn attend_part(
        &mut self,
        qkv: &Self::Buffer,
        (rows, queries): (Range<usize>, Range<usize>),
        params: &SelfAttentionParams<&Self::Vector, &[u32]>,
        out: &mut Self::Buffer,
    ) {
        let _ = (qkv, params, out);
        panic!(
            "queries {queries:?} of rows {rows:?} apart, on a device that attends to sequences as a whole"
        );
    }
}
