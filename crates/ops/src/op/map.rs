//! [`Op::map`]: an op with other operands, for devices and for passes over ops.

use std::cell::{Cell, RefCell};

use super::operands::{BufferId, ExpertsId, HeadsId, KvId, LowRankId, MatrixId, VectorId};
use super::{Buckets, Op};
use crate::{MoeOperands, PositionBias, RowOp, SelfAttentionParams};

/// Access of an op to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The op reads the batch's rows.
    Read,
    /// The op reads the batch's rows and overwrites them.
    Change,
    /// The op overwrites the batch's rows and does not read them.
    Write,
    /// The op names the buffer, and neither reads nor writes it.
    Unread,
}

/// Map from operands by number to operands of another kind.
pub trait OperandMap<'a> {
    /// Packed matrix.
    type Matrix: Copy;
    /// Vector.
    type Vector: Copy;
    /// Experts of a layer.
    type Experts: Copy;
    /// Matrices of single heads.
    type Heads;
    /// Change of one adapter to one matrix.
    type LowRank;
    /// Activations that the op reads.
    type Read: Copy;
    /// Activations that the op writes.
    type Write;
    /// KV cache.
    type Kv;
    /// Buckets of a position bias.
    type Buckets;

    /// A packed matrix.
    fn matrix(&self, id: MatrixId) -> Self::Matrix;
    /// A vector.
    fn vector(&self, id: VectorId) -> Self::Vector;
    /// Experts of a layer.
    fn experts(&self, id: ExpertsId) -> Self::Experts;
    /// Matrices of single heads.
    fn heads(&self, id: HeadsId) -> Self::Heads;
    /// An adapter's change.
    fn low_rank(&self, id: LowRankId) -> Self::LowRank;
    /// A buffer that is read, or only named.
    fn read(&self, id: BufferId, access: Access) -> Self::Read;
    /// A buffer that is written or changed.
    fn write(&self, id: BufferId, access: Access) -> Self::Write;
    /// A layer of a KV cache, and its number there.
    fn kv(&self, id: KvId, layer: usize) -> (Self::Kv, usize);
    /// Buckets of a position bias.
    fn buckets(&self, buckets: &'a Buckets) -> Self::Buckets;
}

/// An op with the operands that a map makes.
pub type MappedOp<'a, T> = Op<
    <T as OperandMap<'a>>::Matrix,
    <T as OperandMap<'a>>::Vector,
    <T as OperandMap<'a>>::Experts,
    <T as OperandMap<'a>>::Heads,
    <T as OperandMap<'a>>::LowRank,
    <T as OperandMap<'a>>::Read,
    <T as OperandMap<'a>>::Write,
    <T as OperandMap<'a>>::Kv,
    <T as OperandMap<'a>>::Buckets,
>;

impl Op {
    /// The op with other operands.
    pub fn map<'a, T: OperandMap<'a>>(&'a self, to: &T) -> MappedOp<'a, T> {
        let mapped = self.map_row_op(to).or_else(|| self.map_product(to));
        let mapped = mapped.or_else(|| self.map_cache_op(to)).or_else(|| self.map_sequence_op(to));
        mapped.or_else(|| self.map_line_op(to)).expect("each op is in one of the lists below")
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

    /// Buffers that the op writes or changes. The list is made without an allocation.
    pub(crate) fn written(&self) -> [Option<BufferId>; WRITTEN_MAX] {
        if let Op::AddLowRank { low, out, .. } = *self {
            return [Some(out), low];
        }
        let list = WrittenList::default();
        self.map(&list);
        list.0.map(Cell::into_inner)
    }

    /// Buffers that the op names, each with its access.
    pub fn buffers(&self) -> Vec<(BufferId, Access)> {
        let list = BufferList::default();
        self.map(&list);
        list.0.into_inner()
    }

    /// Ops that treat each row alone and hold no product.
    fn map_row_op<'a, T: OperandMap<'a>>(&'a self, to: &T) -> Option<MappedOp<'a, T>> {
        use Access::{Change, Read, Unread, Write};
        let vector = |id| to.vector(id);
        Some(match *self {
            Op::Embed { table, scale, out } => {
                Op::Embed { table: to.matrix(table), scale, out: to.write(out, Write) }
            }
            Op::AddEmbedding { table, ids, out } => {
                Op::AddEmbedding { table: to.matrix(table), ids, out: to.write(out, Change) }
            }
            Op::RmsNorm { x, weight, eps, out } => {
                Op::RmsNorm { x: to.read(x, Read), weight: to.vector(weight), eps, out: to.write(out, Write) }
            }
            Op::AddRmsNorm { residual, x, weight, eps, out } => Op::AddRmsNorm {
                residual: to.write(residual, Change),
                x: to.read(x, Read),
                weight: to.vector(weight),
                eps,
                out: to.write(out, Write),
            },
            Op::AddBias { bias, out } => Op::AddBias { bias: to.vector(bias), out: to.write(out, Change) },
            Op::Row { ref op, out } => {
                let overwrites = matches!(op, RowOp::Take { .. } | RowOp::Mix { .. });
                let access = if overwrites { Write } else { Change };
                let mapped = op.with(|id| to.read(id, Read), vector);
                Op::Row { op: mapped, out: to.write(out, access) }
            }
            Op::LayerNorm { x, ref params, out } => {
                Op::LayerNorm { x: to.read(x, Read), params: params.with(vector), out: to.write(out, Write) }
            }
            Op::AddLayerNorm { residual, x, ref params, out } => Op::AddLayerNorm {
                residual: to.write(residual, Change),
                x: to.read(x, Read),
                params: params.with(vector),
                out: to.write(out, Write),
            },
            Op::LayerNormColumns { x, columns, ref params } => {
                Op::LayerNormColumns { x: to.write(x, Change), columns, params: params.with(vector) }
            }
            Op::GateOutput { gate, ref params, out } => Op::GateOutput {
                gate: to.read(gate, Read),
                params: params.with(vector),
                out: to.write(out, Change),
            },
            Op::Gate { activation, both, hidden } => {
                Op::Gate { activation, both: to.read(both, Read), hidden: to.write(hidden, Write) }
            }
            Op::AddShared { gate, x, shared, out } => Op::AddShared {
                x: to.read(x, if gate.is_some() { Read } else { Unread }),
                gate: gate.map(vector),
                shared: to.read(shared, Read),
                out: to.write(out, Change),
            },
            Op::Activate { ref activation, out } => {
                Op::Activate { activation: activation.with(vector), out: to.write(out, Change) }
            }
            Op::CodebookLookup { tables, entries, codes, out } => Op::CodebookLookup {
                tables: to.matrix(tables),
                entries,
                codes: to.read(codes, Read),
                out: to.write(out, Write),
            },
            Op::AllReduce { x } => Op::AllReduce { x: to.write(x, Change) },
            _ => return None,
        })
    }

    /// Ops that multiply with packed weights.
    fn map_product<'a, T: OperandMap<'a>>(&'a self, to: &T) -> Option<MappedOp<'a, T>> {
        use Access::{Change, Read, Write};
        Some(match *self {
            Op::MatMul { weight, bias, x, out } => Op::MatMul {
                weight: to.matrix(weight),
                bias: bias.map(|bias| to.vector(bias)),
                x: to.read(x, Read),
                out: to.write(out, Write),
            },
            Op::MatMulActivated { weight, bias, activation, x, out } => Op::MatMulActivated {
                weight: to.matrix(weight),
                bias: bias.map(|bias| to.vector(bias)),
                activation,
                x: to.read(x, Read),
                out: to.write(out, Write),
            },
            Op::HeadsMatMul { weights, x, out } => {
                Op::HeadsMatMul { weights: to.heads(weights), x: to.read(x, Read), out: to.write(out, Write) }
            }
            Op::GatedMlp { gate_up, down, activation, x, hidden, out } => Op::GatedMlp {
                gate_up: to.matrix(gate_up),
                down: to.matrix(down),
                activation,
                x: to.read(x, Read),
                hidden: to.write(hidden, Write),
                out: to.write(out, Write),
            },
            Op::Gated { gate_up, activation, x, hidden } => Op::Gated {
                gate_up: to.matrix(gate_up),
                activation,
                x: to.read(x, Read),
                hidden: to.write(hidden, Write),
            },
            Op::AddLowRank { ref deltas, x, low, out } => Op::AddLowRank {
                deltas: deltas.iter().map(|delta| delta.map(|delta| to.low_rank(delta))).collect(),
                x: to.read(x, Read),
                low: low.map(|low| to.write(low, Write)),
                out: to.write(out, Change),
            },
            Op::Moe { ref weights, params, x, hidden, out } => Op::Moe {
                weights: mapped_experts(weights, to),
                params,
                x: to.read(x, Read),
                hidden: to.write(hidden, Write),
                out: to.write(out, Write),
            },
            _ => return None,
        })
    }

    /// Ops over sequences and their cache.
    fn map_cache_op<'a, T: OperandMap<'a>>(&'a self, to: &T) -> Option<MappedOp<'a, T>> {
        use Access::{Change, Read, Write};
        let (kv, layer) = self.kv_layer()?;
        let (kv, layer) = to.kv(kv, layer);
        let vector = |id| to.vector(id);
        Some(match *self {
            Op::RopeToCache { qkv, ref params, .. } => {
                Op::RopeToCache { qkv: to.write(qkv, Change), params: params.with(vector), kv, layer }
            }
            Op::Attention { qkv, ref params, out, .. } => Op::Attention {
                qkv: to.read(qkv, Read),
                params: params.with(vector),
                kv,
                layer,
                out: to.write(out, Write),
            },
            Op::LatentToCache { latent, queries, ref params, .. } => Op::LatentToCache {
                latent: to.write(latent, Change),
                queries: to.write(queries, Change),
                params: params.with(vector),
                kv,
                layer,
            },
            Op::LatentAttention { queries, heads, scale, out, .. } => Op::LatentAttention {
                queries: to.read(queries, Read),
                heads,
                scale,
                kv,
                layer,
                out: to.write(out, Write),
            },
            Op::Convolve { x, ref params, .. } => {
                Op::Convolve { x: to.write(x, Change), params: params.with(vector), kv, layer }
            }
            Op::Recur { x, ref params, out, .. } => Op::Recur {
                x: to.read(x, Read),
                params: params.with(vector),
                kv,
                layer,
                out: to.write(out, Write),
            },
            _ => return None,
        })
    }

    /// Ops on whole sequences, without a cache.
    fn map_sequence_op<'a, T: OperandMap<'a>>(&'a self, to: &T) -> Option<MappedOp<'a, T>> {
        use Access::{Change, Read, Write};
        Some(match self {
            &Op::Unfold { x, window, out } => {
                Op::Unfold { x: to.read(x, Read), window, out: to.write(out, Write) }
            }
            Op::Rope { qkv, params } => {
                Op::Rope { qkv: to.write(*qkv, Change), params: params.with(|id| to.vector(id)) }
            }
            Op::SelfAttention { qkv, params, out } => Op::SelfAttention {
                qkv: to.read(*qkv, Read),
                params: mapped_bias(params, to),
                out: to.write(*out, Write),
            },
            Op::RelativeAttention { qkv, params, out } => Op::RelativeAttention {
                qkv: to.read(*qkv, Read),
                params: params.with(|id| to.vector(id)),
                out: to.write(*out, Write),
            },
            Op::AttendPart { qkv, rows, queries, params, out } => Op::AttendPart {
                qkv: to.read(*qkv, Read),
                rows: rows.clone(),
                queries: queries.clone(),
                params: mapped_bias(params, to),
                out: to.write(*out, Write),
            },
            _ => return None,
        })
    }

    /// Ops over the places of grids and lines.
    fn map_line_op<'a, T: OperandMap<'a>>(&'a self, to: &T) -> Option<MappedOp<'a, T>> {
        use Access::{Change, Read, Write};
        Some(match self {
            Op::GroupNorm { x, groups, params, out } => Op::GroupNorm {
                x: to.read(*x, Read),
                groups: *groups,
                params: params.with(|id| to.vector(id)),
                out: to.write(*out, Write),
            },
            &Op::Conv { x, affine, ref before, weight, bias, params, add, out } => Op::Conv {
                x: to.read(x, Read),
                affine: affine.map(|affine| to.read(affine, Read)),
                before: before.as_ref().map(|before| before.with(|id| to.vector(id))),
                weight: to.matrix(weight),
                bias: bias.map(|bias| to.vector(bias)),
                params,
                add: add.map(|add| to.read(add, Read)),
                out: to.write(out, Write),
            },
            &Op::ConvTranspose { x, affine, ref before, weight, bias, params, out } => Op::ConvTranspose {
                x: to.read(x, Read),
                affine: affine.map(|affine| to.read(affine, Read)),
                before: before.as_ref().map(|before| before.with(|id| to.vector(id))),
                weight: to.matrix(weight),
                bias: bias.map(|bias| to.vector(bias)),
                params,
                out: to.write(out, Write),
            },
            &Op::Modulate { by, scale, shift, out } => {
                Op::Modulate { by: to.read(by, Read), scale, shift, out: to.write(out, Change) }
            }
            Op::InstanceAffine { x, places, params, out } => Op::InstanceAffine {
                x: to.read(*x, Read),
                places: *places,
                params: params.with(|id| to.vector(id)),
                out: to.write(*out, Write),
            },
            &Op::Mirror { x, channels, places, before, out } => {
                Op::Mirror { x: to.read(x, Read), channels, places, before, out: to.write(out, Write) }
            }
            &Op::Lstm { gates, recurrent, out } => Op::Lstm {
                gates: to.read(gates, Read),
                recurrent: to.vector(recurrent),
                out: to.write(out, Write),
            },
            _ => return None,
        })
    }
}

fn mapped_experts<'a, T: OperandMap<'a>>(
    weights: &MoeOperands<MatrixId, VectorId, ExpertsId, BufferId>,
    to: &T,
) -> MoeOperands<T::Matrix, T::Vector, T::Experts, T::Read> {
    let routed = weights.routed.map(|routed| to.read(routed, Access::Read));
    weights.with(|id| to.matrix(id), |id| to.vector(id), |id| to.experts(id), routed)
}

fn mapped_bias<'a, T: OperandMap<'a>>(
    params: &'a SelfAttentionParams<VectorId, Buckets>,
    to: &T,
) -> SelfAttentionParams<T::Vector, T::Buckets> {
    let vector = |id| to.vector(id);
    let bias = match &params.bias {
        PositionBias::None => PositionBias::None,
        PositionBias::Alibi { slopes } => PositionBias::Alibi { slopes: vector(*slopes) },
        PositionBias::ByDistance { table, reach } => {
            PositionBias::ByDistance { table: vector(*table), reach: *reach }
        }
        PositionBias::Disentangled { keys, queries, buckets, bucket_of, reach } => {
            PositionBias::Disentangled {
                keys: keys.map(vector),
                queries: queries.map(vector),
                buckets: *buckets,
                bucket_of: to.buckets(bucket_of),
                reach: *reach,
            }
        }
    };
    let SelfAttentionParams { heads, scale, reach, padding, .. } = *params;
    SelfAttentionParams { heads, scale, reach, padding, bias }
}

/// Map that collects the buffers of an op.
#[derive(Default)]
struct BufferList(RefCell<Vec<(BufferId, Access)>>);

/// Largest number of buffers that one op writes.
pub(crate) const WRITTEN_MAX: usize = 2;

/// Map that collects the buffers that an op writes.
#[derive(Default)]
struct WrittenList([Cell<Option<BufferId>>; WRITTEN_MAX]);

/// Something that looks at the buffers of an op and makes nothing of its operands.
trait BufferWatch {
    fn see(&self, id: BufferId, access: Access);
}

impl BufferWatch for BufferList {
    fn see(&self, id: BufferId, access: Access) {
        self.0.borrow_mut().push((id, access));
    }
}

impl BufferWatch for WrittenList {
    fn see(&self, id: BufferId, access: Access) {
        if matches!(access, Access::Write | Access::Change) {
            let free = self.0.iter().find(|slot| slot.get().is_none());
            free.expect("an op writes few buffers").set(Some(id));
        }
    }
}

impl<'a, T: BufferWatch> OperandMap<'a> for T {
    type Matrix = ();
    type Vector = ();
    type Experts = ();
    type Heads = ();
    type LowRank = ();
    type Read = ();
    type Write = ();
    type Kv = ();
    type Buckets = ();

    fn matrix(&self, _: MatrixId) {}
    fn vector(&self, _: VectorId) {}
    fn experts(&self, _: ExpertsId) {}
    fn heads(&self, _: HeadsId) {}
    fn low_rank(&self, _: LowRankId) {}
    fn read(&self, id: BufferId, access: Access) {
        self.see(id, access);
    }
    fn write(&self, id: BufferId, access: Access) {
        self.see(id, access);
    }
    fn kv(&self, _: KvId, layer: usize) -> ((), usize) {
        ((), layer)
    }
    fn buckets(&self, _: &'a Buckets) {}
}
