//! Reference implementation of attention of heads over the cache.

use super::encoder::{norm_all, prepare};
use super::storage::{store, visible};
use super::{ReferenceBuffer, ReferenceKv, formulas};
use crate::{AttentionParams, Batch, HeadShape, MemorySpan, QkvParams};

/// The contract's `rope_to_cache`.
pub(super) fn to_cache(
    batch: &Batch,
    qkv: &mut ReferenceBuffer,
    params: &QkvParams<&Vec<f32>>,
    kv: &mut ReferenceKv,
    layer: usize,
) {
    let HeadShape { heads, kv_heads, head_dim } = params.shape;
    qkv.check(batch.rows(), params.width(), "qkv");
    kv.check_heads(&params.shape, layer);
    for row in 0..batch.rows() {
        let slot = batch.row_slot(row, kv.groups.place(layer).group);
        let (queries, rest) = qkv.row_mut(row).split_at_mut(heads * head_dim);
        let (keys, values) = rest.split_at_mut(if params.queries_alone { 0 } else { kv_heads * head_dim });
        let q_norm = norm_all(queries, params.q_norm, params);
        for query in queries.chunks_exact_mut(head_dim) {
            prepare(query, q_norm, params, batch, row);
            if let Some(scale) = &params.query_scale {
                let factor = scale.at(batch.positions[row]);
                query.iter_mut().for_each(|element| *element *= factor);
            }
        }
        let k_norm = norm_all(keys, params.k_norm, params);
        for (kv_head, (key, value)) in
            keys.chunks_exact_mut(head_dim).zip(values.chunks_exact_mut(head_dim)).enumerate()
        {
            if params.values_normed {
                let plain = value.to_vec();
                formulas::rms_norm(&plain, &vec![1.0; head_dim], params.norm_eps, value);
            }
            prepare(key, k_norm, params, batch, row);
            let at = kv.at(layer, slot, kv_head);
            store(kv.kv_type, key, &mut kv.keys[at.clone()]);
            store(kv.kv_type, value, &mut kv.values[at]);
        }
    }
}

/// The contract's `attention`.
pub(super) fn attention(
    batch: &Batch,
    qkv: &ReferenceBuffer,
    params: &AttentionParams<&Vec<f32>>,
    kv: &ReferenceKv,
    layer: usize,
    out: &mut ReferenceBuffer,
) {
    let HeadShape { heads, kv_heads, head_dim } = params.shape;
    qkv.check(batch.rows(), params.width(), "qkv");
    out.check(batch.rows(), params.shape.q_width(), "out");
    kv.check_heads(&params.shape, layer);
    let group = kv.groups.place(layer).group;
    let kept = kv.groups.window(group);
    assert!(
        kept.is_none_or(|kept| params.window.is_some_and(|window| window <= kept)),
        "a window beyond what its layer's group keeps"
    );
    assert!(params.sinks.is_none_or(|sinks| sinks.len() == heads), "one sink a head");
    assert!(params.slopes.is_none_or(|slopes| slopes.len() == heads), "one slope a head");
    assert!(!params.memory || params.window.is_none() && params.slopes.is_none(), "a memory has no places");
    assert!(batch.sees.is_empty() || params.slopes.is_none(), "what is behind a row is at no distance of it");
    for span in &batch.sequences {
        for row in 0..span.rows {
            let seen = |memory: &&MemorySpan| {
                (memory.row_first..memory.row_first + memory.rows).contains(&(span.row_first + row))
            };
            let memory = if params.memory { batch.memories.iter().find(seen) } else { None };
            if params.memory && memory.is_none() {
                out.row_mut((span.row_first + row) as usize).fill(0.0);
                continue;
            }
            let keys = match memory {
                Some(memory) => memory.first..memory.context,
                None => visible(params, batch, span, row),
            };
            let position = span.context - span.rows + row;
            let slot = |key| match memory {
                Some(memory) => batch.memory_slot(memory, key),
                None => batch.slot(span, group, key),
            };
            let slots: Vec<usize> = keys.clone().map(slot).collect();
            let row = (span.row_first + row) as usize;
            for head in 0..heads {
                let kv_head = head * kv_heads / heads;
                let at = head * head_dim..(head + 1) * head_dim;
                let query = &qkv.row(row)[at.clone()];
                let key = |&slot: &usize| &kv.keys[kv.at(layer, slot, kv_head)];
                let value = |&slot: &usize| &kv.values[kv.at(layer, slot, kv_head)];
                let mut scores: Vec<f64> = slots
                    .iter()
                    .map(|slot| formulas::score(query, key(slot), params.scale, params.softcap))
                    .collect();
                if let Some(slopes) = params.slopes {
                    formulas::lose_by_distance(&mut scores, slopes[head], position, keys.clone());
                }
                let sink = params.sinks.map(|sinks| sinks[head]);
                formulas::attend(&mut scores, slots.iter().map(value), sink, &mut out.row_mut(row)[at]);
            }
        }
    }
}
