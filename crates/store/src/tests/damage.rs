//! Damaged databases, in every file and in many places: the store opens, reports its repairs, and has every
//! model.

use super::moved::pulled;
use super::*;
use std::sync::atomic::Ordering::Relaxed;

/// A store that was opened several times, so that sled has files of every kind. It has pulled models, one in
/// place, and aliases.
pub(super) fn grown(dir: &Path) -> PathBuf {
    let at = dir.join("store");
    let outside = file(dir, "outside.gguf", b"o");
    for round in 0..3 {
        let store = Store::open(&at).unwrap();
        for number in 0..4 {
            pulled(&store, &format!("x/m{round}-{number}"), format!("bytes {round} {number}").as_bytes());
        }
        store.register(Some("out"), model(&outside), NOW).unwrap();
        store.set_alias("x/m0-1", "best").unwrap();
        store.touch("x/m0-2", NOW + round).unwrap();
        store.remove(&format!("x/m{round}-3")).unwrap();
    }
    at
}

/// Names that must exist after any damage to the database.
pub(super) fn expected() -> Vec<String> {
    let mut names: Vec<String> =
        (0..3).flat_map(|round| (0..3).map(move |number| format!("x/m{round}-{number}"))).collect();
    names.insert(0, "out".into());
    names
}

/// Opens a damaged copy. Checks that everything exists and works, and that the next open finds no damage.
fn check(what: &str, at: &Path) -> bool {
    let (mended, dropped) = {
        let store = Store::open(at).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(names(&store), expected(), "{what}: {:?}", store.mended());
        assert_eq!(store.list().unwrap().corrupt, [], "{what}");
        assert_eq!(store.get("best").unwrap().name, "x/m0-1", "{what}");
        assert_eq!(store.get("x/m0-2").unwrap().used_at_unix_ms, NOW + 2, "{what}");
        let sha256 = store.get("x/m0-1").unwrap().files[0].sha256.clone().unwrap();
        assert_eq!(store.database.blob(&sha256).unwrap().map(|blob| blob.refs), Some(1), "{what}");
        assert_eq!(store.remove("x/m0-1").unwrap().freed_bytes, 9, "{what}");
        let dropped = store.mended().map(|repaired| repaired.dropped.clone()).unwrap_or_default();
        if let Some(repaired) = store.mended() {
            let said = repaired.summary(at);
            assert!(said.contains("doctor --repair") && !said.contains('\n'), "{what}: {said}");
        }
        (store.mended().is_some(), dropped)
    };
    assert_eq!(dropped, [], "{what}");
    let again = Store::open_as_it_is(at).unwrap_or_else(|error| panic!("{what}, again: {error}"));
    assert_eq!(names(&again).len(), expected().len() - 1, "{what}, again");
    mended
}

/// Overwrites every file with bytes that are no database.
pub(super) fn ruin(db: &Path) {
    for entry in std::fs::read_dir(db).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::write(path, [0x5a; 4_096]).unwrap();
        }
    }
}

/// Seeded hash of a number, so that failures can be reproduced.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[test]
fn a_damaged_database_is_set_aside_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = grown(dir.path());
    let db = at.join("db");
    let files: Vec<_> = std::fs::read_dir(&db).unwrap().map(|entry| entry.unwrap()).collect();
    let (mut cases, mut mended) = (0, 0);
    for entry in files.iter().filter(|entry| entry.file_type().unwrap().is_file()) {
        let (name, whole) = (entry.file_name(), std::fs::read(entry.path()).unwrap());
        let used = whole.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let count = (used / 900).clamp(12, 60);
        for number in 0..count {
            let from = used * number / count;
            let place = from + (mix(number as u64) as usize) % (used / count).max(1);
            let mut flipped = whole.clone();
            flipped[place] ^= 1 << (mix(place as u64) % 8);
            let mut zeros = whole.clone();
            let end = (place + 512).min(zeros.len());
            zeros[place..end].fill(0);
            for (kind, bytes) in [("flipped", &flipped[..]), ("cut", &whole[..place]), ("zeros", &zeros[..])]
            {
                let copy = tempfile::tempdir().unwrap();
                copy_tree(&at, copy.path());
                std::fs::write(copy.path().join("db").join(&name), bytes).unwrap();
                mended += usize::from(check(&format!("{kind} at {place} of {name:?}"), copy.path()));
                cases += 1;
            }
        }
    }
    println!("{cases} damages, {mended} of which had to be mended");
    assert!(cases >= 100 && mended * 2 > cases, "{mended} of {cases}");
}

#[test]
fn a_database_that_is_gone_or_something_else_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = grown(dir.path());
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("gone", |db| std::fs::remove_dir_all(db).unwrap()),
        ("a file", |db| {
            std::fs::remove_dir_all(db).unwrap();
            std::fs::write(db, "x").unwrap();
        }),
        ("a link to nowhere", |db| {
            std::fs::remove_dir_all(db).unwrap();
            std::os::unix::fs::symlink("/nowhere/at/all", db).unwrap();
        }),
        ("without its log", |db| std::fs::remove_file(db.join("db")).unwrap()),
        ("without its settings", |db| std::fs::remove_file(db.join("conf")).unwrap()),
        ("with a folder for its log", |db| {
            std::fs::remove_file(db.join("db")).unwrap();
            std::fs::create_dir(db.join("db")).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&at, copy.path());
        damage(&copy.path().join("db"));
        check(what, copy.path());
    }
    // Without repair nothing is changed, and the error states the command to run.
    ruin(&at.join("db"));
    let error = Store::open_as_it_is(&at).err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("`hanzo-engine doctor --repair`"), "{error}");
    assert_eq!(std::fs::read(at.join("db/conf")).unwrap(), [0x5a; 4_096]);
    let (store, repaired) = Store::repair(&at).unwrap();
    assert_eq!(repaired.database_moved_to, Some(store.dir().join("db.damaged-1")));
    assert_eq!((repaired.restored, repaired.aliases, repaired.dropped), (expected(), 1, vec![]));
}

#[test]
fn a_damaged_ledger_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = grown(dir.path());
    let whole = std::fs::read(at.join("ledger")).unwrap();
    for number in 0..40 {
        let place = mix(number) as usize % whole.len();
        let mut flipped = whole.clone();
        flipped[place] ^= 0x10;
        for (kind, bytes) in [("flipped", &flipped[..]), ("cut", &whole[..place])] {
            let copy = tempfile::tempdir().unwrap();
            copy_tree(&at, copy.path());
            std::fs::write(copy.path().join("ledger"), bytes).unwrap();
            check(&format!("ledger {kind} at {place}"), copy.path());
        }
    }
    // Damage both: models with a manifest are restored, and lost ones are named.
    let place = String::from_utf8_lossy(&whole).rfind("\"name\":\"out\"").unwrap() + 200;
    let mut flipped = whole.clone();
    // Damage every record of it, so that no line of it is left.
    for (at, _) in String::from_utf8_lossy(&whole).match_indices("\"name\":\"out\"") {
        flipped[at + 40] ^= 1;
    }
    assert!(place < whole.len());
    std::fs::write(at.join("ledger"), &flipped).unwrap();
    ruin(&at.join("db"));
    let (store, repaired) = Store::repair(&at).unwrap();
    assert_eq!(names(&store), expected()[1..]);
    assert!(repaired.dropped.iter().any(|(what, _)| what == "out"), "{:?}", repaired.dropped);
    assert_eq!(store.get("best").unwrap().name, "x/m0-1");
    assert!(repaired.summary(&at).contains("lost: out"), "{}", repaired.summary(&at));
}

#[test]
fn a_store_without_a_ledger_is_made_again_from_manifests() {
    let dir = tempfile::tempdir().unwrap();
    let at = grown(dir.path());
    std::fs::remove_file(at.join("ledger")).unwrap();
    ruin(&at.join("db"));
    let store = Store::open(&at).unwrap();
    assert_eq!(names(&store), expected()[1..]);
    let mended = store.mended().unwrap();
    assert_eq!((mended.restored.len(), mended.dropped.len()), (9, 1), "{mended:?}");
    assert!(mended.dropped[0].0.contains("`cp`"), "{mended:?}");
}

/// A crash between the ledger and the database loses nothing and does not count as damage.
#[test]
fn a_change_that_only_the_ledger_has_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    let before = dir.path().join("before");
    {
        let store = Store::open(&at).unwrap();
        pulled(&store, "x/a", b"a");
        store.set_alias("x/a", "one").unwrap();
    }
    copy_tree(&at, &before);
    type Change = fn(&Store, &Path);
    let changes: [Change; 5] = [
        |store, _| drop(store.remove("x/a").unwrap()),
        |store, _| drop(store.set_alias("x/a", "two").unwrap()),
        |store, _| drop(store.remove("one").unwrap()),
        |store, dir| drop(store.register(Some("b"), model(&file(dir, "b.gguf", b"b")), NOW).unwrap()),
        |store, _| drop(pulled(store, "x/c", b"a")),
    ];
    for change in changes {
        let after = tempfile::tempdir().unwrap();
        copy_tree(&before, after.path());
        let (list, aliases) = {
            let store = Store::open(after.path()).unwrap();
            change(&store, dir.path());
            (names(&store), store.aliases().unwrap())
        };
        std::fs::remove_dir_all(after.path().join("db")).unwrap();
        copy_tree(&before.join("db"), &after.path().join("db"));
        let store = Store::open_as_it_is(after.path()).unwrap();
        assert_eq!((names(&store), store.aliases().unwrap()), (list.clone(), aliases));
        assert_eq!(store.mended(), None);
        // The derived trees were rebuilt.
        for record in store.list().unwrap().models {
            assert_eq!(store.find_path(&record.path).unwrap().map(|found| found.name), Some(record.name));
        }
        store.register(Some("b"), model(&file(dir.path(), "b.gguf", b"b")), NOW).unwrap();
        if list.iter().any(|name| name == "x/a") {
            let shared = list.iter().any(|name| name == "x/c");
            assert_eq!(store.remove("x/a").unwrap().freed_bytes, u64::from(!shared), "{list:?}");
        }
    }
}

/// A blob that an unchanged model file vouches for is not read again. One that was written to, or that no model
/// has, is read.
#[test]
fn a_blob_is_read_before_it_is_counted_on_unless_it_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let record = pulled(&store, "x/a", b"bytes");
    let sha256 = record.files[0].sha256.clone().unwrap();
    let look = || {
        let mut read = 0;
        let sound = store.has_sound_blob(&sha256, |bytes| {
            read += bytes;
            true
        });
        (sound.unwrap(), read)
    };
    assert_eq!(look(), (true, 0));
    std::fs::File::options()
        .write(true)
        .open(&record.path)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert_eq!(look(), (true, 5));
    std::fs::write(&record.path, b"other").unwrap();
    assert_eq!(look(), (false, 5));
    assert_eq!(look(), (false, 0), "it is gone");
}

/// Many changes do not make the ledger long, and its contents stay the same.
#[test]
fn the_ledger_is_shortened() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    let store = Store::open(&at).unwrap();
    pulled(&store, "x/a", b"a");
    let license = Some("long ".repeat(200));
    let path = file(dir.path(), "b.gguf", b"b");
    let written = 150;
    for number in 0..written {
        let model = NewModel { license: license.clone(), ..model(&path) };
        store.register(Some("b"), model, NOW + number).unwrap();
        store.touch("b", NOW + number).unwrap();
    }
    // Lines of well over a kilobyte, two for each change.
    let length = std::fs::metadata(at.join("ledger")).unwrap().len();
    assert!(length < crate::limits::LEDGER_SLACK_BYTES + (16 << 10), "{length}");
    assert!(written as u64 * 2 * 1_200 > crate::limits::LEDGER_SLACK_BYTES + (16 << 10));
    drop(store);
    std::fs::remove_dir_all(at.join("db")).unwrap();
    let store = Store::open(&at).unwrap();
    assert_eq!(
        (names(&store), store.get("b").unwrap().used_at_unix_ms),
        (vec!["b".into(), "x/a".into()], NOW + written - 1)
    );
}

/// On a full disk the database is not written to, and a removal makes its own room by deleting files first.
#[test]
fn a_full_disk_takes_no_change_and_still_removes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let record = pulled(&store, "x/a", b"bytes");
    let (full, folder) =
        (store.layout.reserve.pretend_full.clone(), record.path.parent().unwrap().to_owned());
    full.store(true, Relaxed);
    for error in [
        store.set_alias("x/a", "one").err(),
        store.touch("x/a", NOW).err(),
        store.register(Some("b"), model(&file(dir.path(), "b.gguf", b"b")), NOW).err(),
    ] {
        assert!(matches!(error, Some(StoreError::DiskFull { .. })), "{error:?}");
    }
    assert_eq!(names(&store), ["x/a"]);
    store.gc_older_than(std::time::Duration::ZERO, false).unwrap();
    // There is still no room after its files are deleted, so the model stays, without files.
    assert!(matches!(store.remove("x/a"), Err(StoreError::DiskFull { .. })));
    assert!(!folder.exists());
    assert_eq!(store.get("x/a").unwrap().missing().len(), 1);
    full.store(false, Relaxed);
    store.remove("x/a").unwrap();
    assert!(names(&store).is_empty() && Store::open(&dir.path().join("store")).is_err(), "it is open here");
}
