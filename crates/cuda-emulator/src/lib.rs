//! A device for tests: the kernels' CUDA C++ sources, compiled for this processor and run by fibers (`cpp/emulator.hpp`
//! says what is emulated and what is not).
//!
//! The same library answers the driver's calls (`cpp/driver.cpp`), so that what speaks to a driver is tested too.
//!
//! The sources are compiled when a test asks for the device, by the system's C++ compiler, and kept in the target folder
//! under a name that is made of what they are: `cargo build` needs no compiler but Rust's. Where there is none, a test
//! fails and says so.
//!
//! Memory is the emulated device's own: each allocation ends at a page that nobody may touch, and is gone when it is
//! freed, so that a kernel that reads behind what it was given ends the test where it stands.

mod compiler;
mod counter;
mod library;
mod memory;

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use hanzo_engine_kernels_cuda::{Address, Device, DeviceError, Kernel, Launch, Plan};

pub use compiler::{Fault, Sources};
pub use counter::Counted;
use counter::Counter;
use library::Library;

/// The emulated device.
#[derive(Clone, Debug)]
pub struct Emulated {
    library: Arc<Library>,
    wide: Option<Arc<OnceLock<bool>>>, // as `Device::wide` has it
    seed: u64,
    planted: u32, // 0: none
    counter: Option<Arc<Counter>>,
}

impl Emulated {
    /// The kernels as they are.
    ///
    /// # Panics
    /// Where they cannot be compiled, with what the compiler says.
    pub fn new() -> Emulated {
        Emulated::of(&Sources::default())
    }

    /// Kernels that a test has changed.
    ///
    /// # Panics
    /// Where they cannot be compiled, with what the compiler says.
    pub fn of(sources: &Sources) -> Emulated {
        let library = Library::load(&sources.compile());
        let wide = library.has(Kernel::ProductWide).then(Arc::default);
        Emulated { library, wide, seed: 0, planted: 0, counter: None }
    }

    /// Kernels that count what they read and write of its memory, if no other device in this process has the same ones.
    ///
    /// # Panics
    /// As [`Emulated::of`].
    pub fn counting(sources: Sources) -> Emulated {
        let counted = Emulated::of(&sources.counting());
        Emulated { counter: Some(Arc::default()), ..counted }
    }

    /// The launches since the last call, with what they have read and written; none without [`Emulated::counting`].
    pub fn counted(&self) -> Vec<Counted> {
        self.counter.as_ref().map_or(Vec::new(), |counter| counter.take())
    }

    /// Which warp of a block runs ahead of the others the seed says from here on; 0: the first.
    pub fn scheduled_by(self, seed: u64) -> Emulated {
        Emulated { seed, ..self }
    }

    /// With the fault of this number, from 1 on, of those that its sources have (`Sources::with_planted`); as a device that nobody has
    /// asked what it gives.
    pub fn planted(self, fault: u32) -> Emulated {
        Emulated { planted: fault, wide: self.wide.map(|_| Arc::default()), ..self }
    }
}

impl Default for Emulated {
    fn default() -> Emulated {
        Emulated::new()
    }
}

// SAFETY: memory is mapped by `memory`, which gives nobody what another holds; launches run to their end before they return.
unsafe impl Device for Emulated {
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
