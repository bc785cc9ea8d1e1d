//! The encoders' ops on CPU cores.

use std::ops::Range;

use super::{CpuBackend, CpuBuffer, CpuVector, qkv_job};
use crate::cpu::norm::LayerNorm;
use crate::cpu::rope;
use crate::cpu::self_attention::{self, Bias, SelfAttentionJob};
use crate::cpu::unfold;
use hanzo_engine_ops::{LayerNormParams, QkvParams, SelfAttentionParams};

impl<'a> From<&LayerNormParams<&'a CpuVector>> for LayerNorm<'a> {
    fn from(params: &LayerNormParams<&'a CpuVector>) -> LayerNorm<'a> {
        let bias = params.bias.map(|bias| &bias.values[..]);
        LayerNorm { weight: &params.weight.values, bias, eps: params.eps }
    }
}

impl CpuBackend {
    pub(super) fn unfold(&mut self, x: &CpuBuffer, window: usize, out: &mut CpuBuffer) {
        let step = self.step();
        let (rows, cols) = (step.batch.rows(), x.cols);
        x.check(rows, cols, "x");
        out.check(rows, cols * window, "out");
        unfold::unfold(step.cores.turn, step.batch, &x.data, cols, window, &mut out.data);
    }

    pub(super) fn rope(&mut self, qkv: &mut CpuBuffer, params: &QkvParams<&CpuVector>) {
        let mut step = self.step();
        qkv.check(step.batch.rows(), params.shape.qkv_width(), "qkv");
        let tables = &mut step.scratch.rope;
        rope::rope(step.cores.lend(), tables, step.batch, &qkv_job(params), &mut qkv.data);
    }

    pub(super) fn self_attention(
        &mut self,
        qkv: &CpuBuffer,
        params: &SelfAttentionParams<&CpuVector, &[u32]>,
        out: &mut CpuBuffer,
    ) {
        let mut step = self.step();
        qkv.check(step.batch.rows(), params.heads.qkv_width(), "qkv");
        out.check(step.batch.rows(), params.heads.q_width(), "out");
        let job = job_of(params);
        let scratch = &mut step.scratch.self_attention;
        self_attention::self_attention(
            step.cores.lend(),
            scratch,
            step.batch,
            &job,
            &qkv.data,
            &mut out.data,
        );
    }

    pub(super) fn attend_part(
        &mut self,
        qkv: &CpuBuffer,
        rows: Range<usize>,
        queries: Range<usize>,
        params: &SelfAttentionParams<&CpuVector, &[u32]>,
        out: &mut CpuBuffer,
    ) {
        let mut step = self.step();
        qkv.check(rows.end, params.heads.qkv_width(), "qkv");
        out.check(queries.len(), params.heads.q_width(), "out");
        assert_eq!(queries.len(), step.batch.rows(), "a row of the batch for each query");
        let job = job_of(params);
        let scratch = &mut step.scratch.self_attention;
        let qkv = &qkv.data[rows.start * qkv.cols..rows.end * qkv.cols];
        self_attention::some_queries(step.cores.lend(), scratch, queries, &job, qkv, &mut out.data);
    }
}

/// Settings in the kernels' form.
fn job_of<'a>(params: &SelfAttentionParams<&'a CpuVector, &'a [u32]>) -> SelfAttentionJob<'a> {
    SelfAttentionJob {
        shape: params.heads,
        scale: params.scale,
        reach: params.reach,
        padding: params.padding,
        bias: Bias::new(&params.bias, params.heads, |vector| &vector.values),
    }
}
