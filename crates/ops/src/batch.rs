//! Input of one step: ragged sequences packed row after row, without padding, and the places of their keys and values
//! in the paged KV cache. Plain data that a GPU backend uploads as it is.

use std::ops::Range;

use crate::{RopeAxes, RowIds, StepLimits, sampling::Draws};

/// Tokens in one block of the paged KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// The rows of one sequence in a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSpan {
    /// First row of the sequence in the batch.
    pub row_first: u32,
    /// Rows of the sequence: 1 when decoding, the chunk's length when prefilling.
    pub rows: u32,
    /// Keys the last row may look at: everything cached before plus this step's rows.
    pub context: u32,
    /// Index of the sequence's first block id in [`Batch::block_tables`]. Meaningless without a cache.
    pub table_first: u32,
}

/// Cross-attention span: rows of a sequence and the keys and values they attend to in a separate cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySpan {
    /// First of the rows in the batch.
    pub row_first: u32,
    /// Number of rows; at least 1.
    pub rows: u32,
    /// First key that they see.
    pub first: u32,
    /// End of the keys that they see; greater than `first`.
    pub context: u32,
    /// Index in [`Batch::memory_tables`] of the block ids of the whole cross-attention cache, from its first block
    /// on.
    pub table_first: u32,
}

/// Source of a row's embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSource {
    /// A token: its row of the embedding table.
    Token(u32),
    /// The token that the last step drew for its logit row of this index, or token 0 if it drew none. The host need
    /// not know it yet.
    Sampled(u32),
    /// No token: the host has written the row where [`Op::Embed`](crate::Op::Embed) would write, after
    /// `begin`. Used for images and sound.
    Embedding,
}

/// Work of one step. A row is one token; row `r` of sequence `s` is at position `s.context - s.rows + r`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Source of each row.
    pub sources: Vec<RowSource>, // (rows)
    /// Position of each row in its sequence, from 0, for rotary embedding.
    pub positions: Vec<u32>, // (rows)
    /// Positions of each row in time, height and width, for [`crate::RopeAxes`]. Empty if all three equal the row's
    /// position, as in text.
    pub axes: Vec<[u32; 3]>, // (rows), or none
    /// Token type of each row (the first or second text of a pair), or the index of its table in a [`crate::Rope`]
    /// with two tables. Empty if all are 0.
    pub types: Vec<u32>, // (rows), or none
    /// Number of keys of its sequence that each row sees in attention over the cache. At least the keys up to its
    /// own; a row of an image whose rows see each other sees up to the image's last. Empty if each row sees up to its
    /// own. Ascending within a sequence and at most its context. A window still begins relative to the row's own
    /// position. Not every device supports this.
    pub sees: Vec<u32>, // (rows), or none
    /// Cache slots that each row's keys and values are written to, one for each layer group: `block_id * 16 +
    /// offset`. Empty, as are the block tables, in a step without a cache: an encoder's, where every sequence is
    /// whole.
    pub slots: Vec<u32>, // (rows, groups)
    /// The sequences, in row order; together they cover every row.
    pub sequences: Vec<SequenceSpan>,
    /// Index of each sequence's adapter in the list given to [`Op::AddLowRank`](crate::Op::AddLowRank).
    /// Empty if no sequence has one.
    pub adapters: Vec<Option<u32>>, // (sequences), or none
    /// Index of each sequence's state in the layers with recurrent states, all different. Empty if no layer has
    /// states. The old content of a state is ignored at a sequence's first token, a row at position 0.
    pub states: Vec<u32>, // (sequences), or none
    /// Block ids of all sequences, one run each. A run has, for each layer group, the blocks up to the context's end,
    /// without the blocks before the window of the sequence's first row.
    pub block_tables: Vec<u32>,
    /// Cross-attention spans in the order of rows, each row in at most one. Empty if no layer has cross-attention. A
    /// row in no span gets zeros.
    pub memories: Vec<MemorySpan>,
    /// Block ids of all cross-attention caches, one run each. Spans may share a run.
    pub memory_tables: Vec<u32>,
    /// Window of each layer group of the cache ([`crate::KvGroups::windows`]). Empty for one group without a window.
    pub windows: Vec<Option<u32>>, // (groups), or none
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
}

impl Batch {
    /// Reserves memory for batches within the limits.
    pub fn reserve(&mut self, limits: &StepLimits) {
        let blocks = limits.context.div_ceil(BLOCK_TOKENS).saturating_mul(limits.kv_groups);
        self.sources.reserve(limits.rows);
        self.positions.reserve(limits.rows);
        self.axes.reserve(limits.rows);
        self.types.reserve(limits.rows);
        self.sees.reserve(limits.rows);
        self.slots.reserve(limits.rows.saturating_mul(limits.kv_groups));
        self.sequences.reserve(limits.sequences);
        self.adapters.reserve(limits.sequences);
        self.states.reserve(limits.sequences);
        self.block_tables.reserve(limits.sequences.saturating_mul(blocks));
        self.memories.reserve(limits.rows);
        self.memory_tables.reserve(limits.sequences.saturating_mul(blocks));
        self.windows.reserve(limits.kv_groups);
        self.logit_rows.reserve(limits.logit_rows);
    }

    /// Copies another batch into the memory that this one already has.
    pub fn copy_of(&mut self, other: &Batch) {
        let Batch {
            sources,
            positions,
            axes,
            types,
            sees,
            slots,
            sequences,
            adapters,
            states,
            block_tables,
            memories,
            memory_tables,
            windows,
            logit_rows,
        } = other;
        self.sources.clone_from(sources);
        self.positions.clone_from(positions);
        self.axes.clone_from(axes);
        self.types.clone_from(types);
        self.sees.clone_from(sees);
        self.slots.clone_from(slots);
        self.sequences.clone_from(sequences);
        self.adapters.clone_from(adapters);
        self.states.clone_from(states);
        self.block_tables.clone_from(block_tables);
        self.memories.clone_from(memories);
        self.memory_tables.clone_from(memory_tables);
        self.windows.clone_from(windows);
        self.logit_rows.clone_from(logit_rows);
    }

    /// The state index of each sequence, and whether the sequence begins in this step.
    ///
    /// # Panics
    /// If sequences have no states, or an index is not below `states`: the caller built a wrong batch.
    #[inline]
    pub fn states(&self, states: usize) -> impl Iterator<Item = (&SequenceSpan, usize, bool)> {
        assert_eq!(self.states.len(), self.sequences.len(), "a layer that keeps states, and a batch without");
        self.sequences.iter().zip(&self.states).map(move |(span, &state)| {
            assert!((state as usize) < states, "state {state} of {states}");
            (span, state as usize, span.context == span.rows)
        })
    }

    /// Rows in the batch.
    #[inline]
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Token of each row; `None` where the host has written the embedding. `last` holds the draws of the last step.
    ///
    /// # Panics
    /// If a row refers to a draw that the last step did not make: the caller built a wrong batch.
    #[inline]
    pub fn tokens<'a>(&'a self, last: &'a Draws) -> impl Iterator<Item = Option<u32>> + 'a {
        self.sources.iter().map(|source| match *source {
            RowSource::Token(token) => Some(token),
            RowSource::Sampled(index) => Some(last.token(index)),
            RowSource::Embedding => None,
        })
    }

    /// Layer groups of the cache.
    #[inline]
    pub fn groups(&self) -> usize {
        self.windows.len().max(1)
    }

    /// Adds a sequence that has `context` tokens, the last `rows` of which are rows of this step: its span,
    /// positions, slots and block tables. The caller adds the sources. `block(group, index)` returns the block id of
    /// the sequence's `index`-th 16 tokens in a layer group; it is called only for blocks that are needed.
    pub fn push_sequence(&mut self, rows: usize, context: usize, block: impl Fn(usize, usize) -> u32) {
        let span = SequenceSpan {
            row_first: self.positions.len() as u32,
            rows: rows as u32,
            context: context as u32,
            table_first: self.block_tables.len() as u32,
        };
        for group in 0..self.groups() {
            let counts = self.block_range(&span, group);
            self.block_tables.extend(counts.map(|index| block(group, index)));
        }
        for position in context - rows..context {
            self.positions.push(position as u32);
            let (index, offset) = (position / BLOCK_TOKENS, position % BLOCK_TOKENS);
            let slot = |group| block(group, index) * BLOCK_TOKENS as u32 + offset as u32;
            self.slots.extend((0..self.groups()).map(slot));
        }
        self.sequences.push(span);
    }

    /// Number of keys that a row of a sequence sees.
    #[inline]
    pub fn seen_by(&self, span: &SequenceSpan, row: u32) -> u32 {
        let own = span.context - span.rows + row + 1;
        self.sees.get((span.row_first + row) as usize).map_or(own, |&seen| seen.max(own))
    }

    /// Clears the rows and sequences but keeps the memory and the layer groups.
    pub fn clear(&mut self) {
        self.sources.clear();
        self.positions.clear();
        self.axes.clear();
        self.types.clear();
        self.sees.clear();
        self.slots.clear();
        self.sequences.clear();
        self.adapters.clear();
        self.states.clear();
        self.block_tables.clear();
        self.memories.clear();
        self.memory_tables.clear();
        self.logit_rows.clear();
    }

    /// Adds a cross-attention span for the sequence added last: so many keys, in these blocks, all visible to each of
    /// its rows.
    pub fn push_memory(&mut self, context: usize, blocks: impl Iterator<Item = u32>) {
        let span = self.sequences.last().copied().expect("a memory is a sequence's");
        let table_first = self.memory_tables.len() as u32;
        self.memory_tables.extend(blocks.take(context.div_ceil(BLOCK_TOKENS)));
        let SequenceSpan { row_first, rows, .. } = span;
        self.memories.push(MemorySpan { row_first, rows, first: 0, context: context as u32, table_first });
    }

    /// Block ids of a cross-attention span.
    #[inline]
    pub fn memory_blocks(&self, memory: &MemorySpan) -> &[u32] {
        let blocks = (memory.context as usize).div_ceil(BLOCK_TOKENS);
        &self.memory_tables[memory.table_first as usize..][..blocks]
    }

    /// The cache slot of one key of a cross-attention span.
    #[inline]
    pub fn memory_slot(&self, memory: &MemorySpan, key: u32) -> usize {
        let (block, offset) = (key as usize / BLOCK_TOKENS, key as usize % BLOCK_TOKENS);
        self.memory_blocks(memory)[block] as usize * BLOCK_TOKENS + offset
    }

    /// Asserts that a batch is within the limits and keeps the promises of its fields, so that a backend may write
    /// each row's slots and outputs from a separate thread. `written` is scratch; nothing is allocated if it has room
    /// for the rows.
    ///
    /// # Panics
    /// If not: the caller built a wrong batch.
    pub fn check(&self, limits: &StepLimits, written: &mut Vec<u32>) {
        let rows = self.rows();
        assert!(rows > 0, "an empty batch");
        assert!(rows <= limits.rows, "{rows} rows, reserved {}", limits.rows);
        assert!(self.sequences.len() <= limits.sequences, "more sequences than reserved");
        assert!(self.logit_rows.len() <= limits.logit_rows, "more logit rows than reserved");
        assert_eq!(self.positions.len(), rows, "one position a row");
        assert!(self.types.is_empty() || self.types.len() == rows, "one type a row, or none at all");
        assert!(self.axes.is_empty() || self.axes.len() == rows, "three positions a row, or none at all");
        assert!(self.sees.is_empty() || self.sees.len() == rows, "a row sees up to one key, or none is said");
        let adapted = self.adapters.len();
        assert!(adapted == 0 || adapted == self.sequences.len(), "an adapter a sequence, or none at all");
        let states = self.states.len();
        assert!(states == 0 || states == self.sequences.len(), "a state a sequence, or none at all");
        self.check_memories(limits);
        written.clear();
        written.extend_from_slice(&self.states);
        written.sort_unstable();
        assert!(written.is_sorted_by(|a, b| a < b), "two sequences have one state");
        let cached = !self.slots.is_empty();
        let groups = self.groups();
        assert!(groups <= limits.kv_groups, "{groups} layer groups, reserved {}", limits.kv_groups);
        assert!(!cached || self.slots.len() == rows * groups, "one slot a row and group, or none at all");
        assert!(cached || self.block_tables.is_empty(), "block tables, and no slots");
        assert!(
            self.logit_rows.iter().all(|&row| (row as usize) < rows),
            "logits of a row outside the batch"
        );
        assert!(self.logit_rows.is_sorted(), "logit rows ascend");
        let mut row_next = 0;
        for span in &self.sequences {
            assert_eq!(span.row_first, row_next, "the sequences cover the rows in order");
            self.check_sequence(span, limits);
            row_next += span.rows;
        }
        assert_eq!(row_next as usize, rows, "the sequences cover every row");
        written.clear();
        written.extend_from_slice(&self.slots);
        written.sort_unstable();
        assert!(written.is_sorted_by(|a, b| a < b), "two rows write one slot");
    }

    /// Asserts that the memories are in order, within the batch's rows and within the limits.
    fn check_memories(&self, limits: &StepLimits) {
        let mut behind = 0;
        for memory in &self.memories {
            assert!(memory.rows > 0 && memory.row_first >= behind, "a row sees one part of a memory");
            behind = memory.row_first + memory.rows;
            assert!(behind as usize <= self.rows(), "rows that are not there see a memory");
            assert!(memory.first < memory.context, "an empty memory");
            assert!(memory.context as usize <= limits.context, "a memory longer than reserved");
            assert_eq!(self.memory_blocks(memory).len(), (memory.context as usize).div_ceil(BLOCK_TOKENS));
        }
    }

    /// Asserts that a sequence's context holds its rows, what they see, and their slots.
    fn check_sequence(&self, span: &SequenceSpan, limits: &StepLimits) {
        let (cached, groups) = (!self.slots.is_empty(), self.groups());
        assert!(span.rows > 0 && span.rows <= span.context, "{span:?}: a context holds its own rows");
        assert!(span.context as usize <= limits.context, "a context longer than reserved");
        assert!(cached || span.context == span.rows, "{span:?}: without a cache a sequence is whole");
        if !self.sees.is_empty() {
            let own = span.context - span.rows + 1;
            let sees = &self.sees[span.row_first as usize..][..span.rows as usize];
            assert!(
                sees.is_sorted() && sees.iter().all(|&seen| seen <= span.context),
                "{span:?}: keys that are not there"
            );
            assert!(
                sees.iter().zip(own..).all(|(&seen, own)| seen >= own),
                "{span:?}: a row that does not see itself"
            );
        }
        for row in (0..span.rows).filter(|_| cached) {
            let key = span.context - span.rows + row;
            for group in 0..groups {
                assert_eq!(
                    self.row_slot((span.row_first + row) as usize, group),
                    self.slot(span, group, key),
                    "row {row} of {span:?}, group {group}: a slot beside its block table"
                );
            }
        }
    }

    /// Rows with an adapter, and the adapter.
    #[inline]
    pub fn adapted_rows(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let adapted = self.sequences.iter().zip(&self.adapters);
        adapted.flat_map(|(span, adapter)| {
            let rows = if adapter.is_some() { span.rows } else { 0 };
            (span.row_first..span.row_first + rows).map(|row| (row, adapter.unwrap_or_default()))
        })
    }

    /// Logit rows with an adapter: the index in [`Batch::logit_rows`], the row, and the adapter.
    #[inline]
    pub fn adapted_logit_rows(&self) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let logit_rows = if self.adapters.is_empty() { &[] } else { &self.logit_rows[..] };
        logit_rows.iter().zip(0..).filter_map(|(&row, index)| {
            let sequence = self.sequences.partition_point(|span| span.row_first + span.rows <= row);
            self.adapters[sequence].map(|adapter| (index, row, adapter))
        })
    }

    /// Position by which rotary embedding turns a pair of a row.
    #[inline]
    pub fn turn_position(&self, row: usize, axes: Option<RopeAxes>, pair: usize) -> u32 {
        match (axes, self.axes.get(row)) {
            (Some(axes), Some(positions)) => positions[axes.of_pair(pair)],
            _ => self.positions[row],
        }
    }

    /// Token type of a row; 0 if rows have none.
    #[inline]
    pub fn type_of(&self, row: usize) -> u32 {
        self.types.get(row).copied().unwrap_or(0)
    }

    /// Index of the embedding table's row for a row of the batch.
    #[inline]
    pub fn table_row(&self, ids: RowIds, row: usize) -> usize {
        match ids {
            RowIds::Positions { offset } => self.positions[row] as usize + offset as usize,
            RowIds::Types => self.type_of(row) as usize,
        }
    }

    /// Cache slot that a row's keys and values are written to, in the layers of a group.
    #[inline]
    pub fn row_slot(&self, row: usize, group: usize) -> usize {
        self.slots[row * self.groups() + group] as usize
    }

    /// Cache slot of one key of a sequence in the layers of a group.
    ///
    /// # Panics
    /// If the group has no block for it, because no row of this step sees the key.
    #[inline]
    pub fn slot(&self, span: &SequenceSpan, group: usize, key: u32) -> usize {
        let (block, offset) = (key as usize / BLOCK_TOKENS, key as usize % BLOCK_TOKENS);
        let (first, blocks) = self.blocks(span, group);
        assert!(block >= first, "key {key} of {span:?} has left the window of group {group}");
        blocks[block - first] as usize * BLOCK_TOKENS + offset
    }

    /// Block ids of one sequence in a layer group, and the index of the first of them in the sequence.
    #[inline]
    pub fn blocks(&self, span: &SequenceSpan, group: usize) -> (usize, &[u32]) {
        let before: usize = (0..group).map(|before| self.block_range(span, before).len()).sum();
        let counts = self.block_range(span, group);
        (counts.start, &self.block_tables[span.table_first as usize + before..][..counts.len()])
    }

    /// Range of a sequence's blocks that a layer group holds: the blocks that its rows see any key of.
    #[inline]
    fn block_range(&self, span: &SequenceSpan, group: usize) -> Range<usize> {
        let unseen = |window: u32| (span.context - span.rows + 1).saturating_sub(window) as usize;
        let window = self.windows.get(group).copied().flatten();
        window.map_or(0, unseen) / BLOCK_TOKENS..(span.context as usize).div_ceil(BLOCK_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeadShape;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Two sequences of 3 and 2 rows, with a cache or without.
    fn batch(cached: bool) -> Batch {
        let span =
            |row_first, rows, table_first| SequenceSpan { row_first, rows, context: rows, table_first };
        Batch {
            sources: vec![RowSource::Token(7); 5],
            positions: vec![0, 1, 2, 0, 1],
            axes: Vec::new(),
            types: Vec::new(),
            sees: Vec::new(),
            slots: if cached { vec![16, 17, 18, 0, 1] } else { Vec::new() },
            sequences: vec![span(0, 3, 0), span(3, 2, 1)],
            adapters: Vec::new(),
            memories: Vec::new(),
            memory_tables: Vec::new(),
            states: Vec::new(),
            block_tables: if cached { vec![1, 0] } else { Vec::new() },
            logit_rows: vec![4],
            windows: Vec::new(),
        }
    }

    fn passes(batch: &Batch) -> bool {
        let heads = HeadShape { heads: 1, kv_heads: 1, head_dim: 8 };
        let limits = StepLimits {
            rows: 5,
            sequences: 2,
            logit_rows: 1,
            context: 40,
            width: 8,
            vocab: 1,
            heads,
            experts: 0,
            experts_used: 0,
            experts_width: 0,
            kv_groups: 2,
            heads_matmul_width: 0,
        };
        catch_unwind(AssertUnwindSafe(|| batch.check(&limits, &mut Vec::new()))).is_ok()
    }

    #[test]
    fn a_batch_has_a_cache_or_whole_sequences() {
        for cached in [true, false] {
            assert!(passes(&batch(cached)));
            assert!(passes(&Batch { types: vec![0, 0, 1, 1, 0], ..batch(cached) }));
            assert!(!passes(&Batch { types: vec![0, 0, 1], ..batch(cached) }), "too few types");
            assert!(passes(&Batch { sees: vec![2, 2, 3, 2, 2], ..batch(cached) }));
            assert!(!passes(&Batch { sees: vec![2, 2, 3], ..batch(cached) }), "of too few rows");
            assert!(
                !passes(&Batch { sees: vec![2, 2, 3, 3, 3], ..batch(cached) }),
                "keys that are not there"
            );
            assert!(
                !passes(&Batch { sees: vec![1, 1, 3, 1, 2], ..batch(cached) }),
                "a row that does not see itself"
            );
            assert!(passes(&Batch { axes: vec![[0; 3]; 5], ..batch(cached) }));
            assert!(!passes(&Batch { axes: vec![[0; 3]; 4], ..batch(cached) }), "too few axes");
            assert!(passes(&Batch { adapters: vec![None, Some(3)], ..batch(cached) }));
            assert!(!passes(&Batch { adapters: vec![None], ..batch(cached) }), "too few adapters");
            assert!(passes(&Batch { states: vec![7, 3], ..batch(cached) }));
            assert!(!passes(&Batch { states: vec![7], ..batch(cached) }), "too few states");
            assert!(!passes(&Batch { states: vec![7, 7], ..batch(cached) }), "one state twice");
            assert!(!passes(&Batch { positions: vec![0; 4], ..batch(cached) }), "too few positions");
            let sees = |row_first, rows, first, context| MemorySpan {
                row_first,
                rows,
                first,
                context,
                table_first: 0,
            };
            let remembers =
                |memories| passes(&Batch { memories, memory_tables: vec![4, 2, 7], ..batch(cached) });
            assert!(remembers(vec![sees(0, 2, 0, 40), sees(4, 1, 17, 33)]));
            assert!(!remembers(vec![sees(0, 2, 0, 40), sees(1, 2, 0, 40)]), "a row twice");
            assert!(!remembers(vec![sees(4, 2, 0, 40)]), "a row that is not there");
            assert!(!remembers(vec![sees(0, 2, 5, 5)]), "no key");
            assert!(!remembers(vec![sees(0, 2, 0, 41)]), "more keys than reserved");
        }
        assert!(!passes(&Batch { slots: Vec::new(), ..batch(true) }), "block tables and no slots");
        assert!(!passes(&Batch { block_tables: vec![1], slots: vec![16, 17], ..batch(true) }), "some slots");
        let mut longer = batch(false);
        longer.sequences[1].context = 3;
        assert!(!passes(&longer), "a sequence that is not whole, and no cache");
    }

    #[test]
    fn a_group_has_the_blocks_that_its_rows_see() {
        // One sequence of 35 tokens, two of them rows; a group that keeps everything and one that sees 4 tokens.
        let mut grouped = Batch { windows: vec![None, Some(4)], ..Batch::default() };
        grouped.sources = vec![RowSource::Token(0); 2];
        grouped.push_sequence(2, 35, |group, index| [[5, 6, 7], [9, 3, 1]][group][index]);
        assert!(passes(&grouped));
        assert_eq!(grouped.block_tables, [5, 6, 7, 3, 1]);
        assert_eq!(grouped.slots, [7 * 16 + 1, 16 + 1, 7 * 16 + 2, 16 + 2]);
        let span = grouped.sequences[0];
        assert_eq!(grouped.blocks(&span, 0), (0, &[5, 6, 7][..]));
        assert_eq!(grouped.blocks(&span, 1), (1, &[3, 1][..]));
        // Row 33 sees keys 30 to 33.
        assert_eq!((grouped.slot(&span, 1, 30), grouped.slot(&span, 0, 0)), (3 * 16 + 14, 5 * 16));
        assert!(catch_unwind(AssertUnwindSafe(|| grouped.slot(&span, 1, 15))).is_err());
        let mut other = grouped.clone();
        other.slots[1] += 1;
        assert!(!passes(&other), "a slot beside the second group's table");
        let mut other = grouped.clone();
        other.windows.push(None);
        assert!(!passes(&other), "more groups than reserved");
        // Groups share no block.
        let mut other = Batch { windows: vec![None, Some(4)], sources: grouped.sources, ..Batch::default() };
        other.push_sequence(2, 35, |_, index| [5, 6, 7][index]);
        assert!(!passes(&other), "two groups write one slot");
    }

    #[test]
    fn pairs_turn_by_the_axis_of_their_section() {
        let positions = Batch { axes: vec![[7, 8, 9]], positions: vec![3], ..Batch::default() };
        let turned_by =
            |axes| (0..9).map(|pair| positions.turn_position(0, axes, pair)).collect::<Vec<u32>>();
        let sections = [4, 2, 3];
        let one_by_one = RopeAxes { sections, interleaved: false };
        assert_eq!(turned_by(Some(one_by_one)), [7, 7, 7, 7, 8, 8, 9, 9, 9]);
        let in_turns = RopeAxes { sections, interleaved: true };
        assert_eq!(turned_by(Some(in_turns)), [7, 8, 9, 7, 8, 9, 7, 7, 9]);
        assert_eq!(turned_by(None), [3; 9]);
        let text = Batch { positions: vec![3], ..Batch::default() };
        assert_eq!(text.turn_position(0, Some(in_turns), 1), 3);
    }

    #[test]
    fn rows_of_embedding_tables() {
        let plain = batch(false);
        assert_eq!(plain.table_row(RowIds::Positions { offset: 2 }, 2), 4);
        assert_eq!(plain.table_row(RowIds::Types, 2), 0);
        assert_eq!(Batch { types: vec![0, 0, 3, 0, 0], ..plain }.table_row(RowIds::Types, 2), 3);
    }
}
