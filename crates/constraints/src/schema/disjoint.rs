//! Check whether alternatives exclude each other. It considers only a few keywords, which hold for every value
//! of a schema. So a yes is always right, and a no means that no exclusion was found.

use serde_json::{Map, Value};

/// Maximum depth of nested properties and of chained references that are considered.
const DEPTH_MAX: usize = 4;

const NULL: u8 = 1;
const BOOLEAN: u8 = 2;
const NUMBER: u8 = 4;
const STRING: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;

/// Index of the first alternative that may share a value with `more`, as far as can be seen.
pub(super) fn overlap(alternatives: &[Value], more: &Value, whole: &Value) -> Option<usize> {
    alternatives.iter().position(|alternative| !disjoint(alternative, more, whole, DEPTH_MAX))
}

fn disjoint(a: &Value, b: &Value, whole: &Value, depth: usize) -> bool {
    let (Some(a), Some(b)) = (resolved(a, whole), resolved(b, whole)) else { return false };
    if depth == 0 {
        return false;
    }
    if types(a) & types(b) == 0 {
        return true;
    }
    if let (Some(a), Some(b)) = (constants(a), constants(b)) {
        return !a.iter().any(|a| b.iter().any(|b| may_equal(a, b)));
    }
    // Objects exclude each other if a required property cannot satisfy both schemas.
    let only_objects = (types(a) & types(b)) == OBJECT;
    only_objects
        && required(a).chain(required(b)).any(|name| match (property(a, name), property(b, name)) {
            (Some(a), Some(b)) => disjoint(a, b, whole, depth - 1),
            _ => false,
        })
}

/// Fields of a schema after its references are followed. None: it is no object, a reference leads nowhere, or
/// the chain is too long.
fn resolved<'a>(schema: &'a Value, whole: &'a Value) -> Option<&'a Map<String, Value>> {
    let mut schema = schema.as_object()?;
    for _ in 0..DEPTH_MAX {
        let Some(Value::String(target)) = schema.get("$ref") else { return Some(schema) };
        schema = whole.pointer(target.strip_prefix('#')?)?.as_object()?;
    }
    None
}

fn types(schema: &Map<String, Value>) -> u8 {
    let by_name = |name: &Value| match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("number" | "integer") => NUMBER,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => !0,
    };
    let declared = match schema.get("type") {
        None => !0,
        Some(Value::Array(names)) => names.iter().map(by_name).fold(0, |a, b| a | b),
        Some(name) => by_name(name),
    };
    let of_constants = constants(schema)
        .map_or(!0, |values| values.iter().map(|value| type_of(value)).fold(0, |a, b| a | b));
    declared & of_constants
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(_) => NUMBER,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

fn constants(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Whether two values may be equal. Numbers compare by value (1 equals 1.0), so arrays and objects always may.
fn may_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => a == b,
    }
}

fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(name)
}
