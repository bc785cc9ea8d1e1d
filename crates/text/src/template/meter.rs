//! Resource limits of a template's program: steps, and bytes of all values. An operation is charged for its work
//! before it allocates or loops. So no single operation can use more time or memory than the whole program may.

use std::cell::Cell;

use crate::limits::{TEMPLATE_BYTES_MAX, TEMPLATE_STEPS_MAX};

/// Bytes that can be read or copied in about the time of one step.
const BYTES_PER_STEP: u64 = 64;
/// Steps between two checks for interruption.
const STEPS_PER_POLL: u64 = 8192;

/// Reason why a run ended without a prompt.
#[derive(Debug)]
pub(super) enum Fault {
    /// The template refused the conversation with these words.
    Raised(String),
    /// An operation failed.
    Failed(String),
    /// The program asked for the date, but none was given.
    NoDate,
    /// Too many steps.
    Steps,
    /// Too many bytes of values; the limit.
    Bytes(u64),
    /// The prompt is too long.
    Output,
    /// The caller no longer wants the prompt.
    Interrupted,
}

/// Result of every operation of a template's program.
pub(super) type Outcome<T> = Result<T, Box<Fault>>;

/// Error of a failed operation.
#[cold]
pub(super) fn fail<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Box::new(Fault::Failed(why.into())))
}

/// Steps and bytes left for a run.
pub(super) struct Meter<'a> {
    steps_left: Cell<u64>,
    poll_at: Cell<u64>,
    bytes_left: Cell<u64>,
    bytes_max: u64,
    interrupted: &'a dyn Fn() -> bool,
}

impl<'a> Meter<'a> {
    /// Creates the meter for a conversation of `request_bytes` bytes: long ones may be copied as often as short
    /// ones.
    pub(super) fn new(request_bytes: usize, interrupted: &'a dyn Fn() -> bool) -> Self {
        let bytes_max = (TEMPLATE_BYTES_MAX as u64).saturating_add(16 * request_bytes as u64);
        Meter {
            steps_left: Cell::new(TEMPLATE_STEPS_MAX),
            poll_at: Cell::new(TEMPLATE_STEPS_MAX),
            bytes_left: Cell::new(bytes_max),
            bytes_max,
            interrupted,
        }
    }

    /// Charges for `count` simple operations.
    #[inline]
    pub(super) fn steps(&self, count: u64) -> Outcome<()> {
        match self.steps_left.get().checked_sub(count) {
            Some(left) if left > self.poll_at.get() => {
                self.steps_left.set(left);
                Ok(())
            }
            Some(left) => {
                self.steps_left.set(left);
                self.poll_at.set(left.saturating_sub(STEPS_PER_POLL));
                if (self.interrupted)() { Err(Box::new(Fault::Interrupted)) } else { Ok(()) }
            }
            None => Err(Box::new(Fault::Steps)),
        }
    }

    /// Charges for reading `bytes` bytes.
    #[inline]
    pub(super) fn scan(&self, bytes: usize) -> Outcome<()> {
        self.steps(1 + bytes as u64 / BYTES_PER_STEP)
    }

    /// Charges for creating `count` bytes.
    #[inline]
    pub(super) fn bytes(&self, count: usize) -> Outcome<()> {
        match self.bytes_left.get().checked_sub(count as u64) {
            Some(left) => self.bytes_left.set(left),
            None => return Err(Box::new(Fault::Bytes(self.bytes_max))),
        }
        if count as u64 >= BYTES_PER_STEP { self.steps(count as u64 / BYTES_PER_STEP) } else { Ok(()) }
    }

    /// Charges for creating `count` values in a list.
    #[inline]
    pub(super) fn values(&self, count: usize) -> Outcome<()> {
        self.bytes(count.saturating_mul(size_of::<super::value::Value>()))?;
        self.steps(count as u64)
    }
}
