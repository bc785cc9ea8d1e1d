//! Client of Model Context Protocol servers, whose tools are offered to models. It consists of configuration
//! (`config`), child processes (`child`), the life of one server (`server`), and all servers with unique tool
//! names for models (`servers`). The gateway decides what a model is told of the tools and when it may call
//! them.

mod child;
mod config;
mod limits;
mod server;
mod servers;

pub use config::{ConfigError, ServerConfig, ServersConfig};
pub use limits::CALL_RESULT_BYTES_MAX;
pub use servers::{Outcome, Servers, Tool};
