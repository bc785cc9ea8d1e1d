//! Tools offered in a conversation, as far as needed to read and write calls.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits::TOOL_NAME_BYTES_MAX;

/// Characters allowed in a tool's name besides letters and digits.
pub(crate) const NAME_SIGNS: &str = "_-.:/@+$";

/// Tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// JSON Schema of its arguments, an object.
    #[serde(with = "as_text")]
    pub parameters: Value,
    /// If true, a schema that cannot be enforced is refused, even if the model chooses the tool.
    pub strict: bool,
}

/// Serialises JSON as text, for formats that are not self-describing.
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
    /// Parses a tool in the form that templates expect: `{"type": "function", "function": {"name",
    /// "parameters"}}`, or only the inner object. None without a name.
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
            // Arguments are always an object.
            schema.insert("type".to_owned(), "object".into());
        }
        let strict = function.get("strict").and_then(Value::as_bool).unwrap_or(false);
        Some(Tool { name, parameters, strict })
    }

    /// Checks that its calls can be written in every format.
    ///
    /// # Errors
    /// The mistake, with the name of the field.
    pub fn check(&self) -> Result<(), String> {
        self.check_name()?;
        match self.parameters.get("type").and_then(Value::as_str) {
            Some("object") => Ok(()),
            _ => {
                Err("function.parameters must be the schema of an object, of \"type\": \"object\"".to_owned())
            }
        }
    }

    /// Checks that every format's reader accepts its name.
    pub(crate) fn check_name(&self) -> Result<(), String> {
        let fits = |c: char| c.is_alphanumeric() || NAME_SIGNS.contains(c);
        if self.name.is_empty() || self.name.len() > TOOL_NAME_BYTES_MAX || !self.name.chars().all(fits) {
            return Err(format!(
                "function.name must be 1 to {TOOL_NAME_BYTES_MAX} bytes of letters, digits and {NAME_SIGNS}"
            ));
        }
        Ok(())
    }

    /// Schema of its arguments, after resolving a top-level reference.
    pub(crate) fn object(&self) -> &Map<String, Value> {
        static NOTHING: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.resolved(&self.parameters).as_object().unwrap_or(&NOTHING)
    }

    /// Schema of its arguments as an object.
    ///
    /// # Errors
    /// If the schema allows no object.
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

    /// Schema of a parameter, if present.
    pub(crate) fn parameter(&self, name: &str) -> Option<&Value> {
        self.object().get("properties")?.get(name).map(|schema| self.resolved(schema))
    }

    /// Self-contained schema of a parameter, with the definitions that it refers to.
    pub(crate) fn alone(&self, schema: &Value) -> Value {
        let mut alone = self.resolved(schema).clone();
        if !refers(&alone) {
            return alone;
        }
        // The tool's whole schema becomes a definition within the parameter's.
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

    /// Resolves a `$ref` into the tool's own definitions, if no other constraint stands beside it.
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

    /// Returns true if a parameter's value is always a string.
    pub(crate) fn is_string(&self, name: &str) -> bool {
        self.parameter(name).is_some_and(is_string)
    }

    /// Returns true if a parameter's value may be a string, or its type is unknown.
    pub(crate) fn may_be_string(&self, name: &str) -> bool {
        let Some(schema) = self.parameter(name) else { return true };
        let types = types(schema);
        types.is_empty() || types.contains(&"string")
    }
}

/// Returns true if a schema contains a reference.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key("$ref") || fields.values().any(refers),
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

/// Prefixes references into a tool's schema, for use at another place.
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

/// Returns true if a schema allows only strings.
pub(crate) fn is_string(schema: &Value) -> bool {
    types(schema) == ["string"]
}

/// Types that a schema allows at its top level. Empty if it does not say.
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
