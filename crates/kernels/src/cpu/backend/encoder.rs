//! The encoders' ops on the processor's cores.

use super::{CpuBackend, CpuBuffer, CpuVector, qkv_job, table_row};
use crate::cpu::matrix::{CpuMatrix, unpack_row};
use crate::cpu::norm::{self, LayerNorm};
use crate::cpu::rope;
use crate::cpu::self_attention::{self, Bias, SelfAttentionJob};
use crate::cpu::unfold;
use crate::{EncoderOps, LayerNormParams, QkvParams, RowIds, SelfAttentionParams};

impl<'a> From<&LayerNormParams<'a, CpuVector>> for LayerNorm<'a> {
    fn from(params: &LayerNormParams<'a, CpuVector>) -> LayerNorm<'a> {
        let bias = params.bias.map(|bias| &bias.values[..]);
        LayerNorm { weight: &params.weight.values, bias, eps: params.eps }
    }
}

impl EncoderOps for CpuBackend {
    fn layer_norm_columns(
        &mut self,
        x: &mut CpuBuffer,
        first: usize,
        params: &LayerNormParams<'_, CpuVector>,
    ) {
        let step = self.step();
        let (rows, cols) = (step.batch.rows(), x.cols);
        x.check(rows, cols, "x");
        norm::layer_norm_columns(step.tier, step.turn, rows, &mut x.data, cols, first, params.into());
    }

    fn unfold(&mut self, x: &CpuBuffer, window: usize, out: &mut CpuBuffer) {
        let step = self.step();
        let (rows, cols) = (step.batch.rows(), x.cols);
        x.check(rows, cols, "x");
        out.check(rows, cols * window, "out");
        unfold::unfold(step.turn, step.batch, &x.data, cols, window, &mut out.data);
    }

    fn add_embedding(&mut self, table: &CpuMatrix, ids: RowIds, out: &mut CpuBuffer) {
        /// Numbers that are unpacked at a time: whole blocks of every kind.
        const PART: usize = 1024;
        let step = self.step();
        let (rows, cols) = (step.batch.rows(), table.cols());
        out.check(rows, cols, "out");
        let shared = out.data.shared();
        step.turn.run(rows, (1 << 14) / cols.max(1) + 1, &|_, range| {
            let mut part = [0.0; PART];
            for row in range {
                // SAFETY: the buffer holds the row (checked above), which is in one range of one thread.
                let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(row * cols), cols) };
                let (segment, row) = table_row(table, step.batch.table_row(ids, row));
                for (index, out) in out.chunks_mut(PART).enumerate() {
                    let part = &mut part[..out.len()];
                    unpack_row(segment, row, 1.0, index * PART, part);
                    out.iter_mut().zip(part).for_each(|(out, part)| *out += *part);
                }
            }
        });
    }

    fn rope(&mut self, qkv: &mut CpuBuffer, params: &QkvParams<'_, CpuVector>) {
        let step = self.step();
        qkv.check(step.batch.rows(), params.shape.qkv_width(), "qkv");
        let tables = &mut step.scratch.rope;
        rope::rope(step.tier, step.turn, tables, step.batch, &qkv_job(params), &mut qkv.data);
    }

    fn self_attention(
        &mut self,
        qkv: &CpuBuffer,
        params: &SelfAttentionParams<'_, CpuVector>,
        out: &mut CpuBuffer,
    ) {
        let step = self.step();
        qkv.check(step.batch.rows(), params.heads.qkv_width(), "qkv");
        out.check(step.batch.rows(), params.heads.q_width(), "out");
        let job = SelfAttentionJob {
            shape: params.heads,
            scale: params.scale,
            reach: params.reach,
            bias: Bias::new(&params.bias, params.heads, |vector| &vector.values),
        };
        let scratch = &mut step.scratch.self_attention;
        self_attention::self_attention(
            step.tier,
            step.turn,
            scratch,
            step.batch,
            &job,
            &qkv.data,
            &mut out.data,
        );
    }
}
