//! Control of models over HTTP, thin over gRPC: `POST /v1/models/load`, `/v1/models/unload` and `/v1/models/pull`, and
//! `DELETE /v1/models/{id}`. All are the operator's: a key without the admin scope is refused.

pub(crate) mod load;
pub(crate) mod progress;
pub(crate) mod pull;
pub(crate) mod remove;
