//! `generation_config.json`: the makers' sampling settings. Supported ones become defaults of requests; unsupported
//! ones are reported by name.

use serde_json::Value;

use super::GenerationDefaults;
use crate::error::{LoadError, shorten};
use crate::limits::{LOGIT_BIAS_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, VOCAB_MAX};
use crate::spec::Config;

/// Added to the logit of a token that must never be drawn.
const NEVER: f32 = -100.0;

/// Settings of transformers' `GenerationConfig` that would change an answer and have no default of requests. It
/// excludes those of beams, of encoder-decoders and of speculative decoding, and those about caches.
const NOT_READ: [&str; 17] = [
    "begin_suppress_tokens",
    "constraints",
    "dola_layers",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "max_length",
    "max_time",
    "min_length",
    "no_repeat_ngram_size",
    "num_beams",
    "penalty_alpha",
    "top_h",
];

/// Reads the defaults.
///
/// # Errors
/// `Corrupt` for a setting of the wrong type or that makes no sense.
pub(super) fn defaults(config: &Config) -> Result<GenerationDefaults, LoadError> {
    let whole = |key| Ok::<_, LoadError>(config.whole(key, u32::MAX as usize)?.map(|number| number as u32));
    Ok(GenerationDefaults {
        do_sample: config.bool("do_sample")?,
        temperature: config.f32("temperature")?,
        top_k: whole("top_k")?,
        top_p: config.f32("top_p")?,
        min_p: config.f32("min_p")?,
        typical_p: config.f32("typical_p")?,
        repetition_penalty: config.f32("repetition_penalty")?,
        max_new_tokens: whole("max_new_tokens")?,
        min_new_tokens: whole("min_new_tokens")?,
        logit_bias: logit_bias(config)?,
        stop: stop_strings(config)?,
        ..GenerationDefaults::default()
    })
}

/// Settings of a file that are not supported, each with its value.
pub(crate) fn not_read(config: &Config) -> Vec<String> {
    // The library's defaults.
    let is_neutral = |key: &str, value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => {
            let number = number.as_f64();
            number == Some(0.0) || number == Some(1.0) || (key == "max_length" && number == Some(20.0))
        }
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let said = NOT_READ.into_iter().filter_map(|key| Some((key, config.get(key)?)));
    let mut not_read: Vec<String> = said
        .filter(|(key, value)| !is_neutral(key, value))
        .map(|(key, value)| format!("{key} = {}", shorten(value.to_string())))
        .collect();
    for key in ["bad_words_ids", "sequence_bias"] {
        let several = |entry: &&Value| tokens_of(entry).is_some_and(|tokens| tokens.len() > 1);
        let count =
            config.get(key).and_then(Value::as_array).map_or(0, |list| list.iter().filter(several).count());
        if count > 0 {
            not_read.push(format!("{key} of several tokens ({count})"));
        }
    }
    not_read
}

/// Tokens of an entry of `bad_words_ids`, or of `sequence_bias`, which has a bias after them.
fn tokens_of(entry: &Value) -> Option<&Vec<Value>> {
    let list = entry.as_array()?;
    list.first().and_then(Value::as_array).or(Some(list))
}

/// `suppress_tokens`, and the single tokens of `bad_words_ids` and `sequence_bias`.
fn logit_bias(config: &Config) -> Result<Vec<(u32, f32)>, LoadError> {
    let token = |key: &str, value: &Value| {
        let token = value.as_u64().and_then(|token| u32::try_from(token).ok());
        token
            .filter(|&token| (token as usize) < VOCAB_MAX)
            .ok_or_else(|| config.corrupt(key, format!("{} is not a token", shorten(value.to_string()))))
    };
    let mut all = Vec::new();
    for value in config.typed("suppress_tokens", "a list", Value::as_array)?.into_iter().flatten() {
        all.push((token("suppress_tokens", value)?, NEVER));
    }
    for key in ["bad_words_ids", "sequence_bias"] {
        for entry in config.typed(key, "a list", Value::as_array)?.into_iter().flatten() {
            let Some(tokens) = tokens_of(entry) else {
                return Err(config.corrupt(key, format!("{} are no tokens", shorten(entry.to_string()))));
            };
            let [only] = tokens.as_slice() else { continue };
            let bias = match key {
                "bad_words_ids" => NEVER,
                _ => {
                    let bias = entry.get(1).and_then(Value::as_f64).map(|bias| bias as f32);
                    bias.filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(|| {
                        let reason =
                            format!("{} is no token and a number of -100 to 100", shorten(entry.to_string()));
                        config.corrupt(key, reason)
                    })?
                }
            };
            all.push((token(key, only)?, bias));
        }
    }
    match all.len() {
        0..=LOGIT_BIAS_MAX => Ok(all),
        count => Err(config
            .corrupt("suppress_tokens", format!("{count} tokens; at most {LOGIT_BIAS_MAX} are allowed"))),
    }
}

/// Texts that end a completion: a single one, or a list.
fn stop_strings(config: &Config) -> Result<Vec<String>, LoadError> {
    const KEY: &str = "stop_strings";
    let texts: Option<Vec<String>> = match config.get(KEY) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => Some(vec![text.clone()]),
        Some(Value::Array(list)) => list.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        Some(_) => None,
    };
    let fits = |text: &String| (1..=STOP_STRING_BYTES_MAX).contains(&text.len());
    texts.filter(|texts| texts.len() <= STOP_STRINGS_MAX && texts.iter().all(fits)).ok_or_else(|| {
        let reason = format!(
            "expected a text or a list of up to {STOP_STRINGS_MAX}, each of 1 to {STOP_STRING_BYTES_MAX} bytes"
        );
        config.corrupt(KEY, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(settings: Value) -> Config {
        Config::new("generation_config.json", settings.as_object().unwrap().clone())
    }

    #[test]
    fn what_can_be_done_is_a_default() {
        let read = defaults(&config(json!({
            "min_new_tokens": 3, "max_new_tokens": 9, "suppress_tokens": [7, 8], "bad_words_ids": [[5], [1, 2]],
            "sequence_bias": [[[4], -2.5], [[1, 2], 3.0]], "typical_p": 0.9,
        })));
        let expected = GenerationDefaults {
            min_new_tokens: Some(3),
            max_new_tokens: Some(9),
            logit_bias: vec![(7, NEVER), (8, NEVER), (5, NEVER), (4, -2.5)],
            typical_p: Some(0.9),
            ..GenerationDefaults::default()
        };
        assert_eq!(read.unwrap(), expected);
        for (key, wrong) in [
            ("min_new_tokens", json!(-1)),
            ("suppress_tokens", json!(5)),
            ("suppress_tokens", json!(["a"])),
            ("suppress_tokens", json!([-1])),
            ("suppress_tokens", json!(vec![1; LOGIT_BIAS_MAX + 1])),
            ("bad_words_ids", json!([5])),
            ("sequence_bias", json!([[[4], 200.0]])),
            ("sequence_bias", json!([[[4]]])),
        ] {
            let error = defaults(&config(json!({key: wrong.clone()}))).unwrap_err().to_string();
            assert!(error.contains(&format!("generation_config.json: key {key}")), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        let neutral = json!({"num_beams": 1, "max_length": 20, "no_repeat_ngram_size": 0, "guidance_scale": null,
                             "forced_eos_token_id": null, "temperature": 0.5, "eos_token_id": [1, 2], "use_cache": true,
                             "bad_words_ids": [[5]]});
        assert_eq!(not_read(&config(neutral)), [""; 0]);
        let said = json!({"num_beams": 4, "no_repeat_ngram_size": 3, "max_length": 4096,
                          "bad_words_ids": [[5], [1, 2]]});
        let expected = [
            "max_length = 4096",
            "no_repeat_ngram_size = 3",
            "num_beams = 4",
            "bad_words_ids of several tokens (1)",
        ];
        assert_eq!(not_read(&config(said)), expected);
    }
}
