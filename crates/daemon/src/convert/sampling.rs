//! Sampling parameters: those of a request, and the effective ones and other text properties of a model for responses.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{
    SamplingParams, TextModel,
    limits::LOGIT_BIAS_MAX,
    load::GenerationDefaults,
    sampler::{DRY_BREAKERS, Dry, Mirostat},
};

use crate::{
    error::{Error, random_u64},
    views::WorkerView,
};

/// Effective sampling parameters of a request. Unset ones take the model's default, then the neutral value.
///
/// # Errors
/// `Field` for a value that means nothing; the runtime checks ranges.
pub(super) fn sampling(
    mut asked: v1::Sampling,
    logprobs: Option<u8>,
    model: &GenerationDefaults,
) -> Result<SamplingParams, Error> {
    let dry = dry(&mut asked)?;
    // A model with `do_sample: false` is greedy, unless the request sets a temperature.
    let own_temperature = match model.do_sample {
        Some(false) => Some(0.0),
        _ => model.temperature,
    };
    let mirostat = match asked.mirostat.or(model.mirostat).unwrap_or(0) {
        0 => None,
        2 => Some(Mirostat {
            tau: asked.mirostat_tau.or(model.mirostat_tau).unwrap_or(Mirostat::default().tau),
            eta: asked.mirostat_eta.or(model.mirostat_eta).unwrap_or(Mirostat::default().eta),
        }),
        other => {
            let reason = format!("must be 0 or 2, not {other}: only version 2 is in this build");
            return Err(Error::field("sampling.mirostat", reason));
        }
    };
    // Mirostat truncates by itself; the model's truncation would limit what it can aim at.
    let unshaped = GenerationDefaults::default();
    let truncation = if mirostat.is_some() { &unshaped } else { model };
    let neutral = SamplingParams::default();
    Ok(SamplingParams {
        temperature: asked.temperature.or(own_temperature).unwrap_or(1.0),
        top_k: asked.top_k.or(truncation.top_k).unwrap_or(neutral.top_k),
        top_p: asked.top_p.or(truncation.top_p).unwrap_or(neutral.top_p),
        min_p: asked.min_p.or(truncation.min_p).unwrap_or(neutral.min_p),
        repetition_penalty: asked.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
        frequency_penalty: asked.frequency_penalty.or(model.frequency_penalty).unwrap_or(0.0),
        presence_penalty: asked.presence_penalty.or(model.presence_penalty).unwrap_or(0.0),
        repeat_last_n: last_n("sampling.repeat_last_n", asked.repeat_last_n.or(model.repeat_last_n))?,
        dry,
        top_n_sigma: asked.top_n_sigma.unwrap_or(neutral.top_n_sigma),
        dynatemp_range: asked.dynatemp_range.unwrap_or(neutral.dynatemp_range),
        dynatemp_exponent: asked.dynatemp_exponent.unwrap_or(neutral.dynatemp_exponent),
        typical_p: asked.typical_p.or(truncation.typical_p).unwrap_or(neutral.typical_p),
        xtc_probability: asked
            .xtc_probability
            .or(truncation.xtc_probability)
            .unwrap_or(neutral.xtc_probability),
        xtc_threshold: asked.xtc_threshold.or(model.xtc_threshold).unwrap_or(neutral.xtc_threshold),
        mirostat,
        logit_bias: logit_bias(asked.logit_bias, &model.logit_bias),
        seed: asked.seed.or(model.seed).unwrap_or_else(random_u64),
        logprobs,
    })
}

/// Requested biases, followed by the model's own for other tokens, up to the maximum.
fn logit_bias(asked: HashMap<u32, f32>, model: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let mut asked: Vec<(u32, f32)> = asked.into_iter().collect();
    // A map's order is random, and sums of floats must not depend on it.
    asked.sort_unstable_by_key(|&(token, _)| token);
    let named: HashSet<u32> = asked.iter().map(|&(token, _)| token).collect();
    let room = LOGIT_BIAS_MAX.saturating_sub(asked.len());
    asked.extend(model.iter().filter(|(token, _)| !named.contains(token)).take(room));
    asked
}

/// DRY parameters. Unset ones are neutral, or have the usual value if a multiplier is set.
fn dry(asked: &mut v1::Sampling) -> Result<Option<Dry>, Error> {
    let last_n = last_n("sampling.dry_penalty_last_n", asked.dry_penalty_last_n)?;
    let breakers: Arc<[String]> = match asked.dry_sequence_breakers.is_empty() {
        true => DRY_BREAKERS.map(str::to_owned).into(),
        false => std::mem::take(&mut asked.dry_sequence_breakers).into(),
    };
    let multiplier = asked.dry_multiplier.unwrap_or(0.0);
    let dry = Dry {
        // The other values are checked even if DRY is off.
        multiplier: if multiplier == 0.0 { 1.0 } else { multiplier },
        base: asked.dry_base.unwrap_or(1.75),
        allowed_length: asked.dry_allowed_length.unwrap_or(2),
        last_n,
        breakers,
    };
    dry.validate()?;
    Ok((multiplier != 0.0 && last_n != Some(0)).then_some(dry))
}

/// Parses the number of tokens to look back over; -1 for all.
fn last_n(field: &str, tokens: Option<i32>) -> Result<Option<u32>, Error> {
    match tokens {
        None | Some(-1) => Ok(None),
        Some(tokens) => u32::try_from(tokens).map(Some).map_err(|_| {
            Error::field(field, format!("must be at least 0, or -1 for all tokens, not {tokens}"))
        }),
    }
}

/// Effective sampling parameters with every value set. Biases are left out, since the client that sent them knows
/// them.
pub(crate) fn done(params: &SamplingParams) -> v1::Sampling {
    let last_n = |tokens: Option<u32>| tokens.map_or(-1, |tokens| i32::try_from(tokens).unwrap_or(i32::MAX));
    let mut sampling = v1::Sampling {
        temperature: Some(params.temperature),
        top_k: Some(params.top_k),
        top_p: Some(params.top_p),
        min_p: Some(params.min_p),
        repetition_penalty: Some(params.repetition_penalty),
        frequency_penalty: Some(params.frequency_penalty),
        presence_penalty: Some(params.presence_penalty),
        seed: Some(params.seed),
        typical_p: Some(params.typical_p),
        top_n_sigma: Some(params.top_n_sigma),
        xtc_probability: Some(params.xtc_probability),
        xtc_threshold: Some(params.xtc_threshold),
        dynatemp_range: Some(params.dynatemp_range),
        dynatemp_exponent: Some(params.dynatemp_exponent),
        mirostat: Some(if params.mirostat.is_some() { 2 } else { 0 }),
        mirostat_tau: params.mirostat.map(|mirostat| mirostat.tau),
        mirostat_eta: params.mirostat.map(|mirostat| mirostat.eta),
        dry_multiplier: Some(0.0),
        repeat_last_n: Some(last_n(params.repeat_last_n)),
        ..Default::default()
    };
    if let Some(dry) = &params.dry {
        sampling.dry_multiplier = Some(dry.multiplier);
        sampling.dry_base = Some(dry.base);
        sampling.dry_allowed_length = Some(dry.allowed_length);
        sampling.dry_penalty_last_n = Some(last_n(dry.last_n));
        sampling.dry_sequence_breakers = dry.breakers.to_vec();
    }
    sampling
}

/// Default sampling parameters of a model. `None` if its files give invalid ones.
fn own_sampling(text: &TextModel) -> Option<SamplingParams> {
    let seed = Some(text.generation.seed.unwrap_or(0));
    sampling(v1::Sampling { seed, ..Default::default() }, None, &text.generation).ok()
}

/// Text properties of a loaded model.
pub(super) fn text(worker: &WorkerView, context_tokens_trained: u32) -> v1::ModelText {
    let text = &worker.text;
    let [bos, eos] = text.template.as_ref().map_or(["", ""], |template| template.ends());
    let own = own_sampling(text).filter(|_| worker.generates);
    v1::ModelText {
        vocab_size: u32::try_from(text.vocab).unwrap_or(u32::MAX),
        hidden_size: u32::try_from(text.hidden).unwrap_or(u32::MAX),
        context_tokens_trained,
        bos_token: bos.to_owned(),
        eos_token: eos.to_owned(),
        // A seed drawn anew for each request is not a default of the model.
        sampling: own.map(|own| v1::Sampling { seed: text.generation.seed, ..done(&own) }),
        sequences_max: u32::try_from(worker.sequences_max).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_proto::v1::Sampling;

    use super::*;

    fn sampling(asked: Sampling, model: &GenerationDefaults) -> SamplingParams {
        tried(asked, model).unwrap()
    }

    fn tried(asked: Sampling, model: &GenerationDefaults) -> Result<SamplingParams, Error> {
        super::sampling(asked, None, model)
    }

    #[test]
    fn dry_has_usual_values_beside_a_multiplier_and_is_checked_without() {
        let of = |asked| sampling(asked, &GenerationDefaults::default()).dry;
        let repeated = Sampling { dry_multiplier: Some(0.8), ..Default::default() };
        assert_eq!(of(Sampling::default()), None);
        let dry = of(repeated.clone()).unwrap();
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length, dry.last_n), (0.8, 1.75, 2, None));
        assert_eq!(of(Sampling { dry_penalty_last_n: Some(0), ..repeated }), None);
        for (asked, field) in [
            (Sampling { dry_multiplier: Some(-0.5), ..Default::default() }, "dry_multiplier"),
            (Sampling { dry_multiplier: Some(f32::NAN), ..Default::default() }, "dry_multiplier"),
            (Sampling { dry_base: Some(0.5), ..Default::default() }, "dry_base"),
            (Sampling { dry_penalty_last_n: Some(-2), ..Default::default() }, "dry_penalty_last_n"),
            (
                Sampling { dry_sequence_breakers: vec![String::new()], ..Default::default() },
                "dry_sequence_breakers",
            ),
            (
                Sampling { dry_sequence_breakers: vec!["x".into(); 65], ..Default::default() },
                "dry_sequence_breakers",
            ),
            (
                Sampling { dry_sequence_breakers: vec!["x".repeat(65)], ..Default::default() },
                "dry_sequence_breakers",
            ),
        ] {
            let error = tried(asked, &GenerationDefaults::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn mirostat_stands_for_the_models_own_truncation() {
        let model = GenerationDefaults {
            top_k: Some(20),
            top_p: Some(0.9),
            typical_p: Some(0.8),
            repeat_last_n: Some(64),
            mirostat_tau: Some(3.0),
            ..Default::default()
        };
        let plain = sampling(Sampling::default(), &model);
        assert_eq!((plain.top_k, plain.top_p, plain.typical_p, plain.mirostat), (20, 0.9, 0.8, None));
        assert_eq!(plain.repeat_last_n, Some(64));
        let asked = Sampling { mirostat: Some(2), top_k: Some(7), ..Default::default() };
        let params = sampling(asked, &model);
        assert_eq!((params.top_k, params.top_p, params.typical_p), (7, 1.0, 1.0));
        assert_eq!(params.mirostat, Some(Mirostat { tau: 3.0, eta: 0.1 }));
        for version in [1, 3] {
            let asked = Sampling { mirostat: Some(version), ..Default::default() };
            let error = tried(asked, &model).unwrap_err().to_string();
            assert!(error.contains("sampling.mirostat"), "{error}");
        }
        let asked = Sampling { repeat_last_n: Some(-2), ..Default::default() };
        assert!(tried(asked, &model).unwrap_err().to_string().contains("repeat_last_n"));
    }

    #[test]
    fn a_request_is_over_the_model_is_over_neutral() {
        let model = GenerationDefaults { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let asked = Sampling { top_k: Some(0), ..Default::default() };
        let params = sampling(asked, &model);
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.6, 0, 1.0));
        assert_eq!(sampling(Sampling::default(), &GenerationDefaults::default()).temperature, 1.0);
    }

    #[test]
    fn a_model_that_does_not_sample_is_greedy_until_asked() {
        let model =
            GenerationDefaults { do_sample: Some(false), temperature: Some(0.6), ..Default::default() };
        assert_eq!(sampling(Sampling::default(), &model).temperature, 0.0);
        let asked = Sampling { temperature: Some(0.3), ..Default::default() };
        assert_eq!(sampling(asked, &model).temperature, 0.3);
    }

    #[test]
    fn seeds_are_fresh_unless_asked_for() {
        let seed = |seed| sampling(Sampling { seed, ..Default::default() }, &Default::default()).seed;
        assert_eq!(seed(Some(7)), 7);
        assert_ne!(seed(None), seed(None));
        let model = GenerationDefaults { seed: Some(9), ..Default::default() };
        assert_eq!(sampling(Sampling::default(), &model).seed, 9);
        assert_eq!(sampling(Sampling { seed: Some(7), ..Default::default() }, &model).seed, 7);
    }
}
