//! Arguments between tags, in the schema's order: strings without quotes, other values as JSON.

use serde_json::{Map, Value};

use super::{
    GrammarWriter,
    shape::TagText,
    strings::{literal, terminal},
};
use crate::tools::Tool;

impl GrammarWriter<'_> {
    /// Expression of a call's parameters, one after the other.
    ///
    /// # Errors
    /// Features that cannot be enforced, if the call must be valid.
    pub(super) fn tags(&mut self, tags: &TagText, tool: &Tool, must: bool) -> Result<String, String> {
        if must {
            self.made(&tool.arguments()?.to_string())?;
        }
        let mut sequence = Vec::new();
        for parameter in parameters(tool, must)? {
            let name = parameter.name;
            if !is_name(name, tags.not_in_names) {
                match parameter.is_needed {
                    true if must => {
                        return Err(format!("the name {name:?} cannot be written in this format"));
                    }
                    _ => continue,
                }
            }
            let is_string = tool.is_string(name);
            let value = match (is_string, self.enforced(&tool.alone(&parameter.schema), must)?) {
                (true, schema) => self.bare(tags, &schema, must)?,
                (false, schema) => {
                    let json = self.rule(format!("%json {schema}"));
                    let line_break = if tags.breaks { "(\"\\n\")? " } else { "" };
                    format!("{json} {line_break}{}", self.text(tags.end))
                }
            };
            let begin = format!("{}{name}{}", tags.begin, tags.value[usize::from(!is_string)]);
            let after = literal(tags.after);
            let rule = self.rule(format!("{} {value} ({after})?", self.text(&begin)));
            sequence.push(if parameter.is_needed { rule } else { format!("({rule})?") });
        }
        Ok(sequence.join(" "))
    }

    /// Expression of an unquoted string and its end.
    fn bare(&mut self, tags: &TagText, schema: &Value, must: bool) -> Result<String, String> {
        let empty = Map::new();
        let said = match terminal(schema.as_object().unwrap_or(&empty)) {
            Err(_) if !must => None,
            said => said?,
        };
        if let Some((before, mark)) = self.at_control(tags.end) {
            // A control token ends the text before it, together with the rest of its mark.
            let content = match (said, must) {
                (None, false) => "TEXT".to_owned(),
                (said, _) => self.content(said, tags.end),
            };
            let content = if before.is_empty() {
                content
            } else {
                self.terminal(format!("{content} {}", literal(before)))
            };
            return Ok(format!("{content} {}", self.text(mark)));
        }
        let end = literal(tags.end);
        let content = match said {
            // The first end mark ends it.
            None => "TEXT".to_owned(),
            Some(said) => {
                let content = self.content(Some(said), tags.end);
                match tags.breaks {
                    true => self.terminal(format!("{content} \"\\n\" | {content} & ~/(?s:.*)\\n/")),
                    false => content,
                }
            }
        };
        Ok(self.lazy_rule(format!("{content} {end}")))
    }
}

/// Parameter of a tool's schema.
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    pub(super) schema: Value,
    pub(super) is_needed: bool,
}

/// Lists a tool's parameters in the schema's order.
///
/// # Errors
/// If the schema constrains more than single parameters.
pub(super) fn parameters(tool: &Tool, must: bool) -> Result<Vec<Parameter<'_>>, String> {
    let schema = tool.object();
    for keyword in ["$ref", "allOf", "anyOf", "oneOf", "enum", "const", "minProperties", "maxProperties"] {
        if must && schema.get(keyword).is_some() {
            return Err(format!(
                "at #/{keyword}: calls in this format have arguments one by one, so this keyword cannot be enforced of all of \
                 them"
            ));
        }
    }
    let needed: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut all: Vec<Parameter> = Vec::new();
    for (name, schema) in properties.into_iter().flatten() {
        let is_needed = needed.contains(&name.as_str());
        match schema {
            Value::Bool(false) if is_needed && must => {
                return Err(format!("at #/properties/{name}: it is required, and nothing is allowed"));
            }
            Value::Bool(false) => {}
            Value::Object(_) => all.push(Parameter { name, schema: schema.clone(), is_needed }),
            _ => all.push(Parameter { name, schema: Value::Object(Map::new()), is_needed }),
        }
    }
    let others = schema.get("additionalProperties");
    for name in needed {
        if all.iter().any(|parameter| parameter.name == name) {
            continue;
        }
        let schema = match others {
            Some(Value::Bool(false)) if must => {
                return Err(format!("at #/required: {name:?} is required, and not allowed"));
            }
            Some(schema @ Value::Object(_)) => schema.clone(),
            _ => Value::Object(Map::new()),
        };
        all.push(Parameter { name, schema, is_needed: true });
    }
    Ok(all)
}

/// Returns true if a name can be written and parsed back unchanged.
pub(super) fn is_name(name: &str, without: &[char]) -> bool {
    let plain = !name.is_empty() && name.trim() == name && name.len() <= crate::limits::HEAD_CHARS_MAX / 2;
    plain && !name.contains(|c: char| c.is_control() || without.contains(&c))
}
