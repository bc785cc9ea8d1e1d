//! Fixed bounds. Those that an operator may want to change are in [`Config`](crate::Config).

use std::time::Duration;

/// Maximum setting in seconds: a week, which can be added to any clock.
pub(crate) const SECONDS_MAX: u64 = 7 * 24 * 3600;
/// Maximum bytes of an error's `message`, so that validation echoes no more of the input.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024;
/// Maximum bytes of an error's `param`.
pub(crate) const PARAM_BYTES_MAX: usize = 128;
/// Maximum characters of the input that a message quotes.
pub(crate) const QUOTE_CHARS_MAX: usize = 64;
/// Maximum nesting of arrays and objects in a body: the limit of other JSON parsers, including the engine's.
pub(crate) const JSON_DEPTH_MAX: usize = 128;
/// Maximum fields of a JSON object that is read field by field, such as `logit_bias`. Objects that are passed
/// on are exempt.
pub(crate) const OBJECT_FIELDS_MAX: usize = 16_384;
/// Maximum messages of a chat, the same as the daemon's.
pub(crate) const CHAT_MESSAGES_MAX: usize = 16_384;
/// Maximum tools of a chat, the same as the daemon's.
pub(crate) const CHAT_TOOLS_MAX: usize = 1_024;
/// Maximum content parts of a message, and tool calls in it.
pub(crate) const CHAT_PARTS_MAX: usize = 16_384;
/// Maximum bytes of a body that is parsed on the async thread. Larger ones are parsed on a blocking thread, so
/// that other requests need not wait.
pub(crate) const INLINE_BODY_BYTES: usize = 32 << 10;
/// Maximum large bodies that are parsed at the same time.
pub(crate) const BODIES_READ_MAX: usize = 4;
/// Step by which a body's share of `Config::bodies_bytes_max` grows as it arrives.
pub(crate) const BODY_STEP_BYTES: usize = 64 << 10;
/// Window in which [`BODY_WINDOW_BYTES`] of a body must arrive; a client that sends less gets 408.
pub(crate) const BODY_WINDOW: Duration = Duration::from_secs(10);
/// Time for the rest of a body that draws on the reserve, for which all other large bodies wait.
pub(crate) const BODY_TURN: Duration = Duration::from_secs(5);
/// Minimum bytes in a [`BODY_WINDOW`]: slower than any modem.
pub(crate) const BODY_WINDOW_BYTES: usize = 4 << 10;
/// Maximum bytes of an audio file that are buffered for fields that may follow it.
pub(crate) const SOUND_HELD_BYTES: usize = 256 << 10;
/// Maximum pieces of an audio file between a client and an engine.
pub(crate) const SOUND_PIECES_MAX: usize = 4;
/// Maximum bytes of a message with a piece of an audio file: half of what an engine accepts.
pub(crate) const SOUND_MESSAGE_BYTES: usize = 512 << 10;
/// Timeout of connecting to the upstream server.
pub(crate) const CLOUD_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout between two pieces of an upstream answer.
pub(crate) const CLOUD_SILENCE: Duration = Duration::from_secs(300);
/// Maximum bytes of an upstream event.
pub(crate) const CLOUD_EVENT_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of an upstream error.
pub(crate) const CLOUD_ERROR_BYTES_MAX: usize = 64 << 10;
/// Maximum models in `cloud_models` and in `cloud_overflow`.
pub(crate) const CLOUD_MODELS_MAX: usize = 256;
/// Maximum pieces of a blob between a client and an engine.
pub(crate) const BLOB_PIECES_MAX: usize = 4;
/// Maximum bytes of a message with a piece of a blob.
pub(crate) const BLOB_MESSAGE_BYTES: usize = 512 << 10;
/// Maximum bytes of a form without its file.
pub(crate) const FORM_BYTES_BESIDE: usize = 1 << 20;
/// Maximum bytes of a form's field.
pub(crate) const FORM_FIELD_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a form that belong to no content: the head of a part, or the preamble.
pub(crate) const FORM_HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum fields of a form.
pub(crate) const FORM_FIELDS_MAX: usize = 64;
/// Maximum bytes of an answer that is not streamed: forty thousand tokens with twenty alternatives each.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Step by which an answer's memory grows.
pub(crate) const ANSWER_STEP_BYTES: usize = 1 << 20;
/// Estimated bytes of a token's log probability, in memory and again as JSON.
pub(crate) const LOGPROB_BYTES: usize = 128;
/// Maximum events that are buffered before the engine has accepted all prompts of a request.
pub(crate) const EARLY_EVENTS_MAX: usize = 64;
/// Default maximum bytes of stored responses in memory.
pub(crate) const RESPONSES_BYTES_MAX: usize = 64 << 20;
/// Default maximum bytes of stored responses on disk.
pub(crate) const RESPONSES_DISK_BYTES_MAX: usize = 1 << 30;
/// Maximum attempts to shorten a conversation until it fits.
pub(crate) const TRUNCATION_STEPS_MAX: usize = 64;
/// Default number of a response's input items in a list.
pub(crate) const ITEMS_LISTED: usize = 20;
/// Maximum number of a response's input items in a list.
pub(crate) const ITEMS_LISTED_MAX: usize = 100;
/// Maximum pairs of a response's `metadata`, as at OpenAI.
pub(crate) const METADATA_PAIRS_MAX: usize = 16;
/// Maximum characters of a key in `metadata`.
pub(crate) const METADATA_KEY_CHARS_MAX: usize = 64;
/// Maximum characters of a value in `metadata`.
pub(crate) const METADATA_VALUE_CHARS_MAX: usize = 512;
/// Maximum bytes of a model's name.
pub(crate) const MODEL_NAME_BYTES_MAX: usize = 512;
/// Maximum bytes of a `keep_alive`.
pub(crate) const KEEP_ALIVE_BYTES_MAX: usize = 64;
/// Maximum overridden settings of a load.
pub(crate) const OVERRIDES_MAX: usize = 256;
/// Maximum file patterns of a download.
pub(crate) const PULL_GLOBS_MAX: usize = 64;
/// Maximum bytes of a stop string.
pub(crate) const STOP_BYTES_MAX: usize = 1024;
/// Maximum entries of `stop_token_ids`.
pub(crate) const STOP_TOKEN_IDS_MAX: usize = 1024;
/// Maximum entries of `logit_bias`.
pub(crate) const LOGIT_BIAS_MAX: usize = 4096;
/// Maximum additional files of an infill request.
pub(crate) const INFILL_FILES_MAX: usize = 64;

/// Maximum names in `response_fields`.
pub(crate) const RESPONSE_FIELDS_MAX: usize = 64;
/// Maximum sequence breakers of DRY.
pub(crate) const DRY_BREAKERS_MAX: usize = 64;
/// Maximum bytes of a sequence breaker.
pub(crate) const DRY_BREAKER_BYTES_MAX: usize = 64;
/// Maximum `top_n_sigma`.
pub(crate) const TOP_N_SIGMA_MAX: f64 = 100.0;
/// Maximum `dynatemp_exponent`.
pub(crate) const DYNATEMP_EXPONENT_MAX: f64 = 100.0;
/// Maximum `mirostat_tau`, in bits.
pub(crate) const MIROSTAT_TAU_MAX: f64 = 100.0;
/// Maximum alternatives of each token in a chat's `top_logprobs`.
pub(crate) const CHAT_LOGPROBS_MAX: u32 = 20;
/// Maximum alternatives of each token in a completion's `logprobs`.
pub(crate) const COMPLETION_LOGPROBS_MAX: u32 = 5;
/// Maximum characters of an `x-request-id` that is kept.
pub(crate) const REQUEST_ID_CHARS_MAX: usize = 128;
/// Maximum seconds in a `Retry-After` that an engine asks for.
pub(crate) const RETRY_AFTER_S_MAX: u64 = 3600;
/// Maximum seconds in a `Retry-After` for a key's exhausted limit: as long as the refill takes.
pub(crate) const KEY_RETRY_AFTER_S_MAX: u64 = 86_400;
/// Maximum bytes of a message from the engine: the token ids of the largest body, or the embeddings of one
/// call. The largest of those is one vector for each token of an input: 8,192 vectors of 4,096 numbers.
pub(crate) const ENGINE_MESSAGE_BYTES_MAX: usize = (128 << 20) + (1 << 20);
/// Maximum inputs of a request to Cohere's API, the same as Cohere's. The answer is not streamed.
pub(crate) const COHERE_INPUTS_MAX: usize = 96;
/// Maximum texts of one call to the engine. More texts take several calls.
pub(crate) const CALL_INPUTS_MAX: usize = 256;
/// Maximum bytes of the texts of one call, unless a single text is larger. Well below a daemon's message limit.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 20;
/// Maximum texts of a call with large results, such as token embeddings or sparse weights.
pub(crate) const WIDE_CALL_INPUTS_MAX: usize = 16;
/// Maximum bytes of the texts of such a call. A token has at least one byte, and a vector for each token up to
/// 16 KiB.
pub(crate) const WIDE_CALL_BYTES_MAX: usize = 4096;
/// Maximum calls of one request that run at the same time.
pub(crate) const CALLS_RUNNING_MAX: usize = 4;
/// Granularity of padded events, whose size is to reveal little.
pub(crate) const OBFUSCATED_BYTES: usize = 128;
/// Bytes of JSON that are written before they are sent.
pub(crate) const JSON_FRAME_BYTES: usize = 64 << 10;
/// Multiple of the body limit up to which a refused body is read and discarded. So a client that sends
/// everything before it reads gets the 413, and not a broken connection.
pub(crate) const REFUSED_BODY_TIMES_MAX: usize = 8;

/// Maximum tools of MCP servers that are offered to a model.
pub(crate) const MCP_TOOLS_MAX: usize = 128;
/// Maximum turns in which a model may call MCP tools; then it must answer.
pub(crate) const MCP_TURNS_MAX: usize = 8;
/// Maximum MCP tool calls of one turn.
pub(crate) const MCP_CALLS_OF_TURN_MAX: usize = 16;
/// Maximum MCP tool calls that run at the same time.
pub(crate) const MCP_CALLS_RUNNING_MAX: usize = 4;
/// Maximum queued messages to or from an MCP session.
pub(crate) const MCP_CHANNEL_MESSAGES: usize = 64;
/// Maximum bytes of the message that opens an MCP session, which the session keeps.
pub(crate) const MCP_INITIALIZE_BYTES_MAX: usize = 16 << 10;
/// Time in which a requested MCP session must be initialised.
pub(crate) const MCP_INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);
/// MCP resources on one page.
pub(crate) const MCP_PAGE_ITEMS: usize = 100;
/// Minimum interval between progress notifications to an MCP client.
pub(crate) const MCP_PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the load is checked that a tool waits for.
pub(crate) const MCP_LOAD_LOOK: Duration = Duration::from_millis(250);
/// Maximum bytes of an error text of the MCP library.
pub(crate) const MCP_REFUSAL_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of a tool's result. Embeddings are in it twice, for clients that read text only.
pub(crate) const MCP_RESULT_BYTES_MAX: usize = 16 << 20;

/// Timeout of connecting to the engine.
pub(crate) const ENGINE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an engine with open streams that answers no ping counts as gone.
pub(crate) const ENGINE_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Silence of a request after which the engine is asked whether it is alive.
pub(crate) const ENGINE_SILENCE: Duration = Duration::from_secs(5);
/// Time for the engine to answer that question.
pub(crate) const ENGINE_QUESTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum unanswered questions in a row.
pub(crate) const ENGINE_SILENT_MAX: u32 = 3;
/// Timeout of calls about state, such as loaded or stored models.
pub(crate) const ENGINE_STATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of tokenizing or detokenizing one body.
pub(crate) const ENGINE_TOKENS_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a request line and headers.
pub(crate) const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Maximum open requests of an HTTP/2 connection.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// Divisor of the connections: share that one address may have.
pub(crate) const ADDRESS_SHARE: usize = 4;
/// Seconds for which a browser may cache a CORS preflight response.
pub(crate) const CORS_MAX_AGE_S: u64 = 600;
/// Maximum entries of `cors_origins`.
pub(crate) const CORS_ORIGINS_MAX: usize = 256;
/// Silence after which a stream without any event sends its first comment.
pub(crate) const FIRST_COMMENT: Duration = Duration::from_secs(1);
/// Interval at which a client that has closed its writing side is checked.
pub(crate) const PEER_LOOK: Duration = Duration::from_millis(500);
/// Delay of the first such check. It doubles each time.
pub(crate) const PEER_FIRST_LOOK: Duration = Duration::from_millis(10);
const _: () = assert!(PEER_FIRST_LOOK.as_millis() < PEER_LOOK.as_millis());
/// Interval at which running requests are checked, before a socket is handed over.
pub(crate) const QUIET_LOOK: Duration = Duration::from_millis(20);
/// Number of checks in a row that must find no running request.
pub(crate) const QUIET_LOOKS: u32 = 25;
/// Time after the drain's deadline in which the last bytes are written.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum engines behind one gateway.
pub(crate) const MEMBERS_MAX: usize = 256;
/// Maximum entries of `upstreams`.
pub(crate) const UPSTREAMS_MAX: usize = 256;
/// Interval at which names of engines are resolved.
pub(crate) const RESOLVE_EVERY: Duration = Duration::from_secs(5);
/// Timeout of resolving a name.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for any engine to accept a connection at the addresses of one family, if its name has both.
pub(crate) const FAMILY_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which an engine is asked for its load. It reports at once that it drains or is gone.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Timeout of that question, after which the engine is ejected.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of these questions between two lists of stored models.
pub(crate) const PROBES_PER_LIST: u32 = 15;
/// First ejection time of an engine that was lost or failed. It doubles each time, up to [`EJECTED_MAX`].
pub(crate) const EJECTED_FIRST: Duration = Duration::from_millis(250);
/// Longest ejection time.
pub(crate) const EJECTED_MAX: Duration = Duration::from_secs(10);
/// Uptime after which the next ejection takes the first time again.
pub(crate) const SOUND_AFTER: Duration = Duration::from_secs(60);
/// Number of internal errors in a row after which an engine is ejected.
pub(crate) const FAILURES_IN_A_ROW_MAX: u32 = 5;
/// Maximum engines that one request is sent to, one after another.
pub(crate) const ATTEMPTS_MAX: usize = 4;
/// Maximum engines that may be lost during one request. Then the request itself is suspected and ends.
pub(crate) const LOST_MAX: u32 = 1;
/// Maximum bytes of a prompt that determine its affinity.
pub(crate) const AFFINITY_BYTES_MAX: usize = 64 << 10;
/// Bytes of a text prompt that determine its affinity.
pub(crate) const AFFINITY_TEXT_BYTES: usize = 256;
/// Tokens of a token prompt that determine its affinity.
pub(crate) const AFFINITY_TOKENS: usize = 64;
/// Load of an engine, in percent of the mean, at which requests no longer prefer it for its prefix cache.
pub(crate) const LOAD_OVER_MEAN_PERCENT: usize = 150;
/// Number of requests that an engine always accepts by affinity: together they cost little more than one.
pub(crate) const LOAD_ALWAYS_BORNE: usize = 4;

const _: () = assert!(UPSTREAMS_MAX <= MEMBERS_MAX);
const _: () = assert!(LOAD_OVER_MEAN_PERCENT > 100, "not all are over the mean");

/// Maximum bytes of an image, the same as the engine's.
pub(crate) const PICTURE_BYTES_MAX: usize = 20 << 20;
/// Maximum bytes of audio in a chat, the same as the engine's.
pub(crate) const SOUND_BYTES_MAX: usize = 25 << 20;
/// Maximum bytes of the URL of an image or audio file.
pub(crate) const URL_BYTES_MAX: usize = 8 << 10;
/// Maximum entries of `media_hosts`.
pub(crate) const MEDIA_HOSTS_MAX: usize = 256;
/// Maximum redirects of such a host.
pub(crate) const MEDIA_REDIRECTS_MAX: usize = 3;
/// Maximum media files fetched at the same time.
pub(crate) const MEDIA_FETCHES_MAX: usize = 8;
/// Timeout of connecting to such a host.
pub(crate) const MEDIA_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of fetching one media file.
pub(crate) const MEDIA_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum characters of a text for speech synthesis; OpenAI's limit is 4096.
pub(crate) const SPEECH_CHARS_MAX: usize = 16_384;
