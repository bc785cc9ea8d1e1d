//! Names of the operands that an executor holds, and the handles that own them.

use std::fmt;
use std::sync::Arc;

/// Number of one of an executor's operands. The kind of operand is the type parameter.
pub struct OperandId<K> {
    pub(super) index: u32,
    kind: std::marker::PhantomData<fn() -> K>,
}

impl<K> OperandId<K> {
    pub(crate) fn new(index: usize) -> Self {
        let index = u32::try_from(index).expect("an executor has fewer than 2^32 operands of a kind");
        Self { index, kind: std::marker::PhantomData }
    }

    pub(crate) fn slot(self) -> usize {
        self.index as usize
    }
}

impl<K> Clone for OperandId<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for OperandId<K> {}

impl<K> PartialEq for OperandId<K> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl<K> Eq for OperandId<K> {}

impl<K> std::hash::Hash for OperandId<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

impl<K> fmt::Debug for OperandId<K> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.index)
    }
}

/// Kinds of operands, for [`OperandId`].
pub mod kind {
    /// Packed weights.
    #[derive(Debug)]
    pub enum Matrix {}
    /// A vector of f32.
    #[derive(Debug)]
    pub enum Vector {}
    /// Experts of one layer.
    #[derive(Debug)]
    pub enum Experts {}
    /// Matrices of single heads.
    #[derive(Debug)]
    pub enum Heads {}
    /// Low-rank additions of one adapter to one matrix.
    #[derive(Debug)]
    pub enum LowRank {}
    /// Activations.
    #[derive(Debug)]
    pub enum Buffer {}
    /// A paged KV cache.
    #[derive(Debug)]
    pub enum Kv {}
}

/// Number of a packed matrix.
pub type MatrixId = OperandId<kind::Matrix>;
/// Number of a vector.
pub type VectorId = OperandId<kind::Vector>;
/// Number of a layer's experts.
pub type ExpertsId = OperandId<kind::Experts>;
/// Number of matrices of single heads.
pub type HeadsId = OperandId<kind::Heads>;
/// Number of an adapter's addition to a matrix.
pub type LowRankId = OperandId<kind::LowRank>;
/// Number of a buffer of activations.
pub type BufferId = OperandId<kind::Buffer>;
/// Number of a KV cache.
pub type KvId = OperandId<kind::Kv>;

/// Storage of one kind of operand, which gives a slot back when its handle is dropped.
pub(crate) trait Release: Send + Sync {
    /// Drops what is in a slot and makes the slot free.
    fn release(&self, slot: usize);
}

/// Owner of one operand. The operand is freed when its handle is dropped.
pub struct Handle<K> {
    id: OperandId<K>,
    storage: Arc<dyn Release>,
}

impl<K> Handle<K> {
    pub(crate) fn new(slot: usize, storage: Arc<dyn Release>) -> Self {
        Self { id: OperandId::new(slot), storage }
    }

    /// A second handle, which a test must not drop.
    #[cfg(test)]
    pub(crate) fn alias(of: &Self) -> Self {
        Self { id: of.id, storage: of.storage.clone() }
    }

    /// Number of the operand, valid for as long as the handle lives.
    pub fn id(&self) -> OperandId<K> {
        self.id
    }
}

impl<K> From<&Handle<K>> for OperandId<K> {
    fn from(handle: &Handle<K>) -> Self {
        handle.id
    }
}

impl<K> From<&mut Handle<K>> for OperandId<K> {
    fn from(handle: &mut Handle<K>) -> Self {
        handle.id
    }
}

impl<K> Drop for Handle<K> {
    fn drop(&mut self) {
        self.storage.release(self.id.slot());
    }
}

impl<K> fmt::Debug for Handle<K> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "handle of {:?}", self.id)
    }
}

/// Weights of a matrix, in an executor.
pub type Matrix = Handle<kind::Matrix>;
/// A vector, in an executor.
pub type Vector = Handle<kind::Vector>;
/// Experts of one layer, in an executor.
pub type Experts = Handle<kind::Experts>;
/// Matrices of single heads, in an executor.
pub type Heads = Handle<kind::Heads>;
/// Low-rank additions of one adapter to one matrix, in an executor.
pub type LowRank = Handle<kind::LowRank>;
/// Activations, in an executor.
pub type Buffer = Handle<kind::Buffer>;
/// A paged KV cache, in an executor.
pub type Kv = Handle<kind::Kv>;
