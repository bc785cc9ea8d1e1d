//! Fuzzing entry points: the request parsers, on bytes alone. They panic if an invariant is violated. No
//! program calls them.

use axum::http::HeaderMap;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{
    Config, body,
    fields::Fields,
    json::Json,
    openai::plan,
    request_id::RequestId,
    responses,
    scores::tasks,
    tei::words,
    tokens,
    vectors::{self, json::VectorFormat},
};

/// Parses a body as every route does.
pub fn body(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    same_as_the_other_parser(text);
    let config = Config::default();
    let id = RequestId::of(&HeaderMap::new());
    for lenient in [false, true] {
        let Ok(body) = body::parse(text) else { return };
        let Ok(fields) = Fields::of_body(body, lenient) else { return };
        let again = || fields.clone();
        drop(plan::chat(again(), &config, &id));
        drop(plan::completion(again(), &config, &id));
        drop(responses::read(again(), &config, &id));
        drop(vectors::openai::request(again(), &config));
        drop(tasks::ranking(again(), &config));
        drop(tasks::scoring(again(), &config));
        drop(tasks::classifying(again(), &config));
        for shape in [VectorFormat::Vectors, VectorFormat::TokenVectors, VectorFormat::SparseVectors] {
            drop(words::embedding(again(), &config, &shape));
        }
        drop(words::ranking(again(), &config));
        drop(words::predicting(again(), &config));
        drop(words::similarity(again(), &config));
        drop(tokens::tokenize_request(again()));
        drop(tokens::detokenize_request(again()));
    }
}

/// Checks that both JSON parsers accept the same texts, with the same values.
fn same_as_the_other_parser(text: &str) {
    let value = serde_json::from_str::<Value>(text);
    match Json::parse(text) {
        Ok(json) => {
            // `IgnoredAny` does not check the size of numbers, surrogate pairs or nesting depth.
            assert!(serde_json::from_str::<IgnoredAny>(text).is_ok(), "only ours takes {text:?}");
            let again = json.to_text();
            assert!(Json::parse(&again).is_ok(), "{text:?} became {again:?}");
            if let Ok(value) = value {
                assert_eq!(
                    serde_json::from_str::<Value>(&again).ok(),
                    Some(value),
                    "{text:?} became {again:?}"
                );
            }
        }
        Err(_) => assert!(value.is_err(), "only the other takes {text:?}"),
    }
}
