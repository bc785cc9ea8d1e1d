//! The numerical contract on NVIDIA GPUs: kernels in CUDA C++ (`cuda/`), plans of their launches, and the devices that
//! run them.
//!
//! Start with [`device`], the one boundary between the ops and the hardware. [`CudaBackend`] packs, plans and launches
//! through it alone. [`driver`] is a GPU. `crates/cuda-emulator` is a device that runs the same sources on the CPU,
//! and an emulated driver, so that everything except the real driver and its compiler is tested without a GPU.
//!
//! cuBLAS, the CUDA runtime and its run-time compiler are not used.

mod backend;
mod check;
mod codebooks;
pub mod device;
pub mod driver;
mod kv;
mod ledger;
mod paper;
pub mod params;
mod peers;
pub mod plan;
mod shapes;
mod staging;
mod step;
mod traffic;
mod weights;

pub use backend::{CudaBackend, CudaBuffer, CudaVector};
pub use check::check;
pub use device::{Device, DeviceError};
pub use driver::{Card, CardInfo, CardMark, ComputeCapability, Driver};
pub use kv::CudaKv;
pub use ledger::{LaunchRecord, Ledger};
pub use paper::Paper;
pub use params::Address;
pub use peers::{Columns, DeviceRows, PeerDevice};
pub use plan::{Grid, Kernel, Launch, Plan};
pub use traffic::Traffic;
pub use weights::{CudaExperts, CudaLowRank, CudaMatrix};

/// Source files of the kernels by name: input of the emulator and of the PTX modules.
pub const SOURCES: &[(&str, &str)] = &[
    ("adapters.cu", include_str!("../cuda/adapters.cu")),
    ("attention.cu", include_str!("../cuda/attention.cu")),
    ("attention.cuh", include_str!("../cuda/attention.cuh")),
    ("attention_groups.cu", include_str!("../cuda/attention_groups.cu")),
    ("attention_tiles.cu", include_str!("../cuda/attention_tiles.cu")),
    ("device.cuh", include_str!("../cuda/device.cuh")),
    ("draw.cu", include_str!("../cuda/draw.cu")),
    ("experts.cu", include_str!("../cuda/experts.cu")),
    ("few_bits.cuh", include_str!("../cuda/few_bits.cuh")),
    ("gate.cuh", include_str!("../cuda/gate.cuh")),
    ("heads.cu", include_str!("../cuda/heads.cu")),
    ("heads.cuh", include_str!("../cuda/heads.cuh")),
    ("hopper.cu", include_str!("../cuda/hopper.cu")),
    ("hopper.cuh", include_str!("../cuda/hopper.cuh")),
    ("kernels.cu", include_str!("../cuda/kernels.cu")),
    ("kv.cuh", include_str!("../cuda/kv.cuh")),
    ("matmul.cu", include_str!("../cuda/matmul.cu")),
    ("multiply.cuh", include_str!("../cuda/multiply.cuh")),
    ("norm.cu", include_str!("../cuda/norm.cu")),
    ("norm.cuh", include_str!("../cuda/norm.cuh")),
    ("outputs.cuh", include_str!("../cuda/outputs.cuh")),
    ("params.cuh", include_str!("../cuda/params.cuh")),
    ("pieces.cuh", include_str!("../cuda/pieces.cuh")),
    ("prelude.cuh", include_str!("../cuda/prelude.cuh")),
    ("product.cu", include_str!("../cuda/product.cu")),
    ("product.cuh", include_str!("../cuda/product.cuh")),
    ("product_wide.cu", include_str!("../cuda/product_wide.cu")),
    ("queries.cuh", include_str!("../cuda/queries.cuh")),
    ("ranks.cu", include_str!("../cuda/ranks.cu")),
    ("rows.cu", include_str!("../cuda/rows.cu")),
    ("states.cu", include_str!("../cuda/states.cu")),
    ("weights.cuh", include_str!("../cuda/weights.cuh")),
];
