//! Formats of tool calls: their names, detection from chat templates, and marks.

use serde::{Deserialize, Serialize};

use crate::read::{
    CallReader,
    head::{self, Head, HeadForm},
    literal::{self, Calls as Literals, Style},
    object::Object,
    tagged::{self, TaggedReader, Tags},
};

/// Format in which a model family writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen, ERNIE and many others.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder,
    /// Seed-OSS, Step.
    QwenCoder,
    /// `{"name": …, "parameters": …}` as the whole answer, optionally after `<|python_tag|>`: Llama 3.
    Llama,
    /// `[name(key=value)]`: Llama 3.2 and 4.
    Pythonic,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]` and `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// `<｜tool▁calls▁begin｜>…`: DeepSeek up to V3.1.
    DeepSeek,
    /// `<｜DSML｜function_calls>…`: DeepSeek V3.2; `<｜DSML｜tool_calls>…`: V4.
    DeepSeekDsml,
    /// Python calls in a code fence: Gemma up to 3.
    Gemma,
    /// `<|tool_call>call:name{key:value}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<start_function_call>call:name{key:value}<end_function_call>`: FunctionGemma.
    FunctionGemma,
    /// `<|tool_call|>…<|/tool_call|>`, and `functools[…]`: Phi-4-mini.
    Phi4Mini,
    /// Channels: GPT-OSS.
    Harmony,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM-4.5 and later.
    Glm,
    /// `<|tool_calls_section_begin|>…`: Kimi-K2.
    Kimi,
    /// `<minimax:tool_call><invoke name="…">…`: MiniMax-M2.
    MiniMax,
    /// `<|tool_call|>[{"name": …, "arguments": …}]`: Granite 3.
    Granite,
    /// `<|START_ACTION|>[{"tool_name": …, "parameters": …}]<|END_ACTION|>`: Command-R7B and later.
    CommandR,
    /// `<TOOLCALL>[{"name": …, "arguments": …}]</TOOLCALL>`: Nemotron.
    Nemotron,
    /// `<tool_calls>[{"name": …, "arguments": …}]</tool_calls>`: Jamba, Hunyuan, MiniMax-M1.
    ToolCalls,
    /// `[{"name": …, "arguments": …}]` as the whole answer: xLAM.
    Xlam,
    /// `<function=name>{…}</function>`: Functionary and Llama 3.1 by its own prompts.
    Functionary,
    /// `<|tool_call_start|>[name(key=value)]<|tool_call_end|>`, or JSON between the marks: LFM2.
    Lfm2,
    /// `<function_calls>name(key=value)</function_calls>`: OLMo 3.
    Olmo3,
    /// Name on a line and `{…}` on the next, as the whole answer: GLM-4 up to 0414.
    ChatGlm,
    /// `<|tools_prefix|>[{"name": {…}}]<|tools_suffix|>`: Apertus.
    Apertus,
    /// `<|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{…}<|tool_call:end|>`: Solar Open.
    SolarOpen,
    /// `<|function_call|>{"name": …, "arguments": …}`: GigaChat 3.
    GigaChat,
    /// `<function name="name"><param name="key">value</param></function>`: MiniCPM 5.
    MiniCpm,
}

/// Creates a reader for a call.
type Begin = fn() -> CallReader;

/// Syntax of a format's calls.
#[derive(Debug)]
pub(crate) struct Syntax {
    /// Marks that begin a call, with the reader for the text after them.
    pub(crate) openers: &'static [(&'static str, Begin)],
    /// Marks around calls that are insignificant by themselves.
    pub(crate) marks: &'static [&'static str],
    /// Character that begins a call if no text came before.
    pub(crate) bare: Option<(char, Begin)>,
    /// Reader for a call that begins with a tool's name on its own line, if no text came before.
    pub(crate) named: Option<Begin>,
}

impl Syntax {
    /// All marks.
    pub(crate) fn markers(&self) -> impl Iterator<Item = &'static str> {
        self.openers.iter().map(|(marker, _)| *marker).chain(self.marks.iter().copied())
    }

    /// Returns true if a text is a mark of the format.
    pub(crate) fn has(&self, text: &str) -> bool {
        // Some marks are several tokens, or a token and more.
        self.markers().any(|marker| marker == text || text.starts_with('<') && marker.starts_with(text))
            || INNER.contains(&text)
    }

    /// Returns true if a mark begins with this character.
    pub(crate) fn may_begin(&self, c: char) -> bool {
        self.bare.is_some_and(|(bare, _)| bare == c) || self.markers().any(|marker| marker.starts_with(c))
    }
}

/// Control tokens around an answer without calls. They are not part of the answer, so no reader handles them.
pub(crate) const AROUND_TEXT: [&str; 2] = ["<|START_RESPONSE|>", "<|END_RESPONSE|>"];

/// Control tokens inside a call.
pub(crate) const INNER: [&str; 16] = [
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "</function>",
    "</invoke>",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁sep｜>",
    "<|tool_call_argument_begin|>",
    "<|\"|>",
    "<escape>",
    "｜DSML｜",
    "</parameter>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
];

fn object() -> CallReader {
    CallReader::Object(Object::new())
}

fn of_head(form: &'static HeadForm) -> CallReader {
    CallReader::Head(Head::new(form))
}

fn of_tags(tags: &'static Tags) -> CallReader {
    CallReader::Tagged(TaggedReader::new(tags))
}

fn of_style(style: &'static Style) -> CallReader {
    CallReader::Literal(Literals::new(style))
}

/// Consecutive objects, or a list of them.
fn objects() -> CallReader {
    CallReader::Object(Object::lines())
}

const NONE: Syntax = Syntax { openers: &[], marks: &[], bare: None, named: None };

static HERMES: Syntax = Syntax { openers: &[("<tool_call>", object)], marks: &["</tool_call>"], ..NONE };
static QWEN_CODER: Syntax = Syntax {
    openers: &[("<function=", || of_tags(&tagged::FUNCTION))],
    marks: &["<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>"],
    ..NONE
};
static LLAMA: Syntax = Syntax {
    openers: &[("<|python_tag|>", object)],
    marks: &[";", "<|eom_id|>", "<|eot_id|>"],
    bare: Some(('{', object)),
    ..NONE
};
static PYTHONIC: Syntax = Syntax {
    openers: &[("<|python_start|>", || of_style(&literal::BRACKETS))],
    marks: &["<|python_end|>"],
    bare: Some(('[', || of_style(&literal::BRACKETS))),
    ..NONE
};
static MISTRAL: Syntax = Syntax { openers: &[("[TOOL_CALLS]", || CallReader::Mistral(None))], ..NONE };
static DEEPSEEK: Syntax = Syntax {
    openers: &[("<｜tool▁call▁begin｜>", || of_head(&head::DEEPSEEK))],
    marks: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁end｜>",
        "```<｜tool▁call▁end｜>",
    ],
    ..NONE
};
static DSML: Syntax = Syntax {
    openers: &[("<｜DSML｜invoke name=\"", || of_tags(&tagged::DSML))],
    marks: &[
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
    ],
    ..NONE
};
static GEMMA: Syntax = Syntax {
    openers: &[
        ("```tool_code\n", || of_style(&literal::FENCE)),
        ("```python\n", || of_style(&literal::FENCE)),
        ("```json\n", object),
        ("```tool_call\n", object),
    ],
    marks: &["```"],
    ..NONE
};
static GEMMA_4: Syntax = Syntax {
    openers: &[("<|tool_call>", || of_style(&literal::GEMMA_4))],
    marks: &["<tool_call|>", "<|tool_response>"],
    ..NONE
};
static FUNCTION_GEMMA: Syntax = Syntax {
    openers: &[("<start_function_call>", || of_style(&literal::FUNCTION_GEMMA))],
    marks: &["<end_function_call>", "<start_function_response>"],
    ..NONE
};
static PHI_4_MINI: Syntax = Syntax {
    openers: &[("<|tool_call|>", object), ("functools", object)],
    marks: &["<|/tool_call|>"],
    ..NONE
};
static GLM: Syntax =
    Syntax { openers: &[("<tool_call>", || of_tags(&tagged::ARG_KEY))], marks: &["<|observation|>"], ..NONE };
static KIMI: Syntax = Syntax {
    openers: &[("<|tool_call_begin|>", || of_head(&head::KIMI))],
    marks: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_end|>"],
    ..NONE
};
static MINIMAX: Syntax = Syntax {
    openers: &[("<invoke name=\"", || of_tags(&tagged::INVOKE))],
    marks: &["<minimax:tool_call>", "</minimax:tool_call>"],
    ..NONE
};
static GRANITE: Syntax = Syntax {
    openers: &[("<|tool_call|>", object), ("<tool_call>", object)],
    marks: &["</tool_call>"],
    ..NONE
};
static COMMAND_R: Syntax = Syntax {
    openers: &[("<|START_ACTION|>", object), ("Action: ```json\n", object)],
    marks: &["<|END_ACTION|>", "```"],
    ..NONE
};
static NEMOTRON: Syntax = Syntax { openers: &[("<TOOLCALL>", object)], marks: &["</TOOLCALL>"], ..NONE };
static TOOL_CALLS: Syntax =
    Syntax { openers: &[("<tool_calls>", objects)], marks: &["</tool_calls>"], ..NONE };
static XLAM: Syntax = Syntax { bare: Some(('[', object)), ..NONE };
static FUNCTIONARY: Syntax =
    Syntax { openers: &[("<function=", || of_head(&head::CLOSED))], marks: &["</function>"], ..NONE };
static LFM2: Syntax = Syntax {
    openers: &[("<|tool_call_start|>", || CallReader::Lfm2(String::new(), None))],
    marks: &["<|tool_call_end|>"],
    ..NONE
};
static OLMO_3: Syntax = Syntax {
    openers: &[("<function_calls>", || of_style(&literal::FUNCTION_CALLS))],
    marks: &["</function_calls>"],
    ..NONE
};
static CHAT_GLM: Syntax =
    Syntax { marks: &["<|observation|>"], named: Some(|| of_head(&head::LINE)), ..NONE };
static APERTUS: Syntax = Syntax {
    openers: &[("<|tools_prefix|>", || CallReader::Object(Object::keyed()))],
    marks: &["<|tools_suffix|>"],
    ..NONE
};
static SOLAR_OPEN: Syntax = Syntax {
    openers: &[("<|tool_call:begin|>", || of_head(&head::SOLAR_OPEN))],
    marks: &["<|tool_calls|>", "<|tool_call:end|>", "<|calls|>"],
    ..NONE
};
static GIGA_CHAT: Syntax = Syntax {
    openers: &[("<|function_call|>", object), ("function call<|role_sep|>\n", object)],
    marks: &["<|message_sep|>"],
    ..NONE
};
static MINI_CPM: Syntax = Syntax { openers: &[("<function name=\"", || of_tags(&tagged::PARAM))], ..NONE };

impl ToolFormat {
    /// All formats.
    pub const ALL: [ToolFormat; 28] = [
        ToolFormat::Hermes,
        ToolFormat::QwenCoder,
        ToolFormat::Llama,
        ToolFormat::Pythonic,
        ToolFormat::Mistral,
        ToolFormat::DeepSeek,
        ToolFormat::DeepSeekDsml,
        ToolFormat::Gemma,
        ToolFormat::Gemma4,
        ToolFormat::FunctionGemma,
        ToolFormat::Phi4Mini,
        ToolFormat::Harmony,
        ToolFormat::Glm,
        ToolFormat::Kimi,
        ToolFormat::MiniMax,
        ToolFormat::Granite,
        ToolFormat::CommandR,
        ToolFormat::Nemotron,
        ToolFormat::ToolCalls,
        ToolFormat::Xlam,
        ToolFormat::Functionary,
        ToolFormat::Lfm2,
        ToolFormat::Olmo3,
        ToolFormat::ChatGlm,
        ToolFormat::Apertus,
        ToolFormat::SolarOpen,
        ToolFormat::GigaChat,
        ToolFormat::MiniCpm,
    ];

    /// Name of the format, as in options.
    pub fn name(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::QwenCoder => "qwen3-coder",
            ToolFormat::Llama => "llama3",
            ToolFormat::Pythonic => "pythonic",
            ToolFormat::Mistral => "mistral",
            ToolFormat::DeepSeek => "deepseek",
            ToolFormat::DeepSeekDsml => "deepseek-v3.2",
            ToolFormat::Gemma => "gemma",
            ToolFormat::Gemma4 => "gemma4",
            ToolFormat::FunctionGemma => "functiongemma",
            ToolFormat::Phi4Mini => "phi4-mini",
            ToolFormat::Harmony => "harmony",
            ToolFormat::Glm => "glm4",
            ToolFormat::Kimi => "kimi-k2",
            ToolFormat::MiniMax => "minimax-m2",
            ToolFormat::Granite => "granite",
            ToolFormat::CommandR => "command-r",
            ToolFormat::Nemotron => "nemotron",
            ToolFormat::ToolCalls => "tool-calls",
            ToolFormat::Xlam => "xlam",
            ToolFormat::Functionary => "functionary",
            ToolFormat::Lfm2 => "lfm2",
            ToolFormat::Olmo3 => "olmo3",
            ToolFormat::ChatGlm => "chatglm",
            ToolFormat::Apertus => "apertus",
            ToolFormat::SolarOpen => "solar-open",
            ToolFormat::GigaChat => "gigachat3",
            ToolFormat::MiniCpm => "minicpm5",
        }
    }

    /// Returns the format with that name.
    ///
    /// # Errors
    /// Lists the known names.
    pub fn by_name(name: &str) -> Result<ToolFormat, String> {
        ToolFormat::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let names: Vec<&str> = ToolFormat::ALL.into_iter().map(ToolFormat::name).collect();
            format!("there is no tool format {name:?}; there are {}", names.join(", "))
        })
    }

    /// Detects the format that a chat template asks for, by the marks that it writes or mentions. None if it
    /// does not mention tools.
    pub fn of_template(template: &str) -> Option<ToolFormat> {
        let has = |mark: &str| template.contains(mark);
        if !has("tools") {
            return None;
        }
        // Marks of a single family come first, because many families use `<tool_call>`.
        let by_mark = [
            (has("<|channel|>") && has("<|message|>"), ToolFormat::Harmony),
            (has("｜DSML｜"), ToolFormat::DeepSeekDsml),
            (has("<｜tool▁call"), ToolFormat::DeepSeek),
            (has("<|tool_call_begin|>") || has("<|im_system|>") && has("tool_declare"), ToolFormat::Kimi),
            (has("<minimax:tool_call>"), ToolFormat::MiniMax),
            (has("<arg_key>"), ToolFormat::Glm),
            (has("<|tools_prefix|>"), ToolFormat::Apertus),
            (has("<|tool_call:begin|>"), ToolFormat::SolarOpen),
            (has("<|function_call|>") || has("function call") && has("<|role_sep|>"), ToolFormat::GigaChat),
            (has("<function name=\"") && has("<param name=\""), ToolFormat::MiniCpm),
            (has("<function=") && has("<parameter="), ToolFormat::QwenCoder),
            (has("<function="), ToolFormat::Functionary),
            (has("<start_function_call>"), ToolFormat::FunctionGemma),
            (has("<|tool_call>") && has("<tool_call|>"), ToolFormat::Gemma4),
            (
                // The template only lists the tools. The model knows how to call them.
                has("<|tool_call_start|>") || has("<|tool_list_start|>") || has("List of tools: ["),
                ToolFormat::Lfm2,
            ),
            (has("[TOOL_CALLS]"), ToolFormat::Mistral),
            (
                has("<|START_ACTION|>") || has("<|START_OF_TURN_TOKEN|>") && has("Action:"),
                ToolFormat::CommandR,
            ),
            (has("<TOOLCALL>"), ToolFormat::Nemotron),
            (has("<|/tool_call|>") || has("functools["), ToolFormat::Phi4Mini),
            (has("<|tool_call|>"), ToolFormat::Granite),
            (has("<function_calls>"), ToolFormat::Olmo3),
            (has("<tool_calls>["), ToolFormat::ToolCalls),
            (has("<tool_call>"), ToolFormat::Hermes),
            // The model answers with a name, a line break and the arguments.
            (has("[gMASK]"), ToolFormat::ChatGlm),
            (has("<tool_calls>"), ToolFormat::ToolCalls),
            (has("<|python_start|>") || has("func_name1(params_name1="), ToolFormat::Pythonic),
            (has("<|python_tag|>") || has("\"parameters\": dictionary of argument"), ToolFormat::Llama),
            (has("<|start_header_id|>") && has("\"parameters\""), ToolFormat::Llama),
            (has("tool_code") || has("<start_of_turn>"), ToolFormat::Gemma),
        ];
        let found = by_mark.into_iter().find(|(has, _)| *has).map(|(_, format)| format);
        Some(found.unwrap_or(ToolFormat::Hermes))
    }

    /// Text that closes a reasoning section which is a separate message. It leads up to the start of the answer
    /// or, if `call` is true, up to the recipient of a call. None: reasoning is enclosed in
    /// [`crate::ReasoningMarkers`], whose [`crate::ReasoningMarkers::closing`] applies.
    pub fn closing(self, call: bool) -> Option<&'static str> {
        match (self, call) {
            (ToolFormat::Harmony, false) => Some("<|end|><|start|>assistant<|channel|>final<|message|>"),
            (ToolFormat::Harmony, true) => Some("<|end|><|start|>assistant<|channel|>commentary"),
            _ => None,
        }
    }

    /// Syntax of the format's calls.
    pub(crate) fn syntax(self) -> &'static Syntax {
        match self {
            ToolFormat::Hermes => &HERMES,
            ToolFormat::QwenCoder => &QWEN_CODER,
            ToolFormat::Llama => &LLAMA,
            ToolFormat::Pythonic => &PYTHONIC,
            ToolFormat::Mistral => &MISTRAL,
            ToolFormat::DeepSeek => &DEEPSEEK,
            ToolFormat::DeepSeekDsml => &DSML,
            ToolFormat::Gemma => &GEMMA,
            ToolFormat::Gemma4 => &GEMMA_4,
            ToolFormat::FunctionGemma => &FUNCTION_GEMMA,
            ToolFormat::Phi4Mini => &PHI_4_MINI,
            ToolFormat::Harmony => &NONE_AT_ALL,
            ToolFormat::Glm => &GLM,
            ToolFormat::Kimi => &KIMI,
            ToolFormat::MiniMax => &MINIMAX,
            ToolFormat::Granite => &GRANITE,
            ToolFormat::CommandR => &COMMAND_R,
            ToolFormat::Nemotron => &NEMOTRON,
            ToolFormat::ToolCalls => &TOOL_CALLS,
            ToolFormat::Xlam => &XLAM,
            ToolFormat::Functionary => &FUNCTIONARY,
            ToolFormat::Lfm2 => &LFM2,
            ToolFormat::Olmo3 => &OLMO_3,
            ToolFormat::ChatGlm => &CHAT_GLM,
            ToolFormat::Apertus => &APERTUS,
            ToolFormat::SolarOpen => &SOLAR_OPEN,
            ToolFormat::GigaChat => &GIGA_CHAT,
            ToolFormat::MiniCpm => &MINI_CPM,
        }
    }
}

/// Harmony's answers are parsed by `harmony`.
static NONE_AT_ALL: Syntax = NONE;
