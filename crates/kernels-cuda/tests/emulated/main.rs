//! The backend on the emulated device: op by op beside the reference, the demo model through the whole engine, recorded plans,
//! and faults planted in the kernels, which must be seen.

mod conformance;
mod engine;
mod mutants;
mod replay;
