//! [`Op::visit`]: what an op reads and writes, for passes over ops.

use super::op::{Buckets, Op, OpClass};
use super::operands::{BufferId, ExpertsId, HeadsId, KvId, LowRankId, MatrixId, VectorId};
use crate::{PositionBias, RowOp, SelfAttentionParams};

/// What an op does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the batch's rows.
    Read,
    /// Reads them and leaves others.
    Change,
    /// Leaves rows that do not depend on those before.
    Write,
    /// Names the buffer alone.
    Unread,
}

/// A look at the operands of an op. Each may be replaced by another.
pub trait Visitor {
    /// A packed matrix.
    fn matrix(&mut self, id: &mut MatrixId);
    /// A vector.
    fn vector(&mut self, id: &mut VectorId);
    /// Experts of a layer.
    fn experts(&mut self, id: &mut ExpertsId);
    /// Matrices of heads.
    fn heads(&mut self, id: &mut HeadsId);
    /// Additions of an adapter.
    fn low_rank(&mut self, id: &mut LowRankId);
    /// Activations.
    fn buffer(&mut self, id: &mut BufferId, access: Access);
    /// A layer of a KV cache.
    fn kv(&mut self, id: &mut KvId, layer: &mut usize);
}

/// Parameters with the vectors that a visitor puts in.
fn vectors<V: Visitor>(to: &mut V) -> impl FnMut(VectorId) -> VectorId + '_ {
    |mut id| {
        to.vector(&mut id);
        id
    }
}

impl Op {
    /// Shows each operand to a visitor.
    pub fn visit(&mut self, to: &mut impl Visitor) {
        match self.class() {
            OpClass::Row => self.visit_row_op(to),
            OpClass::Product => self.visit_product(to),
            OpClass::Cache => self.visit_cache_op(to),
            OpClass::Encoder => self.visit_encoder_op(to),
        }
    }

    /// The KV cache and the layer of it that an op works on.
    pub fn kv_layer(&self) -> Option<(KvId, usize)> {
        match *self {
            Op::RopeToCache { kv, layer, .. }
            | Op::Attention { kv, layer, .. }
            | Op::LatentToCache { kv, layer, .. }
            | Op::LatentAttention { kv, layer, .. }
            | Op::Convolve { kv, layer, .. }
            | Op::Recur { kv, layer, .. } => Some((kv, layer)),
            _ => None,
        }
    }

    /// Ops that treat each row by itself, and hold no product.
    fn visit_row_op(&mut self, to: &mut impl Visitor) {
        use Access::{Change, Read, Unread, Write};
        match self {
            Op::Embed { table, out, .. } => {
                to.matrix(table);
                to.buffer(out, Write);
            }
            Op::AddEmbedding { table, out, .. } => {
                to.matrix(table);
                to.buffer(out, Change);
            }
            Op::RmsNorm { x, weight, out, .. } => {
                to.vector(weight);
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::AddRmsNorm { residual, x, weight, out, .. } => {
                to.vector(weight);
                to.buffer(residual, Change);
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::AddBias { bias, out } => {
                to.vector(bias);
                to.buffer(out, Change);
            }
            Op::Row { op, out } => {
                let access = if matches!(op, RowOp::Take { .. }) { Write } else { Change };
                let read = |mut id| {
                    to.buffer(&mut id, Read);
                    id
                };
                *op = op.with(read, |id| id);
                *op = op.with(|id| id, vectors(to));
                to.buffer(out, access);
            }
            Op::LayerNorm { x, params, out } => {
                *params = params.with(vectors(to));
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::AddLayerNorm { residual, x, params, out } => {
                *params = params.with(vectors(to));
                to.buffer(residual, Change);
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::LayerNormColumns { x, params, .. } => {
                *params = params.with(vectors(to));
                to.buffer(x, Change);
            }
            Op::GateOutput { gate, params, out } => {
                *params = params.with(vectors(to));
                to.buffer(gate, Read);
                to.buffer(out, Change);
            }
            Op::Gate { both, hidden, .. } => {
                to.buffer(both, Read);
                to.buffer(hidden, Write);
            }
            Op::AddShared { gate, x, shared, out } => {
                to.buffer(x, if gate.is_some() { Read } else { Unread });
                gate.iter_mut().for_each(|gate| to.vector(gate));
                to.buffer(shared, Read);
                to.buffer(out, Change);
            }
            Op::AllReduce { x } => to.buffer(x, Change),
            _ => unreachable!("not an op on rows: {self:?}"),
        }
    }

    /// Ops that multiply with packed weights.
    fn visit_product(&mut self, to: &mut impl Visitor) {
        use Access::{Change, Read, Write};
        match self {
            Op::MatMul { weight, bias, x, out } | Op::MatMulActivated { weight, bias, x, out, .. } => {
                to.matrix(weight);
                bias.iter_mut().for_each(|bias| to.vector(bias));
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::HeadsMatMul { weights, x, out } => {
                to.heads(weights);
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::GatedMlp { gate_up, down, x, hidden, out, .. } => {
                to.matrix(gate_up);
                to.matrix(down);
                to.buffer(x, Read);
                to.buffer(hidden, Write);
                to.buffer(out, Write);
            }
            Op::Gated { gate_up, x, hidden, .. } => {
                to.matrix(gate_up);
                to.buffer(x, Read);
                to.buffer(hidden, Write);
            }
            Op::AddLowRank { deltas, x, low, out } => {
                deltas.iter_mut().flatten().for_each(|delta| to.low_rank(delta));
                to.buffer(x, Read);
                low.iter_mut().for_each(|low| to.buffer(low, Write));
                to.buffer(out, Change);
            }
            Op::Moe { weights, x, hidden, out, .. } => {
                to.matrix(&mut weights.router);
                to.experts(&mut weights.experts);
                let vectors = [
                    &mut weights.router_bias,
                    &mut weights.correction,
                    &mut weights.up_bias,
                    &mut weights.down_bias,
                    &mut weights.expert_scale,
                ];
                vectors.into_iter().flatten().for_each(|vector| to.vector(vector));
                weights.routed.iter_mut().for_each(|routed| to.buffer(routed, Read));
                to.buffer(x, Read);
                to.buffer(hidden, Write);
                to.buffer(out, Write);
            }
            _ => unreachable!("not a product: {self:?}"),
        }
    }

    /// Ops over sequences and their cache.
    fn visit_cache_op(&mut self, to: &mut impl Visitor) {
        use Access::{Change, Read, Write};
        match self {
            Op::RopeToCache { qkv, params, kv, layer } => {
                *params = params.with(vectors(to));
                to.kv(kv, layer);
                to.buffer(qkv, Change);
            }
            Op::Attention { qkv, params, kv, layer, out } => {
                *params = params.with(vectors(to));
                to.kv(kv, layer);
                to.buffer(qkv, Read);
                to.buffer(out, Write);
            }
            Op::LatentToCache { latent, queries, params, kv, layer } => {
                *params = params.with(vectors(to));
                to.kv(kv, layer);
                to.buffer(latent, Change);
                to.buffer(queries, Change);
            }
            Op::LatentAttention { queries, kv, layer, out, .. } => {
                to.kv(kv, layer);
                to.buffer(queries, Read);
                to.buffer(out, Write);
            }
            Op::Convolve { x, params, kv, layer } => {
                *params = params.with(vectors(to));
                to.kv(kv, layer);
                to.buffer(x, Change);
            }
            Op::Recur { x, params, kv, layer, out } => {
                *params = params.with(vectors(to));
                to.kv(kv, layer);
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            _ => unreachable!("not an op on a cache: {self:?}"),
        }
    }

    /// Ops of encoders.
    fn visit_encoder_op(&mut self, to: &mut impl Visitor) {
        use Access::{Change, Read, Write};
        match self {
            Op::Unfold { x, out, .. } => {
                to.buffer(x, Read);
                to.buffer(out, Write);
            }
            Op::Rope { qkv, params } => {
                *params = params.with(vectors(to));
                to.buffer(qkv, Change);
            }
            Op::SelfAttention { qkv, params, out } | Op::AttendPart { qkv, params, out, .. } => {
                visit_bias(params, to);
                to.buffer(qkv, Read);
                to.buffer(out, Write);
            }
            _ => unreachable!("not an op of encoders: {self:?}"),
        }
    }
}

fn visit_bias(params: &mut SelfAttentionParams<VectorId, Buckets>, to: &mut impl Visitor) {
    match &mut params.bias {
        PositionBias::None => {}
        PositionBias::Alibi { slopes } => to.vector(slopes),
        PositionBias::ByDistance { table, .. } => to.vector(table),
        PositionBias::Disentangled { keys, queries, .. } => {
            keys.iter_mut().chain(queries).for_each(|vector| to.vector(vector));
        }
    }
}
