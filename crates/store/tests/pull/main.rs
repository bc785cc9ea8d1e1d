//! Pulls against servers on loopback ports that behave as the real ones do, and misbehave as they do.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

mod archives;
mod child;
mod content;
mod faults;
mod hostile;
mod hub;
mod hub_pulls;
mod kills;
mod ollama_pulls;
mod registry;
mod server;

use hanzo_engine_store::{Puller, Store, StoreSettings};
use std::path::Path;
use std::time::Duration;

/// Nothing of the machine's own: no caches, no tokens, no proxies.
pub(crate) fn settings(hub: &str) -> StoreSettings {
    StoreSettings {
        hub: hub.parse().unwrap(),
        hub_token: None,
        hub_cache: None,
        ollama: hub.parse().unwrap(),
        ollama_store: None,
        offline: false,
        proxy: None,
        stall: Duration::from_secs(20),
        answer: Duration::from_secs(60),
        backoff: Duration::from_millis(5),
        write_bytes_max: None,
    }
}

pub(crate) fn puller(dir: &Path, settings: StoreSettings) -> Puller {
    Puller::new(Store::open(dir).unwrap(), settings, None).unwrap()
}

/// Whether nothing is visible: no record, no folder, and no blob that is not whole.
pub(crate) fn nothing_visible(store: &Store) {
    assert!(store.list().unwrap().models.is_empty());
    let models = std::fs::read_dir(store.dir().join("models")).unwrap();
    assert_eq!(models.count(), 0, "no folder of a model");
    for blob in std::fs::read_dir(store.dir().join("blobs")).unwrap() {
        let path = blob.unwrap().path();
        let content = content::Content::given(std::fs::read(&path).unwrap());
        assert!(path.to_string_lossy().ends_with(&content.sha256()), "{} is whole", path.display());
    }
}
