//! Custom tools, which are called with a text: to the model each is a function with one parameter, and its text is taken out of what the
//! model writes.

use serde_json::Value;

use super::kept::quoted;
use crate::json::partial::partial_object;

/// The one parameter.
const INPUT: &str = "input";

/// The arguments of the function, for a call with that text.
pub(super) fn arguments(input: &str) -> String {
    format!("{{\"{INPUT}\":{}}}", quoted(input))
}

/// The text of a call with those arguments, which may be cut. What is not the function's is the text itself.
pub(super) fn input(arguments: &str) -> String {
    let read = partial_object(arguments);
    let text = read.get(INPUT).and_then(Value::as_str);
    text.map_or_else(|| arguments.to_owned(), str::to_owned)
}

/// The schema of the function's parameters; `pattern`: an expression that the whole text matches.
pub(super) fn parameters(pattern: Option<&str>) -> String {
    let pattern = pattern.map(|regex| format!(",\"pattern\":{}", quoted(&format!("^(?:{regex})$"))));
    let pattern = pattern.unwrap_or_default();
    format!(
        "{{\"type\":\"object\",\"properties\":{{\"{INPUT}\":{{\"type\":\"string\"{pattern}}}}},\"required\":[\"{INPUT}\"],\"additionalProperties\":false}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_goes_there_and_back() {
        for text in ["", "*** Begin Patch\n+\"é\"\\", "{\"input\":1}"] {
            assert_eq!(input(&arguments(text)), text);
        }
        for odd in ["{\"input\":", "[]", "{\"input\":3}"] {
            assert_eq!(input(odd), odd);
        }
        for pattern in [None, Some("a\"|b")] {
            let schema: Value = serde_json::from_str(&parameters(pattern)).unwrap();
            let expected = pattern.map(|_| "^(?:a\"|b)$");
            assert_eq!(schema["properties"]["input"]["pattern"].as_str(), expected);
        }
    }
}
