//! Tensor parallelism: devices that compute each layer together. Each, a *rank*, has a part of the rows of a layer's matrices, of its
//! heads and of their cache, so that together they read what one would in a part of the time, and hold what one cannot.
//!
//! A token depends on nothing but its request, so the ranks give one device's bits. Sums that ranks have parts of would not: where
//! they are brought together decides how they are rounded. So matrices are divided by their outputs alone, each of which is
//! computed by one rank as one device does it, and rows are gathered where an op reads more of them than its rank has. Of a layer that is
//! after attention, after its output, between the products of an MLP, and behind them.
//!
//! - **Divided**: matrices of a layer, each of the parts that are stacked in it by itself, so that ranks have whole heads of queries, keys and
//!   values, and the gate's rows that belong to up's; caches of keys and values, by their heads; attention, with its sinks and
//!   slopes; biases, as their matrices.
//! - **Repeated**, on every rank: norms, changes of rows, low-rank adapters, routers and experts, latents and their heads, recurrences and
//!   their states; heads and caches that the ranks do not divide, or whose norms are of all of them as one (the caller says which); matrices
//!   whose rows they do not divide in parts of [`PART_ROWS`].
//! - **The first rank's alone**: what comes before the layers, and the head with its draws. The others hear of no token, so that a step may be
//!   asked of all while the one before is still computed.
//!
//! A buffer has room for whole rows on each rank, and for the rank's part; it knows which of them are there, and an op that reads others has
//! them gathered. A rank that reads another's rows waits for what wrote them; and what was read is not written anew before all have met again.
//! Ranks that reach each other's memory meet by themselves, so that a step is as many plans as there are ranks, recorded and replayed as one
//! device's are; others wait for marks, which the host hands from one to another. Absent: how a network is divided among ranks that
//! differ, and experts that are divided.

mod divided;
mod executor;
mod layout;
mod operands;
mod passage;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::executor::{Arena, Slots};
use crate::{
    Batch, Experts, Facts, Heads, KernelError, KvLayout, KvSpec, LowRank, Peers, SampledToken, Stage, Ticket,
};
use layout::Layout;
use operands::{OnRanks, RankBuffer, RankKv, RankMatrix, RankVector};

/// A rank's part of a matrix is a multiple of so many rows, so that tiles of weights are whole.
pub const PART_ROWS: usize = 8;

/// Devices that compute each layer together. See the module.
pub struct TensorParallel<B: Peers> {
    ranks: Vec<Arena<B>>,
    facts: Facts,
    whole: Vec<usize>, // layers of the cache that every rank has all of
    stage: Cell<Stage>,
    counted: Option<usize>,         // the rank whose bytes are counted; none: all
    rows: usize,                    // of the open step
    without_draws: Batch,           // what others than the first are told of it
    tickets: VecDeque<Vec<Ticket>>, // of the others' steps that nobody has waited for
    nothing_drawn: Vec<Option<SampledToken>>, // by them
    acquainted: bool,               // so that they meet by themselves
    meetings: u64,                  // of all ranks, each of which waited for all others
    gathers: u64,                   // of buffers
    failure: Option<KernelError>,   // of an op; the step's end returns it
    keeps_both: bool,               // for the suite: what is divided is there as a whole too
    astray: bool,                   // for tests: parts are gathered in a wrong order
    matrices: Arc<Slots<RankMatrix>>,
    vectors: Arc<Slots<RankVector>>,
    experts: Arc<Slots<OnRanks<Experts>>>,
    heads: Arc<Slots<OnRanks<Heads>>>,
    low_ranks: Arc<Slots<OnRanks<LowRank>>>,
    buffers: Arc<Slots<RankBuffer>>,
    kvs: Arc<Slots<RankKv>>,
}

impl<B: Peers> TensorParallel<B> {
    /// Ranks of one kind for a network of which nothing is packed yet, and the layers of its cache that are not divided, because
    /// their queries or keys are normed as one.
    ///
    /// # Panics
    /// Without ranks, or with more than 64.
    pub fn new(ranks: Vec<B>, whole: Vec<usize>) -> Self {
        assert!((1..=64).contains(&ranks.len()), "{} ranks", ranks.len());
        let names: Vec<&str> = ranks.iter().map(|rank| &rank.facts().device[..]).collect();
        let first = ranks[0].facts();
        let all = |dtype| ranks.iter().all(|rank| rank.facts().supports(dtype));
        let facts = Facts {
            // Encoders of pictures and sounds are on one device.
            knows_memories: false,
            lookahead: ranks.iter().map(|rank| rank.facts().lookahead).min().unwrap_or_default(),
            ..Facts::new(names.join(" and "), first.rounding, all)
        };
        Self {
            facts,
            ranks: ranks.into_iter().map(Arena::new).collect(),
            whole,
            stage: Cell::new(Stage::Layer(0)),
            counted: None,
            rows: 0,
            without_draws: Batch::default(),
            tickets: VecDeque::new(),
            nothing_drawn: Vec::new(),
            acquainted: false,
            meetings: 0,
            gathers: 0,
            failure: None,
            keeps_both: false,
            astray: false,
            matrices: Slots::new(),
            vectors: Slots::new(),
            experts: Slots::new(),
            heads: Slots::new(),
            low_ranks: Slots::new(),
            buffers: Slots::new(),
            kvs: Slots::new(),
        }
    }

    /// The same group, whose [`Executor::bytes`] counts what this rank takes.
    pub fn counting(self, rank: usize) -> Self {
        Self { counted: Some(rank), ..self }
    }

    /// The same group for the conformance suite: operands that are divided are on every rank as a whole too, for checks that
    /// read what a network would not.
    pub fn keeping_both(self) -> Self {
        Self { keeps_both: true, ..self }
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = &B> {
        self.ranks.iter().map(Arena::backend)
    }

    /// Whether they meet by themselves, which is known once they have reserved what steps need.
    pub fn are_acquainted(&self) -> bool {
        self.acquainted
    }

    /// Buffers whose parts were brought together.
    pub fn gathers(&self) -> u64 {
        self.gathers
    }

    fn all(&self) -> Range<usize> {
        0..self.ranks.len()
    }

    /// The ranks that compute now, and have what is packed now.
    fn at(&self) -> Range<usize> {
        match self.stage.get() {
            Stage::Inputs | Stage::Head => 0..1,
            Stage::Layer(_) | Stage::Undivided(_) | Stage::Everywhere => self.all(),
        }
    }

    /// The ranks that do not have the head.
    fn others(&self) -> Range<usize> {
        1..self.ranks.len()
    }

    /// Whether a matrix that is packed now is divided.
    fn divides(&self, rows: impl Iterator<Item = usize>) -> Option<Layout> {
        let layout = Layout::of(rows, self.ranks.len())?;
        matches!(self.stage.get(), Stage::Layer(_)).then_some(layout)
    }

    /// Bytes of what is on these ranks, of those that are counted.
    fn count(&self, ranks: Range<usize>, bytes: impl Fn(&Arena<B>) -> usize) -> usize {
        let counted = ranks.filter(|&rank| self.counted.is_none_or(|counted| counted == rank));
        counted.fold(0, |sum, rank| sum.saturating_add(bytes(&self.ranks[rank])))
    }

    /// Makes something on the ranks that have what is packed now.
    fn place<X>(
        &self,
        mut make: impl FnMut(&Arena<B>) -> Result<X, KernelError>,
    ) -> Result<OnRanks<X>, KernelError> {
        let at = self.at();
        let ranks = self.ranks.iter().enumerate();
        ranks.map(|(rank, device)| at.contains(&rank).then(|| make(device)).transpose()).collect()
    }

    /// Whether ranks have parts of a layer of the cache.
    fn divides_cache(&self, spec: &KvSpec, layer: usize) -> bool {
        let heads = match spec.layers[layer] {
            KvLayout::Heads { kv_heads, .. } => kv_heads,
            KvLayout::Latent { .. } | KvLayout::State(_) => return false,
        };
        heads.is_multiple_of(self.ranks.len()) && !self.whole.contains(&layer)
    }

    /// The cache of a rank.
    fn kv_of(&self, spec: &KvSpec) -> KvSpec {
        let count = self.ranks.len();
        let own = |(layer, &layout): (usize, &KvLayout)| match layout {
            KvLayout::Heads { kv_heads, head_dim, window } if self.divides_cache(spec, layer) => {
                KvLayout::Heads { kv_heads: kv_heads / count, head_dim, window }
            }
            layout => layout,
        };
        KvSpec { layers: spec.layers.iter().enumerate().map(own).collect(), ..spec.clone() }
    }

    /// Keeps the first failure of an op for the step's end.
    fn kept<X>(&mut self, result: Result<X, KernelError>) -> Option<X> {
        result.map_err(|error| self.failure.get_or_insert(error)).ok()
    }

    /// Begins what ranks were asked for, and returns the failure of an op. A rank that is waited for may wait for any of them.
    fn start(&mut self, ranks: Range<usize>) -> Result<(), KernelError> {
        let started = self.ranks[ranks].iter().try_for_each(|rank| rank.backend().start());
        self.failure.take().map_or(started, Err)
    }
}
