//! The HTTP gateway of Hanzo Engine: the OpenAI API, Anthropic's messages, Ollama's API, and what embeds and ranks in the shapes of TEI, Jina, Cohere
//! and vLLM, over the gRPC contract `hanzo.engine.v1`.
//!
//! It keeps no state between requests, but for responses that clients ask for again (`responses::store`), and knows nothing of models; it checks requests, changes their shape,
//! and changes the events that come back. [`Gateway`] is the server, [`Config`] its settings. A request goes
//! `routes` → `track` (id, metrics, admission) → `body` (bytes to `json`, in the room that `bodies` has for them) →
//! `openai::chat` or `openai::completions` (fields to a `plan`) → `openai::generation` (gRPC events) → `openai::sse` or
//! one JSON answer. Vectors go `vectors::inputs` → `vectors::calls` (several gRPC calls) → `vectors::response`; what is
//! asked for scores is in `scores`, TEI's routes in `tei`, and what the bodies of all of them have in common in `request`.

mod adapters;
mod answers;
mod anthropic;
mod app;
mod asker;
mod audio;
mod bodies;
mod body;
mod busy;
mod carrier;
mod cloud;
mod config;
mod cors;
mod drain;
mod engine;
mod error;
mod fields;
mod fleet;
#[doc(hidden)]
pub mod fuzz;
mod gateway;
mod head;
mod hosts;
mod json;
mod limits;
mod listener;
mod llamacpp;
mod mcp;
mod media_bounds;
mod media_hosts;
mod metrics;
mod models;
mod names;
mod ollama;
mod openai;
mod openapi;
mod ops;
mod page;
mod peer;
mod pictures;
mod probe;
mod query;
mod quota;
mod record;
mod reload;
mod request;
mod request_id;
mod responses;
mod routes;
mod scores;
mod select;
mod silence;
mod sounds;
mod status;
mod surface;
mod taking;
mod tei;
mod tokens;
mod track;
mod unsupported;
mod until;
mod vectors;
mod watched;

pub use audio::subtitles;
pub use carrier::LocalEngine;
pub use config::{Config, LogFormat};
pub use error::GatewayError;
pub use fleet::{Resolve, SystemResolver};
pub use gateway::Gateway;
pub use mcp::serve_stdio;
pub use probe::{Probe, ProbeError, Serves};
pub use reload::Reload;
pub use status::capability_word;
