//! `generation_settings` and `default_generation_settings`: sampling settings in the format of llama.cpp's
//! server.

use hanzo_engine_proto::v1;
use serde_json::{Value, json};

use crate::openai::samplers;

/// Sequence breakers of a request that names none.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Sampling settings of the engine, in llama.cpp's format.
pub(super) fn sampling(sampling: &v1::Sampling) -> Value {
    let breakers = match sampling.dry_sequence_breakers.is_empty() {
        true => json!(DRY_BREAKERS),
        false => json!(sampling.dry_sequence_breakers),
    };
    // At llama.cpp -1 disables it.
    let sigmas = sampling.top_n_sigma.filter(|sigmas| *sigmas > 0.0).unwrap_or(-1.0);
    json!({
        // At llama.cpp this value means a random seed.
        "seed": sampling.seed.unwrap_or(u64::from(u32::MAX)),
        "temperature": decimal(sampling.temperature.unwrap_or(1.0)),
        "dynatemp_range": decimal(sampling.dynatemp_range.unwrap_or(0.0)),
        "dynatemp_exponent": decimal(sampling.dynatemp_exponent.unwrap_or(1.0)),
        "top_k": sampling.top_k.unwrap_or(0),
        "top_p": decimal(sampling.top_p.unwrap_or(1.0)),
        "min_p": decimal(sampling.min_p.unwrap_or(0.0)),
        "top_n_sigma": decimal(sigmas),
        "xtc_probability": decimal(sampling.xtc_probability.unwrap_or(0.0)),
        "xtc_threshold": decimal(sampling.xtc_threshold.unwrap_or(0.1)),
        "typical_p": decimal(sampling.typical_p.unwrap_or(1.0)),
        "repeat_last_n": sampling.repeat_last_n.unwrap_or(-1),
        "repeat_penalty": decimal(sampling.repetition_penalty.unwrap_or(1.0)),
        "presence_penalty": decimal(sampling.presence_penalty.unwrap_or(0.0)),
        "frequency_penalty": decimal(sampling.frequency_penalty.unwrap_or(0.0)),
        "dry_multiplier": decimal(sampling.dry_multiplier.unwrap_or(0.0)),
        "dry_base": decimal(sampling.dry_base.unwrap_or(1.75)),
        "dry_allowed_length": sampling.dry_allowed_length.unwrap_or(2),
        "dry_penalty_last_n": sampling.dry_penalty_last_n.unwrap_or(-1),
        "dry_sequence_breakers": breakers,
        "mirostat": sampling.mirostat.unwrap_or(0),
        "mirostat_tau": decimal(sampling.mirostat_tau.unwrap_or(5.0)),
        "mirostat_eta": decimal(sampling.mirostat_eta.unwrap_or(0.1)),
        "min_keep": 0,
        "samplers": samplers::ORDER,
        "post_sampling_probs": false,
        "timings_per_token": false,
        "lora": [],
    })
}

/// Other settings of a request.
pub(super) fn asked(request: &v1::InferRequest, stream: bool) -> Value {
    let stop = request.stop.clone().unwrap_or_default();
    let predict = stop.max_tokens.filter(|max| *max < u32::MAX).map_or(-1, i64::from);
    let mut bias: Vec<(u32, f32)> =
        request.sampling.iter().flat_map(|s| &s.logit_bias).map(|(id, bias)| (*id, *bias)).collect();
    bias.sort_unstable_by_key(|(id, _)| *id);
    let bias: Vec<Value> =
        bias.into_iter().map(|(token, bias)| json!({"token": token, "bias": decimal(bias)})).collect();
    let grammar = request.constraint.as_ref().and_then(|constraint| match &constraint.of {
        Some(v1::constraint::Of::Gbnf(text)) => Some(text.as_str()),
        _ => None,
    });
    json!({
        "stop": stop.strings,
        "max_tokens": predict,
        "n_predict": predict,
        "n_keep": request.keep_tokens.unwrap_or(0),
        "n_discard": 0,
        "ignore_eos": stop.ignore_eos,
        "stream": stream,
        "logit_bias": bias,
        "n_probs": if request.logprobs { request.top_logprobs } else { 0 },
        "grammar": grammar.unwrap_or_default(),
    })
}

/// Merges two objects.
pub(super) fn together(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            one.extend(other);
            Value::Object(one)
        }
        (one, _) => one,
    }
}

/// f64 with the decimal digits of an f32, because `Value` has f64 only.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
