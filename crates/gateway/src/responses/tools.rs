//! A request's tools and what becomes of them. Functions and custom tools, alone or in a namespace, are called by the model and run by the
//! client; tools that OpenAI's servers run are refused by name, or left out where the gateway is lenient.

use std::collections::HashMap;

use hanzo_engine_proto::v1::{ToolChoice, ToolUse};

use super::{custom, kept::quoted};
use crate::{
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::CHAT_TOOLS_MAX,
};

/// What a request says of tools.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Each as templates are shown it.
    pub(super) json: Vec<String>,
    /// None where nothing is said.
    pub(super) used: Option<ToolUse>,
    /// Calls at most of tools that the server runs.
    pub(super) server_calls_max: Option<u32>,
    /// Those that are not as the model sees them, by the name that it calls them by.
    pub(super) called: HashMap<String, Called>,
}

/// A tool as the client knows it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Called {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    /// It is called with a text.
    pub(super) custom: bool,
}

/// What the model calls a tool by.
pub(super) fn name_shown(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"))
}

/// A tool that the model may call.
struct Tool {
    name: String, // as the model sees it
    called: Called,
    json: String,
}

/// Reads `tools`, `tool_choice`, `parallel_tool_calls` and `max_tool_calls`.
pub(super) fn read(fields: &mut Fields, lenient: bool) -> Result<Tools, ApiError> {
    let parallel = fields.take("parallel_tool_calls").map(Field::boolean).transpose()?;
    let server_calls_max =
        fields.take("max_tool_calls").map(|field| field.integer(1..=u32::MAX)).transpose()?;
    let mut tools = Vec::new();
    if let Some(field) = fields.take("tools") {
        for one in field.list_up_to(CHAT_TOOLS_MAX, "tools")? {
            several(one, lenient, &mut tools)?;
        }
        if tools.len() > CHAT_TOOLS_MAX {
            return Err(field.error(format!("has more than {CHAT_TOOLS_MAX} tools")));
        }
    }
    let choice = fields.take("tool_choice");
    let (choice, named) = match choice {
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
    // Without tools the choice can only be none.
    let used =
        (!json.is_empty()).then(|| ToolUse { choice: choice.into(), named, parallel, ..ToolUse::default() });
    Ok(Tools { json, used, server_calls_max, called })
}

/// A tool, or those of a namespace.
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
        // What is said of all of them is said once.
        let of_all = if tools.len() == before { description.as_str() } else { "" };
        tools.extend(tool(one, lenient, Some(&namespace), of_all)?);
    }
    Ok(())
}

/// A tool in the form that templates know, with what goes before its description; None of one that is left out.
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
    if let Some(field) = fields.take("defer_loading")
        && field.boolean()?
    {
        return Err(ApiError::unsupported(&field.path(), "not supported by this build"));
    }
    if let Some(field) = fields.take("async")
        && field.boolean()?
    {
        return Err(ApiError::unsupported(&field.path(), "not supported by this build"));
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
        // Arguments always satisfy them.
        strict = fields.flag("strict")?;
    }
    if !of_all.is_empty() {
        description = Some(description.map_or(of_all.to_owned(), |text| format!("{of_all}\n\n{text}")));
    }
    // What its answers look like, which it says itself.
    fields.take("output_schema");
    fields.finish()?;
    let called = Called { name: name.string()?, namespace: namespace.map(str::to_owned), custom: is_custom };
    let name = name_shown(namespace, &called.name);
    let mut json = format!("{{\"type\":\"function\",\"function\":{{\"name\":{}", quoted(&name));
    if let Some(text) = description {
        json.push_str(&format!(",\"description\":{}", quoted(&text)));
    }
    json.push_str(&format!(",\"parameters\":{parameters}"));
    json.push_str(if strict { ",\"strict\":true}}" } else { "}}" });
    Ok(Some(Tool { name, called, json }))
}

/// What the text of a custom tool must be.
#[derive(Default)]
struct Format {
    pattern: Option<String>, // that it matches
    note: Option<String>,    // for the model to read
}

fn format(field: Field, lenient: bool) -> Result<Format, ApiError> {
    let mut fields = field.object()?;
    if fields.require("type")?.word(&["text", "grammar"])? == "text" {
        fields.finish()?;
        return Ok(Format::default());
    }
    let syntax = fields.require("syntax")?;
    let word = syntax.word(&["lark", "regex"])?;
    let definition = fields.require("definition")?.string()?;
    fields.finish()?;
    match word {
        "regex" => Ok(Format { pattern: Some(definition), note: None }),
        // The model sees it, and nothing makes it follow.
        _ if lenient => {
            let note = format!("The input follows this grammar, in Lark's notation:\n{definition}");
            Ok(Format { pattern: None, note: Some(note) })
        }
        _ => {
            let problem = "lark cannot be enforced by this build; use regex, or a server that was started with --lenient, which only shows the model the grammar";
            Err(ApiError::unsupported(&syntax.path(), problem))
        }
    }
}

/// What is to be done with tools, and the name of the one that must be called. Leaves only those that may be.
fn tool_choice(field: Field, tools: &mut Vec<Tool>) -> Result<(ToolChoice, String), ApiError> {
    let some = |choice| match tools.is_empty() {
        true => Err(field.error("only allowed with tools")),
        false => Ok((choice, String::new())),
    };
    if field.value().is_string() {
        return match field.word(&["none", "auto", "required"])? {
            "none" => Ok((ToolChoice::None, String::new())),
            // What it is without a word, whatever there is to choose from.
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

/// Leaves only some of the tools. The others are not shown to the model: it would call them.
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
