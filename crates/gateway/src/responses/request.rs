//! Parses a request into a plan for the engine and the settings of the answer.

use std::collections::HashMap;

use hanzo_engine_proto::v1::{self, ToolUse, constraint::Of, infer_request::Prompt};

use super::{
    conversation::{self, Before, Item, is_reference},
    object::{Frame, repeated},
    reply::ReplySettings,
    tools::{self, ClientTool, ResponsesTools},
};
use crate::{
    config::Config,
    declare::{Declaration as _, Integer, Raw, Read, Words, fields},
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::{CHAT_MESSAGES_MAX, METADATA_KEY_CHARS_MAX, METADATA_PAIRS_MAX, METADATA_VALUE_CHARS_MAX},
    names::SentFields,
    openai::{
        plan::{ALTERNATIVES, GenerationFields, RequestPlan},
        prompt::RenderingFields,
        thinking::{BUDGET, EFFORTS, ReasoningSettings, ThinkingFields},
    },
    request::model_name,
    request_id::RequestId,
    unsupported::{
        CHAT, COMMON, HARMLESS, RESPONSES, RESPONSES_NOTES, RESPONSES_REASONING, SCHEMA_LABELS, VERBOSITY,
    },
};

fields! {
    /// Body of `POST /v1/responses`.
    pub(crate) struct ResponsesRequest<'a> inert [&RESPONSES_NOTES, &COMMON, &CHAT, &HARMLESS] {
        ..generation: GenerationFields<'a>,
        ..prompt: ResponsesPrompt<'a>,
        /// Maximum tokens of the answer, with its reasoning.
        max_output_tokens?: u32 = Integer(1..=u32::MAX),
        /// Whether the server keeps the response.
        store?: bool,
        /// Additions to the response: reasoning.encrypted_content and message.output_text.logprobs.
        include?: Additions = Read("string[]", include),
        /// Number of alternatives of each token. Its log probability is sent.
        top_logprobs?: u32 = ALTERNATIVES,
        /// Short texts, which the response repeats.
        #[expect(dead_code, reason = "only checked")]
        metadata?: () = Read("string{}", metadata),
    }
}

fields! {
    /// Body of `POST /v1/responses/input_tokens`.
    pub(crate) struct ResponsesCountRequest<'a> {
        ..prompt: ResponsesPrompt<'a>,
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
    }
}

fields! {
    /// Fields of a response's prompt.
    pub(crate) struct ResponsesPrompt<'a> inert [&RESPONSES] {
        ..rendering: RenderingFields<'a>,
        ..thinking: ThinkingFields,
        ..tools: ResponsesTools<'a>,
        /// Text or items of the conversation.
        input?: Field<'a> = Raw("string | any[]"),
        /// System prompt.
        instructions?: String,
        /// Id of the response that this one continues.
        previous_response_id?: String,
        /// Whether the oldest messages may be left out if the prompt does not fit.
        truncation?: &'static str = Words(["auto", "disabled"]),
        /// Effort of reasoning, and whether reasoning is sent.
        reasoning?: ResponsesReasoning,
        /// Constraint on the answer.
        text?: ResponsesText<'a>,
    }
}

fields! {
    /// Settings of a response's reasoning.
    pub(crate) struct ResponsesReasoning inert [&RESPONSES_REASONING] {
        /// Effort of reasoning.
        effort?: &'static str = Words(EFFORTS),
        /// Maximum tokens of reasoning; -1 for no limit.
        max_tokens?: i64 = BUDGET,
        /// Detail in which reasoning is sent. The reasoning itself is sent, so concise is refused.
        summary?: &'static str = SUMMARY,
        /// Older name of summary.
        generate_summary?: &'static str = SUMMARY,
        /// Turns whose reasoning the model is shown. all_turns is refused.
        context?: &'static str = Words(["auto", "current_turn", "all_turns"]),
    }
}

const SUMMARY: Words<3> = Words(["auto", "concise", "detailed"]);

fields! {
    /// Constraint on a response's text.
    pub(crate) struct ResponsesText<'a> inert [&VERBOSITY] {
        /// Format of the text.
        format?: TextFormat<'a>,
    }
}

fields! {
    /// Format of a response's text.
    pub(crate) struct TextFormat<'a> inert [&SCHEMA_LABELS] {
        /// Kind of format.
        r#type: &'static str = Words(["text", "json_object", "json_schema"]),
        /// Name of the schema of type json_schema.
        name?: String,
        /// Schema of type json_schema.
        schema?: Field<'a> = Raw("object | boolean"),
    }
}

/// Values of `include` that never occur in an answer here, because OpenAI's own tools do not run here and
/// images are not returned.
const INCLUDE_NEVER: [&str; 6] = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

/// Stored objects that a request references.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) previous: Option<String>,
    pub(super) items: Vec<String>,
}

/// Parsed request.
#[derive(Debug)]
pub(super) struct CreateRequest {
    pub(super) plan: RequestPlan,
    pub(super) asked: ReplySettings,
    /// Whether the oldest messages may be dropped if the prompt does not fit.
    pub(super) truncates: bool,
    /// Maximum calls of tools that the server runs.
    pub(super) server_calls_max: Option<u32>,
}

/// Fields that make up the prompt.
#[derive(Debug)]
pub(super) struct PromptFields {
    pub(super) chat: v1::Chat,
    used: Option<ToolUse>,
    called: HashMap<String, ClientTool>,
    server_calls_max: Option<u32>,
    reasoning: Option<v1::Reasoning>,
    format: Option<Of>,
    items: Vec<Item>,
    summary: bool,
    truncates: bool,
}

/// Reads the references in a request, which is parsed again later.
pub(super) fn named(mut fields: Fields) -> Result<References, ApiError> {
    let previous = fields.take("previous_response_id").map(Field::string).transpose()?;
    let mut items = Vec::new();
    let input = fields.take("input").and_then(|field| field.as_list());
    for item in input.into_iter().flatten().take(CHAT_MESSAGES_MAX) {
        if item.value().is_object() && is_reference(item.value()) {
            items.extend(item.object()?.take("id").map(Field::string).transpose()?);
        }
    }
    Ok(References { previous, items })
}

/// Parses a request. `keeps`: whether responses can be stored.
pub(super) fn read(
    mut fields: Fields,
    config: &Config,
    id: &RequestId,
    before: &Before<'_>,
    keeps: bool,
) -> Result<CreateRequest, ApiError> {
    let (repeated, sent) = (repeated(&fields), SentFields::of(&fields));
    let given = ResponsesRequest::read(&mut fields)?;
    fields.finish()?;
    let mut plan = given.generation.plan(sent, config, id)?;
    if plan.choices != 1 {
        return Err(ApiError::field("n", "a response is one answer; send several requests"));
    }
    if plan.streaming.continuous_usage_stats {
        let problem = "not supported with responses, whose last event says what was used";
        return Err(ApiError::unsupported("stream_options.continuous_usage_stats", problem));
    }
    if given.store == Some(true) && !keeps {
        return Err(ApiError::unsupported("store", "this server keeps no responses; send store: false"));
    }
    let store = given.store.unwrap_or(keeps);
    let Additions { sealed, logprobs } = given.include.unwrap_or_default();
    let top = given.top_logprobs.unwrap_or(0);
    let (logprobs, max_tokens) = (logprobs || top > 0, given.max_output_tokens);
    let prompted = given.prompt.read(config.lenient, before)?;
    let request = &mut plan.requests[0];
    let stop = request.stop.get_or_insert_default();
    if let Some(max) = max_tokens.filter(|max| stop.min_tokens > *max) {
        let problem = format!("{} is over max_output_tokens, which is {max}", stop.min_tokens);
        return Err(ApiError::field("min_tokens", problem));
    }
    stop.max_tokens = max_tokens;
    if let Some(of) = prompted.format {
        if request.constraint.is_some() {
            return Err(ApiError::field("text.format", "there is another constraint beside it"));
        }
        request.constraint = Some(v1::Constraint { of: Some(of) });
    }
    (request.logprobs, request.top_logprobs) = (logprobs, top);
    request.reasoning = prompted.reasoning;
    request.tool_use = prompted.used;
    request.prompt = Some(Prompt::Chat(prompted.chat));
    let asked = ReplySettings {
        frame: Frame { repeated, store },
        called: prompted.called,
        summary: prompted.summary,
        sealed,
        // Applies to text events only.
        obfuscate: std::mem::take(&mut plan.streaming.include_obfuscation),
        streamed: plan.stream,
        items: prompted.items,
    };
    // The last event of a stream reports usage.
    plan.streaming.include_usage = true;
    plan.sent.know_messages_as_one();
    let server_calls_max = prompted.server_calls_max;
    Ok(CreateRequest { plan, asked, truncates: prompted.truncates, server_calls_max })
}

impl ResponsesPrompt<'_> {
    /// Reads the conversation, the tools, the reasoning settings and the format of the answer.
    pub(super) fn read(self, lenient: bool, before: &Before<'_>) -> Result<PromptFields, ApiError> {
        let follows = self.previous_response_id;
        if let Some(id) = follows.as_ref().filter(|_| before.previous.is_none()) {
            return Err(ApiError::previous_response_not_found(id));
        }
        if self.input.is_none() && follows.is_none() {
            return Err(ApiError::field("input", "required"));
        }
        let mut conversation = conversation::read(self.instructions, self.input, before)?;
        let tools = tools::read(&self.tools, lenient)?;
        let mut thinking = self.thinking.settings()?;
        let (mut summary, mut this_turn) = (false, false);
        if let Some(own) = self.reasoning {
            (summary, this_turn) = own.apply(&mut thinking)?;
        }
        if this_turn {
            let turn = conversation.messages.iter().rposition(|message| message.role == "user").unwrap_or(0);
            conversation.messages[..turn].iter_mut().for_each(|message| message.reasoning_content.clear());
        }
        let format =
            self.text.and_then(|text| text.format).map(TextFormat::constraint).transpose()?.flatten();
        let chat = self.rendering.chat(conversation.messages, &thinking)?;
        Ok(PromptFields {
            chat: v1::Chat { tools_json: tools.json, ..chat },
            used: tools.used,
            called: tools.called,
            server_calls_max: tools.server_calls_max,
            reasoning: thinking.bounds(),
            format,
            items: conversation.items,
            summary,
            truncates: self.truncation == Some("auto"),
        })
    }
}

impl ResponsesReasoning {
    /// Applies the settings. Returns whether reasoning is sent, and whether that of earlier turns is hidden.
    fn apply(&self, thinking: &mut ReasoningSettings) -> Result<(bool, bool), ApiError> {
        self.effort.map_or(Ok(()), |effort| thinking.set_effort("reasoning.effort", effort))?;
        self.max_tokens.map_or(Ok(()), |tokens| thinking.bound("reasoning.max_tokens", tokens))?;
        let summaries =
            [("reasoning.summary", self.summary), ("reasoning.generate_summary", self.generate_summary)];
        if let Some((path, _)) = summaries.iter().find(|(_, summary)| *summary == Some("concise")) {
            let problem = "concise is not supported by this build; auto and detailed are, and give the reasoning itself";
            return Err(ApiError::unsupported(path, problem));
        }
        if self.context == Some("all_turns") {
            let problem = "all_turns is not supported by this build: the model's chat template says what it shows again";
            return Err(ApiError::unsupported("reasoning.context", problem));
        }
        let sent = summaries.iter().any(|(_, summary)| summary.is_some());
        Ok((sent, self.context == Some("current_turn")))
    }
}

impl TextFormat<'_> {
    fn constraint(self) -> Result<Option<Of>, ApiError> {
        if self.r#type != "json_schema" {
            let extra = self.schema.map(|_| "schema").or(self.name.map(|_| "name"));
            return match extra {
                Some(name) => {
                    Err(ApiError::field(&format!("text.format.{name}"), "only of type json_schema"))
                }
                None => Ok((self.r#type == "json_object").then_some(Of::JsonObject(true))),
            };
        }
        if self.name.is_none() {
            return Err(ApiError::field("text.format.name", "required"));
        }
        let schema = self.schema.ok_or_else(|| ApiError::field("text.format.schema", "required"))?;
        if !schema.value().is_object() && !schema.value().is_boolean() {
            return Err(schema.error("expected a JSON schema"));
        }
        Ok(Some(Of::JsonSchema(schema.value().to_text())))
    }
}

/// Additions to a response.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    /// Encoded reasoning.
    sealed: bool,
    logprobs: bool,
}

/// Reads `include`.
fn include(field: Field) -> Result<Additions, ApiError> {
    let mut all = Additions::default();
    for one in field.list_up_to(CHAT_MESSAGES_MAX, "things to include")? {
        match &*one.text()? {
            "reasoning.encrypted_content" => all.sealed = true,
            "message.output_text.logprobs" => all.logprobs = true,
            word if INCLUDE_NEVER.contains(&word) => {}
            word => {
                let expected = "expected reasoning.encrypted_content or message.output_text.logprobs, got";
                return Err(one.error(format!("{expected} {}", quote(word))));
            }
        }
    }
    Ok(all)
}

/// Checks `metadata`: a few short texts, which the response repeats.
fn metadata(field: Field) -> Result<(), ApiError> {
    let mut pairs = field.object()?;
    let names = pairs.names();
    if names.len() > METADATA_PAIRS_MAX {
        return Err(field.error(format!("has {} pairs, at most {METADATA_PAIRS_MAX}", names.len())));
    }
    for name in names {
        if name.chars().count() > METADATA_KEY_CHARS_MAX {
            return Err(field.error(format!("has a key of more than {METADATA_KEY_CHARS_MAX} characters")));
        }
        if let Some(value) = pairs.take(&name)
            && value.text()?.chars().count() > METADATA_VALUE_CHARS_MAX
        {
            return Err(value.error(format!("has more than {METADATA_VALUE_CHARS_MAX} characters")));
        }
    }
    Ok(())
}
