//! What the tests share: the demo model on an engine of its own, a daemon and gateway on free ports, and a plain
//! HTTP client.

pub mod demo;
pub mod fuzz;
pub mod rig;
