//! Unquoted strings in a call, up to a mark: a schema's constraints on them as Lark expressions.

use serde_json::{Map, Value};

/// Terminal for a schema's constraints on a string. None: any string.
///
/// # Errors
/// Constraints that cannot be enforced.
pub(super) fn terminal(schema: &Map<String, Value>) -> Result<Option<String>, String> {
    let mut all: Vec<String> = Vec::new();
    let words = match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(words)), _) => Some(words.iter().filter_map(Value::as_str).collect()),
        (_, Some(Value::String(word))) => Some(vec![word.as_str()]),
        _ => None,
    };
    if let Some(words) = words {
        let words: Vec<String> = words.into_iter().map(literal).collect();
        if words.is_empty() {
            return Err("no string is allowed".to_owned());
        }
        all.push(format!("({})", words.join(" | ")));
    }
    let count = |key: &str| schema.get(key).and_then(Value::as_u64);
    let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
    match most {
        Some(most) if most < least => return Err("minLength is more than maxLength".to_owned()),
        Some(most) => all.push(format!("/(?s:.{{{least},{most}}})/")),
        None if least > 0 => all.push(format!("/(?s:.{{{least},}})/")),
        None => {}
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        let found = searched(pattern).ok_or_else(|| {
            format!("the pattern {pattern:?} has an assertion inside, which cannot be enforced")
        })?;
        all.push(format!("/{found}/"));
    }
    for (keyword, between) in [("allOf", " & "), ("anyOf", " | "), ("oneOf", " | ")] {
        let Some(Value::Array(parts)) = schema.get(keyword) else { continue };
        let mut of_parts = Vec::new();
        for part in parts {
            let part = part.as_object().ok_or_else(|| format!("{keyword} must have schemas"))?;
            of_parts.push(format!("({})", terminal(part)?.unwrap_or_else(|| ANY.to_owned())));
        }
        all.push(format!("({})", of_parts.join(between)));
    }
    Ok((!all.is_empty()).then(|| all.join(" & ")))
}

/// Any text.
pub(super) const ANY: &str = "/(?s:.*)/";

/// Expression of texts that do not contain `text`.
pub(super) fn without(text: &str) -> String {
    format!("~/(?s:.*){}(?s:.*)/", escaped(text))
}

/// Lark literal of a text.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0'..='\x1F' | '\x7F' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Regular expression that matches a text.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || !c.is_ascii() => out.push(c),
            c => out.push_str(&format!("\\x{{{:X}}}", u32::from(c))),
        }
    }
    out
}

/// Converts an expression that may match anywhere into one that matches the whole text. None if it has an
/// assertion other than at the end of an alternative. Character classes are ASCII, as in JSON Schema.
fn searched(pattern: &str) -> Option<String> {
    let (mut alternatives, mut body) = (Vec::new(), String::new());
    let (mut depth, mut class, mut starts, mut ends) = (0u32, false, false, false);
    let mut chars = pattern.chars().peekable();
    let whole = |body: &str, starts: bool, ends: bool| {
        let (before, after) = (if starts { "" } else { "(?s:.*)" }, if ends { "" } else { "(?s:.*)" });
        format!("{before}(?:{body}){after}")
    };
    while let Some(c) = chars.next() {
        // Only another alternative may follow an end assertion.
        if ends && (c != '|' || depth > 0) {
            return None;
        }
        match c {
            '\\' => match chars.next()? {
                'd' => body.push_str(if class { "0-9" } else { "[0-9]" }),
                'w' => body.push_str(if class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
                'D' if !class => body.push_str("[^0-9]"),
                'W' if !class => body.push_str("[^0-9A-Za-z_]"),
                'b' | 'B' | 'A' | 'z' | 'Z' | 'G' => return None,
                '/' => body.push_str("\\/"),
                c => body.extend(['\\', c]),
            },
            '/' => body.push_str("\\/"),
            '\n' => body.push_str("\\n"),
            '\r' => body.push_str("\\r"),
            c if class => {
                class = c != ']';
                body.push(c);
            }
            '[' => {
                class = true;
                body.push(c);
                // The first character in a class is literal.
                for first in ['^', ']'] {
                    if chars.next_if_eq(&first).is_some() {
                        body.push_str(if first == ']' { "\\]" } else { "^" });
                    }
                }
            }
            '(' => {
                depth += 1;
                body.push(c);
            }
            ')' => {
                depth = depth.checked_sub(1)?;
                body.push(c);
            }
            '|' if depth == 0 => {
                alternatives.push(whole(&body, starts, ends));
                body.clear();
                (starts, ends) = (false, false);
            }
            '^' if depth == 0 && body.is_empty() && !starts => starts = true,
            '$' if depth == 0 => ends = true,
            '^' | '$' => return None,
            c => body.push(c),
        }
    }
    alternatives.push(whole(&body, starts, ends));
    Some(alternatives.join("|"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_are_searched_for() {
        for (pattern, found) in [
            ("a", "(?s:.*)(?:a)(?s:.*)"),
            ("^a$", "(?:a)"),
            ("^a|b$", "(?:a)(?s:.*)|(?s:.*)(?:b)"),
            ("^(?:a|b)$", "(?:(?:a|b))"),
            (r"^\d+/[\w$^|]$", r"(?:[0-9]+\/[0-9A-Za-z_$^|])"),
            (r"^[]a]\$$", r"(?:[\]a]\$)"),
        ] {
            assert_eq!(searched(pattern).as_deref(), Some(found), "{pattern}");
        }
        for pattern in ["(^a)", r"\ba", "a$b", "a)", "\\"] {
            assert_eq!(searched(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn keywords_are_joined() {
        let of = |schema: Value| terminal(schema.as_object().expect("an object"));
        assert_eq!(of(json!({"type": "string"})), Ok(None));
        assert_eq!(of(json!({"const": "a\n"})), Ok(Some("(\"a\\u000a\")".to_owned())));
        let both = json!({"enum": ["a", 1, "b"], "maxLength": 3});
        assert_eq!(of(both), Ok(Some("(\"a\" | \"b\") & /(?s:.{0,3})/".to_owned())));
        assert!(of(json!({"minLength": 2, "maxLength": 1})).is_err());
        assert!(of(json!({"pattern": "(^a)"})).expect_err("refused").contains("(^a)"));
    }
}
