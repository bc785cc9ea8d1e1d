//! HTTP gateway of Hanzo Engine: OpenAI's API, Anthropic's messages, Ollama's API, and embeddings and reranking
//! in the formats of TEI, Jina, Cohere and vLLM, over the gRPC contract `hanzo.engine.v1`.
//!
//! It keeps no state between requests, except responses that clients may ask for again (`response_store`),
//! and knows nothing about models. It validates requests, converts them, and converts the events of the answer.
//! [`Gateway`] is the server, [`Config`] its settings.
//!
//! A request passes `routes` → `track` (id, metrics, admission) → `body` (bytes to `json`, within the memory of
//! `bodies`) → `openai::chat` or `openai::completions` (fields to a `plan`) → `openai::generation` (gRPC
//! events) → `openai::sse` or one JSON answer. Embeddings pass `vectors::inputs` → `vectors::calls` (several
//! gRPC calls) → `vectors::response`. Scores are in `scores`, TEI's routes in `tei`, and fields that all
//! requests share in `request`.

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
mod cloud_settings;
mod config;
mod cors;
mod current_settings;
mod declare;
mod drain;
mod engine;
mod error;
mod fields;
mod fleet;
mod forward;
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
mod media_url;
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
mod progress;
mod query;
mod quota;
mod read_deadline;
mod record;
mod reload;
mod request;
mod request_id;
mod request_trace;
mod response_store;
mod responses;
mod retry_reason;
mod routes;
mod scores;
mod select;
mod silence;
mod sounds;
mod status;
mod surface;
mod tei;
mod tokens;
mod track;
mod unsupported;
mod until;
mod vectors;

pub use audio::subtitles;
pub use carrier::{LocalEngine, LocalInfer};
pub use config::{Config, LogFormat};
pub use error::GatewayError;
pub use fleet::{Resolve, SystemResolver};
pub use gateway::Gateway;
pub use mcp::serve_stdio;
pub use probe::{Probe, ProbeError, Serves};
pub use reload::Reload;
pub use status::capability_word;
