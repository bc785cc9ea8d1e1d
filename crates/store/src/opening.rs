//! Opens the database even if its files are damaged. sled may cut off data after a damage, return an error, or
//! panic. Therefore it is opened and read through on a separate thread, and compared with the ledger. A damaged
//! database is moved to `db.damaged-N` and rebuilt from the ledger, from its own readable records, and from the
//! manifests beside the models' files.

use crate::StoreError;
use crate::error::{is_full, show_bytes};
use crate::layout::Layout;
use crate::ledger::{self, Contents, Ledger, LedgerReplay};
use crate::limits::{CACHE_BYTES, LOCK_WAIT_MS, OPEN_MAX};
use crate::name::{cut_name, fold};
use crate::repaired::RepairReport;
use crate::schema::Schema;
use crate::trees::{Trees, in_words};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Result of opening a database.
pub(crate) struct OpenedDatabase {
    pub(crate) trees: Trees,
    pub(crate) ledger: Ledger,
    /// Lock on the store. Its holder owns the store.
    pub(crate) lock: File,
    /// Report of the repairs made while opening.
    pub(crate) repaired: RepairReport,
    /// True if neither the ledger nor the database is complete, so that models must be restored from their
    /// manifests.
    pub(crate) incomplete: bool,
}

/// Reason why sled's files cannot be used.
#[derive(Debug)]
enum OpenFault {
    /// The files are damaged.
    Damaged(String),
    /// Other failure: disk full, no permission, or in use.
    Refused(StoreError),
}

/// A sled database that was read completely.
struct ReadThrough {
    trees: Trees,
    contents: Contents,
    /// Schema version in the database. None if nothing was ever written to it.
    version: Option<u32>,
    /// Number of the last ledger line that the database has.
    line: u64,
}

/// Opens the database. If `mend` is true, a damaged one is set aside and rebuilt. Otherwise damage is an error.
pub(crate) fn open(layout: &Layout, schema: &Schema, mend: bool) -> Result<OpenedDatabase, StoreError> {
    let lock = lock(layout)?;
    let dir = layout.dir();
    layout.reserve.make_room(0);
    let replay = ledger::read(&layout.ledger());
    let (replay, ledger_damage) = match replay {
        Ok(replay) => (replay, None),
        Err(error) if is_outer(&error) => return Err(StoreError::file(&layout.ledger())(error)),
        Err(error) => (None, Some(error.to_string())),
    };
    let mut opening =
        DatabaseOpener { layout, schema, mend, repaired: RepairReport::default(), incomplete: false };
    if layout.is_incomplete() {
        opening.goes_on()?;
    }
    let (trees, ledger) = match open_and_look(dir, &layout.database()) {
        Err(OpenFault::Refused(error)) => return Err(error),
        Err(OpenFault::Damaged(why)) => {
            let contents = opening.merged(Contents::default(), replay.as_ref(), &ledger_damage);
            opening.anew(why, contents, replay.map_or(0, |replay| replay.last), None)?
        }
        Ok(read) => opening.compare(read, replay, ledger_damage)?,
    };
    let DatabaseOpener { repaired, incomplete, .. } = opening;
    layout.reserve.keep();
    Ok(OpenedDatabase { trees, ledger, lock, repaired, incomplete })
}

struct DatabaseOpener<'a> {
    layout: &'a Layout,
    schema: &'a Schema,
    mend: bool,
    repaired: RepairReport,
    incomplete: bool,
}

impl DatabaseOpener<'_> {
    /// Continues a rebuild that a kill or a full disk interrupted. Models with a manifest may have no record
    /// yet.
    fn goes_on(&mut self) -> Result<(), StoreError> {
        let why = "making it again was broken off";
        self.mended(why.to_owned())?;
        let what = "what neither its ledger nor a manifest has".to_owned();
        self.repaired.dropped.push((what, why.to_owned()));
        self.incomplete = true;
        Ok(())
    }

    /// Writes the marker of an incomplete rebuild. It must be on disk before anything that a later open would
    /// take as complete.
    fn note_incomplete(&self) -> Result<(), StoreError> {
        if self.incomplete { self.layout.set_incomplete() } else { Ok(()) }
    }

    /// Fails if there is no room to write `contents`. Nothing has been changed at that point.
    fn make_room(&self, contents: &Contents, doing: &str) -> Result<(), StoreError> {
        let all = contents.models.values().chain(contents.aliases.values());
        let bytes = all.map(Vec::len).sum();
        if self.layout.reserve.make_room(bytes) {
            return Ok(());
        }
        let dir = self.layout.dir().to_owned();
        let (needed, free) =
            (crate::reserve::needed_bytes(bytes), crate::file_system::free_bytes(&dir).unwrap_or(0));
        let why = format!(
            "{doing} takes {} on its disk, and {} are free; nothing was changed: free some and try again",
            show_bytes(needed),
            show_bytes(free)
        );
        Err(StoreError::Open { dir, why })
    }

    /// Migrates a database of an older schema version.
    fn migrate_database(&self, read: &mut ReadThrough, found: u32) -> Result<(), StoreError> {
        if found == self.schema.version {
            return Ok(());
        }
        let doing = format!("bringing its records from version {found} to {}", self.schema.version);
        self.make_room(&read.contents, &doing)?;
        read.trees.migrate(self.schema, found, self.layout.dir())?;
        read.contents = read.trees.contents(self.layout.dir())?;
        Ok(())
    }

    fn compare(
        &mut self,
        mut read: ReadThrough,
        replay: Option<LedgerReplay>,
        ledger_damage: Option<String>,
    ) -> Result<(Trees, Ledger), StoreError> {
        let at = self.layout.ledger();
        let dir = self.layout.dir().to_owned();
        let version = self.schema.version;
        if let Some(found) = read.version.filter(|found| *found > version) {
            return Err(StoreError::Newer { dir, found, known: version });
        }
        let write = |contents: &Contents, after: u64| {
            Ledger::write(&at, version, contents, after).map_err(|error| self.layout.failed(&at, error))
        };
        let Some(mut replay) = replay else {
            self.prepare_without_ledger(&mut read, ledger_damage)?;
            let ledger = write(&readable(&read.contents), read.line)?;
            read.trees.set_line(ledger.last(), &dir)?;
            return Ok((read.trees, ledger));
        };
        if replay.version > version {
            return Err(StoreError::Newer { dir, found: replay.version, known: version });
        }
        if let Some(found) = read.version.filter(|found| *found < version) {
            self.migrate_database(&mut read, found)?;
        }
        self.migrate(&mut replay);
        let sound = replay.damaged.is_empty();
        // Records that no ledger line can hold exist in the database alone, and are lost with it.
        let (held, unreadable) = split(&read.contents);
        let mut differing = differing(&held, &replay.contents);
        let crashed = sound && read.version.is_some() && replay.last == read.line + 1;
        if crashed && replay.last_key.as_ref().is_some_and(|last| differing.iter().all(|key| key == last)) {
            // A crash came between the ledger and the database, before the change was acknowledged.
            for key in &differing {
                read.trees.put(key, &replay.contents, &dir)?;
            }
            differing.clear();
        }
        if sound && differing.is_empty() {
            let ledger = Ledger::open(&at, &replay).map_err(StoreError::file(&at))?;
            read.trees.set_version(version, &dir)?;
            read.trees.set_line(ledger.last(), &dir)?;
            return Ok((read.trees, ledger));
        }
        let has_all = replay.contents.is_in(&read.contents);
        let is_ahead = read.line >= replay.last;
        if read.version.is_some() && is_ahead && (has_all || !sound || read.line > replay.last) {
            // The database is complete. Only the ledger was damaged.
            if !sound || read.line > replay.last {
                self.mended("its ledger was damaged, and was written again from it".to_owned())?;
            }
            let ledger = write(&readable(&read.contents), read.line.max(replay.last))?;
            read.trees.set_line(ledger.last(), &dir)?;
            return Ok((read.trees, ledger));
        }
        let why = match read.version {
            None => "it was gone, or nothing of it can be read".to_owned(),
            Some(_) => format!("it had lost {} of its entries", differing.len()),
        };
        let (last, before) = (replay.last.max(read.line), std::mem::take(&mut read.contents));
        // A sound ledger has every record that it can hold. If it is damaged, records read from the database
        // are used too.
        self.incomplete |= unreadable != Contents::default();
        let before = if sound { unreadable } else { before };
        let contents = self.merged(before, Some(&replay), &None);
        // Closed before its files are moved. A database without data need not be moved.
        let empty = read.version.is_none().then_some(read);
        self.anew(why, contents, last, empty)
    }

    /// Brings a database whose ledger is lost or unreadable to the current version. A damaged ledger is set aside.
    fn prepare_without_ledger(
        &mut self,
        read: &mut ReadThrough,
        ledger_damage: Option<String>,
    ) -> Result<(), StoreError> {
        let was_used = read.version.is_some();
        if let Some(why) = ledger_damage {
            self.mended(format!("its ledger cannot be read ({why})"))?;
            self.incomplete |= !was_used;
            self.note_incomplete()?;
            self.layout.keep_aside(&self.layout.ledger())?;
        } else if !was_used && self.layout.has_models() {
            // There are models but no database: it was deleted or lost.
            self.mended("it was gone".to_owned())?;
            self.only_manifests_are_left("so is its ledger");
        }
        self.note_incomplete()?;
        self.layout.step();
        match read.version {
            Some(found) => self.migrate_database(read, found)?,
            None => read.trees.set_version(self.schema.version, self.layout.dir())?,
        }
        self.layout.step();
        Ok(())
    }

    fn migrate(&self, replay: &mut LedgerReplay) {
        if replay.version == 0 || replay.version >= self.schema.version {
            return;
        }
        for (key, encoded) in &mut replay.contents.models {
            match self.schema.migrate(replay.version, encoded, self.layout.dir()) {
                Ok(migrated) => *encoded = migrated,
                Err(why) => tracing::warn!(name = key, why, "record of the ledger not migrated"),
            }
        }
    }

    /// Merges the ledger's records over the others, and reports what was lost.
    fn merged(
        &mut self,
        mut before: Contents,
        replay: Option<&LedgerReplay>,
        damage: &Option<String>,
    ) -> Contents {
        let Some(replay) = replay else {
            let why = damage.as_deref().unwrap_or("there is no ledger: an older version kept the store");
            self.only_manifests_are_left(why);
            return before;
        };
        for (what, why) in &replay.damaged {
            let why = format!("damaged in the ledger too: {why}");
            self.repaired.dropped.push((cut_name(what), why));
        }
        self.incomplete |= !replay.damaged.is_empty();
        before.models.extend(replay.contents.models.clone());
        before.aliases.extend(replay.contents.aliases.clone());
        before
    }

    /// Reports the records that no manifest can restore.
    fn only_manifests_are_left(&mut self, why: &str) {
        let what = "names made by `cp`, and models used where they lie".to_owned();
        self.repaired.dropped.push((what, format!("only the database had them ({why})")));
        self.incomplete = true;
    }

    /// Notes the damage. Fails if repairs are not allowed.
    fn mended(&mut self, why: String) -> Result<(), StoreError> {
        if !self.mend {
            return Err(StoreError::Damaged { dir: self.layout.dir().to_owned(), why });
        }
        self.repaired.why = Some(why);
        Ok(())
    }

    /// Builds a new database from `contents` and sets the old one aside. The known records are written to a
    /// sound ledger first, and the marker of an incomplete rebuild before that, so a kill at any step loses
    /// nothing.
    fn anew(
        &mut self,
        why: String,
        contents: Contents,
        last: u64,
        empty: Option<ReadThrough>,
    ) -> Result<(Trees, Ledger), StoreError> {
        self.mended(why)?;
        let (dir, at, ledger) = (self.layout.dir().to_owned(), self.layout.database(), self.layout.ledger());
        self.make_room(&contents, "making its database again")?;
        self.note_incomplete()?;
        self.layout.step();
        if !self.repaired.dropped.is_empty() {
            self.layout.keep_aside(&ledger)?;
        }
        self.layout.step();
        let ledger = Ledger::write(&ledger, self.schema.version, &readable(&contents), last)
            .map_err(|error| self.layout.failed(&ledger, error))?;
        self.layout.step();
        let read = match empty {
            Some(read) => read,
            None => {
                self.repaired.database_moved_to = self.layout.set_aside(&at)?;
                self.layout.step();
                open_and_look(&dir, &at).map_err(|trouble| match trouble {
                    OpenFault::Refused(error) => error,
                    OpenFault::Damaged(why) => StoreError::Open { dir: dir.clone(), why },
                })?
            }
        };
        let trees = read.trees;
        for key in contents.models.keys().chain(contents.aliases.keys()).collect::<BTreeSet<_>>() {
            trees.put(key, &contents, &dir)?;
        }
        self.layout.step();
        trees.set_line(ledger.last(), &dir)?;
        self.layout.step();
        // The version comes last: a database without one is rebuilt.
        trees.set_version(self.schema.version, &dir)?;
        self.layout.step();
        let name = |encoded: &Vec<u8>| {
            let record: Option<serde_json::Value> = serde_json::from_slice(encoded).ok();
            record.and_then(|record| record["name"].as_str().map(str::to_owned))
        };
        self.repaired.restored = contents.models.values().filter_map(name).collect();
        self.repaired.aliases = contents.aliases.len();
        Ok((trees, ledger))
    }
}

/// Keys of models and aliases that differ between the two.
fn differing(one: &Contents, other: &Contents) -> Vec<String> {
    fn keys(one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        let all: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        all.into_iter().filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
    }
    let mut differing = keys(&one.models, &other.models);
    differing.extend(keys(&one.aliases, &other.aliases));
    differing
}

/// Returns the records that a ledger can hold.
pub(crate) fn readable(contents: &Contents) -> Contents {
    split(contents).0
}

/// Splits records into those that a ledger line can hold and the rest. A line holds JSON without a newline,
/// whose name is its key.
fn split(contents: &Contents) -> (Contents, Contents) {
    #[derive(serde::Deserialize)]
    struct RecordName<'a> {
        #[serde(borrow, alias = "alias")]
        name: std::borrow::Cow<'a, str>,
    }
    let is_held = |key: &String, encoded: &Vec<u8>| {
        let named = || serde_json::from_slice::<RecordName<'_>>(encoded);
        !encoded.contains(&b'\n') && named().is_ok_and(|named| fold(&named.name) == *key)
    };
    let part = |map: &BTreeMap<String, Vec<u8>>| -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, Vec<u8>>) {
        let all = map.iter().map(|(key, encoded)| (key.clone(), encoded.clone()));
        all.partition(|(key, encoded)| is_held(key, encoded))
    };
    let (models, aliases) = (part(&contents.models), part(&contents.aliases));
    (Contents { models: models.0, aliases: aliases.0 }, Contents { models: models.1, aliases: aliases.1 })
}

impl Contents {
    /// Returns true if `other` has all records of `self`.
    fn is_in(&self, other: &Self) -> bool {
        let all = |one: &BTreeMap<String, Vec<u8>>, other: &BTreeMap<String, Vec<u8>>| {
            one.iter().all(|(key, value)| other.get(key) == Some(value))
        };
        all(&self.models, &other.models) && all(&self.aliases, &other.aliases)
    }
}

/// Takes the store's own lock. sled's lock is in a file that may be moved aside.
fn lock(layout: &Layout) -> Result<File, StoreError> {
    let path = layout.lock();
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = opened.map_err(|error| layout.failed(&path, error))?;
    let until = Instant::now() + Duration::from_millis(LOCK_WAIT_MS);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(StoreError::Locked { dir: layout.dir().to_owned() });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(error)) => return Err(layout.failed(&path, error)),
        }
    }
}

/// Opens sled's files and reads all of them, on a thread that may panic or hang.
fn open_and_look(dir: &Path, path: &Path) -> Result<ReadThrough, OpenFault> {
    let refused = |why: String| OpenFault::Refused(StoreError::Open { dir: dir.to_owned(), why });
    if let Ok(meta) = path.symlink_metadata()
        && !path.is_dir()
    {
        let what = if meta.is_symlink() { "a link to nowhere" } else { "a file" };
        return Err(OpenFault::Damaged(format!("{} is {what}, and no folder", path.display())));
    }
    let (sender, receiver) = mpsc::channel();
    let (dir, path) = (dir.to_owned(), path.to_owned());
    let thread = std::thread::Builder::new().name("store-open".to_owned());
    let spawned = thread.spawn(move || {
        let read = catch_unwind(AssertUnwindSafe(|| read_through(&dir, &path)));
        let _ = sender.send(read.unwrap_or_else(|panic| Err(OpenFault::Damaged(said(&*panic)))));
    });
    spawned.map_err(|error| refused(format!("no thread to open it on: {error}")))?;
    match receiver.recv_timeout(OPEN_MAX) {
        Ok(read) => read,
        Err(_) => Err(OpenFault::Damaged(format!("it did not open within {} s", OPEN_MAX.as_secs()))),
    }
}

/// Message of a panic.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!("the database's code failed: {}", text.lines().next().unwrap_or_default())
}

fn read_through(dir: &Path, path: &Path) -> Result<ReadThrough, OpenFault> {
    let db = open_sled(dir, path)?;
    let damaged = |error: sled::Error| trouble(dir, &error);
    let trees = Trees::of(db).map_err(damaged)?;
    let version = match trees.version().map_err(damaged)? {
        None => None,
        Some(text) => match text.parse::<u32>() {
            Ok(version) if version > 0 => Some(version),
            _ => return Err(OpenFault::Damaged(format!("its schema version reads {:?}", cut_name(&text)))),
        },
    };
    let (contents, line) = (trees.read_all().map_err(damaged)?, trees.line().map_err(damaged)?);
    Ok(ReadThrough { trees, contents, version, line })
}

fn open_sled(dir: &Path, path: &Path) -> Result<sled::Db, OpenFault> {
    // No background flushing: each change is flushed by its caller, so an idle store costs nothing.
    let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
    let until = Instant::now() + Duration::from_millis(LOCK_WAIT_MS);
    loop {
        match config.open() {
            Ok(db) => return Ok(db),
            Err(error) if !is_locked(&error) => return Err(trouble(dir, &error)),
            // An older version of this program takes only sled's lock, not the store's.
            Err(_) if Instant::now() >= until => {
                return Err(OpenFault::Refused(StoreError::Locked { dir: dir.to_owned() }));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Classifies an error of sled.
fn trouble(dir: &Path, error: &sled::Error) -> OpenFault {
    match error {
        sled::Error::Io(error) if is_full(error) => OpenFault::Refused(StoreError::full(dir)),
        sled::Error::Io(error) if is_outer(error) => {
            OpenFault::Refused(StoreError::Open { dir: dir.to_owned(), why: error.to_string() })
        }
        other => OpenFault::Damaged(in_words(other)),
    }
}

/// Returns true if the error says nothing about the files' contents: no permission, or system resources
/// exhausted.
fn is_outer(error: &std::io::Error) -> bool {
    let no_descriptors = matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE));
    no_descriptors
        || is_full(error)
        || matches!(
            error.kind(),
            ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::OutOfMemory
                | ErrorKind::Interrupted
                | ErrorKind::WouldBlock
        )
}

/// sled has no variant for a lock that is held. It wraps the failed file lock in an I/O error with its own
/// message.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.kind() == ErrorKind::WouldBlock
        || error.to_string().contains("could not acquire lock"))
}
