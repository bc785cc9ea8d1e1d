//! Logging: one subscriber for the process, to standard error. Its level can be set anew while it runs.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, LogConfig, LogFormat};

/// The level of what is logged.
pub struct LogLevel(Box<dyn Fn(EnvFilter) -> bool + Send + Sync>);

/// Starts logging. Of several calls in one process the first holds.
///
/// # Errors
/// [`ConfigError::Value`] when the level is none.
pub fn init(config: &LogConfig) -> Result<LogLevel, ConfigError> {
    let filter = filter(&config.level)?;
    let stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
    // An embedding program may have started its own.
    let level = match config.format {
        LogFormat::Pretty => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
            let handle = lines.reload_handle();
            let _ = lines.try_init();
            LogLevel(Box::new(move |filter| handle.reload(filter).is_ok()))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            let _ = lines.try_init();
            LogLevel(Box::new(move |filter| handle.reload(filter).is_ok()))
        }
    };
    Ok(level)
}

impl LogLevel {
    /// Sets it.
    ///
    /// # Errors
    /// [`ConfigError::Value`] when the level is none; it stays what it was.
    pub fn set(&self, level: &str) -> Result<(), ConfigError> {
        let reason = "this program's logging is another's";
        let set = (self.0)(filter(level)?);
        set.then_some(()).ok_or_else(|| ConfigError::Value { key: "log.level", reason: reason.to_owned() })
    }
}

/// Whether it is a level.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn check(level: &str) -> Result<(), ConfigError> {
    filter(level).map(drop)
}

fn filter(level: &str) -> Result<EnvFilter, ConfigError> {
    // The library of MCP tells of each message, and that of sounds takes what a client sent for an error of its own.
    let quiet =
        [("rmcp", "error"), ("symphonia", "off")].into_iter().filter(|(library, _)| !level.contains(library));
    let quiet =
        quiet.fold(level.to_owned(), |filter, (library, level)| format!("{filter},{library}={level}"));
    EnvFilter::try_new(quiet)
        .map_err(|error| ConfigError::Value { key: "log.level", reason: error.to_string() })
}
