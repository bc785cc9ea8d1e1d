//! The grammar of an answer that may, or must, call tools, in llguidance's dialect of Lark. Text is free until a mark begins a
//! call; from there on nothing is left to chance: the name is a tool's, and the arguments are what its schema says.

use serde_json::Value;

use crate::{format::ToolFormat, tools::Tool};

/// What an answer is to be.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// How calls are written.
    pub format: ToolFormat,
    /// What may be called; at least one.
    pub tools: &'a [Tool],
    /// It must be a call, not text.
    pub required: bool,
    /// More than one call.
    pub parallel: bool,
    /// A schema, for `%json`, of the document that an answer without calls is.
    pub document: Option<&'a str>,
}

/// Writes rules for a vocabulary.
struct Writer<'a> {
    control: &'a dyn Fn(&str) -> Option<u32>,
    rules: String,
}

impl Demand<'_> {
    /// The grammar. `control` says which control token of the vocabulary is spelled so, `schema` makes a JSON Schema fit for
    /// `%json`. None where the format's calls have no grammar.
    ///
    /// # Errors
    /// Those of `schema`, with the tool's name.
    pub fn grammar(
        &self,
        control: &dyn Fn(&str) -> Option<u32>,
        schema: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Option<String>, String> {
        let Some(shape) = Shape::of(self.format) else { return Ok(None) };
        let mut writer = Writer { control, rules: String::new() };
        for (at, tool) in self.tools.iter().enumerate() {
            let must = self.required || tool.strict;
            let enforced = |source: &Value| match schema(&source.to_string()) {
                Err(_) if !must => schema("{\"type\":\"object\"}"),
                enforced => enforced,
            };
            let of_tool = |reason| format!("tool {:?}: parameters: {reason}", tool.name);
            match shape.arguments {
                Arguments::Json => {
                    let body = enforced(&tool.parameters).map_err(of_tool)?;
                    writer.rules.push_str(&format!("arguments{at}: %json {body}\n"));
                    let named = |text: &str| text.replace("NAME", &tool.name);
                    let mut forms = vec![writer.sequence(shape.before, shape.after, at, &named)];
                    if let Some((before, after)) = shape.other {
                        forms.push(writer.sequence(before, after, at, &named));
                    }
                    writer.rules.push_str(&format!("call{at}: {}\n", forms.join(" | ")));
                }
                Arguments::Tags => writer.tags(&shape, at, tool, &enforced).map_err(of_tool)?,
            }
        }
        let calls: Vec<String> = (0..self.tools.len()).map(|at| format!("call{at}")).collect();
        writer.rules.push_str(&format!("call: {}\n", calls.join(" | ")));
        let (open, close) = (writer.marks(shape.open), writer.marks(shape.close));
        let more =
            if self.parallel { format!(" ({} call)*", writer.marks(shape.between)) } else { String::new() };
        writer.rules.push_str(&format!("rest: call{more} {close}\n"));
        let start = match (self.required, self.document, shape.open) {
            (true, ..) => format!("start: SPACE? {open} rest\n"),
            (false, Some(document), _) => {
                format!("start: SPACE? {open} rest | document\ndocument: %json {document}\n")
            }
            (false, None, [first, others @ ..]) if (writer.control)(first).is_none() && !first.is_empty() => {
                let others = writer.marks(others);
                let first = quoted(first);
                match shape.bare {
                    Some(bare) => {
                        format!("start: {open} rest | OTHER | \"\"\nOTHER: /[^{bare}](?s:.*)/\n")
                    }
                    None => format!("start: begun {others} rest | TEXT\nbegun[lazy]: TEXT {first}\n"),
                }
            }
            _ => match shape.bare {
                Some(bare) => format!("start: {open} rest | OTHER | \"\"\nOTHER: /[^{bare}](?s:.*)/\n"),
                None => format!("start: TEXT {open} rest | TEXT | {open} rest\n"),
            },
        };
        Ok(Some(format!("{start}{}SPACE: /[ \\n]{{1,4}}/\nTEXT: /(?s:.*)/\n", writer.rules)))
    }
}

impl Writer<'_> {
    /// Marks one behind another: control tokens where the vocabulary has them as such, else as they are spelled.
    fn marks(&self, marks: &[&str]) -> String {
        let one = |mark: &&str| match (self.control)(mark) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(mark),
        };
        marks.iter().filter(|mark| !mark.is_empty()).map(one).collect::<Vec<_>>().join(" ")
    }

    fn sequence(&self, before: &[&str], after: &[&str], at: usize, named: &dyn Fn(&str) -> String) -> String {
        let texts = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| named(text)).collect();
            self.marks(&texts.iter().map(String::as_str).collect::<Vec<_>>())
        };
        format!("{} arguments{at} {}", texts(before), texts(after))
    }

    /// The rules of a call whose arguments stand between tags, in the schema's order.
    fn tags(
        &mut self,
        shape: &Shape,
        at: usize,
        tool: &Tool,
        enforced: &dyn Fn(&Value) -> Result<String, String>,
    ) -> Result<(), String> {
        let before = self.marks(
            &shape
                .before
                .iter()
                .map(|text| text.replace("NAME", &tool.name))
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        );
        let mut parameters = String::new();
        let empty = serde_json::Map::new();
        let properties = tool.parameters.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required = tool.parameters.get("required").and_then(Value::as_array);
        for (number, (key, source)) in properties.iter().enumerate() {
            let rule = format!("value{at}x{number}");
            let (begin, end) = (
                shape
                    .parameter
                    .0
                    .replace("KEY", key)
                    .replace("STRING", if tool.is_string(key) { "true" } else { "false" }),
                shape.parameter.1,
            );
            let choices = source.get("enum").and_then(Value::as_array);
            let words: Option<Vec<&str>> = choices.map(|all| all.iter().filter_map(Value::as_str).collect());
            match words {
                _ if !tool.is_string(key) => {
                    let body = enforced(&tool.alone(source))?;
                    self.rules.push_str(&format!("{rule}: {rule}j {}\n{rule}j: %json {body}\n", quoted(end)));
                }
                Some(words) if !words.is_empty() => {
                    let words: Vec<String> =
                        words.into_iter().map(|word| quoted(&format!("{word}{end}"))).collect();
                    self.rules.push_str(&format!("{rule}: {}\n", words.join(" | ")));
                }
                _ => self.rules.push_str(&format!("{rule}[lazy]: TEXT {}\n", quoted(end))),
            }
            let needed = required.is_some_and(|names| names.iter().any(|name| name == key));
            parameters.push_str(&format!(" ({} {rule}){}", quoted(&begin), if needed { "" } else { "?" }));
        }
        let after = self.marks(shape.after);
        self.rules.push_str(&format!("call{at}: {before}{parameters} {after}\n"));
        Ok(())
    }
}

/// A text as a literal.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    Json,
    Tags,
}

/// How a format's calls are put together. `NAME` stands for the tool's name, `KEY` for a parameter's.
#[derive(Clone, Copy, Debug)]
struct Shape {
    open: &'static [&'static str],
    before: &'static [&'static str],
    after: &'static [&'static str],
    /// What stands around the arguments in another generation of the family.
    other: Option<(&'static [&'static str], &'static [&'static str])>,
    between: &'static [&'static str],
    close: &'static [&'static str],
    arguments: Arguments,
    parameter: (&'static str, &'static str),
    /// What an answer without calls does not begin with.
    bare: Option<&'static str>,
}

const JSON: Shape = Shape {
    open: &[],
    before: &["{\"name\": \"NAME\", \"arguments\": "],
    after: &["}"],
    other: None,
    between: &[", "],
    close: &[],
    arguments: Arguments::Json,
    parameter: ("", ""),
    bare: None,
};
const TAGS: Shape = Shape { arguments: Arguments::Tags, between: &[], ..JSON };

impl Shape {
    fn of(format: ToolFormat) -> Option<Shape> {
        use ToolFormat as F;
        Some(match format {
            F::Hermes => Shape {
                open: &["<tool_call>"],
                before: &["\n{\"name\": \"NAME\", \"arguments\": "],
                after: &["}\n", "</tool_call>"],
                between: &["\n", "<tool_call>"],
                ..JSON
            },
            F::Llama => Shape {
                before: &["{\"name\": \"NAME\", \"parameters\": "],
                between: &["; "],
                bare: Some("{"),
                ..JSON
            },
            F::Mistral => Shape { open: &["[TOOL_CALLS]", "["], close: &["]"], ..JSON },
            F::DeepSeek => Shape {
                open: &["<｜tool▁calls▁begin｜>"],
                before: &["<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", "NAME\n```json\n"],
                after: &["\n```", "<｜tool▁call▁end｜>"],
                other: Some((&["<｜tool▁call▁begin｜>", "NAME", "<｜tool▁sep｜>"], &["<｜tool▁call▁end｜>"])),
                between: &[],
                close: &["<｜tool▁calls▁end｜>"],
                ..JSON
            },
            F::Phi4Mini => Shape { open: &["<|tool_call|>", "["], close: &["]", "<|/tool_call|>"], ..JSON },
            F::Granite => Shape { open: &["<|tool_call|>", "["], close: &["]"], ..JSON },
            F::Nemotron => Shape { open: &["<TOOLCALL>", "["], close: &["]", "</TOOLCALL>"], ..JSON },
            F::ToolCalls => {
                Shape { open: &["<tool_calls>", "\n["], close: &["]\n", "</tool_calls>"], ..JSON }
            }
            F::Xlam => Shape { open: &["["], close: &["]"], bare: Some("\\["), ..JSON },
            F::CommandR => Shape {
                open: &["<|START_ACTION|>", "[\n"],
                before: &["    {\"tool_call_id\": \"0\", \"tool_name\": \"NAME\", \"parameters\": "],
                between: &[",\n"],
                close: &["\n]", "<|END_ACTION|>"],
                ..JSON
            },
            F::Kimi => Shape {
                open: &["<|tool_calls_section_begin|>"],
                before: &["<|tool_call_begin|>", "functions.NAME:0", "<|tool_call_argument_begin|>"],
                after: &["<|tool_call_end|>"],
                between: &[],
                close: &["<|tool_calls_section_end|>"],
                ..JSON
            },
            F::Functionary => Shape {
                open: &["<function="],
                before: &["NAME>"],
                after: &["</function>"],
                between: &["<function="],
                ..JSON
            },
            F::QwenCoder => Shape {
                open: &["<tool_call>"],
                before: &["\n<function=NAME>\n"],
                after: &["</function>\n", "</tool_call>"],
                between: &["\n", "<tool_call>"],
                parameter: ("<parameter=KEY>\n", "\n</parameter>\n"),
                ..TAGS
            },
            F::MiniMax => Shape {
                open: &["<minimax:tool_call>", "\n"],
                before: &["<invoke name=\"NAME\">\n"],
                after: &["</invoke>\n"],
                close: &["</minimax:tool_call>"],
                parameter: ("<parameter name=\"KEY\">", "</parameter>\n"),
                ..TAGS
            },
            F::DeepSeekDsml => Shape {
                open: &["<｜DSML｜function_calls>\n"],
                before: &["<｜DSML｜invoke name=\"NAME\">\n"],
                after: &["</｜DSML｜invoke>\n"],
                close: &["</｜DSML｜function_calls>"],
                parameter: ("<｜DSML｜parameter name=\"KEY\" string=\"STRING\">", "</｜DSML｜parameter>\n"),
                ..TAGS
            },
            F::Glm
            | F::Harmony
            | F::Pythonic
            | F::Lfm2
            | F::Olmo3
            | F::Gemma
            | F::Gemma4
            | F::FunctionGemma => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            demand.grammar(&control, &schema).expect("a grammar").expect("of Hermes")
        };
        assert!(with(Some(7)).contains("start: TEXT <[7]> rest"), "{}", with(Some(7)));
        assert!(with(None).contains("begun[lazy]: TEXT \"<tool_call>\""), "{}", with(None));
        let required = Demand { required: true, parallel: false, ..demand };
        let said = required.grammar(&|_| None, &schema).expect("a grammar").expect("of Hermes");
        assert!(!said.contains("| TEXT") && !said.contains(")*"), "{said}");
        let refused = required.grammar(&|_| None, &|_| Err("bad".to_owned())).expect_err("refused");
        assert_eq!(refused, "tool \"f\": parameters: bad");
    }
}
