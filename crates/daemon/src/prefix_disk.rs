//! KV blocks on disk, so that the prefix cache survives a restart. One directory holds the blocks of all models
//! within a size limit; the least recently used are deleted first. Two threads read and write for all engines,
//! which never wait for them: a block that finds no room in a queue is not kept. A file holds a block's name, a
//! checksum and its content. A damaged, truncated or foreign file costs only its own block.

mod blocks;
mod file;
mod identity;

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, DirBuilder},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    task::Waker,
    thread,
    time::{Duration, SystemTime},
};

use hanzo_engine_runtime::{
    Overrides,
    kv::{BlockName, KeptBlock},
};
use prometheus::{IntCounter, IntGauge, Opts, Registry};
use serde::{Deserialize, Serialize};

pub(crate) use blocks::DiskBlocks;
use file::FileOutcome;
pub(crate) use identity::Identity;

use crate::{
    limits::{PREFIX_DISK_FILES_MAX, PREFIX_DISK_LOOKS, PREFIX_DISK_ORDERS_MAX, PREFIX_DISK_UNFINISHED},
    source::ModelSource,
};

/// Key of a block: the model and the block's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    model: Identity,
    name: BlockName,
}

/// Disk store of KV blocks.
pub(crate) struct PrefixDisk {
    shared: Arc<DiskState>,
    reads: SyncSender<BlockOrder>,
    writes: SyncSender<BlockOrder>,
}

/// Metrics since the start.
struct Counts {
    bytes: IntGauge,
    written_bytes: IntCounter,
    read_blocks: IntCounter,
    damaged_blocks: IntCounter,
    dropped_blocks: IntCounter,
}

struct DiskState {
    dir: PathBuf,
    bytes_max: u64,
    /// Whether other processes keep blocks in the directory too.
    shared: bool,
    index: Mutex<Index>,
    writing: Mutex<usize>, // number of blocks being written
    written: Condvar,
    counts: Counts,
}

/// Counters of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskCounts {
    bytes: u64,
    written_bytes: u64,
    read_blocks: u64,
    damaged_blocks: u64,
    dropped_blocks: u64,
}

/// Location of the blocks of a worker's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskPlace {
    dir: PathBuf,
    bytes_max: u64,
    model: Identity,
}

/// Files in the directory, in the order of their last use.
#[derive(Default)]
struct Index {
    files: HashMap<Key, (u64, u64)>, // order of use, and size in bytes
    turns: BTreeMap<u64, Key>,
    next: u64,
    bytes: u64,
    added: u64, // bytes written since the last scan of the directory
}

/// Block to read or write, and the channel that its buffer returns on.
struct BlockOrder {
    key: Key,
    bytes: Vec<u8>,
    back: SyncSender<KeptBlock>,
    waker: Waker,
}

impl Counts {
    fn new() -> Result<Counts, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(name, help).namespace("hanzo_engine");
        let counter = |name, help| IntCounter::with_opts(opts(name, help));
        Ok(Counts {
            bytes: IntGauge::with_opts(opts("prefix_disk_bytes", "Bytes of KV blocks on disk."))?,
            written_bytes: counter("prefix_disk_written_bytes_total", "Bytes of KV blocks written to disk.")?,
            read_blocks: counter("prefix_disk_read_blocks_total", "KV blocks found on disk and read.")?,
            damaged_blocks: counter(
                "prefix_disk_damaged_blocks_total",
                "KV blocks on disk that were damaged, and dropped.",
            )?,
            dropped_blocks: counter(
                "prefix_disk_dropped_blocks_total",
                "KV blocks that were not kept on disk: no room on their way, or none there.",
            )?,
        })
    }
}

impl Index {
    fn add(&mut self, key: Key, bytes: u64) {
        self.remove(&key);
        self.files.insert(key, (self.next, bytes));
        self.turns.insert(self.next, key);
        self.next += 1;
        self.bytes += bytes;
        self.added += bytes;
    }

    fn remove(&mut self, key: &Key) {
        if let Some((turn, bytes)) = self.files.remove(key) {
            self.turns.remove(&turn);
            self.bytes -= bytes;
        }
    }

    fn oldest(&self) -> Option<Key> {
        self.turns.first_key_value().map(|(_, key)| *key)
    }
}

impl PrefixDisk {
    /// Opens a directory, or creates it, and keeps at most this many bytes in it. Existing blocks are used.
    ///
    /// # Errors
    /// Errors of the operating system with the directory or the threads.
    pub(crate) fn open(dir: &Path, bytes_max: u64) -> io::Result<Arc<PrefixDisk>> {
        Self::open_as(dir, bytes_max, false)
    }

    /// Same as [`PrefixDisk::open`] for a directory that other processes use too. Their files are counted by
    /// scanning it from time to time.
    fn open_shared(dir: &Path, bytes_max: u64) -> io::Result<Arc<PrefixDisk>> {
        Self::open_as(dir, bytes_max, true)
    }

    fn open_as(dir: &Path, bytes_max: u64, shared: bool) -> io::Result<Arc<PrefixDisk>> {
        private_dir(dir)?;
        let shared = Arc::new(DiskState {
            dir: dir.to_owned(),
            bytes_max,
            shared,
            index: Mutex::new(scan(dir, shared)?),
            writing: Mutex::new(0),
            written: Condvar::new(),
            counts: Counts::new().map_err(io::Error::other)?,
        });
        shared.make_room(0);
        shared.counts.bytes.set(lock(&shared.index).bytes as i64);
        let start = |name: &str, work: fn(&DiskState, BlockOrder)| {
            let (orders, received) = sync_channel::<BlockOrder>(PREFIX_DISK_ORDERS_MAX);
            let shared = shared.clone();
            let body = move || run(&received, |order| work(&shared, order));
            thread::Builder::new().name(name.to_owned()).spawn(body).map(|_| orders)
        };
        let reads = start("prefix cache in", DiskState::read)?;
        let writes = start("prefix cache out", DiskState::write)?;
        Ok(Arc::new(PrefixDisk { shared, reads, writes }))
    }

    /// Store and identity for a load. `None` if the model's files cannot be read; the load then works without a
    /// disk cache.
    pub(crate) fn for_load(
        self: Arc<Self>,
        source: &ModelSource,
        overrides: &Overrides,
    ) -> Option<(Arc<Self>, Identity)> {
        match Identity::of(source) {
            Ok(identity) => Some((self, identity.run_as(&format!("{overrides:?}")))),
            Err(error) => {
                tracing::warn!(model = source.describe(), %error, "no prefix cache on disk: its files cannot be read");
                None
            }
        }
    }

    /// Blocks of one model, of this size in bytes. `waker` is woken when an order is finished.
    pub(crate) fn blocks(&self, model: Identity, bytes: usize, waker: Waker) -> DiskBlocks {
        DiskBlocks::new(self, model, bytes, waker)
    }

    /// Location of a model's blocks, for the process that runs it.
    pub(crate) fn place(&self, model: Identity) -> DiskPlace {
        DiskPlace { dir: self.shared.dir.clone(), bytes_max: self.shared.bytes_max, model }
    }

    /// Counters since the start.
    pub(crate) fn counts(&self) -> DiskCounts {
        let Counts { bytes, written_bytes, read_blocks, damaged_blocks, dropped_blocks } =
            &self.shared.counts;
        DiskCounts {
            bytes: u64::try_from(bytes.get()).unwrap_or(0),
            written_bytes: written_bytes.get(),
            read_blocks: read_blocks.get(),
            damaged_blocks: damaged_blocks.get(),
            dropped_blocks: dropped_blocks.get(),
        }
    }

    /// Adds another process's counters; `before` are the ones it reported last.
    pub(crate) fn count(&self, before: Option<DiskCounts>, now: DiskCounts) {
        let before = before.unwrap_or_default();
        let counts = &self.shared.counts;
        counts.bytes.set(now.bytes as i64);
        counts.written_bytes.inc_by(now.written_bytes.saturating_sub(before.written_bytes));
        counts.read_blocks.inc_by(now.read_blocks.saturating_sub(before.read_blocks));
        counts.damaged_blocks.inc_by(now.damaged_blocks.saturating_sub(before.damaged_blocks));
        counts.dropped_blocks.inc_by(now.dropped_blocks.saturating_sub(before.dropped_blocks));
    }

    /// Registers the metrics.
    ///
    /// # Errors
    /// If the names are taken.
    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let Counts { bytes, written_bytes, read_blocks, damaged_blocks, dropped_blocks } =
            &self.shared.counts;
        registry.register(Box::new(bytes.clone()))?;
        for counter in [written_bytes, read_blocks, damaged_blocks, dropped_blocks] {
            registry.register(Box::new(counter.clone()))?;
        }
        Ok(())
    }

    /// Waits until all queued blocks are written, or until the timeout.
    pub(crate) fn flush(&self, at_most: Duration) {
        let writing = lock(&self.shared.writing);
        drop(self.shared.written.wait_timeout_while(writing, at_most, |writing| *writing > 0));
    }
}

impl DiskPlace {
    /// Opens the store in a worker's process. `None` if that fails, with a line in the log.
    pub(crate) fn open(&self) -> Option<(Arc<PrefixDisk>, Identity)> {
        match PrefixDisk::open_shared(&self.dir, self.bytes_max) {
            Ok(disk) => Some((disk, self.model)),
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "no prefix cache on disk: its directory cannot be used");
                None
            }
        }
    }
}

/// Thread that executes orders until all senders are gone.
fn run(orders: &Receiver<BlockOrder>, work: impl Fn(BlockOrder)) {
    while let Ok(order) = orders.recv() {
        work(order);
    }
}

impl BlockOrder {
    fn end(self, found: bool) {
        let BlockOrder { key, bytes, back, waker } = self;
        // The channel has room for every buffer; the engine may be gone.
        let _ = back.try_send(KeptBlock { name: key.name, bytes, found });
        waker.wake();
    }
}

impl DiskState {
    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(key.model.to_string()).join(file::name(&key.name))
    }

    fn has(&self, key: &Key) -> bool {
        lock(&self.index).files.contains_key(key)
    }

    /// Queues a write. Returns the order if the queue is full.
    fn begin_write(&self, writes: &SyncSender<BlockOrder>, order: BlockOrder) -> Result<(), BlockOrder> {
        *lock(&self.writing) += 1;
        writes.try_send(order).map_err(|error| {
            self.end_write();
            let (TrySendError::Full(order) | TrySendError::Disconnected(order)) = error;
            order
        })
    }

    fn end_write(&self) {
        *lock(&self.writing) -= 1;
        self.written.notify_all();
    }

    fn read(&self, mut order: BlockOrder) {
        let path = self.path(&order.key);
        let read = file::read(&path, order.key, &mut order.bytes);
        let mut index = lock(&self.index);
        match read {
            FileOutcome::Whole(bytes) => {
                index.add(order.key, bytes);
                self.counts.read_blocks.inc();
            }
            FileOutcome::Gone => index.remove(&order.key),
            FileOutcome::Damaged => {
                index.remove(&order.key);
                self.counts.damaged_blocks.inc();
                // A file that cannot be removed is found damaged again after the next start.
                let _ = fs::remove_file(&path);
                tracing::warn!(file = %path.display(), "a block of the prefix cache is damaged, and is dropped");
            }
        }
        self.counts.bytes.set(index.bytes as i64);
        drop(index);
        order.end(matches!(read, FileOutcome::Whole(_)));
    }

    fn write(&self, order: BlockOrder) {
        let path = self.path(&order.key);
        let bytes = file::bytes_of(order.bytes.len());
        let written = if self.has(&order.key) {
            Ok(false)
        } else if self.make_room(bytes) {
            private_dir(&self.dir.join(order.key.model.to_string()))
                .and_then(|()| file::write(&path, order.key, &order.bytes))
                .map(|()| true)
        } else {
            Err(io::ErrorKind::StorageFull.into())
        };
        match &written {
            Ok(false) => {}
            Ok(true) => {
                lock(&self.index).add(order.key, bytes);
                self.counts.written_bytes.inc_by(bytes);
            }
            Err(error) => {
                // Only the first failure is logged, since a full disk stays full.
                if self.counts.dropped_blocks.get() == 0 {
                    tracing::warn!(file = %path.display(), %error, "a block of the prefix cache was not written");
                }
                self.counts.dropped_blocks.inc();
            }
        }
        self.counts.bytes.set(lock(&self.index).bytes as i64);
        let whole = written.is_ok();
        order.end(whole);
        self.end_write();
    }

    /// Deletes the least recently used blocks until this many bytes fit. False if they can never fit.
    fn make_room(&self, bytes: u64) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        if self.shared && lock(&self.index).added > self.bytes_max / PREFIX_DISK_LOOKS {
            // If the scan fails, the next write tries again.
            if let Ok(found) = scan(&self.dir, true) {
                *lock(&self.index) = found;
            }
        }
        loop {
            let mut index = lock(&self.index);
            if index.bytes + bytes <= self.bytes_max && index.files.len() < PREFIX_DISK_FILES_MAX {
                return true;
            }
            let Some(key) = index.oldest() else { return true };
            index.remove(&key);
            drop(index);
            // Another process may have deleted it first.
            let _ = fs::remove_file(self.path(&key));
        }
    }
}

/// Scans a directory; files are sorted by last use. Files that are not blocks are left alone, except unfinished
/// ones of a process that ended. If other processes write too, recent unfinished files are theirs.
fn scan(dir: &Path, shared: bool) -> io::Result<Index> {
    let mut found: Vec<(SystemTime, Key, u64)> = Vec::new();
    for model in fs::read_dir(dir)? {
        let model = model?;
        let Some(identity) = model.file_name().to_str().and_then(Identity::parse) else { continue };
        if !model.file_type()?.is_dir() {
            continue;
        }
        for entry in fs::read_dir(model.path())? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let Ok(facts) = entry.metadata() else { continue };
            if file::is_unfinished(&name) {
                let age = facts.modified().ok().and_then(|then| then.elapsed().ok());
                // A file that cannot be removed stays.
                if !shared || age.is_some_and(|age| age > PREFIX_DISK_UNFINISHED) {
                    let _ = fs::remove_file(entry.path());
                }
            } else if let Some(name) = file::parse_name(&name).filter(|_| facts.is_file()) {
                if found.len() == PREFIX_DISK_FILES_MAX {
                    let _ = fs::remove_file(entry.path());
                    continue;
                }
                let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((used, Key { model: identity, name }, facts.len()));
            }
        }
    }
    found.sort_unstable_by_key(|(used, ..)| *used);
    let mut index = Index::default();
    found.into_iter().for_each(|(_, key, bytes)| index.add(key, bytes));
    index.added = 0;
    Ok(index)
}

/// Creates a directory that only its owner may read, since keys and values reveal what prompts contained.
fn private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The counts and the index are consistent after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
