//! Cached blocks of a sequence: its prefix, and runs of blocks behind missing ones.

use std::ops::Range;

use hanzo_engine_kernels::BLOCK_TOKENS;

use super::Sequence;
use crate::{
    kv::{BlockHash, BlockPool},
    output::Purpose,
};

impl Sequence {
    /// Blocks of the prompt that it may share. Never the block of the last token, whose logits are needed; none if
    /// every row is needed.
    pub fn shareable(&self) -> &[BlockHash] {
        match &self.purpose {
            _ if self.skips_cache => &[],
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
