//! What a sequence finds of its tokens in the cache: their beginning, and runs of blocks behind such as it has to compute.

use std::ops::Range;

use hanzo_engine_kernels::BLOCK_TOKENS;

use super::Sequence;
use crate::{
    kv::{BlockHash, BlockPool},
    output::Purpose,
};

impl Sequence {
    /// Blocks of the prompt that could be shared: never the last token's, whose logits are needed, and none where every
    /// row is.
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

    /// Blocks of others, or free ones, that it would share.
    pub fn prefix<'a>(&'a self, pool: &'a BlockPool) -> impl Iterator<Item = u32> + 'a {
        pool.prefix(self.shareable())
    }

    /// Whether another would find a block in the cache that this one is about to compute: the first of the other's
    /// that is not there yet.
    pub fn is_computing_for(&self, other: &Sequence, pool: &BlockPool) -> bool {
        let (found, _) = pool.find_prefix(other.shareable());
        let next = other.shareable().get(found);
        self.computed / BLOCK_TOKENS <= found && next.is_some() && self.hashes.get(found) == next
    }

    /// Of the tokens that must still go through the model, those that are not in the cache: what lies behind those may be.
    pub fn uncomputed(&self) -> usize {
        self.remaining() - self.found_behind()
    }

    /// Tokens that it found behind such as it has to compute, and has not come to yet.
    pub(super) fn found_behind(&self) -> usize {
        self.behind.iter().map(Range::len).sum::<usize>() * BLOCK_TOKENS
    }

    /// Whether it may begin to compute, or go on, wherever a block begins.
    pub fn goes_on_behind(&self) -> bool {
        !self.media.iter().any(|span| span.mutual)
    }

    /// Goes over what it has found, where it has come to that.
    pub(super) fn pass_found(&mut self) {
        if let Some(run) = self.behind.pop_if(|run| run.start * BLOCK_TOKENS == self.computed) {
            self.computed = run.end * BLOCK_TOKENS;
            self.published = run.end;
        }
    }
}
