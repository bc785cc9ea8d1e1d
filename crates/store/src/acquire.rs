//! One pull, from reference to record: plan the files, reuse those already on this machine, download the rest,
//! and publish all of them at once.

use crate::digest::{Digest, Hasher, digest_file};
use crate::download::{Downloader, RemoteFile, disk, part_key, write_failed};
use crate::file_system;
use crate::http::Http;
use crate::limits::{FILES_AT_ONCE, SPARE_BYTES};
use crate::pins::Pin;
use crate::plan::{ModelPlan, Origin, PlanFile, Proposal, PullOptions};
use crate::progress::{FileState, Phase, PullProgress};
use crate::publish::{ArrivedFile, ArrivedModel, Inspect};
use crate::record::{Description, FileState as OnDisk, ModelRecord, NewModel};
use crate::reference::Reference;
use crate::settings::StoreSettings;
use crate::source::choose::Globs;
use crate::source::here::Elsewhere;
use crate::source::{file, hub, ollama, url};
use crate::unix_time::now_unix_ms;
use crate::{PullError, PullRecord, Store, StoreError};
use std::collections::{BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Resources shared by all pulls.
pub(crate) struct Means {
    pub(crate) store: Store,
    pub(crate) settings: StoreSettings,
    pub(crate) http: Arc<Http>,
    pub(crate) downloader: Downloader,
    pub(crate) inspect: Option<Inspect>,
    /// Locks by part file name, so that only one pull downloads a given file. Others that want it wait.
    pub(crate) parts: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Means {
    /// Returns the lock of a part file.
    fn part_lock(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop the locks that no pull holds any more.
        parts.retain(|_, lock| Arc::strong_count(lock) > 1);
        parts.entry(key.to_owned()).or_default().clone()
    }
}

/// State of one pull.
pub(crate) struct Acquire {
    pub(crate) means: Arc<Means>,
    pub(crate) reference: Reference,
    pub(crate) include: Globs,
    pub(crate) exclude: Globs,
    pub(crate) options: PullOptions,
    pub(crate) progress: Arc<PullProgress>,
    pub(crate) cancel: CancellationToken,
}

/// Source of one file of a model.
enum FileSource {
    /// Blob that the store already has, by SHA-256.
    Blob(String),
    /// File of another program on this machine. Its bytes are not verified yet.
    Here(PathBuf),
    Fetch(Arc<RemoteFile>),
    Copy(PathBuf),
}

impl Acquire {
    pub(crate) async fn propose(self) -> Result<Proposal, PullError> {
        let plan = self.plan().await?;
        let elsewhere = Elsewhere::new(&self.means.settings);
        let (mut fetch_bytes, mut present_bytes) = (0, 0);
        for file in &plan.files {
            let bytes = file.size_bytes.unwrap_or(0);
            match self.way(file, &elsewhere) {
                FileSource::Blob(_) | FileSource::Here(_) => present_bytes += bytes,
                FileSource::Copy(_) if !self.options.copy => present_bytes += bytes,
                FileSource::Copy(_) => fetch_bytes += bytes,
                FileSource::Fetch(wanted) => {
                    let before = self.means.downloader.fetched_before(&wanted).min(bytes);
                    fetch_bytes += bytes - before;
                    present_bytes += before;
                }
            }
        }
        let files = plan.files.into_iter().map(|file| (file.name, file.size_bytes)).collect();
        let (name, reference, license) = (plan.name, plan.reference, plan.said.license);
        Ok(Proposal { name, reference, files, fetch_bytes, present_bytes, license })
    }

    pub(crate) async fn run(self) -> Result<ModelRecord, PullError> {
        let plan = match self.plan().await {
            // Offline: nothing can tell if a newer version exists, so use the stored one.
            Err(offline @ PullError::Offline { .. }) => return self.kept()?.ok_or(offline),
            plan => plan?,
        };
        let state = |file: &PlanFile| FileState::new(&file.name, file.size_bytes, file.digest.as_ref());
        let states: Vec<Arc<FileState>> = plan.files.iter().map(state).collect();
        self.progress.begin(&plan.name, states.clone());
        if matches!(self.reference, Reference::File(_)) && !self.options.copy {
            return self.register(plan).await;
        }
        if let Some(record) = self.already(&plan)? {
            return Ok(record);
        }
        // The pin stops collection from here on, so blobs that this pull relies on stay.
        let pin = Arc::new(Mutex::new(self.means.store.pin()));
        let record = PullRecord { reference: plan.reference.clone(), began_at_unix_ms: now_unix_ms() };
        self.means.store.begin_pull(&record)?;
        let file_sources = self.file_sources(&plan, &pin);
        let file_sources = self.trusted(&plan, file_sources).await?;
        self.check_room(&plan, &file_sources)?;
        let files = self.bring(&plan, file_sources, &states, &pin).await?;
        for state in &states {
            state.set(Phase::Verifying);
        }
        let arrived = ArrivedModel {
            name: plan.name,
            ends_pull: Some(plan.reference.clone()),
            must_open: false,
            reference: plan.reference,
            source: plan.source,
            revision: plan.revision,
            said: plan.said,
            files,
        };
        let means = self.means.clone();
        blocking(move || {
            let inspect = means.inspect.as_ref();
            let published = means.store.publish(arrived, inspect, now_unix_ms())?;
            // Keep the pin until the record is written.
            drop(pin);
            Ok(published)
        })
        .await
    }

    /// Plans, in a box: each crate that awaits an async function itself compiles it again.
    fn plan(&self) -> std::pin::Pin<Box<dyn Future<Output = Result<ModelPlan, PullError>> + Send + '_>> {
        Box::pin(self.plan_unboxed())
    }

    async fn plan_unboxed(&self) -> Result<ModelPlan, PullError> {
        let Means { http, settings, .. } = &*self.means;
        let (include, exclude) = (&self.include, &self.exclude);
        let plan = match &self.reference {
            Reference::Hub(wanted) => hub::plan(http, settings, wanted, include, exclude).await?,
            Reference::Ollama(wanted) => ollama::plan(http, settings, wanted).await?,
            Reference::Url(wanted) => url::plan(wanted)?,
            Reference::File(path) => {
                let (path, include, exclude) = (path.clone(), include.clone(), exclude.clone());
                blocking(move || file::plan(&path, &include, &exclude)).await?
            }
            Reference::Name(name) => return Err(StoreError::reference(name, "it is a name").into()),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Returns the stored record of the same model if all its files are present.
    fn already(&self, plan: &ModelPlan) -> Result<Option<ModelRecord>, PullError> {
        if self.options.force {
            return Ok(None);
        }
        let Some(record) = self.means.store.find_reference(&plan.reference)? else { return Ok(None) };
        let folder = self.means.store.folder_of(&record).unwrap_or_default();
        let has: BTreeSet<&Path> =
            record.files.iter().filter_map(|file| file.path.strip_prefix(&folder).ok()).collect();
        let wants: BTreeSet<&Path> = plan.files.iter().map(|file| Path::new(&file.name)).collect();
        let sound = record.files.iter().all(|file| file.state() == OnDisk::Unchanged);
        Ok((record.revision == plan.revision && has == wants && sound).then_some(record))
    }

    /// Returns the model pulled earlier by the same reference, if its files are unchanged. Used when the source
    /// cannot be asked because the store is offline.
    fn kept(&self) -> Result<Option<ModelRecord>, PullError> {
        let found = match self.options.force {
            true => None,
            false => self.means.store.find_reference(&self.reference.to_string())?,
        };
        let is_whole =
            |record: &ModelRecord| record.files.iter().all(|file| file.state() == OnDisk::Unchanged);
        Ok(found.filter(is_whole))
    }

    /// Registers a local file or folder in place, without copying it.
    async fn register(self, plan: ModelPlan) -> Result<ModelRecord, PullError> {
        let Reference::File(path) = self.reference else {
            return Err(PullError::Internal("only a file is registered".to_owned()));
        };
        blocking(move || {
            let path = path.canonicalize().map_err(disk(&path))?;
            let read = self.means.inspect.as_ref().map(|inspect| inspect(&path));
            let read = read.transpose().map_err(|why| PullError::refused(path.display().to_string(), why))?;
            let read = read.unwrap_or_else(|| plan.said.clone());
            let at = |file: PlanFile| match file.origin {
                Origin::Copy(path) | Origin::Here(path) => Some(path),
                Origin::Url { .. } => None,
            };
            let Description { format, architecture, quantization, parameters, context_tokens_max, license } =
                read;
            let model = NewModel {
                path,
                files: plan.files.into_iter().filter_map(at).collect(),
                format,
                architecture,
                quantization,
                parameters,
                context_tokens_max,
                license,
            };
            Ok(self.means.store.register(None, model, now_unix_ms())?)
        })
        .await
    }

    /// Chooses a source for each file. Pins blobs before looking for them.
    fn file_sources(&self, plan: &ModelPlan, pin: &Mutex<Pin>) -> Vec<FileSource> {
        let elsewhere = Elsewhere::new(&self.means.settings);
        let mut pin = pin.lock().unwrap_or_else(PoisonError::into_inner);
        let file_source = |file: &PlanFile| {
            if let Some(Digest::Sha256(sha256)) = &file.digest {
                pin.hold(sha256);
            }
            self.way(file, &elsewhere)
        };
        plan.files.iter().map(file_source).collect()
    }

    /// Verifies each existing blob by reading it. Deletes a wrong one and chooses another source for its file.
    async fn trusted(
        &self,
        plan: &ModelPlan,
        file_sources: Vec<FileSource>,
    ) -> Result<Vec<FileSource>, PullError> {
        let elsewhere = Elsewhere::new(&self.means.settings);
        let mut trusted = Vec::with_capacity(file_sources.len());
        for (file_source, file) in file_sources.into_iter().zip(&plan.files) {
            trusted.push(match file_source {
                FileSource::Blob(sha256) if !has_blob(&self.means, &sha256, &self.cancel).await? => {
                    self.way(file, &elsewhere)
                }
                file_source => file_source,
            });
        }
        Ok(trusted)
    }

    fn way(&self, file: &PlanFile, elsewhere: &Elsewhere) -> FileSource {
        if let (Some(Digest::Sha256(sha256)), false) = (&file.digest, self.options.force) {
            let meta = std::fs::metadata(self.means.store.layout.blob(sha256));
            if meta.is_ok_and(|meta| file.size_bytes.is_none_or(|size| size == meta.len())) {
                return FileSource::Blob(sha256.clone());
            }
        }
        match &file.origin {
            Origin::Here(path) => FileSource::Here(path.clone()),
            Origin::Copy(path) => FileSource::Copy(path.clone()),
            Origin::Url { url, auth } => {
                let here = file.digest.as_ref().filter(|_| !self.options.force);
                if let Some(path) = here.and_then(|digest| elsewhere.find(digest, file.size_bytes)) {
                    return FileSource::Here(path);
                }
                FileSource::Fetch(Arc::new(RemoteFile {
                    name: file.name.clone(),
                    url: url.clone(),
                    auth: auth.clone(),
                    size_bytes: file.size_bytes,
                    digest: file.digest.clone(),
                }))
            }
        }
    }

    /// Checks that the disk has room for the bytes still to be written.
    fn check_room(&self, plan: &ModelPlan, file_sources: &[FileSource]) -> Result<(), PullError> {
        let needed = |(file, file_source): (&PlanFile, &FileSource)| match file_source {
            FileSource::Blob(_) | FileSource::Here(_) => 0,
            FileSource::Copy(_) => file.size_bytes.unwrap_or(0),
            FileSource::Fetch(wanted) => {
                file.size_bytes.unwrap_or(0).saturating_sub(self.means.downloader.fetched_before(wanted))
            }
        };
        let needed_bytes: u64 = plan.files.iter().zip(file_sources).map(needed).sum();
        let dir = self.means.store.dir();
        let mut free_bytes = file_system::free_bytes(dir).map_err(disk(dir))?;
        if let Some(room) = &self.means.downloader.room {
            free_bytes = free_bytes.min(room.load(Relaxed).saturating_add(SPARE_BYTES));
        }
        if needed_bytes > 0 && needed_bytes.saturating_add(SPARE_BYTES) > free_bytes {
            return Err(StoreError::DiskFull { dir: dir.to_owned(), needed_bytes, free_bytes }.into());
        }
        Ok(())
    }

    async fn bring(
        &self,
        plan: &ModelPlan,
        file_sources: Vec<FileSource>,
        states: &[Arc<FileState>],
        pin: &Arc<Mutex<Pin>>,
    ) -> Result<Vec<ArrivedFile>, PullError> {
        let turns = Arc::new(Semaphore::new(FILES_AT_ONCE));
        let mut tasks = JoinSet::new();
        for (index, (file_source, state)) in file_sources.into_iter().zip(states).enumerate() {
            let (file, state, turns) = (plan.files[index].clone(), state.clone(), turns.clone());
            let work =
                FileAcquisition { means: self.means.clone(), force: self.options.force, pin: pin.clone() };
            let cancel = self.cancel.clone();
            state.set(Phase::Downloading);
            tasks.spawn(async move {
                let _turn = turns.acquire_owned().await;
                work.one(file, file_source, &state, cancel).await.map(|file| (index, file))
            });
        }
        let mut files: Vec<Option<ArrivedFile>> = vec![None; plan.files.len()];
        while let Some(ended) = tasks.join_next().await {
            let (index, file) = ended
                .map_err(|error| PullError::Internal(error.to_string()))?
                .map_err(|error| self.explained(error, plan))?;
            files[index] = Some(file);
        }
        Ok(files.into_iter().flatten().collect())
    }

    /// Explains a refusal: a hub that lists a repository but refuses its files wants a licence accepted.
    fn explained(&self, error: PullError, plan: &ModelPlan) -> PullError {
        match (error, &self.reference, Reference::parse(&plan.reference)) {
            (PullError::Forbidden { status, .. }, Reference::Hub(_), Ok(Reference::Hub(kept))) => {
                let hint = hub::gate_hint(&self.means.settings, &kept.repo);
                PullError::Forbidden { what: kept.repo, status, hint }
            }
            (error, ..) => error,
        }
    }
}

/// Downloads, copies or verifies one file.
struct FileAcquisition {
    means: Arc<Means>,
    force: bool,
    pin: Arc<Mutex<Pin>>,
}

impl FileAcquisition {
    async fn one(
        &self,
        file: PlanFile,
        file_source: FileSource,
        state: &Arc<FileState>,
        cancel: CancellationToken,
    ) -> Result<ArrivedFile, PullError> {
        let PlanFile { name, role, digest, size_bytes, .. } = file;
        let arrived = |sha256: String, at| ArrivedFile { name, sha256: Some(sha256), role, at };
        match file_source {
            FileSource::Blob(sha256) => {
                state.complete(size_bytes.unwrap_or(0));
                Ok(arrived(sha256, None))
            }
            FileSource::Here(path) => {
                let (state, read) = (state.clone(), path.clone());
                let sha256 = blocking(move || look_at(&read, digest.as_ref(), &state, &cancel)).await?;
                Ok(arrived(sha256, Some(path)))
            }
            FileSource::Copy(path) => {
                let (means, state, pin) = (self.means.clone(), state.clone(), self.pin.clone());
                let sha256 = blocking(move || copy(&means, &path, &state, &cancel, &pin)).await?;
                Ok(arrived(sha256, None))
            }
            FileSource::Fetch(wanted) => {
                let lock = self.means.part_lock(&part_key(&wanted));
                let _mine = lock.lock().await;
                if let (Some(Digest::Sha256(sha256)), false) = (&wanted.digest, self.force) {
                    // Another pull may have fetched the blob while this one waited.
                    if has_blob(&self.means, sha256, &cancel).await? {
                        let meta = std::fs::metadata(self.means.store.layout.blob(sha256));
                        state.complete(meta.map_or(0, |meta| meta.len()));
                        return Ok(arrived(sha256.clone(), None));
                    }
                }
                let (sha256, _) = self.means.downloader.fetch(&wanted, state, &self.pin).await?;
                Ok(arrived(sha256, None))
            }
        }
    }
}

/// Returns true if the blob exists and its bytes have this SHA-256.
async fn has_blob(means: &Arc<Means>, sha256: &str, cancel: &CancellationToken) -> Result<bool, PullError> {
    let (means, sha256, cancel) = (means.clone(), sha256.to_owned(), cancel.clone());
    blocking(move || Ok(means.store.has_sound_blob(&sha256, |_| !cancel.is_cancelled())?)).await
}

/// Reads another program's file and checks its digest.
fn look_at(
    path: &Path,
    digest: Option<&Digest>,
    state: &FileState,
    cancel: &CancellationToken,
) -> Result<String, PullError> {
    state.set(Phase::Verifying);
    let bytes = std::fs::metadata(path).map_err(disk(path))?.len();
    state.total.store(bytes, Relaxed);
    let git = matches!(digest, Some(Digest::Git(_))).then_some(bytes);
    let seen = |bytes| {
        state.done.fetch_add(bytes, Relaxed);
        !cancel.is_cancelled()
    };
    let hasher = digest_file(path, Hasher::new(git), seen).map_err(disk(path))?;
    let (sha256, found) = hasher.finish(digest);
    match (digest, found) {
        (Some(expected), Some(found)) if *expected != found => {
            let why =
                format!("its digest is {found}, and its name says {expected}; pull with --force to fetch it");
            Err(PullError::refused(path.display().to_string(), why))
        }
        _ => {
            state.complete(bytes);
            Ok(sha256)
        }
    }
}

/// Copies a local file into a blob.
fn copy(
    means: &Means,
    path: &Path,
    state: &FileState,
    cancel: &CancellationToken,
    pin: &Mutex<Pin>,
) -> Result<String, PullError> {
    let layout = &means.store.layout;
    let key = crate::digest::sha256_of(path.as_os_str().as_encoded_bytes());
    let part = layout.partial().join(format!("copy-{}.part", &key[..32]));
    let mut from = std::fs::File::open(path).map_err(disk(path))?;
    let bytes = from.metadata().map_err(disk(path))?.len();
    state.total.store(bytes, Relaxed);
    let mut to =
        OpenOptions::new().write(true).create(true).truncate(true).open(&part).map_err(disk(&part))?;
    let mut hasher = Hasher::new(None);
    let mut piece = vec![0_u8; 1 << 20];
    let mut copied = 0;
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(disk(path)(error)),
        };
        if cancel.is_cancelled() {
            return Err(PullError::Cancelled);
        }
        to.write_all(&piece[..read]).map_err(|error| write_failed(&part, bytes, error))?;
        hasher.update(&piece[..read]);
        copied += read as u64;
        state.done.store(copied, Relaxed);
    }
    let (sha256, _) = hasher.finish(None);
    pin.lock().unwrap_or_else(PoisonError::into_inner).hold(&sha256);
    let blob = layout.blob(&sha256);
    file_system::publish(&part, &blob).map_err(disk(&blob))?;
    state.complete(copied);
    Ok(sha256)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    // The pool knows only what the work returns, because each type of task is 4 KB of code.
    let work: Box<dyn FnOnce() -> Result<T, PullError> + Send> = Box::new(work);
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(PullError::Internal(error.to_string())))
}
