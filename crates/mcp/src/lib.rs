//! Servers of the Model Context Protocol, whose tools are offered to models: which there are (`config`), a server that is a process of
//! its own (`child`), the life of one (`server`), and all of them with the names that models call their tools by (`servers`). What a
//! model is told of them and when it calls is the gateway's.

mod child;
mod config;
mod limits;
mod server;
mod servers;

pub use config::{ConfigError, ServerConfig, ServersConfig};
pub use limits::CALL_RESULT_BYTES_MAX;
pub use servers::{Outcome, Servers, Tool};
