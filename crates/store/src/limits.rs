//! Every bound of the store.

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
/// sled's page cache: the whole record is small.
pub(crate) const CACHE_BYTES: u64 = 8 << 20;

// Paths are at most 4,096 bytes on Linux, yet a thousand of them rarely come near that: the record's own limit is
// what holds, and it must at least take the largest model seen so far (about 200 shards) with long paths.
const _: () = assert!(RECORD_BYTES_MAX >= 200 * 4_096);
