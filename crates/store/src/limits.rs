//! Every bound of the store and of what it fetches.

use std::time::Duration;

/// Models the store keeps a record of.
pub const MODELS_MAX: usize = 10_000;
/// Files of one model: shards, tokenizer, configuration.
pub const FILES_MAX: usize = 1_024;
/// Bytes of a model's name, owner included.
pub const NAME_BYTES_MAX: usize = 200;
/// Bytes of one encoded record.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Bytes kept of a free-form text such as the license; what is longer is cut.
pub(crate) const TEXT_BYTES_MAX: usize = 1_024;
/// A model whose files are together no larger than this is digested when it is registered: it takes
/// milliseconds. Larger ones are digested when somebody asks, see [`crate::Store::digest`].
pub const DIGEST_EAGER_BYTES_MAX: u64 = 32 << 20;
/// How long an open waits for another process to let go of the database.
pub(crate) const LOCK_WAIT_MS: u64 = 300;
/// How long the database may take to open and be read; one that takes longer is damaged. The largest store takes
/// seconds.
pub(crate) const OPEN_MAX: Duration = Duration::from_secs(120);
/// What the ledger may be longer than twice what it says before it is written anew.
pub(crate) const LEDGER_SLACK_BYTES: u64 = 256 << 10;
/// Free space without which the database is asked to write nothing: two of its segments.
pub(crate) const ROOM_BYTES: u64 = 1 << 20;
/// What is put by for a full disk.
pub(crate) const RESERVE_BYTES: u64 = 4 << 20;
/// sled's page cache: the whole record is small.
pub(crate) const CACHE_BYTES: u64 = 8 << 20;
/// Aliases a user may make.
pub const ALIASES_MAX: usize = 10_000;
/// Aliases that lead to aliases.
pub(crate) const ALIAS_HOPS_MAX: usize = 8;

/// Bytes of a reference as it is typed.
pub(crate) const REFERENCE_BYTES_MAX: usize = 2_048;
/// Bytes of one file of a model: sixteen times the largest there is.
pub const FILE_BYTES_MAX: u64 = 1 << 40;
/// Bytes of a model's files together.
pub const MODEL_BYTES_MAX: u64 = 4 << 40;
/// Bytes of a listing or manifest that a server sends.
pub(crate) const MANIFEST_BYTES_MAX: usize = 16 << 20;
/// Files a listing may name, of which a model takes some.
pub(crate) const LISTED_FILES_MAX: usize = 50_000;
/// Bytes of a file's name within its model, folders included.
pub(crate) const FILE_NAME_BYTES_MAX: usize = 255;
/// Folders above a file within its model.
pub(crate) const FILE_FOLDERS_MAX: usize = 4;
/// Bytes read of a text that comes with a model: its template, system prompt, parameters or license.
pub(crate) const SIDE_TEXT_BYTES_MAX: u64 = 1 << 20;
/// How long a listing, a manifest or a token may take to arrive, from the first byte to the last: 16 MiB at a modem's
/// pace, and not a byte a second.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Redirects followed from one request.
pub(crate) const REDIRECTS_MAX: usize = 8;
/// Globs of one pull.
pub(crate) const GLOBS_MAX: usize = 64;

/// One request asks for this much of a large file.
pub(crate) const CHUNK_BYTES: u64 = 16 << 20;
/// What arrived is written, and noted in the journal, each time so much has gathered: what a kill can cost each
/// stream, and what each stream holds in memory.
pub(crate) const WRITE_BYTES: usize = 1 << 20;
/// A connection that brings less in the time of [`crate::Settings::stall`] is given up, as one that brings nothing.
pub(crate) const LEAST_BYTES: u64 = 1 << 10;
/// Requests at once for one file.
pub(crate) const STREAMS_MAX: usize = 4;
/// Files at once; together with [`STREAMS_MAX`], the connections of one pull.
pub(crate) const FILES_AT_ONCE: usize = 2;
/// Pulls at once; one more is refused.
pub const PULLS_MAX: usize = 8;
/// Attempts without a byte before a file is given up.
pub(crate) const ATTEMPTS_MAX: u32 = 8;
/// The same of what comes before the files, such as their list, while no connection was had.
pub(crate) const UNREACHED_ATTEMPTS_MAX: u32 = 3;
/// How long a connection may take to come about.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Times a file is begun again because the server's copy changed meanwhile.
pub(crate) const RESTARTS_MAX: u32 = 3;
/// The longest a server may make a pull wait by Retry-After.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// Free space a pull leaves on the disk.
pub(crate) const SPARE_BYTES: u64 = 16 << 20;
/// How old an orphan is before it is collected.
pub const ORPHAN_AGE: Duration = Duration::from_secs(3_600);
/// How often progress is told.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_millis(100);

// Paths are at most 4,096 bytes on Linux, yet a thousand of them rarely come near that: the record's own limit is
// what holds, and it must at least take the largest model seen so far (about 200 shards) with long paths.
const _: () = assert!(RECORD_BYTES_MAX >= 200 * 4_096);
// What all pulls together gather in memory.
const _: () = assert!(PULLS_MAX * FILES_AT_ONCE * STREAMS_MAX * WRITE_BYTES <= 64 << 20);
// Some changes in a row on a full disk.
const _: () = assert!(RESERVE_BYTES >= 4 * ROOM_BYTES);
const _: () = assert!(CHUNK_BYTES > WRITE_BYTES as u64);
