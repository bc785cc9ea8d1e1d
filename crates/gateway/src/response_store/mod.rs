//! Store of responses, bounded in number and bytes; the least recently used are removed first. They are kept in
//! memory, or as files that survive a restart.

mod disk;
pub(crate) mod stored;

use hanzo_engine_process::tasks;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use disk::Disk;
use stored::{StoredResponse, is_id};

use crate::{
    config::Config,
    error::GatewayError,
    limits::{RESPONSES_BYTES_MAX, RESPONSES_DISK_BYTES_MAX},
};

/// Stored responses. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Responses(Option<Arc<SharedStore>>); // None: nothing is stored

#[derive(Debug)]
struct SharedStore {
    order: Mutex<RemovalOrder>,
    disk: Option<Disk>,
}

/// Stored responses, in the order of their removal.
#[derive(Debug)]
struct RemovalOrder {
    by_id: HashMap<String, StoreEntry>,
    by_use: BTreeMap<u64, String>, // the oldest first
    uses: u64,
    bytes: usize,
    bytes_max: usize,
    count_max: usize,
}

#[derive(Debug)]
struct StoreEntry {
    used: u64,
    bytes: usize,
    stored: Option<Arc<StoredResponse>>, // None: in its file
}

impl RemovalOrder {
    /// Adds an entry as the most recently used. Returns the ids that it displaces.
    fn insert(&mut self, id: String, bytes: usize, stored: Option<Arc<StoredResponse>>) -> Vec<String> {
        self.remove(&id);
        self.uses += 1;
        self.by_use.insert(self.uses, id.clone());
        self.by_id.insert(id, StoreEntry { used: self.uses, bytes, stored });
        self.bytes += bytes;
        let mut left = Vec::new();
        while self.bytes > self.bytes_max || self.by_id.len() > self.count_max {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
            left.push(oldest);
        }
        left
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(entry) = self.by_id.remove(id) else { return false };
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes;
        true
    }

    /// Entry of that id. Marks it as used.
    fn touch(&mut self, id: &str) -> Option<&StoreEntry> {
        let entry = self.by_id.get_mut(id)?;
        self.uses += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.uses;
        self.by_use.insert(self.uses, id.to_owned());
        Some(entry)
    }
}

impl Responses {
    /// Opens the store that the settings ask for: in memory, in a directory with its existing files, or none.
    ///
    /// # Errors
    /// [`GatewayError::Config`] if the directory cannot be created or read.
    pub(crate) fn open(config: &Config) -> Result<Responses, GatewayError> {
        let default =
            if config.responses_dir.is_some() { RESPONSES_DISK_BYTES_MAX } else { RESPONSES_BYTES_MAX };
        let bytes_max = config.responses_bytes_max.unwrap_or(default);
        if bytes_max == 0 || config.responses_max == 0 {
            return Ok(Responses(None));
        }
        let mut order = RemovalOrder {
            by_id: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            bytes_max,
            count_max: config.responses_max,
        };
        let disk = config.responses_dir.clone().map(Disk::open).transpose()?;
        if let Some((disk, files)) = disk {
            for (id, bytes) in files {
                order.insert(id, bytes, None).iter().for_each(|id| disk.remove(id));
            }
            return Ok(Responses(Some(Arc::new(SharedStore { order: Mutex::new(order), disk: Some(disk) }))));
        }
        Ok(Responses(Some(Arc::new(SharedStore { order: Mutex::new(order), disk: None }))))
    }

    /// Whether responses are stored at all.
    pub(crate) fn are_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Stores a response under its id. False: it is larger than the whole store, or its file could not be
    /// written.
    pub(crate) async fn keep(&self, id: String, stored: StoredResponse) -> bool {
        self.aside(false, move |shared| {
            let bytes = stored.bytes();
            if bytes > shared.order().bytes_max {
                tracing::warn!(
                    id,
                    bytes,
                    "a response is larger than what may be kept of all (responses_bytes_max)"
                );
                return false;
            }
            let stored = match &shared.disk {
                None => Some(Arc::new(stored)),
                Some(disk) => match disk.write(&id, &stored) {
                    Ok(()) => None,
                    Err(error) => {
                        tracing::warn!(id, %error, "a response cannot be kept (responses_dir)");
                        return false;
                    }
                },
            };
            let left = shared.order().insert(id, bytes, stored);
            left.iter().for_each(|id| shared.forget(id));
            true
        })
        .await
    }

    /// Bytes of the response of that id, of any owner; 0 if there is none.
    pub(crate) async fn bytes(&self, id: &str) -> usize {
        if !is_id(id) {
            return 0;
        }
        let id = id.to_owned();
        self.aside(0, move |shared| {
            let known = shared.order().by_id.get(&id).map(|entry| entry.bytes);
            known.or_else(|| shared.disk.as_ref().map(|disk| disk.bytes(&id))).unwrap_or(0)
        })
        .await
    }

    /// Response of that id, if it has this owner.
    pub(crate) async fn load(&self, owner: &str, id: &str) -> Option<Arc<StoredResponse>> {
        if !is_id(id) {
            return None;
        }
        let (id, owner) = (id.to_owned(), owner.to_owned());
        self.aside(None, move |shared| shared.load(&id).filter(|stored| stored.owner == owner)).await
    }

    /// Removes the response of that id. False: this owner has none.
    pub(crate) async fn remove(&self, owner: &str, id: &str) -> bool {
        if self.load(owner, id).await.is_none() {
            return false;
        }
        let id = id.to_owned();
        self.aside(false, move |shared| {
            // If two clients remove it at once, one of them succeeds.
            let removed = shared.order().remove(&id);
            shared.forget(&id);
            removed
        })
        .await
    }

    /// Runs `work`. If responses are files, it runs on a blocking thread.
    async fn aside<T: Send + 'static>(
        &self,
        none: T,
        work: impl FnOnce(&SharedStore) -> T + Send + 'static,
    ) -> T {
        let Some(shared) = self.0.clone() else { return none };
        if shared.disk.is_none() {
            return work(&shared);
        }
        tasks::blocking(move || work(&shared)).await.unwrap_or(none)
    }
}

impl SharedStore {
    fn order(&self) -> MutexGuard<'_, RemovalOrder> {
        // No panic can leave it inconsistent.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, id: &str) {
        self.disk.iter().for_each(|disk| disk.remove(id));
    }

    fn load(&self, id: &str) -> Option<Arc<StoredResponse>> {
        let known = self.order().touch(id).map(|entry| entry.stored.clone());
        if let Some(Some(stored)) = known {
            return Some(stored);
        }
        // Another gateway may have written it.
        let stored = self.disk.as_ref()?.read(id);
        match &stored {
            None => {
                self.order().remove(id);
            }
            Some(stored) if known.is_none() => {
                let left = self.order().insert(id.to_owned(), stored.bytes(), None);
                left.iter().for_each(|id| self.forget(id));
            }
            Some(_) => {}
        }
        stored.map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn id(n: usize) -> String {
        format!("resp_{n:032x}")
    }

    fn kept(owner: &str, letters: usize) -> StoredResponse {
        let input = format!("[{{\"id\":\"{}\"}}]", "x".repeat(letters));
        StoredResponse { owner: owner.to_owned(), input, response: r#"{"output":[]}"#.to_owned() }
    }

    fn open(dir: Option<&Path>, bytes: usize, count: usize) -> Responses {
        let config = Config {
            responses_dir: dir.map(Path::to_owned),
            responses_bytes_max: Some(bytes),
            responses_max: count,
            ..Config::default()
        };
        Responses::open(&config).unwrap()
    }

    async fn there(responses: &Responses, ids: std::ops::Range<usize>) -> Vec<usize> {
        let mut there = Vec::new();
        for n in ids {
            // Each is loaded once, in the order of use, so the order does not change.
            if responses.load("a", &id(n)).await.is_some() {
                there.push(n);
            }
        }
        there
    }

    #[tokio::test]
    async fn the_least_recently_used_leave_by_count_and_by_bytes() {
        let dir = tempfile::tempdir().unwrap();
        for dir in [None, Some(dir.path())] {
            let responses = open(dir, 1 << 20, 3);
            for n in 0..3 {
                assert!(responses.keep(id(n), kept("a", 10)).await);
            }
            assert!(responses.load("a", &id(0)).await.is_some());
            assert!(responses.keep(id(3), kept("a", 10)).await);
            assert_eq!(there(&responses, 0..4).await, [0, 2, 3]);
            let size = kept("a", 1000).bytes();
            let responses = open(None, 3 * size, 100);
            for n in 0..5 {
                assert!(responses.keep(id(n), kept("a", 1000)).await);
            }
            assert_eq!(there(&responses, 0..5).await, [2, 3, 4]);
            assert!(!responses.keep(id(9), kept("a", 5000)).await);
            assert_eq!(there(&responses, 0..5).await, [2, 3, 4], "and nobody has left for it");
        }
    }

    #[tokio::test]
    async fn who_has_not_made_it_has_not_got_it() {
        let responses = open(None, 1 << 20, 9);
        assert!(responses.keep(id(1), kept("a", 1)).await);
        assert!(responses.load("b", &id(1)).await.is_none());
        assert!(!responses.remove("b", &id(1)).await);
        assert!(responses.remove("a", &id(1)).await);
        assert!(!responses.remove("a", &id(1)).await);
        let off = open(None, 0, 9);
        assert!(!off.are_kept() && !off.keep(id(1), kept("a", 1)).await);
    }

    #[tokio::test]
    async fn files_outlive_the_process_and_damaged_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(Some(dir.path()), 1 << 20, 9);
        for n in 0..4 {
            assert!(first.keep(id(n), kept("a", 10 + n)).await);
        }
        assert!(first.remove("a", &id(3)).await);
        let file = |n: usize| dir.path().join(format!("{}.json", id(n)));
        let mut bytes = fs::read(file(1)).unwrap();
        // Still valid JSON, but not the written content.
        let at = bytes.iter().rposition(|byte| *byte == b'x').unwrap();
        bytes[at] = b'y';
        fs::write(file(1), bytes).unwrap();
        fs::write(dir.path().join("resp_half.tmp"), "half").unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let next = open(Some(dir.path()), 1 << 20, 9);
        assert_eq!(there(&next, 0..4).await, [0, 2]);
        assert!(!file(1).exists(), "a damaged file is gone");
        assert!(!dir.path().join("resp_half.tmp").exists() && dir.path().join("notes.txt").exists());
        assert_eq!(*next.load("a", &id(2)).await.unwrap(), kept("a", 12));
        // Files that the other store has written meanwhile are found too.
        assert!(first.keep(id(7), kept("a", 3)).await);
        assert!(next.load("a", &id(7)).await.is_some());
        // A smaller limit removes the oldest files.
        drop(open(Some(dir.path()), 1 << 20, 1));
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 2, "one response and the notes");
    }
}
