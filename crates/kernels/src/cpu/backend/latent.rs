//! Ops of latent attention, and sampling of rows.

use super::{CpuBuffer, CpuVector, OpenStep};
use crate::cpu::aligned::SharedPointer;
use crate::cpu::attention::{self, AttentionJob};
use crate::cpu::kv::LayerKv;
use crate::cpu::latent::{self, LatentJob};
use crate::cpu::matmul::Product;
use crate::cpu::matrix::CpuMatrix;
use crate::cpu::scratch::Scratch;
use hanzo_engine_ops::{HeadShape, LatentHeads, LatentParams, SampleSpecs};

impl OpenStep<'_> {
    /// The contract's `heads_matmul`.
    pub(super) fn heads_matmul(&mut self, weights: &[CpuMatrix], x: &CpuBuffer, out: &mut CpuBuffer) {
        let rows = self.batch.rows();
        x.check(rows, x.cols, "x");
        out.check(rows, out.cols, "out");
        let Scratch { activations, plan, panels, latent, limits, .. } = &mut *self.scratch;
        let width: usize = weights.iter().map(|weight| weight.rows() + weight.cols()).sum();
        assert!(width <= limits.heads_matmul_width, "heads wider than the step limits");
        assert!(weights.len() <= limits.heads.heads, "more heads than the step limits");
        let mut product =
            Product { tier: self.cores.tier, turn: self.cores.turn, activations, plan, scratch: panels };
        latent::heads_matmul(&mut product, latent, rows, weights, x.rows(), out.rows_mut());
    }

    /// The contract's `latent_to_cache`.
    pub(super) fn latent_to_cache(
        &mut self,
        latent: &mut CpuBuffer,
        queries: &mut CpuBuffer,
        params: &LatentParams<&CpuVector>,
        kv: LayerKv<&mut [u8]>,
    ) {
        let (rows, shape) = (self.batch.rows(), params.shape);
        latent.check(rows, shape.width(), "latent");
        queries.check(rows, shape.heads * shape.width(), "queries");
        let (norm, rotation) = (&params.norm.values[..], CpuVector::rotation(&params.rope));
        let job = LatentJob::new(shape, norm, params.norm_eps, rotation);
        let (cores, tables) = (self.cores.lend(), &mut self.scratch.rope);
        latent::to_cache(cores, tables, self.batch, &job, &mut latent.data, &mut queries.data, kv);
    }

    /// The contract's `latent_attention`.
    pub(super) fn latent_attention(
        &mut self,
        queries: &CpuBuffer,
        shape: LatentHeads,
        scale: f32,
        kv: LayerKv<&[u8]>,
        out: &mut CpuBuffer,
    ) {
        let (rows, width) = (self.batch.rows(), shape.width());
        queries.check(rows, shape.heads * width, "queries");
        out.check(rows, shape.heads * shape.rank, "out");
        let job = AttentionJob {
            kv,
            shape: HeadShape { heads: shape.heads, kv_heads: 1, head_dim: width },
            q_stride: shape.heads * width,
            value_dim: shape.rank,
            latent: true,
            scale,
            softcap: None,
            window: None,
            chunked: false,
            memory: false,
            sinks: None,
            slopes: None,
        };
        let scratch = &mut self.scratch.attention;
        attention::attention(self.cores.lend(), scratch, self.batch, &job, &queries.data, &mut out.data);
    }

    /// Draws a token for each row of logits, in parallel, each row on one thread.
    pub(super) fn draw(&mut self, vocab: usize, specs: &SampleSpecs, room: &mut [f32]) {
        let rows = self.batch.logit_rows.len();
        assert_eq!(specs.rows.len(), rows, "a spec for each logit row");
        assert!(self.scratch.draws.len() >= self.cores.turn.threads(), "scratch for every thread");
        let (draws, logits) = (SharedPointer::new(self.draws.rows(rows)), SharedPointer::new(room));
        let threads = SharedPointer::new(&mut self.scratch.draws);
        self.cores.turn.run(rows, 1, &|thread, range| {
            // SAFETY: there is one for each thread, checked above, and no other thread uses this one's.
            let scratch = unsafe { &mut *threads.get().add(thread) };
            for row in range {
                // SAFETY: there is a draw for each row, and a row of logits, as `logits` has checked; a row is in one
                // range of one thread.
                let (draw, logits) = unsafe {
                    let logits = std::slice::from_raw_parts_mut(logits.get().add(row * vocab), vocab);
                    (&mut *draws.get().add(row), logits)
                };
                draw.make(specs, row, logits, scratch);
            }
        });
    }
}
