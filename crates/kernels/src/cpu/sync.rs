//! Synchronisation primitives of the thread pool, from the standard library. The pool names no others, so that
//! `tests/models` can compile the same file against a model checker's.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{Builder, JoinHandle};

/// Turns of `spin_loop` before a thread parks: 20 to 70 microseconds if a pause takes 40 to 140 cycles. That is longer
/// than the work of one thread between two loops of a step. Waking up takes as long again, and longer on a virtual
/// machine, whose idle cores the host takes back.
pub(super) const SPINS_BEFORE_PARK: u32 = 1500;

/// Cell that several threads access, whose user argues why never at the same time. A model checker verifies it.
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with a value.
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer to the value, through which it only reads.
    #[inline(always)]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer to the value.
    #[inline(always)]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
