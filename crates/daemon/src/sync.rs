//! What threads hand things over by: the standard library's and tokio's own. `ticket/events.rs` and `admission.rs` name no
//! other, so that `tests/models` can compile the same files against a model checker's.

pub(crate) use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
};
pub(crate) use tokio::sync::mpsc;
