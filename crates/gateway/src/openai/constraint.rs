//! Constraints on the answer: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`,
//! llama.cpp's `grammar` and `json_schema`. A request may have one of them. The engine checks whether it can be
//! enforced.

use hanzo_engine_proto::v1::{self, constraint::Of};

use crate::{
    declare::{Raw, Read, Words, fields},
    error::ApiError,
    fields::Field,
    unsupported::{SCHEMA_LABELS, STRUCTURED_OUTPUTS},
};

fields! {
    /// Constraints on the answer. A request may have one of them.
    pub(crate) struct ConstraintFields<'a> {
        /// Format of the answer.
        response_format?: ResponseFormat<'a>,
        /// vLLM's constraint on the answer.
        structured_outputs?: StructuredOutputs,
        /// JSON schema that the answer satisfies.
        guided_json?: Of = Read(SCHEMA, schema),
        /// Regular expression that the answer matches.
        guided_regex?: String,
        /// Texts from which the answer is chosen.
        guided_choice?: Of = Read("string[1..]", choices),
        /// Grammar that the answer follows.
        guided_grammar?: String,
        /// llama.cpp's name: a grammar in GBNF.
        grammar?: String,
        /// llama.cpp's name of guided_json.
        json_schema?: Of = Read(SCHEMA, schema),
    }
}

fields! {
    /// OpenAI's format of an answer.
    pub(crate) struct ResponseFormat<'a> {
        /// Kind of format.
        r#type: &'static str = Words(["text", "json_object", "json_schema"]),
        /// Schema of type json_schema.
        json_schema?: NamedSchema<'a>,
        /// Place of the schema at llama.cpp.
        schema?: Field<'a> = Raw(SCHEMA),
    }
}

fields! {
    /// Schema with a name.
    pub(crate) struct NamedSchema<'a> inert [&SCHEMA_LABELS] {
        /// JSON schema that the answer satisfies.
        schema: Field<'a> = Raw(SCHEMA),
    }
}

fields! {
    /// vLLM's constraint: one of these fields, and how it is implemented.
    pub(crate) struct StructuredOutputs inert [&STRUCTURED_OUTPUTS] {
        /// JSON schema that the answer satisfies.
        json?: Of = Read(SCHEMA, schema),
        /// Regular expression that the answer matches.
        regex?: String,
        /// Texts from which the answer is chosen.
        choice?: Of = Read("string[1..]", choices),
        /// Grammar that the answer follows.
        grammar?: String,
        /// Any JSON object.
        json_object: bool,
    }
}

const SCHEMA: &str = "object | boolean | string";

impl ConstraintFields<'_> {
    /// The only constraint of a request. Empty ones count as none.
    pub(crate) fn constraint(self) -> Result<Option<v1::Constraint>, ApiError> {
        let gbnf = self.grammar.filter(|text| !text.is_empty()).map(Of::Gbnf);
        let of = only([
            ("response_format", self.response_format.map(ResponseFormat::constraint).transpose()?.flatten()),
            ("structured_outputs", self.structured_outputs.map(StructuredOutputs::constraint).transpose()?),
            ("guided_json", self.guided_json),
            ("guided_regex", self.guided_regex.map(Of::Regex)),
            ("guided_choice", self.guided_choice),
            ("guided_grammar", self.guided_grammar.map(grammar)),
            ("grammar", gbnf),
            ("json_schema", self.json_schema),
        ])?;
        Ok(of.map(|of| v1::Constraint { of: Some(of) }))
    }
}

/// Constraint that is given, with the paths of the possible ones. A second one is an error.
fn only<const N: usize>(constraints: [(&str, Option<Of>); N]) -> Result<Option<Of>, ApiError> {
    let mut found: Option<(&str, Of)> = None;
    for (path, of) in constraints {
        let Some(of) = of else { continue };
        if let Some((other, _)) = found {
            let other = other.rsplit('.').next().unwrap_or(other);
            let problem = format!("{other} constrains the answer already; send one of them");
            return Err(ApiError::field(path, problem));
        }
        found = Some((path, of));
    }
    Ok(found.map(|(_, of)| of))
}

impl ResponseFormat<'_> {
    fn constraint(self) -> Result<Option<Of>, ApiError> {
        match (self.r#type, self.schema, self.json_schema) {
            ("text", None, None) => Ok(None),
            ("json_object", None, None) => Ok(Some(Of::JsonObject(true))),
            ("json_object" | "json_schema", Some(beside), None) => schema(beside).map(Some),
            ("json_schema", None, Some(named)) => schema(named.schema).map(Some),
            ("json_schema", None, None) => Err(ApiError::field("response_format.json_schema", "required")),
            (kind, beside, _) => {
                let extra = if beside.is_some() { "schema" } else { "json_schema" };
                let problem = format!("not with type {kind:?}, or not beside the other schema");
                Err(ApiError::field(&format!("response_format.{extra}"), problem))
            }
        }
    }
}

impl StructuredOutputs {
    fn constraint(self) -> Result<Of, ApiError> {
        let of = only([
            ("structured_outputs.json", self.json),
            ("structured_outputs.regex", self.regex.map(Of::Regex)),
            ("structured_outputs.choice", self.choice),
            ("structured_outputs.grammar", self.grammar.map(grammar)),
            ("structured_outputs.json_object", self.json_object.then_some(Of::JsonObject(true))),
        ])?;
        let expected = "expected one of json, regex, choice, grammar, json_object";
        of.ok_or_else(|| ApiError::field("structured_outputs", expected))
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
    use crate::{declare::Declaration as _, fields::fields_of};

    fn check(body: Value) -> Result<Option<Of>, String> {
        let mut fields = fields_of(&body, false);
        let read = ConstraintFields::read(&mut fields)
            .and_then(ConstraintFields::constraint)
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
