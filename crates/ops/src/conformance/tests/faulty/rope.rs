//! Faults in the rotation of queries and keys on their way to the cache.

use super::{Fault, Faulty};
use crate::reference::{ReferenceBuffer, ReferenceKv, formulas};
use crate::{QkvParams, Rope, RopeKind};

impl Faulty {
    /// `rope_to_cache`.
    pub(super) fn turn_to_cache(
        &mut self,
        qkv: &mut ReferenceBuffer,
        params: &QkvParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        let layer = if self.fault == Fault::LayerIgnored { 0 } else { layer };
        let width = params.width();
        let head_dim = params.shape.head_dim;
        let mut longer = Vec::new();
        let mut rope = params.rope.as_ref().map(|rope| Rope { ..*rope });
        if let Some(rope) = &mut rope {
            match self.fault {
                Fault::KindSwapped => {
                    rope.kind = match rope.kind {
                        RopeKind::Neox => RopeKind::Interleaved,
                        RopeKind::Interleaved => RopeKind::Neox,
                    };
                }
                Fault::WholeHeadTurned => {
                    longer = rope.inv_freq.clone();
                    longer.resize(head_dim / 2, 1e-2);
                }
                Fault::MagnitudeIgnored => rope.magnitude = 1.0,
                Fault::AxesIgnored => rope.axes = None,
                Fault::SecondTableIgnored if rope.long.is_some() => {
                    longer = rope.inv_freq[..rope.pairs(rope.inv_freq.len())].to_vec();
                    rope.long = None;
                }
                Fault::TableMagnitudeIgnored => rope.long = rope.long.and(Some(rope.magnitude)),
                _ => {}
            }
            if !longer.is_empty() {
                rope.inv_freq = &longer;
            }
        }
        let mut changed = QkvParams { rope, ..*params };
        match self.fault {
            Fault::QueriesNotNormed => changed.q_norm = None,
            Fault::KeysNotNormed => changed.k_norm = None,
            Fault::NormBeforeRope => changed.norm_after_rope = false,
            Fault::QueryScaleIgnored => changed.query_scale = None,
            Fault::ValuesNotNormed => changed.values_normed = false,
            Fault::LoneQueriesNotTurned if params.queries_alone => changed.rope = None,
            Fault::HeadsNormedApart if params.q_norm.is_some_and(|norm| norm.len() > head_dim) => {
                let mut rows = self.rows_of(qkv, width);
                for head in rows.chunks_exact_mut(head_dim) {
                    let x = head.to_vec();
                    formulas::rms_norm(&x, &vec![1.0; head_dim], params.norm_eps, head);
                }
                self.store(qkv, rows);
            }
            Fault::KeysNotTurned => {
                // The cache gets normed keys; the queries are turned beside it.
                let raw = self.rows_of(qkv, width);
                self.inner.rope_to_cache(qkv, &QkvParams { rope: None, ..changed }, kv, layer);
                self.store(qkv, raw);
                self.inner.rope_to_cache(qkv, &changed, &mut kv.clone(), layer);
                return;
            }
            Fault::KeysByPosition => {
                // The cache gets keys turned by one position; the queries are turned by three beside it.
                let raw = self.rows_of(qkv, width);
                let rope = changed.rope.as_ref().map(|rope| Rope { axes: None, ..*rope });
                self.inner.rope_to_cache(qkv, &QkvParams { rope, ..changed }, kv, layer);
                self.store(qkv, raw);
                self.inner.rope_to_cache(qkv, &changed, &mut kv.clone(), layer);
                return;
            }
            Fault::NormAfterRope => {
                let norms = (changed.q_norm, changed.k_norm);
                (changed.q_norm, changed.k_norm) = (None, None);
                self.inner.rope_to_cache(qkv, &changed, &mut kv.clone(), layer);
                (changed.q_norm, changed.k_norm) = norms;
                changed.rope = None;
            }
            Fault::ValuesTurned if !params.queries_alone => {
                let mut rows = self.rows_of(qkv, width);
                if let Some(rope) = &changed.rope {
                    for (row, &position) in rows.chunks_exact_mut(width).zip(&self.batch.positions) {
                        let first = width - params.shape.kv_heads * head_dim;
                        for head in row[first..].chunks_exact_mut(head_dim) {
                            formulas::rotate(head, rope.kind, rope.inv_freq, rope.magnitude, position);
                        }
                    }
                }
                self.store(qkv, rows);
            }
            _ => {}
        }
        self.inner.rope_to_cache(qkv, &changed, kv, layer);
        self.restore(qkv);
    }
}
