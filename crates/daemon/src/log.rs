//! Logging: one subscriber for the process, to standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, LogConfig, LogFormat};

/// Starts logging. Of several calls in one process the first holds.
///
/// # Errors
/// [`ConfigError::Value`] when the level is none.
pub fn init(config: &LogConfig) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|error| ConfigError::Value { key: "log.level", reason: error.to_string() })?;
    let stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
    // An embedding program may have started its own.
    let _ = match config.format {
        LogFormat::Pretty => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}
