//! `hanzo-engine`: the command line program. It parses the command line, runs one command, and turns its
//! outcome into an exit code: 0 ok, 1 error, 2 usage, 130 interrupted. Each command is in the file of its name.

mod adapter;
mod archive;
mod args;
mod bench;
mod byte_progress;
mod completions;
mod connect;
mod doctor;
mod embed;
mod error;
mod example;
mod health;
mod host;
mod imatrix;
mod input;
mod inspect;
mod keys;
mod load;
mod mcp;
mod missing;
mod models;
mod paths;
mod print;
mod progress_line;
mod pull;
mod quantize;
mod repl;
mod rerank;
mod run;
mod say;
mod serve;
mod session;
mod shown;
mod size;
mod storage;
mod surroundings;
mod table;
mod term;
mod transcribe;
mod view;

use args::{Cli, Command};
use clap::Parser;
use error::CliError;
use std::pin::Pin;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(ended) = hanzo_engine_daemon::worker_process() {
        return ended;
    }
    let outcome = execute(Cli::parse().command);
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let code = error.exit_code();
    if code != 0 {
        let paint = term::Paint::of(&std::io::stderr());
        term::tell(&format!("{} {}\n", paint.red("error:"), error.line()));
    }
    ExitCode::from(code)
}

fn execute(command: Command) -> Result<(), CliError> {
    match command {
        Command::Serve(args) => wait_for(serve::serve(args)),
        Command::Run(args) => wait_for(run::run(args)),
        Command::Embed(args) => wait_for(embed::embed(args)),
        Command::Rerank(args) => wait_for(rerank::rerank(args)),
        Command::Transcribe(args) => wait_for(transcribe::transcribe(args)),
        Command::Say(args) => wait_for(say::say(args)),
        Command::Pull(args) => wait_for(pull::pull(args)),
        Command::List(args) => wait_for(models::list(args)),
        Command::Show(args) => wait_for(models::show(args)),
        Command::Rm(args) => wait_for(models::rm(args)),
        Command::Cp(args) => wait_for(storage::cp(args)),
        Command::Gc(args) => wait_for(storage::gc(args)),
        Command::Verify(args) => wait_for(storage::verify(args)),
        Command::Du(args) => wait_for(storage::du(args)),
        Command::Export(args) => wait_for(archive::export(args)),
        Command::Import(args) => wait_for(archive::import(args)),
        Command::Inspect(args) => wait_for(inspect::inspect(args)),
        Command::Doctor(args) => wait_for(doctor::doctor(args)),
        Command::Load(args) => wait_for(load::load(args)),
        Command::Ps(args) => wait_for(models::ps(args)),
        Command::Stop(args) => wait_for(models::stop(args)),
        Command::Health(args) => wait_for(health::health(args)),
        Command::Mcp(args) => wait_for(mcp::mcp(args)),
        Command::Adapter(args) => wait_for(adapter::adapter(args)),
        Command::Keys(args) => keys::keys(args),
        Command::Quantize(args) => wait_for(quantize::quantize(args)),
        Command::Imatrix(args) => wait_for(imatrix::imatrix(args)),
        // The benchmark runs without an async runtime beside it.
        Command::Bench(args) => bench::bench(args),
        Command::Completions(args) => completions::completions(args),
    }
}

/// Runs a command to its end. Boxed, so that the program has the runtime's loop once, not once for each command.
fn wait_for(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    block_on(Box::pin(command))
}

fn block_on(command: Pin<Box<dyn Future<Output = Result<(), CliError>> + '_>>) -> Result<(), CliError> {
    let runtime =
        hanzo_engine_daemon::preflight::runtime(0).map_err(|error| CliError::Start(error.to_string()))?;
    let outcome = runtime.block_on(command);
    // Do not wait for a model that is still being read.
    runtime.shutdown_background();
    outcome
}
