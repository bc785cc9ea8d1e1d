//! Room for the frames of pictures, which are kept as they were prepared until their requests end: so many requests wait
//! before a model, and one of them may bring hundreds of megabytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::FRAME_BYTES_MAX;

/// In what it is given out: a semaphore's counts are of 32 bits.
const UNIT_BYTES: usize = 1 << 10;
const UNITS: usize = FRAME_BYTES_MAX / UNIT_BYTES;
const _: () = assert!(UNITS > 0 && UNITS <= u32::MAX as usize);

/// The room of one model's requests.
#[derive(Debug)]
pub(crate) struct FrameRoom(Arc<Semaphore>);

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    _room: OwnedSemaphorePermit,
}

impl FrameRoom {
    /// All of it is free.
    pub(crate) fn new() -> FrameRoom {
        FrameRoom(Arc::new(Semaphore::new(UNITS)))
    }

    /// Room for so many bytes; `None` where others have it. A request that takes more than all of it may run alone.
    pub(crate) fn hold(&self, bytes: usize) -> Option<Held> {
        let units = bytes.div_ceil(UNIT_BYTES).min(UNITS) as u32;
        let room = Arc::clone(&self.0).try_acquire_many_owned(units).ok()?;
        Some(Held { _room: room })
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
