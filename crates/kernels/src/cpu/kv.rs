//! The paged KV cache. Each head's 16 tokens of a block are stored together, with keys and values in separate arrays.
//! Keys are stored so that a vector holds the same element of 16 keys and dot products are vertical. Values are stored
//! token by token, so that a vector holds 16 elements of one value.
//!
//! | type | a head's keys of a block | a head's values of a block |
//! |---|---|---|
//! | F16 | `(head_dim, 16)` halves | `(16, head_dim rounded up to 16)` halves |
//! | FP8 | `(head_dim, 16)` bytes | `(16, head_dim rounded up to 16)` bytes |
//! | Q8_0 | `(head_dim / 4, 16, 4)` codes plus 128, then `(head_dim / 32, 16)` scales | `(16, head_dim)` codes, then `(head_dim / 32, 16)` scales |
//!
//! A layer of latents stores them as values of a single head, without keys. The states of layers with recurrent states
//! are in a separate f32 array, laid out as `states` describes. Codes are bytes and scales are f16, one scale for 32
//! elements of one key or value, as in GGML's Q8_0.

use std::ops::Range;

use super::aligned::AlignedArray;
use super::states::{self, LayerStates};
use hanzo_engine_ops::{
    BLOCK_TOKENS, BlockCopy, HeadShape, KernelError, KvGroups, KvLayout, KvPlace, KvSpec, KvType,
    LatentHeads, StateShape,
};

/// Elements of a head that share a scale in Q8_0.
pub(super) const GROUP: usize = KvType::Q8_0.group();

/// Number of key-value heads that marks a layer of latents.
const LATENT: usize = 0;

/// Paged KV cache of the CPU backend; see the module.
#[derive(Debug)]
pub struct CpuKv {
    kv_type: KvType,
    blocks: usize,
    groups: KvGroups,
    layers: Vec<(usize, usize)>, // key-value heads, or LATENT, and elements of a head or a latent; none for a state
    states: usize,
    state_layers: Vec<Option<StateLayer>>, // by layer
    state_numbers: AlignedArray<f32>,      // (states, stride) of each layer with states
    planes: Vec<Plane>,
    keys: AlignedArray<u8>, // (plane, block, key_block); in a block, a layer's (kv_head, key_stride) come first
    values: AlignedArray<u8>, // (plane, block, value_block)
}

/// Byte ranges of a plane.
#[derive(Clone, Debug)]
struct Plane {
    keys: Range<usize>,
    values: Range<usize>,
    key_block: usize,
    value_block: usize,
}

/// Location of a layer's states.
#[derive(Clone, Copy, Debug)]
struct StateLayer {
    shape: StateShape,
    first: usize, // index in `state_numbers`
}

/// Layout of a layer's part of the cache.
#[derive(Clone, Copy)]
pub(super) struct LayerLayout {
    pub(super) kv_type: KvType,
    /// Blocks of 16 tokens.
    pub(super) blocks: usize,
    pub(super) kv_heads: usize,
    /// Bytes of one head in a block.
    pub(super) key_stride: usize,
    pub(super) value_stride: usize,
    /// Bytes from a block to the next.
    pub(super) key_block: usize,
    pub(super) value_block: usize,
    /// The layer's group, which selects its block tables and slots. `window` is that group's window.
    pub(super) group: usize,
    pub(super) window: Option<u32>,
}

/// A layer's part of the cache, for reading or writing.
#[derive(Clone, Copy)]
pub(super) struct LayerKv<T> {
    pub(super) layout: LayerLayout,
    pub(super) keys: T,   // (block, key_block)
    pub(super) values: T, // (block, value_block)
}

/// Elements of a row of float values: whole vectors.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Bytes of one head's keys in a block.
pub(super) fn key_stride(kv_type: KvType, head_dim: usize) -> usize {
    BLOCK_TOKENS
        * match kv_type {
            KvType::F16 => head_dim * size_of::<u16>(),
            KvType::Fp8 => head_dim,
            KvType::Q8_0 => head_dim + head_dim / GROUP * size_of::<u16>(),
        }
}

/// Bytes of one head's values in a block.
pub(super) fn value_stride(kv_type: KvType, head_dim: usize) -> usize {
    match kv_type {
        KvType::F16 => BLOCK_TOKENS * padded(head_dim) * size_of::<u16>(),
        KvType::Fp8 => BLOCK_TOKENS * padded(head_dim),
        KvType::Q8_0 => key_stride(kv_type, head_dim),
    }
}

/// Bytes of a block's keys and of its values, in a plane that these layers share.
fn block_bytes(kv_type: KvType, layouts: &[KvLayout]) -> [usize; 2] {
    let of_layer = |layout: &KvLayout| match *layout {
        KvLayout::Heads { kv_heads, head_dim, .. } => {
            [key_stride(kv_type, head_dim), value_stride(kv_type, head_dim)].map(|bytes| bytes * kv_heads)
        }
        KvLayout::Latent { rank, rope_dim } => [0, value_stride(kv_type, rank + rope_dim)],
        KvLayout::State(_) => [0, 0],
    };
    let most = |a: [usize; 2], b: [usize; 2]| [a[0].max(b[0]), a[1].max(b[1])];
    layouts.iter().map(of_layer).fold([0, 0], most)
}

/// Location of each layer's states, and their total number of elements.
fn state_numbers(spec: &KvSpec) -> (Vec<Option<StateLayer>>, usize) {
    let mut numbers = 0usize;
    let of_layer = |layout: &KvLayout| {
        let KvLayout::State(shape) = *layout else { return None };
        let first = numbers;
        numbers = numbers.saturating_add(spec.states.saturating_mul(states::stride(&shape)));
        Some(StateLayer { shape, first })
    };
    (spec.layers.iter().map(of_layer).collect(), numbers)
}

impl CpuKv {
    /// Bytes of a cache.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        let of_plane = |layouts: &Vec<KvLayout>| block_bytes(spec.kv_type, layouts).iter().sum::<usize>();
        let block: usize = spec.planes().iter().map(of_plane).sum();
        let states = state_numbers(spec).1.saturating_mul(size_of::<f32>());
        spec.blocks.saturating_mul(block).saturating_add(states)
    }

    pub(super) fn new(spec: &KvSpec) -> Result<CpuKv, KernelError> {
        let (mut keys, mut values) = (0usize, 0usize);
        spec.check()?;
        let of_layer = |layout: &KvLayout| match *layout {
            KvLayout::Heads { kv_heads, head_dim, .. } => (kv_heads, head_dim),
            KvLayout::Latent { rank, rope_dim } => (LATENT, rank + rope_dim),
            KvLayout::State(_) => (LATENT, 0),
        };
        let layers = spec.layers.iter().map(of_layer).collect();
        let mut planes = Vec::new();
        for layouts in spec.planes() {
            let [key_block, value_block] = block_bytes(spec.kv_type, &layouts);
            let keys_end = keys.saturating_add(key_block.saturating_mul(spec.blocks));
            let values_end = values.saturating_add(value_block.saturating_mul(spec.blocks));
            planes.push(Plane { keys: keys..keys_end, values: values..values_end, key_block, value_block });
            (keys, values) = (keys_end, values_end);
        }
        let array = if spec.resident { AlignedArray::zeroed } else { AlignedArray::untouched };
        let keys = array(keys, "the keys of the KV cache")?;
        let values = array(values, "the values of the KV cache")?;
        let (kv_type, blocks, groups) = (spec.kv_type, spec.blocks, spec.groups.clone());
        let (state_layers, numbers) = state_numbers(spec);
        let array = if spec.resident { AlignedArray::zeroed } else { AlignedArray::untouched };
        let state_numbers = array(numbers, "states of sequences")?;
        Ok(CpuKv {
            kv_type,
            blocks,
            groups,
            layers,
            states: spec.states,
            state_layers,
            state_numbers,
            planes,
            keys,
            values,
        })
    }

    /// States of a layer.
    ///
    /// # Panics
    /// If the layer has none, or of another shape.
    pub(super) fn states_mut(&mut self, layer: usize, shape: &StateShape) -> LayerStates<'_> {
        let Some(of) = self.state_layers[layer] else { panic!("layer {layer} keeps no state") };
        assert_eq!(of.shape, *shape, "another cache's states");
        let stride = states::stride(shape);
        let numbers = &mut self.state_numbers[of.first..][..self.states * stride];
        LayerStates { numbers, stride, states: self.states }
    }

    /// Name of the external form of blocks: each plane's keys and values, as stored here.
    pub(super) const BLOCK_FORM: &str = "cpu-1";

    /// Bytes of one block in all planes.
    pub(super) fn block_bytes(&self) -> usize {
        self.planes.iter().map(|plane| plane.key_block + plane.value_block).sum()
    }

    /// # Panics
    /// If there is no such block, or the copy is not of a block's size.
    pub(super) fn copy_block(&mut self, block: usize, mut copy: BlockCopy<'_>) {
        assert!(
            block < self.blocks && copy.size() == self.block_bytes(),
            "block {block} in {} bytes",
            copy.size()
        );
        for Plane { keys, values, key_block, value_block } in &self.planes {
            for (plane, first, bytes) in
                [(&mut self.keys, keys.start, *key_block), (&mut self.values, values.start, *value_block)]
            {
                let own = &mut plane[first + block * bytes..][..bytes];
                match copy.take(bytes) {
                    BlockCopy::Out(part) => part.copy_from_slice(own),
                    BlockCopy::In(part) => own.copy_from_slice(part),
                }
            }
        }
    }

    /// A layer's part of the cache, for reading.
    ///
    /// # Panics
    /// If there is no such layer, or its heads differ.
    pub(super) fn layer(&self, layer: usize, shape: &HeadShape) -> LayerKv<&[u8]> {
        let Plane { keys, values, .. } = self.planes[self.groups.place(layer).plane].clone();
        let layout = self.layout(layer, shape);
        LayerKv { layout, keys: &self.keys[keys], values: &self.values[values] }
    }

    /// Same as [`CpuKv::layer`], for writing.
    pub(super) fn layer_mut(&mut self, layer: usize, shape: &HeadShape) -> LayerKv<&mut [u8]> {
        let Plane { keys, values, .. } = self.planes[self.groups.place(layer).plane].clone();
        let layout = self.layout(layer, shape);
        LayerKv { layout, keys: &mut self.keys[keys], values: &mut self.values[values] }
    }

    /// Same as [`CpuKv::layer`], for latents.
    pub(super) fn latents(&self, layer: usize, shape: &LatentHeads) -> LayerKv<&[u8]> {
        self.layer(layer, &latent_shape(shape))
    }

    /// Same as [`CpuKv::latents`], for writing.
    pub(super) fn latents_mut(&mut self, layer: usize, shape: &LatentHeads) -> LayerKv<&mut [u8]> {
        self.layer_mut(layer, &latent_shape(shape))
    }

    fn layout(&self, layer: usize, shape: &HeadShape) -> LayerLayout {
        let (kv_heads, head_dim) = self.layers[layer];
        assert_eq!((kv_heads, head_dim), (shape.kv_heads, shape.head_dim), "another cache's heads");
        let key_stride = if kv_heads == LATENT { 0 } else { key_stride(self.kv_type, head_dim) };
        let KvPlace { group, plane } = self.groups.place(layer);
        let Plane { key_block, value_block, .. } = self.planes[plane];
        LayerLayout {
            kv_type: self.kv_type,
            blocks: self.blocks,
            kv_heads: kv_heads.max(1),
            key_stride,
            value_stride: value_stride(self.kv_type, head_dim),
            key_block,
            value_block,
            group,
            window: self.groups.window(group),
        }
    }
}

/// Head shape under which `CpuKv` stores latents.
fn latent_shape(shape: &LatentHeads) -> HeadShape {
    HeadShape { heads: shape.heads, kv_heads: LATENT, head_dim: shape.width() }
}
