//! The whole engine with the demo model: golden values through the runtime, and everything else through real
//! sockets, as a client sees it.

mod fleet;
mod generation;
mod golden;
mod invariance;
mod pictures;
mod serving;
mod tracing;
