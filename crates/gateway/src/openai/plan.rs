//! Parses a chat or completion request into a plan: requests to the engine, and how to answer. `openai::events`
//! converts the answer.

use hanzo_engine_proto::v1::{self, infer_request::Prompt};

use crate::{
    config::Config,
    declare::{Declaration as _, Integer, Raw, Read, Words, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::{CHAT_LOGPROBS_MAX, COMPLETION_LOGPROBS_MAX, STOP_BYTES_MAX, STOP_TOKEN_IDS_MAX},
    names::SentFields,
    openai::{
        constraint::ConstraintFields,
        lines::LineLimits,
        messages,
        prompt::TemplateFields,
        sampling::SamplingFields,
        tools::{self, ToolFields},
        turns::OfferedTools,
    },
    request::{QueueFields, model_name, one_of},
    request_id::RequestId,
    unsupported::{CHAT, COMMON, COMPLETION, HARMLESS},
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

fields! {
    /// Additional content of a stream.
    #[derive(Clone, Copy, Default)]
    pub(crate) struct StreamOptions {
        /// Whether the last event has the usage, and the others null.
        include_usage: bool,
        /// vLLM's setting: whether every event has the usage so far.
        continuous_usage_stats: bool,
        /// Whether every event gets a field of random letters, which hides its text's length from eavesdroppers.
        include_obfuscation: bool,
    }
}

fields! {
    /// Fields that all requests for answers share.
    pub(crate) struct GenerationFields<'a> {
        ..sampling: SamplingFields,
        ..constraint: ConstraintFields<'a>,
        ..queue: QueueFields,
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
        /// Number of answers.
        n?: Field<'a> = Read("integer 1..128", count),
        /// llama.cpp's name of n.
        n_cmpl?: Field<'a> = Read("integer 1..128", count),
        /// Whether the answer comes as it is made, as server-sent events.
        stream: bool,
        /// Additional content of a stream. Only allowed with stream.
        stream_options?: StreamOptions,
        /// End at which truncate_prompt_tokens cuts.
        truncation_side?: &'static str = Words(["left", "right"]),
        /// Number of tokens that the prompt is cut to.
        truncate_prompt_tokens?: i32 = Integer(-1..=i32::MAX),
        /// Whether an answer that fills its context goes on, without the oldest tokens.
        context_shift?: bool,
        /// Number of the first tokens that a context shift keeps.
        n_keep?: i32 = Integer(-1..=i32::MAX),
        /// Salt of the prefix cache: only requests with the same one share what was computed.
        cache_salt?: String,
        /// Whether the prefix cache is used.
        cache_prompt?: bool,
        /// Texts at which the answer ends.
        stop?: Field<'a> = Raw("string | string[]"),
        /// Tokens at which the answer ends.
        stop_token_ids?: Vec<u32> = Read("integer 0..4294967295[]", stop_token_ids),
        /// Number of tokens before which the answer does not end.
        min_tokens?: u32 = Integer(0..=u32::MAX),
        /// Whether the text at which the answer ended is part of it.
        include_stop_str_in_output: bool,
        /// Whether the answer goes on where the model would end it.
        ignore_eos: bool,
    }
}

fields! {
    /// Maximum length of an answer, by all its names.
    pub(crate) struct LengthFields {
        /// Maximum tokens of the answer; -1 for no limit.
        max_tokens?: i64 = TOKENS_MAX,
        /// OpenAI's newer name of max_tokens.
        max_completion_tokens?: i64 = TOKENS_MAX,
        /// llama.cpp's name of max_tokens.
        n_predict?: i64 = TOKENS_MAX,
    }
}

const TOKENS_MAX: Integer<i64> = Integer(-1..=u32::MAX as i64);

/// Number of alternatives of each token in a chat.
pub(crate) const ALTERNATIVES: Integer<u32> = Integer(0..=CHAT_LOGPROBS_MAX);

fields! {
    /// Body of `POST /v1/chat/completions`.
    pub(crate) struct ChatRequest<'a> inert [&COMMON, &CHAT, &HARMLESS] {
        ..generation: GenerationFields<'a>,
        ..length: LengthFields,
        ..template: TemplateFields<'a>,
        ..tools: ToolFields<'a>,
        /// Messages of the conversation.
        messages: Vec<v1::Message> = Read("ChatMessage[1..]", messages::read),
        /// Whether the log probability of each token is sent.
        logprobs: bool,
        /// Number of alternatives of each token whose log probability is sent too.
        top_logprobs?: u32 = ALTERNATIVES,
        /// Number of alternatives of each token of the prompt. Its log probabilities are sent.
        prompt_logprobs?: u32 = ALTERNATIVES,
        /// Text that the answer is expected to have in large part.
        prediction?: Prediction<'a>,
    }
}

fields! {
    /// Predicted answer.
    pub(crate) struct Prediction<'a> {
        /// Kind of prediction.
        #[expect(dead_code, reason = "only checked")]
        r#type: &'static str = Words(["content"]),
        /// Text, or a list of texts.
        content: Field<'a> = Raw("string | ContentPart[]"),
    }
}

fields! {
    /// Body of `POST /v1/completions`.
    pub(crate) struct CompletionRequest<'a> inert [&COMMON, &COMPLETION, &HARMLESS] {
        ..generation: GenerationFields<'a>,
        ..length: LengthFields,
        /// Prompt as text or tokens, or several prompts.
        prompt: Field<'a> = Raw(PROMPTS),
        /// Text that follows the gap which the model fills.
        suffix?: Field<'a> = Raw("string"),
        /// Whether the answer begins with the prompt.
        echo: bool,
        /// Whether the prompt may contain control tokens.
        parse_special?: bool,
        /// Number of answers, which must equal n.
        best_of?: Field<'a> = Raw("integer 1..128"),
        /// Number of alternatives of each token. Its log probability is sent.
        logprobs?: Field<'a> = Raw("integer 0..5 | false"),
        /// Number of alternatives of each token of the prompt. Its log probabilities are sent.
        prompt_logprobs?: u32 = ALTERNATIVES,
    }
}

const PROMPTS: &str = "string | string[1..] | integer 0..4294967295[1..] | integer 0..4294967295[1..][1..]";

/// Plan of a chat completion.
pub(crate) fn chat(mut fields: Fields, config: &Config, id: &RequestId) -> Result<RequestPlan, ApiError> {
    let sent = SentFields::of(&fields);
    let given = ChatRequest::read(&mut fields)?;
    fields.finish()?;
    let mut plan = given.generation.plan(sent, config, id)?;
    let prompt_logprobs = prompt_logprobs(given.prompt_logprobs, plan.stream)?;
    let max_tokens = given.length.limit(None, prompt_logprobs.is_some())?;
    let (mut chat, thinking) = given.template.chat(given.messages)?;
    let tools = tools::read(&given.tools)?;
    chat.tools_json = tools.json;
    plan.old_calls = tools.old;
    let top_logprobs = given.top_logprobs.unwrap_or(0);
    if top_logprobs > 0 && !given.logprobs {
        return Err(ApiError::field("top_logprobs", "only allowed with logprobs: true"));
    }
    let mut request = plan.requests.remove(0);
    (request.logprobs, request.top_logprobs) = (given.logprobs, top_logprobs);
    request.prompt_logprobs = prompt_logprobs;
    request.prediction = given.prediction.map(Prediction::text).transpose()?.unwrap_or_default();
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
    let sent = SentFields::of(&fields);
    let given = CompletionRequest::read(&mut fields)?;
    fields.finish()?;
    let mut plan = given.generation.plan(sent, config, id)?;
    let prompts = prompts(given.prompt, config.prompts_max)?;
    let (echo, parse_special) = (given.echo, given.parse_special);
    let asked_of_prompt = prompt_logprobs(given.prompt_logprobs, plan.stream)?;
    if let Some(field) = given.best_of
        && field.value().as_f64() != Some(f64::from(plan.choices))
    {
        return Err(ApiError::unsupported("best_of", "not supported by this build unless it equals n"));
    }
    // Clients that use the chat format send false for none.
    let logprobs = given.logprobs.filter(|field| field.value().as_bool() != Some(false));
    let logprobs = logprobs.map(|f| f.integer(0..=COMPLETION_LOGPROBS_MAX)).transpose()?;
    let suffix = given.suffix.map(|field| suffix(field, echo, &prompts)).transpose()?.unwrap_or_default();
    if !suffix.is_empty() && parse_special == Some(true) {
        return Err(ApiError::field(
            "parse_special",
            "cannot be true together with suffix, which makes both texts",
        ));
    }
    let with_prompt = echo && logprobs.is_some();
    let scored = asked_of_prompt.max(logprobs.filter(|_| echo));
    let max_tokens = given.length.limit(Some(COMPLETION_MAX_TOKENS), scored.is_some())?;
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

/// Checks that a field is a number. Its bounds are a setting's.
fn count(field: Field<'_>) -> Result<Field<'_>, ApiError> {
    field.integer(0..=u32::MAX)?;
    Ok(field)
}

impl GenerationFields<'_> {
    /// Plan with one request without a prompt.
    pub(crate) fn plan(
        self,
        sent: SentFields,
        config: &Config,
        id: &RequestId,
    ) -> Result<RequestPlan, ApiError> {
        let choices = one_of(("n", self.n), ("n_cmpl", self.n_cmpl))?;
        let choices = choices.map(|f| f.integer(1..=config.choices_max)).transpose()?.unwrap_or(1);
        if self.stream_options.is_some() && !self.stream {
            return Err(ApiError::field("stream_options", "only allowed with stream: true"));
        }
        let truncate_side = match self.truncation_side {
            None => v1::TruncateSide::Unspecified,
            Some("left") => v1::TruncateSide::Left,
            Some(_) => v1::TruncateSide::Right,
        };
        let strings = self.stop.map(|f| stop_strings(f, config.stop_strings_max)).transpose()?;
        let stop = v1::StopConditions {
            max_tokens: None,
            min_tokens: self.min_tokens.unwrap_or(0),
            strings: strings.unwrap_or_default(),
            token_ids: self.stop_token_ids.unwrap_or_default(),
            include_stop_string: self.include_stop_str_in_output,
            ignore_eos: self.ignore_eos,
        };
        let request = v1::InferRequest {
            model: self.model.unwrap_or_default(),
            truncate_prompt_tokens: self.truncate_prompt_tokens,
            truncate_side: truncate_side.into(),
            context_shift: self.context_shift,
            keep_tokens: self.n_keep,
            cache_salt: self.cache_salt.unwrap_or_default(),
            cache_prompt: self.cache_prompt,
            sampling: Some(self.sampling.settings()?),
            stop: Some(stop),
            choices,
            request_id: id.as_str().to_owned(),
            client: id.client(),
            priority: self.queue.priority.unwrap_or(0),
            keep_alive: self.queue.keep_alive,
            constraint: self.constraint.constraint()?,
            ..Default::default()
        };
        Ok(RequestPlan {
            requests: vec![request],
            choices,
            stream: self.stream,
            streaming: self.stream_options.unwrap_or_default(),
            sent,
            old_calls: false,
            line_limits: None,
            offered: None,
            until: None,
        })
    }
}

fn stop_token_ids(field: Field) -> Result<Vec<u32>, ApiError> {
    let ids = field.token_ids()?;
    match ids.len() > STOP_TOKEN_IDS_MAX {
        true => Err(field.error(format!("has {} entries, at most {STOP_TOKEN_IDS_MAX}", ids.len()))),
        false => Ok(ids),
    }
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

impl LengthFields {
    /// Maximum under any of its names, or `default`. -1 means no limit, as in llama.cpp. 0 is allowed if the
    /// prompt is only scored.
    pub(crate) fn limit(&self, default: Option<u32>, prompt_is_scored: bool) -> Result<MaxTokens, ApiError> {
        let mut found: Option<(&'static str, i64)> = None;
        for (name, tokens) in [
            ("max_tokens", self.max_tokens),
            ("max_completion_tokens", self.max_completion_tokens),
            ("n_predict", self.n_predict),
        ] {
            match (tokens, found) {
                (None, _) => {}
                (Some(0), _) if !prompt_is_scored => {
                    return Err(ApiError::field(name, "must be at least 1, or -1 for no limit, got 0"));
                }
                (Some(tokens), Some((other, old))) if old != tokens => {
                    let problem = format!("{tokens} contradicts {other}, which is {old}; send one of them");
                    return Err(ApiError::field(name, problem));
                }
                (Some(tokens), _) => found = Some((name, tokens)),
            }
        }
        Ok(match found {
            // The engine limits it to the rest of the context.
            Some((name, tokens)) => {
                MaxTokens { tokens: Some(u32::try_from(tokens).unwrap_or(u32::MAX)), name }
            }
            None => MaxTokens { tokens: default, name: "max_tokens" },
        })
    }
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

/// Checks vLLM's `prompt_logprobs`. Like in vLLM, it excludes streaming.
fn prompt_logprobs(alternatives: Option<u32>, stream: bool) -> Result<Option<u32>, ApiError> {
    match alternatives {
        Some(_) if stream => Err(ApiError::field("prompt_logprobs", "not allowed with stream: true")),
        alternatives => Ok(alternatives),
    }
}

impl Prediction<'_> {
    fn text(self) -> Result<String, ApiError> {
        let Some(parts) = self.content.as_list() else { return self.content.string() };
        let part = |part: Field| {
            let mut part = part.object()?;
            part.require("type")?.word(&["text"])?;
            let text = part.require("text")?.string()?;
            part.finish()?;
            Ok(text)
        };
        parts.map(part).collect()
    }
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
