//! Chat templates: a model's own Jinja program turns a conversation into its prompt. What transformers gives its
//! templates is there: `raise_exception`, `tojson` as Python writes it, Python's methods of strings and
//! dictionaries, `break` and `continue`, trimmed blocks. A program is not trusted: its steps, its recursion and its
//! output are bounded.
//!
//! `strftime_now` is there when the conversation's variables have `now`, the time in seconds since 1970: the
//! runtime has no clock. Templates that test for it fall back to a date of their own without it.

mod date;
mod json;

#[cfg(test)]
mod tests;

use std::{fmt, io, ops::Range};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::Serde};
use minijinja_contrib::pycompat;
use serde_json::Map;

use crate::{
    chat::Chat,
    error::{LoadError, RequestError},
    limits::{TEMPLATE_FUEL, TEMPLATE_OUTPUT_BYTES_MAX, TEMPLATE_RECURSION_MAX},
};

/// The template's name inside its environment; no extension, so nothing is escaped for HTML.
const NAME: &str = "chat_template";
/// The variable with the time, in seconds since 1970.
const NOW: &str = "now";
/// Bytes of a template's own words that an error repeats.
const ERROR_BYTES_MAX: usize = 1000;
/// Marks where the message that is to be continued ends; transformers' own marker.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// What a template made of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Bytes of `text` that came from the request and not from the template: ascending, apart from each other.
    pub from_request: Vec<Range<usize>>,
}

impl Rendered {
    /// Leaves the first `end` bytes, which must end with a character.
    fn truncate(&mut self, end: usize) {
        self.text.truncate(end);
        self.from_request.retain_mut(|range| {
            range.end = range.end.min(end);
            range.start < range.end
        });
    }
}

/// The words a template refused a conversation with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    /// Compiles `source`. `bos` and `eos` are the texts of the tokens that begin and end a text, or nothing;
    /// `file` is named in errors.
    ///
    /// # Errors
    /// [`LoadError::Corrupt`] with the line, for what is not a Jinja program.
    pub fn new(source: &str, bos: &str, eos: &str, file: &str) -> Result<Self, LoadError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the delimiters are Jinja's because none was set"));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(pycompat::unknown_method_callback);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.set_recursion_limit(TEMPLATE_RECURSION_MAX);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", |words: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(words)))
        });
        environment.add_template_owned(NAME, plain_blocks(source)).map_err(|error| LoadError::Corrupt {
            file: file.to_owned(),
            what: "chat template".into(),
            reason: error.to_string(),
        })?;
        Ok(ChatTemplate { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The prompt of a conversation. `interrupted` is asked now and then whether to go on; it is cheap.
    ///
    /// # Errors
    /// [`RequestError::Interrupted`]; [`RequestError::Invalid`]: of `messages`, with the template's words, where it refuses the conversation; of
    /// `template_kwargs_json` for variables that are the engine's own; of `continue_final_message` where the last
    /// message cannot be continued.
    pub fn render(&self, chat: &Chat, interrupted: &dyn Fn() -> bool) -> Result<Rendered, RequestError> {
        let Some(last) = chat.messages.last() else {
            return Err(RequestError::invalid("messages", "must not be empty"));
        };
        if !chat.continue_final_message {
            return self.run(chat, interrupted);
        }
        if chat.add_generation_prompt {
            let reason =
                "the last message cannot be continued after a generation prompt; ask for one of the two";
            return Err(RequestError::invalid("continue_final_message", reason));
        }
        let mut tagged = chat.clone();
        if let Some(last) = tagged.messages.last_mut() {
            last.content.push_str(CONTINUE_TAG);
        }
        let mut rendered = self.run(&tagged, interrupted)?;
        let text = rendered.text.as_str();
        match text.rfind(CONTINUE_TAG.trim_end()) {
            Some(end) if text.contains(last.content.trim()) => {
                // A template that trims the message would have trimmed its own end too.
                let keeps_spaces = text[end..].starts_with(CONTINUE_TAG);
                rendered.truncate(if keeps_spaces { end } else { text[..end].trim_end().len() });
                Ok(rendered)
            }
            _ => {
                let reason = "the last message does not appear in the prompt that the chat template makes";
                Err(RequestError::invalid("continue_final_message", reason))
            }
        }
    }

    fn run(&self, chat: &Chat, interrupted: &dyn Fn() -> bool) -> Result<Rendered, RequestError> {
        let context = self.context(chat)?;
        let template = self.environment.get_template(NAME).map_err(|error| refusal(&error))?;
        let mut out = Bounded { bytes: Vec::new(), is_full: false, is_interrupted: false, interrupted };
        let rendered = template.render_captured_to(context, &mut out).map(drop);
        if out.is_full {
            let reason = format!("make a prompt of over {TEMPLATE_OUTPUT_BYTES_MAX} bytes");
            return Err(RequestError::invalid("messages", reason));
        }
        if out.is_interrupted || interrupted() {
            return Err(RequestError::Interrupted);
        }
        rendered.map_err(|error| refusal(&error))?;
        let text = String::from_utf8(out.bytes);
        let text = text.map_err(|error| RequestError::invalid("messages", error.to_string()))?;
        Ok(Rendered { text, from_request: Vec::new() })
    }

    /// The template's variables, as transformers gives them.
    fn context(&self, chat: &Chat) -> Result<Value, RequestError> {
        let mut variables = Map::new();
        for (name, token) in [("bos_token", &self.bos), ("eos_token", &self.eos)] {
            if !token.is_empty() {
                variables.insert(name.into(), token.as_str().into());
            }
        }
        variables.insert("documents".into(), serde_json::Value::Null);
        variables.extend(chat.kwargs.clone());
        let now = match variables.remove(NOW) {
            None => None,
            Some(now) => Some(now.as_i64().ok_or_else(|| {
                RequestError::invalid(
                    "template_kwargs_json",
                    format!("{NOW} must be whole seconds since 1970"),
                )
            })?),
        };
        for name in ["messages", "tools", "add_generation_prompt", "continue_final_message", "strftime_now"] {
            if variables.contains_key(name) {
                let reason = format!("{name} is not a variable of the request; it has a field of its own");
                return Err(RequestError::invalid("template_kwargs_json", reason));
            }
        }
        let mut values: Vec<(String, Value)> =
            variables.into_iter().map(|(name, value)| (name, Value::from(Serde(value)))).collect();
        let tools = if chat.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&chat.tools)) };
        values.push(("messages".into(), Value::from(Serde(&chat.messages))));
        values.push(("tools".into(), tools));
        values.push(("add_generation_prompt".into(), chat.add_generation_prompt.into()));
        if let Some(now) = now {
            let strftime_now = Value::from_function(move |format: String| {
                date::strftime(&format, now).map_err(|directive| {
                    let detail = format!("strftime_now does not know %{directive}");
                    Error::new(ErrorKind::InvalidOperation, detail)
                })
            });
            values.push(("strftime_now".into(), strftime_now));
        }
        Ok(Value::from_pairs(values))
    }
}

/// Turns `{% generation %}` blocks, which mark text for training and mean nothing here, into blocks that are
/// always there.
fn plain_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let body = tag.trim_start_matches(['-', '+']);
        let word_at = tag.len() - body.trim_start().len();
        for (word, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
            let Some(after) = tag[word_at..].strip_prefix(word) else { continue };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                out.push_str(&tag[..word_at]);
                out.push_str(plain);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// What a failed run says to the one who asked for it.
fn refusal(error: &Error) -> RequestError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(words)) = current.downcast_ref() {
            return RequestError::invalid("messages", shortened(words));
        }
        cause = current.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        let reason = format!("the chat template did not finish within {TEMPLATE_FUEL} steps");
        return RequestError::invalid("messages", reason);
    }
    let detail = error.detail().unwrap_or_default();
    if error.kind() == ErrorKind::UnknownFunction && detail.contains("strftime_now") {
        let reason =
            format!("the chat template asks for the date: give the variable {NOW}, seconds since 1970");
        return RequestError::invalid("template_kwargs_json", reason);
    }
    RequestError::invalid("messages", shortened(&format!("the chat template failed: {error}")))
}

fn shortened(words: &str) -> String {
    let fitting =
        words.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= ERROR_BYTES_MAX);
    words[..fitting.last().unwrap_or(0)].to_owned()
}

/// Output up to [`TEMPLATE_OUTPUT_BYTES_MAX`].
struct Bounded<'a> {
    bytes: Vec<u8>,
    is_full: bool,
    is_interrupted: bool,
    interrupted: &'a dyn Fn() -> bool,
}

impl io::Write for &mut Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > TEMPLATE_OUTPUT_BYTES_MAX {
            self.is_full = true;
            return Err(io::Error::other("the output is too long"));
        }
        if (self.interrupted)() {
            self.is_interrupted = true;
            return Err(io::Error::other("interrupted"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
