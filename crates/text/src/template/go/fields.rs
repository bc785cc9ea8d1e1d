//! Fields of a conversation in Ollama's templates, and the corresponding expressions in a Jinja template. Kinds are
//! known before a template runs, so an unknown field is an error of the template.

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The conversation.
    Root,
    Text,
    Bool,
    Number,
    Nil,
    /// JSON value.
    Any,
    Values,
    Messages,
    Message,
    Calls,
    Call,
    Called,
    /// Arguments of a function: values by name.
    Arguments,
    Tools,
    Tool,
    Function,
    Parameters,
    Properties,
    Property,
    /// Types of a property: one, or several.
    Types,
}

impl Kind {
    /// Kind of a list's elements, or of a map's values.
    pub(super) fn element(self) -> Option<Kind> {
        Some(match self {
            Kind::Messages => Kind::Message,
            Kind::Calls => Kind::Call,
            Kind::Tools => Kind::Tool,
            Kind::Values => Kind::Any,
            Kind::Arguments => Kind::Any,
            Kind::Properties => Kind::Property,
            _ => return None,
        })
    }

    pub(super) fn is_map(self) -> bool {
        matches!(self, Kind::Arguments | Kind::Properties)
    }

    /// Whether it is a struct in Go, which is always true.
    pub(super) fn is_struct(self) -> bool {
        matches!(
            self,
            Kind::Message
                | Kind::Call
                | Kind::Called
                | Kind::Tool
                | Kind::Function
                | Kind::Parameters
                | Kind::Property
        )
    }

    /// Name of the kind in the macro that writes JSON; `None` if it is no object of its own.
    pub(super) fn as_json(self) -> Option<&'static str> {
        Some(match self {
            Kind::Tools => "tools",
            Kind::Tool => "tool",
            Kind::Function => "function",
            Kind::Parameters => "parameters",
            Kind::Properties => "properties",
            Kind::Property => "property",
            Kind::Text
            | Kind::Bool
            | Kind::Number
            | Kind::Any
            | Kind::Values
            | Kind::Arguments
            | Kind::Types => "",
            _ => return None,
        })
    }
}

/// Expression for a field of the value with code `of`; `None` if there is no such field.
pub(super) fn field(kind: Kind, of: &str, name: &str) -> Option<(String, Kind)> {
    let or = |key: &str, empty: &str| format!("({of}.{key} or {empty})");
    let at = |key: &str| format!("{of}.{key}");
    Some(match (kind, name) {
        (Kind::Root, "System") => ("go.system".to_owned(), Kind::Text),
        (Kind::Root, "Prompt") => ("go.prompt".to_owned(), Kind::Text),
        (Kind::Root, "Response") => ("go.response".to_owned(), Kind::Text),
        // A text with a gap is no chat.
        (Kind::Root, "Suffix") => ("''".to_owned(), Kind::Text),
        (Kind::Root, "Messages") => ("go.messages".to_owned(), Kind::Messages),
        (Kind::Root, "Tools") => ("(tools or [])".to_owned(), Kind::Tools),
        (Kind::Root, "Think") => ("(enable_thinking is defined and enable_thinking)".to_owned(), Kind::Bool),
        (Kind::Root, "IsThinkSet") => ("(enable_thinking is defined)".to_owned(), Kind::Bool),
        (Kind::Root, "ThinkLevel") => ("(reasoning_effort or '')".to_owned(), Kind::Text),
        (Kind::Message, "Role") => (at("role"), Kind::Text),
        (Kind::Message, "Content") => (at("content"), Kind::Text),
        (Kind::Message, "Thinking") => (or("reasoning_content", "''"), Kind::Text),
        (Kind::Message, "ToolCalls") => (or("tool_calls", "[]"), Kind::Calls),
        (Kind::Message, "ToolName") => (or("name", "''"), Kind::Text),
        (Kind::Message, "ToolCallID") => (or("tool_call_id", "''"), Kind::Text),
        (Kind::Call, "ID") => (or("id", "''"), Kind::Text),
        (Kind::Call, "Function") => (at("function"), Kind::Called),
        (Kind::Called, "Name") => (at("name"), Kind::Text),
        (Kind::Called, "Arguments") => (at("arguments"), Kind::Arguments),
        (Kind::Tool, "Type") => (at("type"), Kind::Text),
        (Kind::Tool, "Function") => (at("function"), Kind::Function),
        (Kind::Function | Kind::Property, "Description") => (or("description", "''"), Kind::Text),
        (Kind::Function, "Name") => (at("name"), Kind::Text),
        (Kind::Function, "Parameters") => (or("parameters", "{}"), Kind::Parameters),
        (Kind::Parameters, "Type") => (or("type", "''"), Kind::Text),
        (Kind::Parameters | Kind::Property, "Properties") => (or("properties", "{}"), Kind::Properties),
        (Kind::Parameters | Kind::Property, "Required") => (or("required", "[]"), Kind::Values),
        (Kind::Property, "Type") => (or("type", "''"), Kind::Types),
        (Kind::Property, "Enum") => (or("enum", "[]"), Kind::Values),
        (Kind::Parameters | Kind::Property | Kind::Tool, "Items") => (at("items"), Kind::Any),
        (Kind::Arguments, name) => (format!("{of}[{}]", literal(name)), Kind::Any),
        (Kind::Properties, name) => (format!("({of}[{}] or {{}})", literal(name)), Kind::Property),
        _ => return None,
    })
}

/// Text as a Jinja expression. No string contains both kinds of quotes, so that a search for strings need not
/// handle escapes.
pub(super) fn literal(text: &str) -> String {
    if text.contains('\'') && text.contains('"') {
        let pieces: Vec<String> = text.split('\'').map(literal).collect();
        return format!("({})", pieces.join(" ~ \"'\" ~ "));
    }
    let quote = if text.contains('\'') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter => out.push(letter),
        }
    }
    out.push(quote);
    out
}
