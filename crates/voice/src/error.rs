//! Why something was not said.

use hanzo_engine_kernels::KernelError;

/// Why something was not said.
#[derive(Debug, thiserror::Error)]
pub enum SpeakError {
    /// The device failed; the engine is of no further use.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A piece of text would be longer than any piece may be.
    #[error("a piece of the text would be {frames} frames of sound; at most {max} are allowed: speak faster, or shorten what stands between two full stops", max = crate::limits::FRAMES_MAX)]
    TooLong {
        /// Of the model's frames.
        frames: usize,
    },
    /// The model computed something that is not a number.
    #[error("the model computed something that is not a number")]
    NotANumber,
}
