//! Parses a messages request into a plan for the engine.

use hanzo_engine_proto::v1::{self, ToolChoice, ToolUse, constraint::Of, infer_request::Prompt};

use super::blocks;
use crate::{
    config::Config,
    declare::{Declaration as _, Integer, Natural as _, Raw, Read, Words, fields},
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::CHAT_TOOLS_MAX,
    media_bounds::MediaFields,
    names::SentFields,
    openai::{
        plan::{self, GenerationFields, RequestPlan, StreamOptions},
        prompt,
        thinking::{EFFORTS, ThinkingFields, ThinkingSetting},
    },
    request::model_name,
    request_id::RequestId,
    unsupported::ANTHROPIC,
};

/// Parsed request.
#[derive(Debug)]
pub(super) struct MessagesPlan {
    pub(super) plan: RequestPlan,
    pub(super) max_tokens: u32,
    /// Reasoning is not sent to the client.
    pub(super) thinking_omitted: bool,
}

/// Fields that make up the prompt.
#[derive(Debug)]
pub(super) struct PromptFields {
    pub(super) chat: v1::Chat,
    tools: Option<ToolUse>,
    reasoning: Option<v1::Reasoning>,
    format: Option<String>, // JSON schema of the answer
    thinking_omitted: bool,
}

fields! {
    /// Body of `POST /v1/messages`.
    pub(crate) struct MessagesRequest<'a> inert [&ANTHROPIC] {
        ..generation: GenerationFields<'a>,
        ..prompt: PromptRequest<'a>,
        /// Maximum tokens of the answer.
        max_tokens: u32 = Integer(1..=u32::MAX),
        /// Texts at which the answer ends.
        stop_sequences?: Field<'a> = Raw("string[]"),
    }
}

fields! {
    /// Body of `POST /v1/messages/count_tokens`.
    pub(crate) struct CountRequest<'a> inert [&ANTHROPIC] {
        ..prompt: PromptRequest<'a>,
        /// Name of the model; the only one if absent.
        model?: String = Read("string 1..512", model_name),
    }
}

fields! {
    /// Fields of Anthropic's requests that make the prompt.
    pub(crate) struct PromptRequest<'a> {
        ..media: MediaFields<'a>,
        /// Messages of the conversation.
        messages: Field<'a> = Raw("AnthropicMessage[1..]"),
        /// System prompt: a text, or blocks of text.
        system?: Field<'a> = Raw("string | object[]"),
        /// Tools that the model may call.
        tools?: Field<'a> = Raw("AnthropicTool[]"),
        /// Whether and what the model calls.
        tool_choice?: Field<'a> = Raw("AnthropicToolChoice"),
        /// Whether the model reasons, for how long, and whether that is sent.
        thinking?: AnthropicThinking,
        /// Format of the answer, and effort of reasoning.
        output_config?: OutputConfig<'a>,
        /// Former name of output_config.format.
        output_format?: Field<'a> = Raw("object"),
        /// Reasoning of earlier turns that is left out.
        context_management?: Field<'a> = Raw("object"),
        /// Additional variables of the template.
        chat_template_kwargs?: Fields<'a> = Read("object", Field::object),
    }
}

fields! {
    /// Anthropic's setting of reasoning.
    pub(crate) struct AnthropicThinking {
        ..own: ThinkingSetting,
        /// Whether reasoning is sent.
        display?: &'static str = Words(["summarized", "omitted"]),
    }
}

fields! {
    /// Format of the answer, and effort of reasoning.
    pub(crate) struct OutputConfig<'a> {
        /// Effort of reasoning.
        effort?: &'static str = Words(EFFORTS),
        /// Object `{"type": "json_schema", "schema": …}`.
        format?: Field<'a> = Raw("object"),
    }
}

fields! {
    /// Tool that the model may call.
    pub(crate) open struct AnthropicTool<'a> {
        /// Kind of tool.
        #[expect(dead_code, reason = "only checked")]
        r#type?: () = Read("\"custom\"", is_custom),
        /// Name of the tool.
        name: Field<'a> = Read("string 1..64", named),
        /// JSON schema of the arguments.
        input_schema: Field<'a> = Read("object", an_object),
        /// Purpose of the tool.
        description?: Field<'a> = Read("string", a_text),
        /// Whether the arguments must satisfy the schema.
        strict: bool,
    }
}

fields! {
    /// Choice of a tool.
    pub(crate) struct AnthropicToolChoice {
        /// Kind of choice.
        r#type: &'static str = Words(["auto", "any", "tool", "none"]),
        /// Tool that must be called, with type tool.
        name?: String,
        /// Whether the model calls one tool at a time.
        disable_parallel_tool_use: bool,
    }
}

/// Parses a messages request.
pub(super) fn read(mut fields: Fields, config: &Config, id: &RequestId) -> Result<MessagesPlan, ApiError> {
    let sent = SentFields::of(&fields);
    let given = MessagesRequest::read(&mut fields)?;
    fields.finish()?;
    let mut plan = given.generation.plan(sent, config, id)?;
    if plan.choices != 1 {
        return Err(ApiError::field("n", "an answer is one message here; send several requests"));
    }
    let (max_tokens, prompted) = (given.max_tokens, given.prompt.read()?);
    let request = &mut plan.requests[0];
    let stop = request.stop.get_or_insert_default();
    stop.max_tokens = Some(max_tokens);
    if let Some(field) = given.stop_sequences {
        if !stop.strings.is_empty() {
            return Err(field.error("means the same as stop; send one of them"));
        }
        stop.strings = plan::stop_strings(field, config.stop_strings_max)?;
    }
    if let Some(schema) = prompted.format {
        if request.constraint.is_some() {
            return Err(ApiError::field("output_config.format", "there is another constraint beside it"));
        }
        request.constraint = Some(v1::Constraint { of: Some(Of::JsonSchema(schema)) });
    }
    request.reasoning = prompted.reasoning;
    request.tool_use = prompted.tools;
    request.prompt = Some(Prompt::Chat(prompted.chat));
    // The last event of a stream reports usage.
    plan.streaming = StreamOptions { include_usage: true, ..plan.streaming };
    plan.sent.know_messages_as_one();
    Ok(MessagesPlan { plan, max_tokens, thinking_omitted: prompted.thinking_omitted })
}

impl PromptRequest<'_> {
    /// Reads the conversation, the tools and the reasoning settings.
    pub(super) fn read(self) -> Result<PromptFields, ApiError> {
        let mut conversation = blocks::conversation(self.system, self.messages)?;
        self.media.bounds()?.apply(&mut conversation.messages);
        let tools = tools(self.tools, self.tool_choice)?;
        let (own, display) =
            self.thinking.map_or((None, None), |thinking| (Some(thinking.own), thinking.display));
        let mut thinking = ThinkingFields { thinking: own, ..ThinkingFields::default() }.settings()?;
        let (effort, mut format) =
            self.output_config.map_or((None, None), |config| (config.effort, config.format));
        effort.map_or(Ok(()), |effort| thinking.set_effort("output_config.effort", effort))?;
        if let Some(old) = self.output_format {
            if format.is_some() {
                return Err(old.error("means the same as output_config.format; send one of them"));
            }
            format = Some(old);
        }
        let format = format.map(schema).transpose()?;
        if let Some(field) = self.context_management {
            edit(field, &mut conversation.messages)?;
        }
        let chat = v1::Chat {
            messages: conversation.messages,
            tools_json: tools.0,
            template_kwargs_json: prompt::template_kwargs(self.chat_template_kwargs.as_ref(), &thinking),
            add_generation_prompt: conversation.is_begun.then_some(false),
            continue_final_message: conversation.is_begun,
        };
        let thinking_omitted = display == Some("omitted");
        Ok(PromptFields { chat, tools: tools.1, reasoning: thinking.bounds(), format, thinking_omitted })
    }
}

/// Schema in `{"type":"json_schema","schema":{…}}`.
fn schema(field: Field) -> Result<String, ApiError> {
    let mut format = field.object()?;
    format.require("type")?.word(&["json_schema"])?;
    let schema = format.require("schema")?;
    if !schema.value().is_object() {
        return Err(schema.error("expected an object"));
    }
    Ok(schema.value().to_text())
}

/// Reads the tools as JSON for chat templates, and how they may be used.
fn tools(given: Option<Field>, choice: Option<Field>) -> Result<(Vec<String>, Option<ToolUse>), ApiError> {
    let mut tools = Vec::new();
    if let Some(field) = given {
        for one in field.list_up_to(CHAT_TOOLS_MAX, "tools")? {
            tools.push(AnthropicTool::of(one)?.json());
        }
    }
    let mut used = ToolUse::default();
    if let Some(field) = choice {
        let choice = AnthropicToolChoice::of(field)?;
        if tools.is_empty() && choice.r#type != "none" {
            return Err(field.error("only allowed with tools"));
        }
        if choice.name.is_some() && choice.r#type != "tool" {
            return Err(ApiError::field("tool_choice.name", "only allowed with type tool"));
        }
        let choose = match choice.r#type {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            _ => {
                used.named = choice.name.ok_or_else(|| ApiError::field("tool_choice.name", "required"))?;
                ToolChoice::Named
            }
        };
        used.choice = choose.into();
        used.parallel = choice.disable_parallel_tool_use.then_some(false);
    }
    let used = (!tools.is_empty()).then_some(used);
    Ok((tools, used))
}

fn is_custom(kind: Field) -> Result<(), ApiError> {
    match &*kind.text()? {
        "custom" => Ok(()),
        other => {
            let problem = format!(
                "tools of type {} are not supported by this build: give it a description and an input_schema",
                quote(other)
            );
            Err(ApiError::unsupported(&kind.path(), problem))
        }
    }
}

fn a_text(field: Field<'_>) -> Result<Field<'_>, ApiError> {
    field.text().map(|_| field)
}

fn named(name: Field<'_>) -> Result<Field<'_>, ApiError> {
    if name.text()?.is_empty() { Err(name.error("must not be empty")) } else { Ok(name) }
}

fn an_object(field: Field<'_>) -> Result<Field<'_>, ApiError> {
    if field.value().is_object() { Ok(field) } else { Err(field.error("expected an object")) }
}

impl AnthropicTool<'_> {
    /// JSON that chat templates expect.
    fn json(&self) -> String {
        let name = self.name.value().to_text();
        let mut json = format!("{{\"type\":\"function\",\"function\":{{\"name\":{name}");
        if let Some(description) = self.description {
            json.push_str(",\"description\":");
            json.push_str(&description.value().to_text());
        }
        json.push_str(",\"parameters\":");
        json.push_str(&self.input_schema.value().to_text());
        if self.strict {
            json.push_str(",\"strict\":true");
        }
        json.push_str("}}");
        json
    }
}

/// Applies `context_management`, which removes parts of the conversation before the model sees it.
fn edit(field: Field, messages: &mut [v1::Message]) -> Result<(), ApiError> {
    let mut fields = field.object()?;
    let Some(edits) = fields.take("edits") else { return fields.finish() };
    for edit in edits.list()? {
        let mut fields = edit.object()?;
        let kind = fields.require("type")?;
        let name = kind.text()?;
        if name != "clear_thinking_20251015" {
            let problem =
                format!("{} is not supported by this build, only clear_thinking_20251015", quote(&name));
            return Err(ApiError::unsupported(&kind.path(), problem));
        }
        let kept = match fields.take("keep") {
            None => 1,
            Some(keep) if keep.value().is_string() => {
                keep.word(&["all"])?;
                usize::MAX
            }
            Some(keep) => {
                let mut keep = keep.object()?;
                match keep.require("type")?.word(&["thinking_turns", "all"])? {
                    "all" => usize::MAX,
                    _ => keep.require("value")?.integer(1..=u32::MAX)? as usize,
                }
            }
        };
        let thought = messages.iter_mut().rev().filter(|message| !message.reasoning_content.is_empty());
        thought.skip(kept).for_each(|message| message.reasoning_content.clear());
    }
    fields.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::fields_of;
    use axum::http::HeaderMap;

    fn check(change: Value) -> Result<v1::InferRequest, String> {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let id = RequestId::of(&HeaderMap::new());
        let read = read(fields_of(&body, false), &Config::default(), &id);
        read.map(|mut asked| asked.plan.requests.remove(0)).map_err(|error| error.message().to_owned())
    }

    fn chat(request: &v1::InferRequest) -> &v1::Chat {
        match &request.prompt {
            Some(Prompt::Chat(chat)) => chat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tools_are_those_that_templates_know() {
        let tool =
            json!({"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}});
        let request = check(
            json!({"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}}),
        );
        let request = request.unwrap();
        let json: Value = serde_json::from_str(&chat(&request).tools_json[0]).unwrap();
        let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
        assert_eq!(json, json!({"type": "function", "function": function}));
        let used = request.tool_use.unwrap();
        assert_eq!((used.choice(), used.parallel), (ToolChoice::Required, Some(false)));
        let named = check(json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "f"}})).unwrap();
        assert_eq!(named.tool_use.unwrap().named, "f");
    }

    #[test]
    fn thinking_is_switched_and_bounded() {
        let request = check(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})).unwrap();
        assert_eq!(request.reasoning.unwrap().tokens_max, Some(1024));
        assert_eq!(chat(&request).template_kwargs_json, r#"{"enable_thinking":true}"#);
        let request = check(json!({"thinking": {"type": "disabled"}})).unwrap();
        assert_eq!(chat(&request).template_kwargs_json, r#"{"enable_thinking":false}"#);
        let request =
            check(json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}})).unwrap();
        assert_eq!(
            chat(&request).template_kwargs_json,
            r#"{"enable_thinking":true,"reasoning_effort":"low"}"#
        );
        assert_eq!(chat(&check(json!({})).unwrap()).template_kwargs_json, "");
    }

    #[test]
    fn what_agents_send_is_taken_and_what_asks_for_more_is_refused() {
        let request = check(json!({
            "metadata": {"user_id": "u"}, "service_tier": "auto", "stop_sequences": ["END"], "temperature": 0.5, "top_k": 3,
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "mcp_servers": [],
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        }));
        let request = request.unwrap();
        let stop = request.stop.unwrap();
        assert_eq!((stop.max_tokens, stop.strings), (Some(9), vec!["END".to_owned()]));
        assert_eq!(request.constraint.unwrap().of, Some(Of::JsonSchema(r#"{"type":"object"}"#.to_owned())));
        for (change, start) in [
            (json!({"max_tokens": null}), "max_tokens: required"),
            (json!({"max_tokens": 0}), "max_tokens: expected an integer"),
            (json!({"n": 2}), "n: an answer is one message"),
            (
                json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
                "tools[0].type: tools of type",
            ),
            (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema: required"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice: only allowed with tools"),
            (json!({"mcp_servers": [{}]}), "mcp_servers: not supported"),
            (
                json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
                "context_management.edits[0].type:",
            ),
            (json!({"container": "x"}), "container: not supported"),
            (json!({"thinking": {"type": "on"}}), "thinking.type: expected one of"),
            (json!({"tempratur": 1}), "tempratur: unknown field"),
        ] {
            let error = check(change.clone()).unwrap_err();
            assert!(error.starts_with(start), "{change}: {error}");
        }
    }

    #[test]
    fn old_thoughts_are_cleared() {
        let mut messages: Vec<v1::Message> = ["a", "", "b", "c"]
            .map(|thought| v1::Message { reasoning_content: thought.to_owned(), ..v1::Message::default() })
            .to_vec();
        let keep = json!({"e": {"edits": [
            {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}},
        ]}});
        edit(fields_of(&keep, false).take("e").unwrap(), &mut messages).unwrap();
        let left: Vec<&str> = messages.iter().map(|message| &*message.reasoning_content).collect();
        assert_eq!(left, ["", "", "b", "c"]);
    }
}
