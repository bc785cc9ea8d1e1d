//! Logging: one subscriber for the process, which writes to standard error. Its level can be changed at run time.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{ConfigError, LogConfig, LogFormat};

/// Handle to change the log level.
pub struct LogLevel(Box<dyn Fn(EnvFilter) -> bool + Send + Sync>);

/// Starts logging. Only the first call in a process has an effect.
///
/// # Errors
/// [`ConfigError::Value`] if the level is invalid.
pub fn init(config: &LogConfig) -> Result<LogLevel, ConfigError> {
    let filter = filter(&config.level)?;
    let stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
    // An embedding program may have set up logging already.
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
    /// Sets the level.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if the level is invalid; the old one stays.
    pub fn set(&self, level: &str) -> Result<(), ConfigError> {
        let reason = "this program's logging is another's";
        let set = (self.0)(filter(level)?);
        set.then_some(()).ok_or_else(|| ConfigError::Value { key: "log.level", reason: reason.to_owned() })
    }
}

/// Checks that a level is valid.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn check(level: &str) -> Result<(), ConfigError> {
    filter(level).map(drop)
}

fn filter(level: &str) -> Result<EnvFilter, ConfigError> {
    // The MCP library logs every message, and the sound library logs bad input from clients as its own error.
    let quiet =
        [("rmcp", "error"), ("symphonia", "off")].into_iter().filter(|(library, _)| !level.contains(library));
    let quiet =
        quiet.fold(level.to_owned(), |filter, (library, level)| format!("{filter},{library}={level}"));
    EnvFilter::try_new(quiet)
        .map_err(|error| ConfigError::Value { key: "log.level", reason: error.to_string() })
}
