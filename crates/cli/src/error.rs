//! What a command can fail with, as one line for people: what happened and what to do.

use hanzo_engine_daemon::{
    ConfigError, DaemonError, bench::BenchError, imatrix::ImatrixError, inspect::InspectError,
    quantize::QuantizeError, store::StoreError,
};
use hanzo_engine_gateway::{GatewayError, ProbeError};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line is understood and still makes no sense.
    #[error("{0}")]
    Usage(String),
    /// No daemon where one was named, or where one is needed.
    #[error(
        "no daemon answers at {address}{}: start one with `hanzo-engine serve`, or say where it is with --engine",
        because(why)
    )]
    NoDaemon {
        /// Where one was looked for.
        address: String,
        /// What the attempt said; empty when that is plain.
        why: String,
    },
    /// The daemon wants a key, or another one.
    #[error("{address}: {why}; set HANZO_ENGINE_API_KEY, or --api-key")]
    Key {
        /// Where it is.
        address: String,
        /// Its own words.
        why: String,
    },
    /// TLS cannot be spoken.
    #[error("TLS: {0}")]
    Tls(#[from] hanzo_engine_access::TlsError),
    /// The keys of a file.
    #[error(transparent)]
    KeysFile(#[from] hanzo_engine_access::FileError),
    /// The daemon refused, or failed.
    #[error("{}", .0.message())]
    Engine(tonic::Status),
    /// A model could not be loaded.
    #[error("cannot load {model}: {}", status.message().trim_start_matches("model: "))]
    Load {
        /// As it was typed.
        model: String,
        /// The daemon's answer.
        status: tonic::Status,
    },
    /// A model that could be pulled, and nobody said that it may.
    #[error("{model} is not on this machine: `hanzo-engine pull {model}` fetches it from {reference}{or}")]
    NotPulled {
        /// As it was typed.
        model: String,
        /// What it stands for.
        reference: String,
        /// What else would do.
        or: &'static str,
    },
    /// Somebody was asked whether it may be pulled, and said no.
    #[error("{0} is not on this machine, and was not pulled")]
    Declined(String),
    /// Something of the store is not as it should be; what, was printed.
    #[error("{0}")]
    Unsound(String),
    /// The daemon is gone.
    #[error("the daemon stopped answering ({0})")]
    Lost(String),
    /// A daemon of another version, perhaps.
    #[error("the daemon's answer is not what was asked for: {0}")]
    UnexpectedAnswer(&'static str),
    /// One item of an input.
    #[error("{at}: {why} (--skip-errors goes on without it)")]
    Item {
        /// Where it is.
        at: String,
        /// What is wrong with it.
        why: String,
    },
    /// A bulk job that can go on.
    #[error("{what}; {rows} rows are kept in {}, and the same command goes on from there", partial.display())]
    Kept {
        /// What ended it.
        what: Box<CliError>,
        /// Records of the partial result.
        rows: u64,
        /// Where it is.
        partial: PathBuf,
    },
    /// A partial result that cannot be used.
    #[error("{0}")]
    Partial(#[from] PartialError),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The connection ended before the answer did.
    #[error("the daemon ended the answer early: ask again")]
    CutOff,
    /// A port that is taken, or an address that is not this machine's.
    #[error(
        "cannot listen on {address} for {what}: {source}; choose another with {flag}, or {flag} 0 for any that is free"
    )]
    Port {
        /// Host and port.
        address: SocketAddr,
        /// What would listen there.
        what: &'static str,
        /// The flag that sets the port.
        flag: &'static str,
        /// The system's words.
        source: io::Error,
    },
    /// A path that is not there, or cannot be read.
    #[error("{}: {source}", path.display())]
    Path {
        /// As it was typed.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Settings that cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The daemon in this process.
    #[error("{0}")]
    Daemon(#[from] DaemonError),
    /// The gateway in this process.
    #[error("{0}")]
    Gateway(#[from] GatewayError),
    /// A gateway that does not serve.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The model store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A model that cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A file that cannot be made.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// An importance matrix that cannot be made.
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
    /// A benchmark.
    #[error("{0}")]
    Bench(#[from] BenchError),
    /// Output that cannot be written. A closed pipe is no failure: see [`CliError::exit_code`].
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    /// Input that cannot be read.
    #[error("cannot read the input: {0}")]
    Input(String),
    /// A sound file that is not transcribed, or how many.
    #[error("{0}")]
    Unheard(String),
    /// The process could not be set up.
    #[error("cannot start: {0}")]
    Start(String),
}

/// Why a partial result cannot be used.
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
    /// 0 ok, 1 error, 2 usage, 130 interrupted. Whoever closed the pipe had read enough: that is ok, and nothing is said.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            Self::Kept { what, .. } => what.exit_code(),
            _ => 1,
        }
    }

    /// The message on one line.
    pub(crate) fn line(&self) -> String {
        self.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}
