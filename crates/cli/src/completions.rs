//! `completions`: prints a completion script for a shell, generated from the definition of the command line.

use crate::args::{Cli, CompletionsArgs};
use crate::error::CliError;
use clap::CommandFactory;
use hanzo_engine_process::documents;
use std::io::{Write, stdout};

/// Prints the script.
pub(crate) fn completions(args: CompletionsArgs) -> Result<(), CliError> {
    if let Some(dir) = &args.write_documents {
        let failed = |source| CliError::Path { path: dir.clone(), source };
        return documents::write(Cli::command(), dir).map_err(failed);
    }
    let Some(shell) = args.shell else { return Ok(()) };
    // Via memory, because the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hanzo-engine", &mut script);
    stdout().lock().write_all(&script).map_err(CliError::Output)
}
