//! Prompts of requests: what they are made of, and their tokens, through the model's chat template and tokenizer.

mod enforced;
pub(crate) mod media;
mod overflow;
pub(crate) mod pictures;
mod sounds;

use std::slice;

use hanzo_engine_runtime::{
    Job, MediaSpan, RequestError, TextModel, Tool, ToolFormat, chat::Chat, infill::Gap,
};

use crate::error::Error;

pub(crate) use enforced::constraint_of;
use media::PreparedMedia;
pub(crate) use media::{RequestedMedia, check_whole};
pub(crate) use overflow::{CompletionLimits, Keep, Overflow, Truncate};
pub(crate) use pictures::RequestedPicture;
pub(crate) use sounds::RequestedSound;

/// Tools of a chat and the rules for calling them.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Whether one response may have several calls.
    pub(crate) parallel: bool,
    /// Format of calls, instead of the model's own.
    pub(crate) format: Option<ToolFormat>,
}

/// Rule for calling tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

/// Prompt of a request.
#[derive(Clone, Debug)]
pub(crate) enum PromptSource {
    Chat(Chat),
    /// Text; with `parse_special`, control tokens written in it are recognised.
    Text {
        text: String,
        parse_special: bool,
    },
    Tokens(Vec<u32>),
    Gap(Gap),
}

/// Treatment of special tokens while a text is tokenized.
#[derive(Clone, Copy)]
pub(crate) struct SpecialTokens {
    /// Adds those that the model's prompts begin or end with.
    pub(crate) add: bool,
    /// Reads those that the text spells out.
    pub(crate) parse: bool,
}

/// Tokens of a plain text.
pub(crate) fn encoded(
    model: &TextModel,
    text: &str,
    special: SpecialTokens,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<u32>, RequestError> {
    let all = 0..text.len();
    let plain = if special.parse { &[][..] } else { slice::from_ref(&all) };
    model.tokenizer.encode_until(text, plain, special.add, interrupted)
}

/// Tokens of a prompt.
#[derive(Default)]
pub(crate) struct PromptTokens {
    pub(crate) tokens: Vec<u32>,
    /// Text of the prompt, if it was given as text.
    pub(crate) text: Option<String>,
    pub(crate) media: Vec<MediaSpan>,
    /// Stop tokens that fill-in-the-middle adds.
    pub(crate) ends: Vec<u32>,
}

/// Tokenizes the prompt of a job, and sets how the job's reasoning is read. A text may have `tokens_most` tokens, and a part of a gap `context_tokens_max`.
pub(crate) fn prompt_tokens(
    prompt: PromptSource,
    job: &mut Job,
    text: &TextModel,
    perceived: PreparedMedia,
    tokens_most: usize,
    context_tokens_max: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<PromptTokens, Error> {
    match prompt {
        PromptSource::Chat(mut chat) => {
            if job.calls.is_none() {
                // Tools that must not be called are not shown to the model.
                chat.tools.clear();
            }
            if job.reasoning_tokens_max == Some(0) {
                chat.kwargs.entry("enable_thinking").or_insert(false.into());
            }
            let said = text.thinking.apply(&mut chat);
            let prompt = text.prompt_from_chat(&chat, tokens_most, interrupted)?;
            let (tokens, media) = perceived.placed(prompt.tokens, text)?;
            job.split_reasoning = true;
            job.starts_in_reasoning = prompt.starts_in_reasoning;
            job.reasoning_is_over = prompt.reasoning_is_over;
            job.reasoning_tokens_max = job.reasoning_tokens_max.or(said);
            Ok(PromptTokens { tokens, text: Some(prompt.text), media, ends: Vec::new() })
        }
        PromptSource::Text { text: prompt, parse_special } => {
            text.tokenizer.check_length("prompt", &prompt, tokens_most, interrupted)?;
            let tokens =
                encoded(text, &prompt, SpecialTokens { add: true, parse: parse_special }, interrupted)?;
            Ok(PromptTokens { tokens, text: Some(prompt), ..PromptTokens::default() })
        }
        PromptSource::Tokens(tokens) => Ok(PromptTokens { tokens, ..PromptTokens::default() }),
        PromptSource::Gap(gap) => {
            let Some(infill) = &text.infill else {
                let reason = "this model has no tokens for filling in the middle of a text";
                return Err(Error::field("suffix", format!("{reason}; leave it out")));
            };
            let said = [&gap.prefix, &gap.suffix, &gap.middle].into_iter();
            for said in said.chain(gap.files.iter().map(|(_, text)| text)) {
                text.tokenizer.check_length("prompt", said, context_tokens_max, interrupted)?;
            }
            let tokens = infill.prompt(&gap, &text.tokenizer)?;
            let ends = infill.ends.clone();
            Ok(PromptTokens { tokens, ends, ..PromptTokens::default() })
        }
    }
}

/// Input to tokenize.
pub(crate) enum TokenizeInput {
    /// Conversation, with its pictures and sounds.
    Chat(Chat, RequestedMedia),
    Text {
        text: String,
        add_special: bool,
        parse_special: bool,
    },
}

/// Tokens of the input, with those of pictures and sounds in their places, and the text that they stand for.
///
/// # Errors
/// Errors of the runtime that name the field.
pub(crate) fn tokenize(
    input: TokenizeInput,
    model: &TextModel,
    context_tokens_max: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<(Vec<u32>, String), Error> {
    match input {
        TokenizeInput::Chat(mut chat, media) => {
            let perceived = media.perceived(model, context_tokens_max, interrupted)?;
            model.thinking.apply(&mut chat);
            let prompt = model.prompt_from_chat(&chat, usize::MAX, interrupted).map_err(of_text)?;
            Ok((perceived.placed(prompt.tokens, model)?.0, prompt.text))
        }
        TokenizeInput::Text { text, add_special, parse_special } => {
            let special = SpecialTokens { add: add_special, parse: parse_special };
            let ids = encoded(model, &text, special, interrupted).map_err(of_text)?;
            Ok((ids, text))
        }
    }
}

/// Renames the tokenizer's field `prompt` to the call's `text`.
fn of_text(error: RequestError) -> Error {
    match error {
        RequestError::Invalid { field: "prompt", reason } => Error::field("text", reason),
        other => other.into(),
    }
}
