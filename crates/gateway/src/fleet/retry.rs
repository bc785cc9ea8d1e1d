//! Classification of errors: whether another daemon may be asked instead. A request is retried only if the
//! client has received nothing of the answer. A refusal does not count as the daemon's fault.

use std::{error::Error, io};

use tonic::{Code, ConnectError, Status, TimeoutExpired};

use super::report::Has;
use crate::limits::{ATTEMPTS_MAX, LOST_MAX};

/// Reason why another daemon may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// No connection: the daemon has not received the request.
    Unreached,
    /// The connection broke: the request may have started, and may even be the cause.
    Lost,
    /// The daemon does not take this request now: it drains, loads, or rejects this gateway's key.
    Refused,
    /// Its queue is full.
    Full,
    /// The daemon does not know the model.
    NotFound,
}

impl Again {
    /// Labels in `retries_total`.
    pub(super) const WORDS: [&'static str; 5] = ["unreached", "lost", "refused", "full", "not_found"];

    pub(super) fn word(self) -> &'static str {
        match self {
            Again::Unreached => "unreached",
            Again::Lost => "lost",
            Again::Refused => "refused",
            Again::Full => "full",
            Again::NotFound => "not_found",
        }
    }

    /// Reason to ask another daemon after this status. None: another one would answer the same, or must not be
    /// tried.
    pub(crate) fn of(status: &Status) -> Option<Again> {
        if let Some(source) = status.source() {
            // A failed connection has a source; a status sent by the engine has none.
            let chain =
                std::iter::successors(Some(source), |error: &&'_ (dyn Error + 'static)| (*error).source());
            let mut again = Again::Lost;
            for error in chain {
                if error.is::<TimeoutExpired>() {
                    return None;
                }
                // Without a connection, nothing was sent.
                let not_connected = error.is::<ConnectError>()
                    || error.downcast_ref::<io::Error>().is_some_and(|error| unreached(error.kind()));
                if not_connected {
                    again = Again::Unreached;
                }
            }
            return Some(again);
        }
        let too_large =
            status.metadata().get("error-code").is_some_and(|code| code.as_bytes() == b"message_too_large");
        match status.code() {
            Code::Unavailable | Code::Unauthenticated => Some(Again::Refused),
            Code::ResourceExhausted if !too_large => Some(Again::Full),
            Code::NotFound => Some(Again::NotFound),
            _ => None,
        }
    }
}

/// Whether the daemon was unreachable or its connection broke.
pub(super) fn is_gone(status: &Status) -> bool {
    matches!(Again::of(status), Some(Again::Unreached | Again::Lost))
}

fn unreached(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as E;
    matches!(
        kind,
        E::ConnectionRefused | E::NotFound | E::HostUnreachable | E::NetworkUnreachable | E::AddrNotAvailable
    )
}

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
    pub(super) fn again(&mut self, status: &Status, has: Has) -> Option<Again> {
        let again = Again::of(status)?;
        // An attempt without a connection has cost nothing.
        self.asked += usize::from(again != Again::Unreached);
        match again {
            Again::Lost => {
                self.lost += 1;
                if self.lost > LOST_MAX {
                    return None;
                }
            }
            // A full daemon must not cause another one to load the same model.
            Again::Full => self.has_max = Some(has),
            // A daemon that was known to have the model is the authority about it.
            Again::NotFound if has != Has::Nothing => return None,
            Again::Unreached | Again::Refused | Again::NotFound => {}
        }
        (self.asked < ATTEMPTS_MAX).then_some(again)
    }

    /// Keeps the status of a failed attempt.
    pub(super) fn keep(&mut self, again: Again, status: Status) {
        // An answer of an engine tells more than a missing connection.
        if self.said.is_none() || !matches!(again, Again::Unreached | Again::Lost) {
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
    use super::*;

    #[test]
    fn another_is_asked_where_it_may_say_otherwise() {
        use Code as C;
        for (code, again) in [
            (C::Unavailable, Some(Again::Refused)),
            (C::Unauthenticated, Some(Again::Refused)),
            (C::ResourceExhausted, Some(Again::Full)),
            (C::NotFound, Some(Again::NotFound)),
            (C::InvalidArgument, None),
            (C::Internal, None),
            (C::Unknown, None),
            (C::DeadlineExceeded, None),
            (C::Cancelled, None),
            (C::FailedPrecondition, None),
        ] {
            assert_eq!(Again::of(&Status::new(code, "x")), again, "{code:?}");
        }
        let mut large = Status::resource_exhausted("x");
        large.metadata_mut().insert("error-code", "message_too_large".parse().unwrap());
        assert_eq!(Again::of(&large), None);
        let of_io = |kind| Status::from_error(Box::new(io::Error::new(kind, "x")));
        assert_eq!(Again::of(&of_io(io::ErrorKind::ConnectionRefused)), Some(Again::Unreached));
        assert_eq!(Again::of(&of_io(io::ErrorKind::ConnectionReset)), Some(Again::Lost));
        assert_eq!(Again::of(&Status::from_error(Box::new(TimeoutExpired(())))), None);
    }

    #[test]
    fn a_request_that_may_end_daemons_does_not_go_round() {
        let lost = Status::from_error(Box::new(io::Error::new(io::ErrorKind::ConnectionReset, "x")));
        let mut attempts = Attempts::default();
        for _ in 0..LOST_MAX {
            assert_eq!(attempts.again(&lost, Has::Ready), Some(Again::Lost));
        }
        assert_eq!(attempts.again(&lost, Has::Ready), None);
        let mut attempts = Attempts::default();
        let unreached = Status::from_error(Box::new(io::Error::new(io::ErrorKind::ConnectionRefused, "x")));
        for _ in 0..2 * ATTEMPTS_MAX {
            assert_eq!(attempts.again(&unreached, Has::Ready), Some(Again::Unreached), "nothing was asked");
        }
        for _ in 1..ATTEMPTS_MAX {
            assert_eq!(attempts.again(&Status::unavailable("x"), Has::Ready), Some(Again::Refused));
        }
        assert_eq!(attempts.again(&Status::unavailable("x"), Has::Ready), None);
        let mut attempts = Attempts::default();
        assert_eq!(attempts.again(&Status::not_found("x"), Has::Ready), None);
        assert_eq!(attempts.again(&Status::not_found("x"), Has::Nothing), Some(Again::NotFound));
        attempts.again(&Status::resource_exhausted("x"), Has::Ready);
        assert_eq!(attempts.has_max, Some(Has::Ready));
    }

    #[test]
    fn what_an_engine_said_is_told_before_that_one_was_not_there() {
        let mut attempts = Attempts::default();
        attempts.keep(Again::Full, Status::resource_exhausted("full"));
        attempts.keep(Again::Lost, Status::unknown("gone"));
        assert_eq!(attempts.said().unwrap().message(), "full");
    }
}
