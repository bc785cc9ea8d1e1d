//! Grammar of an answer that may or must call tools, in llguidance's dialect of Lark. Text is free until a mark
//! begins a call. From there on everything is constrained: the name is a tool's, and the arguments fit its
//! schema. The grammar excludes texts that a reader would parse differently.

mod literals;
mod shape;
mod strings;
mod tags;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use self::{
    shape::{Arguments, CallShape, CallText},
    strings::{ANY, literal, without},
};
use crate::{format::ToolFormat, tools::Tool};

/// Requirements for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Format of tool calls.
    pub format: ToolFormat,
    /// Tools that may be called. At least one, except if Harmony's channels enclose a document.
    pub tools: &'a [Tool],
    /// If true, the answer must be a call.
    pub required: bool,
    /// If true, several calls are allowed. In Harmony each call ends an answer.
    pub parallel: bool,
    /// Schema, for `%json`, of an answer without calls.
    pub document: Option<&'a str>,
}

/// Returns the control token with this spelling.
type Control<'a> = &'a dyn Fn(&str) -> Option<u32>;
/// Converts a JSON Schema for `%json`.
type MakeSchema<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Writes rules for a vocabulary.
struct GrammarWriter<'a> {
    /// Marks of the format that are control tokens, the longest first.
    controls: Vec<(&'static str, u32)>,
    schema: MakeSchema<'a>,
    rules: String,
    /// Names of rules by their text.
    known: HashMap<String, String>,
    next: usize,
}

impl Demand<'_> {
    /// Builds the grammar. `control` returns the vocabulary's control token with a given spelling. `schema`
    /// converts a JSON Schema for `%json`.
    ///
    /// # Errors
    /// Errors of `schema`, and features that the format cannot enforce, with the tool's name. If a call need not
    /// be valid (it is not required, no tool is strict, and no document is requested), arguments are enforced
    /// as far as possible.
    pub fn grammar(&self, control: Control<'_>, schema: MakeSchema<'_>) -> Result<String, String> {
        let mut writer = GrammarWriter::new(self.format, control, schema);
        let start = match CallShape::of(self.format) {
            _ if self.format == ToolFormat::Harmony => self.channels(&mut writer)?,
            Some(shape) => self.calls(&mut writer, &shape)?,
            None => self.calls(&mut writer, &CallShape::mistral(control("[ARGS]").is_some()))?,
        };
        Ok(format!("start: {start}\n{}SPACE: /[ \\n]{{1,4}}/\nTEXT: /(?s:.*)/\n", writer.rules))
    }

    /// Grammar of an answer of text and calls.
    fn calls(&self, writer: &mut GrammarWriter, shape: &CallShape) -> Result<String, String> {
        let (mut calls, mut arguments) = (Vec::new(), Vec::new());
        // If a call begins like the document, one lexer must tell them apart. Therefore the call is a document
        // too.
        let alike = self.document.is_some() && shape.bare == Some("{");
        for tool in self.tools.iter().filter(|_| alike) {
            let whole = whole_call(tool).and_then(|schema| writer.made(&schema.to_string()));
            let whole = whole.map_err(|reason| format!("tool {:?}: parameters: {reason}", tool.name))?;
            calls.push(writer.rule(format!("%json {whole}")));
        }
        for tool in self.tools.iter().filter(|_| !alike) {
            let rule = self.arguments(writer, shape.arguments, tool)?;
            arguments.push((tool.name.as_str(), rule.clone()));
            for (before, after) in shape.calls {
                let (before, after) = (writer.parts(before, &tool.name), writer.parts(after, &tool.name));
                calls.push(writer.rule(format!("{before} {rule} {after}")));
            }
        }
        let call = writer.rule(calls.join(" | "));
        let (between, close) = (writer.parts(shape.between, ""), writer.parts(shape.close, ""));
        let more = if self.parallel { format!("({between} {call})*") } else { String::new() };
        let rest = writer.rule(format!("{call} {more} {close}"));
        let mut open = writer.parts(shape.open, "");
        if writer.has_control(shape.before_open) {
            open = format!("({})? {open}", writer.text(shape.before_open));
        }
        let may = |mark: &str| match writer.has_control(mark) {
            true => format!("({})?", writer.text(mark)),
            false => String::new(),
        };
        let [before, after] = shape.around_text.map(may);
        Ok(match (self.required, self.document, shape.bare) {
            (true, ..) => format!("SPACE? {open} {rest}"),
            (false, Some(document), _) if alike => {
                writer.define("document", &format!("%json {document}"));
                format!("{rest} | document")
            }
            (false, Some(document), _) => {
                writer.define("document", &format!("%json {document}"));
                format!("SPACE? {open} {rest} | {before} document {after}")
            }
            (false, None, Some(bare)) => {
                let space = " \\n\\r\\t";
                let other = writer.terminal(format!("/[{space}]*([^{bare}{space}](?s:.*))?/"));
                format!("SPACE? {open} {rest} | {other} | \"\"")
            }
            (false, None, None) if self.format.syntax().named.is_some() => {
                let lines = self.tools.iter().map(|tool| without(&format!("{}\n", tool.name)));
                let other = format!("{ANY} & {}", lines.collect::<Vec<_>>().join(" & "));
                let other = writer.terminal(other);
                format!("{rest} | {other} | \"\"")
            }
            (false, None, None) => {
                // Plain text that spells a control mark would be parsed as the mark. Excluding it makes masks
                // slower, and models rarely write it, so it is done only for strict tools.
                let spelled: Vec<&str> = writer.controls.iter().map(|(mark, _)| *mark).collect();
                let openers = self.format.syntax().openers.iter().map(|(mark, _)| *mark);
                let strict = self.tools.iter().any(|tool| tool.strict);
                let text = writer.plain(openers.filter(|mark| strict && spelled.contains(mark)));
                let mut starts = vec![format!("{} {rest}", writer.begun(shape, &text, self.format))];
                for call in writer.unopened(shape, &text, self.format, &arguments) {
                    let close = if close.is_empty() { String::new() } else { format!("({close})?") };
                    starts.push(format!("{call} {more} {close}"));
                }
                format!("{} | {before} {text} {after} | \"\"", starts.join(" | "))
            }
        })
    }

    /// Grammar of an answer in Harmony's channels: reasoning and comments to the user, then a call or the
    /// answer.
    fn channels(&self, writer: &mut GrammarWriter) -> Result<String, String> {
        let mut ends = Vec::new();
        for tool in self.tools {
            let arguments = self.arguments(writer, Arguments::Json, tool)?;
            let to = format!("to=functions.{}", tool.name);
            let json = format!("(\" \"? {} \"json\" | \" json\")?", writer.text("<|constrain|>"));
            let message = writer.text("<|message|>");
            for head in [format!("<|channel|>commentary {to}"), format!(" {to}<|channel|>commentary")] {
                let head = writer.text(&head);
                ends.push(writer.rule(format!("{head} {json} {message} {arguments}")));
            }
        }
        let more = "<|end|><|start|>assistant";
        let must = self.required || self.document.is_some() || self.tools.iter().any(|tool| tool.strict);
        let text = writer.plain(crate::harmony::MARKS.into_iter().filter(|_| must));
        let thought = writer.until("<|channel|>analysis<|message|>", &text, more);
        let said = writer.until("<|channel|>commentary<|message|>", &text, more);
        if !self.required {
            let head = writer.text("<|channel|>final");
            let message = writer.text("<|message|>");
            let answer = match self.document {
                Some(document) => {
                    writer.define("document", &format!("%json {document}"));
                    let json = format!("(\" \"? {} \"json\")?", writer.text("<|constrain|>"));
                    format!("{head} {json} {message} document")
                }
                None => format!("{head} {message} {text}"),
            };
            ends.push(answer);
        }
        if ends.is_empty() {
            return Err("there is no tool to be called".to_owned());
        }
        Ok(format!("({thought} | {said})* ({})", ends.join(" | ")))
    }

    /// Rule of a tool's arguments.
    fn arguments(
        &self,
        writer: &mut GrammarWriter,
        arguments: Arguments,
        tool: &Tool,
    ) -> Result<String, String> {
        let must = self.required || tool.strict || self.document.is_some();
        let of_tool = |reason: String| format!("tool {:?}: parameters: {reason}", tool.name);
        tool.check_name().map_err(|reason| format!("tool {:?}: {reason}", tool.name))?;
        let arguments = match arguments {
            Arguments::Json => {
                let schema = match tool.arguments().and_then(|schema| writer.made(&schema.to_string())) {
                    Err(_) if !must => writer.made("{\"type\":\"object\"}"),
                    schema => schema,
                };
                schema.map(|schema| format!("%json {schema}"))
            }
            Arguments::Tags(tags) => writer.tags(tags, tool, must),
            Arguments::Literals(dialect) => writer.literals(dialect, tool, must),
        };
        let arguments = arguments.map_err(of_tool)?;
        Ok(if arguments.is_empty() { String::new() } else { writer.rule(arguments) })
    }
}

/// Schema of a call that consists only of an object.
fn whole_call(tool: &Tool) -> Result<Value, String> {
    let mut arguments = tool.arguments()?;
    crate::tools::refer_below(&mut arguments, "#/properties/parameters");
    Ok(json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": false,
    }))
}

/// Removes keywords that describe and do not constrain, which make up most of many schemas.
fn without_remarks(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A property with one of these names is a schema, not a string.
            fields.retain(|key, value| {
                !(matches!(key.as_str(), "description" | "title" | "$comment" | "$schema")
                    && value.is_string())
            });
            for (key, value) in fields {
                if !matches!(key.as_str(), "enum" | "const" | "default" | "examples") {
                    without_remarks(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_remarks),
        _ => {}
    }
}

impl<'a> GrammarWriter<'a> {
    fn new(format: ToolFormat, control: Control<'_>, schema: MakeSchema<'a>) -> GrammarWriter<'a> {
        let marks = format.syntax().markers().chain(crate::format::INNER).chain(crate::harmony::MARKS);
        let marks = marks.chain(crate::format::AROUND_TEXT);
        let mut controls: Vec<(&str, u32)> =
            marks.filter_map(|mark| control(mark).map(|id| (mark, id))).collect();
        controls.sort_by_key(|(mark, _)| std::cmp::Reverse(mark.len()));
        GrammarWriter { controls, schema, rules: String::new(), known: HashMap::new(), next: 0 }
    }

    /// Expression of a text, with control tokens where the vocabulary has them.
    fn text(&self, text: &str) -> String {
        let mut rest = text;
        let mut out = Vec::new();
        let mut plain = String::new();
        while let Some(c) = rest.chars().next() {
            match self.controls.iter().find(|(mark, _)| rest.starts_with(mark)) {
                Some((mark, id)) => {
                    if !plain.is_empty() {
                        out.push(literal(&std::mem::take(&mut plain)));
                    }
                    out.push(format!("<[{id}]>"));
                    rest = &rest[mark.len()..];
                }
                None => {
                    plain.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        if !plain.is_empty() {
            out.push(literal(&plain));
        }
        out.join(" ")
    }

    /// Returns true if the text contains a control token.
    fn has_control(&self, text: &str) -> bool {
        self.controls.iter().any(|(mark, _)| text.contains(mark))
    }

    /// Splits a text before its first control token, if it has one.
    fn at_control<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let at = self.controls.iter().filter_map(|(mark, _)| text.find(mark)).min()?;
        Some(text.split_at(at))
    }

    /// Terminal of texts without these marks.
    fn plain(&mut self, marks: impl Iterator<Item = &'static str>) -> String {
        let absent: Vec<String> = marks.map(without).collect();
        match absent.is_empty() {
            true => "TEXT".to_owned(),
            false => self.terminal(format!("{ANY} & {}", absent.join(" & "))),
        }
    }

    /// Terminal of a string with the constraint `said`, without its end mark.
    fn content(&mut self, said: Option<String>, end: &str) -> String {
        let said = said.map_or_else(String::new, |said| format!("({said}) & "));
        self.terminal(format!("{ANY} & {said}{}", without(end)))
    }

    /// Rule of a text between two others, neither of which it contains.
    fn until(&mut self, open: &str, text: &str, close: &str) -> String {
        let open = self.text(open);
        if self.has_control(close) {
            let close = self.text(close);
            return self.rule(format!("{open} {text} {close}"));
        }
        let text = self.lazy_rule(format!("TEXT {}", literal(close)));
        self.rule(format!("{open} {text}"))
    }

    /// Expression of the parts around arguments.
    fn parts(&self, parts: &[CallText], name: &str) -> String {
        let mut out = Vec::new();
        let mut text = String::new();
        for part in parts {
            let expression = match part {
                CallText::Is(is) => {
                    text.push_str(is);
                    continue;
                }
                CallText::Name | CallText::JsonName => {
                    text.push_str(name);
                    continue;
                }
                CallText::Either(texts) => {
                    format!("({})", texts.iter().map(|text| literal(text)).collect::<Vec<_>>().join(" | "))
                }
                CallText::May(may) => format!("({})?", literal(may)),
                CallText::Count => "/[0-9]{1,3}/".to_owned(),
                CallText::CallId => "/[a-zA-Z0-9]{10}/".to_owned(),
                CallText::MayHaveId(mark) => format!("({} /[a-zA-Z0-9]{{9}}/)?", self.text(mark)),
            };
            out.push(self.text(&std::mem::take(&mut text)));
            out.push(expression);
        }
        out.push(self.text(&text));
        out.retain(|part| !part.is_empty());
        out.join(" ")
    }

    /// Expression of text followed by the opening of calls.
    fn begun(&mut self, shape: &CallShape, text: &str, format: ToolFormat) -> String {
        let Some((CallText::Is(first), others)) = shape.open.split_first() else { return String::new() };
        let others = self.parts(others, "");
        // The mark by which the reader recognises a call.
        let known =
            format.syntax().markers().filter(|mark| first.starts_with(mark)).max_by_key(|mark| mark.len());
        let (mark, rest) = first.split_at(known.map_or(first.len(), str::len));
        format!("{} {} {others}", self.text_before(text, mark), self.text(rest))
    }

    /// Expressions of text followed by a call without the opening of calls, which some models leave out.
    /// `arguments` has a tool's name and a rule each.
    fn unopened(
        &mut self,
        shape: &CallShape,
        text: &str,
        format: ToolFormat,
        arguments: &[(&str, String)],
    ) -> Vec<String> {
        let mut calls = Vec::new();
        for ((before, after), (opener, _)) in shape
            .calls
            .iter()
            .flat_map(|call| format.syntax().openers.iter().map(move |opener| (call, opener)))
        {
            let cut = before.iter().enumerate().find_map(|(at, part)| match part {
                CallText::Is(is) => is.find(opener).map(|from| (at, &is[from + opener.len()..])),
                _ => None,
            });
            let Some((at, rest)) = cut else { continue };
            let begun = self.text_before(text, opener);
            let each: Vec<String> = arguments
                .iter()
                .map(|(name, rule)| {
                    let parts = [&[CallText::Is(rest)], &before[at + 1..]].concat();
                    format!("{} {rule} {}", self.parts(&parts, name), self.parts(after, name))
                })
                .collect();
            let each = self.rule(each.join(" | "));
            calls.push(format!("{begun} {each}"));
        }
        calls
    }

    /// Expression of text up to and including a mark.
    fn text_before(&mut self, text: &str, mark: &str) -> String {
        let Some((before, control)) = self.at_control(mark) else {
            return self.lazy_rule(format!("TEXT {}", literal(mark)));
        };
        let control = self.text(control);
        match before {
            "" => format!("{text} {control}"),
            before => format!("{} {control}", self.terminal(format!("{text} {}", literal(before)))),
        }
    }

    /// Converts a JSON Schema for `%json`, without descriptive keywords.
    fn made(&self, schema: &str) -> Result<Value, String> {
        let mut made = serde_json::from_str(&(self.schema)(schema)?).map_err(|error| error.to_string())?;
        without_remarks(&mut made);
        Ok(made)
    }

    /// Converts a schema for enforcement. If that fails and need not succeed, returns the schema of any value.
    fn enforced(&self, schema: &Value, must: bool) -> Result<Value, String> {
        match self.made(&schema.to_string()) {
            Err(_) if !must => self.made("{}"),
            enforced => enforced,
        }
    }

    /// Rule of a JSON value, with the layout of the schema `of`.
    fn json(&mut self, mut schema: Map<String, Value>, of: &Value) -> String {
        if let Some(layout) = of.get("x-guidance") {
            schema.insert("x-guidance".to_owned(), layout.clone());
        }
        self.rule(format!("%json {}", Value::Object(schema)))
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("r{}", self.next)
    }

    fn define(&mut self, name: &str, body: &str) {
        let body = if body.trim().is_empty() { "\"\"" } else { body.trim() };
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    /// Returns the name of a rule with this body.
    fn rule(&mut self, body: String) -> String {
        if let Some(name) = self.known.get(&body) {
            return name.clone();
        }
        let name = self.fresh();
        self.define(&name, &body);
        self.known.insert(body, name.clone());
        name
    }

    /// Returns the name of a lazy rule, which ends as soon as possible.
    fn lazy_rule(&mut self, body: String) -> String {
        let key = format!("[lazy]: {body}");
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let name = self.fresh();
        self.rules.push_str(&format!("{name}{key}\n"));
        self.known.insert(key, name.clone());
        name
    }

    /// Returns the name of a new terminal.
    fn terminal(&mut self, body: String) -> String {
        self.next += 1;
        let name = format!("T{}", self.next);
        self.define(&name, &body);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_tokens_where_there_are_such() {
        let tool = Tool::of_json(&json!({"name": "f", "parameters": {"type": "object"}})).expect("a tool");
        let tools = [tool];
        let demand = Demand {
            format: ToolFormat::Hermes,
            tools: &tools,
            required: false,
            parallel: true,
            document: None,
        };
        let schema = |source: &str| Ok(source.to_owned());
        let with = |id: Option<u32>| {
            let control = move |mark: &str| id.filter(|_| mark == "<tool_call>");
            demand.grammar(&control, &schema).expect("a grammar")
        };
        assert!(with(Some(7)).starts_with("start: TEXT <[7]>"), "{}", with(Some(7)));
        assert!(with(None).contains("[lazy]: TEXT \"<tool_call>\""), "{}", with(None));
        let required = Demand { required: true, parallel: false, ..demand };
        let said = required.grammar(&|_| None, &schema).expect("a grammar");
        assert!(said.starts_with("start: SPACE? \"<tool_call>\"") && !said.contains(")*"), "{said}");
        let refused = required.grammar(&|_| None, &|_| Err("bad".to_owned())).expect_err("refused");
        assert_eq!(refused, "tool \"f\": parameters: bad");
    }
}
