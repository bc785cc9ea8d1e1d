//! The paged cache: halves, each head's 16 tokens of a block together. Keys lie element by element, so that a vector
//! is one element of 16 keys and their dot products are vertical; values lie token by token, so that a vector is 16
//! elements of one value.

use super::aligned::Aligned;
use crate::{BLOCK_TOKENS, KernelError, KvSpec};

/// See the module.
#[derive(Debug)]
pub struct CpuKv {
    spec: KvSpec,
    keys: Aligned<u16>,   // (layer, block, kv_head, head_dim, 16) f16
    values: Aligned<u16>, // (layer, block, kv_head, 16, head_dim rounded up to 16) f16
}

/// Elements of a value row: whole vectors.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

fn elements(spec: &KvSpec, head_dim: usize) -> usize {
    [spec.layers, spec.blocks, spec.kv_heads, BLOCK_TOKENS].into_iter().fold(head_dim, usize::saturating_mul)
}

impl CpuKv {
    /// Bytes of a cache.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        elements(spec, spec.head_dim)
            .saturating_add(elements(spec, padded(spec.head_dim)))
            .saturating_mul(size_of::<u16>())
    }

    pub(super) fn new(spec: &KvSpec) -> Result<CpuKv, KernelError> {
        let keys = Aligned::zeroed(elements(spec, spec.head_dim), "the keys of the KV cache")?;
        let values = Aligned::zeroed(elements(spec, padded(spec.head_dim)), "the values of the KV cache")?;
        Ok(CpuKv { spec: *spec, keys, values })
    }

    pub(super) fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Elements of one head's keys in a block.
    pub(super) fn key_stride(&self) -> usize {
        self.spec.head_dim * BLOCK_TOKENS
    }

    /// Elements of one head's values in a block.
    pub(super) fn value_stride(&self) -> usize {
        padded(self.spec.head_dim) * BLOCK_TOKENS
    }

    /// Keys of all blocks of a layer: `(block, kv_head, head_dim, 16)`.
    pub(super) fn layer_keys(&self, layer: usize) -> &[u16] {
        let count = self.spec.blocks * self.spec.kv_heads * self.key_stride();
        &self.keys[layer * count..][..count]
    }

    /// Values of all blocks of a layer: `(block, kv_head, 16, padded)`.
    pub(super) fn layer_values(&self, layer: usize) -> &[u16] {
        let count = self.spec.blocks * self.spec.kv_heads * self.value_stride();
        &self.values[layer * count..][..count]
    }

    /// Both, for writing.
    pub(super) fn layer_mut(&mut self, layer: usize) -> (&mut [u16], &mut [u16]) {
        let blocks = self.spec.blocks * self.spec.kv_heads;
        let (keys, values) = (blocks * self.key_stride(), blocks * self.value_stride());
        (&mut self.keys[layer * keys..][..keys], &mut self.values[layer * values..][..values])
    }
}
