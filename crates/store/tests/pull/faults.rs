//! Everything that goes wrong with a server, a disk or a store: each case ends in a whole, verified model, or in an
//! error that says what happened, with nothing half-visible.

use super::content::Content;
use super::server::{Files, plain};
use super::{nothing_visible, puller, settings};
use hanzo_engine_store::{PullError, PullOptions, Puller, Store, StoreError, StoreSettings};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant, SystemTime};

const BYTES: u64 = 40 << 20;

struct Case {
    dir: tempfile::TempDir,
    files: Arc<Files>,
    url: String,
    content: Content,
}

impl Case {
    async fn new() -> Self {
        Self::of(Content::made(7, BYTES)).await
    }

    async fn of(content: Content) -> Self {
        let (dir, files) = (tempfile::tempdir().unwrap(), Arc::new(Files::default()));
        let url = plain(&files).await;
        files.put("/m.gguf", content.clone());
        Self { dir, files, url, content }
    }

    fn reference(&self) -> String {
        format!("{}/m.gguf#sha256={}", self.url, self.content.sha256())
    }

    fn settings(&self) -> StoreSettings {
        settings(&self.url)
    }

    fn puller(&self, settings: StoreSettings) -> Puller {
        puller(&self.dir.path().join("store"), settings)
    }

    async fn pull(&self, puller: &Puller) -> Result<(), Arc<PullError>> {
        let record = puller.pull(&self.reference(), &PullOptions::default()).unwrap().done().await?;
        assert_eq!(record.size_bytes, self.content.len());
        let checked = puller.store().verify("m", |_| true).unwrap();
        assert!(checked.is_sound(), "{checked:?}");
        assert_eq!(record.files[0].sha256.as_deref(), Some(self.content.sha256().as_str()));
        assert_eq!(std::fs::read_dir(puller.store().dir().join("partial")).unwrap().count(), 0);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_works() {
    let case = Case::new().await;
    case.pull(&case.puller(case.settings())).await.unwrap();
    assert_eq!(case.files.served(), BYTES, "every byte came once");
    assert!(case.files.requests.load(SeqCst) > 2, "in several ranges");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_reset_every_3_mb() {
    let case = Case::new().await;
    case.files.fault(|faults| faults.reset_every = Some(3_000_000));
    case.pull(&case.puller(case.settings())).await.unwrap();
    // What had arrived when the connection broke may not all have been read.
    assert!(case.files.served() < BYTES + BYTES / 3, "{}", case.files.served());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_shorter_than_its_length() {
    let case = Case::new().await;
    case.files.fault(|faults| faults.truncates = 5);
    case.pull(&case.puller(case.settings())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_is_given_up_and_asked_again() {
    let case = Case::new().await;
    case.files.fault(|faults| faults.stalls = 3);
    let began = Instant::now();
    let settings = StoreSettings { stall: Duration::from_millis(700), ..case.settings() };
    case.pull(&case.puller(settings)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(700));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_ranges_or_without_lengths() {
    for hides_length in [false, true] {
        let case = Case::new().await;
        case.files.fault(|faults| {
            (faults.ignores_range, faults.hides_length, faults.truncates) = (true, hides_length, 0);
        });
        case.pull(&case.puller(case.settings())).await.unwrap();
        assert_eq!(case.files.requests.load(SeqCst), 1, "one answer brings it all");
    }
    let case = Case::new().await;
    case.files.fault(|faults| (faults.ignores_range, faults.truncates) = (true, 2));
    case.pull(&case.puller(case.settings())).await.unwrap();
    assert_eq!(case.files.requests.load(SeqCst), 3, "from the start each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_last_byte() {
    let case = Case::new().await;
    case.files.fault(|faults| faults.flips_last = true);
    let puller = case.puller(case.settings());
    let error = case.pull(&puller).await.unwrap_err();
    let PullError::DigestMismatch { expected, found, .. } = &*error else { panic!("{error}") };
    assert_eq!(expected.to_string(), format!("sha256:{}", case.content.sha256()));
    assert!(
        error.to_string().contains(&found.to_string()) && error.to_string().contains(&expected.to_string())
    );
    nothing_visible(puller.store());
    assert_eq!(std::fs::read_dir(puller.store().dir().join("partial")).unwrap().count(), 0, "it was deleted");
    case.files.fault(|faults| faults.flips_last = false);
    case.pull(&puller).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changes_between_its_parts() {
    let case = Case::new().await;
    case.files.fault(|faults| faults.etag_changes_at = Some((2, false)));
    case.pull(&case.puller(case.settings())).await.unwrap();
    assert!(case.files.served() > BYTES, "it was begun again");
    let case = Case::new().await;
    case.files.fault(|faults| faults.etag_changes_at = Some((1, true)));
    let puller = case.puller(case.settings());
    let error = case.pull(&puller).await.unwrap_err();
    assert!(matches!(&*error, PullError::Unsteady { .. }), "{error}");
    nothing_visible(puller.store());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_that_pass_and_statuses_that_do_not() {
    let case = Case::new().await;
    let wait = vec![("retry-after", "1".to_owned())];
    case.files
        .fault(|faults| faults.statuses = [(503, vec![]), (429, wait), (500, vec![]), (502, vec![])].into());
    let began = Instant::now();
    case.pull(&case.puller(case.settings())).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1), "Retry-After is kept to");
    // As a date, which counts whole seconds: two from now are more than one.
    let case = Case::new().await;
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(2));
    case.files.fault(|faults| faults.statuses = [(503, vec![("retry-after", date)])].into());
    let began = Instant::now();
    case.pull(&case.puller(case.settings())).await.unwrap();
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(950), "a date is kept to, not {waited:?}");
    for status in [400, 401, 403, 404, 410, 416, 451] {
        let case = Case::new().await;
        case.files.fault(|faults| faults.statuses = [(status, vec![])].into());
        let puller = case.puller(case.settings());
        let error = case.pull(&puller).await.unwrap_err().to_string();
        assert_eq!(case.files.requests.load(SeqCst), 1, "{status} is not tried again: {error}");
        nothing_visible(puller.store());
    }
    let case = Case::new().await;
    let long = vec![("retry-after", "86400".to_owned())];
    case.files.fault(|faults| faults.statuses = [(429, long)].into());
    let error = case.pull(&case.puller(case.settings())).await.unwrap_err();
    assert!(error.to_string().contains("86400 s"), "{error}");
    let case = Case::new().await;
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(7_200));
    case.files.fault(|faults| faults.statuses = [(429, vec![("retry-after", date)])].into());
    let error = case.pull(&case.puller(case.settings())).await.unwrap_err();
    assert!(error.to_string().contains("asks to wait for 7"), "{error}");
    assert_eq!(case.files.requests.load(SeqCst), 1, "it is not asked again");
    let case = Case::new().await;
    case.files.fault(|faults| faults.statuses = vec![(503, vec![]); 100].into());
    let error = case.pull(&case.puller(case.settings())).await.unwrap_err();
    assert!(matches!(&*error, PullError::Network { attempts: 8, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full() {
    // Seen before it begins.
    let case = Case::new().await;
    let puller = case.puller(StoreSettings { write_bytes_max: Some(BYTES - 1), ..case.settings() });
    let error = case.pull(&puller).await.unwrap_err();
    // A URL does not say how long its file is: it is the write that fails.
    assert!(matches!(&*error, PullError::Store(StoreError::DiskFull { .. })), "{error}");
    assert!(error.to_string().contains("hanzo-engine gc"), "{error}");
    nothing_visible(puller.store());
    drop(puller);
    // Room again: it goes on from what is there.
    let before = case.files.served();
    case.pull(&case.puller(case.settings())).await.unwrap();
    assert!(case.files.served() - before < BYTES, "{}", case.files.served() - before);
}

/// A real full disk, where the tests may mount one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_disk_that_is_full() {
    let case = Case::new().await;
    let at = case.dir.path().join("store");
    std::fs::create_dir(&at).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
        .arg(&at)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        eprintln!(
            "NOT CHECKED: a real full disk, because no tmpfs can be mounted here; an injected one is checked"
        );
        return;
    }
    let _unmount = Unmount(at.clone());
    // The check before the pull sees room for it, and then the room goes.
    let filler = at.join("filler");
    let puller = case.puller(case.settings());
    case.files.fault(|faults| faults.rate = Some(20 << 20));
    let pull = puller.pull(&case.reference(), &PullOptions::default()).unwrap();
    while case.files.served() < 4 << 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 1 << 16]).is_ok() {}
    drop(file);
    let error = pull.done().await.unwrap_err();
    assert!(matches!(&*error, PullError::Store(StoreError::DiskFull { .. })), "{error}");
    nothing_visible(puller.store());
    // Too small from the start: nothing is fetched.
    let requests = case.files.served();
    let error = case.pull(&puller).await.unwrap_err();
    assert!(
        matches!(&*error, PullError::Store(StoreError::DiskFull { .. } | StoreError::Database { .. })),
        "{error}"
    );
    assert!(case.files.served() - requests <= 17 << 20);
    std::fs::remove_file(filler).unwrap();
    drop(puller);
    case.pull(&case.puller(case.settings())).await.unwrap();
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt as _;
    let case = Case::new().await;
    let puller = case.puller(case.settings());
    let partial = puller.store().dir().join("partial");
    let mode = |mode| std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    let written = std::fs::write(partial.join("probe"), "x").is_ok();
    if written {
        // Who may do everything is stopped by a file in the directory's place.
        std::fs::remove_dir_all(&partial).unwrap();
        std::fs::write(&partial, "").unwrap();
    }
    let error = case.pull(&puller).await.unwrap_err();
    assert!(matches!(&*error, PullError::Disk { .. }) && error.to_string().contains("partial"), "{error}");
    if written {
        std::fs::remove_file(&partial).unwrap();
        std::fs::create_dir(&partial).unwrap();
    }
    mode(0o755);
    nothing_visible(puller.store());
    case.pull(&puller).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_daemons_on_one_store() {
    let case = Case::new().await;
    let first = case.puller(case.settings());
    let error = Store::open(first.store().dir()).err().unwrap();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    case.pull(&first).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_jump() {
    let case = Case::new().await;
    let puller = case.puller(case.settings());
    let dir = puller.store().dir().to_owned();
    let orphan = |name: &str, time: SystemTime| {
        let path = dir.join("partial").join(name);
        std::fs::write(&path, "x").unwrap();
        std::fs::File::open(&path).unwrap().set_modified(time).unwrap();
        path
    };
    let now = SystemTime::now();
    let (past, future) =
        (orphan("old", now - Duration::from_secs(4_000)), orphan("new", now + Duration::from_secs(86_400)));
    let epoch = orphan("epoch", SystemTime::UNIX_EPOCH);
    let collected = puller.store().gc(false).unwrap();
    assert!(!past.exists() && !epoch.exists() && future.exists(), "{collected:?}");
    std::fs::remove_file(future).unwrap();
    // A model whose files are from the future, and one used before it came.
    case.pull(&puller).await.unwrap();
    let record = puller.store().touch("m", -5).unwrap();
    std::fs::File::open(&record.path).unwrap().set_modified(now + Duration::from_secs(86_400)).unwrap();
    assert!(puller.store().verify("m", |_| true).unwrap().is_sound(), "its bytes are what they were");
    assert!(puller.store().gc(false).unwrap().paths.is_empty());
    assert!(record.path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_is_no_model() {
    let page = Content::given("<html>please log in</html>");
    let case = Case::of(page).await;
    let puller = case.puller(case.settings());
    let url = format!("{}/m.gguf", case.url);
    let error = puller.pull(&url, &PullOptions::default()).unwrap().done().await.unwrap_err();
    assert!(error.to_string().contains("web page"), "{error}");
    nothing_visible(puller.store());
}

/// Plain http through a proxy, which gets whole addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_used_for_other_machines_alone() {
    let case = Case::new().await;
    let proxy = Some(case.url.parse().unwrap());
    let puller = case.puller(StoreSettings { proxy, ..case.settings() });
    let far = format!("http://models.example/m.gguf#sha256={}", case.content.sha256());
    let record = puller.pull(&far, &PullOptions::default()).unwrap().done().await.unwrap();
    assert_eq!(record.size_bytes, BYTES);
    assert!(case.files.log.lock().unwrap().iter().all(|line| line.starts_with("/m.gguf ")));
}
