//! Every bound of the daemon that is not in [`crate::Config`], and how the bounds relate.

use std::time::Duration;

use hanzo_engine_runtime::limits::CHOICES_MAX;

/// Events of one request that wait for its client; with the next step's worst case still fitting, its job runs on.
pub(crate) const EVENTS_MAX: usize = 1_000;
/// Events one step makes of one choice at most: Started, Delta, Finished.
pub(crate) const EVENTS_PER_STEP_MAX: usize = 3;
/// Events one step makes of one prompt's log probabilities at most.
pub(crate) const SCORED_PER_STEP_MAX: usize = 1;
// A job of the most choices can run a step on an empty channel, and again after a pause.
const _: () =
    assert!(CHOICES_MAX as usize * EVENTS_PER_STEP_MAX + SCORED_PER_STEP_MAX <= room_to_resume(EVENTS_MAX));

/// A paused job whose client may lag this many events behind runs again when so many could be taken.
pub(crate) const fn room_to_resume(events_max: usize) -> usize {
    events_max / 2
}

/// Threads a program starts beside the asynchronous runtime's own and those that compute: the store's, and work that blocks.
pub(crate) const THREADS_BESIDE_MIN: usize = 8;
/// Models that are loaded, loading or failed at once.
pub(crate) const MODELS_MAX: usize = if cfg!(test) { 12 } else { 64 };
/// A model that is loaded for a request waits at least so long for it.
pub(crate) const REQUEST_COMES_WITHIN: Duration = Duration::from_secs(10);
/// State changes a watcher may lag behind before it is sent a fresh snapshot instead.
pub(crate) const CHANGES_MAX: usize = 256;
// A snapshot never overflows what it replaces.
const _: () = assert!(MODELS_MAX <= CHANGES_MAX);

/// Pixels that an operator may bound pictures to: a few of any tower's squares, to the largest picture that is read.
pub(crate) const PICTURE_PIXELS: std::ops::RangeInclusive<u64> = 16_384..=50_000_000;
/// Largest `engine.queue_requests_max`.
pub(crate) const QUEUE_REQUESTS_LIMIT: usize = 65_536;
/// Largest `server.drain_s`: a week, which a clock can add.
pub(crate) const DRAIN_S_LIMIT: u64 = 7 * 24 * 3600;
/// Largest `engine.sequences_max`.
pub(crate) const SEQUENCES_LIMIT: usize = 4_096;
/// Largest `engine.step_tokens_max`.
pub(crate) const STEP_TOKENS_LIMIT: usize = 65_536;
/// Prompts of one model rendered and tokenized at the same time, of which a client has all but one at most; more wait,
/// holding a place in its queue.
pub(crate) const PROMPT_BUILDS_MAX: usize = 4;
/// Turns for large ones; a client has all but one of them at most.
pub(crate) const PROMPT_BUILDS_LARGE_MAX: usize = 2;
const _: () = assert!(0 < PROMPT_BUILDS_LARGE_MAX && PROMPT_BUILDS_LARGE_MAX < PROMPT_BUILDS_MAX);
/// Bytes of text from which on a prompt counts as large, as those with pictures or sounds do: while it is built, its messages, its
/// text and its tokens are held at once.
pub(crate) const PROMPT_LARGE_BYTES: usize = 1 << 20;
/// Time that one prompt may take from its turn on, waiting not counted. A chat template's own bounds end it sooner, where
/// the machine is not busy.
pub(crate) const PROMPT_BUILD_TIME_MAX: Duration = Duration::from_secs(10);
/// Tokens of a prompt that is cut to what fits, in contexts: it is tokenized as a whole first.
pub(crate) const OVERFLOW_CONTEXTS_MAX: usize = 16;
/// See [`OVERFLOW_CONTEXTS_MAX`]: so many in any case.
pub(crate) const OVERFLOW_TOKENS_MIN: usize = 65_536;
/// Bytes of a salt of what is cached.
pub(crate) const CACHE_SALT_BYTES_MAX: usize = 1_024;
/// KV blocks on disk: what is known of them in memory takes some 200 bytes each.
pub(crate) const PREFIX_DISK_FILES_MAX: usize = if cfg!(test) { 200 } else { 1 << 18 };
/// Orders before each of the disk's threads, of all models.
pub(crate) const PREFIX_DISK_ORDERS_MAX: usize = 1024;
/// Bytes of one model's blocks on their way from the disk.
pub(crate) const PREFIX_DISK_READ_BYTES: usize = 16 << 20;
/// Bytes of one model's blocks on their way to the disk.
pub(crate) const PREFIX_DISK_WRITE_BYTES: usize = 32 << 20;
/// Files of one model.
pub(crate) const PREFIX_DISK_MODEL_FILES_MAX: usize = 4096;
/// Blocks that an engine with nothing else to do hands to the disk at a time.
pub(crate) const PREFIX_DISK_SAVED_AT_ONCE: usize = 4;
/// Bytes of blocks on disk, unless configured.
pub(crate) const PREFIX_DISK_BYTES_DEFAULT: u64 = 16 << 30;
/// Where several processes keep blocks in one directory, each looks again what is there when it has written this part of the
/// bound: so they may be over it by as many such parts as there are processes.
pub(crate) const PREFIX_DISK_LOOKS: u64 = 32;
/// A file that nobody has written to for so long is of a process that ended.
pub(crate) const PREFIX_DISK_UNFINISHED: Duration = Duration::from_secs(60);
/// What the disk gets at the end to write what is on its way.
pub(crate) const PREFIX_DISK_FLUSH: Duration = Duration::from_secs(2);
/// Constraints of one model that are compiled at the same time; nothing can interrupt one.
pub(crate) const CONSTRAINT_COMPILES_MAX: usize = 2;
/// Compilations of one client at a time.
pub(crate) const CONSTRAINT_COMPILES_OF_CLIENT_MAX: usize = 1;
const _: () = assert!(CONSTRAINT_COMPILES_OF_CLIENT_MAX < CONSTRAINT_COMPILES_MAX);
/// Time that a request waits for its constraint once that is being compiled. What people write takes some 20 ms.
pub(crate) const CONSTRAINT_TIME_MAX: Duration = Duration::from_secs(8);
// It is a part of building the prompt.
const _: () = assert!(CONSTRAINT_TIME_MAX.as_secs() < PROMPT_BUILD_TIME_MAX.as_secs());
/// Bytes of one model's compiled constraints that are kept, by estimate: some hundreds of usual ones.
pub(crate) const CONSTRAINTS_BYTES_MAX: u64 = 16 << 20;
/// Inputs of one embedding request that go to the worker together: while they are computed, the next are tokenized.
pub(crate) const EMBED_JOB_INPUTS: usize = 64;
/// Inputs of one embedding request.
pub(crate) const EMBED_INPUTS_MAX: usize = 65_536;
/// Pieces of a text that are said before the client has heard them: a piece is some seconds.
pub(crate) const SPEECH_PIECES_MAX: usize = 4;
/// Pieces that a step says of a text.
pub(crate) const SPEECH_STEP_PIECES: usize = 1;
/// Bytes of sound in a message.
pub(crate) const SPEECH_MESSAGE_BYTES: usize = 64 << 10;
const _: () = assert!(SPEECH_STEP_PIECES < SPEECH_PIECES_MAX);
/// Times as fast as a model would speak.
pub(crate) const SPEECH_SPEED: std::ops::RangeInclusive<f32> = 0.25..=4.0;
/// Such batches of one request that are on their way at once.
pub(crate) const EMBED_JOBS_MAX: usize = 2;
/// Bytes of an embedding request's answer, so that it fits a message.
pub(crate) const EMBED_ANSWER_BYTES_MAX: usize = 256 << 20;
/// Messages of one chat.
pub(crate) const CHAT_MESSAGES_MAX: usize = 16_384;
/// Tokens of one Tokenize call whose pieces are told: each takes up a hundred bytes on its way.
pub(crate) const TOKEN_PIECES_MAX: usize = 131_072;
/// Tools of one chat.
pub(crate) const CHAT_TOOLS_MAX: usize = 1_024;
/// JSON values in the tools, the template's variables and the tool calls of one chat: each takes up to a hundred bytes,
/// however few it has as text; templates hold them a second time. A hundred tools with large schemas have twenty thousand.
pub(crate) const CHAT_JSON_VALUES_MAX: usize = 1 << 16;
/// What a tool call counts as beside its arguments: the object that templates read.
pub(crate) const CALL_JSON_VALUES: usize = 8;
/// Bytes of what a client is called.
pub(crate) const CLIENT_ID_BYTES_MAX: usize = 256;
/// Bytes of a request id.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 128;
/// Bytes of input an error message repeats.
pub(crate) const QUOTE_BYTES_MAX: usize = 200;
/// Names an error message lists.
pub(crate) const NAMES_LISTED_MAX: usize = 20;

/// Tries to bring a failed worker back, before the model stays failed.
pub(crate) const RESTARTS_MAX: u32 = 6;
/// Wait before the first try; it doubles.
pub(crate) const RESTART_FIRST: Duration = Duration::from_secs(1);
/// Longest wait between tries.
pub(crate) const RESTART_LAST: Duration = Duration::from_secs(60);
/// A worker that lived this long starts counting tries afresh.
pub(crate) const RESTART_FORGET: Duration = Duration::from_secs(600);
const _: () = assert!(RESTART_FIRST.as_secs() <= RESTART_LAST.as_secs());
const _: () = assert!(RESTART_LAST.as_secs() < RESTART_FORGET.as_secs());

/// A worker with work whose loop has not come round for this long is stuck: it is not ready. A step of many prompt
/// tokens of a large model takes a minute on a few cores.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(120);

/// Bounds of `retry-after-ms`.
pub(crate) const RETRY_AFTER_MS_MIN: u64 = 100;
/// See [`RETRY_AFTER_MS_MIN`].
pub(crate) const RETRY_AFTER_MS_MAX: u64 = 60_000;
/// What `retry-after-ms` says where nothing has been measured yet.
pub(crate) const RETRY_AFTER_MS_UNMEASURED: u64 = 1_000;
const _: () = assert!(RETRY_AFTER_MS_MIN <= RETRY_AFTER_MS_UNMEASURED);
const _: () = assert!(RETRY_AFTER_MS_UNMEASURED <= RETRY_AFTER_MS_MAX);

/// The transport answers CANCELLED when a unary call's `grpc-timeout` is over; the daemon answers this much
/// earlier, with DEADLINE_EXCEEDED.
pub(crate) const DEADLINE_MARGIN: Duration = Duration::from_millis(10);
/// After the drain: what streams get to send their last status, and again for connections to close.
pub(crate) const FLUSH_GRACE: Duration = Duration::from_millis(500);
/// Streams of one gRPC connection.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 4_096;
/// Silence on a connection after which HTTP/2 asks whether the peer is there, and how long it may take to answer.
pub(crate) const HTTP2_KEEPALIVE: Duration = Duration::from_secs(30);
/// See [`HTTP2_KEEPALIVE`].
pub(crate) const HTTP2_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// A message of an archive: a piece of 1 MiB, and what is around it.
pub(crate) const ARCHIVE_MESSAGE_BYTES_MAX: usize = 2 << 20;
/// Bytes of an adapter's name.
pub(crate) const ADAPTER_NAME_BYTES_MAX: usize = 128;
/// Orders to load adapters that lie before one worker: one at a time is given.
pub(crate) const ADAPTER_ORDERS_MAX: usize = 1;
/// An address has at most one in so many of a port's connections.
pub(crate) const ADDRESS_SHARE: usize = 4;
/// In which a handshake must be done, then a client must say what it speaks, and on the admin port a request's headers
/// must have come.
pub(crate) const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections of the admin port.
pub(crate) const ADMIN_CONNECTIONS_MAX: usize = 256;
/// How long each may live: it is there for probes and scrapes.
pub(crate) const ADMIN_CONNECTION_TIME: Duration = Duration::from_secs(300);
/// Bytes of a request's line and headers there.
pub(crate) const ADMIN_HEADERS_BYTES_MAX: usize = 16 << 10;

/// Share of the memory available at the start that models may take, unless configured: numerator and denominator.
pub(crate) const MEMORY_BUDGET_SHARE: (u64, u64) = (4, 5);
/// Share of a card's memory that is free at the start that models may take: the driver's allocator keeps some, and programs beside
/// may want some.
pub(crate) const CARD_MEMORY_SHARE: (u64, u64) = (9, 10);
/// Of a fixed amount of memory, what is put by for all but models: the program, threads, tokenizers, requests on their way and
/// what the heap leaves between.
pub(crate) const FIXED_MEMORY_BESIDE: u64 = 128 << 20;
/// The smallest KV cache a load accepts, in tokens, where the model's context is not smaller still.
pub(crate) const KV_TOKENS_MIN: usize = 2_048;
/// Full contexts the KV cache holds when nothing else is asked for.
pub(crate) const KV_CONTEXTS_DEFAULT: usize = 8;
/// Share of what is free beside weights and scratch that the KV cache takes when nothing else is asked for.
pub(crate) const KV_SHARE: (u64, u64) = (1, 2);
/// Rows of a step that prompts may take beside sequences that decode, as a share of `step_tokens_max`.
pub(crate) const PREFILL_SHARE_BESIDE_DECODES: (usize, usize) = (1, 2);
/// Characters of an error's message: it travels in a header, where there is room for some thousands.
pub(crate) const MESSAGE_CHARS_MAX: usize = 4000;
/// Heaps that the threads of a program share: one for each core within these bounds. What is freed stays in them.
pub(crate) const HEAPS_MIN: usize = 2;
/// See [`HEAPS_MIN`].
pub(crate) const HEAPS_MAX: usize = 8;
/// How long after work that freed much the heaps give back what is free in their midst, for all such work until then.
pub(crate) const HEAPS_GIVE_BACK_AFTER: Duration = Duration::from_millis(50);
/// A prompt that takes longer to build is made of megabytes, which are freed in pieces of a few bytes.
pub(crate) const PROMPT_BUILD_LARGE: Duration = Duration::from_millis(20);
/// Other files of a gap that is to be filled in.
pub(crate) const INFILL_FILES_MAX: usize = 64;

/// Bytes of a topology's file.
pub(crate) const TOPOLOGY_FILE_BYTES_MAX: u64 = 256 << 10;

/// Weights that are quantised before they are written: 64 MB as f32, or one row.
pub(crate) const QUANTIZED_WEIGHTS_AT_ONCE: usize = 16 << 20;

/// Longest time that a model is kept which nobody uses, but for good: a year.
pub(crate) const KEEP_ALIVE_MAX: Duration = Duration::from_secs(365 * 86_400);
/// Time that a model has which works while another waits for its room. After it, it takes nothing new until the other has had
/// its turn; what it has begun it ends.
pub(crate) const TURN: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };
/// Wait before a model whose load failed is loaded again for a request.
pub(crate) const LOAD_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Context for which idle models stay where they are: one that would be shorter has them leave.
pub(crate) const CONTEXT_BESIDE_OTHERS: usize = 8_192;
const _: () = assert!(KV_TOKENS_MIN <= CONTEXT_BESIDE_OTHERS);
/// Models of which it is remembered how long their loads took.
pub(crate) const LOAD_TIMES_MAX: usize = 256;
/// Models of which metrics tell how long requests have waited for them, loaded or not.
pub(crate) const LOAD_WAITS_MAX: usize = 2 * MODELS_MAX;
/// Bytes of one order to a worker's process, or of one of its messages: a prompt with its images.
pub(crate) const WORKER_FRAME_BYTES_MAX: usize = 1 << 30;
/// How long a worker waits for a message before it looks after its clients again.
pub(crate) const WORKER_WAIT: Duration = Duration::from_millis(20);
/// How long a worker's process waits for the next part of an order that has begun to come.
pub(crate) const WORKER_ORDER_WAIT: Duration = Duration::from_millis(1);
/// How often a worker's process says that it is there.
pub(crate) const WORKER_PULSE_EVERY: Duration = Duration::from_millis(250);
/// Bounds of `engine.worker_silence_ms`.
pub(crate) const WORKER_SILENCE_MS_MIN: u64 = 1_000;
/// See [`WORKER_SILENCE_MS_MIN`].
pub(crate) const WORKER_SILENCE_MS_MAX: u64 = 600_000;
const _: () = assert!(WORKER_SILENCE_MS_MIN >= 4 * WORKER_PULSE_EVERY.as_millis() as u64);
/// What a worker's process may take until it says something for the first time: its program may have to come from a disk.
pub(crate) const WORKER_START_MAX: Duration = Duration::from_secs(30);
/// What a worker's process may take to leave.
pub(crate) const WORKER_LEAVE_MAX: Duration = Duration::from_secs(5);
// Its blocks are on their way to the disk meanwhile.
const _: () = assert!(WORKER_LEAVE_MAX.as_millis() > PREFIX_DISK_FLUSH.as_millis());
/// How often, and how many times, it is looked whether a process that has let go of its stream has ended.
pub(crate) const WORKER_EXIT_LOOK: Duration = Duration::from_millis(2);
/// See [`WORKER_EXIT_LOOK`].
pub(crate) const WORKER_EXIT_LOOKS: u32 = 1_000;
/// How long a step waits for those of other processes.
pub(crate) const WORKER_TURN_PATIENCE: Duration = Duration::from_millis(250);
/// How often it looks.
pub(crate) const WORKER_TURN_POLL: Duration = Duration::from_micros(50);

/// Bytes of one safetensors file of several that are written.
pub(crate) const SAFETENSORS_FILE_BYTES_MAX: u64 = 5_000_000_000;
/// Messages of a sound that wait to be decoded.
pub(crate) const SOUND_MESSAGES_MAX: usize = 4;
/// Bytes of one of them.
pub(crate) const SOUND_MESSAGE_BYTES_MAX: usize = 1 << 20;
/// How long a client that sends a sound may send nothing.
pub(crate) const SOUND_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Largest `server.sound_bytes_max`, which an MP4 file may take in memory.
pub(crate) const SOUND_BYTES_LIMIT: u64 = 4 << 30;
/// Largest `server.sound_s_max`: a week.
pub(crate) const SOUND_S_LIMIT: u64 = 7 * 24 * 3600;
/// Bytes of a language's name.
pub(crate) const LANGUAGE_BYTES_MAX: usize = 64;
/// Bytes of the text before a transcription, of which a model reads the last few hundred tokens.
pub(crate) const SPEECH_PROMPT_BYTES_MAX: usize = 64 << 10;
/// Temperatures of one transcription.
pub(crate) const TEMPERATURES_MAX: usize = 16;
/// Pictures of a chat.
pub(crate) const CHAT_PICTURES_MAX: usize = 16;
/// Sounds of a chat.
pub(crate) const CHAT_SOUNDS_MAX: usize = 16;
/// Bytes of one of them.
pub(crate) const CHAT_SOUND_BYTES_MAX: u64 = 25 << 20;
/// Bytes of prepared frames that the requests of one model, those that wait and those that run, hold together.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 20;
/// Windows of speech whose texts are drawn at once, of one model.
pub(crate) const WHISPER_WINDOWS_MAX: usize = 8;
/// Events of a window of speech at most: a text of 224 tokens has at most 75 segments of two moments and a word, each of
/// which is told twice; and those around it.
pub(crate) const WINDOW_EVENTS_MAX: usize = 160;
const _: () = assert!(2 * WINDOW_EVENTS_MAX <= room_to_resume(EVENTS_MAX));
