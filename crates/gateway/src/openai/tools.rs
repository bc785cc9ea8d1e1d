//! Tools of a chat: OpenAI's JSON, in its current and its older format, converted to the contract's messages.

use hanzo_engine_proto::v1::{ToolChoice, ToolUse};

use crate::{
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::CHAT_TOOLS_MAX,
};

/// Tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Each tool as JSON for chat templates.
    pub(crate) json: Vec<String>,
    /// Use of the tools; None: no tools.
    pub(crate) used: Option<ToolUse>,
    /// Whether they came as `functions`: calls are answered in that format too.
    pub(crate) old: bool,
}

/// Reads `tools`, `tool_choice`, `parallel_tool_calls`, and `functions` and `function_call`.
pub(crate) fn read(fields: &mut Fields) -> Result<Tools, ApiError> {
    let parallel = fields.take("parallel_tool_calls").map(Field::boolean).transpose()?;
    let functions = fields.take("functions");
    let choice = fields.take("tool_choice");
    let old_choice = fields.take("function_call");
    let mut tools = match (fields.take("tools"), functions) {
        (Some(_), Some(old)) if old.as_list().is_none_or(|mut all| all.next().is_some()) => {
            return Err(old.error("cannot stand beside tools; send tools alone"));
        }
        (Some(tools), _) => list(tools, tool)?,
        (None, Some(functions)) => list(functions, |function| {
            let text = function.value().to_text();
            let name = function_name(function)?;
            Ok((name, format!("{{\"type\":\"function\",\"function\":{text}}}")))
        })?,
        (None, None) => Vec::new(),
    };
    let old = functions.is_some() && !tools.is_empty();
    let says_none = |field: &Field| field.value().as_str().as_deref() == Some("none");
    if let Some(field) = old_choice
        && choice.is_some_and(|choice| !(says_none(&choice) && says_none(&field)))
    {
        return Err(field.error("cannot stand beside tool_choice; send tool_choice alone"));
    }
    let (choice, named) = match (choice, old_choice) {
        (Some(field), _) => tool_choice(field, &mut tools)?,
        (None, Some(field)) => function_call(field, tools.is_empty())?,
        (None, None) => (ToolChoice::Unspecified, String::new()),
    };
    let json: Vec<String> = tools.into_iter().map(|(_, json)| json).collect();
    // Without tools, no choice is sent.
    let used = (!json.is_empty()).then(|| ToolUse {
        choice: choice.into(),
        named,
        parallel: if old { Some(false) } else { parallel },
        ..ToolUse::default()
    });
    Ok(Tools { json, used, old })
}

/// Name of a tool, and its JSON for chat templates.
type Tool = (String, String);

fn list(field: Field, one: impl Fn(Field) -> Result<Tool, ApiError>) -> Result<Vec<Tool>, ApiError> {
    field.list_up_to(CHAT_TOOLS_MAX, "tools")?.map(one).collect()
}

/// Tool as received: templates get all of it.
fn tool(field: Field) -> Result<Tool, ApiError> {
    let text = field.value().to_text();
    let mut fields = field.object()?;
    if let Some(kind) = fields.take("type") {
        match &*kind.text()? {
            "function" => {}
            other => {
                let problem =
                    format!("tools of type {} are not supported by this build, only function", quote(other));
                return Err(ApiError::unsupported(&kind.path(), problem));
            }
        }
    }
    Ok((function_name(fields.require("function")?)?, text))
}

/// Checks that a function has a name and that its parameters are a schema. Returns the name.
fn function_name(field: Field) -> Result<String, ApiError> {
    let mut fields = field.object()?;
    let name = fields.require("name")?;
    let text = name.string()?;
    if text.is_empty() {
        return Err(name.error("must not be empty"));
    }
    match fields.take("parameters") {
        Some(parameters) if !parameters.value().is_object() => Err(parameters.error("expected an object")),
        _ => Ok(text),
    }
}

/// Reads how tools may be used, and the name of the one that must be called. Removes tools that are not
/// allowed.
fn tool_choice(field: Field, tools: &mut Vec<Tool>) -> Result<(ToolChoice, String), ApiError> {
    let no_tools = tools.is_empty();
    if field.value().is_string() {
        let choice = match field.word(&["none", "auto", "required"])? {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            _ => ToolChoice::Required,
        };
        return match choice {
            ToolChoice::None => Ok((choice, String::new())),
            _ if no_tools => Err(field.error("only allowed with tools")),
            _ => Ok((choice, String::new())),
        };
    }
    let mut fields = field.object()?;
    if fields.require("type")?.word(&["function", "allowed_tools"])? == "allowed_tools" {
        return allowed_tools(fields.require("allowed_tools")?, tools);
    }
    let name = fields.require("function")?.object()?.require("name")?.string()?;
    if no_tools {
        return Err(field.error("only allowed with tools"));
    }
    Ok((ToolChoice::Named, name))
}

/// Keeps some of the tools. The model does not see the others, because it would call them.
fn allowed_tools(field: Field, tools: &mut Vec<Tool>) -> Result<(ToolChoice, String), ApiError> {
    let mut fields = field.object()?;
    let choice = match fields.require("mode")?.word(&["auto", "required"])? {
        "auto" => ToolChoice::Auto,
        _ => ToolChoice::Required,
    };
    let list = fields.require("tools")?;
    let mut allowed = Vec::new();
    for tool in list.list_up_to(CHAT_TOOLS_MAX, "tools")? {
        let mut fields = tool.object()?;
        fields.require("type")?.word(&["function"])?;
        let name = fields.require("function")?.object()?.require("name")?;
        let text = name.string()?;
        if !tools.iter().any(|(known, _)| *known == text) {
            return Err(name.error(format!("there is no tool {} in tools", quote(&text))));
        }
        allowed.push(text);
    }
    if allowed.is_empty() {
        return Err(list.error("must name a tool"));
    }
    tools.retain(|(name, _)| allowed.contains(name));
    Ok((choice, String::new()))
}

fn function_call(field: Field, no_tools: bool) -> Result<(ToolChoice, String), ApiError> {
    if field.value().is_string() {
        return match field.word(&["none", "auto"])? {
            "none" => Ok((ToolChoice::None, String::new())),
            _ if no_tools => Err(field.error("only allowed with functions")),
            _ => Ok((ToolChoice::Auto, String::new())),
        };
    }
    let name = field.object()?.require("name")?.string()?;
    if no_tools {
        return Err(field.error("only allowed with functions"));
    }
    Ok((ToolChoice::Named, name))
}
