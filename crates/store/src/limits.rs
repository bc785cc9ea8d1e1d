//! Limits of the store and of downloads.

use std::time::Duration;

/// Maximum number of model records.
pub const MODELS_MAX: usize = 10_000;
/// Maximum number of files of one model: shards, tokenizer, configuration.
pub const FILES_MAX: usize = 1_024;
/// Maximum bytes of a model's name, owner included.
pub const NAME_BYTES_MAX: usize = 200;
/// Maximum bytes of one encoded record.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a free-form text such as the license. Longer texts are cut.
pub(crate) const TEXT_BYTES_MAX: usize = 1_024;
/// Maximum total size of a model that is hashed when it is registered, which takes milliseconds. Larger models
/// are hashed on request, see [`crate::Store::digest`].
pub const DIGEST_EAGER_BYTES_MAX: u64 = 32 << 20;
/// Time in milliseconds that an open waits for another process to release the database.
pub(crate) const LOCK_WAIT_MS: u64 = 300;
/// Maximum time to open and read the database. A slower one counts as damaged. The largest store takes seconds.
pub(crate) const OPEN_MAX: Duration = Duration::from_secs(120);
/// Compaction threshold: the ledger is rewritten when it exceeds twice its compacted size plus this many bytes.
pub(crate) const LEDGER_SLACK_BYTES: u64 = 256 << 10;
/// Minimum free space for a write to the database: two of its segments.
pub(crate) const ROOM_BYTES: u64 = 1 << 20;
/// Size of the reserve file that is freed when the disk is full.
pub(crate) const RESERVE_BYTES: u64 = 4 << 20;
/// Size of sled's page cache. The whole database is small.
pub(crate) const CACHE_BYTES: u64 = 8 << 20;
/// Maximum number of user aliases.
pub const ALIASES_MAX: usize = 10_000;
/// Maximum length of a chain of aliases.
pub(crate) const ALIAS_HOPS_MAX: usize = 8;

/// Maximum bytes of a reference as typed.
pub(crate) const REFERENCE_BYTES_MAX: usize = 2_048;
/// Maximum bytes of one file of a model: sixteen times the largest known.
pub const FILE_BYTES_MAX: u64 = 1 << 40;
/// Maximum total bytes of a model's files.
pub const MODEL_BYTES_MAX: u64 = 4 << 40;
/// Maximum bytes of a listing or manifest from a server.
pub(crate) const MANIFEST_BYTES_MAX: usize = 16 << 20;
/// Maximum number of files in a listing. A model uses some of them.
pub(crate) const LISTED_FILES_MAX: usize = 50_000;
/// Maximum bytes of a file's name within its model, folders included.
pub(crate) const FILE_NAME_BYTES_MAX: usize = 255;
/// Maximum depth of folders above a file within its model.
pub(crate) const FILE_FOLDERS_MAX: usize = 4;
/// Maximum bytes read of a text that comes with a model: its template, system prompt, parameters or license.
pub(crate) const SIDE_TEXT_BYTES_MAX: u64 = 1 << 20;
/// Maximum time for a listing, a manifest or a token, from first to last byte. 16 MiB arrive in time even at
/// about 1 Mbit/s, but a body of one byte a second does not.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Maximum redirects of one request.
pub(crate) const REDIRECTS_MAX: usize = 8;
/// Maximum globs of one pull.
pub(crate) const GLOBS_MAX: usize = 64;

/// Bytes that one request asks for of a large file.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;
/// Bytes gathered before a write and a journal line. A kill loses at most this much of each stream, and each
/// stream holds this much in memory.
pub(crate) const WRITE_BYTES: usize = 1 << 20;
/// Minimum bytes that a connection must bring within [`crate::StoreSettings::stall`]. A slower one counts as
/// stalled.
pub(crate) const LEAST_BYTES: u64 = 1 << 10;
/// Concurrent requests for one file.
pub(crate) const STREAMS_MAX: usize = 4;
/// Concurrent files of one pull. Multiplied by [`STREAMS_MAX`], the number of its connections.
pub(crate) const FILES_AT_ONCE: usize = 2;
/// Concurrent pulls. One more is refused.
pub const PULLS_MAX: usize = 8;
/// Consecutive attempts without progress before a file is given up.
pub(crate) const ATTEMPTS_MAX: u32 = 8;
/// Attempts for requests before the files, such as their list, while no server was reached.
pub(crate) const UNREACHED_ATTEMPTS_MAX: u32 = 3;
/// Maximum time to establish a connection.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Maximum restarts of a file because the server's copy changed.
pub(crate) const RESTARTS_MAX: u32 = 3;
/// Maximum wait that a server's Retry-After can cause.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// Free space that a pull leaves on the disk.
pub(crate) const SPARE_BYTES: u64 = 16 << 20;
/// Minimum age of an orphan before it is collected.
pub const ORPHAN_AGE: Duration = Duration::from_secs(3_600);
/// Interval between progress reports.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_millis(100);

// Paths have at most 4,096 bytes on Linux. The record's own limit is what binds, and must fit the largest model
// seen so far (about 200 shards) with long paths.
const _: () = assert!(RECORD_BYTES_MAX >= 200 * 4_096);
// Memory for write buffers of all pulls together.
const _: () = assert!(PULLS_MAX * FILES_AT_ONCE * STREAMS_MAX * WRITE_BYTES <= 64 << 20);
// The reserve must allow several changes in a row on a full disk.
const _: () = assert!(RESERVE_BYTES >= 4 * ROOM_BYTES);
const _: () = assert!(CHUNK_BYTES > WRITE_BYTES as u64);
