//! The names of `cpu/sync.rs` and of the daemon's `sync.rs`, of loom's primitives. loom takes accesses that are SeqCst for
//! acquire and release alone: fences around them make up for it, as compilers do it for some processors.

use std::{
    fmt,
    sync::{
        Arc, LockResult,
        atomic::{AtomicUsize as Plain, Ordering, Ordering::SeqCst},
    },
    task::{Wake, Waker},
};

use loom::sync::atomic;
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{Mutex, MutexGuard},
    thread::{Builder, JoinHandle, Thread},
};

/// Threads park at once: what spinning adds is time.
pub(crate) const SPINS_BEFORE_PARK: u32 = 0;

/// What can be planted: fences and SeqCst that are weaker, every order relaxed, a wake-up that is lost, a change of a
/// count that is a load and a store.
pub(crate) const FAULTS: [&str; 4] = ["weak-fence", "relaxed", "lost-wake-up", "torn-count"];

/// Which of [`FAULTS`], counted from 1; the same throughout a run.
static PLANTED: Plain = Plain::new(0);

/// Plants a fault.
pub(crate) fn plant(fault: &str) -> Result<(), ()> {
    let at = FAULTS.iter().position(|name| *name == fault).ok_or(())?;
    PLANTED.store(at + 1, SeqCst);
    Ok(())
}

fn planted(fault: &str) -> bool {
    PLANTED.load(SeqCst).checked_sub(1).is_some_and(|at| FAULTS[at] == fault)
}

/// A fence.
pub(crate) fn fence(order: Ordering) {
    if !planted("weak-fence") && !planted("relaxed") {
        atomic::fence(order);
    }
}

fn ordered<R>(order: Ordering, access: impl FnOnce(Ordering) -> R) -> R {
    if planted("relaxed") {
        return access(Ordering::Relaxed);
    }
    if order != SeqCst {
        return access(order);
    }
    fence(SeqCst);
    let value = access(order);
    fence(SeqCst);
    value
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// loom's, with accesses that can be SeqCst.
        pub(crate) struct $name(atomic::$name);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        #[allow(dead_code)]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                ordered(order, |order| self.0.load(order))
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                ordered(order, |order| self.0.store(value, order));
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.change(order, |_| value)
            }

            fn change(&self, order: Ordering, to: impl Fn($value) -> $value) -> $value {
                if planted("torn-count") {
                    let before = self.load(order_of_load(order));
                    self.store(to(before), order_of_store(order));
                    return before;
                }
                let exchange =
                    |order| self.0.fetch_update(order, order_of_load(order), |value| Some(to(value)));
                match ordered(order, exchange) {
                    Ok(before) | Err(before) => before,
                }
            }
        }
    };
}

macro_rules! count {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        #[allow(dead_code)]
        impl $name {
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.change(order, |before| before.wrapping_add(value))
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.change(order, |before| before.wrapping_sub(value))
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.change(order, |before| before & value)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                ordered(success, |success| self.0.compare_exchange(current, new, success, weaker(failure)))
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                to: impl Fn($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                if planted("torn-count") {
                    let before = self.load(failure);
                    return match to(before) {
                        Some(value) => {
                            self.store(value, order_of_store(success));
                            Ok(before)
                        }
                        None => Err(before),
                    };
                }
                ordered(success, |success| self.0.fetch_update(success, weaker(failure), to))
            }
        }
    };
}

fn weaker(order: Ordering) -> Ordering {
    if planted("relaxed") { Ordering::Relaxed } else { order }
}

fn order_of_load(order: Ordering) -> Ordering {
    match order {
        Ordering::Release => Ordering::Relaxed,
        Ordering::AcqRel => Ordering::Acquire,
        other => other,
    }
}

fn order_of_store(order: Ordering) -> Ordering {
    match order {
        Ordering::Acquire => Ordering::Relaxed,
        Ordering::AcqRel => Ordering::Release,
        other => other,
    }
}

atomic!(AtomicBool, bool);
count!(AtomicU64, u64);
count!(AtomicUsize, usize);

/// A condition variable.
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub(crate) fn notify_one(&self) {
        if !planted("lost-wake-up") {
            self.0.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if !planted("lost-wake-up") {
            self.0.notify_all();
        }
    }
}

/// What unparks a thread; a wake-up of it can be lost where it is said to be `checked`.
pub(crate) fn waker(thread: Thread, checked: bool) -> Waker {
    struct Unpark(Thread, bool);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            if !(self.1 && planted("lost-wake-up")) {
                self.0.unpark();
            }
        }
    }

    Waker::from(Arc::new(Unpark(thread, checked)))
}

/// A value that is set once.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    is_set: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { is_set: AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        // No other thread comes between: loom changes threads at its own primitives alone.
        if self.is_set.0.swap(true, Ordering::AcqRel) { Err(value) } else { self.value.set(value) }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.is_set.0.load(Ordering::Acquire).then(|| self.value.get()).flatten()
    }
}

/// tokio's bounded channel as far as its contract goes: a slot that is free again is seen by a later look, and no more is
/// promised of other memory than acquire and release.
pub(crate) mod mpsc {
    use std::{
        collections::VecDeque,
        sync::{Arc, atomic::Ordering},
        task::{Context, Poll, Waker},
    };

    use loom::sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize},
    };

    struct Shared<T> {
        capacity: usize,
        queue: Mutex<Queue<T>>,
        free: AtomicUsize,
        is_closed: AtomicBool,
    }

    struct Queue<T> {
        values: VecDeque<T>,
        reader: Option<Waker>,
        has_sender: bool,
    }

    pub(crate) struct Sender<T>(Arc<Shared<T>>);

    pub(crate) struct Receiver<T>(Arc<Shared<T>>);

    pub(crate) fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
        let queue = Queue { values: VecDeque::new(), reader: None, has_sender: true };
        let (free, is_closed) = (AtomicUsize::new(capacity), AtomicBool::new(false));
        let shared = Arc::new(Shared { capacity, queue: Mutex::new(queue), free, is_closed });
        (Sender(shared.clone()), Receiver(shared))
    }

    impl<T> Shared<T> {
        fn with<R>(&self, work: impl FnOnce(&mut Queue<T>) -> R) -> R {
            work(&mut self.queue.lock().expect("nothing panics under it"))
        }
    }

    impl<T> Sender<T> {
        pub(crate) fn max_capacity(&self) -> usize {
            self.0.capacity
        }

        pub(crate) fn capacity(&self) -> usize {
            self.0.free.load(Ordering::Acquire)
        }

        pub(crate) fn is_closed(&self) -> bool {
            self.0.is_closed.load(Ordering::Acquire)
        }

        pub(crate) fn try_send(&self, value: T) -> Result<(), T> {
            if self.is_closed() {
                return Err(value);
            }
            let take = |free: usize| free.checked_sub(1);
            if self.0.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
                return Err(value);
            }
            let reader = self.0.with(|queue| {
                queue.values.push_back(value);
                queue.reader.take()
            });
            reader.into_iter().for_each(Waker::wake);
            Ok(())
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            let reader = self.0.with(|queue| {
                queue.has_sender = false;
                queue.reader.take()
            });
            reader.into_iter().for_each(Waker::wake);
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn max_capacity(&self) -> usize {
            self.0.capacity
        }

        pub(crate) fn capacity(&self) -> usize {
            self.0.free.load(Ordering::Acquire)
        }

        pub(crate) fn close(&self) {
            self.0.is_closed.store(true, Ordering::Release);
        }

        pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
            let polled = self.0.with(|queue| match queue.values.pop_front() {
                Some(value) => Poll::Ready(Some(value)),
                None if !queue.has_sender => Poll::Ready(None),
                None => {
                    queue.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            });
            if let Poll::Ready(Some(_)) = &polled {
                self.0.free.fetch_add(1, Ordering::Release);
            }
            polled
        }
    }
}
