//! Operands of a tensor-parallel group, and an op's operands as one rank has them.

use std::ops::Range;
use std::sync::OnceLock;

use super::layout::Layout;
use crate::executor::Cells;
use crate::{
    Access, Buckets, Buffer, BufferId, Executor, Experts, ExpertsId, Handle, Heads, HeadsId, KernelError, Kv,
    KvId, LowRank, LowRankId, Matrix, MatrixId, OperandId, OperandMap, Vector, VectorId,
};

const ELSEWHERE: &str =
    "an op of a rank that has not what it names: it was packed in another stage, or divided";

/// Each rank's copy of a whole operand, if it has one.
pub(super) type OnRanks<T> = Vec<Option<T>>;

/// A rank's operand, as a whole.
pub(super) fn whole<K>(of: &OnRanks<Handle<K>>, rank: usize) -> OperandId<K> {
    of[rank].as_ref().expect(ELSEWHERE).id()
}

/// A matrix that ranks have runs of the outputs of, or all of.
pub(super) struct RankMatrix {
    pub(super) whole: OnRanks<Matrix>,
    pub(super) divided: Option<(Layout, Vec<Matrix>)>,
}

/// A vector, whole on the ranks, and as runs where an op that is divided has asked for them.
pub(super) struct RankVector {
    whole: OnRanks<Vector>,
    values: Vec<f32>,
    runs: OnceLock<(Layout, Vec<Vector>)>,
}

impl RankVector {
    /// Each rank's vector, as a whole.
    pub(super) fn whole(&self) -> &OnRanks<Vector> {
        &self.whole
    }

    pub(super) fn new(whole: OnRanks<Vector>, values: &[f32]) -> Self {
        Self { whole, values: values.to_vec(), runs: OnceLock::new() }
    }

    /// Each rank's runs, which are made when they are first asked for.
    pub(super) fn runs<E: Executor>(&self, ranks: &[E], layout: Layout) -> Result<&[Vector], KernelError> {
        if self.runs.get().is_none() {
            let own = |(rank, device): (usize, &E)| {
                let runs = layout.columns(rank, ranks.len());
                let values: Vec<f32> =
                    runs.flat_map(|(own, first)| &self.values[first..first + own.len()]).copied().collect();
                device.vector(&values)
            };
            let made = ranks.iter().enumerate().map(own).collect::<Result<Vec<_>, _>>()?;
            // Ops come from one thread.
            let _ = self.runs.set((layout, made));
        }
        let (of, runs) = self.runs.get().expect("it was set");
        assert_eq!(*of, layout, "a vector that is divided in two ways");
        Ok(runs)
    }
}

/// Activations: room for whole rows on each rank, and for the rank's part of them, where ranks divide the columns. What the host
/// writes is written to all; what an op writes is where it was computed, until it is read elsewhere.
pub(super) struct RankBuffer {
    whole: Vec<Buffer>, // (ranks)
    parts: Vec<Buffer>, // (ranks), or none
    pub(super) rows: usize,
    pub(super) cols: usize,
    on: u64,                            // a bit for each rank that has the batch's rows as a whole
    pub(super) divided: Option<Layout>, // where the parts have them
    pub(super) rows_divided: usize,     // so many of them; those behind stay as they are in whole rows
    pub(super) whole_read: u64,         // the last meeting before other ranks read it
    pub(super) parts_read: u64,
}

/// Number of a meeting that there are never so many of.
const NEVER: u64 = u64::MAX;

fn bits(ranks: &Range<usize>) -> u64 {
    ranks.clone().fold(0, |bits, rank| bits | 1 << rank)
}

impl RankBuffer {
    pub(super) fn new(whole: Vec<Buffer>, parts: Vec<Buffer>, rows: usize, cols: usize) -> Self {
        Self {
            on: bits(&(0..whole.len())),
            whole,
            parts,
            rows,
            cols,
            divided: None,
            rows_divided: 0,
            whole_read: NEVER,
            parts_read: NEVER,
        }
    }

    pub(super) fn is_on(&self, rank: usize) -> bool {
        self.on >> rank & 1 == 1
    }

    /// Whether a rank has whole rows.
    pub(super) fn is_anywhere(&self) -> bool {
        self.on != 0
    }

    /// A rank that has them.
    pub(super) fn somewhere(&self) -> usize {
        self.on.trailing_zeros() as usize
    }

    pub(super) fn also_on(&mut self, ranks: &Range<usize>) {
        self.on |= bits(ranks);
    }

    pub(super) fn only_on(&mut self, ranks: &Range<usize>) {
        self.on = bits(ranks);
        self.divided = None;
    }

    /// Records that the parts have so many rows.
    pub(super) fn only_divided(&mut self, layout: Layout, rows: usize) {
        self.on = 0;
        self.divided = Some(layout);
        self.rows_divided = rows;
    }

    /// A rank's whole rows.
    pub(super) fn at(&self, rank: usize) -> BufferId {
        self.whole[rank].id()
    }

    /// A rank's part.
    pub(super) fn part(&self, rank: usize) -> BufferId {
        self.parts[rank].id()
    }
}

/// The cache: each rank has its heads of the layers that are divided, and all of the others.
pub(super) struct RankKv {
    pub(super) parts: Vec<Kv>,     // (ranks)
    pub(super) divided: Vec<bool>, // (layers)
}

/// Puts a rank's own operands into an op, whole rows and whole matrices.
pub(super) struct RankOperands<'a> {
    pub(super) rank: usize,
    pub(super) matrices: &'a Cells<RankMatrix>,
    pub(super) vectors: &'a Cells<RankVector>,
    pub(super) experts: &'a Cells<OnRanks<Experts>>,
    pub(super) heads: &'a Cells<OnRanks<Heads>>,
    pub(super) low_ranks: &'a Cells<OnRanks<LowRank>>,
    pub(super) buffers: &'a Cells<RankBuffer>,
    pub(super) kvs: &'a Cells<RankKv>,
}

impl<'a> OperandMap<'a> for RankOperands<'_> {
    type Matrix = MatrixId;
    type Vector = VectorId;
    type Experts = ExpertsId;
    type Heads = HeadsId;
    type LowRank = LowRankId;
    type Read = BufferId;
    type Write = BufferId;
    type Kv = KvId;
    type Buckets = Buckets;

    fn matrix(&self, id: MatrixId) -> MatrixId {
        whole(&self.matrices.get(id).whole, self.rank)
    }

    fn vector(&self, id: VectorId) -> VectorId {
        whole(&self.vectors.get(id).whole, self.rank)
    }

    fn experts(&self, id: ExpertsId) -> ExpertsId {
        whole(self.experts.get(id), self.rank)
    }

    fn heads(&self, id: HeadsId) -> HeadsId {
        whole(self.heads.get(id), self.rank)
    }

    fn low_rank(&self, id: LowRankId) -> LowRankId {
        whole(self.low_ranks.get(id), self.rank)
    }

    fn read(&self, id: BufferId, _: Access) -> BufferId {
        self.buffers.get(id).at(self.rank)
    }

    fn write(&self, id: BufferId, _: Access) -> BufferId {
        self.buffers.get(id).at(self.rank)
    }

    fn kv(&self, id: KvId, layer: usize) -> (KvId, usize) {
        (self.kvs.get(id).parts[self.rank].id(), layer)
    }

    fn buckets(&self, buckets: &'a Buckets) -> Buckets {
        buckets.clone()
    }
}
