//! Devices that compute each layer together: what they need of one another besides, and how a backend copies another's rows.

use std::ops::Range;

use hanzo_engine_kernels::{KernelError, Peers};

use crate::backend::{CudaBackend, CudaBuffer};
use crate::device::{Device, DeviceError, failed};
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

    /// Copies from memory of a device, this or another, to this one's, in the order of its launches.
    ///
    /// # Safety
    /// Both are allocated, and nobody writes to the first until a later mark is reached.
    unsafe fn copy_columns(&self, of: &Self, columns: &Columns) -> Result<(), DeviceError>;
}

impl<D: PeerDevice> Peers for CudaBackend<D> {
    type Mark = D::Mark;

    fn mark(&mut self) -> Result<D::Mark, KernelError> {
        let (device, steps) = self.device_and_steps();
        steps.start()?;
        device.mark().map_err(failed(device, 0, "a mark"))
    }

    fn follow(&mut self, mark: &D::Mark) -> Result<(), KernelError> {
        let (device, steps) = self.device_and_steps();
        steps.start()?;
        device.follow(mark).map_err(failed(device, 0, "a mark"))
    }

    fn take_columns(
        &mut self,
        x: &CudaBuffer<D>,
        columns: Range<usize>,
        out: &mut CudaBuffer<D>,
        first: usize,
    ) -> Result<(), KernelError> {
        let (device, steps) = self.device_and_steps();
        let ((from, x_rows, x_cols), (to, out_rows, out_cols)) = (x.extent(), out.extent());
        let rows = steps.rows();
        assert!(
            rows <= x_rows && rows <= out_rows,
            "buffers of {x_rows} and {out_rows} rows, the batch {rows}"
        );
        assert!(columns.end <= x_cols && first + columns.len() <= out_cols, "columns that are not there");
        steps.start()?;
        let copied = Columns {
            from: (from.address().offset(4 * columns.start), 4 * x_cols),
            to: (to.address().offset(4 * first), 4 * out_cols),
            bytes: 4 * columns.len(),
            rows,
        };
        // SAFETY: within both, as the lines above assert; the step holds them, and the contract has the rows that are read stay.
        let done = unsafe { device.copy_columns(from.device(), &copied) };
        done.map_err(failed(device, copied.bytes * rows, "rows of another device"))?;
        steps.hold([from, to]);
        Ok(())
    }
}
