//! The grammar of every format, compiled, and followed at random: what it allows is read back as whole calls of tools that there
//! are, with arguments that their schemas allow, in vocabularies with and without control tokens for the formats' marks.

mod schema;

use std::sync::{Arc, LazyLock};

use hanzo_engine_constraints::{ConstraintVocabulary, Grammar, Matcher, Spec, Word, json_in_lark};
use hanzo_engine_formats::{Demand, Piece, SplitOptions, Splitter, Tool, ToolFormat};
use serde_json::{Value, json};

use self::schema::fault;

/// Marks that vocabularies have as control tokens, of all formats.
const CONTROLS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "｜DSML｜",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<tool_calls>",
    "</tool_calls>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<function_calls>",
    "</function_calls>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|function_call|>",
];

/// Longer tokens of text, among them what ends a string in some format, and half of it.
const WORDS: &[&str] = &[
    "\"}",
    "\": ",
    "true",
    "null",
    "None",
    "True",
    "é",
    "日本",
    "😀",
    "</parameter>",
    "</param>",
    "</para",
    "\n</parameter>",
    "</arg_value>",
    "</｜DSML｜parameter>",
    "<escape>",
    "<|\"|>",
    "</invoke>",
    "</function>",
    "<parameter=",
    "\\n",
    "\\\"",
    "))",
    "}}",
    "<",
    "10",
    "```tool_code\n",
    "<function=",
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|tool_call|>",
    "AB123",
    "2024-02-29",
    "Paris",
    "'",
    " ",
    "\n",
    "</",
    "parameter>",
];

/// What ends things.
const CLOSERS: &[&str] = &[
    "</parameter>",
    "</param>",
    "\n</parameter>",
    "</arg_value>",
    "</｜DSML｜parameter>",
    "<|\"|>",
    "<escape>",
    "\"",
    "}",
    "]",
    ")",
    "</",
    "｜DSML｜",
];
/// Short values.
const SHORTEST: &[&str] = &["null", "None", "AB123", "0", "2024-02-29"];

struct Tokens {
    words: Vec<String>, // from 256 on; before them, bytes
    controls: usize,    // the first that is a control token
    vocabulary: Arc<ConstraintVocabulary>,
}

fn tokens(with_controls: bool) -> Tokens {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let mut words: Vec<String> = WORDS.iter().map(|word| (*word).to_owned()).collect();
    let controls = 256 + words.len();
    let mut marks: Vec<&str> = CONTROLS.to_vec();
    marks.dedup();
    if with_controls {
        words.retain(|word| !marks.contains(&word.as_str()));
    }
    let controls = controls.min(256 + words.len());
    if with_controls {
        words.extend(marks.iter().map(|mark| (*mark).to_owned()));
    }
    let of = |(at, word): (usize, &'_ String)| -> (bool, Vec<u8>) {
        (256 + at >= controls, word.as_bytes().to_vec())
    };
    let owned: Vec<(bool, Vec<u8>)> = words.iter().enumerate().map(of).collect();
    let texts = bytes.iter().map(|byte| Word::Text(byte));
    let longer = owned
        .iter()
        .map(|(is_control, bytes)| if *is_control { Word::Control(bytes) } else { Word::Text(bytes) });
    let vocabulary = Arc::new(ConstraintVocabulary::new(texts.chain(longer)).expect("a vocabulary"));
    Tokens { words, controls, vocabulary }
}

static PLAIN: LazyLock<Tokens> = LazyLock::new(|| tokens(false));
static CONTROL: LazyLock<Tokens> = LazyLock::new(|| tokens(true));

impl Tokens {
    fn spelled(&self, token: u32) -> Vec<u8> {
        match token {
            0..=255 => vec![token as u8],
            token => self.words[token as usize - 256].as_bytes().to_vec(),
        }
    }

    fn id(&self, text: &str) -> Option<u32> {
        let long = self.words.iter().position(|word| word == text).map(|at| at as u32 + 256);
        long.or((text.len() == 1).then(|| u32::from(text.as_bytes()[0])))
    }

    fn grammar(&self, demand: &Demand) -> Result<Arc<Grammar>, String> {
        let schema = |source: &str| json_in_lark(source, &|| false).map_err(|error| error.to_string());
        let lark = demand.grammar(&|mark| self.vocabulary.control(mark), &schema)?;
        Grammar::compile(&Spec::Lark(lark.clone()), &self.vocabulary)
            .map_err(|error| panic!("{}: {error}\n{lark}", demand.format.name()))
    }
}

/// Numbers that are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// A text that a grammar allows, chosen at random, that leans to what ends things the longer it is. None where it did not end.
fn walk(tokens: &Tokens, grammar: &Grammar, random: &mut Random) -> Option<String> {
    let mut matcher = grammar.matcher();
    let mut mask = vec![0; tokens.vocabulary.mask_words()];
    let mut text: Vec<u8> = Vec::new();
    let long = 20 + random.below(150);
    for step in 0..700 {
        if matcher.is_stopped() || matcher.is_accepting() && random.below(6) == 0 {
            return Some(String::from_utf8(text).expect("UTF-8"));
        }
        let mut next = None;
        if step > long && random.below(8) > 0 {
            let may = |matcher: &mut Matcher, closers: &[&str]| -> Vec<u32> {
                let ids = closers.iter().filter_map(|closer| tokens.id(closer));
                ids.filter(|&id| matcher.valid(&[id]) == 1).collect()
            };
            let mut ids = may(&mut matcher, CLOSERS);
            if ids.is_empty() {
                ids = may(&mut matcher, SHORTEST);
            }
            next = (!ids.is_empty()).then(|| ids[random.below(ids.len())]);
        }
        for _ in 0..12 {
            if next.is_some() {
                break;
            }
            let candidate = match random.below(8) {
                0 => random.below(256),
                1 => b"\"'\\\n<>{}[](),:=;-0123456789"[random.below(27)].into(),
                2 | 3 => b'a' as usize + random.below(26),
                _ => 256 + random.below(tokens.words.len()),
            };
            next = Some(candidate as u32).filter(|&token| matcher.valid(&[token]) == 1);
        }
        let token = next.or_else(|| {
            matcher.allowed(&mut mask).expect("it goes on");
            let allowed: Vec<u32> = (0..tokens.vocabulary.tokens() as u32)
                .filter(|&token| mask[token as usize / 32] >> (token % 32) & 1 == 1)
                .collect();
            // Where no token continues it, it is whole.
            (!allowed.is_empty()).then(|| allowed[random.below(allowed.len())])
        });
        let Some(token) = token else {
            assert!(matcher.is_accepting());
            return Some(String::from_utf8(text).expect("UTF-8"));
        };
        matcher.accept(token).unwrap_or_else(|error| panic!("{token}: {error}"));
        text.extend(tokens.spelled(token));
    }
    None
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool::of_json(&json!({"name": name, "parameters": parameters})).expect("a tool")
}

fn tools() -> Vec<Tool> {
    vec![
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                    "city": {"type": "string"}, "unit": {"enum": ["celsius", "fah ren\"heit", "ké"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7}, "exact": {"type": "boolean"},
                    "share": {"type": "number"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                "required": ["city", "days"], "additionalProperties": false}),
        ),
        tool(
            "book2",
            json!({"type": "object", "properties": {
                    "note": {"type": "string", "minLength": 2, "maxLength": 12},
                    "code": {"type": "string", "pattern": "^[A-Z]{2}\\d{3}$"}, "word": {"type": "string", "pattern": "an|^b"},
                    "when": {"type": "string", "format": "date"}, "mode": {"const": "x y"}, "level": {"enum": [1, "two", null, true]},
                    "where": {"type": "object", "properties": {
                            "lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
                            "deep": {"type": "object", "properties": {"ok": {"type": "boolean"}, "größe": {"type": "integer"}},
                                "required": ["ok"], "additionalProperties": false}},
                        "required": ["lat", "deep"], "additionalProperties": false},
                    "list": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4}},
                "required": ["note", "code", "where", "list"], "additionalProperties": false}),
        ),
        tool("now", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        tool(
            "tree",
            json!({"type": "object", "properties": {
                    "root": {"$ref": "#/$defs/node"}, "name": {"$ref": "#/$defs/name"}, "any": {}},
                "required": ["root", "name"], "additionalProperties": false,
                "$defs": {
                    "name": {"type": "string", "maxLength": 5},
                    "node": {"type": "object", "properties": {
                            "value": {"type": "integer"},
                            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                        "required": ["value", "next"], "additionalProperties": false}}}),
        ),
    ]
}

/// What was read of an output: text, and calls.
fn read(format: ToolFormat, tools: &[Tool], text: &str) -> (String, Vec<(String, String)>) {
    let reading = SplitOptions { format: Some(format), tools: tools.into(), ..SplitOptions::default() };
    let mut splitter = Splitter::new(reading);
    let mut pieces = splitter.push(text);
    pieces.extend(splitter.finish(hanzo_engine_formats::End::Own));
    let (mut said, mut calls, mut whole) = (String::new(), Vec::new(), 0);
    for piece in pieces {
        match piece {
            Piece::Text(text) => said.push_str(&text),
            Piece::Reasoning(_) => {}
            Piece::CallStart { name, .. } => calls.push((name, String::new())),
            Piece::Arguments { delta, .. } => calls.last_mut().expect("a call").1.push_str(&delta),
            Piece::CallEnd { .. } => whole += 1,
            Piece::CallBroken { .. } => _ = calls.pop(),
        }
    }
    assert_eq!(whole, calls.len(), "{text}");
    (said, calls)
}

/// JSON whose numbers a double can hold: a grammar knows no exponents that are too large.
fn tamed(json: &str) -> String {
    let (mut out, mut number) = (String::new(), String::new());
    let (mut in_text, mut escaped) = (false, false);
    for c in json.chars() {
        if !in_text
            && (c.is_ascii_digit()
                || matches!(c, '.' | '+' | '-')
                || !number.is_empty() && matches!(c, 'e' | 'E'))
        {
            number.push(c);
            continue;
        }
        if !number.is_empty() {
            let fits = number.parse::<f64>().is_ok_and(f64::is_finite);
            out.push_str(if fits { &number } else { "1e9" });
            number.clear();
        }
        match c {
            '"' if !escaped => in_text = !in_text,
            _ => {}
        }
        escaped = in_text && c == '\\' && !escaped;
        out.push(c);
    }
    out
}

/// Follows a demand's grammar, and gives how many calls each walk had.
fn follow(demand: &Demand, walks: usize, random: &mut Random) -> Vec<usize> {
    let mut counts = Vec::new();
    for tokens in [&*PLAIN, &*CONTROL] {
        let grammar =
            tokens.grammar(demand).unwrap_or_else(|error| panic!("{}: {error}", demand.format.name()));
        let mut whole = 0;
        for _ in 0..walks * 4 {
            if whole == walks {
                break;
            }
            let Some(text) = walk(tokens, &grammar, random) else { continue };
            whole += 1;
            let (said, calls) = read(demand.format, demand.tools, &text);
            let name = demand.format.name();
            for (called, arguments) in &calls {
                let tool = demand.tools.iter().find(|tool| tool.name == *called).expect("a known tool");
                let value: Value = serde_json::from_str(&tamed(arguments))
                    .unwrap_or_else(|error| panic!("{name}: {error}\n{text}\n{arguments}"));
                if let Some(fault) = fault(&tool.parameters, &value, &tool.parameters) {
                    panic!("{name}: {called}: {fault}\n{text}\n{arguments}");
                }
            }
            if demand.required {
                // Harmony's models may say what they are about to do.
                let may_say = demand.format == ToolFormat::Harmony;
                assert!(
                    !calls.is_empty() && (may_say || said.trim().is_empty()),
                    "{name}: {said:?} is said in\n{text}"
                );
                assert!(demand.parallel || calls.len() == 1, "{name}: {text}");
            }
            counts.push(calls.len());
        }
        assert_eq!(
            whole,
            walks,
            "{}: {} control tokens: walks that ended",
            demand.format.name(),
            tokens.words.len() + 256 - tokens.controls
        );
    }
    counts
}

/// Tries every format, all of them before it fails.
fn each(check: impl Fn(ToolFormat, u64) + std::panic::RefUnwindSafe) {
    let fails = |&(at, format): &(usize, ToolFormat)| {
        std::panic::catch_unwind(|| check(format, 0x9E37_79B9_7F4A_7C15 ^ (at as u64) << 8)).is_err()
    };
    let failed: Vec<&str> =
        ToolFormat::ALL.into_iter().enumerate().filter(fails).map(|(_, format)| format.name()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_required_call_is_always_one_that_its_schema_allows() {
    let tools = tools();
    each(|format, seed| {
        let mut random = Random(seed);
        let all = Demand { format, tools: &tools, required: true, parallel: true, document: None };
        let several = follow(&all, 8, &mut random);
        // One in an answer is all that Harmony has.
        assert!(format == ToolFormat::Harmony || several.iter().any(|&calls| calls > 1), "{}", format.name());
        for tool in &tools {
            let named = Demand { tools: std::slice::from_ref(tool), parallel: false, ..all };
            follow(&named, 3, &mut random);
        }
    });
}

#[test]
fn an_answer_that_may_call_is_text_or_calls() {
    let tools = tools();
    each(|format, seed| {
        let auto = Demand { format, tools: &tools, required: false, parallel: true, document: None };
        let counts = follow(&auto, 8, &mut Random(seed));
        assert!(counts.contains(&0), "{}: no text", format.name());
    });
}

#[test]
fn a_document_is_asked_for_beside_calls_and_in_harmonys_channels_alone() {
    let shape = json!({"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"],
                       "additionalProperties": false});
    let document = json_in_lark(&shape.to_string(), &|| false).expect("a schema");
    let tools = tools();
    each(|format, seed| {
        let mut random = Random(seed);
        let alone = (format == ToolFormat::Harmony).then_some(&tools[..0]);
        for tools in std::iter::once(&tools[..]).chain(alone) {
            let demand = Demand { format, tools, required: false, parallel: true, document: Some(&document) };
            let grammar = CONTROL.grammar(&demand).expect("a grammar");
            let texts = (0..48).filter_map(|_| walk(&CONTROL, &grammar, &mut random));
            let mut documents = 0;
            for text in texts {
                // Control tokens that are no part of an answer.
                let text = text.replace("<|START_RESPONSE|>", "").replace("<|END_RESPONSE|>", "");
                let (said, calls) = read(format, tools, &text);
                if calls.is_empty() {
                    // Before it Harmony's models may say what they are about to do.
                    let json =
                        &said[said.rfind('{').unwrap_or_else(|| panic!("{}: {text}", format.name()))..];
                    let value = serde_json::from_str(&tamed(json)).expect("JSON");
                    assert_eq!(fault(&shape, &value, &shape), None, "{}: {text}", format.name());
                    documents += 1;
                }
                if documents == 2 {
                    break;
                }
            }
            assert!(documents > 0, "{}: no document", format.name());
        }
    });
}

#[test]
fn what_cannot_be_enforced_is_refused_only_where_a_call_must_be_valid() {
    let of = |format, parameters: Value, required| {
        let tools = [tool("f", parameters)];
        let demand = Demand { format, tools: &tools, required, parallel: true, document: None };
        CONTROL.grammar(&demand)
    };
    let not = json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}, "required": ["a"]});
    let either = json!({"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let never = json!({"type": "string"});
    for format in ToolFormat::ALL {
        for bad in [&not, &never] {
            let refused = of(format, bad.clone(), true).expect_err("refused");
            assert!(refused.starts_with("tool \"f\": parameters: at #/"), "{}: {refused}", format.name());
            of(format, bad.clone(), false).unwrap_or_else(|error| panic!("{}: {error}", format.name()));
        }
        of(format, either.clone(), false).unwrap_or_else(|error| panic!("{}: {error}", format.name()));
    }
    let refused = of(ToolFormat::Glm, either.clone(), true).expect_err("refused");
    assert!(refused.starts_with("tool \"f\": parameters: at #/anyOf: "), "{refused}");
    let refused = of(ToolFormat::Lfm2, either, true).expect_err("refused");
    assert!(refused.starts_with("tool \"f\": parameters: at #/anyOf: "), "{refused}");
    let tools = [tool("a b", json!({}))];
    for format in ToolFormat::ALL {
        let demand = Demand { format, tools: &tools, required: false, parallel: true, document: None };
        assert!(PLAIN.grammar(&demand).expect_err("no such name").starts_with("tool \"a b\": function.name"));
    }
}
