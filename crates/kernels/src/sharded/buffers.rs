//! Activations and caches of ranks.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::Range;

use super::Layout;
use crate::Backend;

/// Activations: room for whole rows on each rank, and for the rank's part of them, where ranks divide the columns. What the host writes is
/// written to all; what an op writes is where it was computed, until it is read elsewhere.
pub struct ShardedBuffer<B: Backend> {
    whole: Vec<RefCell<B::Buffer>>, // (ranks)
    parts: Vec<RefCell<B::Buffer>>, // (ranks), or none
    rows: usize,
    cols: usize,
    on: Cell<u64>,                 // a bit for each rank that has the batch's rows as a whole
    divided: Cell<Option<Layout>>, // where the parts have them
    rows_divided: Cell<usize>,     // so many of them; those behind stay as they are in whole rows
    whole_read: Cell<u64>,         // the last meeting before other ranks read it
    parts_read: Cell<u64>,
}

/// Meetings that there are never so many of.
const NEVER: u64 = u64::MAX;

fn bits(ranks: &Range<usize>) -> u64 {
    ranks.clone().fold(0, |bits, rank| bits | 1 << rank)
}

impl<B: Backend> ShardedBuffer<B> {
    pub(super) fn new(whole: Vec<B::Buffer>, parts: Vec<B::Buffer>, (rows, cols): (usize, usize)) -> Self {
        Self {
            on: Cell::new(bits(&(0..whole.len()))),
            whole: whole.into_iter().map(RefCell::new).collect(),
            parts: parts.into_iter().map(RefCell::new).collect(),
            rows,
            cols,
            divided: Cell::new(None),
            rows_divided: Cell::new(0),
            whole_read: Cell::new(NEVER),
            parts_read: Cell::new(NEVER),
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn is_on(&self, rank: usize) -> bool {
        self.on.get() >> rank & 1 == 1
    }

    /// Whether a rank has whole rows.
    pub(super) fn is_anywhere(&self) -> bool {
        self.on.get() != 0
    }

    /// A rank that has them.
    pub(super) fn somewhere(&self) -> usize {
        self.on.get().trailing_zeros() as usize
    }

    pub(super) fn also_on(&self, ranks: &Range<usize>) {
        self.on.set(self.on.get() | bits(ranks));
    }

    pub(super) fn only_on(&self, ranks: &Range<usize>) {
        self.on.set(bits(ranks));
        self.divided.set(None);
    }

    pub(super) fn divided(&self) -> Option<Layout> {
        self.divided.get()
    }

    /// So many rows are in the parts.
    pub(super) fn only_divided(&self, layout: Layout, rows: usize) {
        self.on.set(0);
        self.divided.set(Some(layout));
        self.rows_divided.set(rows);
    }

    pub(super) fn rows_divided(&self) -> usize {
        self.rows_divided.get()
    }

    pub(super) fn not_divided(&self) {
        self.divided.set(None);
    }

    pub(super) fn whole_read(&self, meeting: u64) {
        self.whole_read.set(meeting);
    }

    pub(super) fn parts_read(&self, meeting: u64) {
        self.parts_read.set(meeting);
    }

    /// Whether others have read it since all met for the last time.
    pub(super) fn whole_is_read_since(&self, meeting: u64) -> bool {
        self.whole_read.get() == meeting
    }

    pub(super) fn parts_are_read_since(&self, meeting: u64) -> bool {
        self.parts_read.get() == meeting
    }

    /// A rank's whole rows, to be read by one of its ops.
    pub(super) fn at(&self, rank: usize) -> Ref<'_, B::Buffer> {
        self.whole[rank].borrow()
    }

    /// Likewise, for rows on their way: no op runs meanwhile.
    pub(super) fn to_fill(&self, rank: usize) -> RefMut<'_, B::Buffer> {
        self.whole[rank].borrow_mut()
    }

    pub(super) fn at_mut(&mut self, rank: usize) -> &mut B::Buffer {
        self.whole[rank].get_mut()
    }

    /// A rank's whole rows, for an op that writes them anew: that rank alone has them then.
    pub(super) fn to_write(&mut self, rank: usize) -> &mut B::Buffer {
        self.only_on(&(rank..rank + 1));
        self.at_mut(rank)
    }

    /// A rank's part.
    pub(super) fn part(&self, rank: usize) -> Ref<'_, B::Buffer> {
        self.parts[rank].borrow()
    }

    pub(super) fn part_mut(&mut self, rank: usize) -> &mut B::Buffer {
        self.parts[rank].get_mut()
    }

    /// Likewise, for rows on their way.
    pub(super) fn part_to_fill(&self, rank: usize) -> RefMut<'_, B::Buffer> {
        self.parts[rank].borrow_mut()
    }
}

/// The cache: each rank has its heads of the layers that are divided, and all of the others.
pub struct ShardedKv<B: Backend> {
    pub(super) parts: Vec<B::Kv>,  // (ranks)
    pub(super) divided: Vec<bool>, // (layers)
}

impl<B: Backend> ShardedKv<B> {
    pub(super) fn at(&self, rank: usize) -> &B::Kv {
        &self.parts[rank]
    }

    pub(super) fn at_mut(&mut self, rank: usize) -> &mut B::Kv {
        &mut self.parts[rank]
    }
}
