//! Ops as data, and what runs them.
//!
//! [`Op`] is one step of a network over numbered operands. [`Executor`] is the object-safe contract of a device that holds
//! the operands. [`AnyBackend`] is any executor, so that networks are compiled once, whatever devices there are.

mod any_backend;
mod arena;
mod executor;
mod map;
mod op;
mod operands;
mod slots;
#[cfg(test)]
mod tests;

pub use any_backend::AnyBackend;
pub(crate) use any_backend::{buffer, vector};
pub(crate) use arena::Arena;
pub use executor::{Allocation, Executor};
pub use map::{Access, MappedOp, OperandMap};
pub use op::{Buckets, DeviceOp, HeadOperands, Op};
pub use operands::{
    Buffer, BufferId, Experts, ExpertsId, Handle, Heads, HeadsId, Kv, KvId, LowRank, LowRankId, Matrix,
    MatrixId, OperandId, Vector, VectorId, kind,
};
pub(crate) use slots::{Cells, Slots};
