//! Outputs that a limit cuts: at every place of every format, a call is a call with the arguments so far, and no markup is text.

use hanzo_engine_formats::{End, Piece, ReasoningMarkers, SplitOptions, ToolFormat};
use serde_json::{Value, json};

use super::{Read, collect, is_bare, pieces_of, reading, written::written};

/// Reads an output that is cut at its end, whole and character by character.
fn cut(reading: &SplitOptions, raw: &str) -> Read {
    let whole = collect(&pieces_of(reading, &[raw], End::Cut));
    let ends = raw.char_indices().map(|(at, c)| at + c.len_utf8());
    let parts: Vec<&str> = raw.char_indices().zip(ends).map(|((at, _), end)| &raw[at..end]).collect();
    assert_eq!(collect(&pieces_of(reading, &parts, End::Cut)), whole, "one by one: {raw}");
    whole
}

/// The arguments' JSON texts of an output's calls, as they are told.
fn argument_texts(reading: &SplitOptions, raw: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for piece in pieces_of(reading, &[raw], End::Own) {
        match piece {
            Piece::CallStart { .. } => texts.push(String::new()),
            Piece::Arguments { delta, .. } => texts.last_mut().expect("a call").push_str(&delta),
            _ => {}
        }
    }
    texts
}

fn conversations() -> Vec<Vec<(&'static str, Value)>> {
    vec![
        vec![("get_weather", json!({"city": "Rome", "days": 3}))],
        vec![("get_weather", json!({"note": "a\n\"b\" <c> 'd'\n", "exact": true, "share": -1.25}))],
        vec![("get_weather", json!({"where": {"a": [1, {"b": null}]}, "list": ["x", 2, false]}))],
        vec![("now", json!({}))],
        vec![
            ("get_weather", json!({"city": "Rome"})),
            ("now", json!({})),
            ("get_weather", json!({"days": 12})),
        ],
    ]
}

#[test]
fn an_output_cut_anywhere_has_no_markup_in_its_text() {
    for format in ToolFormat::ALL {
        for calls in conversations() {
            let call = written(format, &calls);
            let (said, before) = match format {
                _ if is_bare(format) => ("", ""),
                ToolFormat::Harmony => {
                    ("Let me see.", "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant")
                }
                _ => ("Let me see.", "Let me see.\n\n"),
            };
            for before in ["", before] {
                let said = if before.is_empty() { "" } else { said };
                check(format, said, before, &call, &calls);
            }
        }
    }
}

/// Cuts a call that stands behind a text at every place.
fn check(format: ToolFormat, said: &str, before: &str, call: &str, calls: &[(&str, Value)]) {
    let reading = reading(format);
    let raw = format!("{before}{call}");
    let texts = argument_texts(&reading, &raw);
    let mut partials = 0;
    for at in (before.len()..=raw.len()).filter(|&at| raw.is_char_boundary(at)) {
        let got = cut(&reading, &raw[..at]);
        let place = format!("{}: {}", format.name(), &raw[..at]);
        assert_eq!(got.text.trim_end(), said, "{place}");
        for ((name, arguments), (expected, values)) in got.calls.iter().zip(calls) {
            assert_eq!((name.as_str(), arguments), (*expected, values), "{place}");
        }
        if let Some((name, arguments)) = &got.partial {
            let whole = &texts[got.calls.len()];
            assert_eq!(name, calls[got.calls.len()].0, "{place}");
            assert!(whole.starts_with(arguments.as_str()), "{place}: {arguments} of {whole}");
            partials += 1;
        }
    }
    assert!(partials > 0, "{}: {raw}", format.name());
}

#[test]
fn a_call_has_its_name_and_arguments_as_soon_as_they_are_written() {
    for format in ToolFormat::ALL {
        let raw = written(format, &[("get_weather", json!({"note": "one two three", "city": "Rome"}))]);
        let at = raw.find(" two").expect("its arguments");
        let got = cut(&reading(format), &raw[..at]);
        let (name, arguments) =
            got.partial.unwrap_or_else(|| panic!("{}: no call: {}", format.name(), &raw[..at]));
        assert_eq!(name, "get_weather");
        assert!(arguments.replace(' ', "").starts_with("{\"note\":\"on"), "{}: {arguments}", format.name());
    }
    // The name is known before the arguments are.
    for (format, raw) in [
        (ToolFormat::Hermes, r#"<tool_call>{"name": "get_weather""#),
        (ToolFormat::Llama, r#"{"name": "get_weather", "para"#),
        (ToolFormat::Mistral, "[TOOL_CALLS]get_weather[ARGS"),
        (ToolFormat::Functionary, "<function=get_weather>"),
        (ToolFormat::DeepSeek, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```js"),
        (ToolFormat::DeepSeek, "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"),
        (ToolFormat::Kimi, "<|tool_call_begin|>functions.get_weather:0"),
        (ToolFormat::Harmony, " to=functions.get_weather <|con"),
        (ToolFormat::Harmony, "<|channel|>commentary to=functions.get_weather <|constrain|>json"),
    ] {
        let got = cut(&reading(format), raw);
        assert_eq!(got.partial, Some(("get_weather".to_owned(), String::new())), "{raw}");
        assert_eq!(got.text.trim(), "", "{raw}");
    }
}

#[test]
fn text_that_is_cut_is_all_there() {
    let texts = ["plain", "a < b and c", "See [1, 2] and {\"a\": 1}", "```rust\nfn f()\n```\n", " \n", "x;"];
    for format in ToolFormat::ALL {
        for text in texts {
            assert_eq!(cut(&reading(format), text).text, text, "{}", format.name());
        }
    }
    for (format, text) in [
        (ToolFormat::Llama, "{\"answer\": 4"),
        (ToolFormat::Llama, "{\"name\": \"Jo"),
        (ToolFormat::Pythonic, "[Note: this is"),
        (ToolFormat::Xlam, "[1, 2"),
        (ToolFormat::Hermes, "Use <tool_call> so"),
    ] {
        assert_eq!(cut(&reading(format), text).text, text);
    }
}

#[test]
fn reasoning_that_is_cut_has_no_half_marker() {
    let markers = ReasoningMarkers { open: "<think>".into(), close: "</think>".into() };
    let raw = "<think>\nHm.\n</think>\n\nYes.";
    for format in ToolFormat::ALL.into_iter().filter(|format| *format != ToolFormat::Harmony) {
        let reading = SplitOptions { reasoning: Some(markers.clone()), ..reading(format) };
        for at in 1..=raw.len() {
            let got = cut(&reading, &raw[..at]);
            assert!("Hm.".starts_with(got.reasoning.trim_end()), "{}: {got:?}", &raw[..at]);
            assert!("Yes.".starts_with(&got.text), "{}: {got:?}", &raw[..at]);
        }
    }
    let raw =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
    for at in 1..=raw.len() {
        let got = cut(&reading(ToolFormat::Harmony), &raw[..at]);
        assert!(
            "Hm.".starts_with(&got.reasoning) && "Yes.".starts_with(&got.text),
            "{}: {got:?}",
            &raw[..at]
        );
    }
}
