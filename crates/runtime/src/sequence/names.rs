//! What the blocks of a sequence are called: of its tokens, what stands for some of them, and its adapter.

use hanzo_engine_kernels::BLOCK_TOKENS;

use crate::{
    adapter::LoadedAdapter,
    kv::BlockHash,
    media::{MediaSpan, salt_of_block},
};

/// The names of the full blocks of `tokens`.
pub(super) fn full_block_hashes(
    tokens: &[u32],
    media: &[MediaSpan],
    adapter: Option<&LoadedAdapter>,
) -> Vec<BlockHash> {
    let mut hashes = Vec::with_capacity(tokens.len() / BLOCK_TOKENS);
    add_hashes(tokens, media, adapter, &mut hashes);
    hashes
}

/// Adds the names of the full blocks of `tokens` that `hashes` lacks.
pub(super) fn add_hashes(
    tokens: &[u32],
    media: &[MediaSpan],
    adapter: Option<&LoadedAdapter>,
    hashes: &mut Vec<BlockHash>,
) {
    let salt = adapter.map_or(&b""[..], |adapter| &adapter.digest);
    let (blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
    for (index, block) in blocks.iter().enumerate().skip(hashes.len()) {
        let parent = hashes.last().copied().unwrap_or_else(|| BlockHash::root(salt));
        hashes.push(BlockHash::chain(parent, block, &salt_of_block(media, index)));
    }
}
