//! Operating errors of a backend. Wrong shapes inside a step are programmer errors and assert instead.

use crate::{DType, KvLayout, KvType};

/// What can go wrong between a model file and a running step.
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
    /// The bytes given do not make up the shape given.
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
    /// A shape the kernels cannot run, such as a row that is not whole blocks.
    #[error("tensor {tensor}: {reason}")]
    BadShape {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Heads, or latents, that cannot be stored in a KV cache of this type.
    #[error(
        "a KV cache of type {kv_type} holds whole groups of {} elements, and what the model keeps of a token's head, or its \
         latent, has {head_dim}; choose type f16",
        kv_type.group()
    )]
    BadKvType {
        /// The type asked for.
        kv_type: KvType,
        /// Elements of a head or a latent.
        head_dim: usize,
    },
    /// What a layer keeps of a token is nothing the backend's cache can hold.
    #[error("layer {layer} keeps {layout} of each token, which the KV cache of {device} cannot hold")]
    UnsupportedKvLayout {
        /// The layer, from 0.
        layer: usize,
        /// What it keeps.
        layout: KvLayout,
        /// The backend.
        device: String,
    },
    /// The device could not give the memory.
    #[error("{device} could not allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// The backend.
        device: String,
        /// Size asked for.
        bytes: usize,
        /// What it was for.
        what: &'static str,
    },
    /// The device failed; the worker that owns it cannot go on.
    #[error("{device} failed: {reason}")]
    Device {
        /// The backend.
        device: String,
        /// The driver's words.
        reason: String,
    },
}
