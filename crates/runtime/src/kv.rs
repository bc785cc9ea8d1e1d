//! Which blocks of the paged KV cache belong to whom. The numbers themselves live in the backend; here are only
//! block ids, reference counts and the index that finds a block by what is in it.
//!
//! A full block can be shared by every sequence whose tokens up to its end are the same. It is named by a chain
//! hash of (hash of the block before, its tokens), so equal names mean equal prefixes. A block nobody holds
//! keeps its content until it is needed: the free list is in eviction order, least recently used first, and a
//! sequence gives its blocks back tail first, so that the end of a prefix goes before its beginning.

use std::collections::HashMap;

use hanzo_engine_kernels::BLOCK_TOKENS;
use sha2::{Digest, Sha256};

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
    hash: Option<BlockHash>,
    // Neighbours in the free list; meaningful only while `holders` is 0.
    before: u32,
    after: u32,
}

/// All blocks of one cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    index: HashMap<BlockHash, u32>, // hash of a full block → its id
    first_free: u32,
    last_free: u32,
    free: usize,   // blocks nobody holds, cached ones included
    cached: usize, // of them, those that the index can still find
    share: bool,
}

impl BlockPool {
    /// `blocks` free blocks; `share` turns prefix reuse on.
    pub fn new(blocks: usize, share: bool) -> BlockPool {
        assert!(blocks < NONE as usize, "block ids are u32");
        let mut pool = BlockPool {
            blocks: vec![Block { holders: 0, hash: None, before: NONE, after: NONE }; blocks],
            index: HashMap::new(),
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

    /// A block for new content, the least recently used; `None` when all are held.
    pub fn take(&mut self) -> Option<u32> {
        let id = self.first_free;
        if id == NONE {
            return None;
        }
        self.unlink(id);
        if let Some(hash) = self.blocks[id as usize].hash.take() {
            self.index.remove(&hash);
            self.cached -= 1;
        }
        self.blocks[id as usize].holders = 1;
        Some(id)
    }

    /// How many of `hashes`, from the first, are there to be shared, and how many of those are free now (sharing
    /// them makes [`BlockPool::free`] smaller by that many).
    pub fn find_prefix(&self, hashes: &[BlockHash]) -> (usize, usize) {
        let mut found = 0;
        let mut free = 0;
        for hash in hashes {
            let Some(&id) = self.index.get(hash) else { break };
            found += 1;
            free += usize::from(self.blocks[id as usize].holders == 0);
        }
        (found, free)
    }

    /// The blocks with this content, from the first, as far as they are there.
    pub fn prefix<'a>(&'a self, hashes: &'a [BlockHash]) -> impl Iterator<Item = u32> + 'a {
        hashes.iter().map_while(|hash| self.index.get(hash).copied())
    }

    /// Whether one sequence alone holds the block: released, it is free.
    pub fn is_held_once(&self, id: u32) -> bool {
        self.blocks[id as usize].holders == 1
    }

    /// Shares the block with this content.
    pub fn share(&mut self, hash: &BlockHash) -> Option<u32> {
        let id = *self.index.get(hash)?;
        if self.blocks[id as usize].holders == 0 {
            self.unlink(id);
            self.cached -= 1;
        }
        self.blocks[id as usize].holders += 1;
        Some(id)
    }

    /// Makes a full block findable. Where another block with the same content already is, that one stays.
    pub fn publish(&mut self, id: u32, hash: BlockHash) {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.holders > 0, "only a holder knows the content");
        if self.share && block.hash.is_none() && !self.index.contains_key(&hash) {
            block.hash = Some(hash);
            self.index.insert(hash, id);
        }
    }

    /// Gives back one sequence's hold on its blocks, in the sequence's order.
    pub fn release(&mut self, ids: &mut Vec<u32>) {
        while let Some(id) = ids.pop() {
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
    }

    /// Asserts that the books balance, where these are the block tables of all that hold blocks: a block is held as often
    /// as they list it, is free otherwise, and is found by its own content alone.
    ///
    /// # Panics
    /// Where they do not: a block has leaked, or is about to be given to two.
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) {
        let mut holders = vec![0; self.blocks.len()];
        tables.flatten().for_each(|&id| holders[id as usize] += 1);
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
            let found = block.hash.map(|hash| self.index.get(&hash).copied());
            assert!(
                found.is_none_or(|found| found == Some(id as u32)),
                "block {id} is not found by its content"
            );
        }
        assert_eq!(cached, self.cached, "free blocks that can be found");
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
        let mut ids: Vec<u32> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert_eq!(pool.take(), None);
        pool.publish(ids[0], hash(0));
        pool.publish(ids[1], hash(1));
        let (first, second) = (ids[0], ids[1]);
        pool.release(&mut ids);
        assert_eq!((pool.used(), pool.free(), pool.cached()), (0, 3, 2));
        assert_eq!(pool.find_prefix(&[hash(0), hash(1), hash(2)]), (2, 2));

        assert_eq!(pool.share(&hash(0)), Some(first));
        assert_eq!(pool.share(&hash(0)), Some(first));
        assert_eq!(pool.find_prefix(&[hash(0), hash(1)]), (2, 1));
        // The unnamed block goes first, then the tail of the prefix; the held one never.
        assert_eq!(pool.take(), Some(2));
        assert_eq!(pool.take(), Some(second));
        assert_eq!(pool.take(), None);
        assert_eq!(pool.find_prefix(&[hash(0), hash(1)]), (1, 0));
        pool.release(&mut vec![first]);
        assert_eq!(pool.free(), 0);
        pool.release(&mut vec![first]);
        assert_eq!((pool.free(), pool.cached()), (1, 1));
    }

    #[test]
    fn a_prefix_is_evicted_from_its_tail() {
        let mut pool = BlockPool::new(4, true);
        let mut ids: Vec<u32> = (0..4).map(|_| pool.take().unwrap()).collect();
        for (i, &id) in ids.iter().enumerate() {
            pool.publish(id, hash(i as u32));
        }
        pool.release(&mut ids);
        pool.take();
        assert_eq!(pool.find_prefix(&[hash(0), hash(1), hash(2), hash(3)]).0, 3);
    }

    #[test]
    fn without_sharing_nothing_is_found() {
        let mut pool = BlockPool::new(2, false);
        let id = pool.take().unwrap();
        pool.publish(id, hash(0));
        pool.release(&mut vec![id]);
        assert_eq!((pool.find_prefix(&[hash(0)]), pool.cached()), ((0, 0), 0));
    }

    proptest! {
        // Whatever is done, the counts add up and no block is given to two takers.
        #[test]
        fn counts_always_add_up(ops in prop::collection::vec((0u8..4, 0u32..6), 1..200)) {
            let mut pool = BlockPool::new(5, true);
            let mut held: Vec<Vec<u32>> = Vec::new();
            for (op, n) in ops {
                match op {
                    0 => if let Some(id) = pool.take() {
                        prop_assert!(held.iter().flatten().all(|&h| h != id));
                        held.push(vec![id]);
                    },
                    1 => if let Some(ids) = held.get(n as usize) {
                        pool.publish(ids[0], hash(n));
                    },
                    2 => if let Some(id) = pool.share(&hash(n)) { held.push(vec![id]) },
                    _ => if !held.is_empty() {
                        let at = n as usize % held.len();
                        pool.release(&mut held.swap_remove(at));
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
