//! Device for counting: computes the memory that a model would need on a GPU, without one.

use std::ptr::NonNull;

use crate::device::{Device, DeviceError};
use crate::params::Address;
use crate::peers::{Columns, PeerDevice};
use crate::plan::{Launch, Plan};

/// A device that has only a name.
#[derive(Clone, Debug)]
pub struct Paper {
    name: String,
}

impl Paper {
    /// A device with this name.
    pub fn of(name: String) -> Paper {
        Paper { name }
    }

    fn refuse<T>() -> Result<T, DeviceError> {
        Err(DeviceError::Failed("nothing is computed on paper".to_owned()))
    }
}

// SAFETY: it gives no memory and runs nothing.
unsafe impl Device for Paper {
    type Graph = ();
    type Mark = ();

    fn name(&self) -> String {
        self.name.clone()
    }

    fn allocate(&self, _bytes: usize) -> Result<Address, DeviceError> {
        Paper::refuse()
    }

    unsafe fn free(&self, _address: Address, _bytes: usize) {}

    unsafe fn zero(&self, _address: Address, _bytes: usize) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    unsafe fn upload(&self, _to: Address, _from: &[u8]) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    unsafe fn download(&self, _from: Address, _to: &mut [u8]) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    fn allocate_host(&self, _bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        Paper::refuse()
    }

    unsafe fn free_host(&self, _memory: NonNull<u8>, _bytes: usize) {}

    unsafe fn upload_later(
        &self,
        _to: Address,
        _from: NonNull<u8>,
        _bytes: usize,
    ) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    unsafe fn download_later(
        &self,
        _from: Address,
        _to: NonNull<u8>,
        _bytes: usize,
    ) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    unsafe fn copy(&self, _from: Address, _to: Address, _bytes: usize) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    unsafe fn launch(&self, _launch: &Launch<'_>) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    fn record(&self, _plan: &Plan) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    unsafe fn replay(&self, (): &()) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    fn mark(&self) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    fn reach(&self, (): &()) -> Result<(), DeviceError> {
        Paper::refuse()
    }
}

// SAFETY: as above.
unsafe impl PeerDevice for Paper {
    fn follow(&self, (): &()) -> Result<(), DeviceError> {
        Paper::refuse()
    }

    fn reaches(&self, _other: &Paper) -> Result<bool, DeviceError> {
        Paper::refuse()
    }

    unsafe fn copy_columns(&self, _of: &Paper, _columns: &Columns) -> Result<(), DeviceError> {
        Paper::refuse()
    }
}
