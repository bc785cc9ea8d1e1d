//! Tests of the backend on the emulated device: op by op against the reference, the demo model through the whole
//! engine, recorded plans, and faults planted in the kernels, which must be found. Comparisons with something else go
//! through driver calls, which the emulator answers.

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
mod mixtures;
mod module;
mod mutants;
mod offload;
mod paper;
mod products;
mod ranks;
mod replay;
mod typed;
mod undefined;
mod watched;
mod wide;
