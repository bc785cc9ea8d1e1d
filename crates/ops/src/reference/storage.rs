//! Memory of the reference: counts of numbers, checks of their form, and their places in the cache.

use super::states::ReferenceStates;
use super::{DEVICE, ReferenceKv};
use crate::quant::{can_dequantize, dequantize_row, e4m3, quantize_row, to_e4m3};
use crate::{
    AttentionParams, BLOCK_TOKENS, Batch, DType, HeadShape, KernelError, KvLayout, KvSpec, KvType,
    LatentHeads, MatrixShape, MatrixSource, SequenceSpan,
};

/// Rounds elements of a head to a cache type.
pub(super) fn store(kv_type: KvType, from: &[f32], to: &mut [f32]) {
    match kv_type {
        KvType::F16 => store_rounded(DType::F16, from, to),
        KvType::Q8_0 => store_rounded(DType::Q8_0, from, to),
        KvType::Fp8 => to.iter_mut().zip(from).for_each(|(to, &from)| *to = e4m3(to_e4m3(from))),
    }
}

/// Rounds numbers by storing them in this type.
fn store_rounded(dtype: DType, from: &[f32], to: &mut [f32]) {
    let size = dtype.bytes_of(from.len()).expect("heads are whole blocks, because `kv` refuses others");
    let mut bytes = vec![0; size];
    quantize_row(dtype, from, &mut bytes);
    dequantize_row(dtype, &bytes, to);
}

/// Allocates numbers, or fails without memory.
pub(super) fn filled(count: usize, value: f32, what: &'static str) -> Result<Vec<f32>, KernelError> {
    let mut values = Vec::new();
    let bytes = count.saturating_mul(size_of::<f32>());
    let failed = |_| KernelError::OutOfMemory { device: DEVICE.to_owned(), bytes, what };
    values.try_reserve_exact(count).map_err(failed)?;
    values.resize(count, value);
    Ok(values)
}

/// Refuses a part of a matrix that does not have its stated form.
pub(super) fn check_source(part: &MatrixSource<'_>, cols_all: usize) -> Result<(), KernelError> {
    let MatrixShape { rows, cols, dtype } = part.shape;
    let tensor = part.name.to_owned();
    if !can_dequantize(dtype) {
        return Err(KernelError::UnsupportedType { tensor, dtype, device: DEVICE.to_owned() });
    }
    if cols != cols_all {
        let reason = format!("{cols} columns beside a part of {cols_all}");
        return Err(KernelError::BadShape { tensor, reason });
    }
    let Some(expected) = dtype.bytes_of(cols).and_then(|row| row.checked_mul(rows)) else {
        let reason = format!("a row of {cols} is not whole blocks of {} ({dtype})", dtype.block_weights());
        return Err(KernelError::BadShape { tensor, reason });
    };
    if part.bytes.len() != expected {
        return Err(KernelError::WrongSize { tensor, rows, cols, dtype, expected, found: part.bytes.len() });
    }
    Ok(())
}

/// Elements of the keys, or of the values, of a token in each plane of a cache.
pub(super) fn elements_per_slot(spec: &KvSpec) -> impl Iterator<Item = usize> {
    let elements = |layout: &KvLayout| match *layout {
        KvLayout::Heads { kv_heads, head_dim, .. } => kv_heads * head_dim,
        KvLayout::Latent { rank, rope_dim } => rank + rope_dim,
        KvLayout::State(_) => 0,
    };
    spec.planes().into_iter().map(move |layouts| layouts.iter().map(elements).max().unwrap_or(0))
}

impl ReferenceKv {
    pub(super) fn new(spec: &KvSpec) -> Result<ReferenceKv, KernelError> {
        spec.check()?;
        let heads_of = |layout: &KvLayout| match *layout {
            KvLayout::Heads { kv_heads, head_dim, .. } => (kv_heads, head_dim),
            KvLayout::Latent { rank, rope_dim } => (1, rank + rope_dim),
            KvLayout::State(_) => (0, 0),
        };
        let heads = spec.layers.iter().map(heads_of).collect();
        let latent = spec.layers.iter().map(|layout| matches!(layout, KvLayout::Latent { .. })).collect();
        let slots = spec.blocks * BLOCK_TOKENS;
        let mut elements = 0;
        let planes = elements_per_slot(spec)
            .map(|width| {
                let first = elements;
                elements += slots * width;
                (first, width)
            })
            .collect();
        let (keys, values) = (filled(elements, f32::NAN, "keys")?, filled(elements, f32::NAN, "values")?);
        let (kv_type, groups) = (spec.kv_type, spec.groups.clone());
        let states = ReferenceStates::of(spec)?;
        Ok(ReferenceKv { kv_type, slots, groups, heads, latent, planes, keys, values, states })
    }

    pub(super) fn at(&self, layer: usize, slot: usize, kv_head: usize) -> std::ops::Range<usize> {
        let (kv_heads, head_dim) = self.heads[layer];
        assert!(slot < self.slots && kv_head < kv_heads, "outside the cache");
        let (plane, width) = self.planes[self.groups.place(layer).plane];
        let first = plane + slot * width + kv_head * head_dim;
        first..first + head_dim
    }

    pub(super) fn check_heads(&self, shape: &HeadShape, layer: usize) {
        assert!(shape.heads.is_multiple_of(shape.kv_heads), "{shape:?}: key-value heads divide the heads");
        assert_eq!((shape.kv_heads, shape.head_dim), self.heads[layer], "heads and cache differ in shape");
        assert!(!self.latent[layer], "heads, and a cache of latents");
    }

    pub(super) fn check_latent(&self, shape: &LatentHeads, layer: usize) {
        assert_eq!((1, shape.width()), self.heads[layer], "latent and cache differ in shape");
        assert!(self.latent[layer], "a latent, and a cache of heads");
    }
}

/// Positions of the keys that row `row` of a sequence may see: up to itself, and of them the last `window` or those of
/// its chunk. Keys after itself are visible if the batch says so, whatever the window's start.
pub(crate) fn visible<V>(
    params: &AttentionParams<V>,
    batch: &Batch,
    span: &SequenceSpan,
    row: u32,
) -> std::ops::Range<u32> {
    let end = span.context - span.rows + row + 1;
    let first = |window| match params.chunked {
        true => (end - 1) / window * window,
        false => end.saturating_sub(window),
    };
    params.window.map_or(0, first)..batch.seen_by(span, row)
}
