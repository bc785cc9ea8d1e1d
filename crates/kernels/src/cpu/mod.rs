//! The CPU backend: packed weights, a fork-join pool, kernels written once over sixteen lanes.

mod aligned;
mod backend;
mod pool;
mod tier;

pub use backend::CpuBackend;
pub use pool::{THREADS_MAX, ThreadPool, Turn};
pub use tier::{TIER_VARIABLE, Tier};
