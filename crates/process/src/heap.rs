//! Heap settings for server programs. The C library gives each of many threads its own heap and keeps freed memory in
//! it. After a wave of large requests, a process would hold many times what any of them needed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocations of at least this many bytes get their own pages, which return to the system when freed and grow
/// without a copy. Texts of megabytes would otherwise leave holes in the heaps.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: i32 = 1 << 20;
/// Bytes that may stay free at the end of each heap before they are returned. The C library's own limit would grow to
/// 64 MiB for each heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: i32 = 4 << 20;

/// Makes all threads of the process share `arenas` heaps, which return memory at their end after a wave of large
/// requests. Call it before starting threads. Does nothing without glibc, where heaps are not per thread in this way.
pub fn share(arenas: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let arenas = i32::try_from(arenas.max(1)).unwrap_or(i32::MAX);
        let settings = [
            (libc::M_ARENA_MAX, arenas),
            (libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES),
            (libc::M_TRIM_THRESHOLD, KEPT_BYTES),
        ];
        for (name, value) in settings {
            // SAFETY: mallopt takes two integers and locks what it changes; it may be called at any time. A value that
            // it does not take changes nothing.
            unsafe { libc::mallopt(name, value) };
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = arenas;
}

/// Returns whole free pages in the middle of heaps to the system; [`share`] makes heaps return only their free end.
/// Takes milliseconds, during which threads that allocate may wait. Does nothing without glibc.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number and locks each heap that it looks at; it may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// System allocator that counts the bytes it has handed out: a `#[global_allocator]` for programs that report their
/// memory use.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    bytes: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator with nothing handed out.
    pub const fn new() -> CountingAllocator {
        CountingAllocator { bytes: AtomicUsize::new(0) }
    }

    /// Bytes currently allocated.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

// SAFETY: every call goes to the system's allocator unchanged; beside it a number is kept.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.bytes.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.bytes.fetch_add(new_size, Ordering::Relaxed);
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}
