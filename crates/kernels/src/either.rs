//! One of two kinds of device, behind the contract of one: for a list of devices that are not all alike ([`crate::chain`]). What
//! was packed or made by one is of its kind, and an op that names any of the other kind is a programmer's error.

use std::borrow::Borrow;

use crate::backend::mapped::{read_by, reading};
use crate::{
    Activation, AttentionParams, Backend, Batch, BufferRole, ConvolutionParams, DType, Draws, ExpertParts,
    KernelError, KvSpec, LatentHeads, LatentParams, LayerNormParams, LogitsHead, LowRankShape, MatrixShape,
    MatrixSource, MoeParams, MoeWeights, OutputDelta, OutputGateParams, QkvParams, RecurrenceParams,
    Rounding, RowIds, RowOp, SampleSpecs, Sampled, Stage, StepLimits, Ticket,
};

const OTHER_KIND: &str = "what a device names is of another kind of device";

/// A device of either kind, or what one has packed or made.
#[derive(Clone, Debug)]
pub enum Either<A, B> {
    /// Of the one kind.
    One(A),
    /// Of the other.
    Other(B),
}

impl<A, B> Either<A, B> {
    /// It, if it is of the one kind.
    pub fn as_one(&self) -> Option<&A> {
        match self {
            Either::One(of) => Some(of),
            Either::Other(_) => None,
        }
    }

    /// It, if it is of the other.
    pub fn as_other(&self) -> Option<&B> {
        match self {
            Either::One(_) => None,
            Either::Other(of) => Some(of),
        }
    }

    fn one(&self) -> &A {
        self.as_one().expect(OTHER_KIND)
    }

    fn other(&self) -> &B {
        self.as_other().expect(OTHER_KIND)
    }

    fn one_mut(&mut self) -> &mut A {
        match self {
            Either::One(of) => of,
            Either::Other(_) => panic!("{OTHER_KIND}"),
        }
    }

    fn other_mut(&mut self) -> &mut B {
        match self {
            Either::One(_) => panic!("{OTHER_KIND}"),
            Either::Other(of) => of,
        }
    }

    fn into_one(self) -> A {
        match self {
            Either::One(of) => of,
            Either::Other(_) => panic!("{OTHER_KIND}"),
        }
    }

    fn into_other(self) -> B {
        match self {
            Either::One(_) => panic!("{OTHER_KIND}"),
            Either::Other(of) => of,
        }
    }
}

/// Asks the device, whichever it is.
macro_rules! ask {
    ($either:ident, $of:ident => $asked:expr) => {
        match $either {
            Either::One($of) => $asked,
            Either::Other($of) => $asked,
        }
    };
}

/// Has the device make something, which is of its kind.
macro_rules! made {
    ($either:ident, $of:ident => $made:expr) => {
        match $either {
            Either::One($of) => Either::One($made),
            Either::Other($of) => Either::Other($made),
        }
    };
}

/// Runs an op. Operands are [`crate::delegated`]'s.
macro_rules! run {
    ($either:ident at $kv:ident $layer:ident, $op:ident($($operands:tt)*)) => {
        run!($either, $op($($operands)*))
    };
    ($either:ident, $op:ident($($kind:ident $operand:expr),*)) => {
        match $either {
            Either::One(of) => of.$op($(operand!(one one_mut $kind $operand)),*),
            Either::Other(of) => of.$op($(operand!(other other_mut $kind $operand)),*),
        }
    };
}

macro_rules! operand {
    ($own:ident $own_mut:ident c $of:expr) => {
        $of.$own_mut()
    };
    ($own:ident $own_mut:ident w $of:expr) => {
        $of.$own_mut()
    };
    ($own:ident $own_mut:ident k $of:expr) => {
        $of.$own_mut()
    };
    ($own:ident $own_mut:ident o $of:expr) => {
        $of.map(Either::$own)
    };
    ($own:ident $own_mut:ident p $of:expr) => {
        &$of.with(Either::$own)
    };
    ($own:ident $own_mut:ident l $of:expr) => {
        $of
    };
    ($own:ident $own_mut:ident v $of:expr) => {
        $of
    };
    ($own:ident $own_mut:ident $kind:ident $of:expr) => {
        $of.$own()
    };
}

impl<A: Backend, B: Backend> Backend for Either<A, B> {
    type Matrix = Either<A::Matrix, B::Matrix>;
    type Vector = Either<A::Vector, B::Vector>;
    type Experts = Either<A::Experts, B::Experts>;
    type Heads = Either<A::Heads, B::Heads>;
    type LowRank = Either<A::LowRank, B::LowRank>;
    type Buffer = Either<A::Buffer, B::Buffer>;
    type Kv = Either<A::Kv, B::Kv>;

    delegated!(run);
    delegated_parts!(run);

    fn knows_memories(&self) -> bool {
        ask!(self, of => of.knows_memories())
    }

    fn device(&self) -> String {
        ask!(self, of => of.device())
    }

    fn rounding(&self) -> Rounding {
        ask!(self, of => of.rounding())
    }

    fn enter(&self, stage: Stage) {
        ask!(self, of => of.enter(stage));
    }

    fn supports(&self, dtype: DType) -> bool {
        ask!(self, of => of.supports(dtype))
    }

    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        ask!(self, of => of.matrix_bytes(parts))
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError> {
        Ok(made!(self, of => of.pack(parts)?))
    }

    fn heads(&self, matrices: Vec<Self::Matrix>) -> Self::Heads {
        let matrices = matrices.into_iter();
        match self {
            Either::One(of) => Either::One(of.heads(matrices.map(Either::into_one).collect())),
            Either::Other(of) => Either::Other(of.heads(matrices.map(Either::into_other).collect())),
        }
    }

    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        ask!(self, of => of.experts_bytes(experts))
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError> {
        Ok(made!(self, of => of.experts(shapes)?))
    }

    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        run!(self, pack_expert(c experts, v parts))
    }

    fn low_rank_bytes(&self, pairs: &[LowRankShape], changes: &[usize]) -> usize {
        ask!(self, of => of.low_rank_bytes(pairs, changes))
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<Self::LowRank, KernelError> {
        Ok(made!(self, of => of.low_rank(delta)?))
    }

    fn vector_bytes(&self, length: usize) -> usize {
        ask!(self, of => of.vector_bytes(length))
    }

    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError> {
        Ok(made!(self, of => of.vector(values)?))
    }

    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        ask!(self, of => of.buffer_bytes(role, rows, cols))
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError> {
        Ok(made!(self, of => of.buffer(role, rows, cols)?))
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        ask!(self, of => of.kv_bytes(spec))
    }

    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError> {
        Ok(made!(self, of => of.kv(spec)?))
    }

    fn kv_block_form(&self, kv: &Self::Kv) -> Option<(usize, String)> {
        run!(self, kv_block_form(s kv))
    }

    fn read_kv_block(&self, kv: &Self::Kv, block: u32, out: &mut [u8]) -> Result<(), KernelError> {
        run!(self, read_kv_block(s kv, v block, v out))
    }

    fn write_kv_block(&mut self, kv: &mut Self::Kv, block: u32, bytes: &[u8]) -> Result<(), KernelError> {
        run!(self, write_kv_block(k kv, v block, v bytes))
    }

    fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        ask!(self, of => of.scratch_bytes(limits))
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        ask!(self, of => of.reserve(limits))
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        ask!(self, of => of.begin(batch))
    }

    fn row_op(&mut self, op: &RowOp<'_, Self::Buffer, Self::Vector>, out: &mut Self::Buffer) {
        let read = read_by(op);
        match self {
            Either::One(of) => {
                let read = read.map(|buffer| buffer.map(Either::one));
                of.row_op(&reading(op, read, Either::one), out.one_mut());
            }
            Either::Other(of) => {
                let read = read.map(|buffer| buffer.map(Either::other));
                of.row_op(&reading(op, read, Either::other), out.other_mut());
            }
        }
    }

    fn add_low_rank<L: Borrow<Self::LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Self::Buffer,
        low: Option<&mut Self::Buffer>,
        out: &mut Self::Buffer,
    ) {
        let deltas = deltas.iter().map(|delta| delta.as_ref().map(Borrow::borrow));
        // Lists of as many as adapters are loaded.
        match self {
            Either::One(of) => {
                let deltas: Vec<_> =
                    deltas.map(|delta: Option<&Self::LowRank>| delta.map(Either::one)).collect();
                of.add_low_rank(&deltas, x.one(), low.map(Either::one_mut), out.one_mut());
            }
            Either::Other(of) => {
                let deltas: Vec<_> =
                    deltas.map(|delta: Option<&Self::LowRank>| delta.map(Either::other)).collect();
                of.add_low_rank(&deltas, x.other(), low.map(Either::other_mut), out.other_mut());
            }
        }
    }

    fn add_shared(
        &mut self,
        gate: Option<&Self::Vector>,
        x: &Self::Buffer,
        shared: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        run!(self, add_shared(o gate, r x, r shared, c out));
    }

    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        match self {
            Either::One(of) => {
                let routed = weights.routed.map(Either::one);
                let weights = weights.with(Either::one, Either::one, Either::one, routed);
                of.moe(&weights, params, x.one(), hidden.one_mut(), out.one_mut());
            }
            Either::Other(of) => {
                let routed = weights.routed.map(Either::other);
                let weights = weights.with(Either::other, Either::other, Either::other, routed);
                of.moe(&weights, params, x.other(), hidden.other_mut(), out.other_mut());
            }
        }
    }

    fn read_experts(
        &self,
        hidden: &Self::Buffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        run!(self, read_experts(r hidden, v chosen, v inner))
    }

    fn all_reduce(&mut self, x: &mut Self::Buffer) {
        run!(self, all_reduce(c x));
    }

    fn logits(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        match self {
            Either::One(of) => {
                head.on(Either::one, Either::one, Either::one_mut, |head| of.logits(head, x.one(), out))
            }
            Either::Other(of) => head
                .on(Either::other, Either::other, Either::other_mut, |head| of.logits(head, x.other(), out)),
        }
    }

    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        ask!(self, of => of.sample_room(rows, vocab))
    }

    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        ask!(self, of => of.on_host(tasks, task));
    }

    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        ask!(self, of => of.between_steps(tasks, task));
    }

    fn sample(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &Self::Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        match self {
            Either::One(of) => head
                .on(Either::one, Either::one, Either::one_mut, |head| of.sample(head, x.one(), specs, room)),
            Either::Other(of) => head.on(Either::other, Either::other, Either::other_mut, |head| {
                of.sample(head, x.other(), specs, room)
            }),
        }
    }

    fn draws(&mut self) -> &mut Draws {
        ask!(self, of => of.draws())
    }

    fn lookahead(&self) -> usize {
        ask!(self, of => of.lookahead())
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        ask!(self, of => of.submit())
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
        ask!(self, of => of.wait(ticket, drawn))
    }

    fn end(&mut self) -> Result<(), KernelError> {
        ask!(self, of => of.end())
    }

    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        run!(self, read_rows(r x, v row_first, v out))
    }

    fn write_rows(
        &mut self,
        x: &mut Self::Buffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        run!(self, write_rows(c x, v row_first, v rows))
    }
}
