//! Rules for arguments written as literals of Python or Gemma, from a schema.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    GrammarWriter,
    shape::Dialect,
    strings::{literal, terminal},
    tags::{is_name, parameters},
};
use crate::{limits::SCHEMA_DEPTH_MAX, tools::Tool};

/// Rules of one tool's values.
struct Values<'a, 'w> {
    writer: &'a mut GrammarWriter<'w>,
    dialect: &'static Dialect,
    /// Schema that references point into.
    whole: Value,
    /// Rules of referenced schemas.
    known: HashMap<String, String>,
    /// Rule of any value.
    any: Option<String>,
}

impl GrammarWriter<'_> {
    /// Expression of the arguments of a call: `name=value, …`, in the schema's order.
    ///
    /// # Errors
    /// Features that cannot be enforced, if the call must be valid.
    pub(super) fn literals(
        &mut self,
        dialect: &'static Dialect,
        tool: &Tool,
        must: bool,
    ) -> Result<String, String> {
        let whole = match tool.arguments().and_then(|schema| self.made(&schema.to_string())) {
            Err(_) if !must => named_alone(tool),
            whole => whole?,
        };
        let enforced = Tool { parameters: whole.clone(), ..tool.clone() };
        let mut values = Values { writer: self, dialect, whole, known: HashMap::new(), any: None };
        let mut pairs = Vec::new();
        for parameter in parameters(&enforced, must)? {
            let name = parameter.name;
            let is_word = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            if !is_word || !is_name(name, &[]) {
                match parameter.is_needed {
                    true if must => {
                        return Err(format!("the name {name:?} cannot be written in this format"));
                    }
                    _ => continue,
                }
            }
            let value = match values.value(&parameter.schema, 0) {
                Err(_) if !must => values.any(),
                value => value?,
            };
            let pair =
                values.writer.rule(format!("{} {value}", literal(&format!("{name}{}", dialect.argument))));
            pairs.push((pair, parameter.is_needed));
        }
        Ok(values.sequence(&pairs))
    }
}

impl Values<'_, '_> {
    /// Expression of pairs in order, separated by commas. The flag says if a pair is required.
    fn sequence(&mut self, pairs: &[(String, bool)]) -> String {
        let comma = self.dialect.comma;
        // Rule of the pairs that may follow, built from the last to the first.
        let mut more = String::new();
        let mut first = Vec::new();
        let mut must = false;
        for (pair, is_needed) in pairs.iter().rev() {
            if *is_needed {
                // No later pair can come first.
                first.clear();
                must = true;
            }
            first.push(format!("{pair} {more}"));
            let next = match is_needed {
                true => format!("{comma} {pair} {more}"),
                false => format!("({comma} {pair})? {more}"),
            };
            more = self.writer.rule(next);
        }
        match (first.is_empty(), must) {
            (true, _) => "\"\"".to_owned(),
            (false, true) => self.writer.rule(first.join(" | ")),
            (false, false) => self.writer.rule(format!("{} | \"\"", first.join(" | "))),
        }
    }

    /// Rule of a schema's values.
    fn value(&mut self, schema: &Value, depth: usize) -> Result<String, String> {
        let empty = Map::new();
        let schema = match schema {
            Value::Bool(false) => return Err("the schema `false` allows nothing".to_owned()),
            Value::Object(schema) => schema,
            _ => &empty,
        };
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!("schemas are nested more than {SCHEMA_DEPTH_MAX} deep"));
        }
        if let Some(Value::String(target)) = schema.get("$ref") {
            return self.referred(schema, target, depth);
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            let words: Vec<String> =
                words.iter().filter(|word| is_of_type(word, schema)).map(|word| self.spelled(word)).collect();
            return match words.is_empty() {
                true => Err("no value of `enum` is allowed".to_owned()),
                false => Ok(self.writer.rule(words.join(" | "))),
            };
        }
        if let Some(word) = schema.get("const") {
            let spelled = self.spelled(word);
            return Ok(self.writer.rule(spelled));
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        for (keyword, value) in schema {
            let Value::Array(parts) = value else { continue };
            match (keyword.as_str(), parts.as_slice()) {
                ("anyOf" | "oneOf", parts) => {
                    // Keywords beside it apply to each alternative.
                    let mut rules = Vec::new();
                    for part in parts {
                        let part = beside(schema, keyword, part)?;
                        rules.push(self.value(&part, depth + 1)?);
                    }
                    return Ok(self.writer.rule(rules.join(" | ")));
                }
                ("allOf", [one]) => {
                    let one = beside(schema, keyword, one)?;
                    return self.value(&one, depth + 1);
                }
                ("allOf", _) if types == ["string"] => {}
                ("allOf" | "prefixItems" | "items", _) => {
                    return Err(format!("{keyword} with several schemas cannot be enforced in this format"));
                }
                _ => {}
            }
        }
        self.typed_value(&types, schema, depth)
    }

    /// Rule of values of some types. If there are none, the keywords show the type.
    fn typed_value(
        &mut self,
        types: &[&str],
        schema: &Map<String, Value>,
        depth: usize,
    ) -> Result<String, String> {
        if types.is_empty() {
            let of = |words: &[&str]| words.iter().any(|word| schema.contains_key(*word));
            return match () {
                () if of(&["properties", "required", "additionalProperties"]) => self.object(schema, depth),
                () if of(&["items", "minItems", "maxItems"]) => self.array(schema, depth),
                () if of(&["pattern", "minLength", "maxLength"]) => self.string(schema),
                () if of(&["minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"]) => {
                    Ok(self.number("number", schema))
                }
                () => Ok(self.any()),
            };
        }
        let mut rules = Vec::new();
        for name in types {
            rules.push(match *name {
                "string" => self.string(schema)?,
                "integer" | "number" => self.number(name, schema),
                "boolean" => {
                    format!("({} | {})", literal(self.dialect.words[0]), literal(self.dialect.words[1]))
                }
                "null" => literal(self.dialect.words[2]),
                "array" => self.array(schema, depth)?,
                "object" => self.object(schema, depth)?,
                other => return Err(format!("there is no type {other:?}")),
            });
        }
        Ok(self.writer.rule(rules.join(" | ")))
    }

    fn referred(
        &mut self,
        schema: &Map<String, Value>,
        target: &str,
        depth: usize,
    ) -> Result<String, String> {
        let remarks =
            ["$ref", "description", "title", "default", "examples", "x-guidance", "$defs", "definitions"];
        if let Some(other) = schema.keys().find(|key| !remarks.contains(&key.as_str())) {
            return Err(format!("{other} beside $ref cannot be enforced in this format"));
        }
        if let Some(rule) = self.known.get(target) {
            return Ok(rule.clone());
        }
        let found = target.strip_prefix('#').and_then(|pointer| self.whole.pointer(pointer)).cloned();
        let found = found.ok_or_else(|| format!("there is no schema at {target:?}"))?;
        // The schema may refer to itself.
        let name = self.writer.fresh();
        self.known.insert(target.to_owned(), name.clone());
        let value = self.value(&found, depth + 1)?;
        self.writer.define(&name, &value);
        Ok(name)
    }

    fn string(&mut self, schema: &Map<String, Value>) -> Result<String, String> {
        let (mark, writer) = (self.dialect.mark, &mut *self.writer);
        if mark.is_empty() {
            let own = ["pattern", "minLength", "maxLength", "allOf"];
            let mut json = Map::from_iter([("type".to_owned(), Value::from("string"))]);
            json.extend(own.iter().filter_map(|&key| Some((key.to_owned(), schema.get(key)?.clone()))));
            return Ok(writer.json(json, &self.whole));
        }
        let said = terminal(schema)?;
        if writer.has_control(mark) {
            let content = writer.content(said, mark);
            return Ok(format!("{} {content} {}", writer.text(mark), writer.text(mark)));
        }
        let content = match said {
            None => "TEXT".to_owned(),
            Some(said) => writer.content(Some(said), mark),
        };
        let rule = writer.lazy_rule(format!("{content} {}", literal(mark)));
        Ok(format!("{} {rule}", literal(mark)))
    }

    fn number(&mut self, name: &str, schema: &Map<String, Value>) -> String {
        let own = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let mut json = Map::from_iter([("type".to_owned(), Value::from(name))]);
        json.extend(own.iter().filter_map(|&key| Some((key.to_owned(), schema.get(key)?.clone()))));
        self.writer.json(json, &self.whole)
    }

    fn array(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<String, String> {
        let item = match schema.get("items") {
            None | Some(Value::Bool(true)) => self.any(),
            Some(Value::Bool(false)) => return Ok("\"[]\"".to_owned()),
            Some(schema) => self.value(schema, depth + 1)?,
        };
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        let comma = self.dialect.comma;
        let after_first = |least: u64| match most {
            Some(most) => format!("({comma} {item}){{{},{}}}", least.saturating_sub(1), most - 1),
            None if least > 1 => format!("({comma} {item}){{{},}}", least - 1),
            None => format!("({comma} {item})*"),
        };
        Ok(match most {
            Some(most) if most < least => return Err("minItems is more than maxItems".to_owned()),
            Some(0) => "\"[]\"".to_owned(),
            _ if least == 0 => format!("\"[\" ({item} {})? \"]\"", after_first(0)),
            _ => format!("\"[\" {item} {} \"]\"", after_first(least)),
        })
    }

    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<String, String> {
        for keyword in ["patternProperties", "minProperties", "maxProperties"] {
            if schema.contains_key(keyword) {
                return Err(format!("{keyword} cannot be enforced in this format"));
            }
        }
        let of_object = Tool { name: String::new(), parameters: Value::Object(schema.clone()), strict: true };
        let mut pairs = Vec::new();
        let parameters = parameters(&of_object, true)?;
        for parameter in &parameters {
            let value = self.value(&parameter.schema, depth + 1)?;
            let key = self.key(parameter.name)?;
            pairs.push((self.writer.rule(format!("{key} {value}")), parameter.is_needed));
        }
        if pairs.is_empty() {
            // Only additional properties: any names.
            let value = match schema.get("additionalProperties") {
                Some(Value::Bool(false)) => return Ok("\"{}\"".to_owned()),
                Some(schema @ Value::Object(_)) => self.value(schema, depth + 1)?,
                _ => self.any(),
            };
            return Ok(self.map(&value));
        }
        let pairs = self.sequence(&pairs);
        Ok(format!("\"{{\" {pairs} \"}}\""))
    }

    /// Rule of an object with arbitrary keys. Keys are words, so that they are parsed as written. Repeated keys
    /// count once.
    fn map(&mut self, value: &str) -> String {
        let (open, close) = if self.dialect.mark.is_empty() { ("\\\"", "\\\"") } else { ("", "") };
        let key = format!("/{open}[a-z_][a-z0-9_]{{0,30}}{close}{}/", self.dialect.pair);
        let comma = self.dialect.comma;
        let pair = self.writer.rule(format!("{key} {value}"));
        format!("\"{{\" ({pair} ({comma} {pair})*)? \"}}\"")
    }

    fn key(&self, name: &str) -> Result<String, String> {
        let pair = self.dialect.pair;
        if self.dialect.mark.is_empty() {
            return Ok(literal(&format!("{}{pair}", Value::from(name))));
        }
        let is_bare = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'));
        match is_bare && is_name(name, &[]) {
            true => Ok(literal(&format!("{name}{pair}"))),
            false => Err(format!("the name {name:?} cannot be written in this format")),
        }
    }

    /// Literal of a value.
    fn spelled(&self, value: &Value) -> String {
        let comma = if self.dialect.mark.is_empty() { "\", \"" } else { self.dialect.comma };
        let [yes, no, none] = self.dialect.words;
        match value {
            Value::Null => literal(none),
            Value::Bool(is) => literal(if *is { yes } else { no }),
            Value::Number(number) => literal(&number.to_string()),
            Value::String(text) if self.dialect.mark.is_empty() => {
                literal(&Value::from(text.as_str()).to_string())
            }
            Value::String(text) => self.writer.text(&format!("{0}{text}{0}", self.dialect.mark)),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.spelled(item)).collect();
                format!("\"[\" {} \"]\"", items.join(&format!(" {comma} ")))
            }
            Value::Object(fields) => {
                let pair = |(key, value): (&String, &Value)| {
                    let key =
                        self.key(key).unwrap_or_else(|_| literal(&format!("{key}{}", self.dialect.pair)));
                    format!("{key} {}", self.spelled(value))
                };
                let pairs: Vec<String> = fields.iter().map(pair).collect();
                format!("\"{{\" {} \"}}\"", pairs.join(&format!(" {comma} ")))
            }
        }
    }

    /// Rule of any value.
    fn any(&mut self) -> String {
        if let Some(any) = &self.any {
            return any.clone();
        }
        let name = self.writer.fresh();
        self.any = Some(name.clone());
        let empty = Map::new();
        let string = self.string(&empty).unwrap_or_else(|_| "\"0\"".to_owned());
        let number = self.number("number", &empty);
        let (map, comma) = (self.map(&name), self.dialect.comma);
        let words: Vec<String> = self.dialect.words.iter().map(|word| literal(word)).collect();
        let list = format!("\"[\" ({name} ({comma} {name})*)? \"]\"");
        self.writer.define(&name, &format!("{string} | {number} | {} | {list} | {map}", words.join(" | ")));
        name
    }
}

/// Schema with the names of a tool's arguments and any values.
fn named_alone(tool: &Tool) -> Value {
    let names = tool.object().get("properties").and_then(Value::as_object).into_iter().flatten();
    let anything = names.map(|(name, _)| (name.clone(), Value::Object(Map::new()))).collect();
    Value::Object(Map::from_iter([("properties".to_owned(), Value::Object(anything))]))
}

/// Merges a subschema with the keywords beside it.
///
/// # Errors
/// If both constrain the same keyword.
fn beside(schema: &Map<String, Value>, keyword: &str, part: &Value) -> Result<Value, String> {
    let mut part = match part {
        Value::Bool(true) => Map::new(),
        Value::Object(part) => part.clone(),
        _ => return Ok(part.clone()),
    };
    for (key, value) in schema.iter().filter(|(key, _)| *key != keyword) {
        let says_nothing =
            ["description", "title", "default", "examples", "x-guidance", "$defs", "definitions"];
        if says_nothing.contains(&key.as_str()) {
            continue;
        }
        match part.get(key) {
            None if part.contains_key("$ref") => {
                return Err(format!("{key} beside {keyword} cannot be enforced in this format"));
            }
            None => _ = part.insert(key.clone(), value.clone()),
            Some(same) if same == value => {}
            Some(_) => return Err(format!("{key} beside {keyword} cannot be enforced in this format")),
        }
    }
    Ok(Value::Object(part))
}

/// Returns true if a value fits the `type` beside it.
fn is_of_type(value: &Value, schema: &Map<String, Value>) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    match schema.get("type") {
        Some(Value::String(name)) => is(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}
