//! Readers and writers of the formats that models' files have: GGUF, safetensors, PyTorch's and ONNX. Start with
//! [`tensor`], which all of them give, and [`mapped`], the bytes that it lies in. [`error`] says why a file cannot be
//! loaded.
//!
//! Nothing here knows what a tensor or a setting means to a model. A file is data from strangers: every size is
//! bounded ([`limits`]) before it is used.

pub mod error;
pub mod gguf;
pub mod json;
pub mod limits;
pub mod mapped;
pub mod onnx;
pub mod override_record;
pub mod pytorch;
pub mod regular;
pub mod safetensors;
pub mod tensor;
