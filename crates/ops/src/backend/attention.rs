//! Attention in the contract: heads, rotary embedding, and the treatment of queries, keys and latents.

/// Pairing of a head's elements for rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Element i with element i + rotary_dim / 2 (GPT-NeoX, most Hugging Face models).
    Neox,
    /// Element 2i with element 2i + 1 (GPT-J; llama-architecture GGUF files).
    Interleaved,
}

/// Assignment of a row's three positions ([`Batch::axes`](crate::Batch::axes)) to the pairs that they rotate: M-RoPE
/// (arxiv.org/abs/2409.12191).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeAxes {
    /// Number of pairs for time, height and width.
    pub sections: [u32; 3],
    /// Whether axes alternate: pair i belongs to axis `i % 3` as long as that axis has pairs left, and to time after
    /// that (Qwen3-VL). Otherwise one section follows the other (Qwen2-VL).
    pub interleaved: bool,
}

impl RopeAxes {
    /// The axis of a pair.
    #[inline]
    pub fn of_pair(&self, pair: usize) -> usize {
        let [time, height, width] = self.sections.map(|pairs| pairs as usize);
        if self.interleaved {
            let axis = pair % 3;
            let pairs = [time, height, width][axis];
            return if pair / 3 < pairs { axis } else { 0 };
        }
        usize::from(pair >= time) + usize::from(pair >= time + height)
    }
}

/// Rotary position embedding (arxiv.org/abs/2104.09864).
#[derive(Clone, Copy, Debug)]
pub struct Rope<V> {
    /// How elements pair up.
    pub kind: RopeKind,
    /// Radians per position of each pair, with frequency scaling applied; `rotary_dim / 2` of them. Elements past
    /// `rotary_dim` are not rotated.
    pub inv_freq: V,
    /// Factor on cosine and sine (YaRN's attention factor); 1 for plain rope.
    pub magnitude: f32,
    /// Assignment of positions to pairs, if rows have three positions. None: the row's position.
    pub axes: Option<RopeAxes>,
    /// Magnitude of a second table of frequencies (LongRoPE's for long texts). The table follows the first in
    /// `inv_freq` and has as many pairs. It applies to rows whose [`Batch::types`](crate::Batch::types) is not 0.
    /// None: there is one table.
    pub long: Option<f32>,
}

impl<V> Rope<V> {
    /// Rotated pairs of a head, if `inv_freq` holds so many frequencies.
    #[inline]
    pub fn pairs(&self, frequencies: usize) -> usize {
        frequencies / (1 + usize::from(self.long.is_some()))
    }
}

impl<'a> Rope<&'a Vec<f32>> {
    /// Frequencies and magnitude for a row of this type.
    #[inline]
    pub fn of_type(&self, row_type: u32) -> (&'a [f32], f32) {
        let (first, second) = self.inv_freq.split_at(self.pairs(self.inv_freq.len()));
        match self.long.filter(|_| row_type != 0) {
            Some(magnitude) => (second, magnitude),
            None => (first, self.magnitude),
        }
    }
}

/// Heads of one attention layer. A row of queries is `(heads, head_dim)`; a row of keys or values is `(kv_heads,
/// head_dim)`. Head h reads key-value head `h * kv_heads / heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl HeadShape {
    /// Width of a row that holds queries, keys and values one after the other.
    #[inline]
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Width of a row of queries, or of attention's output.
    #[inline]
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Processing of queries and keys between projection and cache.
#[derive(Clone, Copy, Debug)]
pub struct QkvParams<V> {
    /// The heads.
    pub shape: HeadShape,
    /// RMS norm of queries: of each head with `head_dim` weights (Qwen3), or of all heads as one with `heads *
    /// head_dim` weights (OLMo 2).
    pub q_norm: Option<V>,
    /// RMS norm of keys, likewise.
    pub k_norm: Option<V>,
    /// Epsilon of both norms.
    pub norm_eps: f32,
    /// Whether the norms, of each head, come after the rotation rather than before it (Hunyuan).
    pub norm_after_rope: bool,
    /// Rotary embedding, or none.
    pub rope: Option<Rope<V>>,
    /// Factor on queries, applied last, or none.
    pub query_scale: Option<QueryScale>,
    /// Whether values are normed like keys, each head by itself and without weights (Gemma 4).
    pub values_normed: bool,
    /// Whether rows hold queries alone, `(heads, head_dim)`, because they attend to another layer's keys and values
    /// (Gemma 3n).
    pub queries_alone: bool,
}

impl<V> QkvParams<V> {
    /// Heads without norms, rotation or scale.
    pub fn plain(shape: HeadShape) -> Self {
        Self {
            shape,
            q_norm: None,
            k_norm: None,
            norm_eps: 1e-6,
            norm_after_rope: false,
            rope: None,
            query_scale: None,
            values_normed: false,
            queries_alone: false,
        }
    }

    /// Columns of a row.
    #[inline]
    pub fn width(&self) -> usize {
        if self.queries_alone { self.shape.q_width() } else { self.shape.qkv_width() }
    }
}

/// Factor on queries that grows with their position and keeps attention over long contexts sharp: `1 + factor * ln(1 +
/// floor((position + offset) / every))` (Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    /// Growth of the factor.
    pub factor: f32,
    /// Tokens between two steps of the factor; not 0.
    pub every: u32,
    /// Tokens counted before the first: 1 if steps count tokens rather than positions.
    pub offset: u32,
}

impl QueryScale {
    /// Factor at a position.
    #[inline]
    pub fn at(&self, position: u32) -> f32 {
        let steps = (u64::from(position) + u64::from(self.offset)) / u64::from(self.every);
        (1.0 + f64::from(self.factor) * (steps as f64).ln_1p()) as f32
    }
}

/// `softmax(softcap(scale * q·k) - slope * distance, sinks) · v` over the keys up to the row's own position.
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams<V> {
    /// The heads.
    pub shape: HeadShape,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Soft cap: `cap * tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Sliding window: a row sees only the last `window` keys, itself included.
    pub window: Option<u32>,
    /// Whether a row sees only its own chunk of the window: keys from the last position that is a multiple of `window`
    /// (Llama 4).
    pub chunked: bool,
    /// Attention sinks: one logit for each head that takes part in the softmax and has no value (GPT-OSS); `heads` of
    /// them.
    pub sinks: Option<V>,
    /// ALiBi slopes: the amount that a head's scores lose with each token between a key and the row
    /// (arxiv.org/abs/2108.12409); `heads` of them.
    pub slopes: Option<V>,
    /// Whether rows hold queries alone, as in [`QkvParams::queries_alone`]. The layer is then the one whose keys and
    /// values they see.
    pub queries_alone: bool,
    /// Cross-attention (Whisper, Llama 3.2 Vision): keys and values are those of a separate cache. Rows see the spans
    /// in [`Batch::memories`](crate::Batch::memories), and a row without a span gets zeros. Excludes windows and
    /// slopes. Not every device supports it.
    pub memory: bool,
}

impl<V> AttentionParams<V> {
    /// Plain causal attention of these heads.
    pub fn of(shape: HeadShape, scale: f32) -> Self {
        Self {
            shape,
            scale,
            softcap: None,
            window: None,
            chunked: false,
            sinks: None,
            slopes: None,
            queries_alone: false,
            memory: false,
        }
    }

    /// Columns of a row of the input.
    #[inline]
    pub fn width(&self) -> usize {
        if self.queries_alone { self.shape.q_width() } else { self.shape.qkv_width() }
    }
}

/// Heads of multi-head latent attention in cache form: a query has `rank + rope_dim` elements, and so has the cached
/// vector of a token that all heads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    /// Query heads.
    pub heads: usize,
    /// Elements of the latent vector that keys and values are computed from.
    pub rank: usize,
    /// Elements that are rotated by position.
    pub rope_dim: usize,
}

impl LatentHeads {
    /// Elements of a query, and of a token in the cache.
    #[inline]
    pub fn width(&self) -> usize {
        self.rank + self.rope_dim
    }
}

/// Processing of latents and queries between projection and cache.
#[derive(Clone, Copy, Debug)]
pub struct LatentParams<V> {
    /// The heads.
    pub shape: LatentHeads,
    /// RMS norm of the latent, `rank` weights.
    pub norm: V,
    /// Epsilon of the norm.
    pub norm_eps: f32,
    /// Rotary embedding of the `rope_dim` elements.
    pub rope: Rope<V>,
}
