//! What attention is, in the contract: heads, rotary embedding, and what is done with queries, keys and latents.

/// Which pairs of a head rotary embedding turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// Element i with element i + rotary_dim / 2 (GPT-NeoX, most Hugging Face models).
    Neox,
    /// Element 2i with element 2i + 1 (GPT-J; llama-architecture GGUF files).
    Interleaved,
}

/// Which of a row's three positions ([`Batch::axes`]) turns a pair: M-RoPE (arxiv.org/abs/2409.12191).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeAxes {
    /// Pairs of time, height and width.
    pub sections: [u32; 3],
    /// Pair i is of axis `i % 3` as long as that has pairs, and of time after (Qwen3-VL), rather than one section after the
    /// other (Qwen2-VL).
    pub interleaved: bool,
}

impl RopeAxes {
    /// The axis of a pair.
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
    /// Radians per position of each pair, frequency scaling applied; `rotary_dim / 2` of them. Elements past
    /// `rotary_dim` pass unturned.
    pub inv_freq: V,
    /// Factor on cosine and sine (YaRN's attention factor); 1 for plain rope.
    pub magnitude: f32,
    /// Which position turns which pair, where rows have three; none: the row's own.
    pub axes: Option<RopeAxes>,
    /// Magnitude of a second table of frequencies (LongRoPE's for long texts). The table follows the first in `inv_freq` and has
    /// as many pairs; it turns the rows whose [`Batch::types`](crate::Batch::types) is not 0. None: there is one table.
    pub long: Option<f32>,
}

impl<V> Rope<V> {
    /// Pairs of a head that are turned, where `inv_freq` holds so many frequencies.
    pub fn pairs(&self, frequencies: usize) -> usize {
        frequencies / (1 + usize::from(self.long.is_some()))
    }
}

impl<'a> Rope<&'a Vec<f32>> {
    /// Frequencies and magnitude that turn a row of this type.
    pub fn of_type(&self, row_type: u32) -> (&'a [f32], f32) {
        let (first, second) = self.inv_freq.split_at(self.pairs(self.inv_freq.len()));
        match self.long.filter(|_| row_type != 0) {
            Some(magnitude) => (second, magnitude),
            None => (first, self.magnitude),
        }
    }
}

/// Heads of one attention layer. A row of queries is `(heads, head_dim)`, of keys and values
/// `(kv_heads, head_dim)`; head h reads key-value head `h * kv_heads / heads`.
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
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Width of a row of queries, or of attention's output.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// What happens to queries and keys between projection and cache.
#[derive(Clone, Copy, Debug)]
pub struct QkvParams<V> {
    /// The heads.
    pub shape: HeadShape,
    /// RMS norm of queries: of each head, where there are `head_dim` weights (Qwen3), or of all of them as one, where there are
    /// `heads * head_dim` (OLMo 2).
    pub q_norm: Option<V>,
    /// RMS norm of keys, likewise.
    pub k_norm: Option<V>,
    /// Epsilon of both norms.
    pub norm_eps: f32,
    /// The norms, of each head then, are of what the rotation gives rather than of what it reads (Hunyuan).
    pub norm_after_rope: bool,
    /// Rotary embedding, or none.
    pub rope: Option<Rope<V>>,
    /// Factor on queries, after everything else, or none.
    pub query_scale: Option<QueryScale>,
    /// Values are normed as keys are, each head by itself and without weights (Gemma 4).
    pub values_normed: bool,
    /// Rows are of queries alone, `(heads, head_dim)`: another layer's keys and values are attended to (Gemma 3n).
    pub queries_alone: bool,
}

impl<V> QkvParams<V> {
    /// Heads with nothing done to them.
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
    pub fn width(&self) -> usize {
        if self.queries_alone { self.shape.q_width() } else { self.shape.qkv_width() }
    }
}

/// A factor on queries that grows with their position, so that attention over long contexts stays as sharp:
/// `1 + factor * ln(1 + floor((position + offset) / every))` (Llama 4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    /// How much it grows.
    pub factor: f32,
    /// Tokens from step to step; not 0.
    pub every: u32,
    /// Tokens that count before the first: 1 where steps count tokens rather than positions.
    pub offset: u32,
}

impl QueryScale {
    /// The factor at a position.
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
    /// `cap * tanh(score / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// A row sees only the last `window` keys, itself included.
    pub window: Option<u32>,
    /// Of the window a row sees only its own chunk: keys from the last position on that is a multiple of `window` (Llama 4).
    pub chunked: bool,
    /// One logit a head that takes part in the softmax and has no value (GPT-OSS); `heads` of them.
    pub sinks: Option<V>,
    /// What a head's scores lose with each token between a key and the row (ALiBi, arxiv.org/abs/2108.12409); `heads` of
    /// them.
    pub slopes: Option<V>,
    /// Rows are of queries alone, as in [`QkvParams::queries_alone`]; the layer is the one whose keys and values they see.
    pub queries_alone: bool,
    /// Keys and values are those of a memory, of which rows see what [`Batch::memories`](crate::Batch::memories) says, and are given
    /// zeros where that is nothing: cross-attention (Whisper, Llama 3.2 Vision). Without a window or slopes. Not every device
    /// that runs decoders and encoders knows it.
    pub memory: bool,
}

impl<V> AttentionParams<V> {
    /// Of rows that see all before them, and no more to it.
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

    /// Columns of a row of what is read.
    pub fn width(&self) -> usize {
        if self.queries_alone { self.shape.q_width() } else { self.shape.qkv_width() }
    }
}

/// Heads of multi-head latent attention as they meet the cache: a query is `rank + rope_dim` numbers, and so is what all
/// heads read of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    /// Query heads.
    pub heads: usize,
    /// Elements of the vector that keys and values are made of.
    pub rank: usize,
    /// Elements that positions turn.
    pub rope_dim: usize,
}

impl LatentHeads {
    /// Elements of a query, and of what the cache keeps of a token.
    pub fn width(&self) -> usize {
        self.rank + self.rope_dim
    }
}

/// What happens to latents and queries between projection and cache.
#[derive(Clone, Copy, Debug)]
pub struct LatentParams<V> {
    /// The heads.
    pub shape: LatentHeads,
    /// RMS norm of the latent, `rank` weights.
    pub norm: V,
    /// Epsilon of the norm.
    pub norm_eps: f32,
    /// Rotary embedding of `rope_dim` numbers.
    pub rope: Rope<V>,
}
