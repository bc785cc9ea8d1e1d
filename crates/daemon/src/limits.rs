//! Fixed limits of the daemon that are not in [`crate::Config`], and the relations between them.

use std::time::Duration;

use hanzo_engine_runtime::limits::CHOICES_MAX;

/// Events of one request that may wait for its client. The job runs on while the next step's worst case still fits.
pub(crate) const EVENTS_MAX: usize = 1_000;
/// Maximum number of events that one step produces for one choice: Started, Delta, Finished.
pub(crate) const EVENTS_PER_STEP_MAX: usize = 3;
/// Maximum number of events that one step produces for a prompt's log probabilities.
pub(crate) const SCORED_PER_STEP_MAX: usize = 1;
// A job with the maximum number of choices can run a step on an empty channel, and also after a pause.
const _: () =
    assert!(CHOICES_MAX as usize * EVENTS_PER_STEP_MAX + SCORED_PER_STEP_MAX <= room_to_resume(EVENTS_MAX));

/// Free capacity at which a paused job resumes, if its client may lag this many events behind.
pub(crate) const fn room_to_resume(events_max: usize) -> usize {
    events_max / 2
}

/// Threads of a program besides those of the async runtime and compute: the store's, and blocking work.
pub(crate) const THREADS_BESIDE_MIN: usize = 8;
/// Maximum number of models that are loaded, loading or failed at once.
pub(crate) const MODELS_MAX: usize = if cfg!(test) { 12 } else { 64 };
/// Minimum time that a model loaded for a request waits for that request.
pub(crate) const REQUEST_COMES_WITHIN: Duration = Duration::from_secs(10);
/// State changes that a watcher may lag behind before it receives a fresh snapshot instead.
pub(crate) const CHANGES_MAX: usize = 256;
// A snapshot is never larger than the changes that it replaces.
const _: () = assert!(MODELS_MAX <= CHANGES_MAX);

/// Valid range of pixel limits: from a few patches of any vision encoder up to the largest picture that is decoded.
pub(crate) const PICTURE_PIXELS: std::ops::RangeInclusive<u64> = 16_384..=50_000_000;
/// Largest `engine.queue_requests_max`.
pub(crate) const QUEUE_REQUESTS_LIMIT: u64 = 65_536;
/// Largest `server.drain_s`: a week, which can safely be added to a clock.
pub(crate) const DRAIN_S_LIMIT: u64 = 7 * 24 * 3600;
/// Largest `engine.sequences_max`.
pub(crate) const SEQUENCES_LIMIT: u64 = 4_096;
/// Largest `engine.step_tokens_max`.
pub(crate) const STEP_TOKENS_LIMIT: u64 = 65_536;
/// Prompts of one model that are rendered and tokenized at the same time; a client gets at most all but one. Others
/// wait and keep their place in the queue.
pub(crate) const PROMPT_BUILDS_MAX: usize = 4;
/// Large prompts among those; a client gets at most all but one.
pub(crate) const PROMPT_BUILDS_LARGE_MAX: usize = 2;
const _: () = assert!(0 < PROMPT_BUILDS_LARGE_MAX && PROMPT_BUILDS_LARGE_MAX < PROMPT_BUILDS_MAX);
/// Size in bytes from which a prompt counts as large. Prompts with pictures or sounds always do. While a prompt is
/// built, its messages, text and tokens are in memory at once.
pub(crate) const PROMPT_LARGE_BYTES: usize = 1 << 20;
/// Maximum time to build one prompt, without the wait for its turn. On an idle machine the limits of the chat
/// template end it sooner.
pub(crate) const PROMPT_BUILD_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum length of a prompt that is truncated to fit, in multiples of the context: it is tokenized as a whole
/// first.
pub(crate) const OVERFLOW_CONTEXTS_MAX: usize = 16;
/// Minimum of that limit in tokens; see [`OVERFLOW_CONTEXTS_MAX`].
pub(crate) const OVERFLOW_TOKENS_MIN: usize = 65_536;
/// Maximum length of a cache salt in bytes.
pub(crate) const CACHE_SALT_BYTES_MAX: usize = 1_024;
/// Maximum number of KV block files on disk; each takes about 200 bytes of memory.
pub(crate) const PREFIX_DISK_FILES_MAX: usize = if cfg!(test) { 200 } else { 1 << 18 };
/// Queue length of each disk thread, for all models.
pub(crate) const PREFIX_DISK_ORDERS_MAX: usize = 1024;
/// Bytes of one model's blocks that are being read from disk.
pub(crate) const PREFIX_DISK_READ_BYTES: usize = 16 << 20;
/// Bytes of one model's blocks that are being written to disk.
pub(crate) const PREFIX_DISK_WRITE_BYTES: usize = 32 << 20;
/// Maximum number of files of one model.
pub(crate) const PREFIX_DISK_MODEL_FILES_MAX: usize = 4096;
/// Blocks that an idle engine hands to the disk at a time.
pub(crate) const PREFIX_DISK_SAVED_AT_ONCE: usize = 4;
/// Default maximum size of blocks on disk, in bytes.
pub(crate) const PREFIX_DISK_BYTES_DEFAULT: u64 = 16 << 30;
/// Fraction of the size limit, as its divisor: if several processes share one directory, each rescans it after
/// writing that much. They may therefore exceed the limit by one such part per process.
pub(crate) const PREFIX_DISK_LOOKS: u64 = 32;
/// Age from which a file without further writes is a leftover of a process that ended.
pub(crate) const PREFIX_DISK_UNFINISHED: Duration = Duration::from_secs(60);
/// Time at shutdown to finish writing to disk.
pub(crate) const PREFIX_DISK_FLUSH: Duration = Duration::from_secs(2);
/// Constraints of one model that are compiled at the same time; a compilation cannot be interrupted.
pub(crate) const CONSTRAINT_COMPILES_MAX: usize = 2;
/// Compilations of one client at the same time.
pub(crate) const CONSTRAINT_COMPILES_OF_CLIENT_MAX: usize = 1;
const _: () = assert!(CONSTRAINT_COMPILES_OF_CLIENT_MAX < CONSTRAINT_COMPILES_MAX);
/// Time that a request waits for its constraint once compiling has begun. Typical constraints take about 20 ms.
pub(crate) const CONSTRAINT_TIME_MAX: Duration = Duration::from_secs(8);
// Compiling is part of building the prompt.
const _: () = assert!(CONSTRAINT_TIME_MAX.as_secs() < PROMPT_BUILD_TIME_MAX.as_secs());
/// Estimated bytes of one model's cached constraints: some hundreds of typical ones.
pub(crate) const CONSTRAINTS_BYTES_MAX: u64 = 12 << 20;
/// Inputs of an embedding request that go to the worker as one batch. The next ones are tokenized meanwhile.
pub(crate) const EMBED_JOB_INPUTS: usize = 64;
/// Maximum number of inputs in one embedding request.
pub(crate) const EMBED_INPUTS_MAX: usize = 65_536;
/// Segments of a text that are synthesised before the client has read them; a segment is some seconds of sound.
pub(crate) const SPEECH_PIECES_MAX: usize = 4;
/// Segments of a text that one step synthesises.
pub(crate) const SPEECH_STEP_PIECES: usize = 1;
/// Bytes of sound in one message.
pub(crate) const SPEECH_MESSAGE_BYTES: usize = 64 << 10;
const _: () = assert!(SPEECH_STEP_PIECES < SPEECH_PIECES_MAX);
/// Valid range of speech speed, relative to the model's normal speed.
pub(crate) const SPEECH_SPEED: std::ops::RangeInclusive<f32> = 0.25..=4.0;
/// Embedding batches of one request in progress at once.
pub(crate) const EMBED_JOBS_MAX: usize = 2;
/// Maximum size of an embedding response in bytes, so that it fits a message.
pub(crate) const EMBED_ANSWER_BYTES_MAX: usize = 256 << 20;
/// Maximum number of messages in one chat.
pub(crate) const CHAT_MESSAGES_MAX: usize = 16_384;
/// Tokens of one Tokenize call whose text is returned; each takes about a hundred bytes in the response.
pub(crate) const TOKEN_PIECES_MAX: usize = 131_072;
/// Maximum number of tools in one chat.
pub(crate) const CHAT_TOOLS_MAX: usize = 1_024;
/// Maximum number of JSON values in the tools, the template's variables and the tool calls of one chat. Each takes
/// up to a hundred bytes of memory, however short it is as text, and templates hold a second copy. A hundred tools
/// with large schemas have twenty thousand.
pub(crate) const CHAT_JSON_VALUES_MAX: usize = 1 << 16;
/// Values that a tool call counts as besides its arguments, for the object that templates read.
pub(crate) const CALL_JSON_VALUES: usize = 8;
/// Maximum length of a client's name in bytes.
pub(crate) const CLIENT_ID_BYTES_MAX: usize = 256;
/// Maximum length of a request id in bytes.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 128;
/// Maximum number of bytes that an error message quotes from the input.
pub(crate) const QUOTE_BYTES_MAX: usize = 200;
/// Maximum number of names that an error message lists.
pub(crate) const NAMES_LISTED_MAX: usize = 20;

/// Attempts to restart a failed worker before the model stays failed.
pub(crate) const RESTARTS_MAX: u32 = 6;
/// Wait before the first attempt; it doubles each time.
pub(crate) const RESTART_FIRST: Duration = Duration::from_secs(1);
/// Longest wait between attempts.
pub(crate) const RESTART_LAST: Duration = Duration::from_secs(60);
/// Lifetime of a worker after which the attempts are counted from zero again.
pub(crate) const RESTART_FORGET: Duration = Duration::from_secs(600);
const _: () = assert!(RESTART_FIRST.as_secs() <= RESTART_LAST.as_secs());
const _: () = assert!(RESTART_LAST.as_secs() < RESTART_FORGET.as_secs());

/// Time without progress after which a worker with work counts as stuck, so that it is not ready. A step with many
/// prompt tokens of a large model takes a minute on a few cores.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(120);

/// Smallest value of `retry-after-ms`.
pub(crate) const RETRY_AFTER_MS_MIN: u64 = 100;
/// Largest value of `retry-after-ms`.
pub(crate) const RETRY_AFTER_MS_MAX: u64 = 60_000;
/// Value of `retry-after-ms` before anything was measured.
pub(crate) const RETRY_AFTER_MS_UNMEASURED: u64 = 1_000;
const _: () = assert!(RETRY_AFTER_MS_MIN <= RETRY_AFTER_MS_UNMEASURED);
const _: () = assert!(RETRY_AFTER_MS_UNMEASURED <= RETRY_AFTER_MS_MAX);

/// Time by which the daemon answers DEADLINE_EXCEEDED before a unary call's `grpc-timeout`, because the transport
/// answers CANCELLED at that moment.
pub(crate) const DEADLINE_MARGIN: Duration = Duration::from_millis(10);
/// Time after the drain for streams to send their last status, and again for connections to close.
pub(crate) const FLUSH_GRACE: Duration = Duration::from_millis(500);
/// Maximum number of streams on one gRPC connection.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 4_096;
/// Silence on a connection after which HTTP/2 sends a ping.
pub(crate) const HTTP2_KEEPALIVE: Duration = Duration::from_secs(30);
/// Time for the peer to answer that ping.
pub(crate) const HTTP2_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of an archive's message: a chunk of 1 MiB with its framing.
pub(crate) const ARCHIVE_MESSAGE_BYTES_MAX: usize = 2 << 20;
/// Maximum length of an adapter's name in bytes.
pub(crate) const ADAPTER_NAME_BYTES_MAX: usize = 128;
/// Queue length of a worker's adapter loads; they are sent one at a time.
pub(crate) const ADAPTER_ORDERS_MAX: usize = 1;
/// Divisor of a port's connection limit that gives the limit of one address.
pub(crate) const ADDRESS_SHARE: usize = 4;
/// Deadline for the handshake, then for the client's protocol preface, and on the admin port for a request's
/// headers.
pub(crate) const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of connections to the admin port.
pub(crate) const ADMIN_CONNECTIONS_MAX: usize = 256;
/// Maximum lifetime of such a connection, which serves probes and scrapes.
pub(crate) const ADMIN_CONNECTION_TIME: Duration = Duration::from_secs(300);
/// Maximum size of a request's line and headers on the admin port.
pub(crate) const ADMIN_HEADERS_BYTES_MAX: usize = 16 << 10;

/// Share of the memory available at startup that models may take by default: numerator and denominator.
pub(crate) const MEMORY_BUDGET_SHARE: (u64, u64) = (4, 5);
/// Share of a GPU's memory free at startup that models may take. The driver's allocator keeps some, and other
/// programs may need some.
pub(crate) const CARD_MEMORY_SHARE: (u64, u64) = (9, 10);
/// Part of a fixed memory limit reserved for everything but models: the program, threads, tokenizers, requests in
/// progress and heap fragmentation.
pub(crate) const FIXED_MEMORY_BESIDE: u64 = 128 << 20;
/// Smallest KV cache that a load accepts, in tokens, unless the model's context is smaller.
pub(crate) const KV_TOKENS_MIN: usize = 2_048;
/// Full contexts that the KV cache holds by default.
pub(crate) const KV_CONTEXTS_DEFAULT: usize = 8;
/// Share of the memory left after weights and scratch that the KV cache takes by default.
pub(crate) const KV_SHARE: (u64, u64) = (1, 2);
/// Rows of a step that prefill may take while sequences decode, as a share of `step_tokens_max`.
pub(crate) const PREFILL_SHARE_BESIDE_DECODES: (usize, usize) = (1, 2);
/// Maximum length of an error message in characters. It travels in a header, which has room for some thousands.
pub(crate) const MESSAGE_CHARS_MAX: usize = 4000;
/// Smallest number of heaps that a program's threads share; the number is that of the cores, within limits. Freed
/// memory stays in its heap.
pub(crate) const HEAPS_MIN: usize = 2;
/// Largest number of heaps.
pub(crate) const HEAPS_MAX: usize = 8;
/// Delay after work that freed much memory until the heaps return free memory; it covers all such work until then.
pub(crate) const HEAPS_GIVE_BACK_AFTER: Duration = Duration::from_millis(50);
/// Build time from which a prompt counts as having allocated megabytes, which are freed in small pieces.
pub(crate) const PROMPT_BUILD_LARGE: Duration = Duration::from_millis(20);
/// Maximum number of other files in a fill-in-the-middle request.
pub(crate) const INFILL_FILES_MAX: usize = 64;

/// Maximum size of a topology file in bytes.
pub(crate) const TOPOLOGY_FILE_BYTES_MAX: u64 = 256 << 10;

/// Weights that are quantised before being written: 64 MB as f32, or one row.
pub(crate) const QUANTIZED_WEIGHTS_AT_ONCE: usize = 16 << 20;

/// Longest keep-alive time besides "for ever": a year.
pub(crate) const KEEP_ALIVE_MAX: Duration = Duration::from_secs(365 * 86_400);
/// Time that a busy model has while another waits for its memory. Afterwards it accepts nothing new until the other
/// had its turn; it finishes what it has begun.
pub(crate) const TURN: Duration =
    if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(5) };
/// Wait before a model whose load failed is loaded again for a request.
pub(crate) const LOAD_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Context length in tokens below which idle models are unloaded to make room for a new one.
pub(crate) const CONTEXT_BESIDE_OTHERS: usize = 8_192;
const _: () = assert!(KV_TOKENS_MIN <= CONTEXT_BESIDE_OTHERS);
/// Models whose load durations are remembered.
pub(crate) const LOAD_TIMES_MAX: usize = 256;
/// Models with metrics of the time that requests waited for them, loaded or not.
pub(crate) const LOAD_WAITS_MAX: usize = 2 * MODELS_MAX;
/// Maximum size of one order to a worker's process or one of its messages, in bytes: a prompt with its images.
pub(crate) const WORKER_FRAME_BYTES_MAX: usize = 1 << 30;
/// Time that a worker waits for a message before it looks after its clients again.
pub(crate) const WORKER_WAIT: Duration = Duration::from_millis(20);
/// Time that a worker's process waits for the next part of an order that has begun to arrive.
pub(crate) const WORKER_ORDER_WAIT: Duration = Duration::from_millis(1);
/// Interval of a worker process's heartbeats.
pub(crate) const WORKER_PULSE_EVERY: Duration = Duration::from_millis(250);
/// Smallest `engine.worker_silence_ms`.
pub(crate) const WORKER_SILENCE_MS_MIN: u64 = 1_000;
/// Largest `engine.worker_silence_ms`.
pub(crate) const WORKER_SILENCE_MS_MAX: u64 = 600_000;
const _: () = assert!(WORKER_SILENCE_MS_MIN >= 4 * WORKER_PULSE_EVERY.as_millis() as u64);
/// Time until the first message of a worker's process; its program may have to be read from disk.
pub(crate) const WORKER_START_MAX: Duration = Duration::from_secs(30);
/// Time for a worker's process to quit.
pub(crate) const WORKER_LEAVE_MAX: Duration = Duration::from_secs(5);
// It writes its blocks to disk meanwhile.
const _: () = assert!(WORKER_LEAVE_MAX.as_millis() > PREFIX_DISK_FLUSH.as_millis());
/// Interval of the checks whether a process that closed its stream has ended.
pub(crate) const WORKER_EXIT_LOOK: Duration = Duration::from_millis(2);
/// Maximum number of those checks.
pub(crate) const WORKER_EXIT_LOOKS: u32 = 1_000;
/// Maximum time that a step waits for those of other processes.
pub(crate) const WORKER_TURN_PATIENCE: Duration = Duration::from_millis(250);
/// Interval of its attempts to take the lock.
pub(crate) const WORKER_TURN_POLL: Duration = Duration::from_micros(50);

/// Maximum size of one safetensors file, if the output is split into several.
pub(crate) const SAFETENSORS_FILE_BYTES_MAX: u64 = 5_000_000_000;
/// Messages of a sound that may wait to be decoded.
pub(crate) const SOUND_MESSAGES_MAX: usize = 4;
/// Maximum size of such a message in bytes.
pub(crate) const SOUND_MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Time for which a client that sends a sound may send nothing.
pub(crate) const SOUND_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Largest `server.sound_bytes_max`; an MP4 file may take that much memory.
pub(crate) const SOUND_BYTES_LIMIT: u64 = 4 << 30;
/// Largest `server.sound_s_max`: a week.
pub(crate) const SOUND_S_LIMIT: u64 = 7 * 24 * 3600;
/// Maximum length of a language's name in bytes.
pub(crate) const LANGUAGE_BYTES_MAX: usize = 64;
/// Maximum length of a transcription's prompt in bytes; a model reads only its last few hundred tokens.
pub(crate) const SPEECH_PROMPT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of temperatures in one transcription.
pub(crate) const TEMPERATURES_MAX: usize = 16;
/// Maximum number of pictures in one chat.
pub(crate) const CHAT_PICTURES_MAX: usize = 16;
/// Maximum number of sounds in one chat.
pub(crate) const CHAT_SOUNDS_MAX: usize = 16;
/// Maximum size of such a sound in bytes.
pub(crate) const CHAT_SOUND_BYTES_MAX: u64 = 25 << 20;
/// Bytes of prepared pictures that all waiting and running requests of one model may hold together.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 20;
/// Windows of speech that one model decodes at once.
pub(crate) const WHISPER_WINDOWS_MAX: usize = 8;
/// Upper bound of a speech window's events. A text of 224 tokens has at most 75 segments of two timestamps and a
/// word, each reported twice; the rest are the events around them.
pub(crate) const WINDOW_EVENTS_MAX: usize = 160;
const _: () = assert!(2 * WINDOW_EVENTS_MAX <= room_to_resume(EVENTS_MAX));
