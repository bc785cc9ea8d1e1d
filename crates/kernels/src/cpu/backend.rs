//! The backend on the reference's arithmetic.

use std::sync::Arc;

use super::{ThreadPool, Tier, Turn};
use crate::reference::{ReferenceBackend, ReferenceBuffer, ReferenceKv, ReferenceMatrix};
use crate::*;

/// Decoder steps on the processor's cores.
#[derive(Debug)]
pub struct CpuBackend {
    pool: Arc<ThreadPool>,
    tier: Tier,
    turn: Option<Turn>,
    inner: ReferenceBackend,
}

impl CpuBackend {
    /// A backend on a pool's threads.
    ///
    /// # Panics
    /// If this processor does not have the tier ([`Tier::is_available`]).
    pub fn new(pool: Arc<ThreadPool>, tier: Tier) -> CpuBackend {
        assert!(tier.is_available(), "this processor has no {tier}");
        CpuBackend { pool, tier, turn: None, inner: ReferenceBackend::new() }
    }
}

type V = <ReferenceBackend as Backend>::Vector;

impl Backend for CpuBackend {
    type Matrix = ReferenceMatrix;
    type Vector = V;
    type Buffer = ReferenceBuffer;
    type Kv = ReferenceKv;
    fn device(&self) -> String {
        format!("cpu: {}, {} threads", self.tier, self.pool.threads())
    }
    fn supports(&self, dtype: DType) -> bool {
        self.inner.supports(dtype)
    }
    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        self.inner.matrix_bytes(parts)
    }
    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError> {
        self.inner.pack(parts)
    }
    fn vector(&self, values: &[f32]) -> Result<V, KernelError> {
        self.inner.vector(values)
    }
    fn buffer(&self, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError> {
        self.inner.buffer(rows, cols)
    }
    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        self.inner.kv_bytes(spec)
    }
    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError> {
        self.inner.kv(spec)
    }
    fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        self.inner.scratch_bytes(limits)
    }
    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        self.inner.reserve(limits)
    }
    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        if self.turn.is_none() {
            self.turn = Some(self.pool.turn());
        }
        self.inner.begin(batch)
    }
    fn embed(&mut self, table: &Self::Matrix, scale: f32, out: &mut Self::Buffer) {
        self.inner.embed(table, scale, out);
    }
    fn rms_norm(&mut self, x: &Self::Buffer, weight: &V, eps: f32, out: &mut Self::Buffer) {
        self.inner.rms_norm(x, weight, eps, out);
    }
    fn add_rms_norm(
        &mut self,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &V,
        eps: f32,
        out: &mut Self::Buffer,
    ) {
        self.inner.add_rms_norm(residual, x, weight, eps, out);
    }
    fn matmul(&mut self, weight: &Self::Matrix, bias: Option<&V>, x: &Self::Buffer, out: &mut Self::Buffer) {
        self.inner.matmul(weight, bias, x, out);
    }
    fn rope(&mut self, qkv: &mut Self::Buffer, params: &QkvParams<'_, V>, kv: &mut Self::Kv, layer: usize) {
        self.inner.rope(qkv, params, kv, layer);
    }
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &AttentionParams<'_, V>,
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    ) {
        self.inner.attention(qkv, params, kv, layer, out);
    }
    fn gated_mlp(
        &mut self,
        gate_up: &Self::Matrix,
        down: &Self::Matrix,
        activation: Activation,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        self.inner.gated_mlp(gate_up, down, activation, x, hidden, out);
    }
    fn logits(&mut self, head: &Self::Matrix, x: &Self::Buffer, out: &mut [f32]) -> Result<(), KernelError> {
        self.inner.logits(head, x, out)
    }
    fn end(&mut self) -> Result<(), KernelError> {
        self.turn = None;
        self.inner.end()
    }
    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.inner.read_rows(x, row_first, out)
    }
    fn write_rows(
        &mut self,
        x: &mut Self::Buffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        self.inner.write_rows(x, row_first, rows)
    }
}
