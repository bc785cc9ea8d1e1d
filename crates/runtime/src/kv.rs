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
mod store;
mod tables;

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};

use hanzo_engine_kernels::{BLOCK_TOKENS, KvGroups};
use sha2::{Digest, Sha256};

use crate::limits::FOUND_RUN_BLOCKS_MIN;
pub use groups::{KvRoom, groups_of};
pub use store::{BlockName, BlockStore, KeptBlock};
pub use tables::{BlockTables, Found};

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

    /// The same beginning of blocks that are computed in another way.
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

/// The runs of names from `first` on that are there, of those that are long enough.
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
    group: u32, // of layers; meaningful only while it is held or has a hash
    hash: Option<BlockHash>,
    kept: bool,   // its content is somewhere else too
    listed: bool, // in `Leaving::unsaved`
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
    leaving: Option<Leaving>,
    states: Vec<u32>, // those that nobody has, the next to be taken last
    states_all: usize,
}

/// What is to be kept elsewhere of blocks whose content will be lost here.
#[derive(Debug)]
struct Leaving {
    unsaved: VecDeque<u32>, // blocks that nobody held for a while since they can be found
    evicted: Vec<(u32, usize, BlockHash)>, // taken for other content, which is not written yet: id, group, name
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
            // Twice what is ever in one: a table with room for as much again is put in order where it lies.
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

    /// With so many states, of which each sequence that runs has one, where layers keep some.
    pub fn with_states(self, states: usize) -> BlockPool {
        BlockPool { states: (0..states as u32).rev().collect(), states_all: states, ..self }
    }

    /// A state that nobody has; none where layers keep none. There is one for each sequence that may run.
    pub fn take_state(&mut self) -> Option<u32> {
        debug_assert!(self.states_all == 0 || !self.states.is_empty(), "more sequences run than have states");
        self.states.pop()
    }

    /// Gives a state back.
    pub fn release_state(&mut self, state: u32) {
        debug_assert!(!self.states.contains(&state), "state {state} was given back twice");
        self.states.push(state);
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
            if let Some(leaving) = self.leaving.as_mut().filter(|_| !block.kept) {
                leaving.evicted.push((id, block.group as usize, hash));
            }
        }
        block.kept = false;
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
        let has = |group: usize, hash: &BlockHash| self.index[group].contains_key(hash);
        let found = if self.share { self.longest(hashes, &has) } else { 0 };
        let is_free = |id: &u32| self.blocks[*id as usize].holders == 0;
        (found, self.found_ids(&hashes[..found]).filter(is_free).count())
    }

    /// How many of `hashes` make the longest prefix of which each group has what a row after it sees, as `has` says.
    fn longest(&self, hashes: &[BlockHash], has: &impl Fn(usize, &BlockHash) -> bool) -> usize {
        let mut found = hashes.len();
        // Of those up to `found`, each group is known to have the blocks from here on.
        let mut seen = vec![found; self.groups()];
        let mut group = 0;
        while group < self.groups() {
            match self.lacks(group, &hashes[..found], seen[group], has) {
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
        found
    }

    /// Whether what is there behind a block that is missing is of use once that is computed: where a row sees all that is
    /// before it, which is then there. What a window has left is not.
    pub fn goes_on_behind(&self) -> bool {
        self.share && self.groups() == 1 && self.room.keeps_all(0)
    }

    /// The runs of blocks that are there behind the first that is not, in order, each worth the step that ends before it.
    pub fn find_behind(&self, hashes: &[BlockHash], prefix: usize) -> Vec<Range<usize>> {
        if !self.goes_on_behind() || prefix >= hashes.len() {
            return Vec::new();
        }
        runs(hashes, prefix + 1, |hash| self.index[0].contains_key(hash))
    }

    /// What is missing of a longer prefix than is there, where `kept` says which blocks could be got: none where there is no
    /// longer one, or no room for it. With `behind` also of what comes behind blocks that are not to be had, where that is of
    /// use.
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
            // The beginning is of use by itself.
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
            // Of one group that keeps everything the beginning is of use by itself.
            let useful = self.groups() == 1 && self.room.keeps_all(0);
            missing.truncate(if useful { self.free } else { 0 });
        }
        missing
    }

    /// Whether a group's block of this content is there.
    pub fn has(&self, group: usize, hash: &BlockHash) -> bool {
        self.index.get(group).is_some_and(|index| index.contains_key(hash))
    }

    /// From now on it tells which blocks' content is about to be lost.
    pub fn watch_leaving(&mut self) {
        let blocks = self.blocks.len();
        self.leaving =
            Some(Leaving { unsaved: VecDeque::with_capacity(blocks), evicted: Vec::with_capacity(blocks) });
    }

    /// A block that was taken for other content, while what it had is still in it: id, group and name of that.
    pub fn next_evicted(&mut self) -> Option<(u32, usize, BlockHash)> {
        self.leaving.as_mut()?.evicted.pop()
    }

    /// A block that can be found and is kept nowhere else, of those that nobody held for a while, the first of them first.
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

    /// There was no room for a block that [`BlockPool::next_unsaved`] gave.
    pub fn save_later(&mut self, id: u32) {
        if let Some(leaving) = &mut self.leaving {
            self.blocks[id as usize].listed = true;
            leaving.unsaved.push_front(id);
        }
    }

    /// What is in a block that can be found is kept elsewhere.
    pub fn set_kept(&mut self, id: u32) {
        self.blocks[id as usize].kept = true;
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

    /// Asserts that the books balance, where these are the block tables of all that hold blocks: a block is held as often
    /// as they list it, is of their group, is free otherwise, and is found by its own content alone.
    ///
    /// # Panics
    /// Where they do not: a block has leaked, or is about to be given to two.
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
