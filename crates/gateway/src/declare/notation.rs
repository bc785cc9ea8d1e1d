//! Short notation of types that no Rust type gives: alternatives and lists.

use serde_json::{Value, json};

/// JSON Schema of a type. It is alternatives, separated by ` | `, of `string LOW..HIGH`, `number LOW..HIGH`,
/// `integer LOW..HIGH`, `boolean`, `object`, `any`, `null`, a `"word"`, a number, and the name of a schema. `[]` behind
/// one makes a list of it, `[1..]` a list with an element, `[0]` an empty one, and `{}` an object of such values. Parentheses
/// make a list of alternatives.
pub(crate) fn notation(text: &str) -> Value {
    let alternatives = alternatives(text);
    let literals: Option<Vec<Value>> = alternatives.iter().map(|one| literal(one)).collect();
    match (literals, &alternatives[..]) {
        (Some(literals), _) => json!({"enum": literals}),
        (None, [one]) => single(one),
        (None, several) => json!({"anyOf": several.iter().map(|one| notation(one)).collect::<Vec<_>>()}),
    }
}

/// Alternatives of a type, apart from those in parentheses.
fn alternatives(text: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, sign) in text.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' => depth -= 1,
            '|' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(text[start..].trim());
    found
}

/// Literal value, if the text is one.
fn literal(text: &str) -> Option<Value> {
    let is = text.starts_with('"') || matches!(text, "true" | "false") || text.parse::<i64>().is_ok();
    serde_json::from_str(text).ok().filter(|_| is)
}

fn single(text: &str) -> Value {
    if let Some(several) = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        return notation(several);
    }
    if let Some(items) = text.strip_suffix("[]") {
        return json!({"type": "array", "items": notation(items)});
    }
    if let Some(items) = text.strip_suffix("[1..]") {
        return json!({"type": "array", "items": notation(items), "minItems": 1});
    }
    if text.ends_with("[0]") {
        return json!({"type": "array", "maxItems": 0});
    }
    if let Some(values) = text.strip_suffix("{}") {
        return json!({"type": "object", "additionalProperties": notation(values)});
    }
    let (base, range) = text.split_once(' ').unwrap_or((text, ""));
    let (low, high) = range.split_once("..").unwrap_or(("", ""));
    let (low, exclusive) = low.strip_suffix('<').map_or((low, false), |low| (low, true));
    let mut schema = match base {
        "any" => return json!({}),
        "string" | "boolean" | "object" | "null" | "number" | "integer" => json!({"type": base}),
        name => return json!({"$ref": format!("#/components/schemas/{name}")}),
    };
    let number = |text: &str| serde_json::from_str::<Value>(text).ok();
    let (least, most) = match base {
        "string" => ("minLength", "maxLength"),
        _ if exclusive => ("exclusiveMinimum", "maximum"),
        _ => ("minimum", "maximum"),
    };
    for (name, bound) in [(least, number(low)), (most, number(high))] {
        if let Some(bound) = bound {
            schema[name] = bound;
        }
    }
    schema
}
