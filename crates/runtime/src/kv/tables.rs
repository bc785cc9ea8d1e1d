//! The blocks of one sequence: a table for each layer group. A group that sees a window gives back what has left it, and holds
//! no more than that and what the largest step adds to it.

use std::ops::Range;

use hanzo_engine_kernels::BLOCK_TOKENS;

use super::{BlockHash, BlockPool, NONE};

/// See the module. Empty as long as the sequence does not run.
#[derive(Debug, Default)]
pub struct BlockTables {
    groups: Vec<Table>,
    state: Option<u32>, // in layers that keep one, while it runs
}

/// What a sequence found of its tokens when it entered, in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its beginning.
    pub prefix: usize,
    /// What it holds behind blocks that it lacks, in order: of use to it when it gets there.
    pub behind: Vec<Range<usize>>,
}

#[derive(Debug, Default)]
struct Table {
    /// Which of the sequence's blocks the first of `ids` is.
    first: usize,
    ids: Vec<u32>,
}

impl Table {
    fn end(&self) -> usize {
        self.first + self.ids.len()
    }
}

impl BlockTables {
    /// Free blocks that [`BlockTables::enter`] would use up, at most: what it finds behind the prefix, and others hold, is
    /// counted as if it were not there.
    pub fn needed(pool: &BlockPool, hashes: &[BlockHash], tokens: usize) -> usize {
        let (shared, of_them_free) = pool.find_prefix(hashes);
        let room = pool.room();
        let new = |group| room.range(group, shared * BLOCK_TOKENS, tokens).end - shared;
        (0..room.count()).map(new).sum::<usize>() + of_them_free
    }

    /// Takes blocks for `tokens` tokens, or as many as a window holds of them, sharing those of the prefix that is there. The
    /// caller has checked that there are enough. With `behind` it shares what is there behind that prefix too, where that is of
    /// use. Says what it shares.
    pub fn enter(
        &mut self,
        pool: &mut BlockPool,
        hashes: &[BlockHash],
        tokens: usize,
        behind: bool,
    ) -> Found {
        debug_assert!(self.is_empty(), "it holds blocks already");
        let (shared, _) = pool.find_prefix(hashes);
        let behind = if behind { pool.find_behind(hashes, shared) } else { Vec::new() };
        let found = Found { prefix: shared, behind };
        let groups = pool.room().count();
        let ranges = (0..groups).map(|group| pool.room().range(group, shared * BLOCK_TOKENS, tokens));
        let ranges: Vec<_> = ranges.collect();
        // All that is shared first: a block that is taken may be one that can still be found.
        self.groups.clear();
        for (group, range) in ranges.into_iter().enumerate() {
            let mut table = Table { first: range.start, ids: vec![NONE; range.len()] };
            for index in (range.start..shared).chain(found.behind.iter().cloned().flatten()) {
                let id = pool.share(group, &hashes[index]);
                table.ids[index - range.start] =
                    id.expect("the pool just found this block and nothing was taken since");
            }
            self.groups.push(table);
        }
        for (group, table) in self.groups.iter_mut().enumerate() {
            for id in table.ids.iter_mut().filter(|id| **id == NONE) {
                *id = pool.take(group).expect("the scheduler admits only what blocks_needed says fits");
            }
        }
        self.state = pool.take_state();
        found
    }

    /// Its state in layers that keep one; none where they do not, or as long as it does not run.
    pub fn state(&self) -> Option<u32> {
        self.state
    }

    /// Gives back what none of these rows sees, and takes blocks for as many of them as it can and for what comes after them
    /// of `tokens` tokens, leaving `spare` free. Says for how many rows there is room now.
    pub fn grow(&mut self, pool: &mut BlockPool, rows: Range<usize>, tokens: usize, spare: usize) -> usize {
        let (computed, rows) = (rows.start, rows.len());
        for (group, table) in self.groups.iter_mut().enumerate() {
            let gone = pool.room().first_kept(group, computed).saturating_sub(table.first);
            if gone > 0 {
                table.ids.drain(..gone).rev().for_each(|id| pool.release(id));
                table.first += gone;
            }
        }
        let mut room = rows;
        let end = (computed + rows).div_ceil(BLOCK_TOKENS);
        for (group, table) in self.groups.iter_mut().enumerate() {
            while table.end() < end
                && pool.free() > spare
                && let Some(id) = pool.take(group)
            {
                table.ids.push(id);
            }
            room = room.min((table.end() * BLOCK_TOKENS).saturating_sub(computed));
        }
        // What a prompt will need beyond this step is held from the first on, so that it never waits for it.
        for (group, table) in self.groups.iter_mut().enumerate().filter(|_| room == rows) {
            let end = pool.room().range(group, computed, tokens).end;
            while table.end() < end
                && pool.free() > spare
                && let Some(id) = pool.take(group)
            {
                table.ids.push(id);
            }
        }
        room
    }

    /// Gives all blocks back, those of the end first.
    pub fn leave(&mut self, pool: &mut BlockPool) {
        while let Some(table) =
            self.groups.iter_mut().filter(|table| !table.ids.is_empty()).max_by_key(|table| table.end())
        {
            table.ids.pop().into_iter().for_each(|id| pool.release(id));
        }
        self.groups.clear();
        if let Some(state) = self.state.take() {
            pool.release_state(state);
        }
    }

    /// Makes the full block of this place in the sequence findable, in the groups that still hold it.
    pub fn publish(&self, pool: &mut BlockPool, index: usize, hash: BlockHash) {
        for (group, table) in self.groups.iter().enumerate() {
            if let Some(&id) = index.checked_sub(table.first).and_then(|at| table.ids.get(at)) {
                pool.publish(group, id, hash);
            }
        }
    }

    /// The block that a group has of 16 tokens of the sequence.
    ///
    /// # Panics
    /// Where it holds none.
    pub fn block(&self, group: usize, index: usize) -> u32 {
        let table = &self.groups[group];
        table.ids[index - table.first]
    }

    /// Blocks that it holds, of all groups.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|table| table.ids.iter().copied())
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|table| table.ids.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|table| table.ids.is_empty())
    }

    /// The tables, by group.
    pub fn by_group(&self) -> impl Iterator<Item = &[u32]> + '_ {
        self.groups.iter().map(|table| &table.ids[..])
    }

    /// Asserts that there is a block for all that is computed and may still be seen.
    ///
    /// # Panics
    /// Where there is not.
    pub fn check(&self, pool: &BlockPool, computed: usize) {
        for (group, table) in self.groups.iter().enumerate() {
            assert!(
                computed <= table.end() * BLOCK_TOKENS,
                "more is computed than there are blocks for in group {group}"
            );
            assert!(
                table.first <= pool.room().first_kept(group, computed),
                "a block of group {group} is gone that the next row sees"
            );
        }
    }
}
