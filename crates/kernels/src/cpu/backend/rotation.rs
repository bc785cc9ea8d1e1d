//! Rotary embeddings and norms of heads, with the vectors' numbers in place of the vectors.

use super::CpuVector;
use crate::cpu::rope::{QkvJob, Rotation};
use crate::{QkvParams, Rope};

impl CpuVector {
    pub(super) fn rotation<'a>(rope: &Rope<'a, CpuVector>) -> Rotation<'a> {
        let Rope { kind, inv_freq, magnitude, axes } = *rope;
        Rotation { kind, inv_freq: &inv_freq.values, id: inv_freq.id, magnitude, axes }
    }
}

/// What is done to queries and keys, with the vectors' numbers in place of the vectors.
pub(super) fn qkv_job<'a>(params: &'a QkvParams<'_, CpuVector>) -> QkvJob<'a> {
    QkvJob {
        shape: params.shape,
        q_norm: params.q_norm.map(|norm| &norm.values[..]),
        k_norm: params.k_norm.map(|norm| &norm.values[..]),
        norm_eps: params.norm_eps,
        norm_after_rope: params.norm_after_rope,
        query_scale: params.query_scale,
        rotation: params.rope.as_ref().map(CpuVector::rotation),
    }
}
