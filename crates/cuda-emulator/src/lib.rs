//! Emulated CUDA device for tests: the kernels' CUDA C++ sources, compiled for the CPU and run by fibers
//! (`cpp/emulator.hpp` describes what is emulated and what is not).
//!
//! The same library implements the driver's API (`cpp/driver.cpp`), so code that calls a driver is tested too.
//!
//! The sources are compiled when a test asks for the device, by the system's C++ compiler. Results are cached in the
//! target folder under a name made from their content, so `cargo build` needs no C++ compiler. Without one, a test
//! fails with a message.
//!
//! Memory belongs to the emulated device: each allocation ends at a guard page and is unmapped when freed, so a kernel
//! that reads past its memory ends the test at that instruction.

mod compiler;
mod counter;
mod library;
mod memory;

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use hanzo_engine_kernels_cuda::{Address, Device, DeviceError, Kernel, Launch, Plan};

pub use compiler::{Fault, Sources};
pub use counter::CountedLaunch;
use counter::Counter;
use library::Library;

/// The emulated device.
#[derive(Clone, Debug)]
pub struct EmulatedDevice {
    library: Arc<Library>,
    wide: Option<Arc<OnceLock<bool>>>, // as for `Device::wide`
    seed: u64,
    planted: u32, // 0: none
    counter: Option<Arc<Counter>>,
}

impl EmulatedDevice {
    /// The kernels without changes.
    ///
    /// # Panics
    /// If they cannot be compiled, with the compiler's message.
    pub fn new() -> EmulatedDevice {
        EmulatedDevice::of(&Sources::default())
    }

    /// Kernels that a test has changed.
    ///
    /// # Panics
    /// If they cannot be compiled, with the compiler's message.
    pub fn of(sources: &Sources) -> EmulatedDevice {
        let library = Library::load(&sources.compile());
        let wide = library.has(Kernel::ProductWide).then(Arc::default);
        EmulatedDevice { library, wide, seed: 0, planted: 0, counter: None }
    }

    /// Kernels that count their reads and writes of device memory. At most one device in a process may use the same
    /// counting library.
    ///
    /// # Panics
    /// As [`EmulatedDevice::of`].
    pub fn counting(sources: Sources) -> EmulatedDevice {
        let counted = EmulatedDevice::of(&sources.counting());
        EmulatedDevice { counter: Some(Arc::default()), ..counted }
    }

    /// Launches since the last call, with the bytes they read and wrote; none without [`EmulatedDevice::counting`].
    pub fn counted(&self) -> Vec<CountedLaunch> {
        self.counter.as_ref().map_or(Vec::new(), |counter| counter.take())
    }

    /// Lets the seed choose which warp of a block runs ahead of the others; 0: the first.
    pub fn scheduled_by(self, seed: u64) -> EmulatedDevice {
        EmulatedDevice { seed, ..self }
    }

    /// The device with the fault of this number, from 1 on, of those planted in its sources (`Sources::with_planted`).
    /// Like a new device, it has not yet been checked for its warpgroup kernels.
    pub fn planted(self, fault: u32) -> EmulatedDevice {
        EmulatedDevice { planted: fault, wide: self.wide.map(|_| Arc::default()), ..self }
    }
}

impl Default for EmulatedDevice {
    fn default() -> EmulatedDevice {
        EmulatedDevice::new()
    }
}

// SAFETY: memory is mapped by `memory`, which gives nobody what another holds; launches run to their end before they
// return.
unsafe impl Device for EmulatedDevice {
    type Graph = Plan;
    type Mark = ();

    fn name(&self) -> String {
        "cuda, emulated".to_owned()
    }

    fn wide(&self) -> Option<&OnceLock<bool>> {
        self.wide.as_deref()
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let address = memory::allocate(bytes).map(Address).ok_or(DeviceError::OutOfMemory)?;
        self.counter.iter().for_each(|counter| counter.allocated(address.0, bytes));
        Ok(address)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        self.counter.iter().for_each(|counter| counter.freed(address.0));
        // SAFETY: the caller's promise.
        unsafe { memory::free(address.0, bytes) };
    }

    unsafe fn zero(&self, address: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; nothing runs beside this.
        unsafe { std::ptr::write_bytes(address.0 as *mut u8, 0, bytes) };
        Ok(())
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; the host's memory is no device's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        let address = memory::allocate(bytes).ok_or(DeviceError::OutOfMemory)?;
        NonNull::new(address as *mut u8).ok_or(DeviceError::OutOfMemory)
    }

    unsafe fn free_host(&self, memory: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { memory::free(memory.as_ptr() as u64, bytes) };
    }

    unsafe fn upload_later(&self, to: Address, from: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; the host's memory is no device's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn download_later(&self, from: Address, to: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: as in `upload_later`.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_ptr(), bytes) };
        Ok(())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let run =
            || unsafe { self.library.launch(launch, self.seed, self.planted) }.map_err(DeviceError::Failed);
        match &self.counter {
            None => run(),
            Some(counter) => counter.watch(&self.library, launch.kernel, run),
        }
    }

    fn record(&self, plan: &Plan) -> Result<Plan, DeviceError> {
        Ok(plan.clone())
    }

    unsafe fn replay(&self, graph: &Plan) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        graph.iter().try_for_each(|launch| unsafe { self.launch(&launch) })
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn mark(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reach(&self, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}
