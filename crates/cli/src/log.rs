//! The log of a process that serves: on stderr, so that stdout stays the command's own output.

use crate::error::CliError;
use hanzo_engine_daemon::LogFormat;
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Starts logging at `level`: a level, or a filter such as `info,hanzo_engine_daemon=debug`. Once for a process.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Start(format!("log level {level:?}: {error}"));
    let filter = EnvFilter::try_new(level).map_err(|error| failed(&error))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    let started = match format {
        LogFormat::Json => log.json().try_init(),
        LogFormat::Pretty => log.with_ansi(stderr().is_terminal()).try_init(),
    };
    started.map_err(|error| failed(&error))
}
