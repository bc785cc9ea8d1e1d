//! Inter-device communication for tensor parallelism. It is a separate trait, so that a device may first support
//! working alone.

use std::ops::Range;

use super::Backend;
use crate::KernelError;

/// Device that copies rows from other devices of its kind. Devices wait for each other either by marks (events) that
/// the host passes on, or by [barriers](Peers::meet) on the device after [`Peers::acquaint`].
pub trait Peers: Backend + Sized {
    /// Event in a device's queue: a position in the order of the work given to it.
    type Mark: Send;

    /// Records an event after all work given to the device so far, and starts that work.
    ///
    /// # Errors
    /// The device's.
    fn mark(&mut self) -> Result<Self::Mark, KernelError>;

    /// Makes all later work of this device wait for another device's event. The host does not wait.
    ///
    /// # Errors
    /// The device's.
    fn follow(&mut self, mark: &Self::Mark) -> Result<(), KernelError>;

    /// Enables peer access between the devices, in the order of these ranks, after they have
    /// [reserved](Backend::reserve) their scratch memory. Returns whether every device can access the memory of every
    /// other. If so, later work needs no marks.
    ///
    /// # Errors
    /// A device's.
    fn acquaint(_ranks: &mut [&mut Self]) -> Result<bool, KernelError> {
        Ok(false)
    }

    /// Device-side barrier between devices with peer access. All ranks must enqueue it the same number of times: work
    /// before it is done on all of them before work after it begins on any. The barrier waits on the device, so all
    /// ranks must be [started](Peers::start) before the host waits for one.
    ///
    /// # Panics
    /// If [`Peers::acquaint`] did not succeed.
    fn meet(&mut self) {
        unreachable!("devices that are not acquainted do not meet");
    }

    /// Starts the work given to the device so far.
    ///
    /// # Errors
    /// The device's.
    fn start(&self) -> Result<(), KernelError>;

    /// `out[r][first..] = x[r][columns]` for the open batch's rows. `x` is a buffer of this device, or of another
    /// device with the same batch. In the latter case this device must have [followed](Peers::follow) a mark after the
    /// op that wrote it, or have [met](Peers::meet) its device since. The other device must not overwrite it before
    /// following a mark after this op, or meeting this device again.
    ///
    /// # Errors
    /// The device's.
    fn take_columns(
        &mut self,
        x: &Self::Buffer,
        columns: Range<usize>,
        out: &mut Self::Buffer,
        first: usize,
    ) -> Result<(), KernelError>;
}
