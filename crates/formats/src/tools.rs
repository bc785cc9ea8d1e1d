//! The tools that a conversation offers, as far as reading and writing calls needs to know them.

use serde_json::{Value, json};

use crate::limits::TOOL_NAME_BYTES_MAX;

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// A schema that cannot be enforced is refused, whoever chooses.
    pub strict: bool,
}

impl Tool {
    /// From a tool's JSON in the form that templates expect: `{"type": "function", "function": {"name", "parameters"}}`,
    /// or the inner object alone. None where there is no name.
    pub fn of_json(json: &Value) -> Option<Tool> {
        let function = json.get("function").unwrap_or(json);
        let name = function.get("name")?.as_str()?.to_owned();
        let parameters = function.get("parameters").or_else(|| function.get("input_schema"));
        let parameters = match parameters {
            Some(parameters @ Value::Object(_)) => parameters.clone(),
            _ => json!({"type": "object", "properties": {}}),
        };
        let mut parameters = parameters;
        if let Value::Object(schema) = &mut parameters
            && !schema.contains_key("type")
        {
            // Arguments are an object, whatever else is said of them.
            schema.insert("type".to_owned(), "object".into());
        }
        let strict = function.get("strict").and_then(Value::as_bool).unwrap_or(false);
        Some(Tool { name, parameters, strict })
    }

    /// Whether calls of it can be written in every format.
    ///
    /// # Errors
    /// What is wrong, naming the field.
    pub fn check(&self) -> Result<(), String> {
        let fits = |c: char| c.is_alphanumeric() || "_-.:/@+$".contains(c);
        if self.name.is_empty() || self.name.len() > TOOL_NAME_BYTES_MAX || !self.name.chars().all(fits) {
            return Err(format!(
                "function.name must be 1 to {TOOL_NAME_BYTES_MAX} bytes of letters, digits and _-.:/@+$"
            ));
        }
        match self.parameters.get("type").and_then(Value::as_str) {
            Some("object") => Ok(()),
            _ => {
                Err("function.parameters must be the schema of an object, of \"type\": \"object\"".to_owned())
            }
        }
    }

    /// The schema of a parameter, if it has one of its own.
    pub(crate) fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(name).map(|schema| self.resolved(schema))
    }

    /// A parameter's schema as one of its own, with the definitions that it may refer to.
    pub(crate) fn alone(&self, schema: &Value) -> Value {
        let mut alone = self.resolved(schema).clone();
        for definitions in ["$defs", "definitions"] {
            if let (Some(found), Some(alone)) = (self.parameters.get(definitions), alone.as_object_mut()) {
                alone.entry(definitions).or_insert_with(|| found.clone());
            }
        }
        alone
    }

    /// What a `$ref` into the tool's own definitions stands for.
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let pointer = schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
        pointer.and_then(|pointer| self.parameters.pointer(pointer)).unwrap_or(schema)
    }

    /// Whether a parameter's value is always a string.
    pub(crate) fn is_string(&self, name: &str) -> bool {
        self.parameter(name).is_some_and(is_string)
    }

    /// Whether a parameter's value may be a string among others, or nothing is known of it.
    pub(crate) fn may_be_string(&self, name: &str) -> bool {
        let Some(schema) = self.parameter(name) else { return true };
        let types = types(schema);
        types.is_empty() || types.contains(&"string")
    }
}

/// Whether a schema allows strings alone.
pub(crate) fn is_string(schema: &Value) -> bool {
    types(schema) == ["string"]
}

/// The types that a schema allows, as far as it says so at its top; empty: it does not say.
fn types(schema: &Value) -> Vec<&str> {
    let Some(schema) = schema.as_object() else { return Vec::new() };
    let of_values = |values: &[Value]| -> Vec<&'static str> {
        let mut kinds: Vec<_> = values
            .iter()
            .map(|value| match value {
                Value::String(_) => "string",
                Value::Number(_) => "number",
                Value::Bool(_) => "boolean",
                Value::Null => "null",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            })
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    };
    match (schema.get("type"), schema.get("enum"), schema.get("const")) {
        (Some(Value::String(one)), ..) => vec![one],
        (Some(Value::Array(several)), ..) => several.iter().filter_map(Value::as_str).collect(),
        (_, Some(Value::Array(values)), _) => of_values(values),
        (_, _, Some(value)) => of_values(std::slice::from_ref(value)),
        _ => {
            let branches = ["anyOf", "oneOf"].iter().find_map(|word| schema.get(*word)?.as_array());
            let Some(branches) = branches else { return Vec::new() };
            let all: Vec<Vec<&str>> = branches.iter().map(types).collect();
            if all.iter().any(Vec::is_empty) {
                return Vec::new();
            }
            let mut all = all.concat();
            all.sort_unstable();
            all.dedup();
            all
        }
    }
}
