//! Parses llama.cpp's `/completion` and `/infill` requests into a plan and the parts of the answer to show.

use std::time::Duration;

use hanzo_engine_proto::v1::{self, infer_request::Prompt};

use crate::{
    config::Config,
    error::ApiError,
    fields::{Field, Fields},
    limits::{CHAT_LOGPROBS_MAX, INFILL_FILES_MAX, RESPONSE_FIELDS_MAX},
    openai::{
        lines::LineLimits,
        plan::{self, RequestPlan, max_tokens, set_max_tokens},
    },
    request::either,
    request_id::RequestId,
    unsupported,
};

/// Seeds that mean a random one at llama.cpp: -1 as 32 and as 64 bits.
const SEEDS_TO_DRAW: [u64; 2] = [u32::MAX as u64, u64::MAX];

/// Validated request.
pub(super) struct CompletionRequest {
    pub(super) plan: RequestPlan,
    pub(super) shown: AnswerFields,
}

/// Parts of the answer to show in addition to its text.
#[derive(Debug, Default)]
pub(super) struct AnswerFields {
    /// Paths of the fields in a whole answer; empty: all.
    pub(super) fields: Vec<String>,
    /// Whether to show the probability of each token and of its alternatives.
    pub(super) probabilities: bool,
    pub(super) alternatives: u32,
    /// Whether a whole answer shows its token ids.
    pub(super) tokens: bool,
    /// Prompts as received; empty for an infill request.
    pub(super) prompts: Vec<Prompt>,
    /// Whether the answer is a list.
    pub(super) listed: bool,
}

/// Parses a completion request of one or several texts.
pub(super) fn completion(
    mut fields: Fields,
    config: &Config,
    id: &RequestId,
) -> Result<CompletionRequest, ApiError> {
    let mut plan = common(&mut fields, config, id)?;
    let (prompts, several) = prompts(fields.require("prompt")?, config.prompts_max)?;
    let parse_special = fields.take("parse_special").map(Field::boolean).transpose()?;
    let mut shown = shown(&mut fields)?;
    let max = line_limits(&mut fields, &mut plan)?;
    unsupported::llama_completion(&mut fields)?;
    fields.finish()?;
    shown.listed = several || plan.choices > 1;
    shown.prompts.clone_from(&prompts);
    let mut base = plan.requests.remove(0);
    probabilities(&mut base, &shown);
    set_max_tokens(&mut base, &max)?;
    let several = prompts.len() > 1;
    plan.requests = (0..)
        .zip(prompts)
        .map(|(at, prompt)| v1::InferRequest {
            parse_special: parse_special.filter(|_| matches!(prompt, Prompt::Text(_))),
            prompt: Some(prompt),
            request_id: id.of_call(at, several),
            ..base.clone()
        })
        .collect();
    Ok(CompletionRequest { plan, shown })
}

/// Parses an infill request.
pub(super) fn infill(
    mut fields: Fields,
    config: &Config,
    id: &RequestId,
) -> Result<CompletionRequest, ApiError> {
    let mut plan = common(&mut fields, config, id)?;
    let text = |fields: &mut Fields, name: &str| fields.take(name).map(Field::string).transpose();
    let prefix = fields.require("input_prefix")?.string()?;
    let suffix = fields.require("input_suffix")?.string()?;
    let middle = text(&mut fields, "prompt")?.unwrap_or_default();
    let mut files = Vec::new();
    if let Some(field) = fields.take("input_extra") {
        let list = field.list()?;
        let count = list.clone().count();
        if count > INFILL_FILES_MAX {
            return Err(field.error(format!("has {count} elements, at most {INFILL_FILES_MAX}")));
        }
        for file in list {
            let mut file = file.object()?;
            let content = file.require("text")?.string()?;
            let name = text(&mut file, "filename")?.unwrap_or_else(|| "tmp".to_owned());
            // Time of the file's last use, which some editors send.
            file.take("time");
            file.finish()?;
            files.push(v1::SourceFile { name, text: content });
        }
    }
    let mut shown = shown(&mut fields)?;
    let max = line_limits(&mut fields, &mut plan)?;
    unsupported::infill(&mut fields)?;
    fields.finish()?;
    shown.listed = plan.choices > 1;
    for request in &mut plan.requests {
        probabilities(request, &shown);
        set_max_tokens(request, &max)?;
        request.prompt = Some(Prompt::Text(prefix.clone()));
        request.suffix = suffix.clone();
        request.infill = Some(v1::Infill { files: files.clone(), middle: middle.clone() });
    }
    Ok(CompletionRequest { plan, shown })
}

/// Plan of the fields that both share with OpenAI's completions.
fn common(fields: &mut Fields, config: &Config, id: &RequestId) -> Result<RequestPlan, ApiError> {
    let mut plan = plan::common(fields, config, id)?;
    for sampling in plan.requests.iter_mut().filter_map(|request| request.sampling.as_mut()) {
        sampling.seed = sampling.seed.filter(|seed| !SEEDS_TO_DRAW.contains(seed));
    }
    Ok(plan)
}

fn shown(fields: &mut Fields) -> Result<AnswerFields, ApiError> {
    let paths = fields.take("response_fields").map(response_fields).transpose()?.unwrap_or_default();
    let probabilities = either(fields, "n_probs", "logprobs")?;
    let alternatives =
        probabilities.map(|f| f.integer(0..=CHAT_LOGPROBS_MAX)).transpose()?.unwrap_or(0) as u32;
    let tokens = fields.flag("return_tokens")?;
    Ok(AnswerFields {
        fields: paths,
        probabilities: alternatives > 0,
        alternatives,
        tokens,
        ..AnswerFields::default()
    })
}

fn probabilities(request: &mut v1::InferRequest, shown: &AnswerFields) {
    (request.logprobs, request.top_logprobs) = (shown.probabilities, shown.alternatives);
}

/// Reads limits that end a completion early. With zero tokens the prompt is only read.
fn line_limits(fields: &mut Fields, plan: &mut RequestPlan) -> Result<plan::MaxTokens, ApiError> {
    let indent = fields.take("n_indent").map(|f| f.integer(0..=u32::MAX)).transpose()?.unwrap_or(0);
    let time = fields.take("t_max_predict_ms").map(|f| f.integer(-1..=i64::from(u32::MAX))).transpose()?;
    let time = time.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0).map(Duration::from_millis);
    let mut max = max_tokens(fields, None, true)?;
    let reads_only = max.tokens == Some(0);
    if reads_only {
        // The prompt is read up to its first token, which is not shown.
        max.tokens = Some(1);
    }
    if reads_only || indent > 0 || time.is_some() {
        plan.line_limits = Some(LineLimits { indent, time, reads_only });
    }
    Ok(max)
}

/// Reads paths of the answer's fields, with names separated by slashes.
fn response_fields(field: Field) -> Result<Vec<String>, ApiError> {
    let list = field.list()?;
    let count = list.clone().count();
    if count > RESPONSE_FIELDS_MAX {
        return Err(field.error(format!("has {count} elements, at most {RESPONSE_FIELDS_MAX}")));
    }
    list.map(Field::string).collect()
}

const PROMPT_EXPECTED: &str =
    "expected a string, an array of token ids, an object with prompt_string, or an array of those";

/// Reads the prompts, and whether they are a list.
fn prompts(field: Field, prompts_max: usize) -> Result<(Vec<Prompt>, bool), ApiError> {
    let Some(list) = field.as_list() else { return Ok((vec![prompt(field)?], false)) };
    let mut kinds = list.clone().map(|one| one.value().is_number());
    let Some(first) = kinds.next() else { return Err(field.error("must not be empty")) };
    let alike = kinds.all(|number| number == first);
    match first {
        true if alike => return Ok((vec![prompt(field)?], false)),
        // Token ids and texts mixed in one prompt.
        _ if !alike => {
            let problem = "tokens and texts in one array are not supported by this build; use an array of token ids, from /tokenize";
            return Err(ApiError::unsupported("prompt", problem));
        }
        _ => {}
    }
    let count = list.clone().count();
    if count > prompts_max {
        return Err(field.error(format!("has {count} prompts, at most {prompts_max}")));
    }
    Ok((list.map(prompt).collect::<Result<_, _>>()?, count > 1))
}

/// Reads one prompt.
fn prompt(field: Field) -> Result<Prompt, ApiError> {
    let value = field.value();
    if value.is_array() {
        let ids = field.token_ids()?;
        return match ids.is_empty() {
            true => Err(field.error("must not be empty")),
            false => Ok(Prompt::Tokens(v1::TokenIds { ids })),
        };
    }
    if value.is_object() {
        let mut object = field.object()?;
        let text = object.require("prompt_string")?.string()?;
        if let Some(media) = object.take("multimodal_data")
            && media.as_list().is_none_or(|mut all| all.next().is_some())
        {
            let problem = "not supported by this build; send pictures to /v1/chat/completions";
            return Err(ApiError::unsupported(&media.path(), problem));
        }
        object.finish()?;
        return Ok(Prompt::Text(text));
    }
    let text = value.as_str().ok_or_else(|| field.error(PROMPT_EXPECTED))?;
    Ok(Prompt::Text(text.into_owned()))
}
