//! What a layer's cache keeps of each token, and of how many tokens: numbers alone. Absent: where a device puts them.

use std::fmt;

use super::{KvGroups, KvType, StateShape};
use crate::KernelError;

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
    /// Nothing of a token, but a state of each sequence.
    State(StateShape),
}

/// The paged cache of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// What each layer keeps of a token; layers may differ.
    pub layers: Vec<KvLayout>,
    /// Which layers have block tables in common, and which share memory.
    pub groups: KvGroups,
    /// Blocks of 16 tokens, shared by all sequences and layer groups; a block id stands for the same tokens in every layer
    /// of one group.
    pub blocks: usize,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// All of its memory is in place when it is made, rather than as blocks are first written: so that it cannot be missing
    /// later.
    pub resident: bool,
    /// Sequences whose states there is room for, in the layers that keep one.
    pub states: usize,
}

impl KvSpec {
    /// Whether what the layers keep can be stored so.
    ///
    /// # Errors
    /// [`KernelError::BadKvType`] if a head or a latent is not whole groups of the type.
    pub fn check(&self) -> Result<(), KernelError> {
        let kv_type = self.kv_type;
        let run = |layout: &KvLayout| match *layout {
            KvLayout::Heads { head_dim, .. } => head_dim,
            KvLayout::Latent { rank, rope_dim } => rank + rope_dim,
            KvLayout::State(_) => 0,
        };
        match self.layers.iter().map(run).find(|run| !run.is_multiple_of(kv_type.group())) {
            None => Ok(()),
            Some(head_dim) => Err(KernelError::BadKvType { kv_type, head_dim }),
        }
    }

    /// As [`KvSpec::check`], for devices that hold heads alone: key-value heads and elements of a head of each layer.
    ///
    /// # Errors
    /// Besides, [`KernelError::UnsupportedKvLayout`] for a layer that keeps something else.
    pub fn heads(&self, device: &str) -> Result<Vec<(usize, usize)>, KernelError> {
        self.check()?;
        let heads = |(layer, layout): (usize, &KvLayout)| match *layout {
            KvLayout::Heads { kv_heads, head_dim, .. } => Ok((kv_heads, head_dim)),
            layout => Err(KernelError::UnsupportedKvLayout { layer, layout, device: device.to_owned() }),
        };
        self.layers.iter().enumerate().map(heads).collect()
    }
}

impl KvLayout {
    /// Elements kept of a token.
    pub fn elements_per_token(&self) -> usize {
        match *self {
            KvLayout::Heads { kv_heads, head_dim, .. } => 2 * kv_heads * head_dim,
            KvLayout::Latent { rank, rope_dim } => rank + rope_dim,
            KvLayout::State(_) => 0,
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
            KvLayout::State(shape) => write!(f, "a state of {} numbers", shape.elements()),
        }
    }
}

impl KvType {
    /// Bytes of so many elements, in whole groups.
    pub const fn bytes_of(self, elements: usize) -> usize {
        match self {
            KvType::F16 => 2 * elements,
            KvType::Fp8 => elements,
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
        assert_eq!(latent.bytes_per_token(KvType::Fp8), 576);
        assert_eq!(latent.tokens_kept(100_000), 100_000);
        // Gemma 3 4B: 4 heads of 256, five of six layers see 1024 tokens.
        let of_window = |window| KvLayout::Heads { kv_heads: 4, head_dim: 256, window };
        assert_eq!(of_window(None).bytes_per_token(KvType::F16), 4096);
        assert_eq!(of_window(None).tokens_kept(100_000), 100_000);
        assert_eq!(of_window(Some(1024)).tokens_kept(100_000), 1024);
        assert_eq!(of_window(Some(1024)).tokens_kept(10), 10);
    }
}
