//! Accounting device: it hands out addresses without memory, so that a model of any size can be packed, and records
//! launches with the bytes they would read and write.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Device, DeviceError};
use crate::params::Address;
use crate::plan::{Grid, Kernel, Launch, Plan};
use crate::traffic::Traffic;

/// Largest upload whose content is kept: batches and tables, which determine a launch's amount of work.
const KEPT_BYTES_MAX: usize = 1 << 20;
const ALIGNMENT: usize = 256;

/// A recorded launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRecord {
    /// Kernel.
    pub kernel: Kernel,
    /// Grid.
    pub grid: Grid,
    /// Bytes moved and operations computed.
    pub traffic: Traffic,
}

/// Accounting device; see the module. A handle, like every device.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<LedgerState>>);

#[derive(Debug, Default)]
struct LedgerState {
    allocated: u64,
    kept: BTreeMap<u64, Vec<u8>>, // last uploads, by address
    entries: Vec<LaunchRecord>,
}

impl Ledger {
    /// Launches since the last call.
    pub fn take(&self) -> Vec<LaunchRecord> {
        std::mem::take(&mut self.state().entries)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: addresses are given once, and nothing lies behind them; memory of the host's is the system's.
unsafe impl Device for Ledger {
    type Graph = Plan;
    type Mark = ();

    fn name(&self) -> String {
        "a ledger".to_owned()
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let mut state = self.state();
        let at = state.allocated + ALIGNMENT as u64;
        state.allocated = at + bytes.next_multiple_of(ALIGNMENT) as u64;
        Ok(Address(at))
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        let mut state = self.state();
        let uploads: Vec<u64> =
            state.kept.range(address.0..address.0 + bytes as u64).map(|(&at, _)| at).collect();
        uploads.iter().for_each(|at| drop(state.kept.remove(at)));
    }

    unsafe fn zero(&self, _address: Address, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        if from.len() <= KEPT_BYTES_MAX {
            self.state().kept.insert(to.0, from.to_vec());
        }
        Ok(())
    }

    /// Returns the content of an upload to this address, padded with zeros.
    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        to.fill(0);
        let state = self.state();
        let Some((at, bytes)) = state.kept.range(..=from.0).next_back() else { return Ok(()) };
        let behind = usize::try_from(from.0 - at).unwrap_or(usize::MAX).min(bytes.len());
        let count = to.len().min(bytes.len() - behind);
        to[..count].copy_from_slice(&bytes[behind..behind + count]);
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        let memory: Box<[u128]> = vec![0; bytes.div_ceil(size_of::<u128>())].into_boxed_slice();
        Ok(NonNull::from(Box::leak(memory)).cast())
    }

    unsafe fn free_host(&self, memory: NonNull<u8>, bytes: usize) {
        let numbers = NonNull::slice_from_raw_parts(memory.cast::<u128>(), bytes.div_ceil(size_of::<u128>()));
        // SAFETY: the box that `allocate_host` made for so many bytes.
        drop(unsafe { Box::from_raw(numbers.as_ptr()) });
    }

    unsafe fn upload_later(&self, to: Address, from: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.upload(to, std::slice::from_raw_parts(from.as_ptr(), bytes)) }
    }

    unsafe fn download_later(&self, from: Address, to: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.download(from, std::slice::from_raw_parts_mut(to.as_ptr(), bytes)) }
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        let mut moved = vec![0; bytes.min(KEPT_BYTES_MAX)];
        // SAFETY: the caller's promise.
        unsafe {
            self.download(from, &mut moved)?;
            self.upload(to, &moved)
        }
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let &Launch { kernel, grid, .. } = launch;
        let traffic = Traffic::of(self, launch)?;
        let traffic = traffic
            .ok_or_else(|| DeviceError::Failed(format!("what {} reads is not counted", kernel.symbol())))?;
        self.state().entries.push(LaunchRecord { kernel, grid, traffic });
        Ok(())
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
