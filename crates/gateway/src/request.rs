//! Fields that the requests of all APIs share: the model, the priority, texts and lists of texts, truncation of
//! inputs, and fields with two names. Fields of a single API are read in its folder.

use std::borrow::Cow;

use hanzo_engine_proto::v1::{self, TruncateSide};

use crate::{
    declare::{Integer, Raw, Read, Words, fields},
    error::{ApiError, quote},
    fields::{ElementList, Field, Fields},
    limits::{KEEP_ALIVE_BYTES_MAX, MODEL_NAME_BYTES_MAX},
};

/// Reads the model's name. Empty if absent, which the engine accepts while it has one model.
pub(crate) fn model(fields: &mut Fields) -> Result<String, ApiError> {
    Ok(fields.take("model").map(model_name).transpose()?.unwrap_or_default())
}

/// Reads the name of a model.
pub(crate) fn model_name(field: Field) -> Result<String, ApiError> {
    let name = field.string()?;
    match name.len() {
        0 => Err(field.error("must not be empty")),
        n if n > MODEL_NAME_BYTES_MAX => {
            Err(field.error(format!("is over {MODEL_NAME_BYTES_MAX} bytes long")))
        }
        _ => Ok(name),
    }
}

/// Reads how long a model that is loaded for this request stays afterwards.
pub(crate) fn keep_alive(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    fields.take("keep_alive").map(stay).transpose()
}

/// Reads how long a model stays, in Ollama's format: a number of seconds, or a text such as `5m`. The engine
/// checks the value.
pub(crate) fn stay(field: Field) -> Result<String, ApiError> {
    let value = field.value();
    let text =
        value.as_str().map(Cow::into_owned).or_else(|| value.as_f64().map(|number| number.to_string()));
    match text {
        Some(text) if text.len() <= KEEP_ALIVE_BYTES_MAX => Ok(text),
        Some(_) => Err(field.error(format!("is over {KEEP_ALIVE_BYTES_MAX} bytes long"))),
        None => Err(field.error("expected a number of seconds, or a time such as \"5m\"")),
    }
}

/// Value of a field that has two names. Only one of them may be sent.
pub(crate) fn one_of<T>(
    (name, first): (&str, Option<T>),
    (other, second): (&str, Option<T>),
) -> Result<Option<T>, ApiError> {
    match (first, second) {
        (Some(_), Some(_)) => {
            Err(ApiError::field(other, format!("means the same as {name}; send one of them")))
        }
        (first, second) => Ok(first.or(second)),
    }
}

/// Kind of a text that is not empty.
pub(crate) const FILLED: Read<fn(Field<'_>) -> Result<String, ApiError>> = Read("string 1..", filled);

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

fields! {
    /// Truncation of inputs, in the words of TEI, Cohere and vLLM.
    pub(crate) struct TruncationFields<'a> {
        /// Whether inputs that are too long are cut, or Cohere's name of the end that is discarded.
        truncate?: Field<'a> = Raw("boolean | \"NONE\" | \"START\" | \"END\""),
        /// End at which inputs are cut.
        truncation_direction?: &'static str = SIDE,
        /// vLLM's name of truncation_direction.
        truncation_side?: &'static str = SIDE,
        /// vLLM's setting: -1 cuts at the model's limit.
        truncate_prompt_tokens?: Field<'a> = Raw("-1"),
    }
}

const SIDE: Words<4> = Words(["left", "right", "Left", "Right"]);

fields! {
    /// Place of a request in the queue, and of its model in memory.
    pub(crate) struct QueueFields {
        /// Priority in the queue; lower runs earlier.
        priority?: i32 = Integer(i32::MIN..=i32::MAX),
        /// Time that a model which was loaded for this stays: seconds, or a text such as 5m.
        keep_alive?: String = Read("string | number", stay),
    }
}

fields! {
    /// Fields that reranking, scoring and classification share.
    pub(crate) struct ScoringFields<'a> {
        ..truncation: TruncationFields<'a>,
        ..queue: QueueFields,
        /// Name of the model; the only one that can if absent.
        model?: String = Read("string 1..512", model_name),
        /// Whether scores are logits in place of probabilities.
        raw_scores?: bool,
    }
}

impl TruncationFields<'_> {
    /// Truncation in one. vLLM's `truncate_prompt_tokens` is accepted if it means the model's limit.
    pub(crate) fn truncation(&self) -> Result<Truncation, ApiError> {
        let mut truncation = Truncation::default();
        if let Some(field) = self.truncate {
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
        }
        for (name, side) in
            [("truncation_direction", self.truncation_direction), ("truncation_side", self.truncation_side)]
        {
            let side = match side {
                None => continue,
                Some("left" | "Left") => TruncateSide::Left,
                Some(_) => TruncateSide::Right,
            };
            if truncation.side != TruncateSide::Unspecified && truncation.side != side {
                return Err(ApiError::field(name, "says another side than truncate"));
            }
            truncation.side = side;
        }
        if let Some(field) = self.truncate_prompt_tokens {
            if field.value().as_i64() != Some(-1) {
                let problem = "not supported by this build; the only value it accepts is -1, which cuts at what the model takes";
                return Err(ApiError::unsupported("truncate_prompt_tokens", problem));
            }
            if self.truncate.is_some() && !truncation.truncate {
                return Err(field.error("says another thing than truncate"));
            }
            truncation.truncate = true;
        }
        Ok(truncation)
    }
}

impl ScoringFields<'_> {
    /// Reranking request without texts.
    pub(crate) fn rerank(self) -> Result<v1::RerankRequest, ApiError> {
        let truncation = self.truncation.truncation()?;
        Ok(v1::RerankRequest {
            model: self.model.unwrap_or_default(),
            raw_scores: self.raw_scores.unwrap_or(false),
            truncate: truncation.truncate,
            truncate_side: truncation.side.into(),
            priority: self.queue.priority.unwrap_or(0),
            keep_alive: self.queue.keep_alive,
            ..v1::RerankRequest::default()
        })
    }

    /// Classification request without texts.
    pub(crate) fn classify(self) -> Result<v1::ClassifyRequest, ApiError> {
        let truncation = self.truncation.truncation()?;
        Ok(v1::ClassifyRequest {
            model: self.model.unwrap_or_default(),
            raw_scores: self.raw_scores.unwrap_or(false),
            truncate: truncation.truncate,
            truncate_side: truncation.side.into(),
            priority: self.queue.priority.unwrap_or(0),
            keep_alive: self.queue.keep_alive,
            ..v1::ClassifyRequest::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::TruncateSide;
    use serde_json::{Value, json};

    use super::{Truncation, TruncationFields, keep_alive};
    use crate::{declare::Declaration as _, fields::fields_of};

    fn check(body: Value) -> Result<Truncation, String> {
        TruncationFields::read(&mut fields_of(&body, false))
            .and_then(|fields| fields.truncation())
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
