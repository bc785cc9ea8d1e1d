//! Entry points for fuzzing: the readers of texts from a disk or a server, on bytes alone. Each panics if its
//! reader breaks a promise. No program calls them.

use crate::digest::Digest;
use crate::ledger::{Contents, LedgerReplay, sealed, tell};
use crate::reference::HubReference;
use crate::schema::{self, CURRENT};
use crate::source::{hub, ollama};
use crate::{Reference, repair};
use std::path::Path;

const DIR: &str = "/store";

/// Fuzzes the ledger reader and the records in it. A line that begins with `!` gets the digest that it needs.
pub fn ledger(bytes: &[u8]) {
    let line = |line: &[u8]| match line.strip_prefix(b"!") {
        Some(body) => sealed(body.strip_suffix(b"\n").unwrap_or(body)),
        None => line.to_vec(),
    };
    let text: Vec<u8> = bytes.split_inclusive(|byte| *byte == b'\n').flat_map(line).collect();
    let Ok(LedgerReplay { contents: Contents { models, .. }, version, .. }) = tell(&text[..]) else { return };
    let dir = Path::new(DIR);
    for (key, encoded) in &models {
        let migrated = match version {
            1.. if version < CURRENT.version => CURRENT.migrate(version, encoded, dir),
            _ => Ok(encoded.clone()),
        };
        let Ok(record) = migrated.map(|encoded| schema::decode(key, &encoded, dir)) else { continue };
        let Ok(record) = record else { continue };
        // A record that was read must read back unchanged after it was written.
        if let Ok(again) = schema::encode(&record, dir) {
            assert_eq!(schema::decode(key, &again, dir).ok().as_ref(), Some(&record));
        }
    }
}

/// Fuzzes the readers of manifests: of a model's folder, of a registry, and of a hub's listing.
pub fn manifest(bytes: &[u8]) {
    let folder = Path::new(DIR).join("models/a");
    if let Ok(record) = repair::read_manifest(bytes, &folder) {
        let files = record.files.iter().map(|file| &file.path);
        assert!(files.chain([&record.path]).all(|path| path.starts_with(&folder)), "{record:?}");
    }
    if let Ok((_, layers)) = ollama::read(bytes) {
        assert!(layers.iter().all(|(_, _, digest)| matches!(digest, Digest::Sha256(_))));
    }
    let wanted = HubReference { repo: "a/b".to_owned(), revision: None, choice: None, mlx: false };
    // Invalid names are refused later, where a file is chosen.
    drop(hub::repository(&wanted, bytes));
    drop(hub::parse_modules(bytes));
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(reference @ (Reference::Hub(_) | Reference::Ollama(_))) = Reference::parse(text)
    {
        assert_eq!(Reference::parse(&reference.to_string()).ok(), Some(reference), "{text:?}");
    }
}
