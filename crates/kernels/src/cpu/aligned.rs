//! Memory aligned to a cache line, allocated once and freed once. Large arrays are on huge pages if the system has
//! them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Zeroable;

use super::slab::{self, HUGE_PAGE, SlabPart};
use hanzo_engine_ops::KernelError;

/// Bytes of a cache line and of the widest vector.
pub(super) const ALIGN: usize = 64;

/// Smallest array that is cut from a slab of huge pages. Most matrices of a small model are smaller than a huge page.
const SLAB_MIN: usize = HUGE_PAGE / 8;

/// A zeroed array whose first element lies on a 64-byte boundary.
pub(super) struct AlignedArray<T> {
    first: NonNull<T>,
    len: usize,
    memory: Memory,
}

/// Storage of an array.
enum Memory {
    /// None: the array is empty.
    None,
    Heap(Layout),
    Mapped {
        _piece: SlabPart,
    },
}

/// Pointer that the threads of one loop share. Each thread writes only the elements of its own items.
pub(super) struct SharedPointer<T>(*mut T);

// SAFETY: an `AlignedArray` owns its memory as a `Vec` does.
unsafe impl<T: Send> Send for AlignedArray<T> {}
// SAFETY: as for a `Vec`: shared access only reads.
unsafe impl<T: Sync> Sync for AlignedArray<T> {}
// SAFETY: the pointer itself is plain data; every dereference is an unsafe block that argues its own case.
unsafe impl<T: Send> Send for SharedPointer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedPointer<T> {}

impl<T: Zeroable> AlignedArray<T> {
    /// `len` zeros, all of them committed in memory; `what` names the purpose in the error.
    pub(super) fn zeroed(len: usize, what: &'static str) -> Result<AlignedArray<T>, KernelError> {
        let mut array = AlignedArray::untouched(len, what)?;
        if let Memory::Mapped { .. } = array.memory {
            array.fill_with(T::zeroed);
        }
        Ok(array)
    }

    /// `len` zeros, which the system commits as they are written. `what` names the purpose in the error.
    pub(super) fn untouched(len: usize, what: &'static str) -> Result<AlignedArray<T>, KernelError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let no_memory = || KernelError::OutOfMemory { device: "cpu".into(), bytes, what };
        if bytes == 0 {
            return Ok(AlignedArray { first: NonNull::dangling(), len, memory: Memory::None });
        }
        // Weights are read in several streams, and outputs are written a row apart. With small pages the processor
        // would spend its time on address translation.
        if bytes >= SLAB_MIN {
            let piece = slab::take(bytes).ok_or_else(no_memory)?;
            return Ok(AlignedArray {
                first: piece.first().cast(),
                len,
                memory: Memory::Mapped { _piece: piece },
            });
        }
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| no_memory())?;
        // SAFETY: the layout's size is not zero. All-zero bytes are a value of a `Zeroable` type.
        let memory = unsafe { alloc_zeroed(layout) };
        let first = NonNull::new(memory.cast::<T>()).ok_or_else(no_memory)?;
        Ok(AlignedArray { first, len, memory: Memory::Heap(layout) })
    }

    pub(super) fn shared(&mut self) -> SharedPointer<T> {
        SharedPointer(self.first.as_ptr())
    }
}

impl<T> Drop for AlignedArray<T> {
    fn drop(&mut self) {
        if let Memory::Heap(layout) = self.memory {
            // SAFETY: allocated in `untouched` with this same layout; `T` is `Zeroable`, plain data without drop.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}

impl<T> Deref for AlignedArray<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements live at `first` for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for AlignedArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `&mut self` is unique.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for AlignedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aligned({} bytes)", self.len * size_of::<T>())
    }
}

impl<T> SharedPointer<T> {
    pub(super) fn new(slice: &mut [T]) -> SharedPointer<T> {
        SharedPointer(slice.as_mut_ptr())
    }

    /// A shared pointer for reading data that the loop's caller keeps alive; nothing is written through it.
    pub(super) fn new_const(first: *const T) -> SharedPointer<T> {
        SharedPointer(first.cast_mut())
    }

    /// The pointer. A method, so that closures capture the wrapper and not the bare pointer in it.
    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

impl<T> Clone for SharedPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPointer<T> {}
