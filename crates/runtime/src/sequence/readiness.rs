//! Whether a sequence may have a row in the next step.

use super::Sequence;
use crate::output::Purpose;

impl Sequence {
    /// Whether the mask of its next token is being computed in the background.
    pub fn awaits_mask(&self) -> bool {
        matches!(&self.purpose, Purpose::Generate(generation) if generation.awaits_mask())
    }

    /// Whether it may have a row in the next step: it is not paused, and needs nothing else first.
    pub fn may_run(&self) -> bool {
        let waits_for_mask = self.remaining() == 1 && self.awaits_mask();
        !self.held && !self.fetching && !waits_for_mask
    }
}
