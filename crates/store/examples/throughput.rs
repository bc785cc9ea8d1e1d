//! How fast a pull is beside `curl -O` and then `sha256sum`, from the same server on a loopback port; an export
//! beside `tar -c` and `sha256sum`; an import beside `tar -x` and `sha256sum`. In pairs, whose order alternates:
//!
//! `cargo run --release -p hanzo-engine-store --example throughput [MEGABYTES] [PAIRS] [DIRECTORY]`
//!
//! Each side of a pair is a process of its own, and so is the server, so that both have the same to do. Each run's
//! time is printed, with our largest resident memory, and at the end the ratio of the medians.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use hanzo_engine_store::{PullOptions, Puller, Store, StoreSettings};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    match arguments.first().map(String::as_str) {
        Some("serve") => runtime()?.block_on(serve(number(1, 1_000))),
        Some("pull") => {
            let (url, dir) = (&arguments[1], PathBuf::from(&arguments[2]));
            runtime()?.block_on(pull(url, &dir))
        }
        Some("export") => {
            let store = Store::open(Path::new(&arguments[1]))?;
            let to = std::fs::File::create(&arguments[2])?;
            let bytes = store.export(&["model".to_owned()], &to, |_| true)?.bytes;
            to.sync_all()?;
            say(bytes)
        }
        Some("import") => {
            let store = Store::open(Path::new(&arguments[1]))?;
            let models = store.import(std::fs::File::open(&arguments[2])?, |_| true)?;
            say(models.iter().map(|model| model.size_bytes).sum())
        }
        _ => pairs(number(0, 1_000), number(1, 5), arguments.get(2).map(PathBuf::from)),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// The same megabyte over and over, but for its number: with ranges.
async fn serve(megabytes: u64) -> Result<(), Failure> {
    let pattern: Vec<u8> =
        (0..1_u32 << 18).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let pattern = Bytes::from([&b"GGUF"[..], &pattern[4..]].concat());
    let bytes = megabytes << 20;
    let answer = move |headers: HeaderMap| {
        let pattern = pattern.clone();
        async move {
            let range = headers
                .get("range")
                .and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
            let range = range.and_then(|(from, to)| {
                Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?.min(bytes - 1) + 1))
            });
            let answer = Response::builder().header("etag", "\"one\"");
            let (answer, from, to) = match range {
                Some((from, to)) => {
                    let header = format!("bytes {from}-{}/{bytes}", to - 1);
                    (answer.status(206).header("content-range", header), from, to)
                }
                None => (answer, 0, bytes),
            };
            let body = futures_util::stream::unfold(from, move |at| {
                let within = (at % (1 << 20)) as usize;
                let length = ((1 << 20) - within).min(64 << 10).min((to - at) as usize);
                let piece = pattern.slice(within..within + length);
                async move { (length > 0).then(|| (Ok::<_, std::io::Error>(piece), at + length as u64)) }
            });
            answer.header("content-length", to - from).body(Body::from_stream(body)).unwrap_or_default()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/model.gguf", listener.local_addr()?);
    std::io::stdout().flush()?;
    Ok(axum::serve(listener, Router::new().fallback(answer)).await?)
}

async fn pull(url: &str, dir: &Path) -> Result<(), Failure> {
    let settings = StoreSettings { hub_cache: None, ollama_store: None, ..StoreSettings::from_env()? };
    let puller = Puller::new(Store::open(dir)?, settings, None)?;
    say(puller.pull(url, &PullOptions::default())?.done().await?.size_bytes)
}

/// What a run of ours moved, and the most memory it had.
fn say(bytes: u64) -> Result<(), Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{bytes} bytes, {}", peak.replace(char::is_whitespace, ""));
    Ok(())
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pairs(megabytes: u64, count: u64, at: Option<PathBuf>) -> Result<(), Failure> {
    let this = std::env::current_exe()?;
    let mut server =
        Server(Command::new(&this).args(["serve", &megabytes.to_string()]).stdout(Stdio::piped()).spawn()?);
    let mut url = String::new();
    BufReader::new(server.0.stdout.take().ok_or("no output")?).read_line(&mut url)?;
    let url = url.trim();
    let dir = at.unwrap_or_else(std::env::temp_dir).join(format!("hanzo-throughput-{}", std::process::id()));
    let ours = |words: &[&str]| {
        let mut command = Command::new(&this);
        command.args(words).current_dir(&dir);
        command
    };
    let theirs = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", line, url]).current_dir(&dir);
        command
    };
    std::fs::create_dir_all(&dir)?;
    let result = (|| {
        let pull = || ours(&["pull", url, "made/store"]);
        let curl = || theirs("cd made; curl -sS --noproxy '*' -O \"$0\"; sha256sum model.gguf > digest");
        race("pull", "curl and sha256sum", count, &dir, pull, curl)?;
        run(&mut ours(&["pull", url, "store"]))?;
        run(&mut ours(&["export", "store", "model.tar"]))?;
        let export = || ours(&["export", "store", "made/model.tar"]);
        let pack =
            || theirs("tar -cf made/model.tar -C store/blobs .; sha256sum store/blobs/* > made/digest");
        race("export", "tar -c and sha256sum", count, &dir, export, pack)?;
        let import = || ours(&["import", "made/store", "model.tar"]);
        let unpack = || theirs("tar -xf model.tar -C made; sha256sum made/blobs/* > made/digest");
        race("import", "tar -x and sha256sum", count, &dir, import, unpack)
    })();
    std::fs::remove_dir_all(&dir)?;
    result
}

/// Both sides by turns, each into an empty folder `made`.
fn race(
    our_name: &str,
    their_name: &str,
    count: u64,
    dir: &Path,
    ours: impl Fn() -> Command,
    theirs: impl Fn() -> Command,
) -> Result<(), Failure> {
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for pair in 0..count {
        for turn in 0..2 {
            let made = dir.join("made");
            std::fs::create_dir(&made)?;
            let (name, mut command, times) = match (pair + turn) % 2 {
                0 => (our_name, ours(), &mut our_times),
                _ => (their_name, theirs(), &mut their_times),
            };
            let began = Instant::now();
            let said = run(&mut command)?;
            let time = began.elapsed();
            println!("{name} {:.3} s {said}", time.as_secs_f64());
            times.push(time);
            std::fs::remove_dir_all(&made)?;
        }
    }
    let (ours, theirs) = (median(&mut our_times).as_secs_f64(), median(&mut their_times).as_secs_f64());
    let ratio = ours / theirs;
    println!("{count} pairs, medians: {our_name} {ours:.3} s, {their_name} {theirs:.3} s, ratio {ratio:.2}");
    Ok(())
}

fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
