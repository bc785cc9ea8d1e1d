//! What an error says of the daemon that it came from, and whether another may be asked instead. Only what has been
//! shown nobody is asked again, and what a daemon itself has refused is not held against it.

use std::{error::Error, io};

use tonic::{Code, ConnectError, Status, TimeoutExpired};

use super::report::Has;
use crate::limits::{ATTEMPTS_MAX, LOST_MAX};

/// Why another daemon may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// There was no connection: it has not been asked.
    Unreached,
    /// The connection broke: it may have begun, and it may be the request that ended it.
    Lost,
    /// It takes this request no more or not now: it drains, loads, or wants another key of this gateway.
    Refused,
    /// It has no room.
    Full,
    /// It knows no such model.
    NotFound,
}

impl Again {
    /// As `retries_total` says it.
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

    /// Why another daemon may answer what this one has answered so; None: none would say otherwise, or it is not to be tried.
    pub(crate) fn of(status: &Status) -> Option<Again> {
        if let Some(source) = status.source() {
            // What the engine sent has no cause; a connection's failure has.
            let chain =
                std::iter::successors(Some(source), |error: &&'_ (dyn Error + 'static)| (*error).source());
            let mut again = Again::Lost;
            for error in chain {
                if error.is::<TimeoutExpired>() {
                    return None;
                }
                // Whatever kept a connection from being made, nothing was asked by it.
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

/// Whether a daemon has not answered at all: it is not there, or no more.
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

/// What has been tried for one request.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) tried: Vec<u64>, // members' ids
    asked: usize,               // of which so many had a connection
    lost: u32,
    /// The worst place of the model that another may still have it in.
    pub(super) has_max: Option<Has>,
    /// What the last one said that said anything.
    said: Option<Status>,
}

impl Attempts {
    /// Whether another may be asked after this answer of one that was known to have the model so.
    pub(super) fn again(&mut self, status: &Status, has: Has) -> Option<Again> {
        let again = Again::of(status)?;
        // An attempt that met no connection has cost nothing.
        self.asked += usize::from(again != Again::Unreached);
        match again {
            Again::Lost => {
                self.lost += 1;
                if self.lost > LOST_MAX {
                    return None;
                }
            }
            // No other is made to load what this one has loaded.
            Again::Full => self.has_max = Some(has),
            // One that was known to have it, and now says otherwise, knows best what else there is.
            Again::NotFound if has != Has::Nothing => return None,
            Again::Unreached | Again::Refused | Again::NotFound => {}
        }
        (self.asked < ATTEMPTS_MAX).then_some(again)
    }

    /// That answer was not the last.
    pub(super) fn keep(&mut self, again: Again, status: Status) {
        // What an engine has said tells more than that one was not there.
        if self.said.is_none() || !matches!(again, Again::Unreached | Again::Lost) {
            self.said = Some(status);
        }
    }

    /// What is answered where no other can be asked.
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
