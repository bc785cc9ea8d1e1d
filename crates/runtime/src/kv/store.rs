//! Where blocks are kept that leave the cache: what the engine asks of it. What it is, files and threads, is not here.

use super::BlockHash;

/// What a block is called outside of its cache: among those of one model, whose keys and values are of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName {
    /// Its group of layers.
    pub group: u16,
    /// Its content.
    pub hash: [u8; 16],
}

impl BlockName {
    /// Of a block of a group.
    pub fn new(group: usize, hash: BlockHash) -> BlockName {
        // There are a few dozen groups at most.
        BlockName { group: group as u16, hash: hash.0 }
    }

    pub(crate) fn hash(&self) -> BlockHash {
        BlockHash(self.hash)
    }
}

/// A block that was asked for.
#[derive(Debug)]
pub struct KeptBlock {
    /// Its name.
    pub name: BlockName,
    /// To be given back by [`BlockStore::recycle`].
    pub bytes: Vec<u8>,
    /// Whether it was there, whole.
    pub found: bool,
}

/// Keeps blocks of one model. Nothing here may wait: an engine calls it between steps. What there is no room or no time for is
/// not kept, and nothing depends on it but how soon a prompt is computed.
pub trait BlockStore: Send {
    /// Whether a block may be there.
    fn has(&self, name: &BlockName) -> bool;

    /// Keeps a block, whose content `fill` writes, and says whether it could. False: there is no room now.
    fn put(&mut self, name: BlockName, fill: &mut dyn FnMut(&mut [u8]) -> bool) -> bool;

    /// Has a block be read; false: no more can be now.
    fn ask(&mut self, name: BlockName) -> bool;

    /// One of those that were asked for, when it is there: each once.
    fn answer(&mut self) -> Option<KeptBlock>;

    /// Takes back what [`BlockStore::answer`] gave.
    fn recycle(&mut self, bytes: Vec<u8>);
}
