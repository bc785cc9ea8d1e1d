//! Completion of truncated JSON objects: arguments of a tool call that a token limit cut, for protocols that
//! require an object.

use serde_json::{Map, Value};

/// Object that a text begins with. Open strings, arrays and objects are closed at the end of the text. A key
/// without a value, and an incomplete number or word, are left out.
pub(crate) fn partial_object(text: &str) -> Value {
    let whole = |text: &str| serde_json::from_str(text).ok().filter(Value::is_object);
    let closed = || {
        let ends = Ends::of(text);
        whole(&ends.closed(text)).or_else(|| whole(&ends.closed_before(text)))
    };
    whole(text).or_else(closed).unwrap_or_else(|| Value::Object(Map::new()))
}

/// Positions at which a text can be ended.
#[derive(Default)]
struct Ends {
    open: Vec<char>, // closing brackets of what is open, outermost first
    string: bool,
    escape: Option<usize>, // start of an incomplete escape
    /// End of the last complete entry, and the number of brackets open there.
    before: (usize, usize),
}

impl Ends {
    fn of(text: &str) -> Ends {
        let mut ends = Ends::default();
        for (at, c) in text.char_indices() {
            if ends.string {
                match ends.escape.map(|begin| &text[begin + 1..at + c.len_utf8()]) {
                    Some(escape) if escape.starts_with('u') && escape.len() < 5 => {}
                    Some(_) => ends.escape = None,
                    None if c == '\\' => ends.escape = Some(at),
                    None => ends.string = c != '"',
                }
                continue;
            }
            match c {
                '"' => ends.string = true,
                '{' | '[' => {
                    ends.open.push(if c == '{' { '}' } else { ']' });
                    ends.before = (at + 1, ends.open.len());
                }
                '}' | ']' => {
                    ends.open.pop();
                    ends.before = (at + 1, ends.open.len());
                }
                ',' => ends.before = (at, ends.open.len()),
                _ => {}
            }
        }
        ends
    }

    /// Text with everything open closed at its end.
    fn closed(&self, text: &str) -> String {
        let mut closed = text[..self.escape.unwrap_or(text.len())].to_owned();
        if self.string {
            closed.push('"');
        }
        closed.extend(self.open.iter().rev());
        closed
    }

    /// Text up to the last complete entry, closed.
    fn closed_before(&self, text: &str) -> String {
        let (at, open) = self.before;
        let mut closed = text[..at].to_owned();
        closed.extend(self.open.iter().take(open).rev());
        closed
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cut_object_has_what_came_before_the_cut() {
        for (text, object) in [
            ("", json!({})),
            ("{", json!({})),
            ("{\"a", json!({})),
            ("{\"a\": ", json!({})),
            ("{\"a\": 1", json!({"a": 1})),
            ("{\"a\": -", json!({})),
            ("{\"a\": 1, ", json!({"a": 1})),
            ("{\"a\": 1, \"b\": tr", json!({"a": 1})),
            ("{\"a\": \"x, {y", json!({"a": "x, {y"})),
            ("{\"a\": \"x\\", json!({"a": "x"})),
            ("{\"a\": \"x\\\"", json!({"a": "x\""})),
            ("{\"a\": \"x\\u00", json!({"a": "x"})),
            ("{\"a\": \"x\\u00e9", json!({"a": "xé"})),
            ("{\"a\": [1, {\"b\": [true, nul", json!({"a": [1, {"b": [true]}]})),
            ("{\"a\": [1]}", json!({"a": [1]})),
            ("[1]", json!({})),
            ("no", json!({})),
        ] {
            assert_eq!(partial_object(text), object, "{text}");
        }
    }

    #[test]
    fn every_cut_of_an_object_is_an_object() {
        let whole =
            r#"{"city": "S\u00e3o \ud83d\ude00 \\", "list": [1.5e3, null, {"k": []}], "n": -2, "t": true}"#;
        for at in (0..=whole.len()).filter(|&at| whole.is_char_boundary(at)) {
            assert!(partial_object(&whole[..at]).is_object(), "{}", &whole[..at]);
        }
        assert_eq!(partial_object(whole), serde_json::from_str::<Value>(whole).unwrap());
    }
}
