//! Where the words for vectors in JSON and the engine's meet: reading what is to be embedded, and how. What the engine
//! answers is written in `json`.

pub(crate) mod json;

use crate::{
    error::{ApiError, quote},
    fields::{Field, Fields, List},
    names::Sent,
    openai::convert,
};
use hanzo_engine_proto::v1::{self, TruncateSide, embed_input::Input};

/// What to embed, in the order of the request.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) inputs: Vec<v1::EmbedInput>,
    /// It came alone, not in a list.
    pub(crate) single: bool,
}

const EXPECTED: &str = "expected a string, an array of strings, an array of token ids or an array of those";

/// A text, token ids, or a list of either with at most `inputs_max` elements, none of them empty.
pub(crate) fn inputs(field: Field, inputs_max: usize) -> Result<Inputs, ApiError> {
    let tokens = |ids| v1::EmbedInput { input: Some(Input::Tokens(v1::TokenIds { ids })) };
    let single = |input| Inputs { inputs: vec![input], single: true };
    let Some(list) = field.as_list() else {
        if !field.value().is_string() {
            return Err(field.error(EXPECTED));
        }
        return Ok(single(text(field)?));
    };
    let Some(first) = list.clone().next() else { return Err(ApiError::empty(&field.path())) };
    let strings = first.value().is_string();
    if first.value().is_number() {
        return Ok(single(tokens(field.token_ids()?)));
    }
    if !strings && !first.value().is_array() {
        return Err(field.error(EXPECTED));
    }
    at_most(field, list.clone().count(), inputs_max)?;
    let mixed = |field: Field, other: &str| {
        Err(field.error(format!("cannot be mixed: {} is {other}, and this is not", first.path())))
    };
    let input = |field: Field| match (strings, field.value()) {
        (true, value) if value.is_string() => text(field),
        (true, _) => mixed(field, "a string"),
        (false, value) if value.is_array() => match field.token_ids()? {
            ids if ids.is_empty() => Err(ApiError::empty(&field.path())),
            ids => Ok(tokens(ids)),
        },
        (false, _) => mixed(field, "an array of token ids"),
    };
    Ok(Inputs { inputs: list.map(input).collect::<Result<_, _>>()?, single: false })
}

fn text(field: Field) -> Result<v1::EmbedInput, ApiError> {
    Ok(text_input(filled(field)?))
}

/// A text as the engine takes it.
pub(crate) fn text_input(text: String) -> v1::EmbedInput {
    v1::EmbedInput { input: Some(Input::Text(text)) }
}

/// A string with something in it.
pub(crate) fn filled(field: Field) -> Result<String, ApiError> {
    let text = field.string()?;
    if text.is_empty() { Err(ApiError::empty(&field.path())) } else { Ok(text) }
}

/// The elements of a list that has at least one and at most `max`.
pub(crate) fn elements(field: Field<'_>, max: usize) -> Result<List<'_>, ApiError> {
    let list = field.list()?;
    match list.clone().count() {
        0 => Err(ApiError::empty(&field.path())),
        count => at_most(field, count, max).map(|()| list),
    }
}

fn at_most(field: Field, count: usize, max: usize) -> Result<(), ApiError> {
    if count > max {
        return Err(
            field.error(format!("has {count} elements, at most {max} (the server's embedding_inputs_max)"))
        );
    }
    Ok(())
}

/// What becomes of an input that is too long.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Truncation {
    pub(crate) truncate: bool,
    pub(crate) side: TruncateSide,
}

/// `truncate` as TEI has it (a boolean) and as Cohere has it (which end is discarded), the side as TEI and vLLM
/// name it, and vLLM's `truncate_prompt_tokens` where it asks for what the model takes.
pub(crate) fn truncation(fields: &mut Fields) -> Result<Truncation, ApiError> {
    let mut truncation = Truncation::default();
    let mut set = false;
    if let Some(field) = fields.take("truncate") {
        match (field.value().as_bool(), field.value().as_str()) {
            (Some(truncate), _) => truncation.truncate = truncate,
            (_, Some(word)) => {
                (truncation.truncate, truncation.side) = match word.to_ascii_uppercase().as_str() {
                    "NONE" => (false, TruncateSide::Unspecified),
                    "START" => (true, TruncateSide::Left),
                    "END" => (true, TruncateSide::Right),
                    _ => {
                        let expected = "expected a boolean or one of NONE, START, END, got ";
                        return Err(field.error(format!("{expected}{}", quote(&word))));
                    }
                };
            }
            _ => return Err(field.error("expected a boolean or one of NONE, START, END")),
        }
        set = true;
    }
    for name in ["truncation_direction", "truncation_side"] {
        let Some(field) = fields.take(name) else { continue };
        let side = match field.word(&["left", "right", "Left", "Right"])? {
            "left" | "Left" => TruncateSide::Left,
            _ => TruncateSide::Right,
        };
        if truncation.side != TruncateSide::Unspecified && truncation.side != side {
            return Err(field.error("says another side than truncate"));
        }
        truncation.side = side;
    }
    if let Some(field) = fields.take("truncate_prompt_tokens") {
        if field.value().as_i64() != Some(-1) {
            let problem = "not supported by this build; the only value it accepts is -1, which cuts at what the model takes";
            return Err(ApiError::unsupported("truncate_prompt_tokens", problem));
        }
        if set && !truncation.truncate {
            return Err(field.error("says another thing than truncate"));
        }
        truncation.truncate = true;
    }
    Ok(truncation)
}

/// The fields of an embedding request that are the same on all surfaces; the inputs, the output and the id are
/// left open.
pub(crate) fn options(fields: &mut Fields) -> Result<v1::EmbedRequest, ApiError> {
    let truncation = truncation(fields)?;
    let dimensions = fields.take("dimensions").map(|f| f.integer(1..=u32::MAX)).transpose()?;
    let normalize = either(fields, "normalize", "normalized")?.map(Field::boolean).transpose()?;
    let normalize = match fields.take("embd_normalize") {
        None => normalize,
        Some(field) => Some(agreeing(field, normalizes(field)?, normalize)?),
    };
    // vLLM's: the activation of a vector is that it gets its length.
    let normalize = match fields.take("use_activation") {
        None => normalize,
        Some(field) => Some(agreeing(field, field.boolean()?, normalize)?),
    };
    // Jina's `task` names a prompt.
    let prompt_name = either(fields, "prompt_name", "task")?.map(filled).transpose()?;
    let instruction = either(fields, "instruction", "task_instruction")?;
    if let (Some(field), true) = (&instruction, prompt_name.is_some()) {
        return Err(field.error("cannot be combined with prompt_name"));
    }
    Ok(v1::EmbedRequest {
        dimensions: dimensions.unwrap_or(0),
        normalize,
        truncate: truncation.truncate,
        truncate_side: truncation.side.into(),
        prompt_name: prompt_name.unwrap_or_default(),
        instruction: instruction.map(filled).transpose()?.unwrap_or_default(),
        packed: true,
        priority: convert::priority(fields)?,
        ..v1::EmbedRequest::default()
    })
}

/// llama.cpp's number for a norm: -1 is none, 2 the Euclidean one.
fn normalizes(field: Field) -> Result<bool, ApiError> {
    match field.value().as_f64() {
        Some(-1.0) => Ok(false),
        Some(2.0) => Ok(true),
        _ => {
            let problem =
                "not supported by this build; the only values it accepts are -1 (none) and 2 (length 1)";
            Err(ApiError::unsupported(&field.path(), problem))
        }
    }
}

/// What a second word for `normalize` says, which must not be another thing.
fn agreeing(field: Field, named: bool, normalize: Option<bool>) -> Result<bool, ApiError> {
    if normalize.is_some_and(|normalize| normalize != named) {
        return Err(field.error("says another thing than normalize"));
    }
    Ok(named)
}

/// A surface's word for a field of `EmbedRequest`, where the inputs are called `input` there, and may be one alone.
pub(crate) fn field_name(engine: &str, input: &str, single: bool, sent: &Sent) -> Option<String> {
    match engine.strip_prefix("inputs") {
        Some(_) if single => Some(input.to_owned()),
        Some(index) => Some(format!("{input}{index}")),
        None if matches!(engine, "text" | "tokens") => Some(input.to_owned()),
        None => sent.name(engine),
    }
}

/// A field that has two names, of which one may be used.
pub(crate) fn either<'a>(
    fields: &mut Fields<'a>,
    name: &str,
    other: &str,
) -> Result<Option<Field<'a>>, ApiError> {
    match (fields.take(name), fields.take(other)) {
        (Some(_), Some(second)) => Err(second.error(format!("means the same as {name}; send one of them"))),
        (first, second) => Ok(first.or(second)),
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::TruncateSide;
    use serde_json::{Value, json};

    use super::{Truncation, truncation};
    use crate::fields::fields_of;

    fn check(body: Value) -> Result<Truncation, String> {
        truncation(&mut fields_of(&body, false))
            .map_err(|e| e.json()["error"]["param"].as_str().unwrap().to_owned())
    }

    #[test]
    fn truncation_in_everyones_words() {
        let is = |truncate, side| Ok(Truncation { truncate, side });
        let unsaid = TruncateSide::Unspecified;
        assert_eq!(check(json!({})), is(false, unsaid));
        assert_eq!(check(json!({"truncate": true})), is(true, unsaid));
        // Cohere says which end is discarded, the contract which end is cut off too.
        assert_eq!(check(json!({"truncate": "START"})), is(true, TruncateSide::Left));
        assert_eq!(check(json!({"truncate": "end"})), is(true, TruncateSide::Right));
        assert_eq!(check(json!({"truncate": "NONE"})), is(false, unsaid));
        assert_eq!(
            check(json!({"truncate": true, "truncation_direction": "Left"})),
            is(true, TruncateSide::Left)
        );
        assert_eq!(check(json!({"truncation_side": "right"})), is(false, TruncateSide::Right));
        assert_eq!(check(json!({"truncate_prompt_tokens": -1})), is(true, unsaid));
        for (body, param) in [
            (json!({"truncate": "MIDDLE"}), "truncate"),
            (json!({"truncate": 1}), "truncate"),
            (json!({"truncate": "START", "truncation_direction": "right"}), "truncation_direction"),
            (json!({"truncation_side": "up"}), "truncation_side"),
            (json!({"truncate_prompt_tokens": 12}), "truncate_prompt_tokens"),
            (json!({"truncate": false, "truncate_prompt_tokens": -1}), "truncate_prompt_tokens"),
        ] {
            assert_eq!(check(body.clone()), Err(param.to_owned()), "{body}");
        }
    }
}
