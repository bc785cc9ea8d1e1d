//! Ops of a backend by method, for tests that look into the backend itself.

use hanzo_engine_ops::{Activation, AttentionParams, Backend, DeviceMemory, Op, QkvParams};

type BufferOf<B> = <B as DeviceMemory>::Buffer;
type MatrixOf<B> = <B as DeviceMemory>::Matrix;
type VectorOf<B> = <B as DeviceMemory>::Vector;

/// Ops that tests run on a backend of a known type.
pub(crate) trait TypedOps: Backend {
    fn matmul(&mut self, weight: &MatrixOf<Self>, x: &BufferOf<Self>, out: &mut BufferOf<Self>) {
        self.run(Op::MatMul { weight, bias: None, x, out });
    }

    fn rms_norm(&mut self, x: &BufferOf<Self>, weight: &VectorOf<Self>, eps: f32, out: &mut BufferOf<Self>) {
        self.run(Op::RmsNorm { x, weight, eps, out });
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut BufferOf<Self>,
        x: &BufferOf<Self>,
        weight: &VectorOf<Self>,
        eps: f32,
        out: &mut BufferOf<Self>,
    ) {
        self.run(Op::AddRmsNorm { residual, x, weight, eps, out });
    }

    fn rope_to_cache(
        &mut self,
        qkv: &mut BufferOf<Self>,
        params: QkvParams<&VectorOf<Self>>,
        kv: &mut Self::Kv,
        layer: usize,
    ) {
        self.run(Op::RopeToCache { qkv, params, kv, layer });
    }

    fn attention(
        &mut self,
        qkv: &BufferOf<Self>,
        params: AttentionParams<&VectorOf<Self>>,
        kv: &mut Self::Kv,
        layer: usize,
        out: &mut BufferOf<Self>,
    ) {
        self.run(Op::Attention { qkv, params, kv, layer, out });
    }

    fn gated_mlp(
        &mut self,
        [gate_up, down]: [&MatrixOf<Self>; 2],
        activation: Activation,
        x: &BufferOf<Self>,
        hidden: &mut BufferOf<Self>,
        out: &mut BufferOf<Self>,
    ) {
        self.run(Op::GatedMlp { gate_up, down, activation, x, hidden, out });
    }
}

impl<B: Backend> TypedOps for B {}
