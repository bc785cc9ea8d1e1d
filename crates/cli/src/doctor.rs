//! `doctor`: describes this machine, finds faults of the model store, and repairs them.

use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::models::store_dir;
use crate::print::{print_json, print_line};
use crate::size::{show_bytes, show_count};
use crate::surroundings::Surroundings;
use crate::term::harmless;
use hanzo_engine_daemon::store::{FileOwner, FileState, ModelRecord, RepairReport, Store, StoreError};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Folder below the store's directory that has a folder for each pulled model.
const FOLDERS: &str = "models";
/// File in the folder of a complete model.
const MANIFEST: &str = ".hanzo-model.json";

/// Printed form of the findings.
#[derive(Serialize)]
struct DoctorReport {
    dir: String,
    sound: bool,
    models: usize,
    free_bytes: u64,
    findings: Vec<DoctorFinding>,
    repaired: Option<Repair>,
    #[serde(flatten)]
    around: Option<Surroundings>,
}

/// Single finding.
#[derive(Serialize)]
struct DoctorFinding {
    what: &'static str,
    /// True if it makes the store unsound.
    serious: bool,
    message: String,
}

/// Printed form of a repair.
#[derive(Serialize)]
struct Repair {
    /// Damage of the database.
    why: Option<String>,
    database_moved_to: Option<String>,
    restored: Vec<String>,
    aliases: usize,
    dropped: Vec<LostItem>,
    skipped: Vec<SkippedFile>,
    relinked: usize,
}

/// Lost item.
#[derive(Serialize)]
struct LostItem {
    what: String,
    why: String,
}

#[derive(Serialize)]
struct SkippedFile {
    path: String,
    why: String,
}

impl Repair {
    fn from_store(repaired: RepairReport) -> Self {
        let skipped = |(path, why): (PathBuf, String)| SkippedFile { path: path.display().to_string(), why };
        let dropped = |(what, why)| LostItem { what, why };
        Self {
            why: repaired.why,
            aliases: repaired.aliases,
            dropped: repaired.dropped.into_iter().map(dropped).collect(),
            database_moved_to: repaired.database_moved_to.map(|path| path.display().to_string()),
            restored: repaired.restored,
            skipped: repaired.skipped.into_iter().map(skipped).collect(),
            relinked: repaired.relinked,
        }
    }

    fn print(&self) -> Result<(), CliError> {
        if let Some(why) = &self.why {
            print_line(&format!("the database was damaged: {}", harmless(why)))?;
        }
        if let Some(path) = &self.database_moved_to {
            print_line(&format!("set the damaged database aside as {}", harmless(path)))?;
        }
        for name in &self.restored {
            print_line(&format!("restored {}", harmless(name)))?;
        }
        if self.aliases > 0 {
            print_line(&format!("restored {}", show_count(self.aliases, "name")))?;
        }
        for LostItem { what, why } in &self.dropped {
            print_line(&format!("dropped {}: {}", harmless(what), harmless(why)))?;
        }
        for SkippedFile { path, why } in &self.skipped {
            print_line(&format!("skipped {}: {}", harmless(path), harmless(why)))?;
        }
        if self.relinked > 0 {
            print_line(&format!("{} put back that the store still had", show_count(self.relinked, "file")))?;
        }
        if self.why.is_none() && self.restored.is_empty() && self.dropped.is_empty() && self.relinked == 0 {
            print_line("nothing had to be repaired")?;
        }
        Ok(())
    }
}

/// Runs the command.
pub(crate) async fn doctor(args: DoctorArgs) -> Result<(), CliError> {
    let dir = store_dir(&args.store)?;
    let around = Surroundings::look(args.network).await?;
    if !args.json {
        around.print()?;
    }
    let print = |args: &DoctorArgs, report| print(args, DoctorReport { around: Some(around), ..report });
    if args.repair {
        let (store, repaired) = Store::repair(&dir)?;
        return print(&args, examine(&store, Some(Repair::from_store(repaired)))?);
    }
    if !dir.exists() {
        return print(&args, DoctorReport::empty(&dir));
    }
    match Store::open_as_it_is(&dir) {
        Ok(store) => print(&args, examine(&store, None)?),
        // A store that is in use, or of a newer version, is not broken.
        Err(error @ (StoreError::Damaged { .. } | StoreError::Open { .. } | StoreError::Database { .. })) => {
            let broken = DoctorFinding { what: "database", serious: true, message: error.to_string() };
            print(&args, DoctorReport { sound: false, findings: vec![broken], ..DoctorReport::empty(&dir) })
        }
        Err(error) => Err(error.into()),
    }
}

impl DoctorReport {
    fn empty(dir: &Path) -> Self {
        let dir = dir.display().to_string();
        Self {
            dir,
            sound: true,
            models: 0,
            free_bytes: 0,
            findings: Vec::new(),
            repaired: None,
            around: None,
        }
    }
}

fn examine(store: &Store, repaired: Option<Repair>) -> Result<DoctorReport, CliError> {
    let listing = store.list()?;
    let mut findings = Vec::new();
    let mut find = |what, serious, message| findings.push(DoctorFinding { what, serious, message });
    for record in &listing.corrupt {
        find("record", true, StoreError::from(record.clone()).to_string());
    }
    for record in &listing.models {
        examine_model(store, record, &mut find);
    }
    examine_folders(store, &listing.models, &mut find);
    for pull in store.pulls()? {
        let message = format!("a pull of {} broke off: the same pull goes on from there", pull.reference);
        find("pull", false, message);
    }
    let usage = store.disk_usage()?;
    if usage.orphan_bytes > 0 {
        let bytes = show_bytes(usage.orphan_bytes);
        find("orphans", false, format!("{bytes} of files that no model has: `hanzo-engine gc` frees them"));
    }
    Ok(DoctorReport {
        dir: store.dir().display().to_string(),
        sound: findings.iter().all(|finding| !finding.serious),
        models: listing.models.len(),
        free_bytes: usage.free_bytes,
        findings,
        repaired,
        around: None,
    })
}

/// Finds files of a model that are missing or changed.
fn examine_model(store: &Store, record: &ModelRecord, find: &mut impl FnMut(&'static str, bool, String)) {
    let gone = record.missing();
    if let Some(first) = gone.first() {
        let more = if gone.len() > 1 { format!(" and {} more", gone.len() - 1) } else { String::new() };
        let again = match record.in_place {
            true => "".to_owned(),
            false => format!(": `hanzo-engine pull --force {}` fetches it again", record.reference),
        };
        let message = format!("{}: {}{more} not there{again}", record.name, first.display());
        find("files", true, message);
    }
    let blob = |sha256: &String| store.dir().join("blobs").join(format!("sha256-{sha256}"));
    let own = record.files.iter().filter(|file| file.held == FileOwner::Blob);
    for blob in own.filter_map(|file| file.sha256.as_ref().map(blob)).filter(|blob| !blob.exists()) {
        let message = format!("{}: {} is gone: --repair puts it back", record.name, blob.display());
        find("blob", false, message);
    }
    for file in record.files.iter().filter(|file| file.state() == FileState::Changed) {
        // Files outside the store may change. The store's own must not.
        let own = file.held == FileOwner::Blob;
        let message = format!("{}: {} was changed since", record.name, file.path.display());
        find("files", own, message);
    }
}

/// Finds folders without a record, and damaged files that were set aside.
fn examine_folders(store: &Store, models: &[ModelRecord], find: &mut impl FnMut(&'static str, bool, String)) {
    let root = store.dir().join(FOLDERS);
    let known: HashSet<&OsStr> =
        models.iter().filter_map(|record| record.path.strip_prefix(&root).ok()?.iter().next()).collect();
    for folder in std::fs::read_dir(&root).into_iter().flatten().flatten() {
        let name = folder.file_name();
        // Without a manifest it was never finished, and a collection removes it.
        let whole = folder.path().join(MANIFEST).is_file();
        if whole && !known.contains(name.as_os_str()) {
            let path = folder.path().display().to_string();
            find("folder", true, format!("{path} is a model that has no record: --repair gives it one"));
        }
    }
    for aside in std::fs::read_dir(store.dir()).into_iter().flatten().flatten() {
        if aside.file_name().to_string_lossy().contains(".damaged-") {
            let path = aside.path().display().to_string();
            find(
                "aside",
                false,
                format!("{path} was damaged and set aside: nothing reads it, it may be deleted"),
            );
        }
    }
}

fn print(args: &DoctorArgs, report: DoctorReport) -> Result<(), CliError> {
    let unsound = match (report.sound, args.repair) {
        (true, _) => Ok(()),
        (false, true) => Err(CliError::Unsound("not everything could be repaired".to_owned())),
        (false, false) => {
            let why = "the model store is not sound: `hanzo-engine doctor --repair` repairs what it can";
            Err(CliError::Unsound(why.to_owned()))
        }
    };
    if args.json {
        print_json(&report)?;
        return unsound;
    }
    if let Some(repaired) = &report.repaired {
        repaired.print()?;
    }
    let (models, free) = (show_count(report.models, "model"), show_bytes(report.free_bytes));
    print_line(&format!("{}: {models}, {free} free", report.dir))?;
    for DoctorFinding { what, serious, message } in &report.findings {
        let mark = if *serious { "!" } else { "-" };
        print_line(&format!("{mark} {what}: {}", harmless(message)))?;
    }
    if report.sound {
        print_line("nothing is wrong")?;
    }
    unsound
}
