//! Ops as data, and what runs them.
//!
//! [`Op`] is one step of a network over numbered operands. [`Executor`] is the object-safe contract of a device that holds
//! the operands. [`AnyBackend`] puts an executor behind [`Backend`](crate::Backend), so that a network which is written
//! against that trait is compiled once, whatever devices there are.

mod any_backend;
mod arena;
mod executor;
mod op;
mod operands;
mod slots;
#[cfg(test)]
mod tests;
mod visit;

pub use any_backend::AnyBackend;
pub(crate) use arena::Arena;
pub use executor::{Allocation, Executor};
pub use op::{Buckets, HeadOperands, Op, OpClass};
pub use operands::{
    Buffer, BufferId, Experts, ExpertsId, Handle, Heads, HeadsId, Kv, KvId, LowRank, LowRankId, Matrix,
    MatrixId, OperandId, Vector, VectorId, kind,
};
pub(crate) use slots::{Cells, Slots};
pub use visit::{Access, Visitor};
