//! Model management over HTTP, as thin wrappers of gRPC: `POST /v1/models/load`, `/v1/models/unload` and
//! `/v1/models/pull`, and `DELETE /v1/models/{id}`. All need the admin scope.

pub(crate) mod load;
pub(crate) mod pull;
pub(crate) mod remove;
