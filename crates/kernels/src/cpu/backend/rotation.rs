//! Rotary embeddings and norms of heads, with vectors replaced by their numbers.

use super::{CpuBuffer, CpuVector, OpenStep};
use crate::cpu::kv::CpuKv;
use crate::cpu::rope::{self, QkvJob, Rotation};
use hanzo_engine_ops::{HeadShape, QkvParams, Rope};

impl CpuVector {
    pub(super) fn rotation<'a>(rope: &Rope<&'a CpuVector>) -> Rotation<'a> {
        let Rope { kind, inv_freq, magnitude, axes, long } = *rope;
        let (first, second) = inv_freq.values.split_at(rope.pairs(inv_freq.values.len()));
        let long = long.map(|magnitude| (second, magnitude));
        Rotation { kind, inv_freq: first, id: inv_freq.id, magnitude, axes, long }
    }
}

/// Parameters for queries and keys, with vectors replaced by their numbers.
pub(super) fn qkv_job<'a>(params: &'a QkvParams<&CpuVector>) -> QkvJob<'a> {
    QkvJob {
        shape: params.shape,
        q_norm: params.q_norm.map(|norm| &norm.values[..]),
        k_norm: params.k_norm.map(|norm| &norm.values[..]),
        norm_eps: params.norm_eps,
        norm_after_rope: params.norm_after_rope,
        query_scale: params.query_scale,
        rotation: params.rope.as_ref().map(CpuVector::rotation),
        values_normed: params.values_normed,
    }
}

impl OpenStep<'_> {
    /// The contract's `rope_to_cache`.
    pub(super) fn rope_to_cache(
        &mut self,
        qkv: &mut CpuBuffer,
        params: &QkvParams<&CpuVector>,
        kv: &mut CpuKv,
        layer: usize,
    ) {
        qkv.check(self.batch.rows(), params.width(), "qkv");
        let (tables, job) = (&mut self.scratch.rope, qkv_job(params));
        if params.queries_alone {
            let shape = HeadShape { kv_heads: 0, ..params.shape };
            let job = QkvJob { shape, k_norm: None, ..job };
            return rope::rope(self.cores.lend(), tables, self.batch, &job, &mut qkv.data);
        }
        let kv = kv.layer_mut(layer, &params.shape);
        rope::rope_to_cache(self.cores.lend(), tables, self.batch, &job, &mut qkv.data, kv);
    }
}
