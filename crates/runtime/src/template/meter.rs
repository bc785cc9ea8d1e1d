//! What a template's program may use up: steps, and bytes of all the values it makes. An operation is charged for
//! what it touches before it allocates or loops, so that no single one of them can take the time or the memory
//! that all together may.

use std::cell::Cell;

use crate::limits::{TEMPLATE_BYTES_MAX, TEMPLATE_STEPS_MAX};

/// Bytes that are read or copied in about the time of a step.
const BYTES_PER_STEP: u64 = 64;
/// Steps between two looks at whether anybody still waits for the prompt.
const STEPS_PER_POLL: u64 = 8192;

/// Why a run ended without a prompt.
#[derive(Debug)]
pub(super) enum Fault {
    /// The words the template refused the conversation with.
    Raised(String),
    /// An operation that cannot be done.
    Failed(String),
    /// The program asks for the date, and none was given.
    NoDate,
    /// Too many steps.
    Steps,
    /// Too many bytes of values.
    Bytes(u64),
    /// Too long a prompt.
    Output,
    /// Whoever asked for the prompt wants it no more.
    Interrupted,
}

/// A result of anything that a template's program does.
pub(super) type Outcome<T> = Result<T, Box<Fault>>;

/// An operation that cannot be done.
#[cold]
pub(super) fn fail<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Box::new(Fault::Failed(why.into())))
}

/// What is left of one run's steps and bytes.
pub(super) struct Meter<'a> {
    steps_left: Cell<u64>,
    poll_at: Cell<u64>,
    bytes_left: Cell<u64>,
    bytes_max: u64,
    interrupted: &'a dyn Fn() -> bool,
}

impl<'a> Meter<'a> {
    /// For a conversation of so many bytes: a long one may be copied as often as a short one.
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

    /// Charges for so many simple operations.
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

    /// Charges for looking at so many bytes.
    #[inline]
    pub(super) fn scan(&self, bytes: usize) -> Outcome<()> {
        self.steps(1 + bytes as u64 / BYTES_PER_STEP)
    }

    /// Charges for making so many bytes.
    #[inline]
    pub(super) fn bytes(&self, count: usize) -> Outcome<()> {
        match self.bytes_left.get().checked_sub(count as u64) {
            Some(left) => self.bytes_left.set(left),
            None => return Err(Box::new(Fault::Bytes(self.bytes_max))),
        }
        if count as u64 >= BYTES_PER_STEP { self.steps(count as u64 / BYTES_PER_STEP) } else { Ok(()) }
    }

    /// Charges for making so many values inside a list.
    #[inline]
    pub(super) fn values(&self, count: usize) -> Outcome<()> {
        self.bytes(count.saturating_mul(size_of::<super::value::Value>()))?;
        self.steps(count as u64)
    }
}
