//! Interface of the block store, which keeps blocks that leave the cache. Its files and threads are elsewhere.

use super::BlockHash;

/// Name of a block outside its cache. Unique among blocks of one model with one KV type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName {
    /// Layer group.
    pub group: u16,
    /// Hash of the content.
    pub hash: [u8; 16],
}

impl BlockName {
    /// Name of a block of a group.
    pub fn new(group: usize, hash: BlockHash) -> BlockName {
        // There are a few dozen groups at most.
        BlockName { group: group as u16, hash: hash.0 }
    }

    pub(crate) fn hash(&self) -> BlockHash {
        BlockHash(self.hash)
    }
}

/// Answer to a request for a block.
#[derive(Debug)]
pub struct KeptBlock {
    /// Name of the block.
    pub name: BlockName,
    /// Content, to be returned with [`BlockStore::recycle`].
    pub bytes: Vec<u8>,
    /// Whether the block was there, whole.
    pub found: bool,
}

/// Store of one model's blocks. No method may block, because the engine calls them between steps. The store may
/// refuse blocks for lack of room or time. That only affects how fast a prompt is computed.
pub trait BlockStore: Send {
    /// Whether the store may have a block.
    fn has(&self, name: &BlockName) -> bool;

    /// Stores a block whose content `fill` writes. Returns false if there is no room now.
    fn put(&mut self, name: BlockName, fill: &mut dyn FnMut(&mut [u8]) -> bool) -> bool;

    /// Requests a block. Returns false if no more requests fit now.
    fn ask(&mut self, name: BlockName) -> bool;

    /// Next answer to a request, if any has arrived. Each request is answered once.
    fn answer(&mut self) -> Option<KeptBlock>;

    /// Takes back a buffer from [`BlockStore::answer`].
    fn recycle(&mut self, bytes: Vec<u8>);
}
