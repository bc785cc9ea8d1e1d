//! Classification of errors: whether another daemon may be asked instead. A refusal does not count as the
//! daemon's fault.

use std::{error::Error, io};

use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// Reason why another daemon may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryReason {
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

impl RetryReason {
    /// Labels in `retries_total`.
    pub(crate) const WORDS: [&'static str; 5] = ["unreached", "lost", "refused", "full", "not_found"];

    pub(crate) fn word(self) -> &'static str {
        match self {
            RetryReason::Unreached => "unreached",
            RetryReason::Lost => "lost",
            RetryReason::Refused => "refused",
            RetryReason::Full => "full",
            RetryReason::NotFound => "not_found",
        }
    }

    /// Reason to ask another daemon after this status. None: another one would answer the same, or must not be
    /// tried.
    pub(crate) fn of(status: &Status) -> Option<RetryReason> {
        if let Some(source) = status.source() {
            // A failed connection has a source; a status sent by the engine has none.
            let chain =
                std::iter::successors(Some(source), |error: &&'_ (dyn Error + 'static)| (*error).source());
            let mut again = RetryReason::Lost;
            for error in chain {
                if error.is::<TimeoutExpired>() {
                    return None;
                }
                // Without a connection, nothing was sent.
                let not_connected = error.is::<ConnectError>()
                    || error.downcast_ref::<io::Error>().is_some_and(|error| unreached(error.kind()));
                if not_connected {
                    again = RetryReason::Unreached;
                }
            }
            return Some(again);
        }
        let too_large =
            status.metadata().get("error-code").is_some_and(|code| code.as_bytes() == b"message_too_large");
        match status.code() {
            Code::Unavailable | Code::Unauthenticated => Some(RetryReason::Refused),
            Code::ResourceExhausted if !too_large => Some(RetryReason::Full),
            Code::NotFound => Some(RetryReason::NotFound),
            _ => None,
        }
    }
}

/// Whether the daemon was unreachable or its connection broke.
pub(crate) fn is_gone(status: &Status) -> bool {
    matches!(RetryReason::of(status), Some(RetryReason::Unreached | RetryReason::Lost))
}

fn unreached(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as E;
    matches!(
        kind,
        E::ConnectionRefused | E::NotFound | E::HostUnreachable | E::NetworkUnreachable | E::AddrNotAvailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_is_asked_where_it_may_say_otherwise() {
        use Code as C;
        for (code, again) in [
            (C::Unavailable, Some(RetryReason::Refused)),
            (C::Unauthenticated, Some(RetryReason::Refused)),
            (C::ResourceExhausted, Some(RetryReason::Full)),
            (C::NotFound, Some(RetryReason::NotFound)),
            (C::InvalidArgument, None),
            (C::Internal, None),
            (C::Unknown, None),
            (C::DeadlineExceeded, None),
            (C::Cancelled, None),
            (C::FailedPrecondition, None),
        ] {
            assert_eq!(RetryReason::of(&Status::new(code, "x")), again, "{code:?}");
        }
        let mut large = Status::resource_exhausted("x");
        large.metadata_mut().insert("error-code", "message_too_large".parse().unwrap());
        assert_eq!(RetryReason::of(&large), None);
        let of_io = |kind| Status::from_error(Box::new(io::Error::new(kind, "x")));
        assert_eq!(RetryReason::of(&of_io(io::ErrorKind::ConnectionRefused)), Some(RetryReason::Unreached));
        assert_eq!(RetryReason::of(&of_io(io::ErrorKind::ConnectionReset)), Some(RetryReason::Lost));
        assert_eq!(RetryReason::of(&Status::from_error(Box::new(TimeoutExpired(())))), None);
    }
}
