//! The error of a model that cannot be loaded.

use std::path::PathBuf;

use hanzo_engine_ops::KernelError;

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
pub fn shorten(text: String) -> String {
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
