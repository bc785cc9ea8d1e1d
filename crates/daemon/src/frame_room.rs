//! Memory limit for prepared pictures, which are kept until their requests end. Many requests may queue before a
//! model, and each may bring hundreds of megabytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::FRAME_BYTES_MAX;

/// Granularity of the limit, because a semaphore's permits are limited to 32 bits.
const UNIT_BYTES: usize = 1 << 10;
const UNITS: usize = FRAME_BYTES_MAX / UNIT_BYTES;
const _: () = assert!(UNITS > 0 && UNITS <= u32::MAX as usize);

/// Memory for pictures of one model's requests.
#[derive(Debug)]
pub(crate) struct FrameRoom(Arc<Semaphore>);

/// Reserved memory, released on drop.
#[derive(Debug)]
pub(crate) struct FrameReservation {
    _room: OwnedSemaphorePermit,
}

impl FrameRoom {
    /// Creates the limit with all memory free.
    pub(crate) fn new() -> FrameRoom {
        FrameRoom(Arc::new(Semaphore::new(UNITS)))
    }

    /// Reserves memory for this many bytes; `None` if other requests hold it. A request that needs more than the
    /// limit may run alone.
    pub(crate) fn hold(&self, bytes: usize) -> Option<FrameReservation> {
        let units = bytes.div_ceil(UNIT_BYTES).min(UNITS) as u32;
        let room = Arc::clone(&self.0).try_acquire_many_owned(units).ok()?;
        Some(FrameReservation { _room: room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_not_given_again_until_it_is_dropped() {
        let room = FrameRoom::new();
        let (most, few) = (room.hold(FRAME_BYTES_MAX - UNIT_BYTES), room.hold(1));
        assert!(most.is_some() && few.is_some());
        assert!(room.hold(1).is_none());
        assert!(room.hold(0).is_some(), "who has no pictures never waits for who has");
        drop(few);
        assert!(room.hold(UNIT_BYTES + 1).is_none());
        drop(most);
        let all = room.hold(usize::MAX);
        assert!(all.is_some() && room.hold(1).is_none());
    }
}
