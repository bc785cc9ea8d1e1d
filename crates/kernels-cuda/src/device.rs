//! What runs kernels: a card through its driver, or an emulator of one. Everything above it, from packing to plans of
//! launches, is the same for both.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use hanzo_engine_kernels::KernelError;

use crate::params::Address;
use crate::plan::{Launch, Plan};

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no such memory.
    #[error("no memory is left")]
    OutOfMemory,
    /// It failed, in its own words.
    #[error("{0}")]
    Failed(String),
}

/// A device with memory of its own, which does what it is told in that order. A handle: clones are the same device.
///
/// # Safety
/// Memory that was allocated is its holder's alone until it is freed, [`Device::download`] gives what was last written,
/// and nothing but `launch` and `replay` reads or writes it beside what they are told.
pub unsafe trait Device: Clone + Send + Sync + 'static {
    /// Launches that were recorded, to be run again as one.
    type Graph: Send;
    /// A place in the order of what was asked for.
    type Mark: Send;

    /// What it is, for people: `cuda:0: NVIDIA H200, driver 13.0`.
    fn name(&self) -> String;

    /// Where it has the kernels of groups of four warps ([`crate::Kernel::is_wide`]): whether they were found to give the bits of the others.
    fn wide(&self) -> Option<&OnceLock<bool>> {
        None
    }

    /// Memory of so many bytes, more than none, at a multiple of 16; its content is unknown.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives memory back, when all that was launched has been done.
    ///
    /// # Safety
    /// It was allocated with so many bytes, and nothing that is launched later names it.
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

    /// Memory of the host's that the device copies from and to by itself: of so many bytes, more than none, at a multiple of 16;
    /// its content is unknown.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError>;

    /// Gives it back.
    ///
    /// # Safety
    /// It was allocated with so many bytes, and no copy from or to it is still to be done.
    unsafe fn free_host(&self, memory: NonNull<u8>, bytes: usize);

    /// Copies to the device, in the order of launches, some time before a later mark is reached.
    ///
    /// # Safety
    /// Both are allocated, `from` by [`Device::allocate_host`], and nobody writes to it until then.
    unsafe fn upload_later(&self, to: Address, from: NonNull<u8>, bytes: usize) -> Result<(), DeviceError>;

    /// Copies from the device, likewise.
    ///
    /// # Safety
    /// Both are allocated, `to` by [`Device::allocate_host`], and nobody reads or writes it until then.
    unsafe fn download_later(&self, from: Address, to: NonNull<u8>, bytes: usize) -> Result<(), DeviceError>;

    /// Copies from the device's memory to other memory of it, in the order of launches.
    ///
    /// # Safety
    /// Both are allocated.
    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Starts a kernel.
    ///
    /// # Safety
    /// Its parameters name memory that is allocated until it has been done, and as large as the kernel takes it for.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Records a plan without running it.
    fn record(&self, plan: &Plan) -> Result<Self::Graph, DeviceError>;

    /// Runs what was recorded.
    ///
    /// # Safety
    /// As [`Device::launch`], for each of its launches.
    unsafe fn replay(&self, graph: &Self::Graph) -> Result<(), DeviceError>;

    /// Waits for all that was started.
    fn wait(&self) -> Result<(), DeviceError>;

    /// A mark behind all that was asked for until now.
    fn mark(&self) -> Result<Self::Mark, DeviceError>;

    /// Waits until all before a mark has been done, and for nothing behind it.
    fn reach(&self, mark: &Self::Mark) -> Result<(), DeviceError>;
}

/// What a device's failure is in the contract.
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

/// Memory of a device, freed with its last holder.
#[derive(Debug)]
pub struct Memory<D: Device> {
    device: D,
    address: Address,
    bytes: usize,
}

impl<D: Device> Memory<D> {
    /// Zeroed; `what` is for errors.
    pub(crate) fn zeroed(device: &D, bytes: usize, what: &'static str) -> Result<Arc<Self>, KernelError> {
        let memory = Self::unknown(device, bytes, what)?;
        if bytes > 0 {
            // SAFETY: as many bytes as were allocated the line before.
            unsafe { device.zero(memory.address, bytes) }.map_err(failed(device, bytes, what))?;
        }
        Ok(memory)
    }

    /// Of unknown content; no bytes are at no address.
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

    /// Copies to `at` bytes behind its beginning.
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

    /// Copies from `at` bytes behind its beginning.
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
