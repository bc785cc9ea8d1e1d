//! The thread pool of a process: fork and join.
//!
//! A step is some hundreds of short parallel loops, so a loop costs no allocation, no spawn and, while the workers
//! still spin from the loop before, no system call. The calling thread takes part. Each thread begins with an equal
//! share of neighbouring items and takes them in order, some at a time, so that memory is read in long runs. A thread
//! with none left takes half of what another still has. So if the operating system takes a thread off its core, only
//! its current chunk is delayed, and a thread that never joined the loop is not waited for. Workers that find nothing
//! for some tens of microseconds park, so an idle pool costs nothing.
//!
//! Models that share the pool take turns by whole steps: a [`PoolTurn`] is the right to run loops, given first come, first
//! served.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard, SPINS_BEFORE_PARK,
    UnsafeCell, spin_loop,
};

/// Largest number of threads of a pool.
pub const THREADS_MAX: usize = 1024;

/// Loop body: called with the worker's number, below [`ThreadPool::threads`], and a range of items.
pub(super) type Body<'a> = dyn Fn(usize, Range<usize>) + Sync + 'a;

/// A fixed set of worker threads that run one parallel loop at a time.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
}

/// The right to run loops on a pool, held for one step. Dropping it passes the pool to the next in line.
pub struct PoolTurn {
    pool: Arc<ThreadPool>,
}

struct PoolState {
    /// `epoch << 17 | OPEN | active`: number of the loop, whether workers may still join it, and how many have.
    state: AtomicU64,
    /// Rest of each thread's share of the items, `first << 32 | end`. A thread takes from the front of its own share,
    /// so that it reads memory in order. If that is empty, it takes from the back of another's.
    shares: Box<[Share]>,
    /// The loop. Written only while the loop is closed and nobody is active; read only by threads that joined.
    job: UnsafeCell<LoopJob>,
    /// Workers that are parked or about to park.
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Whether the caller is parked, waiting for the last active worker.
    caller_waits: AtomicBool,
    done: Condvar,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    line: Mutex<TurnQueue>,
    line_moved: Condvar,
}

/// Aligned to separate cache lines, because each thread writes its share all the time.
#[repr(align(128))]
struct Share(AtomicU64);

/// Queue for the right to run loops.
struct TurnQueue {
    ticket_next: u64,
    serving: u64,
}

#[derive(Clone, Copy)]
struct LoopJob {
    body: Option<*const Body<'static>>,
    grain: usize,
    threads: usize,
}

const ACTIVE: u64 = 0xffff;
const OPEN: u64 = 0x1_0000;
const EPOCH: u64 = 0x2_0000;
const _: () = assert!((THREADS_MAX as u64) < ACTIVE);

// SAFETY: `job` is the only field that is not Sync by itself. It is written by the holder of the one `PoolTurn` while
// `state` is closed with no active worker, and read by workers that joined after the store of `OPEN` (release) which
// follows the write; the pointer in it is to a `Sync` body that outlives the open state (see `PoolTurn::run`).
unsafe impl Sync for PoolState {}
// SAFETY: as above; nothing in it belongs to a particular thread.
unsafe impl Send for PoolState {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadPool {
    /// Starts a pool of `threads` threads, including the caller of a loop; 0 means one for each core that this process
    /// may use. If the system refuses a thread, the pool works with those it has.
    pub fn new(threads: usize) -> ThreadPool {
        let wanted = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let wanted = wanted.min(THREADS_MAX);
        let shared = Arc::new(PoolState {
            state: AtomicU64::new(0),
            shares: (0..wanted).map(|_| Share(AtomicU64::new(0))).collect(),
            job: UnsafeCell::new(LoopJob { body: None, grain: 1, threads: 1 }),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            caller_waits: AtomicBool::new(false),
            done: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            line: Mutex::new(TurnQueue { ticket_next: 0, serving: 0 }),
            line_moved: Condvar::new(),
        });
        let mut workers = Vec::with_capacity(wanted - 1);
        for worker in 1..wanted {
            let shared = Arc::clone(&shared);
            // On platforms without threads (wasm32) the first spawn fails, and every loop runs on its caller.
            match Builder::new().name(format!("kernel-{worker}")).spawn(move || shared.work(worker)) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        ThreadPool { shared, workers }
    }

    /// Number of threads that work on a loop, including its caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Waits in line for the pool, parked, and takes it.
    pub fn turn(self: &Arc<Self>) -> PoolTurn {
        let mut line = lock(&self.shared.line);
        let ticket = line.ticket_next;
        line.ticket_next += 1;
        while line.serving != ticket {
            line = self.shared.line_moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        PoolTurn { pool: Arc::clone(self) }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker cannot panic, because it catches panics of a body.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}

impl PoolTurn {
    /// Runs `body` on ranges that together are `0..items`, each at most `grain` long, and returns when all are done. A
    /// panic in `body` ends the loop early and is raised again here; the pool stays usable.
    pub(super) fn run(&mut self, items: usize, grain: usize, body: &Body<'_>) {
        let shared = &*self.pool.shared;
        let threads = self.pool.threads();
        let grain = grain.max(1);
        if items == 0 {
            return;
        }
        if threads == 1 || items == 1 {
            let mut first = 0;
            while first < items {
                let end = items.min(first + grain);
                body(0, first..end);
                first = end;
            }
            return;
        }
        // SAFETY: only the lifetime changes. The pointer is read by workers between the store of OPEN below and
        // their leaving; this function does not return or unwind before the loop is closed and the last has left.
        let body_static: *const Body<'static> =
            unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(std::ptr::from_ref(body)) };
        let job = LoopJob { body: Some(body_static), grain, threads };
        // SAFETY: this is the only turn (`&mut self`, one ticket served), the loop before was closed and left by
        // all, so no worker reads `job` now.
        shared.job.with_mut(|place| unsafe { *place = job });
        assert!(items <= u32::MAX as usize, "{items} items in one loop");
        for (thread, share) in shared.shares.iter().take(threads).enumerate() {
            share.put(items * thread / threads..items * (thread + 1) / threads);
        }
        let epoch = (shared.state.load(Ordering::Relaxed) & !(OPEN | ACTIVE)).wrapping_add(EPOCH);
        shared.state.store(epoch | OPEN, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.sleep));
            shared.wake.notify_all();
        }
        shared.take_part(0, job);
        shared.join();
        if let Some(payload) = lock(&shared.panic).take() {
            resume_unwind(payload);
        }
    }

    /// Lets the steps that wait for the pool run first, if there are any.
    pub(super) fn pass(&mut self) {
        let mut line = lock(&self.pool.shared.line);
        if line.ticket_next == line.serving + 1 {
            return;
        }
        let ticket = line.ticket_next;
        line.ticket_next += 1;
        line.serving += 1;
        self.pool.shared.line_moved.notify_all();
        while line.serving != ticket {
            line = self.pool.shared.line_moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Number of threads that work on a loop.
    pub(super) fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Drop for PoolTurn {
    fn drop(&mut self) {
        lock(&self.pool.shared.line).serving += 1;
        self.pool.shared.line_moved.notify_all();
    }
}

impl fmt::Debug for PoolTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("pool", &self.pool).finish()
    }
}

impl Share {
    /// Sets the rest of the share. Allowed only if the share is empty, if no other thread takes from it, or if the
    /// rest does not matter.
    fn put(&self, range: Range<usize>) {
        self.0.store((range.start as u64) << 32 | range.end as u64, Ordering::Relaxed);
    }

    /// Takes up to `grain` items from the front, but at most half of the rest, so that others can take something.
    fn take_front(&self, grain: usize) -> Option<Range<usize>> {
        self.take(|first, end| {
            let count = ((end - first) / 2).clamp(1, grain);
            (first..first + count, first + count..end)
        })
    }

    /// Takes the back half of the rest, including a single last item.
    fn take_back(&self) -> Option<Range<usize>> {
        self.take(|first, end| {
            let middle = first + (end - first) / 2;
            (middle..end, first..middle)
        })
    }

    /// Divides the rest into the taken part and the remaining part. The value is the whole state of a share, so an
    /// exchange that finds it unchanged is right whatever happened between.
    fn take(&self, divide: impl Fn(usize, usize) -> (Range<usize>, Range<usize>)) -> Option<Range<usize>> {
        let mut left = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = ((left >> 32) as usize, (left & 0xffff_ffff) as usize);
            if first >= end {
                return None;
            }
            let (taken, stays) = divide(first, end);
            let next = (stays.start as u64) << 32 | stays.end as u64;
            match self.0.compare_exchange_weak(left, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => left = now,
            }
        }
    }
}

impl PoolState {
    /// Takes chunks until none is left. Never unwinds.
    fn take_part(&self, worker: usize, job: LoopJob) {
        let Some(body) = job.body else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller of `PoolTurn::run` keeps the body alive while the loop is open or anyone is active,
            // and whoever runs this is the caller itself or has joined.
            let body = unsafe { &*body };
            while let Some(range) = self.chunk(worker, &job) {
                body(worker, range);
            }
        }));
        if let Err(payload) = outcome {
            for share in &self.shares {
                share.put(0..0);
            }
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// Next chunk of a worker: from its own share, or else half of what another has left.
    fn chunk(&self, worker: usize, job: &LoopJob) -> Option<Range<usize>> {
        loop {
            if let Some(range) = self.shares[worker].take_front(job.grain) {
                return Some(range);
            }
            // Items that another thread has taken and not yet put into its share are done by that thread before it
            // leaves.
            let mut others = (1..job.threads).map(|other| &self.shares[(worker + other) % job.threads]);
            let range = others.find_map(Share::take_back)?;
            self.shares[worker].put(range);
        }
    }

    /// Closes the loop and waits for the threads that joined it.
    fn join(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::SeqCst) & !OPEN;
        let mut spins = 0;
        while state & ACTIVE != 0 {
            if spins < SPINS_BEFORE_PARK {
                spins += 1;
                spin_loop();
            } else {
                let mut guard = lock(&self.sleep);
                // An exchange, because emulators of Arm let a load overtake a store before it; the last worker would
                // then see nobody waiting.
                self.caller_waits.swap(true, Ordering::SeqCst);
                while self.state.load(Ordering::SeqCst) & ACTIVE != 0 {
                    guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
                }
                self.caller_waits.store(false, Ordering::SeqCst);
            }
            state = self.state.load(Ordering::SeqCst);
        }
    }

    /// Main loop of a worker.
    fn work(&self, worker: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.joined(seen) {
            seen = epoch;
            // SAFETY: having joined, this thread is counted active, so the job is not written until it leaves.
            let job = self.job.with(|job| unsafe { *job });
            self.take_part(worker, job);
            let left = self.state.fetch_sub(1, Ordering::SeqCst) - 1;
            if left & (OPEN | ACTIVE) == 0 && self.caller_waits.load(Ordering::SeqCst) {
                drop(lock(&self.sleep));
                self.done.notify_one();
            }
        }
    }

    /// Waits for an open loop other than `seen` and joins it; `None` when the pool is closing.
    fn joined(&self, seen: u64) -> Option<u64> {
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let epoch = state & !(OPEN | ACTIVE);
            if state & OPEN != 0 && epoch != seen {
                if self
                    .state
                    .compare_exchange_weak(state, state + 1, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
                {
                    return Some(epoch);
                }
                continue;
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if spins < SPINS_BEFORE_PARK {
                spins += 1;
                spin_loop();
                continue;
            }
            self.park(seen);
            spins = 0;
        }
    }

    /// Sleeps until there may be a loop other than `seen` or the pool closes. Either this thread sees the new state
    /// after counting itself as a sleeper, or the thread that stored that state sees the sleeper and wakes it.
    fn park(&self, seen: u64) {
        let guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        let open = state & OPEN != 0 && state & !(OPEN | ACTIVE) != seen;
        if !open && !self.stop.load(Ordering::SeqCst) {
            drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn sums(pool: &Arc<ThreadPool>, items: usize, grain: usize) {
        let hits: Vec<AtomicU32> = (0..items).map(|_| AtomicU32::new(0)).collect();
        pool.turn().run(items, grain, &|worker, range| {
            assert!(worker < pool.threads());
            assert!(range.len() <= grain);
            for i in range {
                hits[i].fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_item_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Arc::new(ThreadPool::new(threads));
            for items in [0, 1, 2, 7, 1000] {
                for grain in [1, 3, 64] {
                    sums(&pool, items, grain);
                }
            }
            for _ in 0..2000 {
                sums(&pool, 17, 2);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Arc::new(ThreadPool::new(3));
        for bad in [0, 50, 99] {
            let thrown = catch_unwind(AssertUnwindSafe(|| {
                pool.turn().run(100, 1, &|_, range| assert!(!range.contains(&bad), "item {bad}"));
            }));
            let message =
                *thrown.expect_err("the body panics").downcast::<String>().expect("a formatted message");
            assert!(message.contains(&format!("item {bad}")));
            sums(&pool, 100, 3);
        }
    }

    #[test]
    fn turns_are_exclusive_and_first_come_first_served() {
        let pool = Arc::new(ThreadPool::new(2));
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut turn = pool.turn();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        turn.run(8, 1, &|_, _| {});
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        // A later ticket is served after an earlier one even when both wait.
        let first = pool.turn();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for name in ["second", "third"] {
                let waiting = lock(&pool.shared.line).ticket_next;
                let (pool, order) = (&pool, &order);
                scope.spawn(move || {
                    let _turn = pool.turn();
                    lock(order).push(name);
                });
                while lock(&pool.shared.line).ticket_next == waiting {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*lock(&order), ["second", "third"]);
    }
}
