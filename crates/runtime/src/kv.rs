//! Which blocks of the paged KV cache belong to whom. The numbers themselves live in the backend; here are only
//! block ids, reference counts and the index that finds a block by what is in it.
//!
//! A full block can be shared by every sequence whose tokens up to its end are the same. It is named by a chain
//! hash of (hash of the block before, its tokens), so equal names mean equal prefixes. A block nobody holds
//! keeps its content until it is needed: the free list is in eviction order, least recently used first, and a
//! sequence gives its blocks back tail first, so that the end of a prefix goes before its beginning.
//!
//! Layers that see a window need fewer blocks than those that see everything, so layers come in groups ([`groups_of`]),
//! and a block belongs to one group as long as it is held or can be found. All groups take from the one pool.

mod groups;
mod tables;

use std::collections::HashMap;

use hanzo_engine_kernels::{BLOCK_TOKENS, KvGroups};
use sha2::{Digest, Sha256};

pub use groups::{KvRoom, groups_of};
pub use tables::BlockTables;

/// Name of a full block: of its tokens and everything before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 16]);

impl BlockHash {
    /// What the first block of a sequence has before it. `salt` separates prefixes that must not be shared
    /// although their tokens are equal (adapters, cache salts).
    pub fn root(salt: &[u8]) -> BlockHash {
        Self::digest(&[b"hanzo kv root", salt])
    }

    /// Name of the block that holds `tokens` after `parent`. `salt` tells blocks apart that are not made of their tokens
    /// alone ([`crate::media`]).
    pub fn chain(parent: BlockHash, tokens: &[u32], salt: &[u8]) -> BlockHash {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS);
        Self::digest(&[&parent.0, bytemuck::cast_slice(tokens), salt])
    }

    // Cryptographic, because a collision would show one client's context to another.
    fn digest(parts: &[&[u8]]) -> BlockHash {
        let mut sha = Sha256::new();
        for part in parts {
            sha.update(part);
        }
        let mut name = [0; 16];
        name.copy_from_slice(&sha.finalize()[..16]);
        BlockHash(name)
    }
}

/// End of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    holders: u32,
    group: u32, // of layers; meaningful only while it is held or has a hash
    hash: Option<BlockHash>,
    // Neighbours in the free list; meaningful only while `holders` is 0.
    before: u32,
    after: u32,
}

/// All blocks of one cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    index: Vec<HashMap<BlockHash, u32>>, // by group: hash of a full block → its id
    room: KvRoom,
    first_free: u32,
    last_free: u32,
    free: usize,   // blocks nobody holds, cached ones included
    cached: usize, // of them, those that the index can still find
    share: bool,
}

impl BlockPool {
    /// `blocks` free blocks for layers that all keep everything; `share` turns prefix reuse on.
    pub fn new(blocks: usize, share: bool) -> BlockPool {
        Self::of_groups(blocks, share, KvRoom::new(&KvGroups::default(), 1))
    }

    /// As [`BlockPool::new`], for layers in groups.
    pub fn of_groups(blocks: usize, share: bool, room: KvRoom) -> BlockPool {
        assert!(blocks < NONE as usize, "block ids are u32");
        let mut pool = BlockPool {
            blocks: vec![Block { holders: 0, group: 0, hash: None, before: NONE, after: NONE }; blocks],
            index: vec![HashMap::new(); room.count()],
            room,
            first_free: NONE,
            last_free: NONE,
            free: 0,
            cached: 0,
            share,
        };
        for id in 0..blocks as u32 {
            pool.push_last(id);
        }
        pool
    }

    /// What sequences hold of each group.
    pub fn room(&self) -> &KvRoom {
        &self.room
    }

    /// Layer groups.
    pub fn groups(&self) -> usize {
        self.room.count()
    }

    /// Blocks in all.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that [`BlockPool::take`] can still give, cached ones included.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Blocks that running sequences hold.
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free
    }

    /// Free blocks whose content can still be found.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Whether prefixes are shared.
    pub fn shares(&self) -> bool {
        self.share
    }

    /// A block for new content of a group, the least recently used; `None` when all are held.
    pub fn take(&mut self, group: usize) -> Option<u32> {
        let id = self.first_free;
        if id == NONE {
            return None;
        }
        self.unlink(id);
        let block = &mut self.blocks[id as usize];
        if let Some(hash) = block.hash.take() {
            self.index[block.group as usize].remove(&hash);
            self.cached -= 1;
        }
        (block.holders, block.group) = (1, group as u32);
        Some(id)
    }

    /// How many of `hashes`, from the first, are there to be shared, and how many blocks of those are free now (sharing
    /// them makes [`BlockPool::free`] smaller by that many). A prefix is there if each group has the blocks that a row
    /// after it sees; what one lacks shortens it.
    pub fn find_prefix(&self, hashes: &[BlockHash]) -> (usize, usize) {
        if self.groups() == 1 && self.room.keeps_all(0) {
            return self.find_whole_prefix(hashes);
        }
        let mut found = if self.share { hashes.len() } else { 0 };
        // Of those up to `found`, each group is known to have the blocks from here on.
        let mut seen = vec![found; self.groups()];
        let mut group = 0;
        while group < self.groups() {
            match self.lacks(group, &hashes[..found], seen[group]) {
                None => {
                    seen[group] = seen[group].min(self.first_seen(group, found));
                    group += 1;
                }
                Some(index) => {
                    // What the groups before have of a shorter prefix may not reach far enough back.
                    found = index;
                    seen.iter_mut().for_each(|seen| *seen = (*seen).min(found));
                    seen[group] = if self.room.keeps_all(group) { 0 } else { found };
                    group = 0;
                }
            }
        }
        let is_free = |id: &u32| self.blocks[*id as usize].holders == 0;
        (found, self.found_ids(&hashes[..found]).filter(is_free).count())
    }

    /// [`BlockPool::find_prefix`] where there is one group, which keeps everything.
    fn find_whole_prefix(&self, hashes: &[BlockHash]) -> (usize, usize) {
        let (mut found, mut free) = (0, 0);
        for hash in hashes {
            let Some(&id) = self.index[0].get(hash) else { break };
            found += 1;
            free += usize::from(self.blocks[id as usize].holders == 0);
        }
        (found, free)
    }

    /// The last block that a group lacks of those a row after them would see, of which it is known to have those from
    /// `seen` on. Of a group that keeps everything the first, because only what is before that counts.
    fn lacks(&self, group: usize, hashes: &[BlockHash], seen: usize) -> Option<usize> {
        let lacks = |&index: &usize| !self.index[group].contains_key(&hashes[index]);
        let mut range = self.first_seen(group, hashes.len())..seen;
        if self.room.keeps_all(group) { range.find(lacks) } else { range.rev().find(lacks) }
    }

    /// The first block of so many that a row after them sees.
    fn first_seen(&self, group: usize, blocks: usize) -> usize {
        self.room.first_kept(group, blocks * BLOCK_TOKENS)
    }

    /// The blocks that would be shared of a prefix of this content, of all groups.
    pub fn prefix<'a>(&'a self, hashes: &'a [BlockHash]) -> impl Iterator<Item = u32> + 'a {
        let (found, _) = self.find_prefix(hashes);
        self.found_ids(&hashes[..found])
    }

    /// The blocks of a prefix that is there.
    fn found_ids<'a>(&'a self, hashes: &'a [BlockHash]) -> impl Iterator<Item = u32> + 'a {
        self.index.iter().enumerate().flat_map(move |(group, index)| {
            hashes[self.first_seen(group, hashes.len())..].iter().filter_map(|hash| index.get(hash).copied())
        })
    }

    /// Whether one sequence alone holds the block: released, it is free.
    pub fn is_held_once(&self, id: u32) -> bool {
        self.blocks[id as usize].holders == 1
    }

    /// Shares a group's block with this content.
    pub fn share(&mut self, group: usize, hash: &BlockHash) -> Option<u32> {
        let id = *self.index[group].get(hash)?;
        if self.blocks[id as usize].holders == 0 {
            self.unlink(id);
            self.cached -= 1;
        }
        self.blocks[id as usize].holders += 1;
        Some(id)
    }

    /// Makes a full block of a group findable. Where another block with the same content already is, that one stays.
    pub fn publish(&mut self, group: usize, id: u32, hash: BlockHash) {
        let (block, index) = (&mut self.blocks[id as usize], &mut self.index[group]);
        debug_assert!(block.holders > 0, "only a holder knows the content");
        debug_assert_eq!(block.group as usize, group, "a block of another group");
        if self.share && block.hash.is_none() && !index.contains_key(&hash) {
            block.hash = Some(hash);
            index.insert(hash, id);
        }
    }

    /// Gives back one sequence's hold on a block. Of several, the last of the sequence's come first.
    pub fn release(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.holders > 0, "block {id} was given back twice");
        block.holders -= 1;
        if block.holders == 0 {
            if block.hash.is_some() {
                self.cached += 1;
                self.push_last(id);
            } else {
                self.push_first(id);
            }
        }
    }

    /// Asserts that the books balance, where these are the block tables of all that hold blocks: a block is held as often
    /// as they list it, is of their group, is free otherwise, and is found by its own content alone.
    ///
    /// # Panics
    /// Where they do not: a block has leaked, or is about to be given to two.
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a BlockTables>) {
        let mut holders = vec![0; self.blocks.len()];
        for (group, ids) in tables.flat_map(|tables| tables.by_group().enumerate()) {
            for &id in ids {
                holders[id as usize] += 1;
                let of = self.blocks[id as usize].group as usize;
                assert_eq!(of, group, "block {id} is in a block table of another group");
            }
        }
        let mut listed = 0;
        let mut next = self.first_free;
        while next != NONE {
            assert_eq!(holders[next as usize], 0, "block {next} is in the free list and in a block table");
            assert!(listed < self.free, "the free list is longer than the {} free blocks", self.free);
            listed += 1;
            next = self.blocks[next as usize].after;
        }
        assert_eq!(listed, self.free, "blocks of the free list");
        let mut cached = 0;
        for (id, (block, &holders)) in self.blocks.iter().zip(&holders).enumerate() {
            assert_eq!(block.holders, holders, "holders of block {id}, and block tables that list it");
            cached += usize::from(holders == 0 && block.hash.is_some());
            let found = block.hash.map(|hash| self.index[block.group as usize].get(&hash).copied());
            assert!(
                found.is_none_or(|found| found == Some(id as u32)),
                "block {id} is not found by its content"
            );
        }
        assert_eq!(cached, self.cached, "free blocks that can be found");
        let named = self.blocks.iter().filter(|block| block.hash.is_some()).count();
        let findable: usize = self.index.iter().map(HashMap::len).sum();
        assert_eq!(named, findable, "blocks that have a name, and names that find one");
        assert_eq!(self.used() + self.free, self.total(), "blocks used and free");
    }

    fn push_last(&mut self, id: u32) {
        let before = self.last_free;
        self.link(before, id, NONE);
    }

    fn push_first(&mut self, id: u32) {
        let after = self.first_free;
        self.link(NONE, id, after);
    }

    fn link(&mut self, before: u32, id: u32, after: u32) {
        self.blocks[id as usize].before = before;
        self.blocks[id as usize].after = after;
        match before {
            NONE => self.first_free = id,
            _ => self.blocks[before as usize].after = id,
        }
        match after {
            NONE => self.last_free = id,
            _ => self.blocks[after as usize].before = id,
        }
        self.free += 1;
    }

    fn unlink(&mut self, id: u32) {
        let Block { before, after, .. } = self.blocks[id as usize];
        match before {
            NONE => self.first_free = after,
            _ => self.blocks[before as usize].after = after,
        }
        match after {
            NONE => self.last_free = before,
            _ => self.blocks[after as usize].before = before,
        }
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(n: u32) -> BlockHash {
        BlockHash::chain(BlockHash::root(b""), &[n; BLOCK_TOKENS], b"")
    }

    /// The last of them first, as sequences do.
    fn release(pool: &mut BlockPool, ids: &mut Vec<u32>) {
        ids.drain(..).rev().for_each(|id| pool.release(id));
    }

    #[test]
    fn names_depend_on_everything_before() {
        let a = BlockHash::chain(BlockHash::root(b""), &[1; 16], b"");
        assert_ne!(a, BlockHash::chain(BlockHash::root(b"salt"), &[1; 16], b""));
        assert_ne!(BlockHash::chain(a, &[2; 16], b""), BlockHash::chain(hash(3), &[2; 16], b""));
        assert_eq!(a, hash(1));
        assert_ne!(BlockHash::chain(a, &[2; 16], b"x"), BlockHash::chain(a, &[2; 16], b""));
    }

    #[test]
    fn released_blocks_are_found_until_they_are_needed() {
        let mut pool = BlockPool::new(3, true);
        let mut ids: Vec<u32> = (0..3).map(|_| pool.take(0).unwrap()).collect();
        assert_eq!(pool.take(0), None);
        pool.publish(0, ids[0], hash(0));
        pool.publish(0, ids[1], hash(1));
        let (first, second) = (ids[0], ids[1]);
        release(&mut pool, &mut ids);
        assert_eq!((pool.used(), pool.free(), pool.cached()), (0, 3, 2));
        assert_eq!(pool.find_prefix(&[hash(0), hash(1), hash(2)]), (2, 2));

        assert_eq!(pool.share(0, &hash(0)), Some(first));
        assert_eq!(pool.share(0, &hash(0)), Some(first));
        assert_eq!(pool.find_prefix(&[hash(0), hash(1)]), (2, 1));
        // The unnamed block goes first, then the tail of the prefix; the held one never.
        assert_eq!(pool.take(0), Some(2));
        assert_eq!(pool.take(0), Some(second));
        assert_eq!(pool.take(0), None);
        assert_eq!(pool.find_prefix(&[hash(0), hash(1)]), (1, 0));
        pool.release(first);
        assert_eq!(pool.free(), 0);
        pool.release(first);
        assert_eq!((pool.free(), pool.cached()), (1, 1));
    }

    #[test]
    fn a_prefix_is_evicted_from_its_tail() {
        let mut pool = BlockPool::new(4, true);
        let mut ids: Vec<u32> = (0..4).map(|_| pool.take(0).unwrap()).collect();
        for (i, &id) in ids.iter().enumerate() {
            pool.publish(0, id, hash(i as u32));
        }
        release(&mut pool, &mut ids);
        pool.take(0);
        assert_eq!(pool.find_prefix(&[hash(0), hash(1), hash(2), hash(3)]).0, 3);
    }

    #[test]
    fn without_sharing_nothing_is_found() {
        let mut pool = BlockPool::new(2, false);
        let id = pool.take(0).unwrap();
        pool.publish(0, id, hash(0));
        pool.release(id);
        assert_eq!((pool.find_prefix(&[hash(0)]), pool.cached()), ((0, 0), 0));
    }

    /// A pool of two groups that see 40 and 17 tokens and one that sees all, of which each has these blocks of one text.
    fn pool_with(found: [u16; 3]) -> (BlockPool, Vec<BlockHash>) {
        let windows = vec![Some(40), None, Some(17)];
        let room = KvRoom::new(&KvGroups { windows, places: Vec::new() }, 16);
        let mut pool = BlockPool::of_groups(60, true, room);
        let hashes: Vec<BlockHash> = (0..16).map(hash).collect();
        for (group, found) in found.into_iter().enumerate() {
            for (index, &hash) in hashes.iter().enumerate().filter(|(index, _)| found & 1 << index != 0) {
                let id = pool.take(group).unwrap();
                pool.publish(group, id, hash);
                if index % 3 > 0 {
                    pool.release(id);
                }
            }
        }
        (pool, hashes)
    }

    #[test]
    fn a_prefix_is_found_where_windows_have_what_they_see() {
        // The group that sees 40 tokens after 5 blocks sees 39 of them, in 3 blocks; the one that sees 17 sees one.
        let (pool, hashes) = pool_with([0b11100, 0b11111, 0b10000]);
        assert_eq!(pool.find_prefix(&hashes).0, 5);
        assert_eq!(pool.prefix(&hashes).count(), 3 + 5 + 1);
        for less in [[0b11000, 0b11111, 0b10000], [0b11100, 0b11111, 0b01000], [0b11100, 0b11110, 0b10000]] {
            assert_eq!(pool_with(less).0.find_prefix(&hashes).0, 0, "{less:?}");
        }
        // What one lacks shortens it to what all have.
        assert_eq!(pool_with([0b11110, 0b01111, 0b11000]).0.find_prefix(&hashes).0, 4);
        assert_eq!(pool_with([0b00111, 0b11111, 0b10111]).0.find_prefix(&hashes).0, 3);
    }

    #[test]
    fn a_window_lets_go_as_it_moves_and_uses_blocks_again() {
        let groups = KvGroups { windows: vec![None, Some(40)], places: Vec::new() };
        let room = KvRoom::new(&groups, 32);
        // 39 keys before a row are in 3 blocks, 32 rows that begin within one in 3.
        assert_eq!(room.blocks_of(500), 32 + 6);
        let mut pool = BlockPool::of_groups(38, true, room);
        let hashes: Vec<BlockHash> = (0..31).map(hash).collect();
        let mut tables = BlockTables::default();
        assert_eq!(BlockTables::needed(&pool, &hashes, 500), 38);
        assert_eq!(tables.enter(&mut pool, &hashes, 500), 0);
        assert_eq!(pool.free(), 0);
        let mut computed = 0;
        while computed < 500 {
            let rows = 32.min(500 - computed);
            assert_eq!(tables.grow(&mut pool, computed..computed + rows, 500, 0), rows, "at {computed}");
            let full = (computed + rows) / BLOCK_TOKENS;
            for (index, &hash) in hashes.iter().enumerate().take(full).skip(computed / BLOCK_TOKENS) {
                tables.publish(&mut pool, index, hash);
            }
            computed += rows;
            tables.check(&pool, computed);
            pool.check([&tables].into_iter());
        }
        tables.grow(&mut pool, 500..501, 501, 0);
        // Of 500 tokens the last full block ends at 496, before which 39 are in 3 blocks; and one begins there.
        assert_eq!((tables.len(), pool.used()), (32 + 4, 36));
        // What comes back finds its way to the last full block.
        tables.leave(&mut pool);
        assert_eq!(pool.find_prefix(&hashes).0, 31);
        assert_eq!(BlockTables::needed(&pool, &hashes, 500), 36);
        assert_eq!(tables.enter(&mut pool, &hashes, 500), 31);
        assert_eq!(pool.used(), 36);
    }

    proptest! {
        // As long as every group has all that a row after it sees.
        #[test]
        fn the_longest_prefix_is_found(found in any::<[u16; 3]>()) {
            // Many blocks are there, as after a few were evicted.
            let found = found.map(|bits| bits | bits.rotate_left(3) | bits.rotate_left(7));
            let (pool, hashes) = pool_with(found);
            let has = |group: usize, blocks: usize| {
                (pool.room().first_kept(group, blocks * 16)..blocks).all(|index| found[group] & 1 << index != 0)
            };
            let longest = (0..=16).rev().find(|&blocks| (0..3).all(|group| has(group, blocks))).unwrap();
            let (blocks, free) = pool.find_prefix(&hashes);
            prop_assert_eq!(blocks, longest);
            let ids: Vec<u32> = pool.prefix(&hashes).collect();
            prop_assert_eq!(ids.iter().filter(|&&id| pool.blocks[id as usize].holders == 0).count(), free);
        }

        // Whatever is done, the counts add up and no block is given to two takers.
        #[test]
        fn counts_always_add_up(ops in prop::collection::vec((0u8..4, 0u32..6), 1..200)) {
            let mut pool = BlockPool::new(5, true);
            let mut held: Vec<Vec<u32>> = Vec::new();
            for (op, n) in ops {
                match op {
                    0 => if let Some(id) = pool.take(0) {
                        prop_assert!(held.iter().flatten().all(|&h| h != id));
                        held.push(vec![id]);
                    },
                    1 => if let Some(ids) = held.get(n as usize) {
                        pool.publish(0, ids[0], hash(n));
                    },
                    2 => if let Some(id) = pool.share(0, &hash(n)) { held.push(vec![id]) },
                    _ => if !held.is_empty() {
                        let at = n as usize % held.len();
                        release(&mut pool, &mut held.swap_remove(at));
                    },
                }
                let mut distinct: Vec<u32> = held.iter().flatten().copied().collect();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(pool.used(), distinct.len());
                prop_assert_eq!(pool.free() + pool.used(), 5);
                prop_assert!(pool.cached() <= pool.free());
                let mut walked = 0;
                let mut at = pool.first_free;
                while at != NONE { walked += 1; at = pool.blocks[at as usize].after; }
                prop_assert_eq!(walked, pool.free());
            }
        }
    }
}
