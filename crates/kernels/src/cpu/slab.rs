//! Allocation of large arrays, one after another on huge pages.
//!
//! An array with a separate mapping begins on a huge page and ends in the middle of one, whose rest is wasted. For a
//! small model, with matrices of two to four megabytes, that is a quarter of its memory. So arrays are cut from slabs
//! of many huge pages. Freed memory returns to the system at once, page by page; a slab is freed with its last array.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

/// Size of a huge page; slabs are multiples of it.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Bytes of a slab. An array that is larger has a separate slab.
const SLAB: usize = 32 * HUGE_PAGE;

/// Slabs of the whole process, so that arrays of models that come and go share them.
static OPEN: Slabs = Slabs::new();

/// Allocator that cuts arrays from slabs.
struct Slabs(Mutex<Option<OpenSlab>>);

/// Slab that is currently cut, the one believed to have the most room. Older slabs are not cut any more.
struct OpenSlab {
    slab: Arc<Slab>,
    taken: usize,
}

/// Zeroed memory that begins at a huge page boundary.
struct Slab {
    owner: MmapMut,
    first: NonNull<u8>,
    /// Offset of the first byte in the mapping.
    offset: usize,
    len: usize,
}

// SAFETY: a slab says where its memory is; what lies there is the pieces'.
unsafe impl Send for Slab {}
// SAFETY: as above; nothing of it is changed.
unsafe impl Sync for Slab {}

/// Part of a slab: zeroed and page-aligned.
pub(super) struct SlabPart {
    slab: Arc<Slab>,
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a piece's memory is its own, and of its slab nothing else is used but to give that memory back.
unsafe impl Send for SlabPart {}
// SAFETY: as above; through a shared piece nothing but an address is read.
unsafe impl Sync for SlabPart {}

/// `bytes` zeros that the system commits as they are touched; none if the address space is exhausted.
pub(super) fn take(bytes: usize) -> Option<SlabPart> {
    OPEN.take(bytes)
}

impl Slabs {
    const fn new() -> Slabs {
        Slabs(Mutex::new(None))
    }

    /// Locks the open slab. Nothing panics while it is held, and its content is consistent between any two statements.
    fn lock(&self) -> MutexGuard<'_, Option<OpenSlab>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Option<SlabPart> {
        let bytes = bytes.checked_next_multiple_of(page())?;
        let mut open = self.lock();
        if let Some(OpenSlab { slab, taken }) = open.as_mut()
            && bytes <= slab.len - *taken
        {
            let piece = Slab::piece(slab, *taken, bytes);
            *taken += bytes;
            return Some(piece);
        }
        let slab = Arc::new(Slab::new(bytes.max(if GIVES_BACK { SLAB } else { 0 }))?);
        let piece = Slab::piece(&slab, 0, bytes);
        if open.as_ref().is_none_or(|open| open.slab.len - open.taken < slab.len - bytes) {
            *open = Some(OpenSlab { slab, taken: bytes });
        }
        Some(piece)
    }
}

/// Whether parts of a mapping can be returned to the system. If not, each array has a separate mapping.
const GIVES_BACK: bool = cfg!(target_os = "linux");

/// Bytes of the smallest page: returned memory must not reach into a neighbour's page.
fn page() -> usize {
    #[cfg(unix)]
    {
        // SAFETY: only a number is asked for.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(HUGE_PAGE)
    }
    #[cfg(not(unix))]
    HUGE_PAGE
}

impl Slab {
    fn new(bytes: usize) -> Option<Slab> {
        let len = if GIVES_BACK { bytes.checked_next_multiple_of(HUGE_PAGE)? } else { bytes };
        let mut owner = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        let offset = owner.as_ptr().align_offset(HUGE_PAGE);
        // Only a hint: a system without huge pages uses small ones.
        #[cfg(target_os = "linux")]
        let _ = owner.advise_range(memmap2::Advice::HugePage, offset, len);
        let first = NonNull::new(owner[offset..].as_mut_ptr())?;
        Some(Slab { owner, first, offset, len })
    }

    fn piece(slab: &Arc<Slab>, at: usize, bytes: usize) -> SlabPart {
        debug_assert!(at + bytes <= slab.len);
        // SAFETY: the slab has so many bytes.
        let first = unsafe { slab.first.add(at) };
        SlabPart { slab: slab.clone(), first, bytes }
    }
}

impl SlabPart {
    pub(super) fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// Returns the memory to the system, and its addresses to the slab if it is the last piece that was cut.
    fn give_back(&self, to: &Slabs) {
        let at = self.first.as_ptr() as usize - self.slab.first.as_ptr() as usize;
        #[cfg(target_os = "linux")]
        {
            use memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: whole pages, which are this piece's alone, and which nobody reads again but as zeros.
            if unsafe { self.slab.owner.unchecked_advise_range(DontNeed, self.slab.offset + at, self.bytes) }
                .is_err()
            {
                return;
            }
        }
        let mut open = to.lock();
        if let Some(open) = open.as_mut().filter(|open| GIVES_BACK && Arc::ptr_eq(&open.slab, &self.slab))
            && open.taken == at + self.bytes
        {
            open.taken -= self.bytes;
        }
    }
}

impl Drop for SlabPart {
    fn drop(&mut self) {
        self.give_back(&OPEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn bytes(piece: &mut SlabPart) -> &mut [u8] {
        // SAFETY: a piece's bytes are its own and zeroed.
        unsafe { std::slice::from_raw_parts_mut(piece.first.as_ptr(), piece.bytes) }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn arrays_lie_one_behind_another() {
        let slabs = Slabs::new();
        let pieces: Vec<SlabPart> = (0..12).map(|_| slabs.take(3 * MIB + 5).expect("room")).collect();
        for pair in pieces.windows(2) {
            assert_eq!(pair[1].first.as_ptr() as usize - pair[0].first.as_ptr() as usize, 3 * MIB + page());
        }
        let mut slabs_of_these: Vec<_> = pieces.iter().map(|piece| Arc::as_ptr(&piece.slab)).collect();
        slabs_of_these.dedup();
        assert_eq!(slabs_of_these.len(), 1);
        assert_eq!(pieces[0].first.as_ptr() as usize % HUGE_PAGE, 0);
    }

    #[test]
    fn every_array_is_its_own_and_zero_however_they_come_and_go() {
        let slabs = Slabs::new();
        let mut held: Vec<(u8, SlabPart)> = Vec::new();
        for turn in 0..200usize {
            let mut piece = slabs.take((1 + turn * 7 % 5) * MIB + turn).expect("room");
            let mark = turn as u8 | 1;
            for at in (0..piece.bytes).step_by(1021).chain([piece.bytes - 1]) {
                assert_eq!(bytes(&mut piece)[at], 0, "turn {turn}, byte {at}");
                bytes(&mut piece)[at] = mark;
            }
            held.push((mark, piece));
            // Alternately the last piece and one in the middle.
            if turn % 3 != 0 {
                let gone = if turn % 2 == 0 { held.len() - 1 } else { turn * 31 % held.len() };
                let (_, piece) = held.remove(gone);
                piece.give_back(&slabs);
            }
            for (mark, piece) in held.iter_mut() {
                let (mark, bytes) = (*mark, bytes(piece));
                assert!([0, 1021, bytes.len() - 1].iter().all(|&at| bytes[at] == mark), "turn {turn}");
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_given_back_last_is_cut_again() {
        let slabs = Slabs::new();
        let kept = slabs.take(3 * MIB).expect("room");
        let piece = slabs.take(5 * MIB).expect("room");
        let at = piece.first;
        piece.give_back(&slabs);
        let again = slabs.take(4 * MIB).expect("room");
        assert_eq!(again.first, at);
        kept.give_back(&slabs);
        assert_ne!(slabs.take(3 * MIB).expect("room").first, kept.first, "not the last");
    }

    #[test]
    fn a_large_array_has_a_slab_of_its_own_and_leaves_the_open_one_as_it_is() {
        let slabs = Slabs::new();
        let small = slabs.take(3 * MIB).expect("room");
        let large = slabs.take(3 * SLAB).expect("room");
        let next = slabs.take(3 * MIB).expect("room");
        assert!(!Arc::ptr_eq(&small.slab, &large.slab));
        assert_eq!(Arc::ptr_eq(&small.slab, &next.slab), GIVES_BACK);
        assert!(slabs.take(usize::MAX - 5).is_none() && slabs.take(usize::MAX / 4).is_none());
    }
}
