//! Memory that ends at a guard page.

const ALIGNMENT: usize = 16;

fn page() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("the size of a page is unknown")
}

/// Bytes of the mapping, and the offset of the memory in it.
fn place(bytes: usize) -> (usize, usize) {
    let aligned = bytes.next_multiple_of(ALIGNMENT);
    let pages = aligned.next_multiple_of(page());
    (pages + page(), pages - aligned)
}

/// Memory filled with NaN, or none.
pub(crate) fn allocate(bytes: usize) -> Option<u64> {
    let (mapped, first) = place(bytes);
    // SAFETY: a new mapping, wherever there is room.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    let address = base as usize + first;
    // SAFETY: the last page of the mapping, and all before it.
    unsafe {
        libc::mprotect((base as usize + mapped - page()) as *mut libc::c_void, page(), libc::PROT_NONE);
        // A cache of gigabytes is not filled: bytes that are never written are zeros there.
        if bytes <= 64 << 20 {
            std::ptr::write_bytes(address as *mut u8, 0xff, bytes);
        }
    }
    Some(address as u64)
}

/// Frees memory.
///
/// # Safety
/// It came from [`allocate`] with so many bytes.
pub(crate) unsafe fn free(address: u64, bytes: usize) {
    let (mapped, first) = place(bytes);
    // SAFETY: the mapping that `allocate` made.
    unsafe { libc::munmap((address as usize - first) as *mut libc::c_void, mapped) };
}
