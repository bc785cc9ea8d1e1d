//! Staging memory for a step's asynchronous copies to and from the device: pinned host memory, used from its beginning
//! on in each step.

use std::ops::Range;
use std::ptr::NonNull;

use hanzo_engine_ops::KernelError;

use crate::device::{Device, Memory, failed};

/// Alignment of each copy.
const ALIGNMENT: usize = 16;

/// Bytes that copies of these sizes take.
pub(crate) fn staged_bytes(copies: &[usize]) -> usize {
    copies.iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum()
}

pub(crate) struct StagingBuffer<D: Device> {
    device: D,
    memory: NonNull<u8>, // initialised
    bytes: usize,
    used: usize, // by copies that may not be done yet
    mark: Option<D::Mark>,
}

// SAFETY: the memory is this struct's alone, and a device's may be used from any thread.
unsafe impl<D: Device> Send for StagingBuffer<D> {}

impl<D: Device> StagingBuffer<D> {
    /// Staging memory of so many bytes between two calls of [`StagingBuffer::settle`].
    pub(crate) fn new(device: &D, bytes: usize) -> Result<Self, KernelError> {
        let what = "copies that the host does not wait for";
        let bytes = bytes.max(ALIGNMENT);
        let memory = device.allocate_host(bytes).map_err(failed(device, bytes, what))?;
        // SAFETY: as many bytes as were allocated the line before.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Self { device: device.clone(), memory, bytes, used: 0, mark: None })
    }

    /// Reserves room for a copy.
    fn take(&mut self, bytes: usize) -> (usize, NonNull<u8>) {
        let at = self.used;
        self.used += bytes.next_multiple_of(ALIGNMENT);
        assert!(self.used <= self.bytes, "copies of {} bytes where there are {}", self.used, self.bytes);
        // An event that was recorded is not after this copy.
        self.mark = None;
        // SAFETY: within what was allocated.
        (at, unsafe { self.memory.add(at) })
    }

    /// Copies to offset `at` of device memory, in the order of launches.
    pub(crate) fn send(&mut self, from: &[u8], to: &Memory<D>, at: usize) -> Result<(), KernelError> {
        assert!(at + from.len() <= to.bytes(), "a copy to {at} of {} bytes", to.bytes());
        if from.is_empty() {
            return Ok(());
        }
        let (_, room) = self.take(from.len());
        // SAFETY: the room is this copy's until `settle`, and both ends are as large.
        unsafe {
            room.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len());
            self.device.upload_later(to.address().offset(at), room, from.len())
        }
        .map_err(failed(&self.device, from.len(), "a copy to the device"))
    }

    /// Copies from offset `at` of device memory, in the order of launches. [`StagingBuffer::fetched`] returns the data after
    /// [`StagingBuffer::settle`].
    pub(crate) fn fetch(
        &mut self,
        from: &Memory<D>,
        at: usize,
        bytes: usize,
    ) -> Result<Range<usize>, KernelError> {
        assert!(at + bytes <= from.bytes(), "a copy from {at} of {} bytes", from.bytes());
        let (first, room) = self.take(bytes);
        if bytes > 0 {
            // SAFETY: as in `send`.
            unsafe { self.device.download_later(from.address().offset(at), room, bytes) }.map_err(failed(
                &self.device,
                bytes,
                "a copy from the device",
            ))?;
        }
        Ok(first..first + bytes)
    }

    /// Records the event that [`StagingBuffer::settle`] waits for, after all work so far.
    pub(crate) fn mark(&mut self) -> Result<(), KernelError> {
        self.mark = Some(self.device.mark().map_err(failed(&self.device, 0, "a step"))?);
        Ok(())
    }

    /// Waits for its copies: for the event, or for all work if none was recorded since.
    pub(crate) fn settle(&mut self) -> Result<(), KernelError> {
        let reached = match self.mark.take() {
            Some(mark) => self.device.reach(&mark),
            None if self.used == 0 => Ok(()),
            None => self.device.wait(),
        };
        reached.map_err(failed(&self.device, 0, "a step"))?;
        self.used = 0;
        Ok(())
    }

    /// Notes that the device has been waited for.
    pub(crate) fn settled(&mut self) {
        (self.used, self.mark) = (0, None);
    }

    /// Data that was fetched and settled.
    pub(crate) fn fetched(&self, range: &Range<usize>) -> &[u8] {
        assert!(self.used == 0 && self.mark.is_none(), "it may not be there yet");
        assert!(range.start <= range.end && range.end <= self.bytes, "bytes that are not there");
        // SAFETY: initialised, within what was allocated, and no copy is under way.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(range.start), range.len()) }
    }
}

impl<D: Device> Drop for StagingBuffer<D> {
    fn drop(&mut self) {
        // A device that fails here does nothing any more.
        let _ = self.settle();
        // SAFETY: allocated with as many bytes, and its copies have been done.
        unsafe { self.device.free_host(self.memory, self.bytes) };
    }
}
