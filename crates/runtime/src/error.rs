//! The runtime's errors: a model that cannot be loaded, a request that cannot be run, a step that failed.

use std::path::PathBuf;

use hanzo_engine_kernels::KernelError;

/// A model file that cannot be used. Nothing was kept.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file is not what its format says: truncated, corrupt, or of a version not known.
    #[error("{file}: {what}: {reason}")]
    Corrupt {
        /// The file.
        file: String,
        /// The key, tensor or section.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A needed key, tensor or file is not there.
    #[error("{file}: {what} is missing{hint}")]
    Missing {
        /// The file or directory.
        file: String,
        /// What is missing.
        what: String,
        /// What to do, with a leading separator, or nothing.
        hint: String,
    },
    /// The file is sound, but says something this build cannot run.
    #[error("{file}: {key} = {value} is not supported: {reason}")]
    Unsupported {
        /// The file.
        file: String,
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// What is.
        reason: String,
    },
    /// The model does not fit the memory it may have.
    #[error(
        "{model} needs {needed_bytes} bytes (weights {weights_bytes}, KV cache {kv_bytes}, scratch {scratch_bytes}) \
         and {free_bytes} are free{hint}"
    )]
    DoesNotFit {
        /// The model.
        model: String,
        /// All it needs.
        needed_bytes: u64,
        /// For weights.
        weights_bytes: u64,
        /// For the smallest useful KV cache.
        kv_bytes: u64,
        /// For scratch.
        scratch_bytes: u64,
        /// What the budget has left.
        free_bytes: u64,
        /// What would fit, with a leading separator, or nothing.
        hint: String,
    },
    /// The device refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A request that cannot be run as it is. `field` is the name in the protocol.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A value is out of its range.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it must be and what it was.
        reason: String,
    },
    /// Prompt and completion do not fit the context.
    #[error("prompt: {}", over_length(*prompt_tokens, *completion_tokens, *context_tokens_max))]
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for; 0 where the prompt alone is too long.
        completion_tokens: usize,
        /// Tokens there are.
        context_tokens_max: usize,
    },
    /// An input is longer than the model takes.
    #[error(
        "inputs: This model's maximum context length is {tokens_max} tokens, special ones included. However, one input \
         has {tokens} tokens. Please reduce its length, or let truncate cut it."
    )]
    InputLength {
        /// Tokens of the input.
        tokens: usize,
        /// Tokens there may be.
        tokens_max: usize,
    },
    /// Who asked no longer waits, or its time was over.
    #[error("messages: stopped before the prompt was made")]
    Interrupted,
    /// The model has no chat template.
    #[error("chat: model {model} has no chat template; send text instead")]
    NoChatTemplate {
        /// The model.
        model: String,
    },
}

impl RequestError {
    /// An invalid field.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        RequestError::Invalid { field, reason: reason.into() }
    }
}

/// OpenAI's words: clients look for them, and shorten the conversation where they find them.
fn over_length(prompt: usize, completion: usize, context: usize) -> String {
    let limit = format!("This model's maximum context length is {context} tokens. However, ");
    if completion == 0 {
        return format!(
            "{limit}your messages resulted in {prompt} tokens. Please reduce the length of the messages."
        );
    }
    let whole = prompt.saturating_add(completion);
    format!(
        "{limit}you requested {whole} tokens ({prompt} in the messages, {completion} in the completion). Please reduce \
         the length of the messages or completion."
    )
}

/// A step that failed. The engine is of no further use: its worker reports the model as failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}
