//! Parses llama.cpp's `/completion` and `/infill` requests into a plan and the parts of the answer to show.

use std::time::Duration;

use hanzo_engine_proto::v1::{self, infer_request::Prompt};

use crate::{
    config::Config,
    declare::{Declaration as _, Integer, Natural as _, Raw, Read, fields},
    error::ApiError,
    fields::{Field, Fields},
    limits::{INFILL_FILES_MAX, RESPONSE_FIELDS_MAX},
    names::SentFields,
    openai::{
        lines::LineLimits,
        plan::{ALTERNATIVES, GenerationFields, LengthFields, MaxTokens, RequestPlan, set_max_tokens},
    },
    request::one_of,
    request_id::RequestId,
    unsupported::{COMMON, COMPLETION, HARMLESS, INFILL, LLAMA, LLAMA_PROMPT},
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
    /// Whether a whole answer shows its token ids.
    pub(super) tokens: bool,
    /// Prompts as received; empty for an infill request.
    pub(super) prompts: Vec<Prompt>,
    /// Whether the answer is a list.
    pub(super) listed: bool,
}

fields! {
    /// Fields that completions and infill requests share.
    pub(crate) struct LlamaFields<'a> {
        ..generation: GenerationFields<'a>,
        ..length: LengthFields,
        /// Paths of the fields in a whole answer; all if empty.
        response_fields?: Vec<String> = Read("string[]", response_fields),
        /// Number of alternatives of each token. Its probability is sent.
        n_probs?: u32 = ALTERNATIVES,
        /// Second name of n_probs.
        logprobs?: u32 = ALTERNATIVES,
        /// Whether a whole answer has its token ids. Streams always have them.
        return_tokens: bool,
        /// Indentation, in columns: a line with less ends the answer.
        n_indent?: u32 = Integer(0..=u32::MAX),
        /// Time in milliseconds after which the answer ends with its line; 0 or -1 for no limit.
        t_max_predict_ms?: i64 = Integer(-1..=i64::from(u32::MAX)),
    }
}

fields! {
    /// Body of `POST /completion`. A seed of -1 draws one.
    pub(crate) struct LlamaCompletionRequest<'a> inert [&COMMON, &COMPLETION, &LLAMA, &HARMLESS] {
        ..llama: LlamaFields<'a>,
        /// Prompt as text or tokens, or several prompts.
        prompt: Field<'a> = Raw("string | LlamaPrompt | integer 0..4294967295[1..] | (string | LlamaPrompt | integer 0..4294967295[1..])[1..]"),
        /// Whether a text may contain control tokens.
        parse_special?: bool,
    }
}

fields! {
    /// Prompt as an object.
    pub(crate) struct LlamaPrompt inert [&LLAMA_PROMPT] {
        /// Text of the prompt.
        prompt_string: String,
    }
}

fields! {
    /// Body of `POST /infill`. A seed of -1 draws one.
    pub(crate) struct InfillRequest<'a> inert [&COMMON, &COMPLETION, &INFILL, &HARMLESS] {
        ..llama: LlamaFields<'a>,
        /// Text before the gap.
        input_prefix: String,
        /// Text behind the gap.
        input_suffix: String,
        /// Text that the gap begins with.
        prompt?: String,
        /// Other files, as context.
        input_extra?: Vec<v1::SourceFile> = Read("SourceFile[]", files),
    }
}

fields! {
    /// File beside the one that is edited.
    pub(crate) struct SourceFile<'a> {
        /// Content of the file.
        text: String,
        /// Name of the file.
        filename?: String,
        /// Time of the file's last use, which some editors send.
        #[expect(dead_code, reason = "changes nothing")]
        time?: Field<'a> = Raw("any"),
    }
}

/// Parses a completion request of one or several texts.
pub(super) fn completion(
    mut fields: Fields,
    config: &Config,
    id: &RequestId,
) -> Result<CompletionRequest, ApiError> {
    let sent = SentFields::of(&fields);
    let given = LlamaCompletionRequest::read(&mut fields)?;
    fields.finish()?;
    let (mut plan, mut shown, max) = given.llama.plan(sent, config, id)?;
    let (prompts, several) = prompts(given.prompt, config.prompts_max)?;
    shown.listed = several || plan.choices > 1;
    shown.prompts.clone_from(&prompts);
    let mut base = plan.requests.remove(0);
    set_max_tokens(&mut base, &max)?;
    let several = prompts.len() > 1;
    plan.requests = (0..)
        .zip(prompts)
        .map(|(at, prompt)| v1::InferRequest {
            parse_special: given.parse_special.filter(|_| matches!(prompt, Prompt::Text(_))),
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
    let sent = SentFields::of(&fields);
    let given = InfillRequest::read(&mut fields)?;
    fields.finish()?;
    let (mut plan, mut shown, max) = given.llama.plan(sent, config, id)?;
    let (files, middle) = (given.input_extra.unwrap_or_default(), given.prompt.unwrap_or_default());
    shown.listed = plan.choices > 1;
    for request in &mut plan.requests {
        set_max_tokens(request, &max)?;
        request.prompt = Some(Prompt::Text(given.input_prefix.clone()));
        request.suffix = given.input_suffix.clone();
        request.infill = Some(v1::Infill { files: files.clone(), middle: middle.clone() });
    }
    Ok(CompletionRequest { plan, shown })
}

/// Reads the files of an infill request.
fn files(field: Field) -> Result<Vec<v1::SourceFile>, ApiError> {
    let list = field.list()?;
    let count = list.clone().count();
    if count > INFILL_FILES_MAX {
        return Err(field.error(format!("has {count} elements, at most {INFILL_FILES_MAX}")));
    }
    let file = |file: Field| {
        let SourceFile { text, filename, .. } = SourceFile::of(file)?;
        Ok(v1::SourceFile { name: filename.unwrap_or_else(|| "tmp".to_owned()), text })
    };
    list.map(file).collect()
}

impl LlamaFields<'_> {
    /// Plan of one request without a prompt, the parts of the answer to show, and its maximum length.
    fn plan(
        self,
        sent: SentFields,
        config: &Config,
        id: &RequestId,
    ) -> Result<(RequestPlan, AnswerFields, MaxTokens), ApiError> {
        let mut plan = self.generation.plan(sent, config, id)?;
        let alternatives = one_of(("n_probs", self.n_probs), ("logprobs", self.logprobs))?.unwrap_or(0);
        for request in &mut plan.requests {
            (request.logprobs, request.top_logprobs) = (alternatives > 0, alternatives);
            if let Some(sampling) = &mut request.sampling {
                sampling.seed = sampling.seed.filter(|seed| !SEEDS_TO_DRAW.contains(seed));
            }
        }
        let indent = self.n_indent.unwrap_or(0);
        let time = self.t_max_predict_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
        let time = time.map(Duration::from_millis);
        // With zero tokens the prompt is only read.
        let mut max = self.length.limit(None, true)?;
        let reads_only = max.tokens == Some(0);
        if reads_only {
            // The prompt is read up to its first token, which is not shown.
            max.tokens = Some(1);
        }
        if reads_only || indent > 0 || time.is_some() {
            plan.line_limits = Some(LineLimits { indent, time, reads_only });
        }
        let shown = AnswerFields {
            fields: self.response_fields.unwrap_or_default(),
            probabilities: alternatives > 0,
            tokens: self.return_tokens,
            ..AnswerFields::default()
        };
        Ok((plan, shown, max))
    }
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
        return Ok(Prompt::Text(LlamaPrompt::of(field)?.prompt_string));
    }
    let text = value.as_str().ok_or_else(|| field.error(PROMPT_EXPECTED))?;
    Ok(Prompt::Text(text.into_owned()))
}
