//! What the thread pool is made of: the standard library's own. The pool names no other, so that `tests/models` can compile
//! the same file against a model checker's.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{Builder, JoinHandle};

/// Turns of `spin_loop` before a thread parks: 20 to 70 microseconds where a pause takes 40 to 140 cycles. That is longer than
/// what one thread does between two loops of a step, because to be woken takes as long again, and on a virtual machine, whose
/// idle cores the host takes back, longer.
pub(super) const SPINS_BEFORE_PARK: u32 = 1500;

/// A value that several threads may come to, whose user says why never at once: a model checker looks.
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with a value.
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// What `read` gives of a pointer to the value, through which it only reads.
    #[inline(always)]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// What `write` gives of a pointer to the value.
    #[inline(always)]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
