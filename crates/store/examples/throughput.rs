//! How fast a pull is beside `curl -O` and then `sha256sum`, from the same server on a loopback port, in pairs:
//!
//! `cargo run --release -p hanzo-engine-store --example throughput [MEGABYTES] [PAIRS] [DIRECTORY]`
//!
//! The server is another process, so that both sides of a pair have the same to do. Each run's time is printed,
//! with the pull's largest resident memory, and at the end the ratio of the medians.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use hanzo_engine_store::{PullOptions, Puller, Settings, Store};
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
    let settings = Settings { hub_cache: None, ollama_store: None, ..Settings::from_env()? };
    let puller = Puller::new(Store::open(dir)?, settings, None)?;
    let began = Instant::now();
    let record = puller.pull(url, &PullOptions::default())?.done().await?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!(
        "{:.3} {} {}",
        began.elapsed().as_secs_f64(),
        record.size_bytes,
        peak.replace(char::is_whitespace, "")
    );
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
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..count {
        for turn in 0..2 {
            std::fs::create_dir_all(&dir)?;
            if (pair + turn) % 2 == 0 {
                let began = Instant::now();
                let output = Command::new(&this).arg("pull").arg(url).arg(dir.join("store")).output()?;
                let time = began.elapsed();
                if !output.status.success() {
                    return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
                }
                println!(
                    "pull {:.3} s: {}",
                    time.as_secs_f64(),
                    String::from_utf8_lossy(&output.stdout).trim()
                );
                ours.push(time);
            } else {
                let began = Instant::now();
                let line = "curl -sS --noproxy '*' -O \"$0\" && sha256sum model.gguf > digest";
                let status = Command::new("sh").args(["-c", line, url]).current_dir(&dir).status()?;
                let time = began.elapsed();
                if !status.success() {
                    return Err("curl or sha256sum failed".into());
                }
                println!("curl and sha256sum {:.3} s", time.as_secs_f64());
                theirs.push(time);
            }
            std::fs::remove_dir_all(&dir)?;
        }
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    println!(
        "{megabytes} MiB, {count} pairs, medians: pull {:.3} s, curl and sha256sum {:.3} s, ratio {:.2}",
        ours.as_secs_f64(),
        theirs.as_secs_f64(),
        ours.as_secs_f64() / theirs.as_secs_f64()
    );
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
