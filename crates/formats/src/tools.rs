//! The tools that a conversation offers, as far as reading and writing calls needs to know them.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits::TOOL_NAME_BYTES_MAX;

/// What a tool's name may have besides letters and digits.
pub(crate) const NAME_SIGNS: &str = "_-.:/@+$";

/// A tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments, an object.
    #[serde(with = "as_text")]
    pub parameters: Value,
    /// A schema that cannot be enforced is refused, whoever chooses.
    pub strict: bool,
}

/// JSON as its text, for forms that do not say what follows.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(value: &Value, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
        serde_json::from_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
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
        self.check_name()?;
        match self.parameters.get("type").and_then(Value::as_str) {
            Some("object") => Ok(()),
            _ => {
                Err("function.parameters must be the schema of an object, of \"type\": \"object\"".to_owned())
            }
        }
    }

    /// Whether every format's reader takes its name for one.
    pub(crate) fn check_name(&self) -> Result<(), String> {
        let fits = |c: char| c.is_alphanumeric() || NAME_SIGNS.contains(c);
        if self.name.is_empty() || self.name.len() > TOOL_NAME_BYTES_MAX || !self.name.chars().all(fits) {
            return Err(format!(
                "function.name must be 1 to {TOOL_NAME_BYTES_MAX} bytes of letters, digits and {NAME_SIGNS}"
            ));
        }
        Ok(())
    }

    /// The schema of its arguments, where it says so by a reference what that leads to.
    pub(crate) fn object(&self) -> &Map<String, Value> {
        static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.resolved(&self.parameters).as_object().unwrap_or(&NOTHING)
    }

    /// The schema of its arguments, which are an object.
    ///
    /// # Errors
    /// Where it allows none.
    pub(crate) fn arguments(&self) -> Result<Value, String> {
        let mut schema = self.parameters.clone();
        let Some(fields) = schema.as_object_mut() else { return Ok(json!({"type": "object"})) };
        let may_be_object = match fields.get("type") {
            Some(Value::String(name)) => name == "object",
            Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
            _ => true,
        };
        if !may_be_object {
            return Err("at #/type: arguments are an object".to_owned());
        }
        fields.insert("type".to_owned(), "object".into());
        Ok(schema)
    }

    /// The schema of a parameter, if it has one of its own.
    pub(crate) fn parameter(&self, name: &str) -> Option<&Value> {
        self.object().get("properties")?.get(name).map(|schema| self.resolved(schema))
    }

    /// A parameter's schema as one of its own, with what it may refer to.
    pub(crate) fn alone(&self, schema: &Value) -> Value {
        let mut alone = self.resolved(schema).clone();
        if !refers(&alone) {
            return alone;
        }
        // All of the tool's schema is a definition of the parameter's.
        let mut whole = self.parameters.clone();
        refer_below(&mut whole, "#/$defs/tool");
        refer_below(&mut alone, "#/$defs/tool");
        match alone.as_object_mut() {
            Some(fields) => {
                fields.shift_remove("definitions");
                fields.insert("$defs".to_owned(), json!({ "tool": whole }));
            }
            None => return alone,
        }
        alone
    }

    /// What a `$ref` into the tool's own definitions stands for, where nothing else is said beside it.
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let says_more = |key: &&String| {
            ![
                "$ref",
                "description",
                "title",
                "default",
                "examples",
                "$defs",
                "definitions",
                "$schema",
                "type",
                "x-guidance",
            ]
            .contains(&key.as_str())
        };
        if schema.as_object().is_some_and(|fields| fields.keys().any(|key| says_more(&key))) {
            return schema;
        }
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

/// Whether a reference stands anywhere in a schema.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key("$ref") || fields.values().any(refers),
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

/// Makes references to a tool's schema references to the place that it comes to.
pub(crate) fn refer_below(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match value {
                    Value::String(target) if key == "$ref" && target.starts_with('#') => {
                        target.replace_range(..1, place);
                    }
                    value => refer_below(value, place),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| refer_below(item, place)),
        _ => {}
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
