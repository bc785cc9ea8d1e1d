//! A kill or a full disk during a rebuild. At every step the disk has what the next open needs, and nothing is
//! collected before every manifest was tried.

use super::damage::{expected, grown, ruin};
use super::moved::pulled;
use super::*;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

thread_local! {
    /// Folder for copies of the store at each step. None: take no copies.
    static COPIES: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Copies the store as a kill would leave it at this point.
pub(crate) fn look(store: &Path) {
    COPIES.with_borrow(|copies| {
        let Some(copies) = copies else { return };
        let number = std::fs::read_dir(copies).unwrap().count();
        copy_tree(store, &copies.join(format!("{number:03}")));
    });
}

/// Opens the store, which repairs it. Returns copies of the store at each step.
fn steps(dir: &Path, at: &Path) -> Vec<PathBuf> {
    let copies = dir.join("copies");
    std::fs::create_dir(&copies).unwrap();
    COPIES.set(Some(copies.clone()));
    let opened = Store::open(at);
    COPIES.set(None);
    drop(opened.unwrap());
    let mut steps: Vec<_> = std::fs::read_dir(copies).unwrap().map(|entry| entry.unwrap().path()).collect();
    steps.sort();
    steps
}

/// Flips a byte of every ledger line that has the text.
fn spoil(ledger: &Path, text: &str) {
    let mut bytes = std::fs::read(ledger).unwrap();
    let found: Vec<usize> =
        String::from_utf8_lossy(&bytes).match_indices(text).map(|(at, _)| at + text.len() + 3).collect();
    assert!(!found.is_empty());
    found.into_iter().for_each(|at| bytes[at] ^= 1);
    std::fs::write(ledger, bytes).unwrap();
}

#[test]
fn a_kill_at_any_step_of_making_it_again_loses_no_model() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("no ledger", |at| {
            std::fs::remove_file(at.join("ledger")).unwrap();
            ruin(&at.join("db"));
        }),
        ("no ledger, no database", |at| {
            std::fs::remove_file(at.join("ledger")).unwrap();
            std::fs::remove_dir_all(at.join("db")).unwrap();
        }),
        ("a damaged ledger", |at| {
            spoil(&at.join("ledger"), "\"name\":\"x/m");
            ruin(&at.join("db"));
        }),
        ("a ledger that is none", |at| {
            std::fs::remove_file(at.join("ledger")).unwrap();
            std::fs::create_dir(at.join("ledger")).unwrap();
            ruin(&at.join("db"));
        }),
        ("a damaged database alone", |at| ruin(&at.join("db"))),
    ];
    for (what, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let at = grown(dir.path());
        damage(&at);
        let steps = steps(dir.path(), &at);
        assert!(steps.len() >= 3, "{what}: {}", steps.len());
        for (number, killed) in steps.iter().enumerate() {
            let what = format!("{what}, step {number} of {}", steps.len());
            for _ in 0..2 {
                let store = Store::open(killed).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found: Vec<_> = names(&store).into_iter().filter(|name| name != "out").collect();
                assert_eq!(found, expected()[1..], "{what}: {:?}", store.mended());
                let collected = store.gc_older_than(Duration::ZERO, false).unwrap();
                assert_eq!(collected.paths, [""; 0].map(PathBuf::from), "{what}");
                assert!(store.verify("x/m0-1", |_| true).unwrap().is_sound(), "{what}");
            }
            let again = Store::open_as_it_is(killed).unwrap_or_else(|error| panic!("{what}, again: {error}"));
            assert_eq!(again.mended(), None, "{what}");
        }
    }
}

/// Records that a damaged ledger has lost, and that only the damaged database had, are written down before
/// either is set aside.
#[test]
fn what_only_the_database_had_outlives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let at = grown(dir.path());
    {
        // The ledger goes on, while the database is restored to its earlier state. Only that database still has
        // `out`.
        let before = dir.path().join("before");
        copy_tree(&at.join("db"), &before);
        let store = Store::open(&at).unwrap();
        pulled(&store, "x/m0-1-later", b"later");
        store.touch("x/m0-2", NOW + 3).unwrap();
        drop(store);
        std::fs::remove_dir_all(at.join("db")).unwrap();
        copy_tree(&before, &at.join("db"));
        spoil(&at.join("ledger"), "\"name\":\"out");
    }
    for (number, killed) in steps(dir.path(), &at).iter().enumerate() {
        let store = Store::open(killed).unwrap();
        assert!(names(&store).contains(&"out".to_owned()), "step {number}: {:?}", store.mended());
        assert!(names(&store).contains(&"x/m0-1-later".to_owned()), "step {number}");
        assert_eq!(store.get("best").unwrap().name, "x/m0-1", "step {number}");
    }
}

/// Models that a full disk kept from being restored are tried again later. Until then none of their files is
/// collected.
#[test]
fn what_a_full_disk_kept_from_being_made_again_is_made_later() {
    let dir = tempfile::tempdir().unwrap();
    let at = grown(dir.path());
    std::fs::remove_file(at.join("ledger")).unwrap();
    std::fs::remove_dir_all(at.join("db")).unwrap();
    let killed = steps(dir.path(), &at).into_iter().next_back().unwrap();
    std::fs::remove_dir_all(killed.join("db")).unwrap();
    std::fs::remove_file(killed.join("ledger")).unwrap();
    let layout = crate::layout::Layout::new(killed.canonicalize().unwrap());
    layout.reserve.pretend_full.store(true, Relaxed);
    {
        let store = Store::open_at(layout, &CURRENT, true).unwrap();
        assert_eq!(names(&store), [""; 0]);
        assert!(store.mended().unwrap().skipped.len() == 9, "{:?}", store.mended());
        assert!(store.mended().unwrap().summary(&at).contains("not enough space"), "{:?}", store.mended());
        let collected = store.gc_older_than(Duration::ZERO, false).unwrap();
        assert_eq!(collected.paths, [""; 0].map(PathBuf::from));
    }
    assert!(matches!(Store::open_as_it_is(&killed), Err(StoreError::Damaged { .. })));
    let store = Store::open(&killed).unwrap();
    assert_eq!(names(&store), expected()[1..]);
    drop(store);
    assert_eq!(Store::open(&killed).unwrap().mended(), None);
}

/// An unreadable record is in no ledger. It, or the record in its manifest, and its blobs survive the repair of
/// the rest.
#[test]
fn a_record_that_cannot_be_read_outlives_a_kill() {
    for changes in 1..=2 {
        let dir = tempfile::tempdir().unwrap();
        let (at, before) = (dir.path().join("store"), dir.path().join("before"));
        let store = Store::open(&at).unwrap();
        let blob = store.layout.blob(pulled(&store, "x/a", b"a").files[0].sha256.as_ref().unwrap());
        let of_b = pulled(&store, "x/b", b"b");
        for name in ["x/a", "bad/one"] {
            store.database.models().insert(name, &b"{\"name\":"[..]).unwrap();
        }
        // In the ledger, another model's record under this name would count as that other model's.
        let impostor = crate::schema::encode(&of_b, store.dir()).unwrap();
        store.database.models().insert("x/impostor", impostor).unwrap();
        drop(store);
        std::fs::remove_file(at.join("ledger")).unwrap();
        drop(Store::open(&at).unwrap());
        copy_tree(&at.join("db"), &before);
        let store = Store::open(&at).unwrap();
        for number in 0..changes {
            store.set_alias("x/b", &format!("alias-{number}")).unwrap();
        }
        drop(store);
        std::fs::remove_dir_all(at.join("db")).unwrap();
        copy_tree(&before, &at.join("db"));
        let mut killed = steps(dir.path(), &at);
        assert_eq!(killed.len() > 5, changes > 1, "one change is made up for, two are a damage");
        killed.push(at);
        let all = killed.len();
        for (number, killed) in killed.iter().enumerate() {
            let store = Store::open(killed).unwrap();
            let what = format!("{changes} changes, step {number}: {:?}", store.mended());
            let corrupt: Vec<_> = store.list().unwrap().corrupt.into_iter().map(|bad| bad.name).collect();
            assert!(names(&store).contains(&"x/b".to_owned()), "{what}");
            assert!(
                corrupt.contains(&"x/a".to_owned()) || names(&store).contains(&"x/a".to_owned()),
                "{what}"
            );
            assert!(store.get(&format!("alias-{}", changes - 1)).is_ok(), "{what}");
            store.gc_older_than(Duration::ZERO, false).unwrap();
            let blob = store.layout.blobs().join(blob.file_name().unwrap());
            assert_eq!(std::fs::read(blob).unwrap(), b"a", "{what}");
            if number + 1 == all {
                assert!(corrupt.contains(&"bad/one".to_owned()), "{what}: {corrupt:?}");
                assert!(corrupt.contains(&"x/impostor".to_owned()), "{what}: {corrupt:?}");
            }
        }
    }
}

/// Room is made for the whole change. Without enough room nothing is changed.
#[test]
fn a_large_record_needs_more_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let folder = dir.path().join("m");
    let name = |number: usize| format!("{number:04}-{}.safetensors", "long".repeat(40));
    let files: Vec<_> = (0..300).map(|number| file(&folder, &name(number), b"x")).collect();
    let free = &store.layout.reserve.pretend_free;
    free.store(crate::limits::ROOM_BYTES + 100_000, Relaxed);
    let large = NewModel { files: files.clone(), ..model(&folder) };
    let error = store.register(None, large.clone(), NOW).unwrap_err();
    let StoreError::DiskFull { needed_bytes, .. } = error else { panic!("{error}") };
    assert!(needed_bytes > crate::limits::ROOM_BYTES + 200_000, "{needed_bytes}");
    assert_eq!(names(&store), [""; 0]);
    store.register(Some("small"), model(&files[0]), NOW).unwrap();
    free.store(needed_bytes + 10_000, Relaxed);
    store.register(Some("large"), large, NOW).unwrap();
    assert_eq!(names(&store), ["large", "small"]);
}

/// An older database is migrated if there is room, and otherwise left as it is.
#[test]
fn an_older_database_is_not_touched_without_room() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    {
        let store = Store::open(&at).unwrap();
        pulled(&store, "x/a", b"a");
    }
    std::fs::remove_file(at.join("ledger")).unwrap();
    let old = |version: Option<&str>| {
        let db = sled::open(at.join("db")).unwrap();
        let meta = db.open_tree("meta").unwrap();
        if let Some(version) = version {
            meta.insert("schema_version", version).unwrap();
        }
        let record = db.open_tree("models").unwrap().get("x/a").unwrap().unwrap();
        (meta.get("schema_version").unwrap().unwrap(), record)
    };
    let before = old(Some("2"));
    let layout = crate::layout::Layout::new(at.canonicalize().unwrap());
    layout.reserve.pretend_full.store(true, Relaxed);
    let error = Store::open_at(layout, &CURRENT, true).err().unwrap().to_string();
    assert!(error.contains("from version 2 to 3") && error.contains("nothing was changed"), "{error}");
    assert_eq!(old(None), before);
    assert!(!at.join("ledger").exists());
    assert_eq!(names(&Store::open(&at).unwrap()), ["x/a"]);
    assert_eq!(&old(None).0[..], b"3");
}
