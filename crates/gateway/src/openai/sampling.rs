//! Sampling settings: OpenAI's fields and those of vLLM and llama.cpp, converted to the contract's names.

use std::{collections::HashMap, ops::Bound};

use hanzo_engine_proto::v1;

use crate::{
    error::{ApiError, quote},
    fields::{Field, Fields},
    limits::{
        DRY_BREAKER_BYTES_MAX, DRY_BREAKERS_MAX, DYNATEMP_EXPONENT_MAX, LOGIT_BIAS_MAX, MIROSTAT_TAU_MAX,
        TOP_N_SIGMA_MAX,
    },
    openai::samplers,
    request::either,
};

/// Default number of last tokens that llama.cpp's `repeat_penalty` considers, without `repeat_last_n`.
const REPEAT_LAST_N: i32 = 64;

/// Reads all sampling fields.
pub(crate) fn read(fields: &mut Fields) -> Result<v1::Sampling, ApiError> {
    let looks_back = fields.take("repeat_last_n").map(last_n).transpose()?;
    let usual = fields.gives("repeat_penalty").then_some(REPEAT_LAST_N);
    let penalty = either(fields, "repetition_penalty", "repeat_penalty")?;
    let above_zero = (Bound::Excluded(0.0), Bound::Unbounded);
    let repetition_penalty = penalty.map(|f| f.number(above_zero)).transpose()?;
    let mut within = |name: &str, low: Bound<f64>, high: f64| {
        let high = if high == f64::INFINITY { Bound::Unbounded } else { Bound::Included(high) };
        fields.take(name).map(|f| f.number((low, high))).transpose()
    };
    // A negative value disables it, as in llama.cpp.
    let top_n_sigma = within("top_n_sigma", Bound::Unbounded, TOP_N_SIGMA_MAX)?;
    let mut number = |name: &str, low: f64, high: f64| within(name, Bound::Included(low), high);
    // 0 keeps only the most likely token, as on other servers.
    let least = |p: f32| p.max(f32::MIN_POSITIVE);
    let mut sampling = v1::Sampling {
        temperature: number("temperature", 0.0, 2.0)?,
        top_p: number("top_p", 0.0, 1.0)?.map(least),
        min_p: number("min_p", 0.0, 1.0)?,
        repetition_penalty,
        repeat_last_n: looks_back.or(usual),
        frequency_penalty: number("frequency_penalty", -2.0, 2.0)?,
        presence_penalty: number("presence_penalty", -2.0, 2.0)?,
        typical_p: number("typical_p", 0.0, 1.0)?.map(least),
        xtc_probability: number("xtc_probability", 0.0, 1.0)?,
        xtc_threshold: number("xtc_threshold", 0.0, 1.0)?,
        dynatemp_range: number("dynatemp_range", 0.0, 2.0)?,
        dynatemp_exponent: number("dynatemp_exponent", 0.0, DYNATEMP_EXPONENT_MAX)?,
        mirostat_tau: number("mirostat_tau", 0.0, MIROSTAT_TAU_MAX)?,
        mirostat_eta: number("mirostat_eta", 0.0, 1.0)?,
        top_n_sigma: top_n_sigma.map(|sigmas| sigmas.max(0.0)),
        dry_multiplier: number("dry_multiplier", 0.0, f64::INFINITY)?,
        dry_base: number("dry_base", 1.0, f64::INFINITY)?,
        mirostat: fields.take("mirostat").map(mirostat).transpose()?,
        dry_allowed_length: fields.take("dry_allowed_length").map(|f| f.integer(0..=u32::MAX)).transpose()?,
        dry_penalty_last_n: fields.take("dry_penalty_last_n").map(last_n).transpose()?,
        dry_sequence_breakers: fields
            .take("dry_sequence_breakers")
            .map(breakers)
            .transpose()?
            .unwrap_or_default(),
        // On other servers -1 means off, which is 0 here.
        top_k: fields
            .take("top_k")
            .map(|f| f.integer(-1..=i64::from(u32::MAX)))
            .transpose()?
            .map(|k| u32::try_from(k).unwrap_or(0)),
        logit_bias: fields.take("logit_bias").map(logit_bias).transpose()?.unwrap_or_default(),
        seed: fields.take("seed").map(seed).transpose()?,
    };
    if let Some(field) = fields.take("samplers") {
        samplers::apply(field, &mut sampling)?;
    }
    Ok(sampling)
}

fn mirostat(field: Field) -> Result<u32, ApiError> {
    match field.integer(0..=2)? {
        1 => Err(ApiError::unsupported(
            "mirostat",
            "version 1 is not supported by this build; the values it accepts are 0 and 2",
        )),
        version => Ok(version),
    }
}

/// Reads a number of last tokens; -1 means all.
fn last_n(field: Field) -> Result<i32, ApiError> {
    field.integer(-1..=i32::MAX)
}

fn breakers(field: Field) -> Result<Vec<String>, ApiError> {
    let breaker = |field: Field| {
        let text = field.string()?;
        match text.len() {
            0 => Err(field.error("must not be empty")),
            n if n > DRY_BREAKER_BYTES_MAX => {
                Err(field.error(format!("is over {DRY_BREAKER_BYTES_MAX} bytes long")))
            }
            _ => Ok(text),
        }
    };
    let list = field.list()?;
    match list.clone().count() {
        0 => Err(field.error("must have at least one text; dry_multiplier 0 turns DRY off")),
        count if count > DRY_BREAKERS_MAX => {
            Err(field.error(format!("has {count} texts, at most {DRY_BREAKERS_MAX}")))
        }
        _ => list.map(breaker).collect(),
    }
}

/// Reads logit biases by token id: an object, or pairs as in llama.cpp, where false means the minimum.
fn logit_bias(field: Field) -> Result<HashMap<u32, f32>, ApiError> {
    if let Some(pairs) = field.as_list() {
        let count = pairs.clone().count();
        if count > LOGIT_BIAS_MAX {
            return Err(field.error(format!("has {count} entries, at most {LOGIT_BIAS_MAX}")));
        }
        return pairs.map(biased).collect();
    }
    let mut entries = field.object()?;
    let ids = entries.names();
    if ids.len() > LOGIT_BIAS_MAX {
        return Err(field.error(format!("has {} entries, at most {LOGIT_BIAS_MAX}", ids.len())));
    }
    let mut biases = HashMap::with_capacity(ids.len());
    for name in ids {
        let Ok(id) = name.parse() else {
            return Err(field.error(format!("expected token ids as keys, got {}", quote(&name))));
        };
        if let Some(bias) = entries.take(&name) {
            biases.insert(id, bias.number(-100.0..=100.0)?);
        }
    }
    Ok(biases)
}

/// Reads a token id and the bias of its logit.
fn biased(pair: Field) -> Result<(u32, f32), ApiError> {
    let mut both = pair.list()?;
    let (Some(id), Some(bias), None) = (both.next(), both.next(), both.next()) else {
        return Err(pair.error("expected a token id and a number"));
    };
    if id.value().is_string() {
        return Err(id.error("texts are not supported by this build; use token ids, from /tokenize"));
    }
    let bias = match bias.value().as_bool() {
        Some(false) => -100.0,
        _ => bias.number(-100.0..=100.0)?,
    };
    Ok((id.integer(0..=u32::MAX)?, bias))
}

/// Reads a 64-bit integer; a negative one becomes its two's complement.
fn seed(field: Field) -> Result<u64, ApiError> {
    field.integer(i128::from(i64::MIN)..=i128::from(u64::MAX)).map(|seed| seed as u64)
}
