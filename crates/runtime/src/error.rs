//! The runtime's errors: a model that cannot be loaded, a request that cannot be run, a step that failed.

use std::path::PathBuf;

use hanzo_engine_kernels::KernelError;

use crate::limits::ERROR_PART_CHARS_MAX;

/// A text that came with a model or a request, as it may be shown on a terminal or in a log: what would move the cursor,
/// change colours, begin a line or turn the direction of writing is written out, and what is over `chars_max` characters
/// is left out.
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

/// Errors show the first characters of a long value.
pub(crate) fn shorten(text: String) -> String {
    const SHOWN: usize = 120; // characters
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Part of an error.
fn part(text: &str) -> String {
    printable(text, ERROR_PART_CHARS_MAX)
}

/// A model file that cannot be used. Nothing was kept.
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
    /// A file is not what its format says: truncated, corrupt, or of a version not known.
    #[error("{}: {}: {}", part(file), part(what), part(reason))]
    Corrupt {
        /// The file.
        file: String,
        /// The key, tensor or section.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A needed key, tensor or file is not there.
    #[error("{}: {} is missing{}", part(file), part(what), part(hint))]
    Missing {
        /// The file or directory.
        file: String,
        /// What is missing.
        what: String,
        /// What to do, with a leading separator, or nothing.
        hint: String,
    },
    /// The file is sound, but says something this build cannot run.
    #[error("{}: {} = {} is not supported: {}", part(file), part(key), part(value), part(reason))]
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
        "{} needs {needed_bytes} bytes (weights {weights_bytes}, KV cache {kv_bytes}, scratch {scratch_bytes}) \
         and {free_bytes} are free{hint}",
        part(model)
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
    #[error("{}", part(&.0.to_string()))]
    Kernel(#[from] KernelError),
    /// The process that was to run the model could not: it did not start, refused, or ended.
    #[error("{}", part(.0))]
    Worker(String),
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
    /// A text that is far too long to be counted to its end.
    #[error(
        "{field}: This model's maximum context length is {tokens_max} tokens. However, your {field} resulted in at least \
         {tokens_least} tokens. Please reduce its length."
    )]
    TooLong {
        /// What is too long.
        field: &'static str,
        /// Tokens it has at least.
        tokens_least: usize,
        /// Tokens there may be.
        tokens_max: usize,
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
    /// What is put around an input leaves nothing of a context this short.
    #[error(
        "inputs: this model takes {tokens_max} tokens as it is loaded, and {around} stand around what is sent: no room \
         is left for it; load the model with a larger context_tokens_max, or send a shorter instruction or query"
    )]
    NoRoom {
        /// Tokens around it.
        around: usize,
        /// Tokens there may be.
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
    /// The engine is in another process, and that process is lost.
    #[error("{reason}")]
    Lost {
        /// How it ended, or what it said last.
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
