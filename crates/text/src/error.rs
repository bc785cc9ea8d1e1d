//! The error of a request that cannot be run.

/// Invalid request. `field` is the name in the protocol.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A value is out of its range.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Allowed values, and the value given.
        reason: String,
    },
    /// Prompt and completion do not fit the context.
    #[error("prompt: {}", over_length(*prompt_tokens, *completion_tokens, *context_tokens_max))]
    ContextLength {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens requested; 0 if the prompt alone is too long.
        completion_tokens: usize,
        /// Tokens of the context.
        context_tokens_max: usize,
    },
    /// A text is too long to be counted to its end.
    #[error(
        "{field}: This model's maximum context length is {tokens_max} tokens. However, your {field} resulted in at least \
         {tokens_least} tokens. Please reduce its length."
    )]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// Minimum number of its tokens.
        tokens_least: usize,
        /// Maximum number of tokens.
        tokens_max: usize,
    },
    /// An input is longer than the model's context.
    #[error(
        "inputs: This model's maximum context length is {tokens_max} tokens, special ones included. However, one input \
         has {tokens} tokens. Please reduce its length, or let truncate cut it."
    )]
    InputLength {
        /// Tokens of the input.
        tokens: usize,
        /// Maximum number of tokens.
        tokens_max: usize,
    },
    /// The client disconnected, or the deadline passed.
    #[error("messages: stopped before the prompt was made")]
    Interrupted,
    /// The tokens around an input leave no room for it in so short a context.
    #[error(
        "inputs: this model takes {tokens_max} tokens as it is loaded, and {around} stand around what is sent: no room \
         is left for it; load the model with a larger context_tokens_max, or send a shorter instruction or query"
    )]
    NoRoom {
        /// Tokens around it.
        around: usize,
        /// Maximum number of tokens.
        tokens_max: usize,
    },
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

/// Error text in OpenAI's words: clients look for it, and then shorten the conversation.
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
