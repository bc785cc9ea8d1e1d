//! The heap of a program that serves. The C library gives each of many threads a heap of its own and keeps what is freed
//! in it, so that after a wave of large requests a process holds many times what any of them took.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes from which on an allocation has pages of its own, which go back to the system when it is freed and which grow without a
/// copy. Texts of megabytes would leave holes of their sizes in the heaps otherwise.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: i32 = 1 << 20;
/// Bytes that may be free at the end of each heap before they go back. The C library would come to keep 64 MiB, in each.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: i32 = 4 << 20;

/// Has all threads of the process share `arenas` heaps, which give back what a wave of large requests leaves free at their end.
/// For a program to say before it starts threads; elsewhere than under glibc, where heaps are not per thread in this way,
/// nothing is done.
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
            // SAFETY: mallopt takes two integers and locks what it changes; it may be called at any time. A value that it
            // does not take changes nothing.
            unsafe { libc::mallopt(name, value) };
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = arenas;
}

/// Gives back whole pages that are free between what is in use: [`share`] has heaps give back only what is free at their end. Takes
/// milliseconds, in which threads that allocate may wait. Elsewhere than under glibc nothing is done.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes a number and locks each heap that it looks at; it may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The system's allocator, with a count of the bytes it has given out: for a program that must show what it holds, as its
/// `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct Counted {
    bytes: AtomicUsize,
}

impl Counted {
    /// Nothing is given out.
    pub const fn new() -> Counted {
        Counted { bytes: AtomicUsize::new(0) }
    }

    /// Bytes that are given out and not given back.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

// SAFETY: every call goes to the system's allocator unchanged; beside it a number is kept.
unsafe impl GlobalAlloc for Counted {
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
