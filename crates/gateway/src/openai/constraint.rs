//! Constraints on the answer: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`,
//! llama.cpp's `grammar` and `json_schema`. A request may have one of them. The engine checks whether it can be
//! enforced.

use hanzo_engine_proto::v1::{self, constraint::Of};

use crate::{
    error::ApiError,
    fields::{Field, Fields},
};

/// Reads the constraint of a chat or completion request. Empty ones count as none.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<v1::Constraint>, ApiError> {
    let mut found: Option<(&str, Of)> = None;
    for (name, read) in FIELDS {
        let Some(field) = fields.take(name) else { continue };
        let Some(of) = read(field)? else { continue };
        if let Some((other, _)) = found {
            return Err(field.error(format!("{other} constrains the answer already; send one of them")));
        }
        found = Some((name, of));
    }
    Ok(found.map(|(_, of)| v1::Constraint { of: Some(of) }))
}

type Read = fn(Field) -> Result<Option<Of>, ApiError>;

const FIELDS: [(&str, Read); 8] = [
    ("response_format", response_format),
    ("structured_outputs", structured_outputs),
    ("guided_json", |field| schema(field).map(Some)),
    ("guided_regex", |field| field.string().map(Of::Regex).map(Some)),
    ("guided_choice", |field| choices(field).map(Some)),
    ("guided_grammar", |field| field.string().map(grammar).map(Some)),
    ("grammar", |field| Ok(Some(field.string()?).filter(|text| !text.is_empty()).map(Of::Gbnf))),
    ("json_schema", |field| schema(field).map(Some)),
];

fn response_format(field: Field) -> Result<Option<Of>, ApiError> {
    let mut format = field.object()?;
    let kind = format.require("type")?.word(&["text", "json_object", "json_schema"])?;
    // llama.cpp puts the schema next to the type.
    let beside = format.take("schema");
    let named = format.take("json_schema");
    format.finish()?;
    match (kind, beside, named) {
        ("text", None, None) => Ok(None),
        ("json_object", None, None) => Ok(Some(Of::JsonObject(true))),
        ("json_object" | "json_schema", Some(beside), None) => schema(beside).map(Some),
        ("json_schema", None, Some(named)) => {
            let mut named = named.object()?;
            named.take("name").map(Field::text).transpose()?;
            named.take("description").map(Field::text).transpose()?;
            // The answer always satisfies its schema, so `strict` has no effect.
            named.take("strict").map(Field::boolean).transpose()?;
            let of = schema(named.require("schema")?)?;
            named.finish()?;
            Ok(Some(of))
        }
        ("json_schema", None, None) => Err(ApiError::field("response_format.json_schema", "required")),
        (_, beside, named) => {
            let extra = beside.or(named).unwrap_or(field);
            Err(extra.error(format!("not with type {kind:?}, or not beside the other schema")))
        }
    }
}

fn structured_outputs(field: Field) -> Result<Option<Of>, ApiError> {
    let mut outputs = field.object()?;
    let mut found: Option<(&str, Of)> = None;
    let readers: [(&'static str, Read); 5] = [
        ("json", |field| schema(field).map(Some)),
        ("regex", |field| field.string().map(Of::Regex).map(Some)),
        ("choice", |field| choices(field).map(Some)),
        ("grammar", |field| field.string().map(grammar).map(Some)),
        ("json_object", |field| Ok(field.boolean()?.then_some(Of::JsonObject(true)))),
    ];
    for (name, read) in readers {
        let Some(field) = outputs.take(name) else { continue };
        let Some(of) = read(field)? else { continue };
        if let Some((other, _)) = found {
            return Err(field.error(format!("{other} constrains the answer already; send one of them")));
        }
        found = Some((name, of));
    }
    // These choose among vLLM's implementations. The only one here writes at most one space between JSON
    // tokens.
    for name in ["disable_any_whitespace", "disable_fallback"] {
        outputs.take(name).map(Field::boolean).transpose()?;
    }
    outputs.finish()?;
    match found {
        Some((_, of)) => Ok(Some(of)),
        None => Err(field.error("expected one of json, regex, choice, grammar, json_object")),
    }
}

/// Reads a schema: an object, a boolean, or either as text.
fn schema(field: Field) -> Result<Of, ApiError> {
    let value = field.value();
    if value.is_string() {
        return field.string().map(Of::JsonSchema);
    }
    if !value.is_object() && !value.is_boolean() {
        return Err(field.error("expected a JSON schema"));
    }
    Ok(Of::JsonSchema(value.to_text()))
}

fn choices(field: Field) -> Result<Of, ApiError> {
    let texts = field.list()?.map(Field::string).collect::<Result<Vec<String>, ApiError>>()?;
    if texts.is_empty() {
        return Err(field.error("must not be empty"));
    }
    Ok(Of::Choices(v1::Choices { texts }))
}

/// vLLM accepts both notations; GBNF is recognised by its rules.
fn grammar(text: String) -> Of {
    if text.contains("::=") { Of::Gbnf(text) } else { Of::Lark(text) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fields::fields_of;

    fn check(body: Value) -> Result<Option<Of>, String> {
        let mut fields = fields_of(&body, false);
        let read = read(&mut fields)
            .map_err(|error| error.json()["error"]["message"].as_str().unwrap().to_owned())?;
        Ok(read.and_then(|constraint| constraint.of))
    }

    #[test]
    fn everyones_words_for_a_constraint() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let of_schema = Ok(Some(Of::JsonSchema(schema.to_string())));
        let named = json!({"name": "x", "description": "y", "strict": true, "schema": schema});
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"structured_outputs": {"json": schema, "disable_any_whitespace": true}}),
            json!({"structured_outputs": {"json": schema.to_string()}}),
            json!({"guided_json": schema}),
            json!({"guided_json": schema.to_string()}),
            json!({"json_schema": schema, "grammar": "", "response_format": {"type": "text"}}),
        ] {
            assert_eq!(check(body.clone()), of_schema, "{body}");
        }
        let choices = Of::Choices(v1::Choices { texts: vec!["a".into(), "b".into()] });
        for (body, of) in [
            (json!({}), None),
            (json!({"response_format": {"type": "text"}, "grammar": ""}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Of::JsonObject(true))),
            (json!({"structured_outputs": {"json_object": true}}), Some(Of::JsonObject(true))),
            (json!({"guided_regex": "a+"}), Some(Of::Regex("a+".into()))),
            (json!({"structured_outputs": {"regex": "a+"}}), Some(Of::Regex("a+".into()))),
            (json!({"guided_choice": ["a", "b"]}), Some(choices)),
            (json!({"guided_grammar": "root ::= \"a\""}), Some(Of::Gbnf("root ::= \"a\"".into()))),
            (json!({"guided_grammar": "start: \"a\""}), Some(Of::Lark("start: \"a\"".into()))),
            (json!({"grammar": "root ::= \"a\""}), Some(Of::Gbnf("root ::= \"a\"".into()))),
        ] {
            assert_eq!(check(body.clone()), Ok(of), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_of_its_field() {
        for (body, begins) in [
            (json!({"response_format": {"type": "xml"}}), "response_format.type: "),
            (json!({"response_format": {}}), "response_format.type: required"),
            (json!({"response_format": "json"}), "response_format: expected an object"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema: required"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
                "response_format.json_schema.schema: required",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}),
                "response_format.json_schema.schema: expected a JSON schema",
            ),
            (
                json!({"response_format": {"type": "text", "schema": {}}}),
                "response_format.schema: not with type \"text\"",
            ),
            (
                json!({"response_format": {"type": "json_object", "more": 1}}),
                "response_format.more: unknown field",
            ),
            (json!({"structured_outputs": {}}), "structured_outputs: expected one of"),
            (
                json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}),
                "structured_outputs.choice: regex constrains",
            ),
            (
                json!({"structured_outputs": {"structural_tag": "x"}}),
                "structured_outputs.structural_tag: unknown field",
            ),
            (json!({"guided_choice": []}), "guided_choice: must not be empty"),
            (json!({"guided_choice": ["a", 1]}), "guided_choice[1]: expected a string"),
            (
                json!({"guided_regex": "a", "grammar": "b"}),
                "grammar: guided_regex constrains the answer already",
            ),
            (json!({"json_schema": [1]}), "json_schema: expected a JSON schema"),
        ] {
            let error = check(body.clone()).unwrap_err();
            assert!(error.starts_with(begins), "{body}: {error}");
        }
    }
}
