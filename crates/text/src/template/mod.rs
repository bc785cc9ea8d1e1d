//! Chat templates: a model's own Jinja program turns a conversation into its prompt. The interpreter is made for
//! untrusted programs. Parsing bounds the nesting. Running bounds steps, bytes, depth, and the time between checks
//! for interruption, so that the worst program only fails one request. It also tracks for each character of a
//! prompt whether the template or the request wrote it.
//!
//! The environment is that of transformers: `raise_exception`, `tojson` with Python's formatting, Python's methods
//! of strings and dictionaries, `break` and `continue`, trimmed blocks, immutable values. `strftime_now` exists if
//! the conversation's variables have `now`, the time in seconds since 1970, because the runtime has no clock.
//! Templates that test for it fall back to a date of their own without it.

mod call;
mod checks;
mod compare;
mod context;
mod date;
mod eval;
mod expressions;
mod filters;
mod format;
pub mod go;
mod json;
mod lexer;
mod looping;
mod markup;
mod meter;
mod methods;
mod operators;
mod parser;
pub(crate) mod past_calls;
mod print;
mod run;
mod sequences;
mod strings;
mod text;
mod tree;
pub mod turns;
mod value;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod provenance_tests;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use self::context::Content;
use self::{
    context::{Context, NOW, context},
    meter::{Fault, Meter},
    run::Run,
    tree::Tree,
};
use hanzo_engine_model_files::error::LoadError;

use crate::{
    chat::Chat,
    error::RequestError,
    limits::{TEMPLATE_OUTPUT_BYTES_MAX, TEMPLATE_STEPS_MAX},
};

/// Name of the template in errors.
const NAME: &str = "chat_template";
/// Maximum bytes of a template's own words in an error.
const ERROR_BYTES_MAX: usize = 1000;
/// Marks the end of the message to be continued; the same marker as in transformers.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    tree: Tree,
    bos: String,
    eos: String,
}

/// Prompt that a template made from a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// Prompt.
    pub text: String,
    /// Byte ranges of `text` that came from the request and not from the template: ascending, disjoint.
    pub from_request: Vec<Range<usize>>,
}

impl RenderedPrompt {
    /// Replaces text written by the template, not by the request.
    pub fn respell(&mut self, place: &str, spelled: &str) {
        self.respell_each(|written, _| written.replace(place, spelled));
    }

    /// Replaces each piece written by the template with the result of `spell`, which also gets the next character,
    /// if any.
    pub fn respell_each(&mut self, spell: impl Fn(&str, Option<char>) -> String) {
        let mut text = String::with_capacity(self.text.len());
        let (mut done, mut ranges) = (0, Vec::with_capacity(self.from_request.len()));
        for range in self.from_request.drain(..) {
            let next = self.text[range.start..].chars().next();
            text.push_str(&spell(&self.text[done..range.start], next));
            let start = text.len();
            text.push_str(&self.text[range.clone()]);
            ranges.push(start..text.len());
            done = range.end;
        }
        text.push_str(&spell(&self.text[done..], None));
        (self.text, self.from_request) = (text, ranges);
    }

    /// Number of times that the template, not the request, wrote a text.
    pub fn writes(&self, place: &str) -> usize {
        let ends = self.from_request.iter().map(|range| range.start).chain([self.text.len()]);
        let starts = [0].into_iter().chain(self.from_request.iter().map(|range| range.end));
        starts.zip(ends).map(|(start, end)| self.text[start..end].matches(place).count()).sum()
    }

    /// Replaces a letter in the request's text, as if the template had written the replacement.
    pub fn place_each(&mut self, letter: char, place: &str) {
        let mut text = String::with_capacity(self.text.len());
        let (mut done, mut ranges) = (0, Vec::with_capacity(self.from_request.len()));
        for range in self.from_request.drain(..) {
            text.push_str(&self.text[done..range.start]);
            for (index, said) in self.text[range.clone()].split(letter).enumerate() {
                if index > 0 {
                    text.push_str(place);
                }
                let start = text.len();
                text.push_str(said);
                if !said.is_empty() {
                    ranges.push(start..text.len());
                }
            }
            done = range.end;
        }
        text.push_str(&self.text[done..]);
        (self.text, self.from_request) = (text, ranges);
    }

    /// Keeps the first `end` bytes, which must end at a character boundary.
    fn truncate(&mut self, end: usize) {
        self.text.truncate(end);
        self.from_request.retain_mut(|range| {
            range.end = range.end.min(end);
            range.start < range.end
        });
    }
}

impl ChatTemplate {
    /// Parses `source`. `bos` and `eos` are the texts of the tokens that begin and end a text, or empty; `file` is
    /// named in errors.
    ///
    /// # Errors
    /// [`LoadError::Corrupt`] with the line, if it is no Jinja program.
    pub fn new(source: &str, bos: &str, eos: &str, file: &str) -> Result<Self, LoadError> {
        let tree = parser::parse(source).map_err(|error| LoadError::Corrupt {
            file: file.to_owned(),
            what: "chat template".into(),
            reason: format!("syntax error: {} (in {NAME}:{})", error.reason, error.line),
        })?;
        Ok(ChatTemplate { tree, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Texts of the tokens that begin and end a text, or empty.
    pub fn ends(&self) -> [&str; 2] {
        [&self.bos, &self.eos]
    }

    /// Renders the prompt of a conversation. `interrupted` is checked repeatedly; it must be cheap.
    ///
    /// # Errors
    /// [`RequestError::Interrupted`]. [`RequestError::Invalid`] for `messages`, with the template's words, if it
    /// refuses the conversation or exceeds the limits of a prompt; for `template_kwargs_json`, if it sets the
    /// engine's own variables; for `continue_final_message`, if the last message cannot be continued.
    pub fn render(
        &self,
        chat: &Chat,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RenderedPrompt, RequestError> {
        self.render_with(chat, Content::Text, false, interrupted)
    }

    /// Renders like [`ChatTemplate::render`], with message contents in the form `content`, and optionally with the
    /// tools in the system message too.
    pub fn render_with(
        &self,
        chat: &Chat,
        content: Content,
        tools_in_message: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RenderedPrompt, RequestError> {
        let Some(last) = chat.messages.last() else {
            return Err(RequestError::invalid("messages", "must not be empty"));
        };
        if !chat.continue_final_message {
            return self.run(chat, content, tools_in_message, interrupted);
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
        let mut rendered = self.run(&tagged, content, tools_in_message, interrupted)?;
        let text = rendered.text.as_str();
        match text.rfind(CONTINUE_TAG.trim_end()) {
            Some(end) if text.contains(last.content.trim()) => {
                // A template that trims the message would have trimmed the marker's end too.
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

    fn run(
        &self,
        chat: &Chat,
        content: Content,
        tools_in_message: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<RenderedPrompt, RequestError> {
        let Context { variables, now } = context(chat, [&self.bos, &self.eos], content, tools_in_message)?;
        let meter = Meter::new(request_bytes(chat), interrupted);
        let run = Run::new(&self.tree, &meter, variables, now);
        match run.finish() {
            Ok(out) => {
                let (text, from_request) = out.into_parts();
                Ok(RenderedPrompt { text, from_request })
            }
            Err((fault, line)) => Err(refusal(*fault, line)),
        }
    }
}

/// Bytes of a conversation's messages.
fn request_bytes(chat: &Chat) -> usize {
    let bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    chat.messages.iter().map(|message| message.content.len() + bytes(&message.reasoning_content)).sum()
}

/// Error of a failed run for the client.
fn refusal(fault: Fault, line: u32) -> RequestError {
    let reason = match fault {
        Fault::Interrupted => return RequestError::Interrupted,
        Fault::NoDate => {
            let reason =
                format!("the chat template asks for the date: give the variable {NOW}, seconds since 1970");
            return RequestError::invalid("template_kwargs_json", reason);
        }
        Fault::Raised(words) => words,
        Fault::Steps => format!("the chat template did not finish within {TEMPLATE_STEPS_MAX} steps"),
        Fault::Bytes(most) => format!("the chat template makes values of over {most} bytes"),
        Fault::Output => format!("make a prompt of over {TEMPLATE_OUTPUT_BYTES_MAX} bytes"),
        Fault::Failed(why) => format!("the chat template failed: {why} (in {NAME}:{line})"),
    };
    RequestError::invalid("messages", shortened(&reason))
}

fn shortened(words: &str) -> String {
    let fitting =
        words.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= ERROR_BYTES_MAX);
    words[..fitting.last().unwrap_or(0)].to_owned()
}
