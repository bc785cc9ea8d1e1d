//! Inter-device operations that tensor parallelism needs from devices. `backend/ranks.rs` uses them to copy rows
//! between backends.

use crate::device::{Device, DeviceError};
use crate::params::Address;

/// Rows in a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows {
    /// Address of the first row.
    pub address: Address,
    /// Bytes from the start of a row to the start of the next.
    pub pitch: usize,
}

/// Columns of rows to copy.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Source, from the first of the columns on.
    pub from: DeviceRows,
    /// Destination, from the first of the columns on.
    pub to: DeviceRows,
    /// Bytes of the columns of a row.
    pub bytes: usize,
    /// Number of rows.
    pub rows: usize,
}

/// Device that copies other devices' memory and waits for them.
///
/// # Safety
/// As [`Device`]; and work after [`PeerDevice::follow`] begins only when all work before the event is done.
pub unsafe trait PeerDevice: Device {
    /// Makes all later work of this device wait for an event, of this device or of another. The host does not wait.
    fn follow(&self, mark: &Self::Mark) -> Result<(), DeviceError>;

    /// Whether kernels of this device may read and write another's memory from here on.
    fn reaches(&self, other: &Self) -> Result<bool, DeviceError>;

    /// Copies from a device's memory, this or another, to this one's, in the order of its launches.
    ///
    /// # Safety
    /// Both are allocated, and nobody writes to the source until a later event is reached.
    unsafe fn copy_columns(&self, of: &Self, columns: &Columns) -> Result<(), DeviceError>;
}
