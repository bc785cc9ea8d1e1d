//! What the blocks of a sequence are called: of its tokens, what stands for some of them, and its adapter.

use hanzo_engine_kernels::BLOCK_TOKENS;

use crate::{
    adapter::LoadedAdapter,
    kv::BlockHash,
    media::{MediaSpan, salt_of_block},
};

/// What the first block has before it: prefixes that have another are never shared, though their tokens are equal. Of pictures that are
/// remembered even the tokens before them see something.
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
        // Either has a length of its own: what is the adapter's cannot be the salt's.
        salt => {
            let lengths = [adapter.len() as u64, salt.len() as u64].map(u64::to_le_bytes).concat();
            BlockHash::root(&[&lengths, adapter, salt].concat())
        }
    }
}

/// The names of the full blocks of `tokens`.
pub(super) fn full_block_hashes(tokens: &[u32], media: &[MediaSpan], root: BlockHash) -> Vec<BlockHash> {
    let mut hashes = Vec::with_capacity(tokens.len() / BLOCK_TOKENS);
    add_hashes(tokens, media, root, &mut hashes);
    hashes
}

/// Adds the names of the full blocks of `tokens` that `hashes` lacks.
pub(super) fn add_hashes(tokens: &[u32], media: &[MediaSpan], root: BlockHash, hashes: &mut Vec<BlockHash>) {
    let (blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
    for (index, block) in blocks.iter().enumerate().skip(hashes.len()) {
        let parent = hashes.last().copied().unwrap_or(root);
        hashes.push(BlockHash::chain(parent, block, &salt_of_block(media, index)));
    }
}
