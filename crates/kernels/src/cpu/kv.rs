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

use std::ops::Range;

use super::aligned::Aligned;
use crate::{BLOCK_TOKENS, HeadShape, KernelError, KvLayout, KvSpec, KvType};

/// Elements of a head that share a scale in Q8_0.
pub(super) const GROUP: usize = KvType::Q8_0.group();

/// See the module.
#[derive(Debug)]
pub struct CpuKv {
    kv_type: KvType,
    blocks: usize,
    layers: Vec<Part>,
    keys: Aligned<u8>,   // (layer, block, kv_head, key_stride)
    values: Aligned<u8>, // (layer, block, kv_head, value_stride)
}

/// Where a layer's part of the cache lies, in bytes.
#[derive(Clone, Debug)]
struct Part {
    kv_heads: usize,
    head_dim: usize,
    keys: Range<usize>,
    values: Range<usize>,
}

/// A layer's part of the cache, to read or to write.
#[derive(Clone, Copy)]
pub(super) struct LayerKv<T> {
    pub(super) kv_type: KvType,
    /// Blocks of 16 tokens.
    pub(super) blocks: usize,
    pub(super) kv_heads: usize,
    /// Bytes of one head in a block.
    pub(super) key_stride: usize,
    pub(super) value_stride: usize,
    pub(super) keys: T,   // (block, kv_head, key_stride)
    pub(super) values: T, // (block, kv_head, value_stride)
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

/// Bytes of a layer's keys and of its values.
fn layer_bytes(spec: &KvSpec, kv_heads: usize, head_dim: usize) -> [usize; 2] {
    let heads = spec.blocks.saturating_mul(kv_heads);
    [key_stride(spec.kv_type, head_dim), value_stride(spec.kv_type, head_dim)]
        .map(|stride| heads.saturating_mul(stride))
}

impl CpuKv {
    /// Bytes of a cache.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        let of_layer = |layout: &KvLayout| match *layout {
            KvLayout::Heads { kv_heads, head_dim, .. } => layer_bytes(spec, kv_heads, head_dim),
            KvLayout::Latent { .. } => [0, 0],
        };
        spec.layers.iter().flat_map(of_layer).fold(0, usize::saturating_add)
    }

    pub(super) fn new(spec: &KvSpec, device: &str) -> Result<CpuKv, KernelError> {
        let (mut keys, mut values) = (0usize, 0usize);
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (kv_heads, head_dim) in spec.heads(device)? {
            let [key_bytes, value_bytes] = layer_bytes(spec, kv_heads, head_dim);
            let (keys_end, values_end) = (keys.saturating_add(key_bytes), values.saturating_add(value_bytes));
            layers.push(Part { kv_heads, head_dim, keys: keys..keys_end, values: values..values_end });
            (keys, values) = (keys_end, values_end);
        }
        let keys = Aligned::zeroed(keys, "the keys of the KV cache")?;
        let values = Aligned::zeroed(values, "the values of the KV cache")?;
        Ok(CpuKv { kv_type: spec.kv_type, blocks: spec.blocks, layers, keys, values })
    }

    /// A layer's part.
    ///
    /// # Panics
    /// If there is no such layer, or it holds other heads.
    pub(super) fn layer(&self, layer: usize, shape: &HeadShape) -> LayerKv<&[u8]> {
        let Part { keys, values, .. } = self.layers[layer].clone();
        self.part(layer, shape, &self.keys[keys], &self.values[values])
    }

    /// As [`CpuKv::layer`], for writing.
    pub(super) fn layer_mut(&mut self, layer: usize, shape: &HeadShape) -> LayerKv<&mut [u8]> {
        let Part { keys, values, .. } = self.layers[layer].clone();
        let LayerKv { kv_type, blocks, kv_heads, key_stride, value_stride, .. } =
            self.part(layer, shape, (), ());
        let (keys, values) = (&mut self.keys[keys], &mut self.values[values]);
        LayerKv { kv_type, blocks, kv_heads, key_stride, value_stride, keys, values }
    }

    fn part<T>(&self, layer: usize, shape: &HeadShape, keys: T, values: T) -> LayerKv<T> {
        let Part { kv_heads, head_dim, .. } = self.layers[layer];
        assert_eq!((kv_heads, head_dim), (shape.kv_heads, shape.head_dim), "another cache's heads");
        LayerKv {
            kv_type: self.kv_type,
            blocks: self.blocks,
            kv_heads,
            key_stride: key_stride(self.kv_type, head_dim),
            value_stride: value_stride(self.kv_type, head_dim),
            keys,
            values,
        }
    }
}
