//! Fields that the requests of all APIs share: the model, the priority, texts and lists of texts, truncation of
//! inputs, and fields with two names. Fields of a single API are read in its folder.

use std::borrow::Cow;

use hanzo_engine_proto::v1::{self, TruncateSide};

use crate::{
    error::{ApiError, quote},
    fields::{ElementList, Field, Fields},
    limits::{KEEP_ALIVE_BYTES_MAX, MODEL_NAME_BYTES_MAX},
};

/// Reads the model's name. Empty if absent, which the engine accepts while it has one model.
pub(crate) fn model(fields: &mut Fields) -> Result<String, ApiError> {
    let Some(field) = fields.take("model") else { return Ok(String::new()) };
    let name = field.string()?;
    match name.len() {
        0 => Err(field.error("must not be empty")),
        n if n > MODEL_NAME_BYTES_MAX => {
            Err(field.error(format!("is over {MODEL_NAME_BYTES_MAX} bytes long")))
        }
        _ => Ok(name),
    }
}

/// Reads the priority; lower runs earlier. 0 if absent.
pub(crate) fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    Ok(fields.take("priority").map(|f| f.integer(i32::MIN..=i32::MAX)).transpose()?.unwrap_or(0))
}

/// Reads how long a model that is loaded for this request stays afterwards, in Ollama's format: a number of
/// seconds, or a text such as `5m`. The engine checks the value.
pub(crate) fn keep_alive(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(field) = fields.take("keep_alive") else { return Ok(None) };
    let value = field.value();
    let text =
        value.as_str().map(Cow::into_owned).or_else(|| value.as_f64().map(|number| number.to_string()));
    match text {
        Some(text) if text.len() <= KEEP_ALIVE_BYTES_MAX => Ok(Some(text)),
        Some(_) => Err(field.error(format!("is over {KEEP_ALIVE_BYTES_MAX} bytes long"))),
        None => Err(field.error("expected a number of seconds, or a time such as \"5m\"")),
    }
}

/// Reads a field that has two names. Only one of them may be sent.
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

/// Reads a non-empty string.
pub(crate) fn filled(field: Field) -> Result<String, ApiError> {
    let text = field.string()?;
    if text.is_empty() { Err(ApiError::empty(&field.path())) } else { Ok(text) }
}

/// Reads a list of 1 to `max` elements.
pub(crate) fn elements(field: Field<'_>, max: usize) -> Result<ElementList<'_>, ApiError> {
    let list = field.list()?;
    match list.clone().count() {
        0 => Err(ApiError::empty(&field.path())),
        count => at_most(field, count, max).map(|()| list),
    }
}

/// Refuses a list whose `count` of elements exceeds `max`.
pub(crate) fn at_most(field: Field, count: usize, max: usize) -> Result<(), ApiError> {
    if count > max {
        return Err(
            field.error(format!("has {count} elements, at most {max} (the server's embedding_inputs_max)"))
        );
    }
    Ok(())
}

/// Truncation of inputs that are too long.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Truncation {
    pub(crate) truncate: bool,
    pub(crate) side: TruncateSide,
}

/// Reads the truncation fields. `truncate` is TEI's boolean, or Cohere's name of the end to discard. The side
/// has the names of TEI and vLLM. vLLM's `truncate_prompt_tokens` is accepted if it means the model's limit.
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

/// Reads the reranking fields that all APIs share.
pub(crate) fn rerank_options(fields: &mut Fields) -> Result<v1::RerankRequest, ApiError> {
    let truncation = truncation(fields)?;
    Ok(v1::RerankRequest {
        raw_scores: fields.flag("raw_scores")?,
        truncate: truncation.truncate,
        truncate_side: truncation.side.into(),
        priority: priority(fields)?,
        keep_alive: keep_alive(fields)?,
        ..v1::RerankRequest::default()
    })
}

/// Reads the classification fields that all APIs share.
pub(crate) fn classify_options(fields: &mut Fields) -> Result<v1::ClassifyRequest, ApiError> {
    let truncation = truncation(fields)?;
    Ok(v1::ClassifyRequest {
        raw_scores: fields.flag("raw_scores")?,
        truncate: truncation.truncate,
        truncate_side: truncation.side.into(),
        priority: priority(fields)?,
        keep_alive: keep_alive(fields)?,
        ..v1::ClassifyRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::TruncateSide;
    use serde_json::{Value, json};

    use super::{Truncation, keep_alive, truncation};
    use crate::fields::fields_of;

    fn check(body: Value) -> Result<Truncation, String> {
        truncation(&mut fields_of(&body, false))
            .map_err(|e| e.json()["error"]["param"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_time_to_stay_is_a_number_or_a_text() {
        let check = |body: Value| keep_alive(&mut fields_of(&body, false)).map_err(|error| error.json());
        for (body, read) in [
            (json!({}), None),
            (json!({"keep_alive": 300}), Some("300")),
            (json!({"keep_alive": -1}), Some("-1")),
            (json!({"keep_alive": 0}), Some("0")),
            (json!({"keep_alive": 1.5}), Some("1.5")),
            (json!({"keep_alive": "5m"}), Some("5m")),
        ] {
            assert_eq!(check(body.clone()).unwrap().as_deref(), read, "{body}");
        }
        for value in [json!(true), json!(["5m"]), json!({}), json!("9".repeat(1000))] {
            let error = check(json!({ "keep_alive": value })).unwrap_err();
            assert_eq!(error["error"]["param"], "keep_alive");
        }
    }

    #[test]
    fn truncation_in_everyones_words() {
        let is = |truncate, side| Ok(Truncation { truncate, side });
        let unsaid = TruncateSide::Unspecified;
        assert_eq!(check(json!({})), is(false, unsaid));
        assert_eq!(check(json!({"truncate": true})), is(true, unsaid));
        // Cohere names the end that is discarded; the contract also names the end that is cut off.
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
