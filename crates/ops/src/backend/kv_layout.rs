//! Cache layout of each layer: the data kept for each token, and for how many tokens. Numbers alone; the placement in
//! memory is the device's.

use std::fmt;

use super::{KvGroups, KvType, StateShape};
use crate::KernelError;

/// Data that a layer's cache keeps for each token.
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
    /// Multi-head latent attention (arxiv.org/abs/2405.04434): one vector that the keys and values of all heads are
    /// computed from, and the part of the keys that is rotated by position, which all heads share.
    Latent {
        /// Elements of the vector.
        rank: usize,
        /// Elements of the part that is rotated by position.
        rope_dim: usize,
    },
    /// No data per token, but a recurrent state per sequence.
    State(StateShape),
}

/// Specification of the paged KV cache of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// Layout of each layer; layers may differ.
    pub layers: Vec<KvLayout>,
    /// Layers that share block tables, and layers that share memory.
    pub groups: KvGroups,
    /// Blocks of 16 tokens, shared by all sequences and layer groups. A block id stands for the same tokens in every
    /// layer of one group.
    pub blocks: usize,
    /// Element type of keys and values.
    pub kv_type: KvType,
    /// Whether all memory is committed when the cache is made, rather than as blocks are first written, so that it
    /// cannot run out later.
    pub resident: bool,
    /// Sequences with room for their states, in the layers with recurrent states.
    pub states: usize,
}

impl KvSpec {
    /// Checks that the element type can store every layer's data.
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

    /// Same as [`KvSpec::check`], for devices that hold heads alone. Returns each layer's key-value heads and elements
    /// of a head.
    ///
    /// # Errors
    /// Additionally [`KernelError::UnsupportedKvLayout`] for a layer with another layout.
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
    /// Elements kept for each token.
    #[inline]
    pub fn elements_per_token(&self) -> usize {
        match *self {
            KvLayout::Heads { kv_heads, head_dim, .. } => 2 * kv_heads * head_dim,
            KvLayout::Latent { rank, rope_dim } => rank + rope_dim,
            KvLayout::State(_) => 0,
        }
    }

    /// Bytes kept for each token, without a device's padding.
    pub fn bytes_per_token(&self, kv_type: KvType) -> usize {
        kv_type.bytes_of(self.elements_per_token())
    }

    /// Tokens that must be kept of a sequence of this length.
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
    #[inline]
    pub const fn bytes_of(self, elements: usize) -> usize {
        match self {
            KvType::F16 => 2 * elements,
            KvType::Fp8 => elements,
            // One byte for each element, and an f16 scale for each group.
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
