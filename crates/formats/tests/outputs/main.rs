//! What models write, format by format: the same outputs with the same calls, plain and nested, beside text, cut off and
//! broken, read whole and cut everywhere.

mod cut;
mod own_ways;
mod written;

use std::sync::Arc;

use hanzo_engine_formats::{
    CallPart, End, Made, Piece, ReasoningMarkers, SplitOptions, Splitter, Tool, ToolFormat,
};
use serde_json::{Value, json};

use self::written::written;

/// What an output came to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Read {
    text: String,
    reasoning: String,
    calls: Vec<(String, Value)>,
    /// The name and the arguments of a call that is not whole.
    partial: Option<(String, String)>,
}

fn tools() -> Arc<[Tool]> {
    let tool = |name: &str, properties: Value| {
        Tool::of_json(&json!({"type": "function", "function": {
            "name": name, "parameters": {"type": "object", "properties": properties}}}))
        .expect("a tool")
    };
    let all = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "note": {"type": "string"}, "where": {"type": "object"}, "list": {"type": "array"},
        "share": {"type": "number"}, "none": {"type": ["string", "null"]},
    });
    Arc::new([tool("get_weather", all.clone()), tool("add-2", all.clone()), tool("now", json!({}))])
}

fn reading(format: ToolFormat) -> SplitOptions {
    SplitOptions { format: Some(format), tools: tools(), ..SplitOptions::default() }
}

fn pieces(reading: &SplitOptions, parts: &[&str]) -> Vec<Piece> {
    pieces_of(reading, parts, End::Own)
}

/// The pieces of an output that ends so. The places of its text hold the text, and none was given up before.
fn pieces_of(reading: &SplitOptions, parts: &[&str], end: End) -> Vec<Piece> {
    let raw = parts.concat();
    let mut splitter = Splitter::new(reading.clone());
    let (mut pieces, mut shown) = (Vec::new(), String::new());
    let mut take = |splitter: &mut Splitter, more: Vec<Piece>, settled: usize| {
        let places = splitter.take_shown();
        let begins = places.first().map_or(settled, |first| first.start);
        let ends = places.last().map_or(settled, |last| last.end);
        assert!(begins >= settled || ends > settled, "{places:?} were settled: {raw}");
        places.into_iter().for_each(|place| shown.push_str(&raw[place]));
        pieces.extend(more);
    };
    for part in parts {
        let settled = splitter.settled();
        let more = splitter.push(part);
        take(&mut splitter, more, settled);
    }
    let settled = splitter.settled();
    let more = splitter.finish(end);
    take(&mut splitter, more, settled);
    let told = |piece: &Piece| if let Piece::Text(text) = piece { text.clone() } else { String::new() };
    assert_eq!(shown, pieces.iter().map(told).collect::<String>(), "{raw}");
    pieces
}

/// Pieces as one would keep them.
fn collect(pieces: &[Piece]) -> Read {
    let mut read = Read::default();
    let mut open: Option<(u32, String, String)> = None;
    let mut next = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => read.text.push_str(text),
            Piece::Reasoning(text) => read.reasoning.push_str(text),
            Piece::CallStart { index, name, .. } => {
                assert!(open.is_none() && *index == next, "{pieces:?}");
                open = Some((*index, name.clone(), String::new()));
            }
            Piece::Arguments { index, delta } => {
                let (of, _, arguments) = open.as_mut().expect("arguments of a call that began");
                assert_eq!(index, of);
                arguments.push_str(delta);
            }
            Piece::CallEnd { index } => {
                let (of, name, arguments) = open.take().expect("a call that began");
                assert_eq!(*index, of);
                next += 1;
                let arguments: Value = serde_json::from_str(&arguments)
                    .unwrap_or_else(|error| panic!("{name} has {arguments}: {error}"));
                assert!(arguments.is_object(), "{arguments}");
                read.calls.push((name, arguments));
            }
            Piece::CallBroken { index } => {
                assert_eq!(open.take().expect("a call that began").0, *index);
                next += 1;
            }
        }
    }
    read.partial = open.map(|(_, name, arguments)| (name, arguments));
    read
}

/// Reads an output whole, character by character and cut in two at every place, and wants the same each time.
fn read(reading: &SplitOptions, raw: &str) -> Read {
    let whole = collect(&pieces(reading, &[raw]));
    let cuts: Vec<usize> = raw.char_indices().map(|(at, _)| at).collect();
    let mut characters: Vec<&str> = cuts.windows(2).map(|pair| &raw[pair[0]..pair[1]]).collect();
    characters.extend(cuts.last().map(|&last| &raw[last..]));
    assert_eq!(collect(&pieces(reading, &characters)), whole, "one by one: {raw}");
    for at in cuts {
        assert_eq!(collect(&pieces(reading, &[&raw[..at], &raw[at..]])), whole, "cut at {at}: {raw}");
    }
    whole
}

/// Formats in which a call is an answer's beginning or nothing.
fn is_bare(format: ToolFormat) -> bool {
    matches!(format, ToolFormat::Llama | ToolFormat::Pythonic | ToolFormat::Xlam | ToolFormat::ChatGlm)
}

/// Arguments of one call each.
fn arguments() -> Vec<Value> {
    vec![
        json!({"city": "Paris"}),
        json!({}),
        json!({"city": "São Paulo 東京 😀", "days": 3}),
        json!({"note": "she said \"no\" and 'yes'"}),
        json!({"note": "C:\\temp\\new", "exact": true}),
        json!({"note": "line one\nline two\n\nline four"}),
        json!({"where": {"lat": 1.5, "lon": -2, "tags": ["a", {"deep": [[], {}]}]}}),
        json!({"list": [1, 2.5, "three", null, false, [4]]}),
        json!({"days": -12, "share": 1e-7, "exact": false}),
        json!({"note": "{\"name\": \"x\"} ] } ) , = : ;", "city": ""}),
        json!({"note": "a < b > c & <b>bold</b> <tool", "none": null}),
        json!({"note": "  spaces  "}),
    ]
}

#[test]
fn every_format_says_the_same_calls() {
    for format in ToolFormat::ALL {
        let reading = reading(format);
        let of = |calls: &[(&str, Value)]| Read {
            calls: calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect(),
            ..Read::default()
        };
        for arguments in arguments() {
            let calls = [("get_weather", arguments)];
            let raw = written(format, &calls);
            assert_eq!(read(&reading, &raw), of(&calls), "{}: {raw}", format.name());
        }
        // Several in one answer.
        let two = [("get_weather", json!({"city": "Rome"})), ("add-2", json!({"days": 2, "list": []}))];
        let two = match format {
            // No name in Python has a dash.
            _ if written(format, &two).contains("add-2(") => [two[0].clone(), ("now", json!({}))],
            _ => two,
        };
        let raw = written(format, &two);
        assert_eq!(read(&reading, &raw), of(&two), "{}: {raw}", format.name());
        let three = [two[0].clone(), two[1].clone(), ("now", json!({}))];
        let raw = written(format, &three);
        assert_eq!(read(&reading, &raw), of(&three), "{}: {raw}", format.name());
    }
}

#[test]
fn calls_that_are_written_are_read_as_the_same_calls() {
    for format in ToolFormat::ALL {
        let reading = reading(format);
        for arguments in arguments() {
            let values = arguments.as_object().expect("an object");
            let names = ["get_weather", "now"];
            let made = names.map(|name| Made { name, arguments: values });
            for made in [&made[..1], &made[..]] {
                let text = |part: CallPart| match part {
                    CallPart::Mark(mark) => mark.to_owned(),
                    CallPart::Text(text) => text,
                };
                let raw: String = format.write(made).into_iter().map(text).collect();
                let calls: Vec<(String, Value)> =
                    made.iter().map(|call| (call.name.to_owned(), arguments.clone())).collect();
                let got = read(&reading, &raw);
                let expected = Read { calls, ..Read::default() };
                // Of a tool whose parameters are unknown, a string may stand for what it spells.
                if made.len() == 1 || arguments.get("note").is_none() {
                    assert_eq!(got, expected, "{}: {raw}", format.name());
                }
            }
        }
    }
}

#[test]
fn text_beside_calls_is_kept() {
    for format in ToolFormat::ALL {
        let reading = reading(format);
        let calls = [("get_weather", json!({"city": "Rome"}))];
        let raw = written(format, &calls);
        let read_of = |raw: &str| read(&reading, raw);
        if !is_bare(format) {
            let before = match format {
                ToolFormat::Harmony => "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant",
                _ => "Let me see.\n\n",
            };
            let got = read_of(&format!("{before}{raw}"));
            assert_eq!(
                (got.text.as_str(), got.calls.len()),
                ("Let me see.", 1),
                "{}: {got:?}",
                format.name()
            );
        }
        let after = match format {
            ToolFormat::Harmony => "<|start|>assistant<|channel|>final<|message|>Done: 1 < 2.",
            _ => "\nDone: 1 < 2.",
        };
        let got = read_of(&format!("{raw}{after}"));
        assert_eq!((got.text.trim(), got.calls.len()), ("Done: 1 < 2.", 1), "{}: {got:?}", format.name());
        // An answer without calls is itself, to the last space.
        for text in
            ["", " \n", "plain", "a < b, [x] {y} `z` ```rust\nfn f()\n``` ; (1)\n", " <tool", "<| [TOOL"]
        {
            let got = read_of(text);
            assert_eq!((got.text.as_str(), got.calls.len()), (text, 0), "{}", format.name());
        }
    }
}

#[test]
fn half_a_call_that_its_model_ends_is_a_call_or_text() {
    for format in ToolFormat::ALL {
        let reading = reading(format);
        let raw = written(format, &[("get_weather", json!({"city": "Rome", "days": 3}))]);
        let places: Vec<usize> = raw.char_indices().map(|(at, _)| at).skip(1).collect();
        for at in places {
            let got = read(&reading, &raw[..at]);
            match (got.calls.as_slice(), &got.partial) {
                ([], None) if format == ToolFormat::Harmony => {}
                ([], None) => assert_eq!(got.text, raw[..at], "{}", format.name()),
                // Nothing of a call that has begun is text.
                ([], Some((name, _))) => assert_eq!((name.as_str(), got.text.as_str()), ("get_weather", "")),
                // It lacks no more than what stands behind a call.
                ([(name, arguments)], None) => {
                    assert_eq!((name.as_str(), &arguments["days"]), ("get_weather", &json!(3)));
                    assert_eq!(got.text, "", "{}: {}", format.name(), &raw[..at]);
                }
                more => panic!("{more:?}"),
            }
        }
    }
}

#[test]
fn calls_of_no_tool_and_broken_calls_are_text() {
    for format in ToolFormat::ALL {
        let reading = reading(format);
        // A tool that was never offered.
        let raw = written(format, &[("delete_everything", json!({"city": "Rome"}))]);
        let got = read(&reading, &raw);
        assert_eq!(got.calls, [], "{}", format.name());
        assert!(got.text.contains("delete_everything") && got.text.contains("Rome"), "{got:?}");
        // Arguments that are no value.
        let raw = written(format, &[("get_weather", json!({"where": {"a": "@@"}}))]);
        for bad in [raw.replace("@@", "@\u{1}@").replace('{', "{{"), raw.replace("where", "wh\"ere")] {
            let got = read(&reading, &bad);
            if got.calls.is_empty() && got.partial.is_none() {
                assert!(got.text.contains("get_weather"), "{}: {bad}: {got:?}", format.name());
            }
        }
    }
}

/// A format, an output, its text and its calls.
type Case = (ToolFormat, &'static str, &'static str, Vec<(String, Value)>);

/// Outputs that only one format has.
#[test]
fn each_family_has_its_own_ways() {
    use ToolFormat as F;
    let call = |name: &str, arguments: Value| (name.to_owned(), arguments);
    let paris = || call("get_weather", json!({"city": "Paris"}));
    let cases: Vec<Case> = vec![
        (
            F::Hermes,
            r#"<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>"#,
            "",
            vec![paris()],
        ),
        (
            F::Hermes,
            r#"<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>"#,
            "",
            vec![paris()],
        ),
        (F::Hermes, r#"<tool_call>{"name": "now"}</tool_call>"#, "", vec![call("now", json!({}))]),
        (
            F::Hermes,
            r#"<tool_call>{"name": "now", "arguments": null}</tool_call>"#,
            "",
            vec![call("now", json!({}))],
        ),
        (
            F::Hermes,
            r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}"#,
            "",
            vec![paris()],
        ),
        (
            F::Hermes,
            r#"<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_call>"#,
            "",
            vec![paris()],
        ),
        (
            F::Hermes,
            "Use <tool_call> like <tool_call><tool_call>{\"name\": \"now\"}</tool_call>",
            "Use <tool_call> like <tool_call>",
            vec![call("now", json!({}))],
        ),
        (F::Hermes, "</tool_call> alone", "</tool_call> alone", vec![]),
        (
            F::Hermes,
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"note\": \"a\nb\"}}</tool_call>",
            "",
            vec![call("get_weather", json!({"note": "a\nb"}))],
        ),
        (
            F::Hermes,
            r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Paris",}}</tool_call>"#,
            r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Paris",}}</tool_call>"#,
            vec![],
        ),
        (
            F::QwenCoder,
            "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
            "",
            vec![paris()],
        ),
        (
            F::QwenCoder,
            "<tool_call>\n<function=get_weather>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![call("get_weather", json!({"exact": true, "days": 3}))],
        ),
        (
            F::QwenCoder,
            "<tool_call>\n<function=get_weather>\n<parameter=none>\nnull\n</parameter>\n<parameter=unheard>\nof it\n</parameter>\n</function>\n</tool_call>",
            "",
            vec![call("get_weather", json!({"none": null, "unheard": "of it"}))],
        ),
        (
            F::Llama,
            r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}"#,
            "",
            vec![paris()],
        ),
        (
            F::Llama,
            r#"{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}"#,
            "",
            vec![paris()],
        ),
        (F::Llama, r#"{"function": "get_weather", "parameters": {"city": "Paris"}}"#, "", vec![paris()]),
        (F::Llama, r#"{"answer": 42}"#, r#"{"answer": 42}"#, vec![]),
        (F::Llama, r#"See {"name": "now"}"#, r#"See {"name": "now"}"#, vec![]),
        (F::Pythonic, "<|python_start|>[get_weather(city=\"Paris\")]<|python_end|>", "", vec![paris()]),
        (F::Pythonic, "[get_weather(city=\"Paris\",),]", "", vec![paris()]),
        (F::Pythonic, "[get_weather(city=open('x'))]", "[get_weather(city=open('x'))]", vec![]),
        (F::Pythonic, "[1, 2, 3]", "[1, 2, 3]", vec![]),
        (
            F::Pythonic,
            "[get_weather(city='Par' , list=(1, +2, .5), where={'a': None})]",
            "",
            vec![call("get_weather", json!({"city": "Par", "list": [1, 2, 0.5], "where": {"a": null}}))],
        ),
        (
            F::Pythonic,
            "[get_weather(note='''it's \"so\"\n''', city=\"\\u00e9\\x41\\q\")]",
            "",
            vec![call("get_weather", json!({"note": "it's \"so\"\n", "city": "éA\\q"}))],
        ),
        (
            F::Mistral,
            r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}]"#,
            "",
            vec![paris()],
        ),
        (
            F::Mistral,
            r#"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}"#,
            "",
            vec![paris()],
        ),
        (F::Mistral, r#"[TOOL_CALLS]get_weather{"city": "Paris"}"#, "", vec![paris()]),
        (F::Mistral, "[TOOL_CALLS]", "[TOOL_CALLS]", vec![]),
        (
            F::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            vec![paris()],
        ),
        (
            F::DeepSeek,
            "<｜tool▁call▁begin｜>search<｜tool▁sep｜>get_weather\n```json\n{}",
            "<｜tool▁call▁begin｜>search<｜tool▁sep｜>get_weather\n```json\n{}",
            vec![],
        ),
        (F::Gemma, "```tool_code\nprint(get_weather(city=\"Paris\"))\n```", "", vec![paris()]),
        (F::Gemma, "```tool_code\ndefault_api.get_weather(city=\"Paris\")\n```", "", vec![paris()]),
        (
            F::Gemma,
            "```json\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}\n```",
            "",
            vec![paris()],
        ),
        (F::Gemma, "```python\nx = 1\nprint(x)\n```", "```python\nx = 1\nprint(x)\n```", vec![]),
        (
            F::Gemma4,
            "<|tool_call>call:get_weather{city:Paris}<tool_call|>",
            "<|tool_call>call:get_weather{city:Paris}<tool_call|>",
            vec![],
        ),
        (
            F::Phi4Mini,
            r#"<|tool_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}<|/tool_call|>"#,
            "",
            vec![paris()],
        ),
        (
            F::Phi4Mini,
            r#"functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]"#,
            "",
            vec![paris()],
        ),
        (F::Harmony, "<|channel|>final<|message|>Hello<|return|>", "Hello", vec![]),
        (F::Harmony, "Hello", "Hello", vec![]),
        (
            F::Harmony,
            " to<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"Paris\"}",
            " to",
            vec![paris()],
        ),
        (
            F::Harmony,
            "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}<|call|>",
            "",
            vec![paris()],
        ),
        (
            F::Harmony,
            "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": ]<|call|>",
            "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": ]",
            vec![],
        ),
        (
            F::Harmony,
            " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
            "",
            vec![paris()],
        ),
        (F::Harmony, " to=functions.now is how", " to=functions.now is how", vec![]),
        (F::Glm, "<tool_call>now</tool_call>", "", vec![call("now", json!({}))]),
        (
            F::MiniMax,
            "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"list\">[\"</parameter>\"]</parameter>\n<parameter name=\"none\">\"a</parameter>\n</invoke>\"</parameter>\n</invoke>\n</minimax:tool_call>",
            "",
            vec![call("get_weather", json!({"list": ["</parameter>"], "none": "a</parameter>\n</invoke>"}))],
        ),
        (
            F::DeepSeekDsml,
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "",
            vec![call("now", json!({}))],
        ),
        (
            F::Glm,
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
            "",
            vec![paris()],
        ),
        (
            F::Kimi,
            "<|tool_call_begin|> functions.get_weather:3 <|tool_call_argument_begin|> {\"city\": \"Paris\"} <|tool_call_end|>",
            "",
            vec![paris()],
        ),
        (
            F::CommandR,
            "Action: ```json\n[{\"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}]```",
            "",
            vec![paris()],
        ),
        (F::CommandR, "<|START_RESPONSE|>Hello", "<|START_RESPONSE|>Hello", vec![]),
        (
            F::ToolCalls,
            "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_calls>",
            "",
            vec![paris()],
        ),
        (F::Xlam, "[]", "[]", vec![]),
        (
            F::Lfm2,
            "<|tool_call_start|>[get_weather(city=\"Paris\")]<|tool_call_end|>Looking.",
            "Looking.",
            vec![paris()],
        ),
        (
            F::Lfm2,
            "<|tool_call_start|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]<|tool_call_end|>",
            "",
            vec![paris()],
        ),
    ];
    for (format, raw, text, calls) in cases {
        let got = read(&reading(format), raw);
        let expected = Read { text: text.to_owned(), calls, ..Read::default() };
        assert_eq!(got, expected, "{}: {raw}", format.name());
    }
}

#[test]
fn reasoning_comes_before_calls() {
    for format in ToolFormat::ALL {
        let raw = written(format, &[("get_weather", json!({"city": "Rome"}))]);
        let (output, reading) = match format {
            ToolFormat::Harmony => {
                (format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{raw}"), reading(format))
            }
            _ => {
                let markers = ReasoningMarkers { open: "<think>".into(), close: "</think>".into() };
                let reading = SplitOptions { reasoning: Some(markers), ..reading(format) };
                (format!("<think>\nHm.\n</think>\n\n{raw}"), reading)
            }
        };
        let got = read(&reading, &output);
        assert_eq!(
            (got.reasoning.as_str(), got.text.as_str(), got.calls.len()),
            ("Hm.", "", 1),
            "{}: {got:?}",
            format.name()
        );
    }
}

#[test]
fn ids_that_come_first_are_the_models() {
    let first = |format, raw: &str| match &pieces(&reading(format), &[raw])[0] {
        Piece::CallStart { id, .. } => id.clone(),
        other => panic!("{other:?}"),
    };
    let raw = written(ToolFormat::Kimi, &[("now", json!({}))]);
    assert_eq!(first(ToolFormat::Kimi, &raw).as_deref(), Some("functions.now:0"));
    let raw = r#"[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}"#;
    assert_eq!(first(ToolFormat::Mistral, raw).as_deref(), Some("abc123def"));
    assert_eq!(first(ToolFormat::Hermes, r#"<tool_call>{"name": "now"}</tool_call>"#), None);
}

#[test]
fn arguments_come_as_they_are_written() {
    for format in ToolFormat::ALL {
        let note = "word ".repeat(40);
        let raw = written(format, &[("get_weather", json!({"note": note}))]);
        let mut splitter = Splitter::new(reading(format));
        let (mut seen, mut longest) = (0, 0);
        for c in raw.chars() {
            seen += c.len_utf8();
            for piece in splitter.push(c.encode_utf8(&mut [0; 4])) {
                if let Piece::Arguments { delta, .. } = piece {
                    longest = longest.max(delta.len());
                }
            }
        }
        assert!(seen > 200 && longest < 24, "{}: {longest} bytes at once", format.name());
    }
}

#[test]
fn names_are_the_formats_own() {
    for format in ToolFormat::ALL {
        assert_eq!(ToolFormat::by_name(format.name()), Ok(format));
    }
    let error = ToolFormat::by_name("hermse").expect_err("no such format");
    assert!(error.contains("\"hermse\"") && error.contains("hermes, "), "{error}");
}
