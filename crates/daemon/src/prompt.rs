//! Conversion of a request to a job for the worker: chat template, tokenizer, the model's defaults and limits.
//! `prompt_builder` decides when that runs and for how long.

mod enforced;
pub(crate) mod media;
mod overflow;
pub(crate) mod pictures;
mod size;
mod sounds;
mod tokens;

use std::{collections::HashSet, slice, sync::Arc};

use hanzo_engine_constraints::{Grammar, Spec};
use hanzo_engine_runtime::{
    CallReading, ClientId, Job, RequestError, SamplingParams, Speculation, StopConditions, TextModel, Tool,
    ToolFormat,
    chat::Chat,
    infill::Gap,
    limits::{LOGIT_BIAS_MAX, STOP_TOKENS_MAX},
    load::GenerationDefaults,
    sampler::{Breakers, DRY_BREAKERS, Dry, Mirostat},
    tokenizer::Tokenizer,
};

use crate::{
    error::{Error, random_u64},
    served::ServedModel,
};

use enforced::{ToolConstraint, enforced, within_channels};
pub(crate) use media::RequestedMedia;
use overflow::room;
pub(crate) use overflow::{Keep, Overflow, Truncate};
pub(crate) use pictures::RequestedPicture;
pub(crate) use sounds::RequestedSound;
use tokens::{PromptTokens, prompt_tokens};

/// Generation request in the engine's types.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) prompt: PromptSource,
    /// Pictures and sounds of a chat.
    pub(crate) media: RequestedMedia,
    pub(crate) sampling: RequestedSampling,
    /// Stop conditions, without `max_tokens`, which is in [`GenerationRequest::max_tokens`].
    pub(crate) stop: StopConditions,
    pub(crate) max_tokens: Option<u32>,
    /// Additional limit of each completion's tokens.
    pub(crate) completion_tokens_max: Option<u32>,
    pub(crate) constraint: Option<Spec>,
    pub(crate) choices: u32,
    pub(crate) priority: i32,
    pub(crate) echo: bool,
    pub(crate) prompt_logprobs: Option<u8>,
    pub(crate) prediction: String,
    /// Limit of reasoning tokens; `None` follows the conversation's settings.
    pub(crate) reasoning_tokens_max: Option<u32>,
    /// Tools of a chat.
    pub(crate) tools: Option<ToolUse>,
    pub(crate) overflow: Overflow,
    pub(crate) cache_salt: Vec<u8>,
    pub(crate) skip_cache: bool,
}

/// Tools of a chat and the rules for calling them.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Whether one response may have several calls.
    pub(crate) parallel: bool,
    /// Format of calls, instead of the model's own.
    pub(crate) format: Option<ToolFormat>,
}

/// Rule for calling tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

/// Prompt of a request.
#[derive(Clone, Debug)]
pub(crate) enum PromptSource {
    Chat(Chat),
    /// Text; with `parse_special`, control tokens written in it are recognised.
    Text {
        text: String,
        parse_special: bool,
    },
    Tokens(Vec<u32>),
    Gap(Gap),
}

/// Requested sampling parameters. Unset ones take the model's default, then the neutral value.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedSampling {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    /// Number of tokens that repetition penalties look back over; -1 for all.
    pub(crate) repeat_last_n: Option<i32>,
    pub(crate) dry: RequestedDry,
    pub(crate) top_n_sigma: Option<f32>,
    pub(crate) dynatemp_range: Option<f32>,
    pub(crate) dynatemp_exponent: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    pub(crate) xtc_probability: Option<f32>,
    pub(crate) xtc_threshold: Option<f32>,
    pub(crate) mirostat: Option<u32>,
    pub(crate) mirostat_tau: Option<f32>,
    pub(crate) mirostat_eta: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<u64>,
    pub(crate) logprobs: Option<u8>,
}

/// Requested DRY parameters. Unset ones are neutral, or have the usual value if a multiplier is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedDry {
    pub(crate) multiplier: Option<f32>,
    pub(crate) base: Option<f32>,
    pub(crate) allowed_length: Option<u32>,
    /// Number of tokens to look back over; -1 for all.
    pub(crate) last_n: Option<i32>,
    /// Sequence breakers; empty for the usual ones.
    pub(crate) breakers: Vec<String>,
}

/// Job, with the prompt's text if it is to be echoed.
pub(crate) struct Built {
    pub(crate) job: Job,
    pub(crate) echo: Option<String>,
}

/// Builds the job of a request. The context's remaining length limits the completion, whatever was requested.
///
/// # Errors
/// Errors of the runtime that name the field.
pub(crate) fn build(
    mut request: GenerationRequest,
    client: Option<ClientId>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<Built, Error> {
    let text = &served.text;
    let (calls, constraint) = compiled_constraint(&mut request, client, served, interrupted)?;
    let context_tokens_max = served.size.context_tokens_max();
    let shifts = request.overflow.shifts(served.prompts.shifts() && request.media.is_empty());
    let perceived = std::mem::take(&mut request.media).perceived(text, context_tokens_max, interrupted)?;
    let is_gap = matches!(request.prompt, PromptSource::Gap(_));
    let limits = (request.overflow.tokens_most(shifts, context_tokens_max), context_tokens_max);
    let PromptTokens {
        mut tokens,
        text: rendered,
        media,
        split_reasoning,
        starts_in_reasoning,
        reasoning_is_over,
        reasoning_tokens_max,
        ends,
    } = prompt_tokens(&mut request, (text, perceived), calls.is_some(), limits, interrupted)?;
    let (context_shift, is_cut) =
        request.overflow.cut(&mut tokens, is_gap, (shifts, context_tokens_max), request.max_tokens)?;
    media::check_whole(&media, is_cut, shifts)?;
    let rendered = rendered.filter(|_| !is_cut);
    let room = completion_room(&request, tokens.len(), context_tokens_max, shifts)?;
    let prediction = match request.prediction.as_str() {
        prediction if prediction.is_empty() || served.size.speculation() == Speculation::Off => Vec::new(),
        prediction => {
            let mut tokens = encoded(text, prediction, (false, false), interrupted)?;
            tokens.truncate(room as usize);
            tokens
        }
    };
    let max_tokens = completion_limit(&request, text.generation.max_new_tokens, room);
    let job = Job {
        adapter: None,
        id: served.next_job(),
        choices: request.choices,
        sampling: sampling(request.sampling, &text.generation, &text.tokenizer)?,
        stop: stop_conditions(request.stop, text, max_tokens, ends),
        constraint,
        priority: request.priority,
        client,
        starts_in_reasoning,
        reasoning_is_over,
        split_reasoning,
        reasoning_tokens_max,
        calls,
        prompt: tokens.into(),
        media: media.into(),
        prompt_logprobs: request.prompt_logprobs,
        prediction: prediction.into(),
        context_shift,
        cache_salt: request.cache_salt.into(),
        skip_cache: request.skip_cache,
    };
    job.validate(text, context_tokens_max)?;
    let echo = request.echo.then(|| rendered.unwrap_or_else(|| text.tokenizer.decode(&job.prompt, false)));
    Ok(Built { job, echo })
}

/// Stop conditions of a completion of at most `max_tokens` tokens. `ends` are stop tokens to add.
fn stop_conditions(
    stop: StopConditions,
    text: &TextModel,
    max_tokens: u32,
    ends: Vec<u32>,
) -> StopConditions {
    // Stop conditions of a request replace the model's own as a whole.
    let own_stops = stop.strings.is_empty() && stop.token_ids.is_empty();
    StopConditions {
        max_tokens,
        min_tokens: match stop.min_tokens {
            0 => text.generation.min_new_tokens.unwrap_or(0).min(max_tokens),
            asked => asked,
        },
        strings: if own_stops { text.generation.stop.clone() } else { stop.strings },
        token_ids: {
            let asked = if own_stops { text.stop_tokens.clone() } else { stop.token_ids };
            let room = STOP_TOKENS_MAX.saturating_sub(asked.len());
            let ends = ends.into_iter().filter(|_| !stop.ignore_eos);
            asked.into_iter().chain(ends.take(room)).collect()
        },
        ..stop
    }
}

/// Compiled constraint of the response, and the parser of tool calls if there may be any.
fn compiled_constraint(
    request: &mut GenerationRequest,
    client: Option<ClientId>,
    served: &ServedModel,
    interrupted: &dyn Fn() -> bool,
) -> Result<(Option<CallReading>, Option<Arc<Grammar>>), Error> {
    let text = &served.text;
    let compiled = |spec| served.constraints.compiled(spec, text, client, interrupted);
    match request.tools.take() {
        Some(used) => {
            let ToolConstraint { calls, spec, must } =
                enforced(used, text, request.constraint.take(), interrupted)?;
            let constraint = match spec.map(compiled).transpose() {
                // Too many tools to compile a constraint for are still usable without one.
                Err(Error::Field { .. } | Error::Busy { .. }) if !must => None,
                Err(Error::Field { reason, .. }) if calls.is_some() => {
                    return Err(Error::field("tools", reason));
                }
                constraint => constraint?,
            };
            Ok((calls, constraint))
        }
        None => {
            let is_chat = matches!(request.prompt, PromptSource::Chat(_));
            let constraint = if is_chat {
                within_channels(request.constraint.take(), text, interrupted)?
            } else {
                request.constraint.take()
            };
            Ok((None, constraint.map(compiled).transpose()?))
        }
    }
}

/// Tokens that a completion may have after a prompt of `prompt_tokens` tokens.
fn completion_room(
    request: &GenerationRequest,
    prompt_tokens: usize,
    context_tokens_max: usize,
    shifts: bool,
) -> Result<u32, RequestError> {
    match request.max_tokens {
        // A prompt that is only scored may fill the context.
        Some(0) => Ok(context_tokens_max.saturating_sub(prompt_tokens).min(u32::MAX as usize) as u32),
        // With context shift the completion has the requested length, or else that of a context.
        max_tokens if shifts => {
            room(prompt_tokens, context_tokens_max, None, 0)?;
            Ok(max_tokens.unwrap_or((context_tokens_max as u32).max(request.stop.min_tokens)))
        }
        max_tokens => room(prompt_tokens, context_tokens_max, max_tokens, request.stop.min_tokens),
    }
}

/// Maximum number of tokens of a completion that has room for `room`. `own` is the model's default limit.
fn completion_limit(request: &GenerationRequest, own: Option<u32>, room: u32) -> u32 {
    let max_tokens = match (request.max_tokens, own) {
        (Some(asked), _) => asked.min(room),
        // `min_tokens` above the model's default limit raises it.
        (None, Some(own)) => own.max(request.stop.min_tokens).clamp(1, room),
        (None, None) => room,
    };
    request.completion_tokens_max.map_or(max_tokens, |most| max_tokens.min(most))
}

/// Tokens of a plain text.
fn encoded(
    model: &TextModel,
    text: &str,
    (add_special, parse_special): (bool, bool),
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<u32>, RequestError> {
    let all = 0..text.len();
    let plain = if parse_special { &[][..] } else { slice::from_ref(&all) };
    model.tokenizer.encode_until(text, plain, add_special, interrupted)
}

/// Effective sampling parameters of a request.
pub(crate) fn sampling(
    asked: RequestedSampling,
    model: &GenerationDefaults,
    tokenizer: &Arc<Tokenizer>,
) -> Result<SamplingParams, Error> {
    let dry = dry(asked.dry, tokenizer)?;
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
        logprobs: asked.logprobs,
    })
}

/// Requested biases, followed by the model's own for other tokens, up to the maximum.
fn logit_bias(mut asked: Vec<(u32, f32)>, model: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let named: HashSet<u32> = asked.iter().map(|&(token, _)| token).collect();
    let room = LOGIT_BIAS_MAX.saturating_sub(asked.len());
    asked.extend(model.iter().filter(|(token, _)| !named.contains(token)).take(room));
    asked
}

fn dry(asked: RequestedDry, tokenizer: &Arc<Tokenizer>) -> Result<Option<Dry>, Error> {
    let last_n = last_n("sampling.dry_penalty_last_n", asked.last_n)?;
    let breakers = match asked.breakers.is_empty() {
        true => DRY_BREAKERS.map(str::to_owned).to_vec(),
        false => asked.breakers,
    };
    let multiplier = asked.multiplier.unwrap_or(0.0);
    let dry = Dry {
        // The other values are checked even if DRY is off.
        multiplier: if multiplier == 0.0 { 1.0 } else { multiplier },
        base: asked.base.unwrap_or(1.75),
        allowed_length: asked.allowed_length.unwrap_or(2),
        last_n,
        breakers: Breakers::new(&breakers, tokenizer),
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

/// Input to tokenize.
pub(crate) enum TokenizeInput {
    /// Conversation, with its pictures and sounds.
    Chat(Chat, RequestedMedia),
    Text {
        text: String,
        add_special: bool,
        parse_special: bool,
    },
}

/// Tokens of the input, with those of pictures and sounds in their places, and the text that they stand for.
///
/// # Errors
/// Errors of the runtime that name the field.
pub(crate) fn tokenize(
    input: TokenizeInput,
    (model, context_tokens_max): (&TextModel, usize),
    interrupted: &dyn Fn() -> bool,
) -> Result<(Vec<u32>, String), Error> {
    match input {
        TokenizeInput::Chat(mut chat, media) => {
            let perceived = media.perceived(model, context_tokens_max, interrupted)?;
            model.thinking.apply(&mut chat);
            let prompt = model.prompt_from_chat(&chat, usize::MAX, interrupted).map_err(of_text)?;
            Ok((perceived.placed(prompt.tokens, model)?.0, prompt.text))
        }
        TokenizeInput::Text { text, add_special, parse_special } => {
            let ids = encoded(model, &text, (add_special, parse_special), interrupted).map_err(of_text)?;
            Ok((ids, text))
        }
    }
}

/// Renames the tokenizer's field `prompt` to the call's `text`.
fn of_text(error: RequestError) -> Error {
    match error {
        RequestError::Invalid { field: "prompt", reason } => Error::field("text", reason),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ModelSource;

    fn sampling(asked: RequestedSampling, model: &GenerationDefaults) -> SamplingParams {
        tried(asked, model).unwrap()
    }

    fn tried(asked: RequestedSampling, model: &GenerationDefaults) -> Result<SamplingParams, Error> {
        let text = ModelSource::Demo.open().unwrap().text_model().unwrap();
        super::sampling(asked, model, &text.tokenizer)
    }

    #[test]
    fn dry_has_usual_values_beside_a_multiplier_and_is_checked_without() {
        let asked = |dry| RequestedSampling { dry, ..Default::default() };
        let of = |dry| sampling(asked(dry), &GenerationDefaults::default()).dry;
        assert_eq!(of(RequestedDry::default()), None);
        let dry = of(RequestedDry { multiplier: Some(0.8), ..Default::default() }).unwrap();
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length, dry.last_n), (0.8, 1.75, 2, None));
        assert_eq!(of(RequestedDry { multiplier: Some(0.8), last_n: Some(0), ..Default::default() }), None);
        for (dry, field) in [
            (RequestedDry { multiplier: Some(-0.5), ..Default::default() }, "dry_multiplier"),
            (RequestedDry { multiplier: Some(f32::NAN), ..Default::default() }, "dry_multiplier"),
            (RequestedDry { base: Some(0.5), ..Default::default() }, "dry_base"),
            (RequestedDry { last_n: Some(-2), ..Default::default() }, "dry_penalty_last_n"),
            (RequestedDry { breakers: vec![String::new()], ..Default::default() }, "dry_sequence_breakers"),
            (RequestedDry { breakers: vec!["x".into(); 65], ..Default::default() }, "dry_sequence_breakers"),
            (RequestedDry { breakers: vec!["x".repeat(65)], ..Default::default() }, "dry_sequence_breakers"),
        ] {
            let error = tried(asked(dry), &GenerationDefaults::default()).unwrap_err().to_string();
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
        let plain = sampling(RequestedSampling::default(), &model);
        assert_eq!((plain.top_k, plain.top_p, plain.typical_p, plain.mirostat), (20, 0.9, 0.8, None));
        assert_eq!(plain.repeat_last_n, Some(64));
        let asked = RequestedSampling { mirostat: Some(2), top_k: Some(7), ..Default::default() };
        let params = sampling(asked, &model);
        assert_eq!((params.top_k, params.top_p, params.typical_p), (7, 1.0, 1.0));
        assert_eq!(params.mirostat, Some(Mirostat { tau: 3.0, eta: 0.1 }));
        for version in [1, 3] {
            let asked = RequestedSampling { mirostat: Some(version), ..Default::default() };
            let error = tried(asked, &model).unwrap_err().to_string();
            assert!(error.contains("sampling.mirostat"), "{error}");
        }
        let asked = RequestedSampling { repeat_last_n: Some(-2), ..Default::default() };
        assert!(tried(asked, &model).unwrap_err().to_string().contains("repeat_last_n"));
    }

    #[test]
    fn a_request_is_over_the_model_is_over_neutral() {
        let model = GenerationDefaults { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let asked = RequestedSampling { top_k: Some(0), ..Default::default() };
        let params = sampling(asked, &model);
        assert_eq!((params.temperature, params.top_k, params.top_p), (0.6, 0, 1.0));
        assert_eq!(sampling(RequestedSampling::default(), &GenerationDefaults::default()).temperature, 1.0);
    }

    #[test]
    fn a_model_that_does_not_sample_is_greedy_until_asked() {
        let model =
            GenerationDefaults { do_sample: Some(false), temperature: Some(0.6), ..Default::default() };
        assert_eq!(sampling(RequestedSampling::default(), &model).temperature, 0.0);
        let asked = RequestedSampling { temperature: Some(0.3), ..Default::default() };
        assert_eq!(sampling(asked, &model).temperature, 0.3);
    }

    #[test]
    fn seeds_are_fresh_unless_asked_for() {
        let seed =
            |seed| sampling(RequestedSampling { seed, ..Default::default() }, &Default::default()).seed;
        assert_eq!(seed(Some(7)), 7);
        assert_ne!(seed(None), seed(None));
        let model = GenerationDefaults { seed: Some(9), ..Default::default() };
        assert_eq!(sampling(RequestedSampling::default(), &model).seed, 9);
        assert_eq!(sampling(RequestedSampling { seed: Some(7), ..Default::default() }, &model).seed, 7);
    }
}
