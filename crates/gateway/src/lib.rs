//! The HTTP gateway of Hanzo Engine: the OpenAI API, and what embeds and ranks in the shapes of TEI, Jina, Cohere
//! and vLLM, over the gRPC contract `hanzo.engine.v1`.
//!
//! It keeps no state between requests and knows nothing of models; it checks requests, changes their shape,
//! and changes the events that come back. [`Gateway`] is the server, [`Config`] its settings. A request goes
//! `track` (id, metrics, admission) → `body` (bytes to `json`, in the room that `bodies` has for them) → `openai::chat` or `openai::completions` (fields
//! to a plan, by `openai::convert`) → `openai::generation` (gRPC events) → `openai::sse` or one JSON answer. Vectors
//! go `vectors::convert` → `vectors::calls` (several gRPC calls) → `vectors::answer`; what is asked for scores is in
//! `scores`, TEI's routes in `tei`.

mod answers;
mod app;
mod bodies;
mod body;
mod config;
mod convert;
mod drain;
mod engine;
mod error;
mod fields;
mod gateway;
mod hosts;
mod json;
mod limits;
mod metrics;
mod names;
mod openai;
mod ops;
mod peer;
mod request_id;
mod scores;
mod select;
mod tei;
mod tokens;
mod track;
mod until;
mod vectors;

pub use config::Config;
pub use engine::LocalEngine;
pub use gateway::{Gateway, GatewayError};
