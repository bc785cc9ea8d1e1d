//! Attempts of a request: whether another daemon may be asked after a failure. A request is retried only if the
//! client has received nothing of the answer.

use tonic::Status;

use super::report::Has;
use crate::{
    limits::{ATTEMPTS_MAX, LOST_MAX},
    retry_reason::RetryReason,
};

/// Attempts made for one request.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) tried: Vec<u64>, // ids of members
    asked: usize,               // attempts that had a connection
    lost: u32,
    /// Worst state of the model that the next daemon may have.
    pub(super) has_max: Option<Has>,
    /// Most informative answer so far.
    said: Option<Status>,
}

impl Attempts {
    /// Whether another daemon may be asked after this status of one that was known to have the model in state
    /// `has`.
    pub(super) fn again(&mut self, status: &Status, has: Has) -> Option<RetryReason> {
        let again = RetryReason::of(status)?;
        // An attempt without a connection has cost nothing.
        self.asked += usize::from(again != RetryReason::Unreached);
        match again {
            RetryReason::Lost => {
                self.lost += 1;
                if self.lost > LOST_MAX {
                    return None;
                }
            }
            // A full daemon must not cause another one to load the same model.
            RetryReason::Full => self.has_max = Some(has),
            // A daemon that was known to have the model is the authority about it.
            RetryReason::NotFound if has != Has::Nothing => return None,
            RetryReason::Unreached | RetryReason::Refused | RetryReason::NotFound => {}
        }
        (self.asked < ATTEMPTS_MAX).then_some(again)
    }

    /// Keeps the status of a failed attempt.
    pub(super) fn keep(&mut self, again: RetryReason, status: Status) {
        // An answer of an engine tells more than a missing connection.
        if self.said.is_none() || !matches!(again, RetryReason::Unreached | RetryReason::Lost) {
            self.said = Some(status);
        }
    }

    /// Status to answer with if no other daemon can be asked.
    pub(super) fn said(self) -> Option<Status> {
        self.said
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_request_that_may_end_daemons_does_not_go_round() {
        let lost = Status::from_error(Box::new(io::Error::new(io::ErrorKind::ConnectionReset, "x")));
        let mut attempts = Attempts::default();
        for _ in 0..LOST_MAX {
            assert_eq!(attempts.again(&lost, Has::Ready), Some(RetryReason::Lost));
        }
        assert_eq!(attempts.again(&lost, Has::Ready), None);
        let mut attempts = Attempts::default();
        let unreached = Status::from_error(Box::new(io::Error::new(io::ErrorKind::ConnectionRefused, "x")));
        for _ in 0..2 * ATTEMPTS_MAX {
            assert_eq!(
                attempts.again(&unreached, Has::Ready),
                Some(RetryReason::Unreached),
                "nothing was asked"
            );
        }
        for _ in 1..ATTEMPTS_MAX {
            assert_eq!(attempts.again(&Status::unavailable("x"), Has::Ready), Some(RetryReason::Refused));
        }
        assert_eq!(attempts.again(&Status::unavailable("x"), Has::Ready), None);
        let mut attempts = Attempts::default();
        assert_eq!(attempts.again(&Status::not_found("x"), Has::Ready), None);
        assert_eq!(attempts.again(&Status::not_found("x"), Has::Nothing), Some(RetryReason::NotFound));
        attempts.again(&Status::resource_exhausted("x"), Has::Ready);
        assert_eq!(attempts.has_max, Some(Has::Ready));
    }

    #[test]
    fn what_an_engine_said_is_told_before_that_one_was_not_there() {
        let mut attempts = Attempts::default();
        attempts.keep(RetryReason::Full, Status::resource_exhausted("full"));
        attempts.keep(RetryReason::Lost, Status::unknown("gone"));
        assert_eq!(attempts.said().unwrap().message(), "full");
    }
}
