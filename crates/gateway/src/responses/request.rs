//! Parses a request into a plan for the engine and the settings of the answer.

use std::collections::HashMap;

use hanzo_engine_proto::v1::{self, ToolUse, constraint::Of, infer_request::Prompt};

use super::{
    conversation::{self, Before, Item, is_reference},
    object::{Frame, repeated},
    reply::ReplySettings,
    tools::{self, ClientTool},
};
use crate::{
    config::Config,
    declare::Declared as _,
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::{
        CHAT_LOGPROBS_MAX, CHAT_MESSAGES_MAX, METADATA_KEY_CHARS_MAX, METADATA_PAIRS_MAX,
        METADATA_VALUE_CHARS_MAX,
    },
    media_bounds::MediaFields,
    openai::{
        plan::{self, RequestPlan},
        prompt,
        thinking::{EFFORTS, ReasoningSettings, ThinkingFields},
    },
    request_id::RequestId,
    unsupported,
};

/// Unsupported fields, with their neutral value and the alternative.
const REFUSED: [(&str, Option<&str>, &str); 9] = [
    ("conversation", None, "send previous_response_id, or the items themselves"),
    ("prompt", None, "send instructions and input"),
    ("background", Some("false"), ""),
    ("background_options", None, ""),
    ("context_management", Some("[]"), "truncation: auto"),
    ("moderation", None, ""),
    ("access_programs", None, ""),
    ("image", None, ""),
    ("personality", None, "instructions"),
];

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
    let repeated = repeated(&fields);
    let mut plan = plan::common(&mut fields, config, id)?;
    if plan.choices != 1 {
        return Err(ApiError::field("n", "a response is one answer; send several requests"));
    }
    if plan.streaming.continuous_usage_stats {
        let problem = "not supported with responses, whose last event says what was used";
        return Err(ApiError::unsupported("stream_options.continuous_usage_stats", problem));
    }
    let store = match fields.take("store") {
        Some(field) if field.boolean()? && !keeps => {
            return Err(ApiError::unsupported("store", "this server keeps no responses; send store: false"));
        }
        Some(field) => field.boolean()?,
        None => keeps,
    };
    let (sealed, mut logprobs) = include(&mut fields)?;
    let top = fields.take("top_logprobs").map(|field| field.integer(0..=CHAT_LOGPROBS_MAX)).transpose()?;
    let top = top.unwrap_or(0);
    logprobs |= top > 0;
    let max_tokens = fields.take("max_output_tokens").map(|field| field.integer(1..=u32::MAX)).transpose()?;
    fields.take("metadata").map_or(Ok(()), metadata)?;
    // Information that Codex sends to its own service.
    fields.take("client_metadata").map(Field::object).transpose()?;
    let prompted = prompt(&mut fields, config.lenient, before)?;
    unsupported::chat(&mut fields)?;
    fields.finish()?;
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

/// Reads the conversation, the tools, the reasoning settings and the format of the answer.
pub(super) fn prompt(
    fields: &mut Fields,
    lenient: bool,
    before: &Before<'_>,
) -> Result<PromptFields, ApiError> {
    for (name, nothing, instead) in REFUSED {
        if let Some(field) = fields.take(name)
            && nothing != Some(field.value().to_text().as_str())
        {
            let mut problem = "not supported by this build".to_owned();
            if !instead.is_empty() {
                problem.push_str(&format!("; use {instead}"));
            }
            return Err(ApiError::unsupported(name, problem));
        }
    }
    let follows = fields.take("previous_response_id");
    if let Some(field) = follows.filter(|_| before.previous.is_none()) {
        return Err(ApiError::previous_response_not_found(&field.text()?));
    }
    let truncates =
        fields.take("truncation").map(|field| field.word(&["auto", "disabled"])).transpose()? == Some("auto");
    let instructions = fields.take("instructions").map(Field::string).transpose()?;
    let input = fields.take("input");
    if input.is_none() && follows.is_none() {
        return Err(ApiError::field("input", "required"));
    }
    let mut conversation = conversation::read(instructions, input, before)?;
    MediaFields::read(fields)?.bounds()?.apply(&mut conversation.messages);
    let tools = tools::read(fields, lenient)?;
    let reasoning = fields.take("reasoning");
    let mut thinking = ThinkingFields::read(fields)?.settings()?;
    let (mut summary, mut this_turn) = (false, false);
    if let Some(field) = reasoning {
        (summary, this_turn) = self::reasoning(field, &mut thinking)?;
    }
    if this_turn {
        let turn = conversation.messages.iter().rposition(|message| message.role == "user").unwrap_or(0);
        conversation.messages[..turn].iter_mut().for_each(|message| message.reasoning_content.clear());
    }
    let format = fields.take("text").map(text).transpose()?.flatten();
    let kwargs = fields.take("chat_template_kwargs").map(Field::object).transpose()?;
    let template_kwargs_json = prompt::template_kwargs(kwargs.as_ref(), &thinking);
    let generation = fields.take("add_generation_prompt").map(Field::boolean).transpose()?;
    let continue_final_message = fields.flag("continue_final_message")?;
    if continue_final_message && generation == Some(true) {
        let problem = "cannot be true together with add_generation_prompt";
        return Err(ApiError::field("continue_final_message", problem));
    }
    let chat = v1::Chat {
        messages: conversation.messages,
        tools_json: tools.json,
        template_kwargs_json,
        // A continued message is not followed by a new turn.
        add_generation_prompt: if continue_final_message { Some(false) } else { generation },
        continue_final_message,
    };
    Ok(PromptFields {
        chat,
        used: tools.used,
        called: tools.called,
        server_calls_max: tools.server_calls_max,
        reasoning: thinking.bounds(),
        format,
        items: conversation.items,
        summary,
        truncates,
    })
}

/// Reads `reasoning`: whether it is sent as a summary, and whether reasoning of earlier turns is hidden.
fn reasoning(field: Field, thinking: &mut ReasoningSettings) -> Result<(bool, bool), ApiError> {
    let mut own = field.object()?;
    if let Some(field) = own.take("effort") {
        thinking.set_effort("reasoning.effort", field.word(&EFFORTS)?)?;
    }
    if let Some(field) = own.take("max_tokens") {
        thinking.bound("reasoning.max_tokens", field.integer(-1..=i64::from(u32::MAX))?)?;
    }
    let mut summary = false;
    for name in ["summary", "generate_summary"] {
        let Some(field) = own.take(name) else { continue };
        if field.word(&["auto", "concise", "detailed"])? == "concise" {
            let problem = "concise is not supported by this build; auto and detailed are, and give the reasoning itself";
            return Err(ApiError::unsupported(&field.path(), problem));
        }
        summary = true;
    }
    let mut this_turn = false;
    if let Some(field) = own.take("context") {
        match field.word(&["auto", "current_turn", "all_turns"])? {
            "auto" => {}
            "current_turn" => this_turn = true,
            _ => {
                let problem = "all_turns is not supported by this build: the model's chat template says what it shows again";
                return Err(ApiError::unsupported(&field.path(), problem));
            }
        }
    }
    if let Some(field) = own.take("mode") {
        field.word(&["standard"])?;
    }
    own.finish()?;
    Ok((summary, this_turn))
}

/// Reads `text`: the constraint on the answer.
fn text(field: Field) -> Result<Option<Of>, ApiError> {
    let mut own = field.object()?;
    if let Some(field) = own.take("verbosity")
        && field.word(&["low", "medium", "high"])? != "medium"
    {
        let problem =
            "not supported by this build; the only value it accepts is \"medium\"; use instructions";
        return Err(ApiError::unsupported(&field.path(), problem));
    }
    let format = own.take("format");
    own.finish()?;
    let Some(format) = format else { return Ok(None) };
    let mut format = format.object()?;
    let of = match format.require("type")?.word(&["text", "json_object", "json_schema"])? {
        "text" => None,
        "json_object" => Some(Of::JsonObject(true)),
        _ => {
            format.require("name")?.text()?;
            format.take("description").map(Field::text).transpose()?;
            // The answer always satisfies its schema, so `strict` has no effect.
            format.take("strict").map(Field::boolean).transpose()?;
            let schema = format.require("schema")?;
            if !schema.value().is_object() && !schema.value().is_boolean() {
                return Err(schema.error("expected a JSON schema"));
            }
            Some(Of::JsonSchema(schema.value().to_text()))
        }
    };
    format.finish()?;
    Ok(of)
}

/// Reads `include`: whether to send encoded reasoning, and whether to send log probabilities.
fn include(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let (mut sealed, mut logprobs) = (false, false);
    if let Some(field) = fields.take("include") {
        for one in field.list_up_to(CHAT_MESSAGES_MAX, "things to include")? {
            match &*one.text()? {
                "reasoning.encrypted_content" => sealed = true,
                "message.output_text.logprobs" => logprobs = true,
                word if INCLUDE_NEVER.contains(&word) => {}
                word => {
                    let expected =
                        "expected reasoning.encrypted_content or message.output_text.logprobs, got";
                    return Err(one.error(format!("{expected} {}", quote(word))));
                }
            }
        }
    }
    Ok((sealed, logprobs))
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
