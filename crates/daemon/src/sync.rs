//! Synchronisation primitives of the standard library and tokio. `ticket/events.rs` and `admission.rs` import no
//! others, so that `tests/models` can compile the same files with a model checker's primitives.

pub(crate) use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
};
pub(crate) use tokio::sync::mpsc;
