//! Tools of a request. The model calls functions and custom tools, possibly in a namespace, and the client runs
//! them. Tools that OpenAI's servers run are refused by name, or left out if the gateway is lenient.

use std::collections::HashMap;

use hanzo_engine_proto::v1::{ToolChoice, ToolUse};

use super::custom;
use crate::response_store::stored::quoted;
use crate::{
    declare::{Integer, Raw, fields},
    error::{ApiError, quote},
    fields::Field,
    limits::CHAT_TOOLS_MAX,
};

/// Tools of a request.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Each tool as JSON for chat templates.
    pub(super) json: Vec<String>,
    /// Use of the tools; None: no tools.
    pub(super) used: Option<ToolUse>,
    /// Maximum calls of tools that the server runs.
    pub(super) server_calls_max: Option<u32>,
    /// Tools whose name or form differs for the model, by the model's name of each.
    pub(super) called: HashMap<String, ClientTool>,
}

/// Tool as the client knows it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClientTool {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// Whether it takes a text.
    pub(super) custom: bool,
}

/// Model's name of a tool.
pub(super) fn name_shown(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"))
}

/// Tool that the model may call.
struct Tool {
    name: String, // the model's name
    called: ClientTool,
    json: String,
}

fields! {
    /// Tools of a response.
    pub(crate) struct ResponsesTools<'a> {
        /// Tools that the model may call.
        tools?: Field<'a> = Raw("any[]"),
        /// Whether and what the model calls.
        tool_choice?: Field<'a> = Raw("string | object"),
        /// Whether the model may call several tools at once.
        parallel_tool_calls?: bool,
        /// Maximum calls of tools that the server runs.
        max_tool_calls?: u32 = Integer(1..=u32::MAX),
    }
}

/// Tools of a request.
pub(super) fn read(given: &ResponsesTools, lenient: bool) -> Result<Tools, ApiError> {
    let (parallel, server_calls_max) = (given.parallel_tool_calls, given.max_tool_calls);
    let mut tools = Vec::new();
    if let Some(field) = given.tools {
        for one in field.list_up_to(CHAT_TOOLS_MAX, "tools")? {
            several(one, lenient, &mut tools)?;
        }
        if tools.len() > CHAT_TOOLS_MAX {
            return Err(field.error(format!("has more than {CHAT_TOOLS_MAX} tools")));
        }
    }
    let (choice, named) = match given.tool_choice {
        Some(field) => tool_choice(field, &mut tools)?,
        None => (ToolChoice::Unspecified, String::new()),
    };
    let mut called = HashMap::new();
    let mut json = Vec::with_capacity(tools.len());
    for tool in tools {
        json.push(tool.json);
        if tool.called.custom || tool.called.namespace.is_some() {
            called.insert(tool.name, tool.called);
        }
    }
    // Without tools, no choice is sent.
    let used =
        (!json.is_empty()).then(|| ToolUse { choice: choice.into(), named, parallel, ..ToolUse::default() });
    Ok(Tools { json, used, server_calls_max, called })
}

/// Reads a tool, or the tools of a namespace.
fn several(field: Field, lenient: bool, tools: &mut Vec<Tool>) -> Result<(), ApiError> {
    let mut fields = field.object()?;
    if fields.require("type")?.text()? != "namespace" {
        tools.extend(tool(field, lenient, None, "")?);
        return Ok(());
    }
    let name = fields.require("name")?;
    let namespace = name.string()?;
    if namespace.is_empty() {
        return Err(name.error("must not be empty"));
    }
    let description = fields.take("description").map(Field::string).transpose()?.unwrap_or_default();
    let list = fields.require("tools")?.list()?;
    fields.finish()?;
    let before = tools.len();
    for one in list.take(CHAT_TOOLS_MAX + 1) {
        // The namespace's description precedes that of its first tool only.
        let of_all = if tools.len() == before { description.as_str() } else { "" };
        tools.extend(tool(one, lenient, Some(&namespace), of_all)?);
    }
    Ok(())
}

/// Reads a tool, with a text to put before its description. None: it is left out.
fn tool(
    field: Field,
    lenient: bool,
    namespace: Option<&str>,
    of_all: &str,
) -> Result<Option<Tool>, ApiError> {
    let mut fields = field.object()?;
    let kind = fields.require("type")?;
    let word = kind.text()?;
    let is_custom = match &*word {
        "function" => false,
        "custom" => true,
        _ if lenient => return Ok(None),
        other => {
            let problem = format!(
                "tools of type {} are not supported by this build, only function, custom and namespace",
                quote(other)
            );
            return Err(ApiError::unsupported(&kind.path(), problem));
        }
    };
    for key in ["defer_loading", "async"] {
        if let Some(field) = fields.take(key)
            && field.boolean()?
        {
            return Err(ApiError::unsupported(&field.path(), "not supported by this build"));
        }
    }
    if let Some(field) = fields.take("allowed_callers") {
        for caller in field.list()? {
            caller.word(&["direct"])?;
        }
    }
    let name = fields.require("name")?;
    if name.text()?.is_empty() {
        return Err(name.error("must not be empty"));
    }
    let mut description = fields.take("description").map(Field::string).transpose()?;
    let (mut parameters, mut strict) = (r#"{"type":"object","properties":{}}"#.to_owned(), false);
    if is_custom {
        let format =
            fields.take("format").map(|field| format(field, lenient)).transpose()?.unwrap_or_default();
        if let Some(note) = format.note {
            description = Some(description.map_or(note.clone(), |text| format!("{text}\n\n{note}")));
        }
        parameters = custom::parameters(format.pattern.as_deref());
    } else {
        if let Some(field) = fields.take("parameters") {
            field.object()?;
            parameters = field.value().to_text();
        }
        // Arguments always satisfy the schema.
        strict = fields.flag("strict")?;
    }
    if !of_all.is_empty() {
        description = Some(description.map_or(of_all.to_owned(), |text| format!("{of_all}\n\n{text}")));
    }
    // Schema of the output, which shows itself.
    fields.take("output_schema");
    fields.finish()?;
    let called =
        ClientTool { name: name.string()?, namespace: namespace.map(str::to_owned), custom: is_custom };
    let name = name_shown(namespace, &called.name);
    let json = function_json(&name, description.as_deref(), &parameters, strict);
    Ok(Some(Tool { name, called, json }))
}

/// Tool as JSON in the form of chat completions. `parameters` is a JSON schema.
fn function_json(name: &str, description: Option<&str>, parameters: &str, strict: bool) -> String {
    let mut json = format!("{{\"type\":\"function\",\"function\":{{\"name\":{}", quoted(name));
    if let Some(text) = description {
        json.push_str(&format!(",\"description\":{}", quoted(text)));
    }
    json.push_str(&format!(",\"parameters\":{parameters}"));
    json.push_str(if strict { ",\"strict\":true}}" } else { "}}" });
    json
}

/// Format of a custom tool's text.
#[derive(Default)]
struct CustomFormat {
    pattern: Option<String>, // regular expression of the text
    note: Option<String>,    // description for the model
}

fn format(field: Field, lenient: bool) -> Result<CustomFormat, ApiError> {
    let mut fields = field.object()?;
    if fields.require("type")?.word(&["text", "grammar"])? == "text" {
        fields.finish()?;
        return Ok(CustomFormat::default());
    }
    let syntax = fields.require("syntax")?;
    let word = syntax.word(&["lark", "regex"])?;
    let definition = fields.require("definition")?.string()?;
    fields.finish()?;
    match word {
        "regex" => Ok(CustomFormat { pattern: Some(definition), note: None }),
        // The model is shown the grammar, but it is not enforced.
        _ if lenient => {
            let note = format!("The input follows this grammar, in Lark's notation:\n{definition}");
            Ok(CustomFormat { pattern: None, note: Some(note) })
        }
        _ => {
            let problem = "lark cannot be enforced by this build; use regex, or a server that was started with --lenient, which only shows the model the grammar";
            Err(ApiError::unsupported(&syntax.path(), problem))
        }
    }
}

/// Reads how tools may be used, and the name of the one that must be called. Removes tools that are not
/// allowed.
fn tool_choice(field: Field, tools: &mut Vec<Tool>) -> Result<(ToolChoice, String), ApiError> {
    let some = |choice| match tools.is_empty() {
        true => Err(field.error("only allowed with tools")),
        false => Ok((choice, String::new())),
    };
    if field.value().is_string() {
        return match field.word(&["none", "auto", "required"])? {
            "none" => Ok((ToolChoice::None, String::new())),
            // The default, allowed even without tools.
            "auto" => Ok((ToolChoice::Auto, String::new())),
            _ => some(ToolChoice::Required),
        };
    }
    let mut fields = field.object()?;
    let kind = fields.require("type")?;
    match &*kind.text()? {
        word @ ("function" | "custom") => {
            let name = fields.require("name")?;
            let text = name.string()?;
            fields.finish()?;
            if !tools.iter().any(|tool| tool.name == text && tool.called.custom == (word == "custom")) {
                return Err(name.error(format!("there is no {word} tool {} in tools", quote(&text))));
            }
            Ok((ToolChoice::Named, text))
        }
        "allowed_tools" => {
            let choice = match fields.require("mode")?.word(&["auto", "required"])? {
                "auto" => ToolChoice::Auto,
                _ => ToolChoice::Required,
            };
            let list = fields.require("tools")?;
            fields.finish()?;
            allowed(list, tools)?;
            Ok((choice, String::new()))
        }
        other => {
            let problem = format!(
                "{} is not supported by this build, only function, custom and allowed_tools",
                quote(other)
            );
            Err(ApiError::unsupported(&kind.path(), problem))
        }
    }
}

/// Keeps some of the tools. The model does not see the others, because it would call them.
fn allowed(list: Field, tools: &mut Vec<Tool>) -> Result<(), ApiError> {
    let mut allowed = Vec::new();
    for tool in list.list_up_to(CHAT_TOOLS_MAX, "tools")? {
        let mut fields = tool.object()?;
        let custom = fields.require("type")?.word(&["function", "custom"])? == "custom";
        let name = fields.require("name")?;
        let text = name.string()?;
        if !tools.iter().any(|known| known.name == text && known.called.custom == custom) {
            return Err(name.error(format!("there is no tool {} in tools", quote(&text))));
        }
        allowed.push(text);
    }
    if allowed.is_empty() {
        return Err(list.error("must name a tool"));
    }
    tools.retain(|tool| allowed.contains(&tool.name));
    Ok(())
}
