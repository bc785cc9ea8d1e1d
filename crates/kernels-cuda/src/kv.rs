//! The paged KV cache on a device. A plane holds the keys of all slots, then their values. Layers that share a plane
//! have slots of the widest of them. After the planes come the recurrent states.

use std::sync::Arc;

use hanzo_engine_ops::{
    BLOCK_TOKENS, HeadShape, KernelError, KvLayout, KvSpec, KvType, LatentHeads, StateShape,
};

use crate::device::{Device, Memory};
use crate::params::Address;
use crate::staging::{StagingBuffer, staged_bytes};

/// Paged KV cache on a device; see the module.
#[derive(Debug)]
pub struct CudaKv<D: Device> {
    pub(crate) memory: Arc<Memory<D>>,
    pub(crate) spec: KvSpec,
    planes: Vec<Plane>,
    states: Vec<Option<[usize; 2]>>, // by layer: offsets of the convolution's inputs and of the heads' states
}

/// Offsets of a plane's keys and values, and the bytes of a slot of either.
#[derive(Clone, Copy, Debug)]
struct Plane {
    keys: usize,
    values: usize,
    slot_bytes: usize,
}

/// A layer's part of the cache, in the kernels' form.
pub(crate) struct LayerPlace {
    pub(crate) keys: Address,
    pub(crate) values: Address,
    pub(crate) slot_bytes: u32,
    pub(crate) kv_type: u32,
    pub(crate) group: u32,
}

/// Offsets of everything, and the total size.
fn lay_out(spec: &KvSpec) -> (Vec<Plane>, Vec<Option<[usize; 2]>>, usize) {
    let slots = spec.blocks * BLOCK_TOKENS;
    let mut bytes = 0;
    let mut room = |size: usize| {
        let at = bytes;
        bytes += size.next_multiple_of(16);
        at
    };
    let mut planes = Vec::new();
    for layouts in spec.planes() {
        let elements = |layout: &KvLayout| match *layout {
            KvLayout::Heads { kv_heads, head_dim, .. } => kv_heads * head_dim,
            KvLayout::Latent { rank, rope_dim } => rank + rope_dim,
            KvLayout::State(_) => 0,
        };
        let has_values = layouts.iter().any(|layout| matches!(layout, KvLayout::Heads { .. }));
        let slot_bytes = spec.kv_type.bytes_of(layouts.iter().map(elements).max().unwrap_or(0));
        let keys = room(slots * slot_bytes);
        let values = if has_values { room(slots * slot_bytes) } else { keys };
        planes.push(Plane { keys, values, slot_bytes });
    }
    let mut states = Vec::new();
    for layout in &spec.layers {
        states.push(match *layout {
            KvLayout::State(shape) => {
                let inputs = (shape.taps - 1) * shape.channels();
                let heads = shape.value_width() * shape.key_dim;
                Some([inputs, heads].map(|numbers| room(spec.states * numbers * size_of::<f32>())))
            }
            _ => None,
        });
    }
    (planes, states, bytes)
}

pub(crate) fn kv_bytes(spec: &KvSpec) -> usize {
    lay_out(spec).2
}

impl<D: Device> CudaKv<D> {
    pub(crate) fn new(device: &D, spec: &KvSpec) -> Result<Self, KernelError> {
        spec.check()?;
        let (planes, states, bytes) = lay_out(spec);
        let memory = Memory::unknown(device, bytes, "the KV cache")?;
        Ok(Self { memory, spec: spec.clone(), planes, states })
    }

    pub(crate) fn layer(&self, layer: usize) -> LayerPlace {
        let place = self.spec.groups.place(layer);
        let plane = self.planes[place.plane];
        LayerPlace {
            keys: self.memory.address().offset(plane.keys),
            values: self.memory.address().offset(plane.values),
            slot_bytes: plane.slot_bytes as u32,
            kv_type: match self.spec.kv_type {
                KvType::F16 => 0,
                KvType::Q8_0 => 1,
                KvType::Fp8 => 2,
            },
            group: place.group as u32,
        }
    }

    /// Name of the external form of blocks: each plane's keys and values, as stored here.
    pub(crate) const BLOCK_FORM: &str = "cuda-1";

    /// Offsets and sizes of the parts of a block: keys and values of each plane.
    fn block_parts(&self, block: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        assert!(block < self.spec.blocks, "block {block} of {}", self.spec.blocks);
        self.planes.iter().flat_map(move |&Plane { keys, values, slot_bytes }| {
            let bytes = BLOCK_TOKENS * slot_bytes;
            // Latents have keys alone.
            let values = (values != keys).then_some(values);
            [Some(keys), values].into_iter().flatten().map(move |first| (first + block * bytes, bytes))
        })
    }

    /// Bytes of one block in all planes.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_parts(0).map(|(_, bytes)| bytes).sum()
    }

    /// Copies a block to the host through `staging`, which has no other copies and enough room.
    pub(crate) fn read_block(
        &self,
        block: usize,
        staging: &mut StagingBuffer<D>,
        out: &mut [u8],
    ) -> Result<(), KernelError> {
        assert_eq!(out.len(), self.block_bytes(), "bytes of a block");
        let fetch = |(at, bytes)| staging.fetch(&self.memory, at, bytes);
        let fetched = self.block_parts(block).map(fetch).collect::<Result<Vec<_>, _>>()?;
        staging.mark()?;
        staging.settle()?;
        let mut rest = out;
        for part in fetched {
            let (own, behind) = rest.split_at_mut(part.len());
            own.copy_from_slice(staging.fetched(&part));
            rest = behind;
        }
        Ok(())
    }

    /// Copies a block into the cache after all launched work.
    pub(crate) fn write_block(&self, block: usize, bytes: &[u8]) -> Result<(), KernelError> {
        assert_eq!(bytes.len(), self.block_bytes(), "bytes of a block");
        let mut rest = bytes;
        for (at, bytes) in self.block_parts(block) {
            let (own, behind) = rest.split_at(bytes);
            self.memory.write(at, own)?;
            rest = behind;
        }
        Ok(())
    }

    /// Size of staging memory that [`CudaKv::read_block`] needs.
    pub(crate) fn block_staging(&self) -> usize {
        staged_bytes(&self.block_parts(0).map(|(_, bytes)| bytes).collect::<Vec<_>>())
    }

    pub(crate) fn check_heads(&self, shape: &HeadShape, layer: usize) {
        let fits = matches!(self.spec.layers[layer], KvLayout::Heads { kv_heads, head_dim, .. }
            if (kv_heads, head_dim) == (shape.kv_heads, shape.head_dim));
        assert!(
            fits && shape.heads.is_multiple_of(shape.kv_heads),
            "{shape:?} and layer {layer} of the cache"
        );
    }

    pub(crate) fn check_latent(&self, shape: &LatentHeads, layer: usize) {
        let fits = matches!(self.spec.layers[layer], KvLayout::Latent { rank, rope_dim }
            if (rank, rope_dim) == (shape.rank, shape.rope_dim));
        assert!(fits, "{shape:?} and layer {layer} of the cache");
    }

    /// Addresses of a layer's convolution inputs and heads' states.
    pub(crate) fn states(&self, shape: &StateShape, layer: usize) -> [Address; 2] {
        let keeps = matches!(self.spec.layers[layer], KvLayout::State(of) if of == *shape);
        let Some(places) = self.states[layer].filter(|_| keeps) else {
            panic!("{shape:?} and layer {layer} of the cache");
        };
        places.map(|at| self.memory.address().offset(at))
    }
}
