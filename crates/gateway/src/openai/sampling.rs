//! Sampling settings: OpenAI's fields and those of vLLM and llama.cpp, converted to the contract's names.

use std::{collections::HashMap, ops::Bound};

use hanzo_engine_proto::v1;

use crate::{
    declare::{Integer, Number, Read, fields},
    error::{ApiError, quote},
    fields::Field,
    limits::{
        DRY_BREAKER_BYTES_MAX, DRY_BREAKERS_MAX, DYNATEMP_EXPONENT_MAX, LOGIT_BIAS_MAX, MIROSTAT_TAU_MAX,
        TOP_N_SIGMA_MAX,
    },
    openai::samplers,
    request::one_of,
};

/// Default number of last tokens that llama.cpp's `repeat_penalty` considers, without `repeat_last_n`.
const REPEAT_LAST_N: i32 = 64;

const ABOVE_ZERO: (Bound<f64>, Bound<f64>) = (Bound::Excluded(0.0), Bound::Unbounded);

fields! {
    /// Sampling settings of all APIs that generate.
    pub(crate) struct SamplingFields {
        /// Temperature of the distribution; 0 takes the likeliest token.
        temperature?: f32 = Number(0.0..=2.0),
        /// Probability mass of the likeliest tokens that may be drawn.
        top_p?: f32 = Number(0.0..=1.0),
        /// Number of the likeliest tokens that may be drawn; 0 or -1 for all.
        top_k?: i64 = Integer(-1..=i64::from(u32::MAX)),
        /// Least probability of a token, as a share of the likeliest token's.
        min_p?: f32 = Number(0.0..=1.0),
        /// Probability mass of locally typical sampling.
        typical_p?: f32 = Number(0.0..=1.0),
        /// Tokens within so many standard deviations of the best logit may be drawn; a negative number is off.
        top_n_sigma?: f32 = Number(..=TOP_N_SIGMA_MAX),
        /// Probability that XTC leaves the likeliest tokens out.
        xtc_probability?: f32 = Number(0.0..=1.0),
        /// Probability above which XTC leaves a token out.
        xtc_threshold?: f32 = Number(0.0..=1.0),
        /// Range in which the temperature follows the entropy.
        dynatemp_range?: f32 = Number(0.0..=2.0),
        /// Exponent of the temperature's dependence on the entropy.
        dynatemp_exponent?: f32 = Number(0.0..=DYNATEMP_EXPONENT_MAX),
        /// Version of Mirostat, which keeps the surprise constant; 0 is off.
        mirostat?: u32 = Read("0 | 2", mirostat),
        /// Mirostat's target surprise, in bits.
        mirostat_tau?: f32 = Number(0.0..=MIROSTAT_TAU_MAX),
        /// Mirostat's learning rate.
        mirostat_eta?: f32 = Number(0.0..=1.0),
        /// Factor by which the logits of earlier tokens are divided.
        repetition_penalty?: f32 = Number(ABOVE_ZERO),
        /// llama.cpp's name of repetition_penalty, over the last 64 tokens unless repeat_last_n says otherwise.
        repeat_penalty?: f32 = Number(ABOVE_ZERO),
        /// Number of last tokens that penalties consider; -1 for all.
        repeat_last_n?: i32 = Integer(-1..=i32::MAX),
        /// Penalty of a token for each earlier occurrence.
        frequency_penalty?: f32 = Number(-2.0..=2.0),
        /// Penalty of a token that has occurred.
        presence_penalty?: f32 = Number(-2.0..=2.0),
        /// Strength of DRY, which penalises repeated sequences; 0 is off.
        dry_multiplier?: f32 = Number(0.0..),
        /// Base of DRY's growth with the length of a sequence.
        dry_base?: f32 = Number(1.0..),
        /// Longest sequence that DRY lets repeat.
        dry_allowed_length?: u32 = Integer(0..=u32::MAX),
        /// Number of last tokens that DRY considers; -1 for all.
        dry_penalty_last_n?: i32 = Integer(-1..=i32::MAX),
        /// Texts that end a sequence for DRY.
        dry_sequence_breakers?: Vec<String> = Read("string[1..]", breakers),
        /// Samplers that are on, by llama.cpp's names, or as one letter each.
        samplers?: Vec<&'static str> = Read("string | string[]", samplers::named),
        /// Numbers added to the logits of tokens, by token id; or llama.cpp's pairs of an id and a number or false.
        logit_bias?: HashMap<u32, f32> = Read("number{} | any[]", logit_bias),
        /// Seed of the random numbers; the same seed gives the same answer.
        seed?: i128 = Integer(i128::from(i64::MIN)..=i128::from(u64::MAX)),
    }
}

impl SamplingFields {
    /// Settings by the contract's names. A negative seed becomes its two's complement.
    pub(crate) fn settings(self) -> Result<v1::Sampling, ApiError> {
        let usual = self.repeat_penalty.map(|_| REPEAT_LAST_N);
        let penalty =
            one_of(("repetition_penalty", self.repetition_penalty), ("repeat_penalty", self.repeat_penalty))?;
        // 0 keeps only the most likely token, as on other servers.
        let least = |p: f32| p.max(f32::MIN_POSITIVE);
        let mut sampling = v1::Sampling {
            temperature: self.temperature,
            top_p: self.top_p.map(least),
            // On other servers -1 means off, which is 0 here.
            top_k: self.top_k.map(|k| u32::try_from(k).unwrap_or(0)),
            min_p: self.min_p,
            typical_p: self.typical_p.map(least),
            // A negative value disables it, as in llama.cpp.
            top_n_sigma: self.top_n_sigma.map(|sigmas| sigmas.max(0.0)),
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            repetition_penalty: penalty,
            repeat_last_n: self.repeat_last_n.or(usual),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            dry_sequence_breakers: self.dry_sequence_breakers.unwrap_or_default(),
            logit_bias: self.logit_bias.unwrap_or_default(),
            seed: self.seed.map(|seed| seed as u64),
        };
        if let Some(named) = self.samplers {
            samplers::apply(&named, &mut sampling)?;
        }
        Ok(sampling)
    }
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
