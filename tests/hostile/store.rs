//! What befalls the store of a daemon: a database that is damaged under it. It starts, serves what it served before,
//! and says so.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

use hanzo_engine_daemon::store::{NewModel, Store};
use hanzo_engine_proto::v1;
use hanzo_engine_tests::rig::Rig;
use std::path::{Path, PathBuf};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/hanzo-demo/hanzo-demo-Q8_0.gguf");

/// A store with one model that lies outside it, and another name for that: what only the database and its ledger know.
fn kept(dir: &Path) -> PathBuf {
    let at = dir.join("store");
    for round in 0..3 {
        let store = Store::open(&at).unwrap();
        let path = dir.join("own.gguf");
        std::fs::copy(DEMO, &path).unwrap();
        let model = NewModel { path, format: "gguf".into(), ..NewModel::default() };
        store.register(None, model, round).unwrap();
        store.set_alias("own", "best").unwrap();
    }
    at
}

/// Each file of the database with a byte flipped, cut short, filled with zeros and taken away, in several places.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_serves_on_with_a_damaged_database() {
    let dir = tempfile::tempdir().unwrap();
    let at = kept(dir.path());
    let files = || std::fs::read_dir(at.join("db")).unwrap().map(|entry| entry.unwrap().path());
    let whole: Vec<(PathBuf, Vec<u8>)> = files()
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    assert!(whole.len() >= 3, "sled's log, its settings and a snapshot: {whole:?}");
    let restore = |db: &Path| {
        std::fs::remove_dir_all(db).unwrap();
        std::fs::create_dir(db).unwrap();
        whole.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    };
    let ledger = std::fs::read(at.join("ledger")).unwrap();
    let mut damages = 0;
    for (path, bytes) in &whole {
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let mut flipped = bytes.clone();
        flipped[used / 2] ^= 0x40;
        for damaged in [Some(&flipped[..]), Some(&bytes[..used / 3]), Some(&vec![0; bytes.len()]), None] {
            restore(&at.join("db"));
            std::fs::write(at.join("ledger"), &ledger).unwrap();
            match damaged {
                Some(damaged) => std::fs::write(path, damaged).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            let dir = at.clone();
            let rig = Rig::start_with(move |config| config.store.dir = Some(dir)).await;
            let mut client = rig.grpc().await;
            let listed = client.list(v1::ListRequest {}).await.unwrap().into_inner().models;
            assert!(listed.iter().any(|model| model.name == "own"), "{}: {listed:?}", path.display());
            let show = v1::ShowRequest { model: "best".into(), known_only: true };
            let shown = client.show(show).await.unwrap().into_inner();
            assert_eq!(shown.model.unwrap().name, "own", "{}", path.display());
            drop(client);
            rig.ended().await;
            damages += 1;
        }
    }
    println!("{damages} damages");
}
