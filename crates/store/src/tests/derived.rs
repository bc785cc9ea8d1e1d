//! Models derived from others: the files that they share, and their removal.

use super::moved::pulled;
use super::*;

fn of(model: &str) -> Base {
    Base::Model(model.to_owned())
}

fn texts(system: &str) -> SideTexts {
    SideTexts { system: Some(system.into()), params: Some(r#"{"seed":7}"#.into()), ..SideTexts::default() }
}

#[test]
fn a_model_is_made_of_another_and_outlives_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let base = pulled(&store, "x/m", b"bytes");
    store.set_alias("x/m", "short").unwrap();
    let made = store.derive(&of("short"), "mine", &texts("Be brief."), None).unwrap();
    assert_eq!((made.name.as_str(), made.in_place), ("mine", false));
    assert_ne!(made.path, base.path);
    assert_eq!(std::fs::read(&made.path).unwrap(), b"bytes");
    assert_eq!((made.side_texts(), texts_beside(&made.path)), (texts("Be brief."), Some(texts("Be brief."))));
    assert_eq!(base.side_texts(), SideTexts::default());
    // A second derivation under the same name replaces the first, even if it is based on it.
    let again = store.derive(&of("mine"), "Mine", &texts("Be long."), None).unwrap();
    assert_eq!((again.name.as_str(), again.side_texts().system), ("mine", Some("Be long.".into())));
    assert_eq!(store.list().unwrap().models.len(), 2);
    store.remove("x/m").unwrap();
    store.gc_older_than(std::time::Duration::ZERO, false).unwrap();
    assert_eq!(std::fs::read(store.get("mine").unwrap().path).unwrap(), b"bytes");
    let checked = store.verify("mine", |_| true).unwrap();
    assert!(checked.is_sound(), "{checked:?}");
    store.remove("mine").unwrap();
    store.gc_older_than(std::time::Duration::ZERO, false).unwrap();
    assert_eq!(std::fs::read_dir(store.layout.blobs()).unwrap().count(), 0);
}

#[test]
fn a_file_that_lies_elsewhere_is_linked_to_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let outside = file(dir.path(), "out.gguf", b"o");
    let store = Store::open(&dir.path().join("store")).unwrap();
    store.register(Some("out"), model(&outside), NOW).unwrap();
    let made = store.derive(&of("out"), "mine", &texts("a"), None).unwrap();
    assert_eq!((std::fs::read(&made.path).unwrap(), made.side_texts()), (b"o".to_vec(), texts("a")));
    store.remove("mine").unwrap();
    assert!(outside.is_file());
}

#[test]
fn anothers_name_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    pulled(&store, "x/m", b"bytes");
    pulled(&store, "other", b"more");
    store.set_alias("x/m", "short").unwrap();
    let derive = |name: &str| store.derive(&of("x/m"), name, &SideTexts::default(), None).unwrap_err();
    assert!(matches!(derive("other"), StoreError::NameTaken { .. }));
    for name in ["short", "hanzo-demo", "zen-nano", ""] {
        let error = derive(name);
        assert!(matches!(error, StoreError::BadName { .. }), "{name}: {error:?}");
    }
    let nobody = store.derive(&of("nobody"), "new", &SideTexts::default(), None);
    assert!(matches!(nobody, Err(StoreError::NotFound { .. })));
}

#[test]
fn a_model_is_made_of_blobs_that_were_put_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let sha256 = crate::digest::sha256_of(b"bytes");
    assert!(!store.has_blob(&sha256).unwrap() && !store.has_blob("../../etc/passwd").unwrap());
    let files = |name: &str, sha256: &str| Base::Files(vec![(name.to_owned(), sha256.to_owned())]);
    let derive = |base: &Base, inspect: Option<&Inspect>| store.derive(base, "mine", &texts("a"), inspect);
    let absent = derive(&files("m.gguf", &sha256), None);
    assert!(matches!(absent, Err(StoreError::NoBlob { .. })), "{absent:?}");
    // Bytes that do not match the digest are not kept, and no part file is left.
    let other = store.put_blob(&sha256, &b"other"[..]);
    assert!(matches!(other, Err(StoreError::OtherBlob { .. })), "{other:?}");
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    }
    store.put_blob(&sha256, std::io::Read::chain(&b"byt"[..], Broken)).unwrap_err();
    assert_eq!(std::fs::read_dir(store.layout.partial()).unwrap().count(), 0);
    assert!(!store.has_blob(&sha256).unwrap());
    // Two concurrent uploads of the same blob both succeed.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| store.put_blob(&sha256, &b"bytes"[..]).unwrap());
        }
    });
    assert!(store.has_blob(&sha256).unwrap());
    // Unreadable files become no model, and no folder is left.
    let unreadable: Inspect = std::sync::Arc::new(|_: &Path| Err("it is none".to_owned()));
    let refused = derive(&files("m.gguf", &sha256), Some(&unreadable));
    assert!(matches!(&refused, Err(StoreError::Unreadable { why }) if why == "it is none"), "{refused:?}");
    assert!(store.list().unwrap().models.is_empty());
    assert_eq!(std::fs::read_dir(store.layout.models()).unwrap().count(), 0);
    for name in ["../m.gguf", "/m.gguf", ".m", ""] {
        derive(&files(name, &sha256), None).unwrap_err();
    }
    let read: Inspect = std::sync::Arc::new(|path: &Path| {
        assert!(path.ends_with("m.gguf"));
        Ok(Description { architecture: "llama".to_owned(), ..Description::default() })
    });
    let made = derive(&files("m.gguf", &sha256), Some(&read)).unwrap();
    assert_eq!((made.architecture.as_str(), made.side_texts()), ("llama", texts("a")));
    assert_eq!(std::fs::read(&made.path).unwrap(), b"bytes");
}
