//! Conversion between the wire's types and the engine's, which no other folder names together: [`request`] from the
//! wire, [`reply`] to it, [`store`] for pulls and the store.

pub(crate) mod client;
pub(crate) mod embed;
pub(crate) mod job;
mod media;
mod override_config;
pub(crate) mod overrides;
pub(crate) mod reply;
pub(crate) mod request;
mod sampling;
pub(crate) mod speech;
pub(crate) mod store;
mod topology;
