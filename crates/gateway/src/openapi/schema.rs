//! Conversion of the lines in `answers.txt` to JSON Schema. The head of `answers.txt` describes the notation.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::declare::notation;

/// Schema as written.
#[derive(Debug, Default, Clone)]
struct Written<'a> {
    /// Type of which this is an alias, if it is not an object.
    alias: Option<&'a str>,
    group: &'a str,
    about: Vec<&'a str>,
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

/// Schemas of a text, by name.
pub(super) fn read(text: &str) -> Map<String, Value> {
    let mut written: BTreeMap<&str, Written<'_>> = BTreeMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("# ")) {
        if let Some(head) = line.strip_prefix("## ") {
            let (head, alias) =
                head.split_once(" = ").map_or((head, None), |(head, alias)| (head, Some(alias)));
            let (name, group) = head.split_once(" < ").unwrap_or((head, ""));
            current = name.trim();
            written.insert(current, Written { alias, group, ..Written::default() });
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
        None => object(schema, written.get(schema.group)),
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

fn object(schema: &Written<'_>, group: Option<&Written<'_>>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for line in group.into_iter().chain([schema]).flat_map(|written| &written.fields) {
        let mut property = notation(line.kind);
        property["description"] = json!(line.about);
        properties.insert(line.name.to_owned(), property);
        required.extend(line.required.then_some(line.name));
    }
    let mut object = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if !schema.about.is_empty() {
        object["description"] = json!(schema.about.join(" "));
    }
    object
}
