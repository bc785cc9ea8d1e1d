//! Bounds that no configuration changes. Those an operator may want to change are in
//! [`Config`](crate::Config).

use std::time::Duration;

/// Largest setting in seconds: a week, which a clock can add.
pub(crate) const SECONDS_MAX: u64 = 7 * 24 * 3600;
/// Bytes of an error's `message`: validation never echoes more of the input than this.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024;
/// Bytes of an error's `param`.
pub(crate) const PARAM_BYTES_MAX: usize = 128;
/// Characters of the input quoted inside a message.
pub(crate) const QUOTE_CHARS_MAX: usize = 64;
/// Arrays and objects inside each other in a body: what other JSON readers take, the engine's among them.
pub(crate) const JSON_DEPTH_MAX: usize = 128;
/// Fields of one JSON object that is read field by field, such as `logit_bias`. Objects that are passed on are not.
pub(crate) const OBJECT_FIELDS_MAX: usize = 16_384;
/// Messages of one chat, as many as the daemon takes.
pub(crate) const CHAT_MESSAGES_MAX: usize = 16_384;
/// Tools of one chat, as many as the daemon takes.
pub(crate) const CHAT_TOOLS_MAX: usize = 1_024;
/// Parts of one message's content, and calls of tools in it.
pub(crate) const CHAT_PARTS_MAX: usize = 16_384;
/// A body of so many bytes is read where it arrived; a larger one on a thread of its own, so that nobody waits for it.
pub(crate) const INLINE_BODY_BYTES: usize = 32 << 10;
/// Larger bodies that are read at the same time.
pub(crate) const BODIES_READ_MAX: usize = 4;
/// Steps in which a body takes its share of `Config::bodies_bytes_max` as it arrives.
pub(crate) const BODY_STEP_BYTES: usize = 64 << 10;
/// What must come of a body in each such time; a client that sends less ends with 408.
pub(crate) const BODY_WINDOW: Duration = Duration::from_secs(10);
/// The time for the rest of a body that draws on the reserve, for which all others wait that need more room.
pub(crate) const BODY_TURN: Duration = Duration::from_secs(5);
/// See [`BODY_WINDOW`]: slower than any modem.
pub(crate) const BODY_WINDOW_BYTES: usize = 4 << 10;
/// Bytes of a sound file that are held for the fields that may come behind them.
pub(crate) const SOUND_HELD_BYTES: usize = 256 << 10;
/// Pieces of a sound file between a client and an engine.
pub(crate) const SOUND_PIECES_MAX: usize = 4;
/// Bytes of a message with a piece of one: half of what an engine takes.
pub(crate) const SOUND_MESSAGE_BYTES: usize = 512 << 10;
/// The time in which another server's connection must be there.
pub(crate) const CLOUD_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that such a server may say nothing in the midst of an answer.
pub(crate) const CLOUD_SILENCE: Duration = Duration::from_secs(300);
/// Bytes of one event of its answer.
pub(crate) const CLOUD_EVENT_BYTES_MAX: usize = 16 << 20;
/// Bytes of an error of its.
pub(crate) const CLOUD_ERROR_BYTES_MAX: usize = 64 << 10;
/// Models that may be answered there.
pub(crate) const CLOUD_MODELS_MAX: usize = 256;
/// Pieces of a blob between a client and an engine.
pub(crate) const BLOB_PIECES_MAX: usize = 4;
/// Bytes of a message with a piece of one.
pub(crate) const BLOB_MESSAGE_BYTES: usize = 512 << 10;
/// Bytes of a form beside its file.
pub(crate) const FORM_BYTES_BESIDE: usize = 1 << 20;
/// Bytes of one of its fields.
pub(crate) const FORM_FIELD_BYTES_MAX: usize = 64 << 10;
/// Bytes of a form in which nothing begins and nothing goes on: the head of a part, or what stands before the first.
pub(crate) const FORM_HEAD_BYTES_MAX: usize = 64 << 10;
/// Fields of a form.
pub(crate) const FORM_FIELDS_MAX: usize = 64;
/// Bytes of an answer that is collected, not streamed: forty thousand tokens with twenty alternatives each.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Steps in which an answer takes its share.
pub(crate) const ANSWER_STEP_BYTES: usize = 1 << 20;
/// What a token's log probability takes up, about: in memory, and again as JSON.
pub(crate) const LOGPROB_BYTES: usize = 128;
/// Events of prompts that are taken up, while others of the same request are not.
pub(crate) const EARLY_EVENTS_MAX: usize = 64;
/// Bytes of the responses that are kept in memory, unless the configuration says.
pub(crate) const RESPONSES_BYTES_MAX: usize = 64 << 20;
/// The same, on disk.
pub(crate) const RESPONSES_DISK_BYTES_MAX: usize = 1 << 30;
/// Times that a conversation is made shorter until it fits.
pub(crate) const TRUNCATION_STEPS_MAX: usize = 64;
/// Items of a response's input that are listed at once, unless the request says.
pub(crate) const ITEMS_LISTED: usize = 20;
/// The same, where it does.
pub(crate) const ITEMS_LISTED_MAX: usize = 100;
/// Pairs of a response's `metadata`, as OpenAI has them.
pub(crate) const METADATA_PAIRS_MAX: usize = 16;
/// Characters of a key of it.
pub(crate) const METADATA_KEY_CHARS_MAX: usize = 64;
/// Characters of a value.
pub(crate) const METADATA_VALUE_CHARS_MAX: usize = 512;
/// Bytes of a model's name.
pub(crate) const MODEL_NAME_BYTES_MAX: usize = 512;
/// Bytes of what says how long a model stays.
pub(crate) const KEEP_ALIVE_BYTES_MAX: usize = 64;
/// Keys that a load puts over a model's own.
pub(crate) const OVERRIDES_MAX: usize = 256;
/// Patterns of a pull's files.
pub(crate) const PULL_GLOBS_MAX: usize = 64;
/// Bytes of a stop string.
pub(crate) const STOP_BYTES_MAX: usize = 1024;
/// Entries of `stop_token_ids`.
pub(crate) const STOP_TOKEN_IDS_MAX: usize = 1024;
/// Entries of `logit_bias`.
pub(crate) const LOGIT_BIAS_MAX: usize = 4096;
/// Other files of a gap that is to be filled in.
pub(crate) const INFILL_FILES_MAX: usize = 64;

/// Fields of an answer that a request names.
pub(crate) const RESPONSE_FIELDS_MAX: usize = 64;
/// Sequence breakers of DRY.
pub(crate) const DRY_BREAKERS_MAX: usize = 64;
/// Bytes of one.
pub(crate) const DRY_BREAKER_BYTES_MAX: usize = 64;
/// `top_n_sigma`.
pub(crate) const TOP_N_SIGMA_MAX: f64 = 100.0;
/// `dynatemp_exponent`.
pub(crate) const DYNATEMP_EXPONENT_MAX: f64 = 100.0;
/// `mirostat_tau`, bits.
pub(crate) const MIROSTAT_TAU_MAX: f64 = 100.0;
/// Alternatives of each token in a chat's `top_logprobs`.
pub(crate) const CHAT_LOGPROBS_MAX: u64 = 20;
/// Alternatives of each token in a completion's `logprobs`.
pub(crate) const COMPLETION_LOGPROBS_MAX: u64 = 5;
/// Characters of an `x-request-id` that are kept.
pub(crate) const REQUEST_ID_CHARS_MAX: usize = 128;
/// Seconds that a `Retry-After` asks for at most, by the word of an engine.
pub(crate) const RETRY_AFTER_S_MAX: u64 = 3600;
/// Seconds that a `Retry-After` asks for at most where a key's limit is used up: as long as it takes.
pub(crate) const KEY_RETRY_AFTER_S_MAX: u64 = 86_400;
/// Bytes of one message from the engine: the token ids of the largest body, or the vectors of one call, of
/// which one for each token of an input is the largest: 8,192 of 4,096 numbers.
pub(crate) const ENGINE_MESSAGE_BYTES_MAX: usize = (128 << 20) + (1 << 20);
/// Inputs of a request in Cohere's words, as many as its own service takes: their answer is made whole.
pub(crate) const COHERE_INPUTS_MAX: usize = 96;
/// Texts of one call to the engine. More of them are several calls.
pub(crate) const CALL_INPUTS_MAX: usize = 256;
/// Bytes of the texts of one call, unless one text alone is larger. Well under what a daemon takes as a message.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 20;
/// Texts of one call that answers much more than a vector for each: vectors of tokens, sparse weights.
pub(crate) const WIDE_CALL_INPUTS_MAX: usize = 16;
/// Bytes of the texts of such a call. A token is a byte or more, and each token's vector up to 16 KiB.
pub(crate) const WIDE_CALL_BYTES_MAX: usize = 4096;
/// Calls of one request that run at the same time.
pub(crate) const CALLS_RUNNING_MAX: usize = 4;
/// What the bytes of an event are filled up to a multiple of, where its size is to say little.
pub(crate) const OBFUSCATED_BYTES: usize = 128;
/// Bytes of JSON written before they are sent.
pub(crate) const JSON_FRAME_BYTES: usize = 64 << 10;
/// A refused body is read and thrown away up to this many times the limit, so that a client that sends
/// all before it reads gets the 413 and not a broken connection.
pub(crate) const REFUSED_BODY_TIMES_MAX: usize = 8;

/// Tools of MCP servers that one model is told of.
pub(crate) const MCP_TOOLS_MAX: usize = 128;
/// Turns of one answer after which a model may call tools of MCP servers; then it must answer.
pub(crate) const MCP_TURNS_MAX: usize = 8;
/// Calls of such tools that one turn makes, and how many of them at once.
pub(crate) const MCP_CALLS_OF_TURN_MAX: usize = 16;
/// See [`MCP_CALLS_OF_TURN_MAX`].
pub(crate) const MCP_CALLS_RUNNING_MAX: usize = 4;
/// Messages to a session of MCP, or from it, that wait.
pub(crate) const MCP_CHANNEL_MESSAGES: usize = 64;
/// In which a session of MCP that was asked for begins.
pub(crate) const MCP_INITIALIZE_TIMEOUT: Duration = Duration::from_secs(10);
/// Resources of MCP on one page.
pub(crate) const MCP_PAGE_ITEMS: usize = 100;
/// How often a client of MCP is told how far a tool is.
pub(crate) const MCP_PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// How often it is looked how far the load is that a tool waits for.
pub(crate) const MCP_LOAD_LOOK: Duration = Duration::from_millis(250);
/// Bytes of what MCP's library says of a request that it refuses.
pub(crate) const MCP_REFUSAL_BYTES_MAX: usize = 16 << 10;
/// Bytes of a tool's result: vectors are in it twice, for clients that read text alone.
pub(crate) const MCP_RESULT_BYTES_MAX: usize = 16 << 20;

/// Opening a connection to the engine.
pub(crate) const ENGINE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An engine that holds streams and answers no ping for this long is gone.
pub(crate) const ENGINE_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// A request of which nothing has come for this long has its engine asked whether it is there.
pub(crate) const ENGINE_SILENCE: Duration = Duration::from_secs(5);
/// The time that it has to answer that.
pub(crate) const ENGINE_QUESTION_TIMEOUT: Duration = Duration::from_secs(3);
/// Such questions in a row that an engine may leave unanswered.
pub(crate) const ENGINE_SILENT_MAX: u32 = 3;
/// A question about state: what is loaded, what is stored.
pub(crate) const ENGINE_STATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Tokenizing or detokenizing one body.
pub(crate) const ENGINE_TOKENS_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a request's line and headers.
pub(crate) const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Requests that one connection of HTTP/2 may have open.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// An address has at most one in so many of the connections.
pub(crate) const ADDRESS_SHARE: usize = 4;
/// How long a browser may remember what another origin is allowed.
pub(crate) const CORS_MAX_AGE_S: u64 = 600;
/// Origins of `cors_origins`.
pub(crate) const CORS_ORIGINS_MAX: usize = 256;
/// Silence after which a stream that has said nothing yet sends its first comment.
pub(crate) const FIRST_COMMENT: Duration = Duration::from_secs(1);
/// How often it is looked whether a client that has shut down its writing side is still there.
pub(crate) const PEER_LOOK: Duration = Duration::from_millis(500);
/// How soon it is looked for the first time; then twice as late each time.
pub(crate) const PEER_FIRST_LOOK: Duration = Duration::from_millis(10);
const _: () = assert!(PEER_FIRST_LOOK.as_millis() < PEER_LOOK.as_millis());
/// How often it is looked whether requests run, before a socket is handed over.
pub(crate) const QUIET_LOOK: Duration = Duration::from_millis(20);
/// So many times in a row nothing may run.
pub(crate) const QUIET_LOOKS: u32 = 25;
/// After the drain's deadline: the time in which the last bytes are written.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Engines behind one gateway.
pub(crate) const MEMBERS_MAX: usize = 256;
/// Entries of `upstreams`.
pub(crate) const UPSTREAMS_MAX: usize = 256;
/// How often a name of engines is resolved.
pub(crate) const RESOLVE_EVERY: Duration = Duration::from_secs(5);
/// Resolving a name.
pub(crate) const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that engines have to take a connection at the addresses of one family, where their name has two.
pub(crate) const FAMILY_TIMEOUT: Duration = Duration::from_secs(1);
/// How often one of several engines is asked what it has to do; that it drains or is gone it tells at once.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// An engine that does not say within this time how it is, is left alone.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Every so many of those times it is asked what it stores.
pub(crate) const PROBES_PER_LIST: u32 = 15;
/// How long an engine that was lost or failed is left alone at first; twice as long each time, up to the most.
pub(crate) const EJECTED_FIRST: Duration = Duration::from_millis(250);
/// The most that an engine is left alone.
pub(crate) const EJECTED_MAX: Duration = Duration::from_secs(10);
/// An engine that has served so long is sound: the next loss is its first.
pub(crate) const SOUND_AFTER: Duration = Duration::from_secs(60);
/// So many requests in a row that ended with an internal error have an engine left alone.
pub(crate) const FAILURES_IN_A_ROW_MAX: u32 = 5;
/// Engines that one request is given to, one after the other.
pub(crate) const ATTEMPTS_MAX: usize = 4;
/// Engines that may be lost while they have one request, before it is the request that is given up.
pub(crate) const LOST_MAX: u32 = 1;
/// Bytes of a prompt that say where it goes.
pub(crate) const AFFINITY_BYTES_MAX: usize = 64 << 10;
/// Of a text without messages: as it begins, so it goes.
pub(crate) const AFFINITY_TEXT_BYTES: usize = 256;
/// Of a prompt that is tokens.
pub(crate) const AFFINITY_TOKENS: usize = 64;
/// An engine that has so many per cent of the mean of all takes no more for the sake of what it has cached.
pub(crate) const LOAD_OVER_MEAN_PERCENT: usize = 150;
/// So few requests it takes in any case: side by side they cost little more than one.
pub(crate) const LOAD_ALWAYS_BORNE: usize = 4;

const _: () = assert!(UPSTREAMS_MAX <= MEMBERS_MAX);
const _: () = assert!(LOAD_OVER_MEAN_PERCENT > 100, "not all are over the mean");

/// Bytes of a picture; the engine takes no larger ones.
pub(crate) const PICTURE_BYTES_MAX: usize = 20 << 20;
/// Bytes of a sound in a chat; the engine takes no larger ones.
pub(crate) const SOUND_BYTES_MAX: usize = 25 << 20;
/// Bytes of the URL of one of either.
pub(crate) const URL_BYTES_MAX: usize = 8 << 10;
/// Hosts of `media_hosts`.
pub(crate) const MEDIA_HOSTS_MAX: usize = 256;
/// How often such a host may lead to another address.
pub(crate) const MEDIA_REDIRECTS_MAX: usize = 3;
/// Pictures that are fetched at the same time.
pub(crate) const MEDIA_FETCHES_MAX: usize = 8;
/// How long such a host may take to be reached.
pub(crate) const MEDIA_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one picture may take.
pub(crate) const MEDIA_TIMEOUT: Duration = Duration::from_secs(20);
/// Characters of a text that is to be said; OpenAI takes 4096.
pub(crate) const SPEECH_CHARS_MAX: usize = 16_384;
