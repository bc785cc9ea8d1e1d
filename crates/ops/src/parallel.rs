//! Several devices as one: passes over ops that share a network by layers ([`Pipeline`]) or divide each layer
//! ([`TensorParallel`]).

mod pipeline;
mod tensor_parallel;

pub use pipeline::{Pipeline, PipelineCut};
pub use tensor_parallel::{PART_ROWS, TensorParallel};
