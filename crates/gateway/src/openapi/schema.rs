//! Conversion of the lines in `schemas.txt` and `answers.txt` to JSON Schema. The head of `schemas.txt`
//! describes the notation.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::declare::{FieldSchema, notation};

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
pub(super) fn read(text: &str, closed: bool, known: impl Fn(&str) -> Vec<FieldSchema>) -> Map<String, Value> {
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
        Some(alias) => notation(alias),
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
    known: &impl Fn(&str) -> Vec<FieldSchema>,
) -> Value {
    let mut properties = Map::new();
    let mut required: Vec<String> = Vec::new();
    let mut add = |line: &FieldLine<'_>| {
        properties.insert(line.name.to_owned(), described(notation(line.kind), line.about));
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
    for FieldSchema { name, schema, .. } in listed {
        properties.entry(name).or_insert(schema);
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
