//! Operating errors of a backend. Wrong shapes inside a step are programmer errors and assert instead.

use crate::{DType, KvLayout, KvType};

/// Error of loading a model onto a backend or of running a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The backend has no kernel for this element type.
    #[error("tensor {tensor}: element type {dtype} cannot be computed on {device}")]
    UnsupportedType {
        /// Name of the tensor.
        tensor: String,
        /// Its element type.
        dtype: DType,
        /// The backend.
        device: String,
    },
    /// The data do not have the size that the shape needs.
    #[error("tensor {tensor}: [{rows}, {cols}] of {dtype} takes {expected} bytes, the file has {found}")]
    WrongSize {
        /// Name of the tensor.
        tensor: String,
        /// Rows of the shape.
        rows: usize,
        /// Columns of the shape.
        cols: usize,
        /// Element type.
        dtype: DType,
        /// Bytes the shape needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A shape that the kernels cannot run, such as a row that is not whole blocks.
    #[error("tensor {tensor}: {reason}")]
    BadShape {
        /// Name of the tensor.
        tensor: String,
        /// Reason in words.
        reason: String,
    },
    /// Heads or latents that cannot be stored in a KV cache of this type.
    #[error(
        "a KV cache of type {kv_type} holds whole groups of {} elements, and what the model keeps of a token's head, or its \
         latent, has {head_dim}; choose type f16",
        kv_type.group()
    )]
    BadKvType {
        /// The requested type.
        kv_type: KvType,
        /// Elements of a head or a latent.
        head_dim: usize,
    },
    /// A layer's cache layout that the backend does not support.
    #[error("layer {layer} keeps {layout} of each token, which the KV cache of {device} cannot hold")]
    UnsupportedKvLayout {
        /// The layer, from 0.
        layer: usize,
        /// Its layout.
        layout: KvLayout,
        /// The backend.
        device: String,
    },
    /// The device ran out of memory.
    #[error("{device} could not allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// The backend.
        device: String,
        /// Requested size in bytes.
        bytes: usize,
        /// Purpose of the allocation.
        what: &'static str,
    },
    /// The device failed; the worker that owns it cannot continue.
    #[error("{device} failed: {reason}")]
    Device {
        /// The backend.
        device: String,
        /// The driver's message.
        reason: String,
    },
}
