//! `engined`: hosts models, each on its own thread, behind the gRPC service `hanzo.engine.v1`.
//!
//! Start with [`Daemon`]: it binds, loads, serves and drains. A request goes through `service/infer.rs` (finds the
//! model, takes a place in its queue, builds the prompt) into `worker.rs` (the loop around the engine). Its events
//! come back through `ticket.rs`, at most a thousand at a time. `models.rs` owns the models' life cycles,
//! `registry.rs` their visible state, `budget.rs` the memory, `convert/` the wire's types, and `error.rs` the table
//! of statuses.
//!
//! Deliberately absent: OpenAI's API shapes, HTTP other than the admin port, and anything that computes.

#![forbid(unsafe_code)]

mod adapter_loads;
mod adapters;
mod admin;
mod admission;
pub mod bench;
mod blocking;
mod budget;
mod chosen_model;
mod clock;
pub mod config;
mod constraints;
mod convert;
mod cpu;
mod daemon;
mod device;
mod device_memory;
mod device_name;
mod devices;
mod draft;
mod drain;
mod engine_factory;
mod error;
mod eviction;
mod frame_room;
#[doc(hidden)]
pub mod fuzz;
mod gpu_layers;
mod health;
mod hidden_cards;
mod hosts;
pub mod imatrix;
pub mod inspect;
#[cfg(target_os = "linux")]
mod isolated;
mod keep_alive;
mod launch;
mod limits;
mod load;
mod load_request;
mod load_waits;
pub mod log;
pub mod machine;
mod metrics;
mod models;
mod name_key;
mod nvml;
mod on_demand;
mod package_defaults;
mod ports;
mod prefix_disk;
pub mod preflight;
mod prompt;
mod prompt_builder;
mod pulls;
pub mod quantize;
mod registry;
mod reload;
mod reloadable_settings;
mod restarts;
mod served;
mod service;
pub mod signal;
mod sizing;
mod source;
mod stock;
mod sync;
mod ticket;
mod transcribe;
mod turns;
mod unix_time;
mod usage;
mod views;
mod voice_activity;
mod worker;

pub use config::{Config, ConfigError};
pub use daemon::{Daemon, DaemonError, DaemonHandle};
pub use hanzo_engine_store as store;
pub use pulls::puller;

/// Runs this process as a model's worker, if the daemon started it as one. `main` must call it first. A program
/// that does not call it must leave `engine.isolation` at `thread`.
pub fn worker_process() -> Option<std::process::ExitCode> {
    #[cfg(target_os = "linux")]
    return isolated::run_worker();
    #[cfg(not(target_os = "linux"))]
    None
}

/// Name of the model that is built into this program and can always be loaded.
pub const DEMO_MODEL: &str = "hanzo-demo";

/// GGUF file of the built-in model: a few megabytes, so that an installed binary can run something without a
/// network.
pub static DEMO_GGUF: &[u8] = include_bytes!("../../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");

#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;
