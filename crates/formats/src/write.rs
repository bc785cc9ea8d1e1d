//! Writer of calls in each format, for conversations whose chat template cannot render past calls. The readers
//! parse a written call back as the same call.

use serde_json::{Map, Value};

use crate::format::ToolFormat;

/// Part of written calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPart {
    /// Mark of the format, which many vocabularies have as a control token.
    Mark(&'static str),
    /// Text with names and values of the conversation.
    Text(String),
}

/// Past call.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    /// Name of the tool.
    pub name: &'a str,
    /// Arguments of the call.
    pub arguments: &'a Map<String, Value>,
}

impl ToolFormat {
    /// Writes calls in one answer, as a model of this format does.
    pub fn write(self, calls: &[Made]) -> Vec<CallPart> {
        let mut out = Out::default();
        match self {
            ToolFormat::Lfm2 => {
                let quote = Quote::Python('"');
                out.around(["<|tool_call_start|>", "<|tool_call_end|>"], |out| out.list(calls, &quote));
            }
            ToolFormat::Pythonic => out.list(calls, &Quote::Python('\'')),
            ToolFormat::Gemma => out.around(["```tool_code\n", "```"], |out| {
                out.each(calls, "\n", |out, call| out.function(call, &Quote::Python('\'')));
                out.text("\n");
            }),
            ToolFormat::Olmo3 => out.around(["<function_calls>", "</function_calls>"], |out| {
                out.text("\n");
                out.each(calls, "\n", |out, call| out.function(call, &Quote::Python('"')));
                out.text("\n");
            }),
            ToolFormat::Gemma4 => out.each(calls, "", |out, call| {
                let quote = Quote::Mark("<|\"|>");
                out.around(["<|tool_call>", "<tool_call|>"], |out| out.function(call, &quote));
            }),
            ToolFormat::FunctionGemma => out.each(calls, "", |out, call| {
                let quote = Quote::Mark("<escape>");
                let marks = ["<start_function_call>", "<end_function_call>"];
                out.around(marks, |out| out.function(call, &quote));
            }),
            ToolFormat::QwenCoder
            | ToolFormat::Glm
            | ToolFormat::MiniMax
            | ToolFormat::DeepSeekDsml
            | ToolFormat::MiniCpm
            | ToolFormat::Functionary => out.tagged(self, calls),
            ToolFormat::Mistral
            | ToolFormat::DeepSeek
            | ToolFormat::Kimi
            | ToolFormat::ChatGlm
            | ToolFormat::SolarOpen
            | ToolFormat::Harmony => {
                out.headed(self, calls);
            }
            _ => out.json(self, calls),
        }
        out.parts
    }

    /// Text between an answer's text and its calls. None if the calls come first.
    pub fn between(self) -> Option<&'static str> {
        match self {
            ToolFormat::Lfm2 => None,
            ToolFormat::Granite | ToolFormat::Phi4Mini | ToolFormat::Mistral => Some(""),
            _ => Some("\n"),
        }
    }
}

/// Notation of strings in literals.
enum Quote {
    Python(char),
    Mark(&'static str),
}

/// Parts, with adjacent texts joined.
#[derive(Default)]
struct Out {
    parts: Vec<CallPart>,
}

impl Out {
    fn mark(&mut self, mark: &'static str) {
        self.parts.push(CallPart::Mark(mark));
    }

    fn text(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(CallPart::Text(last)) => last.push_str(text),
            _ => self.parts.push(CallPart::Text(text.to_owned())),
        }
    }

    fn around(&mut self, [begin, end]: [&'static str; 2], inner: impl FnOnce(&mut Out)) {
        self.mark(begin);
        inner(self);
        self.mark(end);
    }

    fn each(&mut self, calls: &[Made], between: &str, one: impl Fn(&mut Out, &Made)) {
        for (at, call) in calls.iter().enumerate() {
            if at > 0 && !between.is_empty() {
                self.text(between);
            }
            one(self, call);
        }
    }

    /// `{"name": …, "arguments": …}`, with the format's own keys.
    fn object(&mut self, [name, arguments]: [&str; 2], call: &Made) {
        let values = spaced_object(call.arguments);
        self.text(&format!("{{\"{name}\": {}, \"{arguments}\": {values}}}", Value::from(call.name)));
    }

    fn json(&mut self, format: ToolFormat, calls: &[Made]) {
        const KEYS: [&str; 2] = ["name", "arguments"];
        let objects = |out: &mut Out, keys: [&str; 2]| {
            out.text("[");
            out.each(calls, ", ", |out, call| out.object(keys, call));
            out.text("]");
        };
        match format {
            ToolFormat::Llama => self.each(calls, "; ", |out, call| out.object(["name", "parameters"], call)),
            ToolFormat::Phi4Mini => {
                self.around(["<|tool_call|>", "<|/tool_call|>"], |out| objects(out, KEYS))
            }
            ToolFormat::Granite => {
                self.mark("<|tool_call|>");
                objects(self, KEYS);
            }
            ToolFormat::CommandR => self.around(["<|START_ACTION|>", "<|END_ACTION|>"], |out| {
                objects(out, ["tool_name", "parameters"]);
            }),
            ToolFormat::Apertus => self.around(["<|tools_prefix|>", "<|tools_suffix|>"], |out| {
                out.text("[");
                out.each(calls, ", ", |out, call| {
                    let arguments = spaced_object(call.arguments);
                    out.text(&format!("{{{}: {arguments}}}", Value::from(call.name)));
                });
                out.text("]");
            }),
            ToolFormat::GigaChat => self.each(calls, "", |out, call| {
                out.mark("<|function_call|>");
                out.object(KEYS, call);
            }),
            ToolFormat::Nemotron => self.around(["<TOOLCALL>", "</TOOLCALL>"], |out| objects(out, KEYS)),
            ToolFormat::ToolCalls => self.around(["<tool_calls>", "</tool_calls>"], |out| objects(out, KEYS)),
            ToolFormat::Xlam => objects(self, KEYS),
            _ => self.each(calls, "\n", |out, call| {
                out.around(["<tool_call>", "</tool_call>"], |out| {
                    out.text("\n");
                    out.object(KEYS, call);
                    out.text("\n");
                });
            }),
        }
    }

    /// Writes calls with JSON arguments after a header.
    fn headed(&mut self, format: ToolFormat, calls: &[Made]) {
        let arguments = |call: &Made| spaced_object(call.arguments);
        match format {
            ToolFormat::ChatGlm => self.each(calls, "\n", |out, call| {
                out.text(&format!("{}\n{}", call.name, arguments(call)));
            }),
            ToolFormat::SolarOpen => {
                self.mark("<|tool_calls|>");
                for (at, call) in calls.iter().enumerate() {
                    self.around(["<|tool_call:begin|>", "<|tool_call:end|>"], |out| {
                        out.text(&format!("call{at:06}"));
                        out.mark("<|tool_call:name|>");
                        out.text(call.name);
                        out.mark("<|tool_call:args|>");
                        out.text(&arguments(call));
                    });
                }
            }
            ToolFormat::Mistral => self.each(calls, "", |out, call| {
                out.mark("[TOOL_CALLS]");
                out.text(call.name);
                out.mark("[ARGS]");
                out.text(&arguments(call));
            }),
            ToolFormat::DeepSeek => {
                self.around(["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"], |out| {
                    out.each(calls, "\n", |out, call| {
                        out.around(["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"], |out| {
                            out.text("function");
                            out.mark("<｜tool▁sep｜>");
                            out.text(&format!("{}\n```json\n{}\n```", call.name, arguments(call)));
                        });
                    });
                })
            }
            ToolFormat::Kimi => {
                let marks = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"];
                self.around(marks, |out| {
                    for (at, call) in calls.iter().enumerate() {
                        out.around(["<|tool_call_begin|>", "<|tool_call_end|>"], |out| {
                            out.text(&format!("functions.{}:{at}", call.name));
                            out.mark("<|tool_call_argument_begin|>");
                            out.text(&arguments(call));
                        });
                    }
                });
            }
            _ => {
                for (at, call) in calls.iter().enumerate() {
                    if at > 0 {
                        self.mark("<|start|>");
                        self.text("assistant");
                    }
                    self.mark("<|channel|>");
                    self.text(&format!("commentary to=functions.{} ", call.name));
                    self.mark("<|constrain|>");
                    self.text("json");
                    self.mark("<|message|>");
                    self.text(&arguments(call));
                    self.mark("<|call|>");
                }
            }
        }
    }

    /// Writes calls with arguments between tags.
    fn tagged(&mut self, format: ToolFormat, calls: &[Made]) {
        let invoke = |out: &mut Out, d: &str, call: &Made| {
            out.text(&format!("<{d}invoke name=\"{}\">\n", call.name));
            for (key, value) in call.arguments {
                let said =
                    if d.is_empty() { String::new() } else { format!(" string=\"{}\"", value.is_string()) };
                out.text(&format!("<{d}parameter name=\"{key}\"{said}>{}</{d}parameter>\n", bare(value)));
            }
            out.text(&format!("</{d}invoke>\n"));
        };
        match format {
            ToolFormat::QwenCoder => self.each(calls, "\n", |out, call| {
                out.around(["<tool_call>", "</tool_call>"], |out| {
                    out.text(&format!("\n<function={}>\n", call.name));
                    for (key, value) in call.arguments {
                        out.text(&format!("<parameter={key}>\n{}\n</parameter>\n", bare(value)));
                    }
                    out.text("</function>\n");
                });
            }),
            ToolFormat::Glm => self.each(calls, "\n", |out, call| {
                out.around(["<tool_call>", "</tool_call>"], |out| {
                    out.text(&format!("{}\n", call.name));
                    for (key, value) in call.arguments {
                        out.around(["<arg_key>", "</arg_key>"], |out| out.text(key));
                        out.text("\n");
                        out.around(["<arg_value>", "</arg_value>"], |out| out.text(&bare(value)));
                        out.text("\n");
                    }
                });
            }),
            ToolFormat::MiniCpm => self.each(calls, "\n", |out, call| {
                out.text(&format!("<function name=\"{}\">", call.name));
                for (key, value) in call.arguments {
                    let text = bare(value);
                    let is_markup = value.is_string() && text.contains(['<', '&', '\n']);
                    let text = if is_markup { format!("<![CDATA[{text}]]>") } else { text };
                    out.text(&format!("<param name=\"{key}\">{text}</param>"));
                }
                out.text("</function>");
            }),
            ToolFormat::MiniMax => self.around(["<minimax:tool_call>", "</minimax:tool_call>"], |out| {
                out.text("\n");
                out.each(calls, "", |out, call| invoke(out, "", call));
            }),
            ToolFormat::DeepSeekDsml => {
                self.around(["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"], |out| {
                    out.text("\n");
                    out.each(calls, "", |out, call| invoke(out, "｜DSML｜", call));
                });
            }
            _ => self.each(calls, "\n", |out, call| {
                let arguments = spaced_object(call.arguments);
                out.text(&format!("<function={}>{arguments}</function>", call.name));
            }),
        }
    }

    /// `[name(key=value), …]`
    fn list(&mut self, calls: &[Made], quote: &Quote) {
        self.text("[");
        self.each(calls, ", ", |out, call| out.function(call, quote));
        self.text("]");
    }

    /// `name(key=value, …)`, or `call:name{key:value,…}`.
    fn function(&mut self, call: &Made, quote: &Quote) {
        let (before, open, equals, between, close) = match quote {
            Quote::Python(_) => ("", "(", "=", ", ", ")"),
            Quote::Mark(_) => ("call:", "{", ":", ",", "}"),
        };
        self.text(&format!("{before}{}{open}", call.name));
        for (at, (key, value)) in call.arguments.iter().enumerate() {
            self.text(if at > 0 { between } else { "" });
            self.text(&format!("{key}{equals}"));
            self.literal(value, quote);
        }
        self.text(close);
    }

    fn literal(&mut self, value: &Value, quote: &Quote) {
        match (value, quote) {
            (Value::String(text), Quote::Python(quote)) => self.text(&quoted(text, *quote)),
            (Value::String(text), Quote::Mark(mark)) => self.around([mark, mark], |out| out.text(text)),
            (Value::Null, Quote::Python(_)) => self.text("None"),
            (Value::Bool(true), Quote::Python(_)) => self.text("True"),
            (Value::Bool(false), Quote::Python(_)) => self.text("False"),
            (Value::Array(items), _) => {
                self.text("[");
                for (at, item) in items.iter().enumerate() {
                    self.text(if at > 0 { ", " } else { "" });
                    self.literal(item, quote);
                }
                self.text("]");
            }
            (Value::Object(entries), _) => {
                self.text("{");
                for (at, (key, value)) in entries.iter().enumerate() {
                    self.text(if at > 0 { ", " } else { "" });
                    match quote {
                        Quote::Python(quote) => self.text(&format!("{}: ", quoted(key, *quote))),
                        Quote::Mark(_) => self.text(&format!("{key}:")),
                    }
                    self.literal(value, quote);
                }
                self.text("}");
            }
            (other, _) => self.text(&other.to_string()),
        }
    }
}

/// Python string literal.
fn quoted(text: &str, quote: char) -> String {
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Value between tags: a string as it is, other values as JSON.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| spaced(value), str::to_owned)
}

/// JSON with a space after each comma and colon, as Python writes it.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => spaced_object(entries),
        other => other.to_string(),
    }
}

fn spaced_object(entries: &Map<String, Value>) -> String {
    let entry = |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), spaced(value));
    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
}
