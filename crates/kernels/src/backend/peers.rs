//! What devices need that compute each layer together, besides [`Backend`]: to copy each other's rows. A trait of its own, so that
//! a device may begin with working alone.

use std::ops::Range;

use super::Backend;
use crate::KernelError;

/// A device that copies rows of others of its kind.
pub trait Peers: Backend {
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

    /// `out[r][first..] = x[r][columns]` of the open batch's rows. `x` is a buffer of this device, or of another that has the same
    /// batch: then this one [follows](Peers::follow) a mark behind what wrote it, and it is not written anew before its own device
    /// follows one behind this.
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
