//! Error of an answer that cannot go on.

/// Failure of a matcher: its grammar became too complex, or a token was not allowed. The matcher cannot be used
/// any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the constraint cannot be followed any further: {0}")]
pub struct Stuck(pub(crate) String);
