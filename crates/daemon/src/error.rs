//! Errors for clients, and the single table that maps them to gRPC statuses. Messages of INVALID_ARGUMENT start
//! with the field's name. The metadata has the machine-readable parts: `error-code`, `retry-after-ms`, `error-id`.
//! Longer than 600 lines because every error has its status here, in one table.

use std::sync::Arc;

use hanzo_engine_access::INPUTS_OVER;
use hanzo_engine_ops::KernelError;
use hanzo_engine_runtime::{LoadError, RequestError, printable};
use hanzo_engine_store::{PullError, RESERVED_NAMES, StoreError, nearest_name};
use tonic::{Code, Status, metadata::MetadataMap};

use crate::limits::{
    MESSAGE_CHARS_MAX, NAMES_LISTED_MAX, QUOTE_BYTES_MAX, RETRY_AFTER_MS_MAX, RETRY_AFTER_MS_MIN,
};

/// Reason why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Error {
    /// A field is invalid.
    #[error("{field}: {reason}")]
    Field { field: String, reason: String },
    /// The runtime refuses the request.
    #[error(transparent)]
    Request(RequestError),
    /// An input among several cannot be embedded.
    #[error("{place}: {}", what(error))]
    Input { place: String, error: RequestError },
    /// No model with this name is loaded.
    #[error(
        "model: {} is not loaded; {}loaded: {}; in the store: {}",
        quote(asked),
        meant(asked, &[loaded.as_slice(), stored.as_slice()].concat()),
        list(loaded),
        list(stored)
    )]
    NotLoaded { asked: String, loaded: Vec<String>, stored: Vec<String> },
    /// The model has no such adapter.
    #[error(
        "model: {model} has no adapter {}; loaded: {}; load one with `hanzo-engine adapter load` or gRPC's LoadAdapter",
        quote(asked),
        list(loaded)
    )]
    NoAdapter { asked: String, model: String, loaded: Vec<String> },
    /// An adapter cannot be loaded for the model.
    #[error("adapter: {}", .0.reason)]
    Adapter(Arc<Failure>),
    /// The model has a different adapter with that name.
    #[error(
        "adapter: {model} has another {name} already, loaded from {loaded_from}; unload it first, or give this one another name"
    )]
    AdapterTaken { name: String, model: String, loaded_from: String },
    /// The name matches nothing that could be loaded.
    #[error(
        "model: {} is neither in the store nor a path here; {}in the store: {}",
        quote(asked),
        meant(asked, stored),
        list(stored)
    )]
    NoSource { asked: String, stored: Vec<String> },
    /// The model is not on this machine but can be pulled.
    #[error("model: {} is not in the store; pull it first: {reference}", quote(asked))]
    NotPulled { asked: String, reference: String },
    /// The model is stored but not loaded.
    #[error(
        "model: {} is stored here and not loaded; load it with `hanzo-engine run {name}` beside this server or by \
         gRPC's Load, or start the server with --model {name}; loaded: {}",
        quote(asked),
        list(loaded)
    )]
    OnlyStored { asked: String, name: String, loaded: Vec<String> },
    /// The request names no model, and several qualify or none does.
    #[error("model: {}", unnamed(wanted, able, loaded))]
    Unnamed { wanted: String, able: Vec<String>, loaded: Vec<String> },
    /// Several models match the name.
    #[error("model: {} may be any of {}; name one with its owner", quote(asked), list(candidates))]
    Ambiguous { asked: String, candidates: Vec<String> },
    /// The model is still being loaded.
    #[error("model {name} {}; try again in a moment", loading(*percent, *waits))]
    Loading {
        name: String,
        percent: u32,
        /// Whether it waits for other models to make room.
        waits: bool,
        /// Estimated time until it is ready, if known.
        retry_after_ms: Option<u64>,
    },
    /// The model is being unloaded.
    #[error("model {name} is being unloaded")]
    Unloading { name: String },
    /// The model's worker died, or its load failed.
    #[error("model {name} has failed ({}): {}", .failure.id, .failure.reason)]
    Failed { name: String, failure: Arc<Failure>, retry_after_ms: Option<u64> },
    /// The load failed; for the client that requested it.
    #[error("{}", .0.reason)]
    Load(Arc<Failure>),
    /// The name is taken by a model from another source.
    #[error(
        "model {name} is loaded from {source_loaded} already; unload it first, or give this one an alias"
    )]
    NameTaken { name: String, source_loaded: String },
    /// The model is loaded with other options than requested.
    #[error(
        "model {name} is loaded already, with another context, KV cache, tool format, draft model or overrides; unload it first, \
         or leave context_tokens_max, kv_bytes, tool_format, draft_model and overrides out"
    )]
    LoadedOtherwise { name: String },
    /// The model is loaded, but the store has no record of it to remove.
    #[error("model: {name} is not in the store: it is loaded from {source_loaded}; unload it instead")]
    NotStored { name: String, source_loaded: String },
    /// The model is built into the program.
    #[error("model: {name} is built into this program and is in no store: it can be unloaded, not removed")]
    BuiltIn { name: &'static str },
    /// The maximum number of models is loaded.
    #[error(
        "{models_max} models are loaded, which is the most, and all are pinned or work; unload one first"
    )]
    TooManyModels { models_max: usize },
    /// The model does not support the task.
    #[error("model {model} cannot {wanted}; it can {}", can.join(", "))]
    CannotDo { model: String, wanted: &'static str, can: Vec<&'static str> },
    /// The model's queue is full.
    #[error(
        "model {model} has {capacity} requests waiting, which is the most; try again in {retry_after_ms} ms"
    )]
    QueueFull { model: String, capacity: usize, retry_after_ms: u64 },
    /// Queued and running requests hold all memory for pictures.
    #[error(
        "the pictures of model {model}'s requests take {bytes_max} bytes, which is the most; try again in {retry_after_ms} ms"
    )]
    PicturesFull { model: String, bytes_max: usize, retry_after_ms: u64 },
    /// The sound has more bytes than allowed.
    #[error("data: {reason}")]
    SoundTooLarge { reason: String },
    /// The inputs take more tokens than the call may.
    #[error("{field}: take over {most} tokens together, which is the most that this call may")]
    InputsOver { field: &'static str, most: u32 },
    /// A short task did not get CPU time.
    #[error("{what} took over {seconds} seconds: the engine has too much to do; try again later")]
    Busy { what: &'static str, seconds: u64 },
    /// The client's deadline has passed.
    #[error("the request's deadline is over")]
    Deadline,
    /// The daemon is shutting down.
    #[error("the engine is shutting down; try again in {retry_after_ms} ms, or another one now")]
    Draining { retry_after_ms: u64 },
    /// The model or the daemon stopped before the request ended.
    #[error("{what} before the request had ended")]
    Stopped { what: &'static str },
    /// The worker died during the request, which may be the cause.
    #[error(
        "the model's worker failed while it had the request, and is started again; the request can be sent again, and the log has \
         more under {error_id}"
    )]
    Worker { error_id: String },
    /// The model computed NaN or infinite numbers.
    #[error(
        "the model computed something that is not a number for this prompt; other requests are not concerned \
         ({error_id})"
    )]
    NotANumber { error_id: String },
    /// The worker died before it reached the request.
    #[error("the model's worker failed before it came to the request; it is being restarted ({error_id})")]
    WorkerNotReached { error_id: String },
    /// The store refused the operation.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// A pull failed.
    #[error(transparent)]
    Pull(Arc<PullError>),
    /// There is no store.
    #[error("this engine runs without a model store: {reason}")]
    NoStore { reason: String },
    /// An internal failure that no request can cause.
    #[error("internal error: {what} ({error_id})")]
    Internal { what: &'static str, error_id: String },
}

/// Failure of a load or a worker; the log repeats its `id`.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) id: String,
    pub(crate) reason: FailureReason,
}

/// Reason of a [`Failure`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum FailureReason {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source of the model was not found or is not accessible.
    #[error("{0}")]
    Source(String),
    #[error(transparent)]
    Step(#[from] hanzo_engine_runtime::StepError),
    #[error("the worker panicked: {}", printable(.0, MESSAGE_CHARS_MAX))]
    Panic(String),
    #[error("no thread for the worker: {0}")]
    Thread(std::io::Error),
    #[error("the worker ended unexpectedly")]
    Lost,
}

impl Failure {
    /// Creates a failure with a new id.
    pub(crate) fn new(reason: impl Into<FailureReason>) -> Arc<Self> {
        Arc::new(Self { id: error_id(), reason: reason.into() })
    }
}

/// Path of a field in its request, as in `engine.proto`.
fn protocol_field(field: &'static str) -> &'static str {
    match field {
        "temperature" => "sampling.temperature",
        "top_k" => "sampling.top_k",
        "top_p" => "sampling.top_p",
        "min_p" => "sampling.min_p",
        "repetition_penalty" => "sampling.repetition_penalty",
        "frequency_penalty" => "sampling.frequency_penalty",
        "presence_penalty" => "sampling.presence_penalty",
        "logit_bias" => "sampling.logit_bias",
        "typical_p" => "sampling.typical_p",
        "top_n_sigma" => "sampling.top_n_sigma",
        "xtc_probability" => "sampling.xtc_probability",
        "xtc_threshold" => "sampling.xtc_threshold",
        "dynatemp_range" => "sampling.dynatemp_range",
        "dynatemp_exponent" => "sampling.dynatemp_exponent",
        "mirostat_tau" => "sampling.mirostat_tau",
        "mirostat_eta" => "sampling.mirostat_eta",
        "dry_multiplier" => "sampling.dry_multiplier",
        "dry_base" => "sampling.dry_base",
        "dry_sequence_breakers" => "sampling.dry_sequence_breakers",
        "max_tokens" => "stop.max_tokens",
        "min_tokens" => "stop.min_tokens",
        "stop" => "stop.strings",
        "stop_token_ids" => "stop.token_ids",
        "messages" => "chat.messages",
        "continue_final_message" => "chat.continue_final_message",
        "template_kwargs_json" => "chat.template_kwargs_json",
        same => same,
    }
}

fn loading(percent: u32, waits: bool) -> String {
    match waits {
        true => "waits until other models have made room for it".to_owned(),
        false => format!("is loading ({percent} %)"),
    }
}

fn unnamed(wanted: &str, able: &[String], loaded: &[String]) -> String {
    match able {
        [] => format!("name one of those that {wanted}, of which none is ready; loaded: {}", list(loaded)),
        able => format!("name one of those that {wanted}: {}", list(able)),
    }
}

/// Message of the error without the field.
fn what(error: &RequestError) -> String {
    let said = error.to_string();
    let named = ["inputs: ", "prompt: "].iter().find_map(|name| said.strip_prefix(name));
    named.unwrap_or(&said).to_owned()
}

impl Error {
    /// Error of an invalid field.
    pub(crate) fn field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Field { field: field.into(), reason: reason.into() }
    }

    /// gRPC status code of the error: the table.
    pub(crate) fn code(&self) -> Code {
        use Error as E;
        match self {
            E::Field { .. } | E::Unnamed { .. } | E::Ambiguous { .. } => Code::InvalidArgument,
            E::Request(RequestError::NoChatTemplate { .. }) => Code::FailedPrecondition,
            // Final: another engine would count the same tokens.
            E::Input { .. } | E::InputsOver { .. } => Code::InvalidArgument,
            E::Request(
                RequestError::Invalid { .. }
                | RequestError::ContextLength { .. }
                | RequestError::InputLength { .. }
                | RequestError::TooLong { .. }
                | RequestError::NoRoom { .. },
            ) => Code::InvalidArgument,
            E::CannotDo { .. } | E::NotStored { .. } | E::BuiltIn { .. } => Code::FailedPrecondition,
            E::NotLoaded { .. } | E::OnlyStored { .. } | E::NoAdapter { .. } => Code::NotFound,
            E::AdapterTaken { .. } => Code::FailedPrecondition,
            E::Adapter(failure) => match &failure.reason {
                FailureReason::Load(error) => match load_code(error) {
                    // The fault lies in the file that the request names.
                    Code::FailedPrecondition => Code::InvalidArgument,
                    code => code,
                },
                _ => Code::Internal,
            },
            E::NoSource { .. } | E::NotPulled { .. } => Code::NotFound,
            E::NameTaken { .. } | E::LoadedOtherwise { .. } | E::NoStore { .. } => Code::FailedPrecondition,
            E::QueueFull { .. }
            | E::PicturesFull { .. }
            | E::SoundTooLarge { .. }
            | E::TooManyModels { .. } => Code::ResourceExhausted,
            E::Loading { .. } | E::Unloading { .. } | E::Failed { .. } | E::Busy { .. } => Code::Unavailable,
            E::Draining { .. } | E::Stopped { .. } | E::WorkerNotReached { .. } => Code::Unavailable,
            // Not UNAVAILABLE, so that a request that may have crashed a worker is not retried on another daemon
            // without its client's consent.
            E::Worker { .. } => Code::Aborted,
            E::NotANumber { .. } | E::Internal { .. } => Code::Internal,
            E::Deadline | E::Request(RequestError::Interrupted) => Code::DeadlineExceeded,
            E::Store(error) => store_code(error),
            E::Pull(error) => pull_code(error),
            E::Load(failure) => match &failure.reason {
                FailureReason::Load(error) => load_code(error),
                FailureReason::Store(error) => store_code(error),
                FailureReason::Source(_) => Code::NotFound,
                FailureReason::Step(_) | FailureReason::Panic(_) => Code::Internal,
                FailureReason::Thread(_) | FailureReason::Lost => Code::Internal,
            },
        }
    }

    /// Value of `error-code`, for details that a status code does not express.
    fn word(&self) -> Option<&'static str> {
        match self {
            Error::Request(error) | Error::Input { error, .. } => match error {
                RequestError::ContextLength { .. }
                | RequestError::InputLength { .. }
                | RequestError::TooLong { .. }
                | RequestError::NoRoom { .. } => Some("context_length_exceeded"),
                _ => None,
            },
            Error::NotPulled { .. } => Some("not_pulled"),
            Error::SoundTooLarge { .. } => Some("message_too_large"),
            Error::OnlyStored { .. } => Some("model_not_loaded"),
            Error::InputsOver { .. } => Some(INPUTS_OVER),
            _ => None,
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        let ms = match self {
            Error::QueueFull { retry_after_ms, .. }
            | Error::PicturesFull { retry_after_ms, .. }
            | Error::Draining { retry_after_ms } => *retry_after_ms,
            Error::Failed { retry_after_ms, .. } => (*retry_after_ms)?,
            Error::Loading { retry_after_ms: Some(ms), .. } => *ms,
            Error::Loading { .. }
            | Error::Unloading { .. }
            | Error::Busy { .. }
            | Error::Worker { .. }
            | Error::WorkerNotReached { .. } => crate::limits::RETRY_AFTER_MS_UNMEASURED,
            _ => return None,
        };
        Some(ms.clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX))
    }

    fn error_id(&self) -> Option<&str> {
        match self {
            Error::Failed { failure, .. } | Error::Load(failure) | Error::Adapter(failure) => {
                Some(&failure.id)
            }
            Error::Worker { error_id }
            | Error::NotANumber { error_id }
            | Error::WorkerNotReached { error_id } => Some(error_id),
            Error::Internal { error_id, .. } => Some(error_id),
            _ => None,
        }
    }

    /// Outcome in metrics and logs: the status code in snake case.
    pub(crate) fn outcome(&self) -> &'static str {
        outcome(self.code())
    }

    /// Reason for `requests_rejected_total`, if the request was valid but the daemon could not accept it.
    pub(crate) fn rejection(&self) -> Option<&'static str> {
        match self {
            Error::QueueFull { .. } | Error::PicturesFull { .. } => Some("queue_full"),
            Error::Draining { .. } => Some("draining"),
            Error::Loading { .. } => Some("loading"),
            Error::Unloading { .. } => Some("unloading"),
            Error::Busy { .. } => Some("busy"),
            Error::Failed { .. } | Error::WorkerNotReached { .. } => Some("failed"),
            _ => None,
        }
    }
}

impl From<RequestError> for Error {
    /// Replaces the runtime's field names by the protocol's.
    fn from(error: RequestError) -> Self {
        Error::Request(match error {
            RequestError::Invalid { field, reason } => {
                RequestError::Invalid { field: protocol_field(field), reason }
            }
            other => other,
        })
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Error::Store(Arc::new(error))
    }
}

impl From<PullError> for Error {
    fn from(error: PullError) -> Self {
        Error::Pull(Arc::new(error))
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let mut metadata = MetadataMap::new();
        let retry_after = error.retry_after_ms().map(|ms| ms.to_string());
        let entries = [
            ("error-code", error.word()),
            ("retry-after-ms", retry_after.as_deref()),
            ("error-id", error.error_id()),
        ];
        for (key, value) in entries {
            if let Some(value) = value.and_then(|value| value.parse().ok()) {
                metadata.insert(key, value);
            }
        }
        // Quoted text from a file or a request becomes a single line that is safe to show.
        Status::with_metadata(error.code(), printable(&error.to_string(), MESSAGE_CHARS_MAX), metadata)
    }
}

fn load_code(error: &LoadError) -> Code {
    match error {
        LoadError::DoesNotFit { .. } => Code::ResourceExhausted,
        LoadError::Kernel(KernelError::OutOfMemory { .. }) => Code::ResourceExhausted,
        LoadError::Kernel(KernelError::Device { .. }) => Code::Internal,
        LoadError::Io { source, .. } if is_missing(source) => Code::NotFound,
        // The file is at fault, and the error names the position.
        _ => Code::FailedPrecondition,
    }
}

/// Whether the path does not exist. `a.gguf/b` does not exist either if `a.gguf` is a file.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

fn store_code(error: &StoreError) -> Code {
    match error {
        StoreError::NotFound { .. } => Code::NotFound,
        StoreError::Ambiguous { .. } | StoreError::BadName { .. } => Code::InvalidArgument,
        StoreError::BadReference { .. } | StoreError::BadAlias { .. } => Code::InvalidArgument,
        StoreError::Archive { .. } | StoreError::Unreadable { .. } => Code::InvalidArgument,
        StoreError::NoBlob { .. } | StoreError::OtherBlob { .. } => Code::InvalidArgument,
        StoreError::DiskFull { .. } => Code::ResourceExhausted,
        StoreError::Busy { .. } => Code::FailedPrecondition,
        StoreError::NameTaken { .. } => Code::AlreadyExists,
        StoreError::Limit { .. } => Code::ResourceExhausted,
        StoreError::Locked { .. } => Code::Unavailable,
        StoreError::File { source, .. } if is_missing(source) => Code::NotFound,
        StoreError::File { .. } | StoreError::Corrupt { .. } => Code::FailedPrecondition,
        _ => Code::Internal,
    }
}

fn pull_code(error: &PullError) -> Code {
    match error {
        PullError::Store(error) => store_code(error),
        PullError::NotFound { .. } => Code::NotFound,
        PullError::Forbidden { .. } => Code::PermissionDenied,
        PullError::Choice { .. } => Code::InvalidArgument,
        PullError::Status { .. } | PullError::Network { .. } | PullError::Unsteady { .. } => {
            Code::Unavailable
        }
        PullError::DigestMismatch { .. } => Code::DataLoss,
        PullError::Cancelled => Code::Cancelled,
        PullError::TooMany { .. } => Code::ResourceExhausted,
        PullError::Disk { source, .. } if is_missing(source) => Code::NotFound,
        PullError::Disk { .. } | PullError::Internal(_) => Code::Internal,
        // The source or this machine's setup is at fault.
        _ => Code::FailedPrecondition,
    }
}

/// Name of a status code in metrics and logs.
pub(crate) fn outcome(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

/// New id that appears both in the message and in the log.
pub(crate) fn error_id() -> String {
    format!("err-{:016x}", random_u64())
}

/// 64 random bits from the standard library's keyed hasher, whose key comes from the system's random generator.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    // The second half of the key is a counter per thread; hashing mixes it.
    RandomState::new().build_hasher().finish()
}

/// Quotes a part of the input for a message: in quotes, escaped and truncated.
pub(crate) fn quote(input: &str) -> String {
    let mut cut = input.len().min(QUOTE_BYTES_MAX);
    while !input.is_char_boundary(cut) {
        cut -= 1;
    }
    let ellipsis = if cut < input.len() { "…" } else { "" };
    format!("{:?}{ellipsis}", &input[..cut])
}

/// Suggestion of the model that was probably meant.
fn meant(asked: &str, known: &[String]) -> String {
    if asked.len() > QUOTE_BYTES_MAX {
        return String::new();
    }
    let names = known.iter().map(String::as_str).chain(RESERVED_NAMES);
    nearest_name(asked, names).map_or_else(String::new, |name| format!("did you mean {name}? "))
}

fn list(names: &[String]) -> String {
    match names.len() {
        0 => "none".to_owned(),
        n if n <= NAMES_LISTED_MAX => names.join(", "),
        n => format!("{} and {} more", names[..NAMES_LISTED_MAX].join(", "), n - NAMES_LISTED_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: impl Into<Error>) -> (Code, String, Option<String>, Option<String>) {
        let status = Status::from(error.into());
        let metadata = |key| status.metadata().get(key).map(|value| value.to_str().unwrap().to_owned());
        (status.code(), status.message().to_owned(), metadata("error-code"), metadata("retry-after-ms"))
    }

    #[test]
    fn a_wrong_field_is_named_first() {
        let (code, message, ..) = check(RequestError::invalid("temperature", "must be 0 to 2, not 3"));
        assert_eq!(
            (code, message.as_str()),
            (Code::InvalidArgument, "sampling.temperature: must be 0 to 2, not 3")
        );
    }

    #[test]
    fn over_length_gives_both_numbers_and_a_code() {
        let error =
            RequestError::ContextLength { prompt_tokens: 70, completion_tokens: 5, context_tokens_max: 64 };
        let (code, message, word, _) = check(error);
        assert_eq!((code, word.as_deref()), (Code::InvalidArgument, Some("context_length_exceeded")));
        assert!(message.contains("70") && message.contains("64"), "{message}");
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let (code, _, _, retry) =
            check(Error::QueueFull { model: "m".into(), capacity: 4, retry_after_ms: 2500 });
        assert_eq!((code, retry.as_deref()), (Code::ResourceExhausted, Some("2500")));
        let (.., retry) =
            check(Error::QueueFull { model: "m".into(), capacity: 4, retry_after_ms: u64::MAX });
        assert_eq!(retry.as_deref(), Some("60000"));
    }

    #[test]
    fn an_unknown_model_lists_what_there_is_and_echoes_little() {
        let loaded = (0..50).map(|i| format!("m{i}")).collect();
        let (code, message, ..) =
            check(Error::NotLoaded { asked: "é\n".repeat(5000), loaded, stored: vec![] });
        assert_eq!(code, Code::NotFound);
        assert!(message.len() < 1000 && message.contains("m19 and 30 more"), "{message}");
    }

    #[test]
    fn a_load_that_does_not_fit_keeps_its_numbers() {
        let error = LoadError::DoesNotFit {
            model: "m".into(),
            needed_bytes: 30,
            weights_bytes: 10,
            kv_bytes: 10,
            scratch_bytes: 10,
            free_bytes: 20,
            hint: "; x".into(),
        };
        let status = Status::from(Error::Load(Failure::new(error)));
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("30 bytes") && status.message().contains("20 are free"));
        assert!(status.metadata().get("error-id").is_some());
    }

    #[test]
    fn ids_differ() {
        assert_ne!(random_u64(), random_u64());
    }
}
