//! Block tables of one sequence, one for each layer group. A group with a window releases the blocks that have left
//! it. It holds no more than the window and the rows that the largest step adds.

use std::ops::Range;

use hanzo_engine_ops::BLOCK_TOKENS;

use super::{BlockHash, BlockPool, NONE};

/// Block tables; see the module. Empty while the sequence does not run.
#[derive(Debug, Default)]
pub struct BlockTables {
    groups: Vec<Table>,
    state: Option<u32>, // state in recurrent layers, while it runs
}

/// Cached blocks that a sequence found when it entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of blocks in the prefix.
    pub prefix: usize,
    /// Runs of cached blocks behind missing ones, in order; used when the sequence gets there.
    pub behind: Vec<Range<usize>>,
}

#[derive(Debug, Default)]
struct Table {
    /// Index in the sequence of the first block in `ids`.
    first: usize,
    ids: Vec<u32>,
}

impl Table {
    fn end(&self) -> usize {
        self.first + self.ids.len()
    }
}

impl BlockTables {
    /// Maximum free blocks that [`BlockTables::enter`] would use up. Cached blocks behind the prefix that others
    /// hold are counted as if they were missing.
    pub fn needed(pool: &BlockPool, hashes: &[BlockHash], tokens: usize) -> usize {
        let (shared, of_them_free) = pool.find_prefix(hashes);
        let room = pool.room();
        let new = |group| room.range(group, shared * BLOCK_TOKENS, tokens).end - shared;
        (0..room.count()).map(new).sum::<usize>() + of_them_free
    }

    /// Takes blocks for `tokens` tokens, or for as many as a window holds, and shares those of the cached prefix.
    /// The caller has checked that there are enough. With `behind`, also shares cached blocks behind the prefix if
    /// they are of use. Returns the shared blocks.
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
        // Sharing comes first: a taken block may be one that can still be found.
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

    /// State in recurrent layers; `None` if there are none, or while it does not run.
    pub fn state(&self) -> Option<u32> {
        self.state
    }

    /// Releases blocks that none of these rows attends to, and takes blocks for as many of the rows as possible.
    /// Also takes blocks for the rest of the `tokens` tokens, but leaves `spare` free for others. Returns the
    /// number of rows that have room.
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
        // Blocks that a prompt needs after this step are held from the start, so that it never waits for them.
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

    /// Releases all blocks, the last ones first.
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

    /// Makes a full block of the sequence findable in the groups that still hold it.
    pub fn publish(&self, pool: &mut BlockPool, index: usize, hash: BlockHash) {
        for (group, table) in self.groups.iter().enumerate() {
            if let Some(&id) = index.checked_sub(table.first).and_then(|at| table.ids.get(at)) {
                pool.publish(group, id, hash);
            }
        }
    }

    /// Block of a group for 16 tokens of the sequence.
    ///
    /// # Panics
    /// If the group does not hold it.
    pub fn block(&self, group: usize, index: usize) -> u32 {
        let table = &self.groups[group];
        table.ids[index - table.first]
    }

    /// Blocks that it holds, in all groups.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flat_map(|table| table.ids.iter().copied())
    }

    /// Number of blocks that it holds.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|table| table.ids.len()).sum()
    }

    /// Whether it holds no blocks.
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|table| table.ids.is_empty())
    }

    /// Block IDs by group.
    pub fn by_group(&self) -> impl Iterator<Item = &[u32]> + '_ {
        self.groups.iter().map(|table| &table.ids[..])
    }

    /// Checks that there is a block for everything computed that may still be attended to.
    ///
    /// # Panics
    /// If one is missing.
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
