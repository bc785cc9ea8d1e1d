//! The backend on the emulated device: op by op beside the reference, the demo model through the whole engine, recorded plans,
//! and faults planted in the kernels, which must be seen. What is compared with something else goes through the driver's calls,
//! which the emulator answers.

mod again;
mod ahead;
mod attention;
mod batches;
mod conformance;
mod driver;
mod early;
mod engine;
mod experts;
mod few_bits;
mod fp8;
mod fused;
mod groups;
mod kept;
mod module;
mod mutants;
mod offload;
mod paper;
mod products;
mod ranks;
mod replay;
mod undefined;
mod watched;
mod wide;
