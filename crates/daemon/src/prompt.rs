//! Conversion of a request to a job for the worker: chat template, tokenizer, the model's defaults and limits.
//! `prompt_builder` decides when that runs and for how long.

mod enforced;
pub(crate) mod media;
mod overflow;
pub(crate) mod pictures;
mod size;
mod sounds;
mod tokens;

use std::{slice, sync::Arc};

use hanzo_engine_constraints::{Grammar, Spec};
use hanzo_engine_runtime::{
    CallReading, ClientId, Job, RequestError, SamplingParams, Speculation, StopConditions, TextModel, Tool,
    ToolFormat, chat::Chat, infill::Gap, limits::STOP_TOKENS_MAX,
};

use crate::{error::Error, served::ServedModel};

use enforced::{ToolConstraint, enforced, within_channels};
pub(crate) use media::RequestedMedia;
use overflow::room;
pub(crate) use overflow::{Keep, Overflow, Truncate};
pub(crate) use pictures::RequestedPicture;
pub(crate) use sounds::RequestedSound;
use tokens::{PromptTokens, prompt_tokens};

/// Generation request in the engine's types.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) prompt: PromptSource,
    /// Pictures and sounds of a chat.
    pub(crate) media: RequestedMedia,
    pub(crate) sampling: SamplingParams,
    /// Stop conditions, without `max_tokens`, which is in [`GenerationRequest::max_tokens`].
    pub(crate) stop: StopConditions,
    pub(crate) max_tokens: Option<u32>,
    /// Additional limit of each completion's tokens.
    pub(crate) completion_tokens_max: Option<u32>,
    pub(crate) constraint: Option<Spec>,
    pub(crate) choices: u32,
    pub(crate) priority: i32,
    pub(crate) echo: bool,
    pub(crate) prompt_logprobs: Option<u8>,
    pub(crate) prediction: String,
    /// Limit of reasoning tokens; `None` follows the conversation's settings.
    pub(crate) reasoning_tokens_max: Option<u32>,
    /// Tools of a chat.
    pub(crate) tools: Option<ToolUse>,
    pub(crate) overflow: Overflow,
    pub(crate) cache_salt: Vec<u8>,
    pub(crate) skip_cache: bool,
}

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

/// Job, with the prompt's text if it is to be echoed.
pub(crate) struct Built {
    pub(crate) job: Job,
    pub(crate) echo: Option<String>,
}

/// Builds the job of a request. The context's remaining length limits the completion, whatever was requested.
///
/// # Errors
/// Errors of the runtime that name the field.
pub(crate) fn build(
    mut request: GenerationRequest,
    client: Option<ClientId>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<Built, Error> {
    let text = &served.text;
    let (calls, constraint) = compiled_constraint(&mut request, client, served, interrupted)?;
    let context_tokens_max = served.size.context_tokens_max();
    let shifts = request.overflow.shifts(served.prompts.shifts() && request.media.is_empty());
    let perceived = std::mem::take(&mut request.media).perceived(text, context_tokens_max, interrupted)?;
    let is_gap = matches!(request.prompt, PromptSource::Gap(_));
    let tokens_most = request.overflow.tokens_most(shifts, context_tokens_max);
    let may_call = calls.is_some();
    let PromptTokens {
        mut tokens,
        text: rendered,
        media,
        split_reasoning,
        starts_in_reasoning,
        reasoning_is_over,
        reasoning_tokens_max,
        ends,
    } = prompt_tokens(&mut request, text, perceived, may_call, tokens_most, context_tokens_max, interrupted)?;
    let (context_shift, is_cut) =
        request.overflow.cut(&mut tokens, is_gap, shifts, context_tokens_max, request.max_tokens)?;
    media::check_whole(&media, is_cut, shifts)?;
    let rendered = rendered.filter(|_| !is_cut);
    let room = completion_room(&request, tokens.len(), context_tokens_max, shifts)?;
    let prediction = match request.prediction.as_str() {
        prediction if prediction.is_empty() || served.size.speculation() == Speculation::Off => Vec::new(),
        prediction => {
            let mut tokens =
                encoded(text, prediction, SpecialTokens { add: false, parse: false }, interrupted)?;
            tokens.truncate(room as usize);
            tokens
        }
    };
    let max_tokens = completion_limit(&request, text.generation.max_new_tokens, room);
    let job = Job {
        adapter: None,
        id: served.next_job(),
        choices: request.choices,
        sampling: request.sampling,
        stop: stop_conditions(request.stop, text, max_tokens, ends),
        constraint,
        priority: request.priority,
        client,
        starts_in_reasoning,
        reasoning_is_over,
        split_reasoning,
        reasoning_tokens_max,
        calls,
        prompt: tokens.into(),
        media: media.into(),
        prompt_logprobs: request.prompt_logprobs,
        prediction: prediction.into(),
        context_shift,
        cache_salt: request.cache_salt.into(),
        skip_cache: request.skip_cache,
    };
    job.validate(text, context_tokens_max)?;
    let echo = request.echo.then(|| rendered.unwrap_or_else(|| text.tokenizer.decode(&job.prompt, false)));
    Ok(Built { job, echo })
}

/// Stop conditions of a completion of at most `max_tokens` tokens. `ends` are stop tokens to add.
fn stop_conditions(
    stop: StopConditions,
    text: &TextModel,
    max_tokens: u32,
    ends: Vec<u32>,
) -> StopConditions {
    // Stop conditions of a request replace the model's own as a whole.
    let own_stops = stop.strings.is_empty() && stop.token_ids.is_empty();
    StopConditions {
        max_tokens,
        min_tokens: match stop.min_tokens {
            0 => text.generation.min_new_tokens.unwrap_or(0).min(max_tokens),
            asked => asked,
        },
        strings: if own_stops { text.generation.stop.clone() } else { stop.strings },
        token_ids: {
            let asked = if own_stops { text.stop_tokens.clone() } else { stop.token_ids };
            let room = STOP_TOKENS_MAX.saturating_sub(asked.len());
            let ends = ends.into_iter().filter(|_| !stop.ignore_eos);
            asked.into_iter().chain(ends.take(room)).collect()
        },
        ..stop
    }
}

/// Compiled constraint of the response, and the parser of tool calls if there may be any.
fn compiled_constraint(
    request: &mut GenerationRequest,
    client: Option<ClientId>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<(Option<CallReading>, Option<Arc<Grammar>>), Error> {
    let text = &served.text;
    let compiled = |spec| served.constraints.compiled(spec, text, client, interrupted);
    match request.tools.take() {
        Some(used) => {
            let ToolConstraint { calls, spec, must } =
                enforced(used, text, request.constraint.take(), interrupted)?;
            let constraint = match spec.map(compiled).transpose() {
                // Too many tools to compile a constraint for are still usable without one.
                Err(Error::Field { .. } | Error::Busy { .. }) if !must => None,
                Err(Error::Field { reason, .. }) if calls.is_some() => {
                    return Err(Error::field("tools", reason));
                }
                constraint => constraint?,
            };
            Ok((calls, constraint))
        }
        None => {
            let is_chat = matches!(request.prompt, PromptSource::Chat(_));
            let constraint = if is_chat {
                within_channels(request.constraint.take(), text, interrupted)?
            } else {
                request.constraint.take()
            };
            Ok((None, constraint.map(compiled).transpose()?))
        }
    }
}

/// Tokens that a completion may have after a prompt of `prompt_tokens` tokens.
fn completion_room(
    request: &GenerationRequest,
    prompt_tokens: usize,
    context_tokens_max: usize,
    shifts: bool,
) -> Result<u32, RequestError> {
    match request.max_tokens {
        // A prompt that is only scored may fill the context.
        Some(0) => Ok(context_tokens_max.saturating_sub(prompt_tokens).min(u32::MAX as usize) as u32),
        // With context shift the completion has the requested length, or else that of a context.
        max_tokens if shifts => {
            room(prompt_tokens, context_tokens_max, None, 0)?;
            Ok(max_tokens.unwrap_or((context_tokens_max as u32).max(request.stop.min_tokens)))
        }
        max_tokens => room(prompt_tokens, context_tokens_max, max_tokens, request.stop.min_tokens),
    }
}

/// Maximum number of tokens of a completion that has room for `room`. `own` is the model's default limit.
fn completion_limit(request: &GenerationRequest, own: Option<u32>, room: u32) -> u32 {
    let max_tokens = match (request.max_tokens, own) {
        (Some(asked), _) => asked.min(room),
        // `min_tokens` above the model's default limit raises it.
        (None, Some(own)) => own.max(request.stop.min_tokens).clamp(1, room),
        (None, None) => room,
    };
    request.completion_tokens_max.map_or(max_tokens, |most| max_tokens.min(most))
}

/// Treatment of special tokens while a text is tokenized.
#[derive(Clone, Copy)]
struct SpecialTokens {
    /// Adds those that the model's prompts begin or end with.
    add: bool,
    /// Reads those that the text spells out.
    parse: bool,
}

/// Tokens of a plain text.
fn encoded(
    model: &TextModel,
    text: &str,
    special: SpecialTokens,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<u32>, RequestError> {
    let all = 0..text.len();
    let plain = if special.parse { &[][..] } else { slice::from_ref(&all) };
    model.tokenizer.encode_until(text, plain, special.add, interrupted)
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
