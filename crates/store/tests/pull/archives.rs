//! Export and import, and what an import refuses; copies and files in place; repair of a lost database.

use super::content::Content;
use super::hub::Hub;
use super::{nothing_visible, puller, settings};
use hanzo_engine_store::{FileOwner, PullOptions, Store, StoreError};
use std::io::Write as _;
use std::path::Path;

async fn pulled(dir: &Path) -> Store {
    let hub = Hub::start().await;
    let weights = Content::made(1, 3 << 20);
    hub.put(
        "a/one",
        &[("model.safetensors", weights.clone()), ("config.json", Content::given("{\"one\":1}"))],
    );
    hub.put("b/two", &[("model.safetensors", weights), ("config.json", Content::given("{\"two\":2}"))]);
    let puller = puller(dir, settings(&hub.url()));
    for name in ["a/one", "b/two"] {
        puller.pull(name, &PullOptions::default()).unwrap().done().await.unwrap();
    }
    puller.store().clone()
}

fn export(store: &Store, names: &[&str]) -> Vec<u8> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut archive = Vec::new();
    let exported = store.export(&names, &mut archive, |_| true).unwrap();
    assert_eq!(exported.models.len(), names.len());
    archive
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_exported_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let store = pulled(&dir.path().join("a")).await;
    // A file that lies elsewhere goes along.
    let path = dir.path().join("Own.gguf");
    std::fs::write(&path, Content::made(4, 1 << 20).read(0, 1 << 20)).unwrap();
    let model = hanzo_engine_store::NewModel { path, format: "gguf".into(), ..Default::default() };
    store.register(None, model, 1).unwrap();
    let archive = export(&store, &["one", "two", "own"]);
    assert!(archive.len() < (5 << 20), "the weights are in it once: {}", archive.len());
    let other = Store::open(&dir.path().join("b")).unwrap();
    let (mut bytes, mut read_again) = (0, 0);
    let imported = other.import(&archive[..], |seen| {
        bytes += seen;
        read_again += usize::from(seen == 0);
        true
    });
    let imported = imported.unwrap();
    assert_eq!(imported.len(), 3);
    // Each blob is digested as it comes, and not read after that.
    let of_blobs = other.disk_usage().unwrap().blobs_bytes;
    assert_eq!((bytes, read_again), (of_blobs, 0));
    for model in &imported {
        let before = store.get(&model.name).unwrap();
        let digests = |record: &hanzo_engine_store::ModelRecord| -> Vec<_> {
            record.files.iter().map(|file| file.sha256.clone()).collect()
        };
        assert_eq!(digests(model), digests(&before));
        assert!(!model.in_place && model.files.iter().all(|file| file.held == FileOwner::Blob));
        assert!(other.verify(&model.name, |_| true).unwrap().is_sound());
    }
    // Again: the same models, under the same names.
    assert_eq!(other.import(&archive[..], |_| true).unwrap().len(), 3);
    assert_eq!(other.list().unwrap().models.len(), 3);
    // A file that was changed since is not exported as what it was.
    let own = other.get("own").unwrap();
    std::fs::write(&own.path, "GGUF and other bytes").unwrap();
    let mut out = Vec::new();
    assert!(other.export(&["own".to_owned()], &mut out, |_| true).is_ok_and(|exported| exported.bytes == 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archives_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = pulled(&dir.path().join("a")).await;
    let good = export(&store, &["one"]);
    let other = Store::open(&dir.path().join("in/b")).unwrap();
    let mut cases = 0;
    let mut refuse = |what: &str, archive: &[u8]| {
        let error = other.import(archive, |_| true).expect_err(what);
        let told = matches!(
            error,
            StoreError::Archive { .. } | StoreError::BadName { .. } | StoreError::DiskFull { .. }
        );
        assert!(told && !error.to_string().contains('\n'), "{what}: {error}");
        nothing_half(&other);
        cases += 1;
    };
    // Cut off anywhere but in the padding at its end, and with any byte of a blob another.
    for cut in (0..good.len() - 1_024).step_by(good.len() / 97) {
        refuse(&format!("cut at {cut}"), &good[..cut]);
    }
    for at in [5_000, good.len() / 2, good.len() - 2_000] {
        let mut changed = good.clone();
        changed[at] ^= 0x40;
        refuse(&format!("another byte at {at}"), &changed);
    }
    refuse("no archive", &vec![7; 100_000]);
    refuse("zeros", &vec![0; 100_000]);

    let (contents, blobs) = parts(&good);
    let edited = |from: &str, to: &str| contents.replacen(from, to, 1);
    let tar = |contents: &str, extra: &[(tar::EntryType, &str, &[u8], Option<&str>)]| {
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, tar::EntryType::Regular, "hanzo-engine.json", contents.as_bytes(), None);
        for (kind, name, bytes, link) in extra {
            append(&mut tar, *kind, name, bytes, *link);
        }
        for (name, bytes) in &blobs {
            append(&mut tar, tar::EntryType::Regular, name, bytes, None);
        }
        tar.into_inner().unwrap()
    };
    use tar::EntryType::*;
    let (blob, bytes) = &blobs[0];
    for name in [
        "../x",
        "/etc/x",
        "blobs/../../x",
        "blobs/sha256-../x",
        "x",
        "blobs/",
        "db/db",
        "blobs/sha256-AA",
        "models/x/y",
    ] {
        refuse(name, &tar(&contents, &[(Regular, name, b"x", None)]));
    }
    for (kind, link) in [
        (Symlink, "/etc/passwd"),
        (Link, "/etc/passwd"),
        (Char, ""),
        (Block, ""),
        (Fifo, ""),
        (Directory, ""),
        (GNUSparse, ""),
        (XHeader, ""),
        (GNULongName, ""),
        (XGlobalHeader, ""),
    ] {
        refuse(
            &format!("{kind:?}"),
            &tar(&contents, &[(kind, blob, b"", Some(link).filter(|link| !link.is_empty()))]),
        );
    }
    refuse("a blob twice", &tar(&contents, &[(Regular, blob, bytes, None)]));
    refuse("a blob of another length", &tar(&contents, &[(Regular, blob, b"xx", None)]));
    refuse(
        "a blob of no model",
        &tar(&contents, &[(Regular, &format!("blobs/sha256-{}", "a".repeat(64)), b"xx", None)]),
    );
    for name in ["../../x", "/etc/x", "config.json", ".hidden", "a\\\\b", "x\\u0000y", "\\u202ex"] {
        refuse(name, &tar(&edited("\"name\": \"model.safetensors\"", &format!("\"name\": \"{name}\"")), &[]));
    }
    for name in ["../one", "a/b/c", "", "a one"] {
        refuse(name, &tar(&edited("\"name\": \"a/one\"", &format!("\"name\": \"{name}\"")), &[]));
    }
    for name in ["hanzo-demo", "Hanzo-DEMO", "zen-nano", "ZEN-Eco", "qwen3-4b:Q8_0"] {
        refuse(name, &tar(&edited("\"name\": \"a/one\"", &format!("\"name\": \"{name}\"")), &[]));
    }
    refuse("another version", &tar(&edited("\"version\": 1", "\"version\": 2"), &[]));
    refuse("a huge file", &tar(&edited("\"size_bytes\": 3145728", "\"size_bytes\": 999999999999999"), &[]));
    refuse(
        "a file larger than the disk",
        &tar(&edited("\"size_bytes\": 3145728", "\"size_bytes\": 1099511627776"), &[]),
    );
    refuse("a size below nothing", &tar(&edited("\"size_bytes\": 3145728", "\"size_bytes\": -1"), &[]));
    refuse("no models", &tar("{\"version\": 1, \"models\": []}", &[]));
    refuse("no object", &tar("[]", &[]));
    assert!(cases > 130, "{cases}");
    assert!(!dir.path().join("x").exists() && !dir.path().join("in/x").exists());
    assert_eq!(
        other.import(&good[..], |_| true).unwrap().len(),
        1,
        "the archive they were made from is good"
    );
}

/// Names that are taken by the program, by the user, or by another model of the archive: refused by name, and nothing of
/// the archive is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_whose_names_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let store = pulled(&dir.path().join("a")).await;
    let (contents, blobs) = parts(&export(&store, &["one", "two"]));
    let other = Store::open(&dir.path().join("b")).unwrap();
    other.set_alias("hf://x/y:Q8_0", "mine").unwrap();
    for name in ["hanzo-demo", "HANZO-demo", "zen-nano", "Zen-Nano:Q8_0", "mine", "MINE", "a/one", "A/One"] {
        let contents = contents.replacen("\"name\": \"b/two\"", &format!("\"name\": \"{name}\""), 1);
        let mut tar = tar::Builder::new(Vec::new());
        append(&mut tar, tar::EntryType::Regular, "hanzo-engine.json", contents.as_bytes(), None);
        for (name, bytes) in &blobs {
            append(&mut tar, tar::EntryType::Regular, name, bytes, None);
        }
        let error = other.import(&tar.into_inner().unwrap()[..], |_| true).expect_err(name).to_string();
        assert!(
            error.contains(&format!("{name:?}")) && error.contains("no model of it was"),
            "{name}: {error}"
        );
        nothing_visible(&other);
    }
    // Nor is it given by other ways: a file of that name gets another, and no alias has it.
    let path = dir.path().join("hanzo-demo.gguf");
    std::fs::write(&path, "GGUF").unwrap();
    let model = hanzo_engine_store::NewModel { path, format: "gguf".into(), ..Default::default() };
    assert!(matches!(store.register(Some("Hanzo-Demo"), model.clone(), 1), Err(StoreError::BadName { .. })));
    assert_ne!(store.register(None, model, 1).unwrap().name, "hanzo-demo");
    assert!(matches!(store.set_alias("one", "hanzo-demo"), Err(StoreError::BadAlias { .. })));
}

/// A blob of the right name and size with other bytes: who joins it reads it first, and has it replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_is_not_trusted_by_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Hub::start().await;
    let weights = Content::made(1, 3 << 20);
    for name in ["a/one", "b/two"] {
        let config = Content::given(format!("{{\"of\":\"{name}\"}}"));
        hub.put(name, &[("model.safetensors", weights.clone()), ("config.json", config)]);
    }
    let blob = |at: &str| dir.path().join(at).join("blobs").join(format!("sha256-{}", weights.sha256()));
    let wrong = |at: &str| {
        let path = blob(at);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Another file, as a bad disk or a careless copy leaves it: the models' links stay what they were.
        let _ = std::fs::remove_file(&path);
        std::fs::write(path, vec![7; 3 << 20]).unwrap();
    };
    // A pull, of a store that has only the blob.
    wrong("a");
    let puller = puller(&dir.path().join("a"), settings(&hub.url()));
    let pull = async |name: &str| puller.pull(name, &PullOptions::default()).unwrap().done().await.unwrap();
    pull("a/one").await;
    assert!(puller.store().verify("one", |_| true).unwrap().is_sound());
    // A check of a model finds a blob that is no longer its file, and says which.
    wrong("a");
    let checked = puller.store().verify("one", |_| true).unwrap();
    let bad: Vec<_> =
        checked.files.iter().filter(|file| file.health != hanzo_engine_store::Health::Sound).collect();
    assert_eq!((bad.len(), bad[0].path.file_name()), (1, blob("a").file_name()), "{checked:?}");
    // A pull that shares it with a model that is there.
    pull("b/two").await;
    for name in ["one", "two"] {
        assert!(puller.store().verify(name, |_| true).unwrap().is_sound(), "{name}");
    }
    // A byte that is flipped in place is everybody's: found by a check, and healed for whoever comes.
    let mut bytes = std::fs::read(blob("a")).unwrap();
    bytes[1 << 20] ^= 1;
    std::fs::write(blob("a"), bytes).unwrap();
    assert!(!puller.store().verify("two", |_| true).unwrap().is_sound());
    puller.store().remove("b/two").unwrap();
    pull("b/two").await;
    assert!(puller.store().verify("two", |_| true).unwrap().is_sound());
    // An import, whether the archive has the bytes or counts on the blob.
    let archive = export(puller.store(), &["two"]);
    wrong("b");
    let other = Store::open(&dir.path().join("b")).unwrap();
    other.import(&archive[..], |_| true).unwrap();
    assert!(other.verify("two", |_| true).unwrap().is_sound());
    let (contents, _) = parts(&archive);
    let mut tar = tar::Builder::new(Vec::new());
    append(&mut tar, tar::EntryType::Regular, "hanzo-engine.json", contents.as_bytes(), None);
    let without = tar.into_inner().unwrap();
    wrong("c");
    let error = Store::open(&dir.path().join("c")).unwrap().import(&without[..], |_| true).unwrap_err();
    assert!(error.to_string().contains("is not in it"), "{error}");
}

/// What was read before an import failed may stay as whole blobs; no model, no folder.
fn nothing_half(store: &Store) {
    nothing_visible(store);
}

fn parts(archive: &[u8]) -> (String, Vec<(String, Vec<u8>)>) {
    let mut archive = tar::Archive::new(archive);
    let mut read = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (name, mut bytes) = (entry.path().unwrap().to_str().unwrap().to_owned(), Vec::new());
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        read.push((name, bytes));
    }
    let (_, contents) = read.remove(0);
    (String::from_utf8(contents).unwrap(), read)
}

/// An entry whose name is written as it is: the usual ways refuse such names.
fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    kind: tar::EntryType,
    name: &str,
    bytes: &[u8],
    link: Option<&str>,
) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_entry_type(kind);
    let mut field = &mut header.as_gnu_mut().unwrap().name[..];
    field.write_all(name.as_bytes()).unwrap();
    if let Some(link) = link {
        header.set_link_name(link).unwrap();
    }
    header.set_cksum();
    tar.append(&header, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_this_machine_in_place_and_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("Mine-Q8_0.gguf");
    let content = Content::made(8, 5 << 20);
    std::fs::write(&path, content.read(0, 1 << 40)).unwrap();
    let puller = puller(&dir.path().join("store"), settings("http://127.0.0.1:1"));
    let text = path.to_str().unwrap();
    let record = puller.pull(text, &PullOptions::default()).unwrap().done().await.unwrap();
    assert!(record.in_place && record.path == path.canonicalize().unwrap() && record.name == "Mine-Q8_0");
    let options = PullOptions { copy: true, ..PullOptions::default() };
    let copied = puller.pull(text, &options).unwrap().done().await.unwrap();
    assert!(!copied.in_place && copied.name == "Mine-Q8_0", "{copied:?}");
    std::fs::remove_file(&path).unwrap();
    assert!(puller.store().verify("mine-q8_0", |_| true).unwrap().is_sound());
    assert_eq!(copied.files[0].sha256.as_deref(), Some(content.sha256().as_str()));
    let gone = puller.pull("./no/such.gguf", &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(gone.to_string().contains("no/such.gguf"), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_database_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("a");
    let store = pulled(&at).await;
    let before = store.list().unwrap();
    drop(store);
    // Lost, and in another case broken.
    std::fs::remove_dir_all(at.join("db")).unwrap();
    let (store, repaired) = Store::repair(&at).unwrap();
    assert_eq!(repaired.restored, ["a/one", "b/two"]);
    assert_eq!(store.list().unwrap(), before);
    assert_eq!(store.remove("one").unwrap().freed_bytes, 9, "blobs are counted again");
    drop(store);
    for entry in std::fs::read_dir(at.join("db")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::write(path, vec![0x5a; 4_096]).unwrap();
        }
    }
    let (store, repaired) = Store::repair(&at).unwrap();
    assert_eq!(repaired.restored, ["b/two"], "{repaired:?}");
    assert!(store.verify("two", |_| true).unwrap().is_sound());
    // A blob that somebody deleted is in its model's folder still.
    let record = store.get("two").unwrap();
    let blob = at.join("blobs").join(format!("sha256-{}", record.files[0].sha256.clone().unwrap()));
    std::fs::remove_file(&blob).unwrap();
    assert!(store.verify("two", |_| true).unwrap().is_sound());
    drop(store);
    let (store, repaired) = Store::repair(&at).unwrap();
    assert_eq!((repaired.relinked, blob.exists()), (1, true));
    assert!(store.gc_older_than(std::time::Duration::ZERO, false).unwrap().paths.is_empty());
}
