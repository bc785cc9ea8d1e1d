//! Output of commands on stdout: a line, a table, or JSON.

use crate::error::CliError;
use crate::table::Table;
use serde::Serialize;
use std::io::{Write, stdout};

/// Prints a table on stdout.
pub(crate) fn print_table(table: &Table) -> Result<(), CliError> {
    table.write(&mut stdout().lock()).map_err(CliError::Output)
}

/// Prints a line on stdout.
pub(crate) fn print_line(line: &str) -> Result<(), CliError> {
    writeln!(stdout().lock(), "{line}").map_err(CliError::Output)
}

/// Prints pretty JSON and a line feed.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    text.push('\n');
    stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)
}
