//! Arguments shared by many commands: the daemon's address, the store's directory, and the log level.

use clap::Args;
pub(crate) use hanzo_engine_daemon::config::LevelName as LogLevel;
use std::path::PathBuf;

/// Location of the model store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Directory of the model store; overrides HANZO_MODELS_DIR [default: ~/.hanzo/models]
    // The code that opens the store reads the variable, and treats an empty one as unset.
    #[arg(long, value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

/// Daemon to use.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// gRPC address of the daemon, or `none` to use no daemon [default: http://127.0.0.1:36901, if one answers]
    #[arg(long, value_name = "URL", env = "HANZO_ENGINE_ADDRESS")]
    pub(crate) engine: Option<String>,
    /// Certificate authorities (PEM) for a daemon at https:// [default: the system's]
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_CA")]
    pub(crate) engine_ca: Option<PathBuf>,
    /// Client certificate (PEM) for the daemon
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_CERT", requires = "engine_cert_key")]
    pub(crate) engine_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "HANZO_ENGINE_CERT_KEY", requires = "engine_cert")]
    pub(crate) engine_cert_key: Option<PathBuf>,
    /// Key for the daemon; better set as HANZO_ENGINE_API_KEY, which process lists do not show
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}
