//! What devices that compute each layer together need of one another besides. How a backend brings another's rows: `backend/ranks.rs`.

use crate::device::{Device, DeviceError};
use crate::params::Address;

/// Columns of rows that are copied.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// The first of them in the first row, and bytes from a row to the next.
    pub from: (Address, usize),
    /// Likewise, of where they go.
    pub to: (Address, usize),
    /// Bytes of a row's columns.
    pub bytes: usize,
    /// Rows.
    pub rows: usize,
}

/// A device that copies others' memory and waits for them.
///
/// # Safety
/// As [`Device`]; and what comes behind [`PeerDevice::follow`] begins when all before the mark has been done.
pub unsafe trait PeerDevice: Device {
    /// Has what is asked for from here on wait for a mark, of this device or of another. The host does not wait.
    fn follow(&self, mark: &Self::Mark) -> Result<(), DeviceError>;

    /// Whether kernels of this device may read another's memory, and write it, from here on.
    fn reaches(&self, other: &Self) -> Result<bool, DeviceError>;

    /// Copies from memory of a device, this or another, to this one's, in the order of its launches.
    ///
    /// # Safety
    /// Both are allocated, and nobody writes to the first until a later mark is reached.
    unsafe fn copy_columns(&self, of: &Self, columns: &Columns) -> Result<(), DeviceError>;
}
