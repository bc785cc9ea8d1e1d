//! Faults of latent attention.

use super::{Fault, Faulty, Part, renumber_slots};
use crate::reference::{ReferenceBuffer, ReferenceKv};
use crate::{BufferRole, DeviceMemory, LatentHeads, LatentParams, Rope};

impl Faulty {
    /// `heads_matmul` of rows of `x`, in which each head has `stride` elements.
    pub(super) fn by_head(&self, weights: &[Vec<Part>], x: &[f32], stride: usize) -> Vec<f32> {
        let cols = weights[0][0].shape.cols;
        let mut out = Vec::new();
        for (i, x) in x.chunks_exact(stride).enumerate() {
            let head = if self.fault == Fault::FirstHeadsMatrix { 0 } else { i % weights.len() };
            out.extend(self.product(&weights[head], None, &x[..cols]));
            let kept = if self.fault == Fault::RestZeroed { 0.0 } else { 1.0 };
            out.extend(x[cols..].iter().map(|x| kept * x));
        }
        out
    }

    /// `latent_to_cache`.
    pub(super) fn latents(
        &mut self,
        latent: &mut ReferenceBuffer,
        queries: &mut ReferenceBuffer,
        params: &LatentParams<&Vec<f32>>,
        kv: &mut ReferenceKv,
        layer: usize,
    ) {
        let before = self.rows_of(queries, queries.cols());
        let ones = vec![1.0; params.norm.len()];
        let norm = if self.fault == Fault::NormWeightIgnored { &ones } else { params.norm };
        let params = LatentParams { norm, rope: Rope { ..params.rope }, ..*params };
        self.inner.latent_to_cache(latent, queries, &params, kv, layer);
        if self.fault == Fault::QueriesNotTurned {
            self.store(queries, before);
        }
        self.restore(queries);
    }

    /// `latent_attention`.
    pub(super) fn attend_latents(
        &mut self,
        queries: &ReferenceBuffer,
        shape: LatentHeads,
        scale: f32,
        kv: &ReferenceKv,
        layer: usize,
        out: &mut ReferenceBuffer,
    ) {
        let scale = if self.fault == Fault::ScaleIgnored { 1.0 } else { scale };
        if self.fault == Fault::RowsOfChunkMatter && self.batch.rows() > 1 {
            let mut rows = self.rows_of(queries, queries.cols());
            rows.iter_mut().for_each(|q| *q *= 1.0 + 4.0 * f32::EPSILON);
            let mut moved =
                self.inner.buffer(BufferRole::Operand, self.batch.rows(), queries.cols()).unwrap();
            self.inner.write_rows(&mut moved, 0, &rows).unwrap();
            return self.inner.latent_attention(&moved, shape, scale, kv, layer, out);
        }
        if self.fault == Fault::TablesIgnored {
            let mut batch = self.batch.clone();
            batch.block_tables.iter_mut().enumerate().for_each(|(i, block)| *block = i as u32);
            renumber_slots(&mut batch);
            return self.with_batch(&batch, |inner| {
                inner.latent_attention(queries, shape, scale, kv, layer, out);
            });
        }
        self.inner.latent_attention(queries, shape, scale, kv, layer, out);
    }
}
