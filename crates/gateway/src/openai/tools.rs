//! Tools of a chat: OpenAI's JSON, in its current and its older format, converted to the contract's messages.

use hanzo_engine_proto::v1::{self, ToolUse};

use crate::{
    declare::{Natural as _, Raw, Read, Words, fields},
    error::{ApiError, quote},
    fields::Field,
    limits::CHAT_TOOLS_MAX,
    unsupported::FUNCTION_NOTES,
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

fields! {
    /// Functions that the model may call.
    pub(crate) struct ToolFields<'a> {
        /// Tools that the model may call.
        tools?: Field<'a> = Raw("Tool[]"),
        /// Whether and what the model calls.
        tool_choice?: Field<'a> = Raw("\"none\" | \"auto\" | \"required\" | ToolChoice"),
        /// Whether the model may call several tools at once.
        parallel_tool_calls?: bool,
        /// Functions in the older format of tools.
        functions?: Field<'a> = Raw("Function[]"),
        /// Choice in the older format of tool_choice.
        function_call?: Field<'a> = Raw("\"none\" | \"auto\" | FunctionName"),
    }
}

fields! {
    /// Tool, which the model's template is shown whole.
    pub(crate) open struct Tool {
        /// Kind of tool.
        #[expect(dead_code, reason = "only checked")]
        r#type?: () = Read("\"function\"", is_function),
        /// Function of the tool.
        function: Function,
    }
}

fields! {
    /// Function, which the model's template is shown whole.
    pub(crate) open struct Function inert [&FUNCTION_NOTES] {
        /// Name of the function.
        name: String = Read("string 1..64", some_name),
        /// JSON schema of the arguments.
        #[expect(dead_code, reason = "only checked")]
        parameters?: () = Read("object", is_object),
    }
}

fields! {
    /// Choice of a tool, or of some tools.
    pub(crate) open struct ToolChoice<'a> {
        /// Kind of choice.
        r#type: &'static str = Words(["function", "allowed_tools"]),
        /// Function that must be called.
        function?: FunctionName,
        /// Object of a mode and of tools, of which the others are not shown.
        allowed_tools?: Field<'a> = Raw("object"),
    }
}

fields! {
    /// Name of a function.
    pub(crate) open struct FunctionName {
        /// Name of the function.
        name: String,
    }
}

/// Tools of a request.
pub(crate) fn read(given: &ToolFields) -> Result<Tools, ApiError> {
    let (functions, choice, old_choice) = (given.functions, given.tool_choice, given.function_call);
    let mut tools = match (given.tools, functions) {
        (Some(_), Some(old)) if old.as_list().is_none_or(|mut all| all.next().is_some()) => {
            return Err(old.error("cannot stand beside tools; send tools alone"));
        }
        (Some(tools), _) => list(tools, |field| {
            Ok(NamedTool { name: Tool::of(field)?.function.name, json: field.value().to_text() })
        })?,
        (None, Some(functions)) => list(functions, |field| {
            let json = format!("{{\"type\":\"function\",\"function\":{}}}", field.value().to_text());
            Ok(NamedTool { name: Function::of(field)?.name, json })
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
        (None, None) => (v1::ToolChoice::Unspecified, String::new()),
    };
    let json: Vec<String> = tools.into_iter().map(|tool| tool.json).collect();
    // Without tools, no choice is sent.
    let used = (!json.is_empty()).then(|| ToolUse {
        choice: choice.into(),
        named,
        parallel: if old { Some(false) } else { given.parallel_tool_calls },
        ..ToolUse::default()
    });
    Ok(Tools { json, used, old })
}

/// Tool as received, and its name.
struct NamedTool {
    name: String,
    json: String,
}

fn list(
    field: Field,
    one: impl Fn(Field) -> Result<NamedTool, ApiError>,
) -> Result<Vec<NamedTool>, ApiError> {
    field.list_up_to(CHAT_TOOLS_MAX, "tools")?.map(one).collect()
}

fn is_function(kind: Field) -> Result<(), ApiError> {
    match &*kind.text()? {
        "function" => Ok(()),
        other => {
            let problem =
                format!("tools of type {} are not supported by this build, only function", quote(other));
            Err(ApiError::unsupported(&kind.path(), problem))
        }
    }
}

fn some_name(field: Field) -> Result<String, ApiError> {
    let name = field.string()?;
    if name.is_empty() { Err(field.error("must not be empty")) } else { Ok(name) }
}

fn is_object(field: Field) -> Result<(), ApiError> {
    if field.value().is_object() { Ok(()) } else { Err(field.error("expected an object")) }
}

/// Reads how tools may be used, and the name of the one that must be called. Removes tools that are not
/// allowed.
fn tool_choice(field: Field, tools: &mut Vec<NamedTool>) -> Result<(v1::ToolChoice, String), ApiError> {
    let no_tools = tools.is_empty();
    if field.value().is_string() {
        let choice = match field.word(&["none", "auto", "required"])? {
            "none" => v1::ToolChoice::None,
            "auto" => v1::ToolChoice::Auto,
            _ => v1::ToolChoice::Required,
        };
        return match choice {
            v1::ToolChoice::None => Ok((choice, String::new())),
            _ if no_tools => Err(field.error("only allowed with tools")),
            _ => Ok((choice, String::new())),
        };
    }
    let required = |name: &str| ApiError::field(&format!("tool_choice.{name}"), "required");
    let choice = ToolChoice::of(field)?;
    if choice.r#type == "allowed_tools" {
        return allowed_tools(choice.allowed_tools.ok_or_else(|| required("allowed_tools"))?, tools);
    }
    let name = choice.function.ok_or_else(|| required("function"))?.name;
    if no_tools {
        return Err(field.error("only allowed with tools"));
    }
    Ok((v1::ToolChoice::Named, name))
}

/// Keeps some of the tools. The model does not see the others, because it would call them.
fn allowed_tools(field: Field, tools: &mut Vec<NamedTool>) -> Result<(v1::ToolChoice, String), ApiError> {
    let mut fields = field.object()?;
    let choice = match fields.require("mode")?.word(&["auto", "required"])? {
        "auto" => v1::ToolChoice::Auto,
        _ => v1::ToolChoice::Required,
    };
    let list = fields.require("tools")?;
    let mut allowed = Vec::new();
    for tool in list.list_up_to(CHAT_TOOLS_MAX, "tools")? {
        let mut fields = tool.object()?;
        fields.require("type")?.word(&["function"])?;
        let name = fields.require("function")?.object()?.require("name")?;
        let text = name.string()?;
        if !tools.iter().any(|known| known.name == text) {
            return Err(name.error(format!("there is no tool {} in tools", quote(&text))));
        }
        allowed.push(text);
    }
    if allowed.is_empty() {
        return Err(list.error("must name a tool"));
    }
    tools.retain(|tool| allowed.contains(&tool.name));
    Ok((choice, String::new()))
}

fn function_call(field: Field, no_tools: bool) -> Result<(v1::ToolChoice, String), ApiError> {
    if field.value().is_string() {
        return match field.word(&["none", "auto"])? {
            "none" => Ok((v1::ToolChoice::None, String::new())),
            _ if no_tools => Err(field.error("only allowed with functions")),
            _ => Ok((v1::ToolChoice::Auto, String::new())),
        };
    }
    let name = FunctionName::of(field)?.name;
    if no_tools {
        return Err(field.error("only allowed with functions"));
    }
    Ok((v1::ToolChoice::Named, name))
}
