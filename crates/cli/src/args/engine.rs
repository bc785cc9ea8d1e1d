//! What many commands take: which daemon is asked, where the models are kept, and how much is logged.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Where the models are kept.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Directory of the model store, over HANZO_MODELS_DIR [default: ~/.hanzo/models]
    // Whoever opens the store reads the variable, for which nothing is as good as none.
    #[arg(long, value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

/// Which daemon to ask.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// gRPC address of the daemon to ask, or `none` to do without [default: http://127.0.0.1:36901, if one answers]
    #[arg(long, value_name = "URL", env = "HANZO_ENGINE_ADDRESS")]
    pub(crate) engine: Option<String>,
    /// Authorities (PEM) that a daemon at https:// is trusted by [default: the system's]
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_CA")]
    pub(crate) engine_ca: Option<PathBuf>,
    /// Certificate (PEM) to show to the daemon
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_CERT", requires = "engine_cert_key")]
    pub(crate) engine_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_CERT_KEY", requires = "engine_cert")]
    pub(crate) engine_cert_key: Option<PathBuf>,
    /// Key that the daemon wants; better set as HANZO_ENGINE_API_KEY, which no list of processes shows
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// What failed.
    Error,
    /// And what looks wrong.
    Warn,
    /// And what happens: loads, unloads, one line for each request.
    Info,
    /// And why.
    Debug,
    /// And each step.
    Trace,
}

impl LogLevel {
    /// As a tracing filter spells it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
