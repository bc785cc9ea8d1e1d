//! A store that is moved, renamed or mounted elsewhere, with records of every version.

use super::*;
use crate::digest::sha256_of;
use crate::publish::{ArrivedFile, ArrivedModel};

/// Publishes a model of one file, whose blob is written first.
pub(super) fn pulled(store: &Store, name: &str, bytes: &[u8]) -> ModelRecord {
    let sha256 = sha256_of(bytes);
    std::fs::write(store.layout.blob(&sha256), bytes).unwrap();
    let file = ArrivedFile { name: "m.gguf".into(), sha256: Some(sha256), role: Role::Model, at: None };
    let reference = format!("hf://x/{name}");
    let model = ArrivedModel { name: name.into(), reference, files: vec![file], ..Default::default() };
    store.publish(model, None, NOW).unwrap()
}

#[test]
fn a_store_that_is_moved_keeps_every_model() {
    let dir = tempfile::tempdir().unwrap();
    let (at, elsewhere) = (dir.path().join("one"), dir.path().join("two/three"));
    let outside = file(dir.path(), "outside.gguf", b"o");
    {
        let store = Store::open(&at).unwrap();
        for number in 0..3 {
            pulled(&store, &format!("x/m{number}"), format!("bytes {number}").as_bytes());
        }
        store.register(Some("out"), model(&outside), NOW).unwrap();
        store.register(Some("in"), model(&file(&at, "own/in.gguf", b"i")), NOW).unwrap();
        store.set_alias("x/m1", "best").unwrap();
    }
    std::fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    std::fs::rename(&at, &elsewhere).unwrap();
    let store = Store::open(&elsewhere).unwrap();
    assert_eq!(store.mended(), None, "to be moved is no damage");
    assert_eq!(names(&store), ["in", "out", "x/m0", "x/m1", "x/m2"]);
    for record in store.list().unwrap().models {
        assert_eq!(record.missing(), [""; 0], "{}", record.name);
        assert!(store.verify(&record.name, |_| true).unwrap().is_sound(), "{}", record.name);
        assert_eq!(record.path.starts_with(store.dir()), record.name != "out", "{}", record.path.display());
        assert_eq!(store.find_path(&record.path).unwrap().unwrap().name, record.name);
    }
    let inside = store.get("in").unwrap();
    assert_eq!(inside.source, format!("file://{}", store.dir().join("own/in.gguf").display()));
    assert_eq!(store.get("best").unwrap().name, "x/m1");
    assert!(outside.exists());
    // The store recognises its own files: nothing is collected, and a removal frees them.
    assert_eq!(
        store.gc_older_than(std::time::Duration::ZERO, true).unwrap().paths,
        [""; 0].map(PathBuf::from)
    );
    assert_eq!(store.remove("x/m0").unwrap().freed_bytes, 7);
}

/// A database as version 2 wrote it, word for word, in a store that was moved since. The store's own files are
/// found by their folder, and files outside the store keep their paths.
#[test]
fn a_store_of_version_2_is_taken_over_even_when_it_was_moved() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("now");
    let outside = file(dir.path(), "out.gguf", b"o").canonicalize().unwrap();
    let record = {
        let store = Store::open(&at).unwrap();
        pulled(&store, "x/m", b"bytes")
    };
    let at = at.canonicalize().unwrap();
    for was in ["/gone/models/store", at.to_str().unwrap()] {
        for part in ["db", "ledger"] {
            let path = at.join(part);
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap()
            } else {
                std::fs::remove_file(path).unwrap()
            }
        }
        let below = record.path.strip_prefix(&at).unwrap();
        let path = Path::new(was).join(below);
        let mut old = serde_json::to_value(&record).unwrap();
        old["path"] = path.to_str().unwrap().into();
        old["files"][0]["path"] = path.to_str().unwrap().into();
        let mut out = old.clone();
        out["name"] = "out".into();
        out["path"] = outside.to_str().unwrap().into();
        out["files"][0]["path"] = outside.to_str().unwrap().into();
        out["files"][0]["held"] = "elsewhere".into();
        let db = sled::open(at.join("db")).unwrap();
        let (meta, models) = (db.open_tree("meta").unwrap(), db.open_tree("models").unwrap());
        meta.insert("schema_version", "2").unwrap();
        meta.insert("derived_version", "2").unwrap();
        models.insert("x/m", serde_json::to_vec(&old).unwrap()).unwrap();
        models.insert("out", serde_json::to_vec(&out).unwrap()).unwrap();
        let mut key = path.as_os_str().as_encoded_bytes().to_vec();
        key.extend_from_slice(b"\0x/m");
        db.open_tree("paths").unwrap().insert(key, &[]).unwrap();
        drop((meta, models, db));
        for _ in 0..2 {
            let store = Store::open(&at).unwrap();
            assert_eq!(store.mended(), None);
            let found = store.get("x/m").unwrap();
            assert_eq!((&found.path, found.missing().len()), (&record.path, 0), "was at {was}");
            assert_eq!(store.find_path(&record.path).unwrap().unwrap().name, "x/m");
            assert_eq!(store.find_path(&path).unwrap().is_some(), path == record.path);
            assert_eq!(store.get("out").unwrap().path, outside);
        }
    }
}

/// Without hard links, symbolic links take their place. They lead within the store wherever it is moved.
#[test]
fn links_within_the_store_move_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("one");
    let record = {
        let store = Store::open(&at).unwrap();
        let record = pulled(&store, "x/m", b"bytes");
        // First as an older version made it, then as this version does.
        std::fs::remove_file(&record.path).unwrap();
        crate::file_system::symlink(&store.layout.blob(&sha256_of(b"bytes")), &record.path).unwrap();
        record
    };
    let moved = dir.path().join("two");
    std::fs::rename(&at, &moved).unwrap();
    assert_eq!(Store::open(&moved).unwrap().get("x/m").unwrap().missing().len(), 1);
    let (store, repaired) = Store::repair(&moved).unwrap();
    assert_eq!((repaired.relinked, store.get("x/m").unwrap().missing().len()), (1, 0));
    // Links within the store still work.
    let way = std::fs::read_link(&store.get("x/m").unwrap().path);
    assert!(way.is_err(), "here are hard links");
    assert_eq!(
        crate::file_system::way(&at.join("models/f/a/m.gguf"), &at.join("blobs/b")),
        Path::new("../../../blobs/b")
    );
    drop((store, record));
}

/// A model's own folders may be called `models`, as the store's folder is.
#[test]
fn a_moved_store_of_version_2_finds_folders_called_models() {
    for name in ["models/m.gguf", "models/models/m.gguf"] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("now");
        let record = {
            let store = Store::open(&at).unwrap();
            let sha256 = sha256_of(b"bytes");
            std::fs::write(store.layout.blob(&sha256), b"bytes").unwrap();
            let file = ArrivedFile { name: name.into(), sha256: Some(sha256), role: Role::Model, at: None };
            let model = ArrivedModel {
                name: "x/m".into(),
                reference: "hf://x/m".into(),
                files: vec![file],
                ..Default::default()
            };
            store.publish(model, None, NOW).unwrap()
        };
        let at = at.canonicalize().unwrap();
        let mut old = serde_json::to_value(&record).unwrap();
        let path = Path::new("/gone/models/store").join(record.path.strip_prefix(&at).unwrap());
        old["path"] = path.to_str().unwrap().into();
        old["files"][0]["path"] = path.to_str().unwrap().into();
        std::fs::remove_dir_all(at.join("db")).unwrap();
        std::fs::remove_file(at.join("ledger")).unwrap();
        let db = sled::open(at.join("db")).unwrap();
        db.open_tree("meta").unwrap().insert("schema_version", "2").unwrap();
        db.open_tree("models").unwrap().insert("x/m", serde_json::to_vec(&old).unwrap()).unwrap();
        drop(db);
        let found = Store::open(&at).unwrap().get("x/m").unwrap();
        assert_eq!((&found.path, found.missing().len()), (&record.path, 0), "{name}");
    }
}
