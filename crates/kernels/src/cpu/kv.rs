//! The paged cache: each head's 16 tokens of a block together, keys before values in arrays of their own. Keys lie
//! so that a vector is the same elements of 16 keys and their dot products are vertical; values lie token by token,
//! so that a vector is 16 elements of one value.
//!
//! | type | a head's keys of a block | a head's values of a block |
//! |---|---|---|
//! | F16 | `(head_dim, 16)` halves | `(16, head_dim rounded up to 16)` halves |
//! | Q8_0 | `(head_dim / 4, 16, 4)` codes plus 128, then `(head_dim / 32, 16)` scales | `(16, head_dim)` codes, then `(head_dim / 32, 16)` scales |
//!
//! Codes are bytes and scales halves, one for 32 elements of one key or value, as in GGML's Q8_0.

use super::aligned::Aligned;
use crate::{BLOCK_TOKENS, KernelError, KvSpec, KvType};

/// Elements of a head that share a scale in Q8_0.
pub(super) const GROUP: usize = KvType::Q8_0.group();

/// See the module.
#[derive(Debug)]
pub struct CpuKv {
    spec: KvSpec,
    keys: Aligned<u8>,   // (layer, block, kv_head, key_stride)
    values: Aligned<u8>, // (layer, block, kv_head, value_stride)
}

/// Elements of a value row in F16: whole vectors.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Bytes of one head's keys in a block.
pub(super) fn key_stride(kv_type: KvType, head_dim: usize) -> usize {
    BLOCK_TOKENS
        * match kv_type {
            KvType::F16 => head_dim * size_of::<u16>(),
            KvType::Q8_0 => head_dim + head_dim / GROUP * size_of::<u16>(),
        }
}

/// Bytes of one head's values in a block.
pub(super) fn value_stride(kv_type: KvType, head_dim: usize) -> usize {
    match kv_type {
        KvType::F16 => BLOCK_TOKENS * padded(head_dim) * size_of::<u16>(),
        KvType::Q8_0 => key_stride(kv_type, head_dim),
    }
}

fn bytes(spec: &KvSpec, stride: usize) -> usize {
    [spec.layers, spec.blocks, spec.kv_heads].into_iter().fold(stride, usize::saturating_mul)
}

impl CpuKv {
    /// Bytes of a cache.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        bytes(spec, key_stride(spec.kv_type, spec.head_dim))
            .saturating_add(bytes(spec, value_stride(spec.kv_type, spec.head_dim)))
    }

    pub(super) fn new(spec: &KvSpec) -> Result<CpuKv, KernelError> {
        spec.check()?;
        let keys = bytes(spec, key_stride(spec.kv_type, spec.head_dim));
        let values = bytes(spec, value_stride(spec.kv_type, spec.head_dim));
        let keys = Aligned::zeroed(keys, "the keys of the KV cache")?;
        let values = Aligned::zeroed(values, "the values of the KV cache")?;
        Ok(CpuKv { spec: *spec, keys, values })
    }

    pub(super) fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// Bytes of one head's keys in a block.
    pub(super) fn key_stride(&self) -> usize {
        key_stride(self.spec.kv_type, self.spec.head_dim)
    }

    /// Bytes of one head's values in a block.
    pub(super) fn value_stride(&self) -> usize {
        value_stride(self.spec.kv_type, self.spec.head_dim)
    }

    /// Keys of all blocks of a layer: `(block, kv_head, key_stride)`.
    pub(super) fn layer_keys(&self, layer: usize) -> &[u8] {
        let count = self.spec.blocks * self.spec.kv_heads * self.key_stride();
        &self.keys[layer * count..][..count]
    }

    /// Values of all blocks of a layer: `(block, kv_head, value_stride)`.
    pub(super) fn layer_values(&self, layer: usize) -> &[u8] {
        let count = self.spec.blocks * self.spec.kv_heads * self.value_stride();
        &self.values[layer * count..][..count]
    }

    /// Both, for writing.
    pub(super) fn layer_mut(&mut self, layer: usize) -> (&mut [u8], &mut [u8]) {
        let blocks = self.spec.blocks * self.spec.kv_heads;
        let (keys, values) = (blocks * self.key_stride(), blocks * self.value_stride());
        (&mut self.keys[layer * keys..][..keys], &mut self.values[layer * values..][..values])
    }
}
