//! Devices that compute each layer together, behind the contract of one: each, a *rank*, has a part of the rows of a layer's matrices, of its
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

mod buffers;
#[macro_use]
mod delegated;
#[macro_use]
mod operands;
mod ops;
mod packed;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;

use crate::{Batch, KernelError, KvLayout, KvSpec, Peers, Sampled, Stage, Ticket};
pub use buffers::{ShardedBuffer, ShardedKv};
use packed::Layout;
pub use packed::{ShardedMatrix, ShardedVector};

/// A rank's part of a matrix is a multiple of so many rows, so that tiles of weights are whole.
pub const PART_ROWS: usize = 8;

/// See the module.
pub struct Sharded<B: Peers> {
    ranks: Vec<B>,
    whole: Vec<usize>, // layers of the cache that every rank has all of
    stage: Cell<Stage>,
    counted: Option<usize>,              // whose bytes are told, or everybody's
    rows: usize,                         // of the open step
    without_draws: Batch,                // what others than the first are told of it
    tickets: VecDeque<Vec<Ticket>>,      // of the others' steps that nobody has waited for
    nothing_drawn: Vec<Option<Sampled>>, // by them
    acquainted: bool,                    // so that they meet by themselves
    meetings: u64,                       // of all ranks, each of which waited for all others
    gathers: u64,                        // of buffers
    failure: Option<KernelError>,        // of an op, which the step's end tells
    keeps_both: bool,                    // for tests: what is divided is there as a whole too
    astray: bool,                        // for tests: parts are gathered in a wrong order
}

impl<B: Peers> Sharded<B> {
    /// Ranks of one kind for a network of which nothing is packed yet, and the layers of its cache that are not divided, because their
    /// queries or keys are normed as one.
    ///
    /// # Panics
    /// Without ranks, or with more than 64.
    pub fn new(ranks: Vec<B>, whole: Vec<usize>) -> Self {
        assert!((1..=64).contains(&ranks.len()), "{} ranks", ranks.len());
        Self {
            ranks,
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
        }
    }

    /// It, telling of all that it counts ([`crate::Backend::matrix_bytes`] and the like) what this rank takes.
    pub fn counting(self, rank: usize) -> Self {
        Self { counted: Some(rank), ..self }
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> &[B] {
        &self.ranks
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

    /// Whether a matrix that is packed now is divided.
    fn divides(&self, rows: impl Iterator<Item = usize>) -> Option<Layout> {
        let layout = Layout::of(rows, self.ranks.len())?;
        matches!(self.stage.get(), Stage::Layer(_)).then_some(layout)
    }

    /// Bytes of what is on these ranks, of those that are counted.
    fn count(&self, ranks: Range<usize>, bytes: impl Fn(&B) -> usize) -> usize {
        let counted = ranks.filter(|&rank| self.counted.is_none_or(|counted| counted == rank));
        counted.fold(0, |sum, rank| sum.saturating_add(bytes(&self.ranks[rank])))
    }

    /// Makes something on the ranks that have what is packed now.
    fn place<X>(
        &self,
        mut make: impl FnMut(&B) -> Result<X, KernelError>,
    ) -> Result<Vec<Option<X>>, KernelError> {
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

    /// Begins what ranks were asked for, and tells what became of ops. A rank that is waited for may wait for any of them.
    fn start(&mut self, ranks: Range<usize>) -> Result<(), KernelError> {
        let started = self.ranks[ranks].iter().try_for_each(B::start);
        self.failure.take().map_or(started, Err)
    }

    /// The ranks that do not have the head.
    fn others(&self) -> Range<usize> {
        1..self.ranks.len()
    }
}

/// Rows on their way from rank to rank.
impl<B: Peers> Sharded<B> {
    /// Has every rank of some, at least, wait for what all others were asked for until now.
    fn meet(&mut self, ranks: &Range<usize>) -> Result<(), KernelError> {
        if self.acquainted {
            self.ranks.iter_mut().for_each(B::meet);
            self.meetings += 1;
            return Ok(());
        }
        let marks = self.ranks.iter_mut().map(B::mark).collect::<Result<Vec<_>, _>>()?;
        for rank in ranks.clone() {
            for (_, mark) in marks.iter().enumerate().filter(|&(other, _)| other != rank) {
                self.ranks[rank].follow(mark)?;
            }
        }
        self.meetings += u64::from(*ranks == self.all());
        Ok(())
    }

    /// Has whole rows of a buffer on some ranks.
    fn bring(&mut self, buffer: &ShardedBuffer<B>, to: &Range<usize>) {
        if to.clone().all(|rank| buffer.is_on(rank)) {
            return;
        }
        let brought = match buffer.divided() {
            Some(layout) => self.gather(buffer, layout, to),
            None => self.spread(buffer, to),
        };
        self.kept(brought);
        buffer.also_on(to);
    }

    fn gather(
        &mut self,
        buffer: &ShardedBuffer<B>,
        layout: Layout,
        to: &Range<usize>,
    ) -> Result<(), KernelError> {
        self.meet(to)?;
        let count = self.ranks.len();
        for rank in to.clone() {
            for from in 0..count {
                let part = buffer.part(if self.astray { count - 1 - from } else { from });
                for (own, first) in layout.columns(from, count) {
                    self.ranks[rank].take_columns(&part, own, &mut buffer.to_fill(rank), first)?;
                }
            }
        }
        buffer.parts_read(self.meetings);
        self.gathers += 1;
        Ok(())
    }

    /// From a rank that has whole rows to others.
    fn spread(&mut self, buffer: &ShardedBuffer<B>, to: &Range<usize>) -> Result<(), KernelError> {
        self.meet(to)?;
        let from = buffer.somewhere();
        for rank in to.clone().filter(|&rank| !buffer.is_on(rank)) {
            let mut filled = buffer.to_fill(rank);
            self.ranks[rank].take_columns(&buffer.at(from), 0..buffer.cols(), &mut filled, 0)?;
        }
        buffer.whole_read(self.meetings);
        Ok(())
    }

    /// Has each rank's part of a buffer where it is, from whole rows if need be.
    fn divide(&mut self, buffer: &ShardedBuffer<B>, layout: Layout) {
        if buffer.divided() == Some(layout) {
            return;
        }
        self.bring(buffer, &self.all());
        self.claim_parts(buffer);
        let count = self.ranks.len();
        for rank in self.all() {
            let (whole, mut part) = (buffer.at(rank), buffer.part_to_fill(rank));
            for (own, first) in layout.columns(rank, count) {
                let columns = first..first + own.len();
                let taken = self.ranks[rank].take_columns(&whole, columns, &mut part, own.start);
                self.kept(taken);
            }
        }
        buffer.only_divided(layout, self.rows);
    }

    /// Before ranks write their parts of a buffer: others have read what is there.
    fn claim_parts(&mut self, buffer: &ShardedBuffer<B>) {
        if buffer.parts_are_read_since(self.meetings) {
            let met = self.meet(&self.all());
            self.kept(met);
        }
    }

    /// Likewise, of whole rows.
    fn claim(&mut self, buffer: &ShardedBuffer<B>) {
        if buffer.whole_is_read_since(self.meetings) {
            let met = self.meet(&self.all());
            self.kept(met);
        }
    }
}
