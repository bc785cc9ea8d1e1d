//! Parses a chat or completion request into a plan: requests to the engine, and how to answer. `openai::events`
//! converts the answer.

use hanzo_engine_proto::v1::{self, infer_request::Prompt};

use crate::{
    config::Config,
    error::ApiError,
    fields::{Field, Fields},
    limits::{CHAT_LOGPROBS_MAX, COMPLETION_LOGPROBS_MAX, STOP_BYTES_MAX, STOP_TOKEN_IDS_MAX},
    names::SentFields,
    openai::{constraint, lines::LineLimits, prompt, sampling, tools, turns::OfferedTools},
    request::{either, keep_alive, model, priority},
    request_id::RequestId,
    unsupported,
    until::Until,
};

/// OpenAI's default for completions. A chat is limited by the context only.
const COMPLETION_MAX_TOKENS: u32 = 16;

/// Validated request: requests to the engine, and how to answer.
#[derive(Debug, Clone)]
pub(crate) struct RequestPlan {
    /// Requests to the engine, one for each prompt.
    pub(crate) requests: Vec<v1::InferRequest>,
    /// Choices of each prompt. Choice `c` of prompt `p` has the index `p * choices + c` in the answer.
    pub(crate) choices: u32,
    pub(crate) stream: bool,
    pub(crate) streaming: StreamOptions,
    /// Names of fields that the client has sent.
    pub(crate) sent: SentFields,
    /// Whether tool calls are answered in the older `function_call` format.
    pub(crate) old_calls: bool,
    /// Limits that end choices early.
    pub(crate) line_limits: Option<LineLimits>,
    /// MCP tools that the model may call.
    pub(crate) offered: Option<OfferedTools>,
    /// Time limit, if it began before the engine is asked.
    pub(crate) until: Option<Until>,
}

impl RequestPlan {
    /// Messages of a chat's only request.
    pub(crate) fn messages(&mut self) -> Option<&mut Vec<v1::Message>> {
        match self.requests.first_mut()?.prompt.as_mut()? {
            Prompt::Chat(chat) => Some(&mut chat.messages),
            Prompt::Text(_) | Prompt::Tokens(_) => None,
        }
    }
}

/// Additional content of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamOptions {
    /// Whether the last chunk has the usage, and the others null.
    pub(crate) include_usage: bool,
    /// Whether every chunk has the usage so far.
    pub(crate) continuous_usage: bool,
    /// Whether every event gets a field of random letters, which hides its text's length from eavesdroppers.
    pub(crate) obfuscate: bool,
}

/// Plan of a chat completion.
pub(crate) fn chat(mut fields: Fields, config: &Config, id: &RequestId) -> Result<RequestPlan, ApiError> {
    let mut plan = common(&mut fields, config, id)?;
    let prompt_logprobs = prompt_logprobs(&mut fields, plan.stream)?;
    let max_tokens = max_tokens(&mut fields, None, prompt_logprobs.is_some())?;
    let prediction = fields.take("prediction").map(prediction).transpose()?.unwrap_or_default();
    let (mut chat, thinking) = prompt::chat(&mut fields)?;
    let tools = tools::read(&mut fields)?;
    chat.tools_json = tools.json;
    plan.old_calls = tools.old;
    let (logprobs, top_logprobs) = chat_logprobs(&mut fields)?;
    unsupported::chat(&mut fields)?;
    fields.finish()?;
    let mut request = plan.requests.remove(0);
    (request.logprobs, request.top_logprobs) = (logprobs, top_logprobs);
    (request.prompt_logprobs, request.prediction) = (prompt_logprobs, prediction);
    set_max_tokens(&mut request, &max_tokens)?;
    request.reasoning = thinking.bounds();
    request.prompt = Some(Prompt::Chat(chat));
    request.tool_use = tools.used;
    plan.requests.push(request);
    Ok(plan)
}

/// Log probabilities that a completion shows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShownLogprobs {
    /// `logprobs`: number of alternatives of each token.
    pub(crate) top: Option<u32>,
    /// Whether they include the prompt's tokens, before the completion's.
    pub(crate) with_prompt: bool,
    /// Whether `prompt_logprobs` was requested.
    pub(crate) of_prompt: bool,
}

/// Plan of a completion, with one request for each prompt, and the log probabilities to show.
pub(crate) fn completion(
    mut fields: Fields,
    config: &Config,
    id: &RequestId,
) -> Result<(RequestPlan, ShownLogprobs), ApiError> {
    let mut plan = common(&mut fields, config, id)?;
    let prompts = prompts(fields.require("prompt")?, config.prompts_max)?;
    let echo = fields.flag("echo")?;
    let asked_of_prompt = prompt_logprobs(&mut fields, plan.stream)?;
    let parse_special = fields.take("parse_special").map(|field| field.boolean()).transpose()?;
    let best_of = fields.take("best_of");
    if let Some(field) = best_of
        && field.value().as_f64() != Some(f64::from(plan.choices))
    {
        return Err(ApiError::unsupported("best_of", "not supported by this build unless it equals n"));
    }
    let logprobs = fields.take("logprobs");
    // Clients that use the chat format send false for none.
    let logprobs = logprobs.filter(|field| field.value().as_bool() != Some(false));
    let logprobs = logprobs.map(|f| f.integer(0..=COMPLETION_LOGPROBS_MAX)).transpose()?.map(|n| n as u32);
    let suffix =
        fields.take("suffix").map(|field| suffix(field, echo, &prompts)).transpose()?.unwrap_or_default();
    if !suffix.is_empty() && parse_special == Some(true) {
        return Err(ApiError::field(
            "parse_special",
            "cannot be true together with suffix, which makes both texts",
        ));
    }
    let with_prompt = echo && logprobs.is_some();
    let scored = asked_of_prompt.max(logprobs.filter(|_| echo));
    let max_tokens = max_tokens(&mut fields, Some(COMPLETION_MAX_TOKENS), scored.is_some())?;
    unsupported::completion(&mut fields)?;
    fields.finish()?;
    let mut base = plan.requests.remove(0);
    base.echo = echo;
    base.suffix = suffix;
    base.logprobs = logprobs.is_some();
    base.top_logprobs = logprobs.unwrap_or(0);
    base.prompt_logprobs = scored;
    set_max_tokens(&mut base, &max_tokens)?;
    let several = prompts.len() > 1;
    plan.requests = prompts
        .into_iter()
        .enumerate()
        .map(|(i, prompt)| v1::InferRequest {
            // Applies to texts only, not to token ids.
            parse_special: parse_special.filter(|_| matches!(prompt, v1::infer_request::Prompt::Text(_))),
            prompt: Some(prompt),
            request_id: id.of_call(i, several),
            ..base.clone()
        })
        .collect();
    Ok((plan, ShownLogprobs { top: logprobs, with_prompt, of_prompt: asked_of_prompt.is_some() }))
}

/// Reads the text that follows the gap after a prompt.
fn suffix(field: Field, echo: bool, prompts: &[Prompt]) -> Result<String, ApiError> {
    let suffix = field.string()?;
    match () {
        () if suffix.is_empty() => {}
        () if echo => {
            return Err(field.error("cannot be used together with echo: there is no one text to repeat"));
        }
        () if prompts.iter().any(|prompt| !matches!(prompt, Prompt::Text(_))) => {
            return Err(field.error("only allowed with a prompt that is text"));
        }
        () => {}
    }
    Ok(suffix)
}

/// Parses the fields that chats and completions share, into a plan with one request without a prompt.
pub(crate) fn common(fields: &mut Fields, config: &Config, id: &RequestId) -> Result<RequestPlan, ApiError> {
    let sent = SentFields::of(fields);
    let model = model(fields)?;
    let choices = either(fields, "n", "n_cmpl")?;
    let choices = choices.map(|f| f.integer(1..=config.choices_max)).transpose()?.unwrap_or(1);
    let stream = fields.flag("stream")?;
    let streaming = match fields.take("stream_options") {
        None => StreamOptions::default(),
        Some(field) if !stream => return Err(field.error("only allowed with stream: true")),
        Some(field) => stream_options(field.object()?)?,
    };
    let mut truncate_side = v1::TruncateSide::Unspecified;
    if let Some(field) = fields.take("truncation_side") {
        truncate_side = match field.word(&["left", "right"])? {
            "left" => v1::TruncateSide::Left,
            _ => v1::TruncateSide::Right,
        };
    }
    let boolean = |fields: &mut Fields, name| fields.take(name).map(Field::boolean).transpose();
    let tokens = |fields: &mut Fields, name| fields.take(name).map(|f| f.integer(-1..=i32::MAX)).transpose();
    let request = v1::InferRequest {
        model,
        truncate_prompt_tokens: tokens(fields, "truncate_prompt_tokens")?,
        truncate_side: truncate_side.into(),
        context_shift: boolean(fields, "context_shift")?,
        keep_tokens: tokens(fields, "n_keep")?,
        cache_salt: fields.take("cache_salt").map(Field::string).transpose()?.unwrap_or_default(),
        cache_prompt: boolean(fields, "cache_prompt")?,
        sampling: Some(sampling::read(fields)?),
        stop: Some(stop_conditions(fields, config)?),
        choices,
        request_id: id.as_str().to_owned(),
        client: id.client(),
        priority: priority(fields)?,
        keep_alive: keep_alive(fields)?,
        constraint: constraint::read(fields)?,
        ..Default::default()
    };
    Ok(RequestPlan {
        requests: vec![request],
        choices,
        stream,
        streaming,
        sent,
        old_calls: false,
        line_limits: None,
        offered: None,
        until: None,
    })
}

fn stream_options(mut options: Fields) -> Result<StreamOptions, ApiError> {
    let streaming = StreamOptions {
        include_usage: options.flag("include_usage")?,
        // Field of vLLM.
        continuous_usage: options.flag("continuous_usage_stats")?,
        obfuscate: options.flag("include_obfuscation")?,
    };
    options.finish()?;
    Ok(streaming)
}

fn stop_conditions(fields: &mut Fields, config: &Config) -> Result<v1::StopConditions, ApiError> {
    let strings = fields.take("stop").map(|f| stop_strings(f, config.stop_strings_max)).transpose()?;
    let token_ids = match fields.take("stop_token_ids") {
        None => Vec::new(),
        Some(field) => {
            let ids = field.token_ids()?;
            if ids.len() > STOP_TOKEN_IDS_MAX {
                let problem = format!("has {} entries, at most {STOP_TOKEN_IDS_MAX}", ids.len());
                return Err(field.error(problem));
            }
            ids
        }
    };
    Ok(v1::StopConditions {
        max_tokens: None,
        min_tokens: fields.take("min_tokens").map(|f| f.integer(0..=u32::MAX)).transpose()?.unwrap_or(0),
        strings: strings.unwrap_or_default(),
        token_ids,
        include_stop_string: fields.flag("include_stop_str_in_output")?,
        ignore_eos: fields.flag("ignore_eos")?,
    })
}

/// Reads the stop strings: one text or a list.
pub(crate) fn stop_strings(field: Field, strings_max: usize) -> Result<Vec<String>, ApiError> {
    let string = |field: Field| {
        let string = field.string()?;
        match string.len() {
            0 => Err(field.error("must not be empty")),
            n if n > STOP_BYTES_MAX => Err(field.error(format!("is over {STOP_BYTES_MAX} bytes long"))),
            _ => Ok(string),
        }
    };
    if field.value().is_string() {
        return Ok(vec![string(field)?]);
    }
    let Some(list) = field.as_list() else {
        return Err(field.error("expected a string or an array of strings"));
    };
    let count = list.clone().count();
    if count > strings_max {
        return Err(field.error(format!("has {count} strings, at most {strings_max}")));
    }
    list.map(string).collect()
}

/// Maximum length of a completion.
pub(crate) struct MaxTokens {
    /// `None`: limited by the context and the model only.
    pub(crate) tokens: Option<u32>,
    /// Client's name of the field.
    name: &'static str,
}

/// Reads the maximum number of tokens under any of its names, or uses `default`. -1 means no limit, as in
/// llama.cpp. 0 is allowed if the prompt is only scored.
pub(crate) fn max_tokens(
    fields: &mut Fields,
    default: Option<u32>,
    prompt_is_scored: bool,
) -> Result<MaxTokens, ApiError> {
    let mut found: Option<(&'static str, i64)> = None;
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let Some(field) = fields.take(name) else { continue };
        let tokens = field.integer(-1..=i64::from(u32::MAX))?;
        match found {
            _ if tokens == 0 && !prompt_is_scored => {
                return Err(field.error("must be at least 1, or -1 for no limit, got 0"));
            }
            Some((other, old)) if old != tokens => {
                let problem = format!("{tokens} contradicts {other}, which is {old}; send one of them");
                return Err(field.error(problem));
            }
            _ => found = Some((name, tokens)),
        }
    }
    Ok(match found {
        // The engine limits it to the rest of the context.
        Some((name, tokens)) => MaxTokens { tokens: Some(u32::try_from(tokens).unwrap_or(u32::MAX)), name },
        None => MaxTokens { tokens: default, name: "max_tokens" },
    })
}

pub(crate) fn set_max_tokens(request: &mut v1::InferRequest, max: &MaxTokens) -> Result<(), ApiError> {
    let stop = request.stop.get_or_insert_default();
    if let Some(max_tokens) = max.tokens.filter(|max| stop.min_tokens > *max) {
        let problem = format!("{} is over {}, which is {max_tokens}", stop.min_tokens, max.name);
        return Err(ApiError::field("min_tokens", problem));
    }
    stop.max_tokens = max.tokens;
    Ok(())
}

/// Reads vLLM's `prompt_logprobs`: alternatives of each prompt token. Like in vLLM, it excludes streaming.
fn prompt_logprobs(fields: &mut Fields, stream: bool) -> Result<Option<u32>, ApiError> {
    let Some(field) = fields.take("prompt_logprobs") else { return Ok(None) };
    if stream {
        return Err(field.error("not allowed with stream: true"));
    }
    Ok(Some(field.integer(0..=CHAT_LOGPROBS_MAX)? as u32))
}

/// Reads the predicted answer: a text or a list of texts.
fn prediction(field: Field) -> Result<String, ApiError> {
    let mut prediction = field.object()?;
    prediction.require("type")?.word(&["content"])?;
    let content = prediction.require("content")?;
    let text = match content.as_list() {
        None => content.string()?,
        Some(parts) => {
            let part = |part: Field| {
                let mut part = part.object()?;
                part.require("type")?.word(&["text"])?;
                let text = part.require("text")?.string()?;
                part.finish()?;
                Ok(text)
            };
            parts.map(part).collect::<Result<String, ApiError>>()?
        }
    };
    prediction.finish()?;
    Ok(text)
}

fn chat_logprobs(fields: &mut Fields) -> Result<(bool, u32), ApiError> {
    let logprobs = fields.flag("logprobs")?;
    let top = fields.take("top_logprobs").map(|f| f.integer(0..=CHAT_LOGPROBS_MAX)).transpose()?.unwrap_or(0);
    if top > 0 && !logprobs {
        return Err(ApiError::field("top_logprobs", "only allowed with logprobs: true"));
    }
    Ok((logprobs, top as u32))
}

fn prompts(field: Field, prompts_max: usize) -> Result<Vec<Prompt>, ApiError> {
    let Some(list) = field.as_list() else {
        let text = field.value().as_str().ok_or_else(|| field.error(PROMPT_EXPECTED))?;
        return Ok(vec![Prompt::Text(text.into_owned())]);
    };
    let tokens = |ids| Prompt::Tokens(v1::TokenIds { ids });
    let Some(first) = list.clone().next().map(|first| first.value()) else {
        return Err(field.error("must not be empty"));
    };
    if first.is_number() {
        return Ok(vec![tokens(field.token_ids()?)]);
    }
    let count = list.clone().count();
    match () {
        () if count > prompts_max => Err(field.error(format!("has {count} prompts, at most {prompts_max}"))),
        () if first.is_string() => list.map(|f| f.string().map(Prompt::Text)).collect(),
        () if first.is_array() => {
            let prompt = |field: Field| match field.token_ids()? {
                ids if ids.is_empty() => Err(field.error("must not be empty")),
                ids => Ok(tokens(ids)),
            };
            list.map(prompt).collect()
        }
        () => Err(field.error(PROMPT_EXPECTED)),
    }
}

const PROMPT_EXPECTED: &str =
    "expected a string, an array of strings, an array of token ids or an array of those";
