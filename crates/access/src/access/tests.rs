//! Tests of presented keys, their limits, and changes of the key file.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use http::HeaderMap;

use crate::{Access, AccessSettings, FileError, KeysFile, Pass, PresentedKeys, Record, Refusal, Secret};

const FROM: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    (dir, path)
}

fn named(name: &str) -> Record {
    Record { name: name.to_owned(), ..Record::default() }
}

fn create(path: &std::path::Path, record: Record) -> String {
    KeysFile::create(path, record).unwrap().text().to_owned()
}

fn settings(path: &std::path::Path) -> AccessSettings {
    AccessSettings { api_keys_file: Some(path.to_owned()), ..AccessSettings::default() }
}

fn admit(access: &Access, name: &str, value: &str) -> Result<Pass, Refusal> {
    let mut headers = HeaderMap::new();
    headers.insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    access.admit(&PresentedKeys::of(&headers), FROM)
}

fn bearer(access: &Access, key: &str) -> Result<Pass, Refusal> {
    admit(access, "authorization", &format!("Bearer {key}"))
}

#[test]
fn where_no_key_is_set_none_is_wanted() {
    let access = Access::open(AccessSettings::default()).unwrap();
    let pass = access.admit(&PresentedKeys::default(), FROM).unwrap();
    assert!(pass.is_admin() && pass.name().is_none());
    pass.use_model("anything").unwrap();
    let _running: Vec<_> = (0..1000).map(|_| pass.enter().unwrap()).collect();
}

#[test]
fn a_key_is_taken_as_either_kind_of_client_sends_it() {
    let (_dir, path) = file();
    let key = create(&path, named("alice"));
    let access = Access::open(settings(&path)).unwrap();
    for (name, value) in [
        ("authorization", format!("Bearer {key}")),
        ("authorization", format!("bearer  {key} ")),
        ("x-api-key", key.clone()),
    ] {
        assert_eq!(admit(&access, name, &value).unwrap().name(), Some("alice"), "{name}");
    }
    let digest = KeysFile::read(&path).unwrap().keys[0].sha256.clone();
    for wrong in [&key[1..], &format!("{key}x"), &digest, "sk-hanzo-", &"x".repeat(4000)] {
        assert_eq!(bearer(&access, wrong).unwrap_err(), Refusal::Wrong, "{wrong}");
    }
    for missing in ["Basic YTpi", "Bearer", "Bearer ", &key] {
        assert_eq!(admit(&access, "authorization", missing).unwrap_err(), Refusal::Missing, "{missing}");
    }
    assert_eq!(access.admit(&PresentedKeys::default(), FROM).unwrap_err(), Refusal::Missing);
    // A client may send both headers; one valid key is enough.
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer of-another-server".parse().unwrap());
    headers.insert("x-api-key", key.parse().unwrap());
    assert_eq!(access.admit(&PresentedKeys::of(&headers), FROM).unwrap().name(), Some("alice"));
}

#[test]
fn what_is_kept_does_not_have_the_key() {
    let (_dir, path) = file();
    let key = create(&path, named("alice"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&key) && text.contains("alice"), "{text}");
    let access = Access::open(AccessSettings {
        api_key: Some(Secret::new("set-by-hand").unwrap()),
        ..settings(&path)
    });
    let shown = format!("{:?}", access.unwrap());
    assert!(!shown.contains(&key) && !shown.contains("set-by-hand") && shown.contains("alice"), "{shown}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn guessing_is_slowed_and_made_keys_pass_beside_it() {
    let (_dir, path) = file();
    let made = create(&path, named("alice"));
    let set = Secret::new("set-by-hand").unwrap();
    let access = Access::open(AccessSettings { api_key: Some(set), ..settings(&path) }).unwrap();
    assert_eq!(bearer(&access, "set-by-hand").unwrap().name(), Some("api_key"));
    let wrong = (0..100).map(|i| bearer(&access, &format!("guess-{i}")).unwrap_err());
    let guesses = wrong.take_while(|refusal| *refusal == Refusal::Wrong).count();
    assert!((20..=25).contains(&guesses), "{guesses}");
    // An accepted key would end the block, so it could be guessed.
    assert!(matches!(bearer(&access, "set-by-hand"), Err(Refusal::Guessing { .. })));
    assert_eq!(bearer(&access, &made).unwrap().name(), Some("alice"));
    let elsewhere = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", "set-by-hand".parse().unwrap());
    assert!(access.admit(&PresentedKeys::of(&headers), elsewhere).is_ok());
}

#[test]
fn limits_are_those_of_the_key() {
    let (_dir, path) = file();
    let limited = Record { requests_per_minute: Some(2), concurrency: Some(1), ..named("few") };
    let few = create(&path, limited);
    let tokens = create(&path, Record { tokens_per_minute: Some(100), ..named("tokens") });
    let free = create(&path, named("free"));
    let access = Access::open(settings(&path)).unwrap();
    let pass = bearer(&access, &few).unwrap();
    let running = pass.enter().unwrap();
    assert_eq!(bearer(&access, &few).unwrap().enter().unwrap_err(), Refusal::Running { limit: 1 });
    drop(running);
    drop(pass.enter().unwrap());
    // The refused request has used none of the key's requests.
    let Err(Refusal::Requests { limit: 2, retry_after }) = pass.enter() else { panic!("a third request") };
    assert!((29..=30).contains(&retry_after.as_secs()), "{retry_after:?}");
    assert_eq!(pass.standing().requests.map(|level| (level.limit, level.remaining)), Some((2, 0)));
    assert_eq!(pass.standing().tokens, None);

    let pass = bearer(&access, &tokens).unwrap();
    let mut spend = crate::Spend::new(pass.clone(), 2);
    drop(pass.enter().unwrap());
    for _ in 0..2 {
        spend.started(30).unwrap();
    }
    spend.came(0, 10);
    spend.came(0, 5);
    spend.finished(0, 20);
    spend.came(1, 7);
    assert_eq!(pass.standing().tokens.map(|level| level.remaining), Some(100 - 30 - 20 - 7));
    spend.came(1, 90);
    assert!(matches!(pass.enter(), Err(Refusal::Tokens { limit: 100, .. })));
    let free = bearer(&access, &free).unwrap();
    drop(free.enter().unwrap());
}

#[test]
fn models_scope_and_priority_are_those_of_the_key() {
    let (_dir, path) = file();
    let record = Record { models: vec!["zen-*".to_owned()], priority: Some(5), ..named("narrow") };
    let narrow = create(&path, record);
    let admin = create(&path, Record { admin: true, ..named("admin") });
    let access = Access::open(settings(&path)).unwrap();
    let pass = bearer(&access, &narrow).unwrap();
    pass.use_model("zen/zen-nano").unwrap();
    let refusal = pass.use_model("qwen3-4b").unwrap_err();
    assert!(refusal.to_string().contains("zen-*") && refusal.to_string().contains("qwen3-4b"));
    assert!(matches!(pass.use_model(""), Err(Refusal::NoModel { .. })));
    assert!(pass.admin("Load").is_err());
    assert_eq!([0, 3, 9, -4].map(|asked| pass.priority(asked)), [5, 5, 9, 5]);
    let pass = bearer(&access, &admin).unwrap();
    pass.admin("Load").unwrap();
    pass.use_model("").unwrap();
    assert_eq!([0, 3, -4].map(|asked| pass.priority(asked)), [0, 3, -4]);
}

#[test]
fn a_file_that_is_wrong_is_refused_with_its_place() {
    let (_dir, path) = file();
    let digest = "0".repeat(64);
    let one = |fields: &str| format!("{{\"keys\":[{{\"name\":\"a\",\"sha256\":\"{digest}\"{fields}}}]}}");
    for (text, says) in [
        (String::new(), "JSON"),
        ("{\"keys\":[{\"name\":\"a\",\"sha256\":\"sk-hanzo-leaked\"}]}".to_owned(), "keys[0]: sha256"),
        ("{\"keys\":[{\"name\":\"a\"}]}".to_owned(), "line 1"),
        ("{\"key\":[]}".to_owned(), "unknown"),
        (one(",\"name\":\"b\""), "line 1"),
        (one(",\"concurrency\":0"), "concurrency"),
        (one(",\"models\":[\"\"]"), "models"),
        (one(",\"admin\":\"sk-hanzo-leaked\""), "another type"),
        (one("").replace("\"a\"", "\"a b\""), "name"),
        (one("").replace("[{", "[{}, {"), "line 1"),
        (
            format!(
                "{{\"keys\":[{{\"name\":\"a\",\"sha256\":\"{digest}\"}},{{\"name\":\"b\",\"sha256\":\"{digest}\"}}]}}"
            ),
            "keys[1]: sha256: another",
        ),
    ] {
        std::fs::write(&path, &text).unwrap();
        let error = Access::open(settings(&path)).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("keys.json"), "{text}: {error}");
        assert!(!error.contains("leaked"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let error = Access::open(settings(&path)).unwrap_err().to_string();
    assert!(error.contains("keys create"), "{error}");
    assert!(Access::open(settings(path.parent().unwrap())).is_err());
}

#[test]
fn keys_are_made_and_revoked_one_by_one() {
    let (_dir, path) = file();
    assert!(matches!(KeysFile::revoke(&path, "a"), Err(FileError::Io { .. })));
    create(&path, named("a"));
    assert!(matches!(KeysFile::create(&path, named("a")), Err(FileError::Exists(_))));
    assert!(KeysFile::create(&path, named("not a name")).is_err());
    // Eight writers at once; no key is lost.
    std::thread::scope(|scope| {
        for i in 0..8 {
            let path = &path;
            scope.spawn(move || create(path, named(&format!("k{i}"))));
        }
    });
    assert_eq!(KeysFile::read(&path).unwrap().keys.len(), 9);
    assert!(matches!(KeysFile::revoke(&path, "z"), Err(FileError::Unknown(_))));
    assert_eq!(KeysFile::revoke(&path, "a").unwrap().name, "a");
    assert_eq!(KeysFile::read(&path).unwrap().keys.len(), 8);
}

#[tokio::test]
async fn the_file_is_followed() {
    let (_dir, path) = file();
    let record = Record { requests_per_minute: Some(1), ..named("alice") };
    let alice = create(&path, record);
    let access = Arc::new(Access::open(settings(&path)).unwrap());
    access.follow();
    drop(bearer(&access, &alice).unwrap().enter().unwrap());
    let bob = create(&path, named("bob"));
    let until = async |holds: &dyn Fn() -> bool| {
        let waited = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waited).await.expect("the file is not followed");
    };
    until(&|| bearer(&access, &bob).is_ok()).await;
    // Usage survives a reload.
    assert!(matches!(bearer(&access, &alice).unwrap().enter(), Err(Refusal::Requests { .. })));
    // An invalid file changes nothing for a grace period, because an editor may still be writing.
    std::fs::write(&path, "{").unwrap();
    access.reload();
    assert!(bearer(&access, &bob).is_ok());
    assert!(access.keys_fault().is_some_and(|fault| !fault.closed && fault.reason.contains("keys.json")));
    std::fs::remove_file(&path).unwrap();
    create(&path, named("carol"));
    until(&|| matches!(bearer(&access, &bob), Err(Refusal::Wrong))).await;
}

#[tokio::test]
async fn a_revoked_key_ends_what_runs_with_it() {
    let (_dir, path) = file();
    let (alice, bob) = (create(&path, named("alice")), create(&path, named("bob")));
    let access = Access::open(settings(&path)).unwrap();
    let pass = bearer(&access, &alice).unwrap();
    let end = |pass: &Pass| {
        let mut end = pass.key_end();
        tokio::spawn(std::future::poll_fn(move |context| match end.poll_ended(context) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }))
    };
    let (of_alice, of_bob) = (end(&pass), end(&bearer(&access, &bob).unwrap()));
    // Another key comes, and the same file is read again.
    create(&path, named("carol"));
    access.reload();
    access.reload();
    tokio::task::yield_now().await;
    assert!(!of_alice.is_finished() && !of_bob.is_finished());
    KeysFile::revoke(&path, "alice").unwrap();
    access.reload();
    tokio::time::timeout(Duration::from_secs(20), of_alice).await.expect("the key goes on").unwrap();
    assert!(!of_bob.is_finished());
    end(&pass).await.unwrap(); // it has ended before
    assert_eq!(format!("{:?}", Pass::anyone().key_end()), "KeyEnd(never)");
}

#[tokio::test]
async fn keys_of_a_file_that_became_unreadable_end_until_it_can_be_read() {
    let (_dir, path) = file();
    let alice = create(&path, named("alice"));
    let set = Secret::new("set-by-hand").unwrap();
    let access = Arc::new(Access::open(AccessSettings { api_key: Some(set), ..settings(&path) }).unwrap());
    access.follow();
    assert_eq!(access.keys_fault(), None);
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    let until = async |holds: &dyn Fn() -> bool| {
        let waited = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waited).await.expect("the file is not followed");
    };
    until(&|| matches!(bearer(&access, &alice), Err(Refusal::KeysUnreadable))).await;
    // A key that cannot be checked now is not called wrong. The key of the settings stays valid.
    assert_eq!(bearer(&access, "sk-hanzo-another").unwrap_err(), Refusal::KeysUnreadable);
    assert!(bearer(&access, "set-by-hand").is_ok());
    let fault = access.keys_fault().unwrap();
    assert!(fault.closed && fault.reason.contains("keys.json"), "{fault:?}");
    // A rename keeps the file's times; the file is read again all the same.
    std::fs::rename(&aside, &path).unwrap();
    until(&|| bearer(&access, &alice).is_ok()).await;
    assert_eq!(access.keys_fault(), None);
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_is_followed_past_pipes_and_changes_that_keep_its_times() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let (_dir, path) = file();
    let alice = create(&path, named("alice"));
    let access = Arc::new(Access::open(settings(&path)).unwrap());
    access.follow();
    let until = async |holds: &dyn Fn() -> bool| {
        let waited = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waited).await.expect("the file is not followed");
    };
    // Nobody writes to the pipe. Opening it would wait for ever.
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    let pipe = path.with_extension("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink(&pipe, &path).unwrap();
    until(&|| matches!(bearer(&access, &alice), Err(Refusal::KeysUnreadable))).await;
    assert!(access.keys_fault().unwrap().reason.contains("is not a file"));
    std::fs::rename(&aside, &path).unwrap();
    until(&|| bearer(&access, &alice).is_ok()).await;
    // Same length, inode and modification time, as `touch -r` leaves them.
    let text = std::fs::read_to_string(&path).unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    std::fs::write(&path, text.replace('{', "[")).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    until(&|| access.keys_fault().is_some()).await;
    std::fs::write(&path, &text).unwrap();
    until(&|| access.keys_fault().is_none()).await;
    // Permissions alone. Root can read any file.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    if std::fs::File::open(&path).is_err() {
        until(&|| access.keys_fault().is_some()).await;
    }
}

#[cfg(unix)]
#[test]
fn a_changed_file_keeps_owner_group_and_permissions() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let (_dir, path) = file();
    create(&path, named("alice"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    // Only root may change a file's owner.
    let _ = chown(&path, Some(12_345), Some(23_456));
    let access = || {
        let metadata = std::fs::metadata(&path).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode())
    };
    let before = access();
    create(&path, named("bob"));
    assert_eq!(access(), before, "after a key was made");
    KeysFile::revoke(&path, "alice").unwrap();
    assert_eq!(access(), before, "after a key was revoked");
}
