//! A model's output, in a format, cut into pieces: read whole and in pieces it is the same, nothing of it is lost, and what is called
//! is a tool that there is, with a JSON object.

use std::sync::{Arc, LazyLock};

use hanzo_engine_formats::{End, Piece, ReasoningMarkers, SplitOptions, Splitter, Tool, ToolFormat};
use serde_json::json;

static TOOLS: LazyLock<Arc<[Tool]>> = LazyLock::new(|| {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}, "list": {"type": "array"},
        "none": {"type": ["string", "null"]},
    });
    let tool = |name: &str| {
        let parameters = json!({"type": "object", "properties": properties});
        Tool::of_json(&json!({"name": name, "parameters": parameters})).expect("a tool")
    };
    Arc::new([tool("get_weather"), tool("now")])
});

/// What an output came to.
#[derive(Debug, Default, PartialEq)]
struct Read {
    text: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    broken: bool,
}

/// The format by the first byte, reasoning by the second, where it is cut by the third; the output behind them.
pub(super) fn read(bytes: &[u8]) {
    let [format, reasoning, cut, output @ ..] = bytes else { return };
    let Ok(output) = std::str::from_utf8(output) else { return };
    let format = ToolFormat::ALL[usize::from(*format) % ToolFormat::ALL.len()];
    let markers = ReasoningMarkers { open: "<think>".to_owned(), close: "</think>".to_owned() };
    let reading = SplitOptions {
        reasoning: (reasoning % 3 > 0).then_some(markers),
        starts_in_reasoning: reasoning % 3 == 2,
        format: Some(format),
        tools: TOOLS.clone(),
    };
    let whole = collect(&reading, std::iter::once(output));
    let one_by_one = output.char_indices().map(|(at, c)| &output[at..at + c.len_utf8()]);
    assert_eq!(collect(&reading, one_by_one), whole, "{}: one by one: {output:?}", format.name());
    assert_eq!(collect(&reading, pieces(output, *cut)), whole, "{}: cut by {cut}: {output:?}", format.name());
    // White space and marks beside calls are nobody's; Harmony's heads are not text.
    let nothing_told = whole.calls.is_empty() && !whole.broken && whole.reasoning.is_empty();
    if nothing_told && reading.reasoning.is_none() && format != ToolFormat::Harmony {
        assert_eq!(whole.text, output, "{}", format.name());
    }
}

/// Pieces of a text, of lengths that a seed says.
fn pieces(text: &str, seed: u8) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut state = u32::from(seed) + 1;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = (state >> 24) as usize % 9;
        let end = rest.char_indices().nth(length + 1).map_or(rest.len(), |(at, _)| at);
        let (piece, others) = rest.split_at(end);
        rest = others;
        (!piece.is_empty()).then_some(piece)
    })
}

fn collect<'a>(reading: &SplitOptions, parts: impl Iterator<Item = &'a str>) -> Read {
    let mut splitter = Splitter::new(reading.clone());
    let mut pieces: Vec<Piece> = parts.flat_map(|part| splitter.push(part)).collect();
    pieces.extend(splitter.finish(End::Own));
    let mut read = Read::default();
    let mut open: Option<(u32, String, String)> = None;
    let mut next = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => read.text.push_str(&text),
            Piece::Reasoning(text) => read.reasoning.push_str(&text),
            Piece::CallStart { index, name, .. } => {
                assert!(
                    open.is_none() && index == next && TOOLS.iter().any(|tool| tool.name == name),
                    "{name}"
                );
                open = Some((index, name, String::new()));
            }
            Piece::Arguments { index, delta } => {
                let (of, _, arguments) = open.as_mut().expect("a call that began");
                assert_eq!(index, *of);
                arguments.push_str(&delta);
            }
            Piece::CallEnd { index } => {
                let (of, name, arguments) = open.take().expect("a call that began");
                assert_eq!(index, of);
                assert!(is_object(&arguments), "{name}: {arguments}");
                read.calls.push((name, arguments));
                next += 1;
            }
            Piece::CallBroken { index } => {
                assert_eq!(open.take().expect("a call that began").0, index);
                read.broken = true;
                next += 1;
            }
        }
    }
    // The output ended within a call: its name and its arguments so far.
    read.calls.extend(open.map(|(_, name, arguments)| (name, arguments)));
    read
}

/// Whether a text is a JSON object. Numbers may be larger, and halves of characters stranger, than this library has them.
fn is_object(text: &str) -> bool {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => value.is_object(),
        Err(error) => {
            let reason = error.to_string();
            ["number out of range", "surrogate", "unexpected end of hex escape"]
                .iter()
                .any(|known| reason.contains(known))
        }
    }
}
