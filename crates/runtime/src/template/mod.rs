//! Chat templates: a model's own Jinja program turns a conversation into its prompt. The interpreter is ours, made
//! for programs that nobody vouches for: nesting is bounded when one is parsed, and steps, bytes, depth and the
//! time without a look at who waits when it runs, so that the worst of them is one request's error. And it knows of
//! every character of a prompt whether the template wrote it or the request.
//!
//! What transformers gives its templates is there: `raise_exception`, `tojson` as Python writes it, Python's methods
//! of strings and dictionaries, `break` and `continue`, trimmed blocks, values that cannot be changed.
//! `strftime_now` is there when the conversation's variables have `now`, the time in seconds since 1970: the
//! runtime has no clock. Templates that test for it fall back to a date of their own without it.

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
pub(crate) mod turns;
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

pub(crate) use self::context::Content;
use self::{
    context::{Context, NOW, context},
    meter::{Fault, Meter},
    run::Run,
    tree::Tree,
};
use crate::{
    chat::Chat,
    error::{LoadError, RequestError},
    limits::{TEMPLATE_OUTPUT_BYTES_MAX, TEMPLATE_STEPS_MAX},
};

/// The template's name in errors.
const NAME: &str = "chat_template";
/// Bytes of a template's own words that an error repeats.
const ERROR_BYTES_MAX: usize = 1000;
/// Marks where the message that is to be continued ends; transformers' own marker.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    tree: Tree,
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
    /// Puts something in the place of what the template, and not the request, has written.
    pub(crate) fn respell(&mut self, place: &str, spelled: &str) {
        self.respell_each(|written, _| written.replace(place, spelled));
    }

    /// Puts what `spell` makes of each piece that the template has written in its place. It is told the character that follows, if one
    /// does.
    pub(crate) fn respell_each(&mut self, spell: impl Fn(&str, Option<char>) -> String) {
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

    /// How often the template, and not the request, has written something.
    pub(crate) fn writes(&self, place: &str) -> usize {
        let ends = self.from_request.iter().map(|range| range.start).chain([self.text.len()]);
        let starts = [0].into_iter().chain(self.from_request.iter().map(|range| range.end));
        starts.zip(ends).map(|(start, end)| self.text[start..end].matches(place).count()).sum()
    }

    /// Puts something in the place of a letter of the request's, as if the template had written it.
    pub(crate) fn place_each(&mut self, letter: char, place: &str) {
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

    /// Leaves the first `end` bytes, which must end with a character.
    fn truncate(&mut self, end: usize) {
        self.text.truncate(end);
        self.from_request.retain_mut(|range| {
            range.end = range.end.min(end);
            range.start < range.end
        });
    }
}

impl ChatTemplate {
    /// Parses `source`. `bos` and `eos` are the texts of the tokens that begin and end a text, or nothing;
    /// `file` is named in errors.
    ///
    /// # Errors
    /// [`LoadError::Corrupt`] with the line, for what is not a Jinja program.
    pub fn new(source: &str, bos: &str, eos: &str, file: &str) -> Result<Self, LoadError> {
        let tree = parser::parse(source).map_err(|error| LoadError::Corrupt {
            file: file.to_owned(),
            what: "chat template".into(),
            reason: format!("syntax error: {} (in {NAME}:{})", error.reason, error.line),
        })?;
        Ok(ChatTemplate { tree, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The texts of the tokens that begin and end a text, or nothing.
    pub fn ends(&self) -> [&str; 2] {
        [&self.bos, &self.eos]
    }

    /// The prompt of a conversation. `interrupted` is asked now and then whether to go on; it is cheap.
    ///
    /// # Errors
    /// [`RequestError::Interrupted`]; [`RequestError::Invalid`]: of `messages`, with the template's words, where it
    /// refuses the conversation or uses up what one prompt may take; of `template_kwargs_json` for variables that
    /// are the engine's own; of `continue_final_message` where the last message cannot be continued.
    pub fn render(&self, chat: &Chat, interrupted: &dyn Fn() -> bool) -> Result<Rendered, RequestError> {
        self.render_with(chat, Content::Text, false, interrupted)
    }

    /// As [`ChatTemplate::render`], with messages' contents as `content` says, and perhaps with the tools in the system's message too.
    pub(crate) fn render_with(
        &self,
        chat: &Chat,
        content: Content,
        tools_in_message: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Rendered, RequestError> {
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

    fn run(
        &self,
        chat: &Chat,
        content: Content,
        tools_in_message: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Rendered, RequestError> {
        let Context { variables, now } = context(chat, [&self.bos, &self.eos], content, tools_in_message)?;
        let meter = Meter::new(request_bytes(chat), interrupted);
        let run = Run::new(&self.tree, &meter, variables, now);
        match run.finish() {
            Ok(out) => {
                let (text, from_request) = out.into_parts();
                Ok(Rendered { text, from_request })
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

/// What a failed run says to the one who asked for it.
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
