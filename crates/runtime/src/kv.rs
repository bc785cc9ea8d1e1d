//! Bookkeeping of the paged KV cache: which blocks belong to which sequence. Keys and values are in the backend;
//! this module holds block IDs, reference counts and the index that finds a block by its content.
//!
//! Sequences with the same tokens up to the end of a full block can share it. The block's name is a chain hash of
//! the previous block's hash and its own tokens, so equal names mean equal prefixes. A free block keeps its content
//! until it is needed. The free list is in eviction order, least recently used first. A sequence releases its last
//! blocks first, so that the end of a prefix is evicted before its start.
//!
//! Layers with a window need fewer blocks than layers with full attention, so layers are divided into groups
//! ([`groups_of`]). A block belongs to one group while it is held or can be found. All groups share one pool.

mod store;
mod tables;

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::Arc,
};

pub use hanzo_engine_families::kv_groups::{KvRoom, groups_of};
use hanzo_engine_ops::{BLOCK_TOKENS, KvGroups};
use sha2::{Digest, Sha256};

use crate::limits::FOUND_RUN_BLOCKS_MIN;
pub use store::{BlockName, BlockStore, KeptBlock};
pub use tables::{BlockTables, Found};

/// Name of a full block: a hash of its tokens and everything before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 16]);

impl BlockHash {
    /// Parent of a sequence's first block. `salt` separates prefixes that must not be shared although their tokens
    /// are equal (adapters, cache salts).
    pub fn root(salt: &[u8]) -> BlockHash {
        Self::digest(&[b"hanzo kv root", salt])
    }

    /// Name of the block that holds `tokens` after `parent`. `salt` separates blocks whose content depends on more
    /// than their tokens ([`crate::media`]).
    pub fn chain(parent: BlockHash, tokens: &[u32], salt: &[u8]) -> BlockHash {
        debug_assert_eq!(tokens.len(), BLOCK_TOKENS);
        Self::digest(&[&parent.0, bytemuck::cast_slice(tokens), salt])
    }

    /// Variant of a parent for blocks that are computed differently.
    pub fn salted(self, salt: &[u8]) -> BlockHash {
        Self::digest(&[b"hanzo kv way", &self.0, salt])
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

/// Runs of available blocks from `first` on that are long enough.
fn runs(hashes: &[BlockHash], first: usize, is_there: impl Fn(&BlockHash) -> bool) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut at = first;
    while at < hashes.len() {
        let length = hashes[at..].iter().take_while(|hash| is_there(hash)).count();
        if length >= FOUND_RUN_BLOCKS_MIN {
            runs.push(at..at + length);
        }
        at += length + 1;
    }
    runs
}

/// End of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    holders: u32,
    group: u32, // layer group; only valid while the block is held or has a hash
    hash: Option<BlockHash>,
    kept: bool,   // its content is also in the block store
    listed: bool, // in `SaveQueue::unsaved`
    // Neighbours in the free list; only valid while `holders` is 0.
    before: u32,
    after: u32,
}

/// All blocks of a cache.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    index: Vec<HashMap<BlockHash, u32>>, // by group: hash of a full block → its id
    room: KvRoom,
    first_free: u32,
    last_free: u32,
    free: usize,   // blocks without a holder, cached ones included
    cached: usize, // free blocks that the index can find
    share: bool,
    leaving: Option<SaveQueue>,
    states: Vec<u32>, // free states; the last is taken next
    states_all: usize,
}

/// Blocks of a prompt's pictures in the cross-attention cache.
pub type Memory = Arc<[u32]>;

/// Blocks to be saved to the block store before their content is lost.
#[derive(Debug)]
struct SaveQueue {
    unsaved: VecDeque<u32>, // blocks without a holder that can be found but are not in the store
    evicted: Vec<(u32, usize, BlockHash)>, // blocks taken for other content, which is not written yet: ID, group, name
}

impl BlockPool {
    /// Creates a pool of `blocks` free blocks for layers with full attention; `share` enables the prefix cache.
    pub fn new(blocks: usize, share: bool) -> BlockPool {
        Self::of_groups(blocks, share, KvRoom::new(&KvGroups::default(), 1))
    }

    /// Creates a pool like [`BlockPool::new`], for layers in groups.
    pub fn of_groups(blocks: usize, share: bool, room: KvRoom) -> BlockPool {
        assert!(blocks < NONE as usize, "block ids are u32");
        let mut pool = BlockPool {
            blocks: vec![
                Block {
                    holders: 0,
                    group: 0,
                    hash: None,
                    kept: false,
                    listed: false,
                    before: NONE,
                    after: NONE
                };
                blocks
            ],
            // Twice the maximum entries, so that the table never grows: it rehashes in place.
            index: (0..room.count()).map(|_| HashMap::with_capacity(2 * blocks + 2)).collect(),
            room,
            first_free: NONE,
            last_free: NONE,
            free: 0,
            cached: 0,
            share,
            leaving: None,
            states: Vec::new(),
            states_all: 0,
        };
        for id in 0..blocks as u32 {
            pool.push_last(id);
        }
        pool
    }

    /// Adds states for layers with a recurrent state; each running sequence holds one.
    pub fn with_states(self, states: usize) -> BlockPool {
        BlockPool { states: (0..states as u32).rev().collect(), states_all: states, ..self }
    }

    /// Takes a free state; `None` if no layer has states. There is one for each sequence that may run.
    pub fn take_state(&mut self) -> Option<u32> {
        debug_assert!(self.states_all == 0 || !self.states.is_empty(), "more sequences run than have states");
        self.states.pop()
    }

    /// Releases a state.
    pub fn release_state(&mut self, state: u32) {
        debug_assert!(!self.states.contains(&state), "state {state} was given back twice");
        self.states.push(state);
    }

    /// Number of blocks that sequences hold in each group.
    pub fn room(&self) -> &KvRoom {
        &self.room
    }

    /// Number of layer groups.
    pub fn groups(&self) -> usize {
        self.room.count()
    }

    /// Number of all blocks.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that [`BlockPool::take`] can still give, cached ones included.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Number of blocks that running sequences hold.
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free
    }

    /// Number of free blocks whose content can still be found.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Whether prefixes are shared.
    pub fn shares(&self) -> bool {
        self.share
    }

    /// Takes the least recently used free block for new content of a group; `None` if all are held.
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
            if let Some(leaving) = self.leaving.as_mut().filter(|_| !block.kept) {
                leaving.evicted.push((id, block.group as usize, hash));
            }
        }
        block.kept = false;
        (block.holders, block.group) = (1, group as u32);
        Some(id)
    }

    /// Length of the cached prefix of `hashes`, and how many of its blocks are free now (sharing them reduces
    /// [`BlockPool::free`] by as many). A prefix counts if each group has the blocks that the next row attends to;
    /// a missing block shortens it.
    pub fn find_prefix(&self, hashes: &[BlockHash]) -> (usize, usize) {
        if self.groups() == 1 && self.room.keeps_all(0) {
            return self.find_whole_prefix(hashes);
        }
        let has = |group: usize, hash: &BlockHash| self.index[group].contains_key(hash);
        let found = if self.share { self.longest(hashes, &has) } else { 0 };
        let is_free = |id: &u32| self.blocks[*id as usize].holders == 0;
        (found, self.found_ids(&hashes[..found]).filter(is_free).count())
    }

    /// Length of the longest prefix of `hashes` for which `has` reports all blocks that the next row attends to, in
    /// each group.
    fn longest(&self, hashes: &[BlockHash], has: &impl Fn(usize, &BlockHash) -> bool) -> usize {
        let mut found = hashes.len();
        // For a prefix of `found` blocks, each group is known to have the blocks from here on.
        let mut seen = vec![found; self.groups()];
        let mut group = 0;
        while group < self.groups() {
            match self.lacks(group, &hashes[..found], seen[group], has) {
                None => {
                    seen[group] = seen[group].min(self.first_seen(group, found));
                    group += 1;
                }
                Some(index) => {
                    // With a shorter prefix, the other groups may need earlier blocks than were checked.
                    found = index;
                    seen.iter_mut().for_each(|seen| *seen = (*seen).min(found));
                    seen[group] = if self.room.keeps_all(group) { 0 } else { found };
                    group = 0;
                }
            }
        }
        found
    }

    /// Whether cached blocks behind a missing block are of use once that is computed: only if rows attend to
    /// everything before them, so that it is all kept. Layers with windows may have released blocks.
    pub fn goes_on_behind(&self) -> bool {
        self.share && self.groups() == 1 && self.room.keeps_all(0)
    }

    /// Runs of cached blocks behind the first missing one, in order. Each is long enough to be worth ending a step
    /// in front of it.
    pub fn find_behind(&self, hashes: &[BlockHash], prefix: usize) -> Vec<Range<usize>> {
        if !self.goes_on_behind() || prefix >= hashes.len() {
            return Vec::new();
        }
        runs(hashes, prefix + 1, |hash| self.index[0].contains_key(hash))
    }

    /// Missing blocks of the longest prefix that could be completed from the block store; `kept` tells which blocks
    /// it has. Empty if that prefix is not longer, or there is no room. With `behind`, includes runs behind blocks
    /// that are gone, if they are of use.
    pub fn missing(
        &self,
        hashes: &[BlockHash],
        kept: &impl Fn(usize, &BlockHash) -> bool,
        behind: bool,
    ) -> Vec<(usize, BlockHash)> {
        let (here, _) = self.find_prefix(hashes);
        if !self.share || here == hashes.len() {
            return Vec::new();
        }
        let is_here = |group: usize, hash: &BlockHash| self.index[group].contains_key(hash);
        if behind && self.goes_on_behind() {
            let is_there = |hash: &BlockHash| is_here(0, hash) || kept(0, hash);
            let first = hashes[here..].iter().take_while(|hash| is_there(hash)).count();
            let runs = runs(hashes, here + first, is_there);
            let useful = (here..here + first).chain(runs.into_iter().flatten());
            let missing =
                useful.map(|index| (0, hashes[index])).filter(|(group, hash)| !is_here(*group, hash));
            // The start of a prefix is of use on its own.
            return missing.take(self.free).collect();
        }
        let found = self.longest(hashes, &|group, hash| is_here(group, hash) || kept(group, hash));
        if found <= here {
            return Vec::new();
        }
        let of_group = |group: usize| {
            let seen = &hashes[self.first_seen(group, found)..found];
            seen.iter().filter(move |hash| !is_here(group, hash)).map(move |&hash| (group, hash))
        };
        let mut missing: Vec<_> = (0..self.groups()).flat_map(of_group).collect();
        if missing.len() > self.free {
            // With a single group of full attention, the start of a prefix is of use on its own.
            let useful = self.groups() == 1 && self.room.keeps_all(0);
            missing.truncate(if useful { self.free } else { 0 });
        }
        missing
    }

    /// Whether a group has a block with this content.
    pub fn has(&self, group: usize, hash: &BlockHash) -> bool {
        self.index.get(group).is_some_and(|index| index.contains_key(hash))
    }

    /// Starts to record the blocks whose content is about to be lost.
    pub fn watch_leaving(&mut self) {
        let blocks = self.blocks.len();
        self.leaving =
            Some(SaveQueue { unsaved: VecDeque::with_capacity(blocks), evicted: Vec::with_capacity(blocks) });
    }

    /// Next block that was taken for other content but still has its old content: ID, group and name of that.
    pub fn next_evicted(&mut self) -> Option<(u32, usize, BlockHash)> {
        self.leaving.as_mut()?.evicted.pop()
    }

    /// Next block that can be found, has no holder and is not in the block store: the one free for the longest
    /// time.
    pub fn next_unsaved(&mut self) -> Option<(u32, usize, BlockHash)> {
        loop {
            let id = self.leaving.as_mut()?.unsaved.pop_front()?;
            let block = &mut self.blocks[id as usize];
            block.listed = false;
            if let Some(hash) = block.hash.filter(|_| !block.kept) {
                return Some((id, block.group as usize, hash));
            }
        }
    }

    /// Puts back a block from [`BlockPool::next_unsaved`] for which the store had no room.
    pub fn save_later(&mut self, id: u32) {
        if let Some(leaving) = &mut self.leaving {
            self.blocks[id as usize].listed = true;
            leaving.unsaved.push_front(id);
        }
    }

    /// Marks a block's content as saved in the block store.
    pub fn set_kept(&mut self, id: u32) {
        self.blocks[id as usize].kept = true;
    }

    /// Implements [`BlockPool::find_prefix`] for a single group of full attention.
    fn find_whole_prefix(&self, hashes: &[BlockHash]) -> (usize, usize) {
        let (mut found, mut free) = (0, 0);
        for hash in hashes {
            let Some(&id) = self.index[0].get(hash) else { break };
            found += 1;
            free += usize::from(self.blocks[id as usize].holders == 0);
        }
        (found, free)
    }

    /// Last missing block of a group among those that the next row attends to; blocks from `seen` on are known to
    /// exist. For full attention it is the first missing one, because only the blocks before it count.
    fn lacks(
        &self,
        group: usize,
        hashes: &[BlockHash],
        seen: usize,
        has: &impl Fn(usize, &BlockHash) -> bool,
    ) -> Option<usize> {
        let lacks = |&index: &usize| !has(group, &hashes[index]);
        let mut range = self.first_seen(group, hashes.len())..seen;
        if self.room.keeps_all(group) { range.find(lacks) } else { range.rev().find(lacks) }
    }

    /// First block that the row after `blocks` blocks attends to.
    fn first_seen(&self, group: usize, blocks: usize) -> usize {
        self.room.first_kept(group, blocks * BLOCK_TOKENS)
    }

    /// Blocks of all groups that would be shared of this prefix.
    pub fn prefix<'a>(&'a self, hashes: &'a [BlockHash]) -> impl Iterator<Item = u32> + 'a {
        let (found, _) = self.find_prefix(hashes);
        self.found_ids(&hashes[..found])
    }

    /// Blocks of a cached prefix.
    fn found_ids<'a>(&'a self, hashes: &'a [BlockHash]) -> impl Iterator<Item = u32> + 'a {
        self.index.iter().enumerate().flat_map(move |(group, index)| {
            hashes[self.first_seen(group, hashes.len())..].iter().filter_map(|hash| index.get(hash).copied())
        })
    }

    /// Whether a single sequence holds the block: released, it is free.
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

    /// Makes a full block of a group findable. If another block with the same content is findable already, that one
    /// stays.
    pub fn publish(&mut self, group: usize, id: u32, hash: BlockHash) {
        let (block, index) = (&mut self.blocks[id as usize], &mut self.index[group]);
        debug_assert!(block.holders > 0, "only a holder knows the content");
        debug_assert_eq!(block.group as usize, group, "a block of another group");
        if self.share && block.hash.is_none() && !index.contains_key(&hash) {
            block.hash = Some(hash);
            index.insert(hash, id);
        }
    }

    /// Releases one sequence's hold on a block. A sequence releases its last blocks first.
    pub fn release(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        debug_assert!(block.holders > 0, "block {id} was given back twice");
        block.holders -= 1;
        if block.holders == 0 {
            if block.hash.is_some() {
                if let Some(leaving) = self.leaving.as_mut().filter(|_| !block.kept && !block.listed) {
                    block.listed = true;
                    leaving.unsaved.push_back(id);
                }
                self.cached += 1;
                self.push_last(id);
            } else {
                self.push_first(id);
            }
        }
    }

    /// Checks the pool's books against the block tables of all holders: a block is held as often as the tables list
    /// it, belongs to their group, is free otherwise, and is found only by its own content.
    ///
    /// # Panics
    /// If a block has leaked, or is about to be given out twice.
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a BlockTables>) {
        let mut holders = vec![0; self.blocks.len()];
        let mut states = self.states.clone();
        for tables in tables {
            states.extend(tables.state());
            for (group, ids) in tables.by_group().enumerate() {
                for &id in ids {
                    holders[id as usize] += 1;
                    let of = self.blocks[id as usize].group as usize;
                    assert_eq!(of, group, "block {id} is in a block table of another group");
                }
            }
        }
        states.sort_unstable();
        assert!(states.iter().copied().eq(0..self.states_all as u32), "states of sequences and free ones");
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
mod tests;
