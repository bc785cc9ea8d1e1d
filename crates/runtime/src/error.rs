//! Errors of the runtime: a model cannot be loaded, a request cannot be run, or a step failed.

use std::path::PathBuf;

use hanzo_engine_kernels::KernelError;

use crate::limits::ERROR_PART_CHARS_MAX;

/// Makes a text from a model or a request safe for a terminal or a log. Escapes characters that move the cursor,
/// change colours, start a line or change the writing direction. Cuts it after `chars_max` characters.
pub fn printable(text: &str, chars_max: usize) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !matches!(
                c,
                '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
            )
    };
    let mut shown = String::with_capacity(text.len().min(4 * chars_max));
    for (index, c) in text.chars().enumerate() {
        if index == chars_max {
            shown.push('…');
            break;
        }
        if is_plain(c) { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    shown
}

/// Shortens a long value for an error.
pub(crate) fn shorten(text: String) -> String {
    const SHOWN: usize = 120; // characters
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Part of an error, made printable.
fn part(text: &str) -> String {
    printable(text, ERROR_PART_CHARS_MAX)
}

/// Error while loading a model. Nothing is kept in memory.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be read.
    #[error("{}: {source}", part(&path.display().to_string()))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file does not follow its format: truncated, corrupt, or of an unknown version.
    #[error("{}: {}: {}", part(file), part(what), part(reason))]
    Corrupt {
        /// The file.
        file: String,
        /// The key, tensor or section.
        what: String,
        /// Problem.
        reason: String,
    },
    /// A required key, tensor or file is missing.
    #[error("{}: {} is missing{}", part(file), part(what), part(hint))]
    Missing {
        /// The file or directory.
        file: String,
        /// Name of the missing part.
        what: String,
        /// Remedy, with a leading separator, or empty.
        hint: String,
    },
    /// The file is valid, but needs something that this build does not support.
    #[error("{}: {} = {} is not supported: {}", part(file), part(key), part(value), part(reason))]
    Unsupported {
        /// The file.
        file: String,
        /// The setting.
        key: String,
        /// Its value.
        value: String,
        /// Supported alternatives.
        reason: String,
    },
    /// The model does not fit into its memory budget.
    #[error(
        "{} needs {needed_bytes} bytes (weights {weights_bytes}, KV cache {kv_bytes}, scratch {scratch_bytes}) \
         and {free_bytes} are free{hint}",
        part(model)
    )]
    DoesNotFit {
        /// The model.
        model: String,
        /// Bytes needed in all.
        needed_bytes: u64,
        /// Bytes for weights.
        weights_bytes: u64,
        /// Bytes for the smallest useful KV cache.
        kv_bytes: u64,
        /// Bytes for scratch.
        scratch_bytes: u64,
        /// Bytes left in the budget.
        free_bytes: u64,
        /// A hint at settings that would fit, with a leading separator, or empty.
        hint: String,
    },
    /// The device refused.
    #[error("{}", part(&.0.to_string()))]
    Kernel(#[from] KernelError),
    /// The model's worker process did not start, refused the model, or ended.
    #[error("{}", part(.0))]
    Worker(String),
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_cannot_write_on_a_terminal() {
        let name = "blk\u{1b}[2J\r\n\u{9b}31m\u{7f}\u{202e}gpj.é 你好🙂";
        let error =
            LoadError::Corrupt { file: name.into(), what: name.into(), reason: name.into() }.to_string();
        assert!(error.contains("blk\\u{1b}[2J\\r\\n\\u{9b}31m\\u{7f}\\u{202e}gpj.é 你好🙂"), "{error}");
        assert!(!error.chars().any(char::is_control), "{error}");
        let long = LoadError::Missing { file: "m".into(), what: "x".repeat(100_000), hint: String::new() };
        assert_eq!(
            long.to_string().chars().count(),
            ERROR_PART_CHARS_MAX + "m: … is missing".chars().count()
        );
    }
}
