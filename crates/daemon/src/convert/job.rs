//! Building of a job from a generation request: the prompt's tokens, the constraint, the model's defaults and limits.
//! Refuses invalid fields by name; the runtime checks ranges. `prompt_builder` decides when that runs and for how long.

use hanzo_engine_constraints::Spec;
use hanzo_engine_proto::v1::{self, infer_request::Prompt};
use hanzo_engine_runtime::{
    ClientId, Job, Speculation, StopConditions, TextModel, Tool, ToolFormat,
    chat::Chat,
    infill::Gap,
    limits::{CHOICES_MAX, PREDICTION_BYTES_MAX, STOP_TOKENS_MAX, TOP_LOGPROBS_MAX},
    load::GenerationDefaults,
    tokenizer::CutSide,
};
use prost::Message as _;

use super::{
    embed::truncate_side,
    request::{ONLY_OF_TEXT, chat, chat_is_large},
    sampling::sampling,
};
use crate::{
    error::{Error, quote},
    limits::{CACHE_SALT_BYTES_MAX, INFILL_FILES_MAX},
    prompt::{
        CompletionLimits, Keep, Overflow, PromptSource, PromptTokens, RequestedMedia, SpecialTokens,
        ToolChoice, ToolUse, Truncate, check_whole, constraint_of, encoded, prompt_tokens,
    },
    prompt_builder,
    served::ServedModel,
};

/// Job, with the prompt's text if it is to be echoed.
pub(crate) struct Built {
    pub(crate) job: Job,
    pub(crate) echo: Option<String>,
}

/// Job under construction, and the parts of its request that the model turns into the rest of it.
struct Draft {
    /// Lacks the prompt, the constraint and the limit of the completion.
    job: Job,
    prompt: PromptSource,
    /// Pictures and sounds of a chat.
    media: RequestedMedia,
    /// Tools of a chat.
    tools: Option<ToolUse>,
    constraint: Option<Spec>,
    limits: CompletionLimits,
    prediction: String,
    overflow: Overflow,
    echo: bool,
}

/// Builds the job of a request. The context's remaining length limits the completion, whatever was requested.
///
/// # Errors
/// Errors that name the field.
pub(crate) fn build(
    request: v1::InferRequest,
    client: Option<ClientId>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<Built, Error> {
    let mut draft = Draft::of(request, &served.text.generation)?;
    draft.job.client = client;
    draft.built(served, interrupted)
}

/// Checks a request as far as no model is needed.
///
/// # Errors
/// [`Error::Field`].
pub(crate) fn check(request: v1::InferRequest) -> Result<(), Error> {
    Draft::of(request, &GenerationDefaults::default()).map(drop)
}

/// Number of completions that a request asks for.
///
/// # Errors
/// [`Error::Field`] above the maximum.
pub(crate) fn choices(request: &v1::InferRequest) -> Result<u32, Error> {
    match request.choices.max(1) {
        choices if choices > CHOICES_MAX => {
            Err(Error::field("choices", format!("must be at most {CHOICES_MAX}, not {choices}")))
        }
        choices => Ok(choices),
    }
}

/// Whether building the job takes much memory.
pub(crate) fn is_large(request: &v1::InferRequest) -> bool {
    let infill = request.infill.as_ref().map_or(0, v1::Infill::encoded_len);
    let beside = request.suffix.len() + infill + request.prediction.len();
    match &request.prompt {
        Some(Prompt::Chat(chat)) => chat_is_large(chat, beside),
        Some(Prompt::Text(text)) => prompt_builder::is_large(text.len() + beside),
        Some(Prompt::Tokens(tokens)) => prompt_builder::is_large(size_of_val(&tokens.ids[..]) + beside),
        None => prompt_builder::is_large(beside),
    }
}

impl Draft {
    /// Reads a request. The message is taken apart without `..`, so that no field of the contract is forgotten.
    fn of(request: v1::InferRequest, model: &GenerationDefaults) -> Result<Draft, Error> {
        let choices = choices(&request)?;
        let (logprobs, overflow) = (logprobs(&request)?, overflow(&request)?);
        let v1::InferRequest {
            // Read by the call.
            model: _,
            adapter: _,
            request_id: _,
            client: _,
            keep_alive: _,
            load_progress: _,
            // Read above.
            choices: _,
            logprobs: _,
            top_logprobs: _,
            truncate_prompt_tokens: _,
            truncate_side: _,
            context_shift: _,
            keep_tokens: _,
            prompt,
            suffix,
            infill,
            parse_special,
            echo,
            sampling: asked,
            stop,
            completion_tokens_max,
            constraint,
            tool_use,
            reasoning,
            prompt_logprobs,
            prediction,
            cache_salt,
            cache_prompt,
            priority,
        } = request;
        let mut media = RequestedMedia::default();
        let prompt = source(prompt, infill, suffix, parse_special, echo, &mut media)?;
        let (tools, reasoning_tokens_max) = of_chat(&prompt, tool_use, reasoning)?;
        let prompt_logprobs = prompt_logprobs.map(|top| top_count("prompt_logprobs", top)).transpose()?;
        let stop = stop.unwrap_or_default();
        let limits = CompletionLimits {
            max_tokens: stop.max_tokens,
            tokens_max: (completion_tokens_max > 0).then_some(completion_tokens_max),
        };
        check_lengths(limits, prompt_logprobs, &prediction, &cache_salt)?;
        let job = Job {
            choices,
            sampling: sampling(asked.unwrap_or_default(), logprobs, model)?,
            stop: stops(stop),
            priority,
            prompt_logprobs,
            reasoning_tokens_max,
            cache_salt: cache_salt.into_bytes().into(),
            skip_cache: cache_prompt == Some(false),
            ..Job::default()
        };
        let constraint = constraint.map(spec).transpose()?;
        Ok(Draft { job, prompt, media, tools, constraint, limits, prediction, overflow, echo })
    }

    /// Completes the job for a model.
    fn built(self, served: &ServedModel, interrupted: &dyn Fn() -> bool) -> Result<Built, Error> {
        let Draft { mut job, prompt, media, tools, constraint, limits, prediction, overflow, echo } = self;
        let (text, context_tokens_max) = (&served.text, served.size.context_tokens_max());
        let is_chat = matches!(prompt, PromptSource::Chat(_));
        let is_gap = matches!(prompt, PromptSource::Gap(_));
        (job.calls, job.constraint) =
            constraint_of(tools, constraint, is_chat, job.client, served, interrupted)?;
        let shifts = overflow.shifts(served.prompts.shifts() && media.is_empty());
        let perceived = media.perceived(text, context_tokens_max, interrupted)?;
        let tokens_most = overflow.tokens_most(shifts, context_tokens_max);
        let PromptTokens { mut tokens, text: rendered, media, ends } =
            prompt_tokens(prompt, &mut job, text, perceived, tokens_most, context_tokens_max, interrupted)?;
        let (context_shift, is_cut) =
            overflow.cut(&mut tokens, is_gap, shifts, context_tokens_max, limits.max_tokens)?;
        check_whole(&media, is_cut, shifts)?;
        let rendered = rendered.filter(|_| !is_cut);
        let min_tokens = job.stop.min_tokens;
        let room = limits.room(min_tokens, tokens.len(), context_tokens_max, shifts)?;
        if !prediction.is_empty() && served.size.speculation() != Speculation::Off {
            let plain = SpecialTokens { add: false, parse: false };
            let mut predicted = encoded(text, &prediction, plain, interrupted)?;
            predicted.truncate(room as usize);
            job.prediction = predicted.into();
        }
        let max_tokens = limits.of_completion(min_tokens, text.generation.max_new_tokens, room);
        job.stop = with_own_stops(job.stop, text, max_tokens, ends);
        (job.id, job.context_shift) = (served.next_job(), context_shift);
        (job.prompt, job.media) = (tokens.into(), media.into());
        job.validate(text, context_tokens_max)?;
        let echo = echo.then(|| rendered.unwrap_or_else(|| text.tokenizer.decode(&job.prompt, false)));
        Ok(Built { job, echo })
    }
}

/// Checks the lengths of a request that the runtime does not know.
fn check_lengths(
    limits: CompletionLimits,
    prompt_logprobs: Option<u8>,
    prediction: &str,
    cache_salt: &str,
) -> Result<(), Error> {
    if limits.max_tokens == Some(0) && prompt_logprobs.is_none() {
        return Err(Error::field("stop.max_tokens", "must be at least 1, not 0, without prompt_logprobs"));
    }
    for (field, text, most) in
        [("prediction", prediction, PREDICTION_BYTES_MAX), ("cache_salt", cache_salt, CACHE_SALT_BYTES_MAX)]
    {
        if text.len() > most {
            return Err(Error::field(field, format!("must have at most {most} bytes, not {}", text.len())));
        }
    }
    Ok(())
}

/// Stop conditions of a request. Their `max_tokens` follows when the prompt's length is known.
fn stops(wire: v1::StopConditions) -> StopConditions {
    let v1::StopConditions { max_tokens: _, min_tokens, strings, token_ids, include_stop_string, ignore_eos } =
        wire;
    StopConditions { max_tokens: 0, min_tokens, strings, token_ids, include_stop_string, ignore_eos }
}

/// Converts the options for prompts that are too long.
fn overflow(wire: &v1::InferRequest) -> Result<Overflow, Error> {
    let side = match truncate_side(wire.truncate_side)? {
        v1::TruncateSide::Right => CutSide::Right,
        v1::TruncateSide::Left | v1::TruncateSide::Unspecified => CutSide::Left,
    };
    let most = |field, tokens: i32, least| match usize::try_from(tokens) {
        Ok(tokens) if tokens >= least => Ok(Some(tokens)),
        _ if tokens == -1 => Ok(None),
        _ => Err(Error::field(field, format!("must be -1 or at least {least}, not {tokens}"))),
    };
    let truncate = wire.truncate_prompt_tokens.map(|tokens| most("truncate_prompt_tokens", tokens, 1));
    let keep = wire.keep_tokens.map(|tokens| most("keep_tokens", tokens, 0)).transpose()?;
    Ok(Overflow {
        truncate: truncate.transpose()?.map(|tokens| Truncate { tokens, side }),
        shift: wire.context_shift,
        keep: keep.map(|tokens| tokens.map_or(Keep::Prompt, Keep::Tokens)),
    })
}

/// Alternatives of each token's log probability, if they are requested.
fn logprobs(wire: &v1::InferRequest) -> Result<Option<u8>, Error> {
    match (wire.logprobs, wire.top_logprobs) {
        (false, 0) => Ok(None),
        (false, _) => Err(Error::field("top_logprobs", "needs logprobs to be set")),
        (true, top) => top_count("top_logprobs", top).map(Some),
    }
}

/// Number of alternatives of each token, from the field `field`.
fn top_count(field: &'static str, top: u32) -> Result<u8, Error> {
    if top as usize > TOP_LOGPROBS_MAX {
        return Err(Error::field(field, format!("must be 0 to {TOP_LOGPROBS_MAX}, not {top}")));
    }
    // At most TOP_LOGPROBS_MAX, far below 256.
    Ok(top as u8)
}

/// Converts the prompt of a request. Pictures and sounds of a chat are added to `media`.
fn source(
    prompt: Option<Prompt>,
    infill: Option<v1::Infill>,
    suffix: String,
    parse_special: Option<bool>,
    echo: bool,
    media: &mut RequestedMedia,
) -> Result<PromptSource, Error> {
    let fills_in = infill.is_some() || !suffix.is_empty();
    let field = if infill.is_some() { "infill" } else { "suffix" };
    match prompt {
        Some(Prompt::Text(_)) if fills_in && echo => {
            Err(Error::field(field, "must be unset with echo: the prompt is not one text"))
        }
        Some(Prompt::Text(_)) if fills_in && parse_special == Some(true) => {
            Err(Error::field("parse_special", "must not be true: what is around a gap is text"))
        }
        Some(Prompt::Text(prefix)) if fills_in => {
            Ok(PromptSource::Gap(gap(prefix, suffix, infill.unwrap_or_default())?))
        }
        _ if fills_in => Err(Error::field(field, "must be unset but with text")),
        Some(Prompt::Text(text)) => {
            Ok(PromptSource::Text { text, parse_special: parse_special.unwrap_or(true) })
        }
        _ if parse_special.is_some() => Err(Error::field("parse_special", ONLY_OF_TEXT)),
        Some(Prompt::Chat(wire)) => Ok(PromptSource::Chat(chat(wire, media)?)),
        Some(Prompt::Tokens(tokens)) => Ok(PromptSource::Tokens(tokens.ids)),
        None => Err(Error::field("prompt", "must be set: one of chat, text, tokens")),
    }
}

/// Converts the fields that only a chat may have: the use of its tools, and the limit of its reasoning.
fn of_chat(
    prompt: &PromptSource,
    tools: Option<v1::ToolUse>,
    reasoning: Option<v1::Reasoning>,
) -> Result<(Option<ToolUse>, Option<u32>), Error> {
    match (prompt, tools, reasoning) {
        (PromptSource::Chat(chat), tools, reasoning) => {
            let tools = tool_use(tools.unwrap_or_default(), chat)?;
            Ok((Some(tools), reasoning.and_then(|reasoning| reasoning.tokens_max)))
        }
        (_, _, Some(_)) => {
            let reason = "must be unset but with chat: nothing says where a bare text's reasoning is";
            Err(Error::field("reasoning", reason))
        }
        (_, Some(_), None) => Err(Error::field("tool_use", "must be unset but with chat")),
        (_, None, None) => Ok((None, None)),
    }
}

/// Converts a constraint. Compiling it shows later whether it can be enforced.
fn spec(wire: v1::Constraint) -> Result<Spec, Error> {
    use v1::constraint::Of;
    match wire.of {
        Some(Of::JsonObject(true)) => Ok(Spec::JsonObject),
        Some(Of::JsonObject(false)) => Err(Error::field("constraint.json_object", "must be true, or unset")),
        Some(Of::JsonSchema(schema)) => Ok(Spec::JsonSchema(schema)),
        Some(Of::Regex(expression)) => Ok(Spec::Regex(expression)),
        Some(Of::Choices(choices)) => Ok(Spec::Choices(choices.texts)),
        Some(Of::Lark(grammar)) => Ok(Spec::Lark(grammar)),
        Some(Of::Gbnf(grammar)) => Ok(Spec::Gbnf(grammar)),
        None => Err(Error::field(
            "constraint",
            "must be one of json_object, json_schema, regex, choices, lark, gbnf",
        )),
    }
}

fn gap(prefix: String, suffix: String, wire: v1::Infill) -> Result<Gap, Error> {
    if wire.files.len() > INFILL_FILES_MAX {
        let reason = format!("must have at most {INFILL_FILES_MAX}, not {}", wire.files.len());
        return Err(Error::field("infill.files", reason));
    }
    let files = wire.files.into_iter().map(|file| (file.name, file.text)).collect();
    Ok(Gap { prefix, suffix, middle: wire.middle, files })
}

/// Converts the use of a chat's tools.
fn tool_use(wire: v1::ToolUse, chat: &Chat) -> Result<ToolUse, Error> {
    use v1::ToolChoice as Choice;
    let choice = Choice::try_from(wire.choice)
        .map_err(|_| Error::field("tool_use.choice", format!("there is no choice {}", wire.choice)))?;
    let tools: Vec<Tool> = chat
        .tools
        .iter()
        .enumerate()
        .map(|(at, json)| {
            let field = || format!("chat.tools_json[{at}]");
            let tool = Tool::of_json(json)
                .ok_or_else(|| Error::field(field(), "must have function.name, a string"))?;
            tool.check().map_err(|reason| Error::field(field(), reason))?;
            Ok(tool)
        })
        .collect::<Result<_, Error>>()?;
    if !wire.named.is_empty() && choice != Choice::Named {
        return Err(Error::field("tool_use.named", "only allowed with TOOL_CHOICE_NAMED"));
    }
    let choice = match choice {
        Choice::Unspecified | Choice::Auto if tools.is_empty() => ToolChoice::None,
        Choice::None => ToolChoice::None,
        Choice::Unspecified | Choice::Auto => ToolChoice::Auto,
        Choice::Required if tools.is_empty() => {
            return Err(Error::field("tool_use.choice", "a call is required, and there are no tools"));
        }
        Choice::Required => ToolChoice::Required,
        Choice::Named if tools.iter().any(|tool| tool.name == wire.named) => ToolChoice::Named(wire.named),
        Choice::Named => {
            let reason = format!("there is no tool {}", quote(&wire.named));
            return Err(Error::field("tool_use.named", reason));
        }
    };
    let format = (!wire.format.is_empty()).then(|| ToolFormat::by_name(&wire.format));
    let format = format.transpose().map_err(|reason| Error::field("tool_use.format", reason))?;
    Ok(ToolUse { tools, choice, parallel: wire.parallel.unwrap_or(true), format })
}

/// Stop conditions of a completion of at most `max_tokens` tokens, with those of the model if the request has none.
/// `ends` are stop tokens to add.
fn with_own_stops(stop: StopConditions, text: &TextModel, max_tokens: u32, ends: Vec<u32>) -> StopConditions {
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
