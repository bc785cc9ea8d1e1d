//! Blocks of a sequence: the hashes that name them, and the cached ones that it finds, as its prefix or behind missing
//! ones.

use std::ops::Range;

use hanzo_engine_ops::BLOCK_TOKENS;

use super::Sequence;
use crate::{
    adapter::LoadedAdapter,
    kv::{BlockHash, BlockPool},
    media::{MediaSpan, salt_of_block},
    output::Purpose,
};

/// Parent of a sequence's first block. Prefixes with different parents are never shared, even if their tokens are
/// equal. It includes pictures in the cross-attention cache, because even tokens before them may attend to it.
pub(super) fn root(adapter: Option<&LoadedAdapter>, cache_salt: &[u8], media: &[MediaSpan]) -> BlockHash {
    let adapter = adapter.map_or(&b""[..], |adapter| &adapter.digest);
    let pictures: Vec<u8> =
        media.iter().filter(|span| span.is_remembered()).flat_map(|span| span.digest).collect();
    if !pictures.is_empty() {
        let lengths =
            [adapter.len(), cache_salt.len(), pictures.len()].map(|length| (length as u64).to_le_bytes());
        return BlockHash::root(&[lengths.concat().as_slice(), adapter, cache_salt, &pictures].concat());
    }
    match cache_salt {
        [] => BlockHash::root(adapter),
        // The lengths come first, so that the adapter's digest and the salt cannot be confused.
        salt => {
            let lengths = [adapter.len() as u64, salt.len() as u64].map(u64::to_le_bytes).concat();
            BlockHash::root(&[&lengths, adapter, salt].concat())
        }
    }
}

/// Hashes of the full blocks of `tokens`.
pub(super) fn full_block_hashes(tokens: &[u32], media: &[MediaSpan], root: BlockHash) -> Vec<BlockHash> {
    let mut hashes = Vec::with_capacity(tokens.len() / BLOCK_TOKENS);
    add_hashes(tokens, media, root, &mut hashes);
    hashes
}

/// Appends the hashes of those full blocks of `tokens` that `hashes` lacks.
pub(super) fn add_hashes(tokens: &[u32], media: &[MediaSpan], root: BlockHash, hashes: &mut Vec<BlockHash>) {
    let (blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
    for (index, block) in blocks.iter().enumerate().skip(hashes.len()) {
        let parent = hashes.last().copied().unwrap_or(root);
        hashes.push(BlockHash::chain(parent, block, &salt_of_block(media, index)));
    }
}

impl Sequence {
    /// Blocks of the prompt that it may share. Never the block of the last token, whose logits are needed; none if
    /// every row is needed.
    pub fn shareable(&self) -> &[BlockHash] {
        match &self.purpose {
            Purpose::Generate(generation) if generation.job().skip_cache => &[],
            Purpose::Read(reading) if !reading.can_skip() => &[],
            Purpose::Generate(generation) => {
                let rows = generation.skippable_rows().min(self.tokens.len() - 1);
                &self.hashes[..rows / BLOCK_TOKENS]
            }
            Purpose::Read(_) => &self.hashes[..(self.tokens.len() - 1) / BLOCK_TOKENS],
        }
    }

    /// Blocks that it would share, held by others or free.
    pub fn prefix<'a>(&'a self, pool: &'a BlockPool) -> impl Iterator<Item = u32> + 'a {
        pool.prefix(self.shareable())
    }

    /// Whether this sequence is about to compute the first block that `other` misses.
    pub fn is_computing_for(&self, other: &Sequence, pool: &BlockPool) -> bool {
        let (found, _) = pool.find_prefix(other.shareable());
        let next = other.shareable().get(found);
        self.computed / BLOCK_TOKENS <= found && next.is_some() && self.hashes.get(found) == next
    }

    /// Number of remaining tokens that must be computed, without cached ones behind them.
    pub fn uncomputed(&self) -> usize {
        self.remaining() - self.found_behind()
    }

    /// Number of cached tokens behind missing ones, not reached yet.
    pub(super) fn found_behind(&self) -> usize {
        self.behind.iter().map(Range::len).sum::<usize>() * BLOCK_TOKENS
    }

    /// Whether it may start or continue its computation at any block boundary.
    pub fn goes_on_behind(&self) -> bool {
        !self.media.iter().any(|span| span.mutual)
    }

    /// Skips a run of cached blocks if it has reached one.
    pub(super) fn pass_found(&mut self) {
        if let Some(run) = self.behind.pop_if(|run| run.start * BLOCK_TOKENS == self.computed) {
            self.computed = run.end * BLOCK_TOKENS;
            self.published = run.end;
        }
    }
}
