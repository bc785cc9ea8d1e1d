//! Calls as models of each format write them.

use hanzo_engine_formats::ToolFormat;
use serde_json::{Value, json};

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => {
            let text = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
            format!("'{text}'")
        }
        Value::Array(list) => format!("[{}]", list.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries =
                map.iter().map(|(key, value)| format!("{}: {}", python(&json!(key)), python(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        number => number.to_string(),
    }
}

fn gemma(value: &Value, mark: &str) -> String {
    match value {
        Value::String(text) => format!("{mark}{text}{mark}"),
        Value::Array(list) => {
            format!("[{}]", list.iter().map(|value| gemma(value, mark)).collect::<Vec<_>>().join(","))
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{key}:{}", gemma(value, mark)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Calls as a model of the format writes them.
pub(crate) fn written(format: ToolFormat, calls: &[(&str, Value)]) -> String {
    use ToolFormat as F;
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let each = |one: &dyn Fn(&str, &Value) -> String, between: &str| -> String {
        calls.iter().map(|(name, arguments)| one(name, arguments)).collect::<Vec<_>>().join(between)
    };
    let entries = |arguments: &Value, one: &dyn Fn(&str, &Value) -> String, between: &str| -> String {
        let entries = arguments.as_object().expect("an object").iter();
        entries.map(|(key, value)| one(key, value)).collect::<Vec<_>>().join(between)
    };
    let json_call =
        |name: &str, arguments: &Value| format!(r#"{{"name": "{name}", "arguments": {arguments}}}"#);
    let list = || format!("[{}]", each(&json_call, ", "));
    let python_call = |name: &str, arguments: &Value| {
        format!("{name}({})", entries(arguments, &|key, value| format!("{key}={}", python(value)), ", "))
    };
    let invoke = |d: &str, name: &str, arguments: &Value| {
        let parameter = |key: &str, value: &Value| {
            let said = match d {
                "" => String::new(),
                _ => format!(" string=\"{}\"", value.is_string()),
            };
            format!("<{d}parameter name=\"{key}\"{said}>{}</{d}parameter>\n", plain(value))
        };
        format!("<{d}invoke name=\"{name}\">\n{}</{d}invoke>\n", entries(arguments, &parameter, ""))
    };
    match format {
        F::Hermes => each(&|n, a| format!("<tool_call>\n{}\n</tool_call>", json_call(n, a)), "\n"),
        F::QwenCoder => each(
            &|n, a| {
                let one = |k: &str, v: &Value| format!("<parameter={k}>\n{}\n</parameter>\n", plain(v));
                format!("<tool_call>\n<function={n}>\n{}</function>\n</tool_call>", entries(a, &one, ""))
            },
            "\n",
        ),
        F::Llama => each(&|n, a| format!(r#"{{"name": "{n}", "parameters": {a}}}"#), "; "),
        F::Pythonic => format!("[{}]", each(&python_call, ", ")),
        F::Mistral => each(&|n, a| format!("[TOOL_CALLS]{n}[ARGS]{a}"), ""),
        F::DeepSeek => format!(
            "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
            each(
                &|n, a| format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{a}\n```<｜tool▁call▁end｜>"
                ),
                "\n"
            )
        ),
        F::DeepSeekDsml => format!(
            "<｜DSML｜function_calls>\n{}</｜DSML｜function_calls>",
            each(&|n, a| invoke("｜DSML｜", n, a), "")
        ),
        F::Gemma => format!("```tool_code\n{}\n```", each(&python_call, "\n")),
        F::Gemma4 => each(&|n, a| format!("<|tool_call>call:{n}{}<tool_call|>", gemma(a, "<|\"|>")), ""),
        F::FunctionGemma => each(
            &|n, a| format!("<start_function_call>call:{n}{}<end_function_call>", gemma(a, "<escape>")),
            "",
        ),
        F::Phi4Mini => format!("<|tool_call|>{}<|/tool_call|>", list()),
        F::Harmony => each(
            &|n, a| format!("<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{a}<|call|>"),
            "<|start|>assistant",
        ),
        F::Glm => each(
            &|n, a| {
                let one = |k: &str, v: &Value| {
                    format!("<arg_key>{k}</arg_key>\n<arg_value>{}</arg_value>\n", plain(v))
                };
                format!("<tool_call>{n}\n{}</tool_call>", entries(a, &one, ""))
            },
            "\n",
        ),
        F::Kimi => {
            let one = |n: &str, a: &Value| {
                format!("<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{a}<|tool_call_end|>")
            };
            format!("<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", each(&one, ""))
        }
        F::MiniMax => {
            format!("<minimax:tool_call>\n{}</minimax:tool_call>", each(&|n, a| invoke("", n, a), ""))
        }
        F::Granite => format!("<|tool_call|>{}", list()),
        F::CommandR => {
            let one = |n: &str, a: &Value| {
                format!(r#"    {{"tool_call_id": "0", "tool_name": "{n}", "parameters": {a}}}"#)
            };
            format!("<|START_ACTION|>[\n{}\n]<|END_ACTION|>", each(&one, ",\n"))
        }
        F::Nemotron => format!("<TOOLCALL>{}</TOOLCALL>", list()),
        F::ToolCalls => format!("<tool_calls>\n{}\n</tool_calls>", list()),
        F::Xlam => list(),
        F::Functionary => each(&|n, a| format!("<function={n}>{a}</function>"), "\n"),
        F::Lfm2 => format!("<|tool_call_start|>[{}]<|tool_call_end|>", each(&python_call, ", ")),
        F::ChatGlm => each(&|n, a| format!("{n}\n{a}"), "\n"),
        F::Apertus => {
            format!("<|tools_prefix|>[{}]<|tools_suffix|>", each(&|n, a| format!(r#"{{"{n}": {a}}}"#), ", "))
        }
        F::SolarOpen => {
            let one = |n: &str, a: &Value| {
                format!(
                    "<|tool_call:begin|>a1B2c3D4e5<|tool_call:name|>{n}<|tool_call:args|>{a}<|tool_call:end|>"
                )
            };
            format!("<|tool_calls|>{}", each(&one, ""))
        }
        F::GigaChat => each(&|n, a| format!("<|function_call|>{}", json_call(n, a)), ""),
        F::MiniCpm => each(
            &|n, a| {
                let one = |k: &str, v: &Value| {
                    let text = plain(v);
                    let is_markup = v.is_string() && text.contains(['<', '&', '\n']);
                    let text = if is_markup { format!("<![CDATA[{text}]]>") } else { text };
                    format!("<param name=\"{k}\">{text}</param>")
                };
                format!("<function name=\"{n}\">{}</function>", entries(a, &one, ""))
            },
            "\n",
        ),
        F::Olmo3 => format!("<function_calls>\n{}\n</function_calls>", each(&python_call, "\n")),
    }
}
