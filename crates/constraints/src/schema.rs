//! Preparation of JSON schemas for llguidance. Constraints that llguidance would ignore or enforce loosely are
//! refused by name, rewritten into enforceable ones, or tightened, so that every answer is valid under its
//! schema. Annotations stay.

mod disjoint;
mod formats;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::{
    error::{CompileError, first_line},
    limits::{ONE_OF_MAX, PROPERTIES_MAX, REGEX_BYTES_MAX, SCHEMA_BYTES_MAX},
};

/// Constraining keywords that cannot be enforced.
const REFUSED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "x-guidance",
];

/// Keywords whose value is a schema.
const ONE: &[&str] = &["items", "additionalItems", "additionalProperties"];
/// Keywords whose value is a list of schemas.
const LISTS: &[&str] = &["allOf", "anyOf", "oneOf", "items", "prefixItems"];
/// Keywords whose value maps names to schemas.
const MAPS: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];

/// Options of the JSON's layout. At most one space follows a comma or colon, so a model cannot ramble in white
/// space. Each character of a string has one spelling, so an escaped property name cannot repeat another.
fn layout() -> Value {
    json!({
        "item_separator": ", ?",
        "key_separator": ": ?",
        "whitespace_flexible": false,
        "json_allowed_escapes": "nrbtf\\\"",
    })
}

/// Prepares a schema for `%json` in a Lark grammar. `interrupted` is asked at every subschema whether to give
/// up.
///
/// # Errors
/// [`CompileError`] with the malformed or unenforceable part and its place, or if the work was given up.
pub fn in_lark(source: &str, interrupted: &dyn Fn() -> bool) -> Result<String, CompileError> {
    if source.len() > SCHEMA_BYTES_MAX {
        let bytes = source.len();
        return Err(CompileError::new(format!("it has {bytes} bytes, and may have {SCHEMA_BYTES_MAX}")));
    }
    Ok(compiled(source, interrupted)?.to_string())
}

/// Prepares a schema for llguidance.
pub(crate) fn compiled(source: &str, interrupted: &dyn Fn() -> bool) -> Result<Value, CompileError> {
    let mut schema: Value = serde_json::from_str(source)
        .map_err(|error| CompileError::new(first_line(&format!("it is not JSON: {error}"))))?;
    let mut walk = Walk::new(interrupted);
    match schema {
        Value::Bool(true) => schema = Value::Object(Map::new()),
        Value::Bool(false) => return Err(CompileError::new("the schema `false` allows nothing")),
        Value::Object(_) => {}
        _ => return Err(CompileError::new("a schema is an object, or true")),
    }
    let whole = schema.clone();
    walk.schema(&mut schema, &whole, "#")?;
    walk.check_references()?;
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".to_owned(), layout());
    }
    Ok(schema)
}

/// Walk over all subschemas.
struct Walk<'a> {
    interrupted: &'a dyn Fn() -> bool,
    pattern_bytes: usize,
    places: HashSet<String>,
    anchors: HashSet<String>,
    references: Vec<(String, String)>, // targets of references, and their places
}

impl<'a> Walk<'a> {
    fn new(interrupted: &'a dyn Fn() -> bool) -> Self {
        let (places, anchors, references) = Default::default();
        Self { interrupted, pattern_bytes: 0, places, anchors, references }
    }

    /// Checks whether to give up.
    ///
    /// # Errors
    /// [`CompileError`] if the work is to be given up.
    fn go_on(&self) -> Result<(), CompileError> {
        match (self.interrupted)() {
            true => Err(CompileError::new("it was not read to its end: its request has ended")),
            false => Ok(()),
        }
    }

    fn schema(&mut self, schema: &mut Value, whole: &Value, place: &str) -> Result<(), CompileError> {
        self.go_on()?;
        let fields = match schema {
            Value::Bool(_) => {
                self.places.insert(place.to_owned());
                return Ok(());
            }
            Value::Object(fields) => fields,
            _ => return Err(wrong(place, "a schema is an object, true or false")),
        };
        self.places.insert(place.to_owned());
        strip_what_says_nothing(fields);
        if let Some(&keyword) = REFUSED.iter().find(|&&keyword| fields.contains_key(keyword)) {
            return Err(wrong(&join(place, keyword), "this keyword cannot be enforced"));
        }
        self.names(fields, place)?;
        check_numbers_of(fields, place)?;
        check_counts(fields, place)?;
        self.count_patterns(fields, place)?;
        for (keyword, value) in fields.iter_mut() {
            let keyword = keyword.as_str();
            let place = join(place, keyword);
            match value {
                Value::Array(items) if LISTS.contains(&keyword) => {
                    for (index, item) in items.iter_mut().enumerate() {
                        self.schema(item, whole, &join(&place, &index.to_string()))?;
                    }
                }
                Value::Object(members) if MAPS.contains(&keyword) => {
                    for (name, member) in members.iter_mut() {
                        self.schema(member, whole, &join(&place, name))?;
                    }
                }
                value if ONE.contains(&keyword) => self.schema(value, whole, &place)?,
                _ if MAPS.contains(&keyword) => return Err(wrong(&place, "it must be an object of schemas")),
                _ if LISTS.contains(&keyword) => return Err(wrong(&place, "it must be an array of schemas")),
                _ => {}
            }
        }
        formats::tighten(fields, place)?;
        self.one_of_as_any_of(fields, whole, place)
    }

    /// Limits the bytes of patterns, which are the expensive part of a schema.
    fn count_patterns(&mut self, fields: &Map<String, Value>, place: &str) -> Result<(), CompileError> {
        let of_names = fields.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        let pattern = fields.get("pattern").and_then(Value::as_str);
        let bytes: usize = of_names.map(|(name, _)| name.len()).chain(pattern.map(str::len)).sum();
        self.pattern_bytes += bytes;
        if self.pattern_bytes > REGEX_BYTES_MAX {
            let reason = format!("the patterns up to here have more than {REGEX_BYTES_MAX} bytes");
            return Err(wrong(place, &reason));
        }
        Ok(())
    }

    /// Collects anchors and references, and refuses unsupported names.
    fn names(&mut self, fields: &Map<String, Value>, place: &str) -> Result<(), CompileError> {
        if let Some(Value::String(anchor)) = fields.get("$anchor") {
            self.anchors.insert(anchor.clone());
        }
        for keyword in ["$id", "id"] {
            if place != "#" && fields.get(keyword).is_some_and(Value::is_string) && fields.len() > 1 {
                return Err(wrong(
                    &join(place, keyword),
                    "a schema within a schema has no name of its own here",
                ));
            }
        }
        match fields.get("$ref") {
            None => {}
            Some(Value::String(target)) if target.starts_with('#') => {
                self.references.push((target.clone(), join(place, "$ref")));
            }
            Some(Value::String(_)) => {
                return Err(wrong(&join(place, "$ref"), "nothing is fetched: it must begin with #"));
            }
            Some(_) => return Err(wrong(&join(place, "$ref"), "it must be a string")),
        }
        Ok(())
    }

    /// Replaces `oneOf` by `anyOf`, which is equivalent if no value satisfies two alternatives.
    fn one_of_as_any_of(
        &self,
        fields: &mut Map<String, Value>,
        whole: &Value,
        place: &str,
    ) -> Result<(), CompileError> {
        let Some(Value::Array(alternatives)) = fields.get("oneOf") else { return Ok(()) };
        if alternatives.len() > ONE_OF_MAX {
            let count = alternatives.len();
            return Err(wrong(
                &join(place, "oneOf"),
                &format!("it has {count} alternatives, and may have {ONE_OF_MAX}"),
            ));
        }
        for (b, alternative) in alternatives.iter().enumerate() {
            self.go_on()?;
            if let Some(a) = disjoint::overlap(&alternatives[..b], alternative, whole) {
                let reason = format!(
                    "that no value satisfies two alternatives cannot be shown of {a} and {b}; give them different types or a \
                     property with different constants, or use anyOf"
                );
                return Err(wrong(&join(place, "oneOf"), &reason));
            }
        }
        let Some(alternatives) = fields.shift_remove("oneOf") else { return Ok(()) };
        put_as_any_of(fields, alternatives, place)
    }

    /// Checks that every reference leads to a schema that was visited.
    fn check_references(&self) -> Result<(), CompileError> {
        for (target, place) in &self.references {
            let pointer = percent_decoded(target);
            let known = match pointer.strip_prefix('#').unwrap_or_default() {
                "" | "/" => true,
                path if path.starts_with('/') => self.places.contains(&format!("#{path}")),
                anchor => self.anchors.contains(anchor),
            };
            if !known {
                return Err(wrong(place, &format!("there is no schema at {target:?}")));
            }
        }
        Ok(())
    }
}

/// Removes refused keywords whose value constrains nothing.
fn strip_what_says_nothing(fields: &mut Map<String, Value>) {
    let few = fields.get("maxItems").and_then(Value::as_u64).is_some_and(|count| count <= 1);
    if fields.get("uniqueItems") == Some(&Value::Bool(false)) || few {
        fields.shift_remove("uniqueItems");
    }
    for keyword in ["unevaluatedItems", "unevaluatedProperties", "propertyNames"] {
        if fields.get(keyword) == Some(&Value::Bool(true)) {
            fields.shift_remove(keyword);
        }
    }
}

/// Checks that numbers are exact as doubles, which grammars use.
fn check_numbers_of(fields: &Map<String, Value>, place: &str) -> Result<(), CompileError> {
    const COMPARED: &[&str] =
        &["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
    for &keyword in COMPARED {
        if let Some(value) = fields.get(keyword) {
            check_numbers(value, &join(place, keyword))?;
        }
    }
    Ok(())
}

fn check_numbers(value: &Value, place: &str) -> Result<(), CompileError> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.abs() < EXACT => Ok(()),
            _ => Err(wrong(place, &format!("numbers are exact below 2^53, and it is {number}"))),
        },
        Value::Array(items) => items.iter().try_for_each(|item| check_numbers(item, place)),
        Value::Object(fields) => fields.values().try_for_each(|field| check_numbers(field, place)),
        _ => Ok(()),
    }
}

/// Checks the counts of properties. Unlisted names may repeat and then count once, so larger minimums are
/// refused.
fn check_counts(fields: &Map<String, Value>, place: &str) -> Result<(), CompileError> {
    let properties = fields.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    if properties > PROPERTIES_MAX {
        let reason = format!("it has {properties} properties, and may have {PROPERTIES_MAX}");
        return Err(wrong(&join(place, "properties"), &reason));
    }
    let required = fields.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    match fields.get("minProperties").and_then(Value::as_u64) {
        Some(least) if least > required + 1 => Err(wrong(
            &join(place, "minProperties"),
            "it can be enforced only up to one more than are required",
        )),
        _ => Ok(()),
    }
}

/// Puts mutually exclusive alternatives under `anyOf`.
fn put_as_any_of(
    fields: &mut Map<String, Value>,
    alternatives: Value,
    place: &str,
) -> Result<(), CompileError> {
    if fields.contains_key("anyOf") {
        let all = fields.entry("allOf").or_insert_with(|| json!([]));
        match all {
            Value::Array(all) => all.push(json!({ "anyOf": alternatives })),
            _ => return Err(wrong(&join(place, "allOf"), "it must be an array of schemas")),
        }
    } else {
        fields.insert("anyOf".to_owned(), alternatives);
    }
    Ok(())
}

fn wrong(place: &str, reason: &str) -> CompileError {
    CompileError::new(first_line(&format!("at {place}: {reason}")))
}

/// Appends a step to a JSON pointer.
fn join(place: &str, step: &str) -> String {
    format!("{place}/{}", step.replace('~', "~0").replace('/', "~1"))
}

/// Decodes percent escapes in a reference. If the result is not UTF-8, the reference stays as it was.
fn percent_decoded(reference: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(reference.len()), reference.as_bytes());
    while let [first, tail @ ..] = rest {
        let digits = tail.first_chunk::<2>().and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| reference.to_owned())
}
