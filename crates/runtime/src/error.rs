//! Errors of the runtime: a model cannot be loaded, a request cannot be run, or a step failed.

pub(crate) use hanzo_engine_model_files::error::shorten;
pub use hanzo_engine_model_files::error::{LoadError, printable};
use hanzo_engine_ops::KernelError;
pub use hanzo_engine_text::error::RequestError;

/// A failed step. The engine cannot be used any longer: its worker reports the model as failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The engine's worker process is lost.
    #[error("{reason}")]
    Lost {
        /// How the process ended, or its last message.
        reason: String,
    },
}
