//! What devices need that compute each layer together, besides [`Backend`]: to copy each other's rows. A trait of its own, so that
//! a device may begin with working alone.

use std::ops::Range;

use super::Backend;
use crate::KernelError;

/// A device that copies rows of others of its kind. The host has them wait for each other by marks; or they are [acquainted](Peers::acquaint),
/// and [meet](Peers::meet) by themselves.
pub trait Peers: Backend + Sized {
    /// A place in the order of what one device was asked for.
    type Mark: Send;

    /// A mark behind all that was asked for until now, which begins to be computed.
    ///
    /// # Errors
    /// The device's.
    fn mark(&mut self) -> Result<Self::Mark, KernelError>;

    /// Has what is asked for from here on wait for a mark of another device. The host does not wait.
    ///
    /// # Errors
    /// The device's.
    fn follow(&mut self, mark: &Self::Mark) -> Result<(), KernelError>;

    /// Has devices find ways to each other's memory, in the order of these, once they have [reserved](Backend::reserve) what steps need:
    /// whether they have all found them. What they are asked for from then on waits for no mark.
    ///
    /// # Errors
    /// A device's.
    fn acquaint(_ranks: &mut [&mut Self]) -> Result<bool, KernelError> {
        Ok(false)
    }

    /// An op of devices that are acquainted, which each of them is asked for as often: what all of them were asked for before is done before
    /// what any is asked for behind it. It waits for others on the device, so all must be [begun](Peers::start) before the host waits for one.
    ///
    /// # Panics
    /// Where they are not.
    fn meet(&mut self) {
        unreachable!("devices that are not acquainted do not meet");
    }

    /// Begins what was asked for.
    ///
    /// # Errors
    /// The device's.
    fn start(&self) -> Result<(), KernelError>;

    /// `out[r][first..] = x[r][columns]` of the open batch's rows. `x` is a buffer of this device, or of another that has the same
    /// batch: then this one [follows](Peers::follow) a mark behind what wrote it, or has [met](Peers::meet) its device since; and it is not
    /// written anew before its own device follows one behind this, or meets this one again.
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
