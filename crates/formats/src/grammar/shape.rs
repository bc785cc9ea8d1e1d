//! Structure of each format's calls, as a table.

use crate::format::ToolFormat;

/// Part of the text around arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallText {
    /// Fixed text.
    Is(&'static str),
    /// Optional text.
    May(&'static str),
    /// Alternative texts.
    Either(&'static [&'static str]),
    /// Name of the tool.
    Name,
    /// Name of the tool within a JSON string.
    JsonName,
    /// Number that counts calls.
    Count,
    /// Id of ten letters and digits.
    CallId,
    /// Optional id of nine letters and digits, with this prefix.
    MayHaveId(&'static str),
}

/// Parts before and after the arguments of one call.
pub(super) type Around = (&'static [CallText], &'static [CallText]);

/// Notation of arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arguments {
    /// JSON object.
    Json,
    /// Each argument between tags.
    Tags(&'static TagText),
    /// Named literals of a language.
    Literals(&'static Dialect),
}

/// Tags of a parameter.
#[derive(Debug)]
pub(super) struct TagText {
    /// Text before the name.
    pub(super) begin: &'static str,
    /// Text between the name and a string value, and between the name and any other value.
    pub(super) value: [&'static str; 2],
    /// Text that ends the value, for which readers search.
    pub(super) end: &'static str,
    /// Optional text after it.
    pub(super) after: &'static str,
    /// True if a line break inside each tag belongs to the format.
    pub(super) breaks: bool,
    /// Characters not allowed in a parameter's name.
    pub(super) not_in_names: &'static [char],
}

/// Spelling of values.
#[derive(Debug)]
pub(super) struct Dialect {
    /// Mark around strings. Empty: strings are written as in JSON.
    pub(super) mark: &'static str,
    /// Words for `true`, `false` and `null`.
    pub(super) words: [&'static str; 3],
    /// Text between an argument's name and its value.
    pub(super) argument: &'static str,
    /// Text between a key and its value.
    pub(super) pair: &'static str,
    /// Separator of values, as a Lark expression.
    pub(super) comma: &'static str,
}

static FUNCTION: TagText = TagText {
    begin: "<parameter=",
    value: [">\n"; 2],
    end: "</parameter>",
    after: "\n",
    breaks: true,
    not_in_names: &['>', '<'],
};
static ARG_KEY: TagText = TagText {
    begin: "<arg_key>",
    value: ["</arg_key>\n<arg_value>"; 2],
    end: "</arg_value>",
    after: "\n",
    breaks: false,
    not_in_names: &['>', '<'],
};
static INVOKE: TagText = TagText {
    begin: "<parameter name=\"",
    value: ["\">"; 2],
    end: "</parameter>",
    after: "\n",
    breaks: false,
    not_in_names: &['"', '<', '>'],
};
static PARAM: TagText = TagText {
    begin: "<param name=\"",
    value: ["\">"; 2],
    end: "</param>",
    after: "\n",
    breaks: false,
    not_in_names: &['"', '<', '>'],
};
static DSML: TagText = TagText {
    begin: "<｜DSML｜parameter name=\"",
    value: ["\" string=\"true\">", "\" string=\"false\">"],
    end: "</｜DSML｜parameter>",
    after: "\n",
    breaks: false,
    not_in_names: &['"', '<', '>'],
};

static PYTHON: Dialect =
    Dialect { mark: "", words: ["True", "False", "None"], argument: "=", pair: ": ", comma: "/, ?/" };
const GEMMAS: Dialect =
    Dialect { mark: "", words: ["true", "false", "null"], argument: ":", pair: ":", comma: "\",\"" };
static GEMMA_4: Dialect = Dialect { mark: "<|\"|>", ..GEMMAS };
static FUNCTION_GEMMA: Dialect = Dialect { mark: "<escape>", ..GEMMAS };

/// Structure of a format's calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallShape {
    /// Opening of the calls. Empty: each call's own text begins it.
    pub(super) open: &'static [CallText],
    /// Optional control token before the opening.
    pub(super) before_open: &'static str,
    /// Alternative forms of a call.
    pub(super) calls: &'static [Around],
    /// Separator of calls.
    pub(super) between: &'static [CallText],
    /// End of the calls.
    pub(super) close: &'static [CallText],
    pub(super) arguments: Arguments,
    /// Characters with which an answer without calls must not begin, for a character class.
    pub(super) bare: Option<&'static str>,
    /// Optional control tokens around an answer without calls.
    pub(super) around_text: [&'static str; 2],
}

/// Names of a block of calls in V3.2 and V4.
const DSML_BLOCK: CallText = Either(&["function_calls", "tool_calls"]);

use CallText::{CallId, Count, Either, Is, JsonName, May, MayHaveId, Name};

const PLAIN: CallShape = CallShape {
    open: &[],
    before_open: "",
    calls: &[],
    between: &[],
    close: &[],
    arguments: Arguments::Json,
    bare: None,
    around_text: ["", ""],
};
/// `[{"name": …, "arguments": …}, …]` between marks.
const LIST: CallShape = CallShape {
    calls: &[(&[Is("{\"name\": \""), JsonName, Is("\", \"arguments\": ")], &[Is("}")])],
    between: &[Is(", ")],
    ..PLAIN
};

const PYTHON_CALL: CallShape =
    CallShape { calls: &[(&[Name, Is("(")], &[Is(")")])], arguments: Arguments::Literals(&PYTHON), ..PLAIN };

const HERMES: CallShape = CallShape {
    open: &[Is("<tool_call>")],
    calls: &[(
        &[May("\n"), Is("{\"name\": \""), JsonName, Is("\", \"arguments\": ")],
        &[Is("}"), May("\n"), Is("</tool_call>")],
    )],
    between: &[May("\n"), Is("<tool_call>")],
    ..PLAIN
};

const LLAMA: CallShape = CallShape {
    before_open: "<|python_tag|>",
    calls: &[(&[Is("{\"name\": \""), JsonName, Is("\", \"parameters\": ")], &[Is("}")])],
    between: &[Is("; ")],
    bare: Some("{"),
    ..PLAIN
};

const DEEP_SEEK: CallShape = CallShape {
    open: &[Is("<｜tool▁calls▁begin｜>")],
    calls: &[
        (
            &[Is("<｜tool▁call▁begin｜>function<｜tool▁sep｜>"), Name, Is("\n```json\n")],
            &[Is("\n```<｜tool▁call▁end｜>")],
        ),
        (&[Is("<｜tool▁call▁begin｜>"), Name, Is("<｜tool▁sep｜>")], &[Is("<｜tool▁call▁end｜>")]),
    ],
    between: &[May("\n")],
    close: &[Is("<｜tool▁calls▁end｜>")],
    ..PLAIN
};

const PHI4_MINI: CallShape =
    CallShape { open: &[Is("<|tool_call|>[")], close: &[Is("]<|/tool_call|>")], ..LIST };

const GRANITE: CallShape =
    CallShape { open: &[Is("<|tool_call|>"), May(" "), Is("[")], close: &[Is("]")], ..LIST };

const TOOL_CALLS: CallShape = CallShape {
    open: &[Is("<tool_calls>"), May("\n"), Is("[")],
    close: &[Is("]"), May("\n"), Is("</tool_calls>")],
    ..LIST
};

const COMMAND_R: CallShape = CallShape {
    open: &[Is("<|START_ACTION|>["), May("\n")],
    calls: &[(
        &[
            May("    "),
            Is("{\"tool_call_id\": \""),
            Count,
            Is("\", \"tool_name\": \""),
            JsonName,
            Is("\", \"parameters\": "),
        ],
        &[Is("}")],
    )],
    between: &[Is(","), May("\n")],
    close: &[May("\n"), Is("]<|END_ACTION|>")],
    around_text: ["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    ..PLAIN
};

const KIMI: CallShape = CallShape {
    open: &[Is("<|tool_calls_section_begin|>")],
    calls: &[(
        &[Is("<|tool_call_begin|>functions."), Name, Is(":"), Count, Is("<|tool_call_argument_begin|>")],
        &[Is("<|tool_call_end|>")],
    )],
    close: &[Is("<|tool_calls_section_end|>")],
    ..PLAIN
};

const FUNCTIONARY: CallShape = CallShape {
    open: &[Is("<function=")],
    calls: &[(&[Name, Is(">")], &[Is("</function>")])],
    between: &[May("\n"), Is("<function=")],
    ..PLAIN
};

const QWEN_CODER: CallShape = CallShape {
    open: &[Is("<tool_call>")],
    calls: &[(
        &[May("\n"), Is("<function="), Name, Is(">"), May("\n")],
        &[Is("</function>"), May("\n"), Is("</tool_call>")],
    )],
    between: &[May("\n"), Is("<tool_call>")],
    arguments: Arguments::Tags(&FUNCTION),
    ..PLAIN
};

const MINI_MAX: CallShape = CallShape {
    open: &[Is("<minimax:tool_call>\n")],
    calls: &[(&[Is("<invoke name=\""), Name, Is("\">\n")], &[Is("</invoke>\n")])],
    close: &[Is("</minimax:tool_call>")],
    arguments: Arguments::Tags(&INVOKE),
    ..PLAIN
};

const DEEP_SEEK_DSML: CallShape = CallShape {
    open: &[Is("<｜DSML｜"), DSML_BLOCK, Is(">\n")],
    calls: &[(&[Is("<｜DSML｜invoke name=\""), Name, Is("\">\n")], &[Is("</｜DSML｜invoke>\n")])],
    close: &[Is("</｜DSML｜"), DSML_BLOCK, Is(">")],
    arguments: Arguments::Tags(&DSML),
    ..PLAIN
};

const APERTUS: CallShape = CallShape {
    open: &[Is("<|tools_prefix|>[")],
    calls: &[(&[Is("{\""), JsonName, Is("\": ")], &[Is("}")])],
    between: &[Is(", ")],
    close: &[Is("]<|tools_suffix|>")],
    ..PLAIN
};

const SOLAR_OPEN: CallShape = CallShape {
    open: &[Is("<|tool_calls|>")],
    calls: &[(
        &[Is("<|tool_call:begin|>"), CallId, Is("<|tool_call:name|>"), Name, Is("<|tool_call:args|>")],
        &[Is("<|tool_call:end|>")],
    )],
    ..PLAIN
};

const GIGA_CHAT: CallShape = CallShape {
    open: &[Is("<|function_call|>")],
    calls: &[(&[Is("{\"name\": \""), JsonName, Is("\", \"arguments\": ")], &[Is("}")])],
    between: &[Is("<|function_call|>")],
    ..PLAIN
};

const MINI_CPM: CallShape = CallShape {
    open: &[Is("<function name=\"")],
    calls: &[(&[Name, Is("\">")], &[Is("</function>")])],
    between: &[May("\n"), Is("<function name=\"")],
    arguments: Arguments::Tags(&PARAM),
    ..PLAIN
};

const GLM: CallShape = CallShape {
    open: &[Is("<tool_call>")],
    calls: &[(&[Name, May("\n")], &[Is("</tool_call>")])],
    between: &[May("\n"), Is("<tool_call>")],
    arguments: Arguments::Tags(&ARG_KEY),
    ..PLAIN
};

const PYTHONIC: CallShape = CallShape {
    before_open: "<|python_start|>",
    open: &[Is("[")],
    between: &[Is(", ")],
    close: &[Is("]")],
    bare: Some("\\["),
    ..PYTHON_CALL
};

const LFM2: CallShape = CallShape {
    open: &[Is("<|tool_call_start|>[")],
    between: &[Is(", ")],
    close: &[Is("]<|tool_call_end|>")],
    ..PYTHON_CALL
};

const OLMO3: CallShape = CallShape {
    open: &[Is("<function_calls>"), May("\n")],
    between: &[Is("\n")],
    close: &[May("\n"), Is("</function_calls>")],
    ..PYTHON_CALL
};

const GEMMA: CallShape =
    CallShape { open: &[Is("```tool_code\n")], between: &[Is("\n")], close: &[Is("\n```")], ..PYTHON_CALL };

const GEMMA4_CALL: CallShape = CallShape {
    open: &[Is("<|tool_call>")],
    calls: &[(&[Is("call:"), Name, Is("{")], &[Is("}<tool_call|>")])],
    between: &[Is("<|tool_call>")],
    arguments: Arguments::Literals(&GEMMA_4),
    ..PLAIN
};

const FUNCTION_GEMMA_CALL: CallShape = CallShape {
    open: &[Is("<start_function_call>")],
    calls: &[(&[Is("call:"), Name, Is("{")], &[Is("}<end_function_call>")])],
    between: &[Is("<start_function_call>")],
    arguments: Arguments::Literals(&FUNCTION_GEMMA),
    ..PLAIN
};

impl CallShape {
    /// Structure of a format. None if an answer is more than text and calls.
    pub(super) fn of(format: ToolFormat) -> Option<CallShape> {
        use ToolFormat as F;
        Some(match format {
            F::Harmony | F::Mistral => return None,
            F::Hermes => HERMES,
            F::Llama => LLAMA,
            F::DeepSeek => DEEP_SEEK,
            F::Phi4Mini => PHI4_MINI,
            F::Granite => GRANITE,
            F::Nemotron => CallShape { open: &[Is("<TOOLCALL>[")], close: &[Is("]</TOOLCALL>")], ..LIST },
            F::ToolCalls => TOOL_CALLS,
            F::Xlam => CallShape { open: &[Is("[")], close: &[Is("]")], bare: Some("\\["), ..LIST },
            F::CommandR => COMMAND_R,
            F::Kimi => KIMI,
            F::Functionary => FUNCTIONARY,
            F::QwenCoder => QWEN_CODER,
            F::MiniMax => MINI_MAX,
            F::DeepSeekDsml => DEEP_SEEK_DSML,
            F::ChatGlm => CallShape { calls: &[(&[Name, Is("\n")], &[])], between: &[Is("\n")], ..PLAIN },
            F::Apertus => APERTUS,
            F::SolarOpen => SOLAR_OPEN,
            F::GigaChat => GIGA_CHAT,
            F::MiniCpm => MINI_CPM,
            F::Glm => GLM,
            F::Pythonic => PYTHONIC,
            F::Lfm2 => LFM2,
            F::Olmo3 => OLMO3,
            F::Gemma => GEMMA,
            F::Gemma4 => GEMMA4_CALL,
            F::FunctionGemma => FUNCTION_GEMMA_CALL,
        })
    }

    /// Structure for Mistral's models: a list up to the seventh generation of its tokenizer, later a name with
    /// arguments. `has_args` says if the token `[ARGS]` exists, which tells them apart.
    pub(super) fn mistral(has_args: bool) -> CallShape {
        match has_args {
            false => CallShape { open: &[Is("[TOOL_CALLS]"), May(" "), Is("[")], close: &[Is("]")], ..LIST },
            true => CallShape {
                open: &[Is("[TOOL_CALLS]")],
                calls: &[(&[Name, MayHaveId("[CALL_ID]"), Is("[ARGS]")], &[])],
                between: &[Is("[TOOL_CALLS]")],
                ..PLAIN
            },
        }
    }
}
