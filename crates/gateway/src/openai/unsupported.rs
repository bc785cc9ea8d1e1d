//! Request fields that are known but do nothing here: those this build cannot honour, which are refused unless
//! they ask for nothing, and those that are harmless to ignore.

use crate::{error::ApiError, fields::Fields, json::Json};

/// The values of an unsupported field that ask for nothing.
enum Neutral {
    None,
    EmptyList,
    EmptyText,
    Boolean, // either: it only qualifies another field that is refused itself
    False,
    Number(f64),
    Word(&'static str),
    TextType, // {"type": "text"}
    JustText, // ["text"]
}

/// Of chats and completions.
const COMMON: [(&str, Neutral); 20] = [
    ("structured_outputs", Neutral::None),
    ("guided_json", Neutral::None),
    ("guided_regex", Neutral::None),
    ("guided_choice", Neutral::None),
    ("guided_grammar", Neutral::None),
    ("grammar", Neutral::EmptyText),
    ("json_schema", Neutral::None),
    ("prompt_logprobs", Neutral::None),
    ("truncate_prompt_tokens", Neutral::None),
    ("cache_salt", Neutral::None),
    ("keep_alive", Neutral::None),
    ("typical_p", Neutral::Number(1.0)),
    ("dry_multiplier", Neutral::Number(0.0)),
    ("dry_base", Neutral::None),
    ("dry_allowed_length", Neutral::None),
    ("dry_sequence_breakers", Neutral::None),
    ("use_beam_search", Neutral::False),
    ("length_penalty", Neutral::Number(1.0)),
    ("skip_special_tokens", Neutral::None),
    ("response_format", Neutral::TextType),
];

const CHAT: [(&str, Neutral); 10] = [
    ("tools", Neutral::EmptyList),
    ("tool_choice", Neutral::Word("none")),
    ("parallel_tool_calls", Neutral::Boolean),
    ("functions", Neutral::EmptyList),
    ("function_call", Neutral::Word("none")),
    ("modalities", Neutral::JustText),
    ("audio", Neutral::None),
    ("prediction", Neutral::None),
    ("web_search_options", Neutral::None),
    ("verbosity", Neutral::Word("medium")),
];

const COMPLETION: [(&str, Neutral); 1] = [("suffix", Neutral::EmptyText)];

const EMBEDDING: [(&str, Neutral); 7] = [
    ("messages", Neutral::None),
    ("modality", Neutral::Word("text")),
    ("late_chunking", Neutral::False),
    ("embed_dtype", Neutral::Word("float32")),
    ("endianness", Neutral::Word("little")),
    ("cache_salt", Neutral::None),
    ("mm_processor_kwargs", Neutral::None),
];

/// Of what ranks, scores and classifies.
const SCORES: [(&str, Neutral); 6] = [
    ("max_tokens_per_doc", Neutral::None),
    ("max_tokens_per_query", Neutral::None),
    ("max_chunks_per_doc", Neutral::None),
    ("rank_fields", Neutral::None),
    ("cache_salt", Neutral::None),
    ("mm_processor_kwargs", Neutral::None),
];

type IsType = fn(Json<'_>) -> bool;

/// Fields that change nothing in the answer, and the JSON type they must have.
const HARMLESS: [(&str, IsType, &str); 7] = [
    ("user", |json| json.is_string(), "a string"),
    ("metadata", |json| json.is_object(), "an object"),
    ("store", |json| json.is_boolean(), "a boolean"),
    ("service_tier", |json| json.is_string(), "a string"),
    ("safety_identifier", |json| json.is_string(), "a string"),
    ("prompt_cache_key", |json| json.is_string(), "a string"),
    ("prompt_cache_retention", |json| json.is_string(), "a string"),
];

/// Takes a chat's unsupported and harmless fields out of `fields`.
pub(crate) fn chat(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, COMMON.iter().chain(&CHAT))
}

/// Takes a completion's unsupported and harmless fields out of `fields`.
pub(crate) fn completion(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, COMMON.iter().chain(&COMPLETION))
}

/// Takes an embedding request's unsupported and harmless fields out of `fields`.
pub(crate) fn embedding(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, EMBEDDING.iter())
}

/// Takes the unsupported and harmless fields of a request for scores out of `fields`.
pub(crate) fn scores(fields: &mut Fields) -> Result<(), ApiError> {
    refuse(fields, SCORES.iter())
}

fn refuse<'a>(
    fields: &mut Fields,
    table: impl Iterator<Item = &'a (&'static str, Neutral)>,
) -> Result<(), ApiError> {
    for (name, neutral) in table {
        if let Some(field) = fields.take(name)
            && !neutral.is(field.value())
        {
            return Err(ApiError::unsupported(name, neutral.problem()));
        }
    }
    for (name, is_expected, expected) in HARMLESS {
        if let Some(field) = fields.take(name)
            && !is_expected(field.value())
        {
            return Err(field.error(format!("expected {expected}")));
        }
    }
    Ok(())
}

impl Neutral {
    fn is(&self, value: Json<'_>) -> bool {
        let word = |value: Json<'_>, word: &str| value.as_str().is_some_and(|text| text == word);
        match self {
            Neutral::None => false,
            Neutral::EmptyList => value.elements().is_some_and(|list| list.count() == 0),
            Neutral::EmptyText => word(value, ""),
            Neutral::Boolean => value.is_boolean(),
            Neutral::False => value.as_bool() == Some(false),
            Neutral::Number(number) => value.as_f64() == Some(*number),
            Neutral::Word(only) => word(value, only),
            Neutral::TextType => value.members().is_some_and(|all| {
                let mut all = all.take(2).map(|(name, value)| name == "type" && word(value, "text"));
                all.next() == Some(true) && all.next().is_none()
            }),
            Neutral::JustText => value.elements().is_some_and(|all| {
                let mut all = all.take(2).map(|value| word(value, "text"));
                all.next() == Some(true) && all.next().is_none()
            }),
        }
    }

    fn problem(&self) -> String {
        let only = match self {
            Neutral::None => return "not supported by this build".to_owned(),
            Neutral::EmptyList => "an empty array".to_owned(),
            Neutral::EmptyText => "an empty string".to_owned(),
            Neutral::Boolean => "a boolean".to_owned(),
            Neutral::False => "false".to_owned(),
            Neutral::Number(number) => number.to_string(),
            Neutral::Word(word) => format!("\"{word}\""),
            Neutral::TextType => "{\"type\": \"text\"}".to_owned(),
            Neutral::JustText => "[\"text\"]".to_owned(),
        };
        format!("not supported by this build; the only value it accepts is {only}")
    }
}
