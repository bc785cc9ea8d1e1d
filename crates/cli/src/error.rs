//! Errors of commands, each as one line for people: what happened and what to do.

use hanzo_engine_daemon::{
    ConfigError, DaemonError, bench::BenchError, imatrix::ImatrixError, inspect::InspectError,
    quantize::QuantizeError, store::StoreError,
};
use hanzo_engine_gateway::{GatewayError, ProbeError};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line parses but makes no sense.
    #[error("{0}")]
    Usage(String),
    /// No daemon answers at a named address, or where one is required.
    #[error(
        "no daemon answers at {address}{}: start one with `hanzo-engine serve`, or say where it is with --engine",
        because(why)
    )]
    NoDaemon {
        /// Address that was tried.
        address: String,
        /// Reason for the failure; empty if obvious.
        why: String,
    },
    /// The daemon requires a key, or a different one.
    #[error("{address}: {why}; set HANZO_ENGINE_API_KEY, or --api-key")]
    Key {
        /// Address of the daemon.
        address: String,
        /// Message of the daemon.
        why: String,
    },
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(#[from] hanzo_engine_access::TlsError),
    /// A key file failed.
    #[error(transparent)]
    KeysFile(#[from] hanzo_engine_access::FileError),
    /// The daemon refused, or failed.
    #[error("{}", .0.message())]
    Engine(tonic::Status),
    /// A model could not be loaded.
    #[error("cannot load {model}: {}", status.message().trim_start_matches("model: "))]
    Load {
        /// Name as typed.
        model: String,
        /// Response of the daemon.
        status: tonic::Status,
    },
    /// A model could be pulled, but the user has not allowed it.
    #[error("{model} is not on this machine: `hanzo-engine pull {model}` fetches it from {reference}{or}")]
    NotPulled {
        /// Name as typed.
        model: String,
        /// Reference that it resolves to.
        reference: String,
        /// Alternative for the user.
        or: &'static str,
    },
    /// The user was asked to allow a pull, and declined.
    #[error("{0} is not on this machine, and was not pulled")]
    Declined(String),
    /// The store has faults, which were printed.
    #[error("{0}")]
    Unsound(String),
    /// The connection to the daemon was lost.
    #[error("the daemon stopped answering ({0})")]
    Lost(String),
    /// The response is unexpected, perhaps from a daemon of another version.
    #[error("the daemon's answer is not what was asked for: {0}")]
    UnexpectedAnswer(&'static str),
    /// An item of an input failed.
    #[error("{at}: {why} (--skip-errors goes on without it)")]
    Item {
        /// Position of the item.
        at: String,
        /// Reason for the failure.
        why: String,
    },
    /// A bulk job stopped, and can be resumed.
    #[error("{what}; {rows} rows are kept in {}, and the same command goes on from there", partial.display())]
    Kept {
        /// Error that stopped it.
        what: Box<CliError>,
        /// Number of records in the partial result.
        rows: u64,
        /// Path of the partial result.
        partial: PathBuf,
    },
    /// A partial result is unusable.
    #[error("{0}")]
    Partial(#[from] PartialError),
    /// Ctrl-C was pressed.
    #[error("interrupted")]
    Interrupted,
    /// The connection ended before the answer did.
    #[error("the daemon ended the answer early: ask again")]
    CutOff,
    /// A port is taken, or an address is not this machine's.
    #[error(
        "cannot listen on {address} for {what}: {source}; choose another with {flag}, or {flag} 0 for any that is free"
    )]
    Port {
        /// Host and port.
        address: SocketAddr,
        /// Purpose of the port.
        what: &'static str,
        /// Flag that sets the port.
        flag: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A path does not exist or is unreadable.
    #[error("{}: {source}", path.display())]
    Path {
        /// Path as typed.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The settings are invalid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The daemon in this process failed.
    #[error("{0}")]
    Daemon(#[from] DaemonError),
    /// The gateway in this process failed.
    #[error("{0}")]
    Gateway(#[from] GatewayError),
    /// A gateway is not ready.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The model store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A model cannot be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A file cannot be quantised.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// An importance matrix cannot be computed.
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
    /// A benchmark failed.
    #[error("{0}")]
    Bench(#[from] BenchError),
    /// The output cannot be written. A closed pipe is no failure: see [`CliError::exit_code`].
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// The input cannot be read.
    #[error("cannot read the input: {0}")]
    Input(String),
    /// A sound file was not transcribed, or several were not.
    #[error("{0}")]
    Unheard(String),
    /// The process could not be set up.
    #[error("cannot start: {0}")]
    Start(String),
}

/// Error of a partial result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartialError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is no partial result of this program: move it away", path.display())]
    Foreign { path: PathBuf },
    #[error("{} is being written by another process", path.display())]
    Busy { path: PathBuf },
    #[error("{} was begun otherwise: {what}; begin anew with --restart", path.display())]
    Differs { path: PathBuf, what: String },
    #[error("{}: a record of {bytes} bytes is too long", path.display())]
    TooLong { path: PathBuf, bytes: usize },
}

impl CliError {
    /// Exit code: 0 ok, 1 error, 2 usage, 130 interrupted. If the reader closed the pipe, it had read enough:
    /// that is ok, and prints nothing.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            Self::Kept { what, .. } => what.exit_code(),
            _ => 1,
        }
    }

    /// Message on one line.
    pub(crate) fn line(&self) -> String {
        self.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}
