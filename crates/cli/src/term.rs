//! Terminal output: colours, and sanitising of a model's text.

use indicatif::ProgressStyle;
use std::io::{IsTerminal, Write};

/// Colours for one stream, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Uses colours only on a terminal that supports them, and not under `NO_COLOR` (no-color.org).
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: stream.is_terminal() && !set("NO_COLOR") && !dumb }
    }

    /// Style for secondary text.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// Style for emphasis.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Style for the word `error`.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes to stderr. Errors are ignored, because there is no other place to report them.
pub(crate) fn tell(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Style of a progress bar.
///
/// # Panics
/// If a template has an unknown key. All templates are the program's own.
pub(crate) fn bar_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("every template is the program's own and well formed")
}

/// Makes a model's text safe for a terminal. Control characters other than line feed and tab could move the
/// cursor or rename the window, and become `�`.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// Resolves on Ctrl-C. If the signal cannot be caught, Ctrl-C ends the process as usual.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(super::harmless("a\tb\n\u{1b}[2Jc\r"), "a\tb\n\u{fffd}[2Jc\u{fffd}");
    }
}
