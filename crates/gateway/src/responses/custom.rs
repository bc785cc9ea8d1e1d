//! Custom tools, which take a text. The model sees each as a function with one parameter; the text is extracted
//! from the arguments that the model writes.

use serde_json::Value;

use crate::json::partial::partial_object;
use crate::response_store::stored::quoted;

/// Name of the parameter.
const INPUT: &str = "input";

/// Arguments of the function for that text.
pub(super) fn arguments(input: &str) -> String {
    format!("{{\"{INPUT}\":{}}}", quoted(input))
}

/// Text in the arguments of a call, which may be truncated. Other arguments are taken as the text itself.
pub(super) fn input(arguments: &str) -> String {
    let read = partial_object(arguments);
    let text = read.get(INPUT).and_then(Value::as_str);
    text.map_or_else(|| arguments.to_owned(), str::to_owned)
}

/// Schema of the function's parameters. `pattern` is a regular expression for the whole text.
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
