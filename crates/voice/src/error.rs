//! Errors of speech synthesis, and refusals of a request's fields.

use hanzo_engine_ops::KernelError;

/// Error of speech synthesis.
#[derive(Debug, thiserror::Error)]
pub enum SpeakError {
    /// The device failed. The engine is unusable afterwards.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A piece of the text would give too long a sound.
    #[error("a piece of the text would be {frames} frames of sound; at most {max} are allowed: speak faster, or shorten what stands between two full stops", max = crate::limits::FRAMES_MAX)]
    TooLong {
        /// Length in the model's frames.
        frames: usize,
    },
    /// The model computed NaN or infinity.
    #[error("the model computed something that is not a number")]
    NotANumber,
}

/// Request field that cannot be honoured, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRefusal {
    /// Name of the field: `text`, `phonemes`, `voice` or `language`.
    pub field: &'static str,
    /// Reason for the refusal.
    pub reason: String,
}
