//! The only file that names both the wire's types and the engine's: [`request`] from the wire, [`reply`] to it.

pub(crate) mod embed;
pub(crate) mod reply;
pub(crate) mod request;
