//! Sampling parameters and other text properties of a model, for responses.

use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{SamplingParams, TextModel};

use crate::{
    prompt::{RequestedSampling, sampling},
    views::WorkerView,
};

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
        sampling.dry_sequence_breakers = dry.breakers.texts().to_vec();
    }
    sampling
}

/// Default sampling parameters of a model. `None` if its files give invalid ones.
fn own_sampling(text: &TextModel) -> Option<SamplingParams> {
    let seed = Some(text.generation.seed.unwrap_or(0));
    let asked = RequestedSampling { seed, ..RequestedSampling::default() };
    sampling(asked, &text.generation, &text.tokenizer).ok()
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
