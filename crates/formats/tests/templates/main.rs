//! Which format a chat template speaks, and how it marks reasoning, by what tells it from the others: the pieces that the
//! templates of each family have, put into templates of our own.

use hanzo_engine_formats::{ReasoningMarkers, ToolFormat};

/// A family, what its templates have, its format, and what opens its reasoning.
type Row = (&'static str, &'static [&'static str], Option<ToolFormat>, Option<&'static str>);

const THINK: Option<&str> = Some("<think>");

/// What stands in templates beside what offers tools.
const ROWS: &[Row] = {
    use ToolFormat as F;
    &[
        ("no tools", &["messages"], None, None),
        ("DeepSeek R1 distilled", &["message.tool_calls", "<｜tool▁calls▁begin｜>", "</think>"], None, THINK),
        ("Qwen 2.5", &["tools", "<tool_call>"], Some(F::Hermes), None),
        ("Qwen 3", &["tools", "<tool_call>", "<think>", "</think>"], Some(F::Hermes), THINK),
        ("QwQ", &["tools", "<tool_call>", "content.split('</think>')"], Some(F::Hermes), THINK),
        ("Hermes 3", &["tools", "<tools>", "<tool_call>", "<tool_response>"], Some(F::Hermes), None),
        ("Granite 4", &["tools", "<tool_call>", "<|start_of_role|>"], Some(F::Hermes), None),
        (
            "Qwen3-Coder",
            &["tools", "<tool_call>", "<function=", "<parameter=", "</function>"],
            Some(F::QwenCoder),
            None,
        ),
        (
            "Nemotron 3",
            &["tools", "<tool_call>", "<function=x>", "<parameter=y>", "<think>", "</think>"],
            Some(F::QwenCoder),
            THINK,
        ),
        (
            "Seed-OSS",
            &["tools", "<seed:tool_call>", "<function=", "<parameter=", "<seed:think>", "</seed:think>"],
            Some(F::QwenCoder),
            Some("<seed:think>"),
        ),
        (
            "Llama 3.1",
            &["tools", "<|python_tag|>", "<|start_header_id|>", "\"parameters\""],
            Some(F::Llama),
            None,
        ),
        (
            "Llama 3.2",
            &["tools", "<|start_header_id|>", "\"parameters\": dictionary of argument"],
            Some(F::Llama),
            None,
        ),
        (
            "Llama 4",
            &["tools", "<|header_start|>", "<|python_start|>", "<|python_end|>"],
            Some(F::Pythonic),
            None,
        ),
        ("Mistral Nemo", &["tools", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]"], Some(F::Mistral), None),
        (
            "Magistral",
            &["tools", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"],
            Some(F::Mistral),
            Some("[THINK]"),
        ),
        (
            "DeepSeek R1",
            &["tools", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<think>", "</think>"],
            Some(F::DeepSeek),
            THINK,
        ),
        (
            "DeepSeek V3.2",
            &["tools", "'｜DSML｜'", "function_calls", "<think>", "</think>"],
            Some(F::DeepSeekDsml),
            THINK,
        ),
        ("Gemma 3", &["tools", "<start_of_turn>"], Some(F::Gemma), None),
        (
            "Gemma 4",
            &["tools", "<|tool_call>", "<tool_call|>", "<|channel>thought", "<channel|>"],
            Some(F::Gemma4),
            Some("<|channel>thought\n"),
        ),
        (
            "FunctionGemma",
            &["tools", "<start_of_turn>", "<start_function_call>", "<escape>"],
            Some(F::FunctionGemma),
            None,
        ),
        ("Phi-4-mini", &["tools", "<|tool|>", "<|tool_call|>", "<|/tool_call|>"], Some(F::Phi4Mini), None),
        ("Firefunction 2", &["tools", "functools[", "<|start_header_id|>"], Some(F::Phi4Mini), None),
        ("GPT-OSS", &["tools", "<|channel|>analysis", "<|message|>", "<|start|>"], Some(F::Harmony), None),
        (
            "GLM 4.5",
            &["tools", "<tool_call>", "<arg_key>", "<arg_value>", "<think>", "</think>"],
            Some(F::Glm),
            THINK,
        ),
        (
            "Kimi K2",
            &["tools", "<|im_system|>tool_declare", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
            Some(F::Kimi),
            None,
        ),
        (
            "MiniMax M2",
            &["tools", "<minimax:tool_call>", "<invoke name=", "<think>", "</think>"],
            Some(F::MiniMax),
            THINK,
        ),
        (
            "Granite 3.3",
            &["tools", "<|tool_call|>", "<|start_of_role|>", "<think>", "</think>"],
            Some(F::Granite),
            THINK,
        ),
        (
            "Granite 3.2",
            &["tools", "<|tool_call|>", "Here is my thought process:", "Here is my response:"],
            Some(F::Granite),
            Some("Here is my thought process:"),
        ),
        (
            "Command R7B",
            &["tools", "<|START_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"],
            Some(F::CommandR),
            Some("<|START_THINKING|>"),
        ),
        ("Command R+", &["tools", "<|START_OF_TURN_TOKEN|>", "Action:```json"], Some(F::CommandR), None),
        ("Nemotron Nano 2", &["tools", "<TOOLCALL>", "<think>", "</think>"], Some(F::Nemotron), THINK),
        ("MiniMax M1", &["tools", "<tool_calls>"], Some(F::ToolCalls), None),
        (
            "Apriel 1.5",
            &["tools", "within <tool_call></tool_call>", "<tool_calls>[{"],
            Some(F::ToolCalls),
            None,
        ),
        ("Functionary 3.1", &["tools", "<function=", "</function>"], Some(F::Functionary), None),
        ("LFM2", &["tools", "List of tools: <|tool_list_start|>["], Some(F::Lfm2), None),
        ("LFM2.5", &["tools", "List of tools: [", "</think>"], Some(F::Lfm2), THINK),
        ("GLM-4 0414", &["[gMASK]<sop>", "# 可用工具", "tools", "<|observation|>"], Some(F::ChatGlm), None),
        (
            "Apertus",
            &["tools", "<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"],
            Some(F::Apertus),
            Some("<|inner_prefix|>"),
        ),
        (
            "Solar Open",
            &["tools", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"],
            Some(F::SolarOpen),
            None,
        ),
        ("GigaChat 3", &["tools", "function call", "<|role_sep|>"], Some(F::GigaChat), None),
        ("GigaChat 3.1", &["tools", "<|function_call|>", "<|role_sep|>"], Some(F::GigaChat), None),
        (
            "MiniCPM 5",
            &["tools", "<function name=\"", "<param name=\"", "<think>", "</think>"],
            Some(F::MiniCpm),
            THINK,
        ),
        ("OLMo 3", &["tools", "<functions>", "<function_calls>"], Some(F::Olmo3), None),
        ("one of its own", &["tools", "<|my_calls|>"], Some(F::Hermes), None),
    ]
};

#[test]
fn templates_are_told_by_their_marks() {
    for (family, pieces, format, reasoning) in ROWS {
        let template: String = pieces.iter().map(|piece| format!("{{{{- {piece:?} }}}}\n")).collect();
        // As it stands in a template.
        let template = template.replace("\\\"", "\"");
        assert_eq!(ToolFormat::of_template(&template), *format, "{family}");
        let markers = ReasoningMarkers::of(&template, |_| false).map(|markers| markers.open);
        assert_eq!(markers.as_deref(), *reasoning, "{family}");
    }
    // Every format is some family's; xLAM's calls have no mark.
    for format in ToolFormat::ALL {
        let known = ROWS.iter().any(|row| row.2 == Some(format));
        assert!(known || format == ToolFormat::Xlam, "{}", format.name());
    }
}

#[test]
fn harmony_closes_its_reasoning_as_a_message() {
    assert_eq!(ToolFormat::Hermes.closing(false), None);
    let output = |closing| format!("<|channel|>analysis<|message|>one two{closing}");
    let answer = output(ToolFormat::Harmony.closing(false).expect("text")) + "The answer.";
    let reading =
        hanzo_engine_formats::SplitOptions { format: Some(ToolFormat::Harmony), ..Default::default() };
    let mut splitter = hanzo_engine_formats::Splitter::new(reading);
    let mut pieces = splitter.push(&answer);
    pieces.extend(splitter.finish(hanzo_engine_formats::End::Own));
    use hanzo_engine_formats::Piece::{Reasoning, Text};
    assert_eq!(pieces, [Reasoning("one two".into()), Text("The answer.".into())]);
}
