//! The ops that encoders are made of besides a decoder's: rows of whole sequences, no cache. A trait of its own, so that a
//! device may begin with decoders.

use std::ops::Range;

use super::{Backend, HeadShape, QkvParams};

/// Queries that the parts of [`EncoderOps::attend_part`] begin at multiples of.
pub const QUERIES_PART: usize = 48;

/// Scale and shift of a layer norm (arxiv.org/abs/1607.06450).
#[derive(Clone, Copy, Debug)]
pub struct LayerNormParams<V> {
    /// One factor a column.
    pub weight: V,
    /// One addend a column.
    pub bias: Option<V>,
    /// What is added to the variance.
    pub eps: f32,
}

/// What picks a row of an embedding table for each row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowIds {
    /// The row's position in its sequence plus `offset`.
    Positions {
        /// Table row of position 0.
        offset: u32,
    },
    /// The row's token type, [`Batch::types`](crate::Batch::types).
    Types,
}

/// What is added to a score, by where the query (row i of its sequence) and the key (row j) stand.
#[derive(Clone, Copy, Debug)]
pub enum PositionBias<V, T> {
    /// Nothing.
    None,
    /// `-slope[head] * |i - j|` (arxiv.org/abs/2108.12409, seen from both sides).
    Alibi {
        /// (heads)
        slopes: V,
    },
    /// `table[head][clamp(j - i, -reach, reach) + reach]`: T5's and MPNet's learned bias, its buckets spread out.
    ByDistance {
        /// (heads, 2 * reach + 1)
        table: V,
        /// The distance from which on all are alike.
        reach: u32,
    },
    /// DeBERTa's content to position and position to content (arxiv.org/abs/2006.03654):
    /// `(q_i · keys[b] + k_j · queries[b]) * scale`, `b = bucket_of[clamp(i - j, -reach, reach) + reach]`, with the
    /// parts of `keys[b]` and `queries[b]` that are the query's head's and the key's row of the head it reads.
    Disentangled {
        /// (buckets, heads * head_dim); or none, and that term is 0.
        keys: Option<V>,
        /// (buckets, heads * head_dim); likewise.
        queries: Option<V>,
        /// Rows of `keys` and `queries`.
        buckets: u32,
        /// (2 * reach + 1), each below `buckets`.
        bucket_of: T,
        /// The distance from which on all are alike.
        reach: u32,
    },
}

/// `softmax(scale * q·k + bias) · v` over the keys of the row's own sequence that it may see.
#[derive(Clone, Copy, Debug)]
pub struct SelfAttentionParams<V, T> {
    /// The heads.
    pub heads: HeadShape,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Keys a query sees on each side of itself: `|i - j| <= reach`. None: the whole sequence.
    pub reach: Option<u32>,
    /// The last rows of each sequence that do not see each other, themselves included, but all before them, which see them too:
    /// what fills a picture's tiles up (Llama 3.2 Vision). Fewer than the sequence has; 0 where there is a reach or a bias, or the
    /// device knows no memories.
    pub padding: u32,
    /// What is added to the scores.
    pub bias: PositionBias<V, T>,
}

/// A device that an encoder's steps run on.
pub trait EncoderOps: Backend {
    /// What a convolution along the tokens multiplies: `out[r][c * window + t] = x[r + t - window / 2][c]`, or 0 where
    /// that is not a row of r's own sequence. `window` is odd; `out` is `(rows, cols * window)`.
    fn unfold(&mut self, x: &Self::Buffer, window: usize, out: &mut Self::Buffer);

    /// On rows of `[q | k | v]`, in place: norms queries and keys and turns them by each row's position. Values stay, and
    /// no cache is written.
    fn rope(&mut self, qkv: &mut Self::Buffer, params: &QkvParams<&Self::Vector>);

    /// Attention inside each sequence of the batch, all of which must be whole (`context == rows`): queries, keys and
    /// values are its rows of `[q | k | v]`, in f32; `out` is `(rows, heads * head_dim)`. There is no cache.
    fn self_attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &SelfAttentionParams<&Self::Vector, &[u32]>,
        out: &mut Self::Buffer,
    );

    /// Whether [`EncoderOps::attend_part`] is there, for who has other work that is not to wait for a whole sequence.
    fn attends_in_parts(&self) -> bool {
        false
    }

    /// Attention of some queries of one sequence to all of it, without reach, padding or bias: `rows` of `qkv` are the sequence's
    /// `[q | k | v]`, of whatever step; `queries` are counted from its first row, begin at a multiple of [`QUERIES_PART`], and are as many as
    /// the batch has rows. `out` is `(queries, heads * head_dim)`, with the bits that [`EncoderOps::self_attention`] of the whole gives them.
    ///
    /// # Panics
    /// Where [`EncoderOps::attends_in_parts`] says no.
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
