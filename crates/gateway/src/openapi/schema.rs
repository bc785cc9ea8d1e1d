//! Conversion of the lines in `schemas.txt` and `answers.txt` to JSON Schema. The head of `schemas.txt`
//! describes the notation.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Schema as written.
#[derive(Debug, Default, Clone)]
struct Written<'a> {
    /// Type of which this is an alias, if it is not an object.
    alias: Option<&'a str>,
    groups: Vec<&'a str>,
    about: Vec<&'a str>,
    /// Whether additional fields are allowed.
    open: bool,
    fields: Vec<FieldLine<'a>>,
}

/// Line of a field.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldLine<'a> {
    required: bool,
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) about: &'a str,
}

/// Schemas of a text, by name. `known` gives the fields of `@name`. `closed` forbids additional fields.
pub(super) fn read(
    text: &str,
    closed: bool,
    known: impl Fn(&str) -> Vec<(&'static str, Value)>,
) -> Map<String, Value> {
    let mut written: BTreeMap<&str, Written<'_>> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("# ")) {
        if let Some(head) = line.strip_prefix("## ") {
            let (head, alias) =
                head.split_once(" = ").map_or((head, None), |(head, alias)| (head, Some(alias)));
            let (head, groups) = head.split_once(" < ").unwrap_or((head, ""));
            let (name, open) = head.split_once(" open").map_or((head, false), |(name, _)| (name, true));
            current = name.trim();
            let groups = groups.split_whitespace().collect();
            written.insert(current, Written { alias, groups, open, ..Written::default() });
            continue;
        }
        let Some(schema) = written.get_mut(current) else { continue };
        match field(line) {
            Some(field) => schema.fields.push(field),
            None => schema.about.push(line),
        }
    }
    let named = written.iter().filter(|(name, _)| name.starts_with(char::is_uppercase));
    let schema = |schema: &Written<'_>| match schema.alias {
        Some(alias) => kind(alias),
        None => object(schema, &written, closed, &known),
    };
    named.map(|(name, one)| ((*name).to_owned(), schema(one))).collect()
}

/// Parses `* name : type : about`.
pub(super) fn field(line: &str) -> Option<FieldLine<'_>> {
    let (required, line) = line.strip_prefix("* ").map_or((false, line), |rest| (true, rest));
    let (name, rest) = line.split_once(" : ")?;
    let (kind, about) = rest.split_once(" : ")?;
    Some(FieldLine { required, name, kind, about })
}

fn object(
    schema: &Written<'_>,
    all: &BTreeMap<&str, Written<'_>>,
    closed: bool,
    known: &impl Fn(&str) -> Vec<(&'static str, Value)>,
) -> Value {
    let mut properties = Map::new();
    let mut required: Vec<String> = Vec::new();
    let mut add = |line: &FieldLine<'_>| {
        properties.insert(line.name.to_owned(), described(kind(line.kind), line.about));
        if line.required && !required.iter().any(|name| name == line.name) {
            required.push(line.name.to_owned());
        }
    };
    let mut stack: Vec<&str> = schema.groups.iter().rev().copied().collect();
    let mut listed = Vec::new();
    while let Some(group) = stack.pop() {
        if let Some(name) = group.strip_prefix('@') {
            listed.extend(known(name));
        } else if let Some(group) = all.get(group) {
            group.fields.iter().for_each(&mut add);
            stack.extend(group.groups.iter().rev());
        }
    }
    // The schema's own lines override those of its groups.
    schema.fields.iter().for_each(&mut add);
    let mut object = json!({"type": "object"});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    for (name, value) in listed {
        properties.entry(name).or_insert(value);
    }
    object["properties"] = Value::Object(properties);
    if closed && !schema.open {
        object["additionalProperties"] = json!(false);
    }
    if !schema.about.is_empty() {
        object["description"] = json!(schema.about.join(" "));
    }
    object
}

fn described(mut schema: Value, about: &str) -> Value {
    schema["description"] = json!(about);
    schema
}

/// Schema of a type in the notation.
pub(super) fn kind(text: &str) -> Value {
    let alternatives: Vec<&str> = text.split(" | ").map(str::trim).collect();
    let literals: Option<Vec<Value>> = alternatives.iter().map(|one| literal(one)).collect();
    match (literals, &alternatives[..]) {
        (Some(literals), _) => json!({"enum": literals}),
        (None, [one]) => single(one),
        (None, several) => json!({"anyOf": several.iter().map(|one| kind(one)).collect::<Vec<_>>()}),
    }
}

/// Literal value, if the text is one.
fn literal(text: &str) -> Option<Value> {
    let is = text.starts_with('"') || matches!(text, "true" | "false") || text.parse::<i64>().is_ok();
    serde_json::from_str(text).ok().filter(|_| is)
}

fn single(text: &str) -> Value {
    if let Some(items) = text.strip_suffix("[]") {
        return json!({"type": "array", "items": kind(items)});
    }
    if let Some(items) = text.strip_suffix("[1..]") {
        return json!({"type": "array", "items": kind(items), "minItems": 1});
    }
    if text.ends_with("[0]") {
        return json!({"type": "array", "maxItems": 0});
    }
    if let Some(values) = text.strip_suffix("{}") {
        return json!({"type": "object", "additionalProperties": kind(values)});
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
