//! Conversion from the engine's types to the wire's.

use std::{sync::Arc, time::Duration};

use hanzo_engine_formats::ReasoningMarkers;
use hanzo_engine_ops::BLOCK_TOKENS;
use hanzo_engine_proto::v1;
use hanzo_engine_runtime::{
    CallDelta, EventKind, FinishReason, Job, ModelInfo, OpenedModel, Task, TextLogprob, TextModel,
    TokenLogprob, ToolFormat, Usage, infill::Infill,
};
use hanzo_engine_store::ModelRecord;

use super::sampling;
use crate::{
    error::{Error, random_u64},
    on_demand::AwaitedLoad,
    served::ServedModel,
    ticket::{JobEnd, JobEvent, Timings},
    unix_time::unix_ms_of,
    views::{AdapterView, ModelView, StateView, WorkerView},
};

/// Data that all events of a request share.
pub(crate) struct EventContext {
    request_id: String,
    model: String,
    text: Arc<TextModel>,
    prompt_tokens: u32,
    seed: u64,
    sampling: v1::Sampling,
    context_tokens_max: u32,
    scored_from: Option<u32>, // the prompt's first token, if the prompt's tokens are scored
    calls: u64,               // seed of the tool calls' ids
    load: Duration,           // time spent waiting for the model to load
}

impl EventContext {
    /// Creates the context of a request that `served` runs as `job`; `model` is the name to report.
    pub(crate) fn new(
        request_id: String,
        model: String,
        served: &ServedModel,
        job: &Job,
        load: Duration,
    ) -> Self {
        Self {
            request_id,
            model,
            text: served.text.clone(),
            prompt_tokens: narrow(job.prompt.len()),
            seed: job.sampling.seed,
            sampling: sampling::done(&job.sampling),
            context_tokens_max: narrow(served.size.context_tokens_max()),
            scored_from: job.prompt.first().copied().filter(|_| job.prompt_logprobs.is_some()),
            calls: random_u64(),
            load,
        }
    }

    /// Number of prompt tokens.
    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }
}

/// Converts one event.
pub(crate) fn event(event: JobEvent, context: &EventContext) -> v1::InferEvent {
    use v1::infer_event::Event as E;
    let choice = event.choice;
    let event = match event.kind {
        EventKind::Started { cached_tokens } => E::Started(v1::Started {
            request_id: context.request_id.clone(),
            model: context.model.clone(),
            prompt_tokens: context.prompt_tokens,
            cached_tokens,
            seed: context.seed,
            sampling: Some(context.sampling.clone()),
            context_tokens_max: context.context_tokens_max,
        }),
        EventKind::Delta { text: answer, reasoning, calls, tokens, logprobs } => E::Delta(v1::Delta {
            choice,
            text: answer,
            reasoning,
            token_ids: tokens,
            logprobs: logprobs.into_iter().map(|logprob| text_logprob(logprob, &context.text)).collect(),
            tool_calls: calls.into_iter().map(|call| tool_call(call, choice, context)).collect(),
        }),
        EventKind::Scored(tokens) => E::PromptLogprobs(v1::PromptLogprobs {
            first: None,
            tokens: tokens.into_iter().map(|logprob| token_logprob(logprob, &context.text)).collect(),
        }),
        // A failed completion is reported by its job's end. The other kinds do not occur in text generation.
        EventKind::Failed
        | EventKind::ConstraintFailed { .. }
        | EventKind::Computed(_)
        | EventKind::Heard(_)
        | EventKind::Said(_)
        | EventKind::Unsayable { .. } => {
            E::Finished(v1::Finished { choice, reason: v1::FinishReason::Error.into(), ..Default::default() })
        }
        EventKind::Finished { reason, stop_string, usage } => {
            let reason = match reason {
                FinishReason::Stop => v1::FinishReason::Stop,
                FinishReason::Length => v1::FinishReason::Length,
                FinishReason::ToolCalls => v1::FinishReason::ToolCalls,
            };
            E::Finished(v1::Finished {
                choice,
                reason: reason.into(),
                stop_string: stop_string.unwrap_or_default(),
                usage: Some(v1::Usage {
                    prompt_tokens: usage.prompt_tokens,
                    cached_tokens: usage.cached_tokens,
                    completion_tokens: usage.completion_tokens,
                    reasoning_tokens: usage.reasoning_tokens,
                    draft_tokens: usage.draft_tokens,
                    accepted_draft_tokens: usage.accepted_draft_tokens,
                }),
                timings: event.timings.map(|measured| timings(measured, &usage, context.load)),
            })
        }
    };
    v1::InferEvent { event: Some(event) }
}

/// Part of a tool call. The first part has an id: the model's own, or else nine letters and digits, because some
/// chat templates accept no other form when the call comes back.
fn tool_call(call: CallDelta, choice: u32, context: &EventContext) -> v1::ToolCallDelta {
    let CallDelta { index, name, id, arguments, broken } = call;
    let own = || {
        // Distinct for each call of a request: the call's position, mixed by a bijection, added to the request's
        // random number.
        let place = (u64::from(choice) << 32 | u64::from(index)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut left = context.calls.wrapping_add(place);
        left ^= left >> 29;
        let mut letter = || {
            const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
            let letter = char::from(LETTERS[(left % 62) as usize]);
            left /= 62;
            letter
        };
        (0..9).map(|_| letter()).collect()
    };
    v1::ToolCallDelta {
        index,
        id: if name.is_some() { id.unwrap_or_else(own) } else { String::new() },
        name: name.unwrap_or_default(),
        arguments_json: arguments,
        broken,
    }
}

/// Prompt text, sent as the first delta of a choice.
pub(crate) fn echo(choice: u32, prompt: &str) -> v1::InferEvent {
    let delta = v1::Delta { choice, text: prompt.to_owned(), ..Default::default() };
    v1::InferEvent { event: Some(v1::infer_event::Event::Delta(delta)) }
}

/// Progress of a model that is being loaded.
pub(crate) fn loading(coming: AwaitedLoad) -> v1::InferEvent {
    let AwaitedLoad { model, percent, waits, left_ms } = coming;
    let loading = v1::Loading { model, percent, waits, left_ms };
    v1::InferEvent { event: Some(v1::infer_event::Event::Loading(loading)) }
}

/// First token of a prompt whose tokens are scored.
pub(crate) fn first_of_prompt(context: &EventContext) -> Option<v1::InferEvent> {
    let first = token_logprob(
        TokenLogprob { token: context.scored_from?, logprob: 0.0, top: Vec::new() },
        &context.text,
    );
    let scored = v1::PromptLogprobs { first: Some(first), ..Default::default() };
    Some(v1::InferEvent { event: Some(v1::infer_event::Event::PromptLogprobs(scored)) })
}

/// Error of a job's end; `None` if it completed.
pub(crate) fn job_end(end: JobEnd) -> Option<Error> {
    match end {
        JobEnd::Done => None,
        JobEnd::Deadline => Some(Error::Deadline),
        JobEnd::Stopped(what) => Some(Error::Stopped { what }),
        JobEnd::NotANumber { error_id } => Some(Error::NotANumber { error_id }),
        JobEnd::Constraint { reason } => Some(Error::field("constraint", reason)),
        JobEnd::Unsayable { reason } => Some(Error::field("text", reason)),
        JobEnd::WorkerFailed { error_id } => Some(Error::Worker { error_id }),
        JobEnd::NotReached { error_id } => Some(Error::WorkerNotReached { error_id }),
    }
}

fn token_logprob(logprob: TokenLogprob, text: &TextModel) -> v1::TokenLogprob {
    let of = |token: u32, logprob: f32| v1::TokenLogprob {
        token_id: token,
        token: text.tokenizer.token_bytes(token).to_vec().into(),
        logprob,
        top: Vec::new(),
    };
    let top = logprob.top.iter().map(|&(token, logprob)| of(token, logprob)).collect();
    v1::TokenLogprob { top, ..of(logprob.token, logprob.logprob) }
}

/// Log probability of a token, with only those of its bytes that are in the text.
fn text_logprob(of: TextLogprob, text: &TextModel) -> v1::TokenLogprob {
    let whole = token_logprob(of.logprob, text);
    let token = of.part.map_or(whole.token, Into::into);
    v1::TokenLogprob { token, ..whole }
}

fn timings(measured: Timings, usage: &Usage, load: Duration) -> v1::Timings {
    let per_s = |tokens: u32, seconds: f64| if seconds > 0.0 { f64::from(tokens) / seconds } else { 0.0 };
    let decode_rate = measured.decode_tokens_per_s(usage.completion_tokens);
    let Timings { queue, prefill, decode } = measured;
    v1::Timings {
        queue_ms: queue.as_secs_f64() * 1e3,
        prefill_ms: prefill.as_secs_f64() * 1e3,
        decode_ms: decode.as_secs_f64() * 1e3,
        // Rate of the computed tokens: cached ones took no time. The first generated token belongs to the prefill.
        prefill_tokens_per_s: per_s(
            usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            prefill.as_secs_f64(),
        ),
        decode_tokens_per_s: decode_rate.unwrap_or_default(),
        load_ms: load.as_secs_f64() * 1e3,
    }
}

/// State of a model.
pub(crate) fn model_status(view: &ModelView) -> v1::ModelStatus {
    let (state, error, load_progress) = match &view.state {
        StateView::Queued => (v1::ModelState::Queued, "", 0.0),
        StateView::Loading { percent } => (v1::ModelState::Loading, "", *percent as f32 / 100.0),
        StateView::Ready => (v1::ModelState::Ready, "", 1.0),
        StateView::Draining => (v1::ModelState::Draining, "", 1.0),
        StateView::Unloaded => (v1::ModelState::Unloaded, "", 0.0),
        StateView::Failed { error } => (v1::ModelState::Failed, error.as_str(), 0.0),
    };
    let mut status = v1::ModelStatus {
        name: view.name.clone(),
        state: state.into(),
        error: error.to_owned(),
        load_progress,
        draft_model: view.draft_model.clone().unwrap_or_default(),
        overrides: view.overrides.clone(),
        keep_alive_ms: view.keep_alive.ms(),
        expires_at_unix_ms: view.expires_at.map_or(0, unix_ms_of),
        ..Default::default()
    };
    if let Some(info) = &view.info {
        status.architecture = info.architecture.clone();
        status.quantization = info.quantization.clone();
        status.parameters = info.parameters;
        status.inputs_not_read = owned(info.not_read);
    }
    if let Some(worker) = &view.worker {
        status.device = worker.device.clone();
        status.capabilities = capabilities(
            [worker.generates, worker.transcribes],
            [worker.has_template, worker.fills_in, worker.sees, worker.hears],
            &worker.embedder.tasks,
        );
        if let Some((format, offered)) = worker.tool_format.filter(|_| worker.generates) {
            status.tool_format = format.name().to_owned();
            if offered {
                status.capabilities.push(v1::Capability::Tools.into());
            }
        }
        status.capabilities.extend(worker.speaks.then_some(i32::from(v1::Capability::Speak)));
        if worker.reasons && worker.generates {
            status.capabilities.push(v1::Capability::Reasoning.into());
        }
        status.embedder = Some(super::embed::embedder(&worker.embedder));
        status.context_tokens_max = narrow(worker.context_tokens_max);
        status.weights_bytes = worker.memory.weights_bytes;
        status.kv_bytes = worker.memory.kv_bytes;
        status.kv_type = worker.kv_type.map_or_else(String::new, |kv_type| kv_type.name().to_owned());
        status.scratch_bytes = worker.memory.scratch_bytes;
        status.loaded_at_unix_ms = worker.loaded_at_unix_ms;
        status.adapters = worker.adapters.iter().map(|of| adapter(&view.name, of)).collect();
        status.requests_running = narrow(worker.requests_running);
        status.requests_waiting = narrow(worker.requests_waiting);
        if let Some(process) = worker.process {
            (status.worker_pid, status.resident_bytes) = (process.pid, process.resident_bytes);
        }
        let trained = view.info.as_ref().map_or(0, |info| info.context_tokens_max);
        status.text = Some(sampling::text(worker, trained));
    }
    status
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Description of an adapter.
pub(crate) fn adapter(model: &str, view: &AdapterView) -> v1::Adapter {
    v1::Adapter {
        name: view.name.clone(),
        model: model.to_owned(),
        path: view.path.display().to_string(),
        format: view.format.to_owned(),
        rank: narrow(view.rank),
        bytes: view.bytes,
        loaded_at_unix_ms: view.loaded_at_unix_ms,
    }
}

/// Capabilities of a model.
fn capabilities(
    [generates, transcribes]: [bool; 2],
    [has_template, fills_in, sees, hears]: [bool; 4],
    tasks: &[Task],
) -> Vec<i32> {
    let own = [
        (generates && has_template, v1::Capability::Chat),
        (generates, v1::Capability::Completion),
        (generates && fills_in, v1::Capability::Infill),
        (sees && if generates { has_template } else { tasks.contains(&Task::Embed) }, v1::Capability::Vision),
        (generates && has_template && hears, v1::Capability::Audio),
        (transcribes, v1::Capability::Transcribe),
    ];
    let task = |task| match task {
        Task::Embed => v1::Capability::Embed,
        Task::EmbedSparse => v1::Capability::EmbedSparse,
        Task::Rerank => v1::Capability::Rerank,
        Task::Classify => v1::Capability::Classify,
    };
    let own = own.into_iter().filter_map(|(can, capability)| can.then_some(capability));
    own.chain(tasks.iter().copied().map(task)).map(i32::from).collect()
}

/// Counters and gauges of a model.
pub(crate) fn model_stats(view: &ModelView) -> v1::ModelStats {
    let counts = &view.counts;
    let stats = v1::ModelStats {
        status: Some(model_status(view)),
        kv_block_tokens: BLOCK_TOKENS as u32,
        requests_finished: counts.finished,
        requests_cancelled: counts.cancelled,
        requests_failed: counts.failed,
        prompt_tokens: counts.prompt_tokens,
        generated_tokens: counts.generated_tokens,
        prefix_hit_tokens: counts.prefix_hit_tokens,
        preemptions: counts.preemptions,
        ..Default::default()
    };
    let Some(WorkerView { stats: engine, queue_capacity, .. }) = &view.worker else { return stats };
    v1::ModelStats {
        kv_blocks_total: narrow(engine.blocks_total),
        kv_blocks_used: narrow(engine.blocks_used),
        kv_blocks_cached: narrow(engine.blocks_cached),
        steps: engine.steps,
        queue_capacity: narrow(*queue_capacity),
        ..stats
    }
}

/// Description of a model in the store.
pub(crate) fn stored_model(record: &ModelRecord, loaded: bool) -> v1::StoredModel {
    v1::StoredModel {
        name: record.name.clone(),
        format: record.format.clone(),
        quantization: record.quantization.clone(),
        size_bytes: record.size_bytes,
        modified_at_unix_ms: record.modified_at_unix_ms(),
        path: record.path.display().to_string(),
        source: record.source.clone(),
        in_place: record.in_place,
        loaded,
        used_at_unix_ms: record.used_at_unix_ms,
        reference: record.reference.clone(),
        revision: record.revision.clone().unwrap_or_default(),
        architecture: record.architecture.clone(),
        parameters: record.parameters,
    }
}

/// Description of a model outside the store: loaded under an alias or without a store, or built into the program.
pub(crate) fn unstored_model(
    name: &str,
    info: Option<&ModelInfo>,
    source: &str,
    loaded: bool,
) -> v1::StoredModel {
    let path = info.and_then(|info| info.files.first()).map(|path| path.display().to_string());
    v1::StoredModel {
        name: name.to_owned(),
        format: info.map(|info| info.format.to_string()).unwrap_or_default(),
        quantization: info.map(|info| info.quantization.clone()).unwrap_or_default(),
        size_bytes: info.map_or(0, |info| info.size_bytes),
        architecture: info.map(|info| info.architecture.clone()).unwrap_or_default(),
        parameters: info.map_or(0, |info| info.parameters),
        path: path.unwrap_or_default(),
        source: source.to_owned(),
        in_place: true,
        loaded,
        ..Default::default()
    }
}

/// Collects all information about a model: from its record in the store, its files and the loaded model, as far as
/// each exists.
pub(crate) fn show(
    name: &str,
    source: &str,
    record: Option<&ModelRecord>,
    files: Option<&OpenedModel>,
    view: Option<&ModelView>,
) -> v1::ShowResponse {
    let loaded = view.is_some_and(|view| view.worker.is_some());
    let info = files.map(OpenedModel::info);
    let template = files.and_then(|files| files.text_files().chat_template.clone());
    let can = |files: &OpenedModel| {
        let sees = files.decoder().is_some_and(|files| files.tower.is_some());
        let hears = files.decoder().is_some_and(|files| files.ear.is_some());
        let text = [template.is_some(), Infill::is_in(files.text_files()), sees, hears];
        capabilities([files.generates(), files.whisper().is_some()], text, &files.tasks())
    };
    let generates = files.is_some_and(OpenedModel::generates);
    let mut own = files.map(can).unwrap_or_default();
    own.extend(files.filter(|files| files.speaks()).map(|_| i32::from(v1::Capability::Speak)));
    let offered = template.as_deref().filter(|_| generates).and_then(ToolFormat::of_template);
    own.extend(offered.map(|_| i32::from(v1::Capability::Tools)));
    let reasons = template.as_deref().filter(|_| generates).is_some_and(has_reasoning);
    own.extend(reasons.then_some(i32::from(v1::Capability::Reasoning)));
    let tool_format = match view.and_then(|view| view.worker.as_ref()?.tool_format) {
        Some((format, _)) if generates => Some(format),
        _ => offered.or(template.as_ref().filter(|_| generates).map(|_| ToolFormat::Hermes)),
    };
    let shown = v1::ShowResponse {
        capabilities: own,
        tool_format: tool_format.map_or_else(String::new, |format| format.name().to_owned()),
        chat_template: template.unwrap_or_default(),
        status: view.map(model_status),
        inputs_not_read: info.map_or_else(Vec::new, |info| owned(info.not_read)),
        ..Default::default()
    };
    match record {
        Some(record) => {
            let beside = record.side_texts();
            v1::ShowResponse {
                model: Some(stored_model(record, loaded)),
                architecture: record.architecture.clone(),
                parameters: record.parameters,
                context_tokens_max: record.context_tokens_max,
                license: record.license.clone().unwrap_or_default(),
                files: stored_files(record),
                system: beside.system.unwrap_or_default(),
                params_json: beside.params.unwrap_or_default(),
                source_template: beside.template.unwrap_or_default(),
                license_text: beside.license.unwrap_or_default(),
                ..shown
            }
        }
        None => v1::ShowResponse {
            model: Some(unstored_model(name, info, source, loaded)),
            architecture: info.map(|info| info.architecture.clone()).unwrap_or_default(),
            parameters: info.map_or(0, |info| info.parameters),
            context_tokens_max: info.map_or(0, |info| info.context_tokens_max),
            license: info.and_then(|info| info.license.clone()).unwrap_or_default(),
            ..shown
        },
    }
}

/// Checks whether a template has a reasoning section, by its text alone.
fn has_reasoning(template: &str) -> bool {
    ReasoningMarkers::of(template, |_| false).is_some()
        || ToolFormat::of_template(template) == Some(ToolFormat::Harmony)
}

/// Files of a model in the store.
fn stored_files(record: &ModelRecord) -> Vec<v1::StoredFile> {
    let file = |file: &hanzo_engine_store::FileRecord| v1::StoredFile {
        path: file.path.display().to_string(),
        size_bytes: file.size_bytes,
        sha256: file.sha256.clone().unwrap_or_default(),
        role: super::store::role(file.role).to_owned(),
        held: super::store::held(file.held).to_owned(),
    };
    record.files.iter().map(file).collect()
}

/// Converts a count to the wire's 32 bits; no real count comes near the limit.
fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
