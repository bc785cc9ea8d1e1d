//! The CPU backend: packed weights, a fork-join thread pool, and kernels written once over sixteen lanes.
//!
//! [`CpuBackend`] implements the contract's ops, each as one or two loops of the [`ThreadPool`]. `matrix` lays out
//! weights, the tiles of `gemm` multiply them, and `matmul` cuts products into items. `moe` runs products of many
//! matrices in one loop. `attention` reads the paged cache of `kv`, which `rope` writes. All arithmetic is generic
//! over the instruction sets of `lanes`.
//!
//! Results do not depend on the batch, because the order of floating-point operations of each output is fixed by
//! weights and position alone. Integer dot products are exact; the blocks of a weight row are added in order; keys are
//! taken in tiles and partitions by absolute position. Threads only decide who computes an output.

mod activations;
mod adapted_rows;
mod aligned;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod attention;
mod backend;
mod convolution;
mod cores;
mod gate;
mod gemm;
mod kv;
mod lanes;
mod latent;
pub mod limits;
mod line;
mod low_rank;
mod math;
mod matmul;
mod matrix;
mod moe;
mod norm;
mod output_change;
mod pool;
mod relative;
mod requantize;
mod rope;
mod rows;
mod scratch;
mod self_attention;
mod slab;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod split;
mod states;
mod stored;
mod sync;
mod tier;
mod unfold;

pub use backend::{CpuBackend, CpuBuffer, CpuVector};
pub use kv::CpuKv;
pub use low_rank::CpuLowRank;
pub use matrix::CpuMatrix;
pub use moe::CpuExperts;
pub use pool::{PoolTurn, THREADS_MAX, ThreadPool};
pub use requantize::requantize;
pub use tier::{TIER_VARIABLE, Tier};
