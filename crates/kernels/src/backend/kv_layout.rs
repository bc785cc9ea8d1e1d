//! What a layer's cache keeps of each token, and of how many tokens: numbers alone. Absent: where a device puts them.

use std::fmt;

use super::KvType;

/// What a layer's cache keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvLayout {
    /// A key and a value for each key-value head.
    Heads {
        /// Key-value heads.
        kv_heads: usize,
        /// Elements of a head.
        head_dim: usize,
        /// Tokens that a token sees at most, itself included; older ones need not be kept. None: all.
        window: Option<u32>,
    },
    /// One vector that the keys and values of all heads are made of, and the part of the keys that positions turn, which
    /// the heads share (multi-head latent attention, arxiv.org/abs/2405.04434).
    Latent {
        /// Elements of the vector.
        rank: usize,
        /// Elements of the part that positions turn.
        rope_dim: usize,
    },
}

impl KvLayout {
    /// Elements kept of a token.
    pub fn elements_per_token(&self) -> usize {
        match *self {
            KvLayout::Heads { kv_heads, head_dim, .. } => 2 * kv_heads * head_dim,
            KvLayout::Latent { rank, rope_dim } => rank + rope_dim,
        }
    }

    /// Bytes kept of a token: those of its elements, without what a device aligns them by.
    pub fn bytes_per_token(&self, kv_type: KvType) -> usize {
        kv_type.bytes_of(self.elements_per_token())
    }

    /// Tokens that must be kept of a sequence of so many.
    pub fn tokens_kept(&self, tokens: usize) -> usize {
        match self {
            KvLayout::Heads { window: Some(window), .. } => tokens.min(*window as usize),
            _ => tokens,
        }
    }
}

impl fmt::Display for KvLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvLayout::Heads { kv_heads, head_dim, .. } => write!(f, "{kv_heads} heads of {head_dim}"),
            KvLayout::Latent { rank, rope_dim } => {
                write!(f, "a latent of {rank} and {rope_dim} that positions turn")
            }
        }
    }
}

impl KvType {
    /// Bytes of so many elements, in whole groups.
    pub const fn bytes_of(self, elements: usize) -> usize {
        match self {
            KvType::F16 => 2 * elements,
            // A byte each, and a half for each group.
            KvType::Q8_0 => elements.div_ceil(self.group()) * (self.group() + 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latent_keeps_less_than_heads_and_a_window_fewer_tokens() {
        // DeepSeek-V2-Lite, 16 heads of 128 and the 64 that are turned.
        let latent = KvLayout::Latent { rank: 512, rope_dim: 64 };
        assert_eq!(latent.elements_per_token(), 576);
        assert_eq!(latent.bytes_per_token(KvType::F16), 1152);
        assert_eq!(latent.bytes_per_token(KvType::Q8_0), 612);
        assert_eq!(latent.tokens_kept(100_000), 100_000);
        // Gemma 3 4B: 4 heads of 256, five of six layers see 1024 tokens.
        let of_window = |window| KvLayout::Heads { kv_heads: 4, head_dim: 256, window };
        assert_eq!(of_window(None).bytes_per_token(KvType::F16), 4096);
        assert_eq!(of_window(None).tokens_kept(100_000), 100_000);
        assert_eq!(of_window(Some(1024)).tokens_kept(100_000), 1024);
        assert_eq!(of_window(Some(1024)).tokens_kept(10), 10);
    }
}
