//! The heap of a program that serves. The C library gives each of many threads a heap of its own and keeps what is freed
//! in it, so that after a wave of large requests a process holds many times what any of them took.

/// Has all threads of the process share `arenas` heaps. For a program to say before it starts threads; elsewhere than under
/// glibc, where heaps are not per thread in this way, nothing is done.
pub fn share(arenas: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let arenas = i32::try_from(arenas.max(1)).unwrap_or(i32::MAX);
        // SAFETY: mallopt takes two integers and locks what it changes; it may be called at any time. A value that it
        // does not take changes nothing.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = arenas;
}
