//! Hashes of a sequence's blocks: from its tokens, its media and its adapter.

use hanzo_engine_kernels::BLOCK_TOKENS;

use crate::{
    adapter::LoadedAdapter,
    kv::BlockHash,
    media::{MediaSpan, salt_of_block},
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
