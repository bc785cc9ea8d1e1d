//! Abstraction of a CUDA device: a GPU through its driver, or an emulator. Everything above it, from packing to plans
//! of launches, is the same for both.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use hanzo_engine_ops::KernelError;

use crate::params::Address;
use crate::plan::{Launch, Plan};

/// Error of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device has no memory left.
    #[error("no memory is left")]
    OutOfMemory,
    /// The device failed, with its message.
    #[error("{0}")]
    Failed(String),
}

/// A device with separate memory, which executes its work in order. A handle: clones are the same device.
///
/// # Safety
/// Allocated memory belongs to its holder alone until it is freed. [`Device::download`] returns what was last written.
/// Only `launch` and `replay` read or write memory other than their arguments.
pub unsafe trait Device: Clone + Send + Sync + 'static {
    /// Recorded launches (a CUDA graph), to be run again as one.
    type Graph: Send;
    /// Event: a position in the order of the work.
    type Mark: Send;

    /// Name for people, such as `cuda:0: NVIDIA H200, driver 13.0`.
    fn name(&self) -> String;

    /// If the device has warpgroup kernels ([`crate::Kernel::is_wide`]): whether they were found to give the same bits
    /// as the others.
    fn wide(&self) -> Option<&OnceLock<bool>> {
        None
    }

    /// Allocates so many bytes, more than none, aligned to 16; the content is undefined.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Frees memory after all launched work is done.
    ///
    /// # Safety
    /// The memory was allocated with so many bytes, and nothing launched later names it.
    unsafe fn free(&self, address: Address, bytes: usize);

    /// Fills memory with zeros, in the order of launches.
    ///
    /// # Safety
    /// The memory is allocated.
    unsafe fn zero(&self, address: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Copies to the device, in the order of launches; `from` may be changed as soon as this returns.
    ///
    /// # Safety
    /// The memory is allocated.
    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the device, when all that was launched has been done.
    ///
    /// # Safety
    /// The memory is allocated.
    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Allocates pinned host memory that the device copies from and to directly: so many bytes, more than none,
    /// aligned to 16; the content is undefined.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError>;

    /// Frees pinned host memory.
    ///
    /// # Safety
    /// It was allocated with so many bytes, and no copy from or to it is still to be done.
    unsafe fn free_host(&self, memory: NonNull<u8>, bytes: usize);

    /// Copies to the device, in the order of launches. The copy is complete when a later event is reached.
    ///
    /// # Safety
    /// Both are allocated, `from` by [`Device::allocate_host`], and nobody writes to it until the copy is complete.
    unsafe fn upload_later(&self, to: Address, from: NonNull<u8>, bytes: usize) -> Result<(), DeviceError>;

    /// Copies from the device, in the order of launches. The copy is complete when a later event is reached.
    ///
    /// # Safety
    /// Both are allocated, `to` by [`Device::allocate_host`], and nobody reads or writes it until the copy is
    /// complete.
    unsafe fn download_later(&self, from: Address, to: NonNull<u8>, bytes: usize) -> Result<(), DeviceError>;

    /// Copies within the device's memory, in the order of launches.
    ///
    /// # Safety
    /// Both are allocated.
    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// Its parameters name memory that stays allocated until it is done and is as large as the kernel requires.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Records a plan without running it.
    fn record(&self, plan: &Plan) -> Result<Self::Graph, DeviceError>;

    /// Runs a recorded graph.
    ///
    /// # Safety
    /// As [`Device::launch`], for each of its launches.
    unsafe fn replay(&self, graph: &Self::Graph) -> Result<(), DeviceError>;

    /// Waits for all started work.
    fn wait(&self) -> Result<(), DeviceError>;

    /// Records an event after all work so far.
    fn mark(&self) -> Result<Self::Mark, DeviceError>;

    /// Waits until all work before an event is done, but for nothing after it.
    fn reach(&self, mark: &Self::Mark) -> Result<(), DeviceError>;
}

/// Conversion of a device's error to the contract's.
pub(crate) fn failed<D: Device>(
    device: &D,
    bytes: usize,
    what: &'static str,
) -> impl FnOnce(DeviceError) -> KernelError {
    let device = device.name();
    move |error| match error {
        DeviceError::OutOfMemory => KernelError::OutOfMemory { device, bytes, what },
        DeviceError::Failed(reason) => KernelError::Device { device, reason },
    }
}

/// Device memory, freed with its last holder.
#[derive(Debug)]
pub struct Memory<D: Device> {
    device: D,
    address: Address,
    bytes: usize,
}

impl<D: Device> Memory<D> {
    /// Zeroed memory; `what` names the purpose in errors.
    pub(crate) fn zeroed(device: &D, bytes: usize, what: &'static str) -> Result<Arc<Self>, KernelError> {
        let memory = Self::unknown(device, bytes, what)?;
        if bytes > 0 {
            // SAFETY: as many bytes as were allocated the line before.
            unsafe { device.zero(memory.address, bytes) }.map_err(failed(device, bytes, what))?;
        }
        Ok(memory)
    }

    /// Memory of undefined content; zero bytes have no address.
    pub(crate) fn unknown(device: &D, bytes: usize, what: &'static str) -> Result<Arc<Self>, KernelError> {
        let address = match bytes {
            0 => Address::NONE,
            _ => device.allocate(bytes).map_err(failed(device, bytes, what))?,
        };
        Ok(Arc::new(Self { device: device.clone(), address, bytes }))
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies to offset `at`.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> Result<(), KernelError> {
        assert!(at + from.len() <= self.bytes, "a copy to {at} of {} bytes", self.bytes);
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: within what was allocated.
        unsafe { self.device.upload(self.address.offset(at), from) }.map_err(failed(
            &self.device,
            from.len(),
            "a copy to the device",
        ))
    }

    /// Copies from offset `at`.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result<(), KernelError> {
        assert!(at + to.len() <= self.bytes, "a copy from {at} of {} bytes", self.bytes);
        if to.is_empty() {
            return Ok(());
        }
        let bytes = to.len();
        // SAFETY: within what was allocated.
        unsafe { self.device.download(self.address.offset(at), to) }.map_err(failed(
            &self.device,
            bytes,
            "a copy from the device",
        ))
    }
}

impl<D: Device> Drop for Memory<D> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated with as many bytes, and this was the last holder: a step's plan is one too.
            unsafe { self.device.free(self.address, self.bytes) };
        }
    }
}

/// Address of optional memory.
pub(crate) fn address_of<D: Device>(memory: Option<&Arc<Memory<D>>>) -> Address {
    memory.map_or(Address::NONE, |memory| memory.address())
}
