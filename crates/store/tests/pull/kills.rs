//! kill -9 in the middle of a pull, and of everything else: a child process does it and dies.

use super::child::{child, part};
use super::content::{Content, mix};
use super::server::{Files, plain};
use super::{puller, settings};
use hanzo_engine_store::{NewModel, PullOptions, Store};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 300 << 20;
const KILLS: u64 = 50;
/// What one kill may cost: a chunk of each stream.
const CHUNK_BYTES: u64 = 16 << 20;
const STREAMS: u64 = 4;

/// The part of the child that pulls.
#[test]
fn child_that_pulls() {
    let Some((reference, dir)) = part() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let puller = puller(&dir, settings("http://127.0.0.1:1"));
        puller.pull(&reference, &PullOptions::default()).unwrap().done().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_is_killed_fifty_times() {
    let dir = tempfile::tempdir().unwrap();
    let files = Arc::new(Files::default());
    let url = plain(&files).await;
    files.fault(|faults| faults.rate = Some(40 << 20));
    let (mut kills, mut model, mut worst) = (0, 0, 0);
    while kills < KILLS {
        let content = Content::made(100 + model, BYTES);
        let path = format!("/m{model}.gguf");
        files.put(&path, content.clone());
        let reference = format!("{url}{path}#sha256={}", content.sha256());
        let (before, first_kill) = (files.served(), kills);
        let whole = loop {
            let mut child = child("kills::child_that_pulls", dir.path(), &reference).spawn().unwrap();
            // The last model is let come to its end.
            let time = match kills < KILLS {
                true => Duration::from_millis(20 + mix(kills ^ 0xabcd) % 400),
                false => Duration::from_secs(600),
            };
            let died = tokio::task::spawn_blocking(move || {
                let since = std::time::Instant::now();
                while since.elapsed() < time {
                    if let Some(status) = child.try_wait().unwrap() {
                        return Some(status.success());
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                child.kill().unwrap();
                child.wait().unwrap();
                None
            });
            if let Some(success) = died.await.unwrap() {
                break success;
            }
            kills += 1;
            let store = Store::open(dir.path()).unwrap();
            // It may have been killed between its record and its end.
            assert!(store.list().unwrap().models.len() <= 1);
        };
        assert!(whole, "the child failed");
        let again = files.served() - before - BYTES;
        let killed = kills - first_kill;
        assert!(again <= killed * STREAMS * CHUNK_BYTES, "{again} bytes twice in {killed} kills");
        worst = worst.max(again.checked_div(killed).unwrap_or(0));
        let store = Store::open(dir.path()).unwrap();
        let checked = store.verify(&format!("m{model}"), |_| true).unwrap();
        assert!(checked.is_sound(), "{checked:?}");
        assert_eq!(std::fs::read_dir(dir.path().join("partial")).unwrap().count(), 0);
        // Room for the next.
        store.remove(&format!("m{model}")).unwrap();
        files.files.lock().unwrap().clear();
        model += 1;
    }
    println!("{kills} kills; at most {worst} bytes a kill were sent twice, on average over a pull");
}

/// The part of the child that changes a store at random, and says each change before and after.
#[test]
fn child_that_changes() {
    let Some((seed, dir)) = part() else { return };
    let (mut seed, store) = (seed.parse::<u64>().unwrap(), Store::open(&dir.join("store")).unwrap());
    let mut out = std::io::stdout();
    loop {
        seed = mix(seed);
        let name = format!("m{}", seed % 40);
        let path = dir.join(format!("{name}.gguf"));
        let model = NewModel { path, format: "gguf".into(), ..NewModel::default() };
        let what = ["put", "del", "use"][(seed >> 32) as usize % 3];
        writeln!(out, "begin {what} {name}").unwrap();
        match what {
            "put" => store.register(Some(&name), model, 1).map(drop),
            "del" => store.remove(&name).map(drop),
            _ => store.touch(&name, (seed >> 40) as i64).map(drop),
        }
        .or_else(|error| error.to_string().contains("no model named").then_some(()).ok_or(error))
        .unwrap();
        writeln!(out, "ended {what} {name}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn changes_that_are_killed_lose_nothing_and_invent_nothing() {
    if part().is_some() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for number in 0..40 {
        std::fs::write(dir.path().join(format!("m{number}.gguf")), format!("{number}")).unwrap();
    }
    let mut known: BTreeSet<String> = BTreeSet::new();
    let (mut changes, mut round) = (0, 0);
    while changes < 1_000 {
        round += 1;
        let mut child = child("kills::child_that_changes", dir.path(), &round.to_string()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut pending, mut here) = (None, 0);
        let until = 20 + mix(round) % 120;
        for line in lines.map_while(Result::ok) {
            // Before it stands what the test harness says.
            let Some(at) = line.find("begin ").or_else(|| line.find("ended ")) else { continue };
            let words: Vec<&str> = line[at..].split(' ').collect();
            let [when, what, name] = words[..] else { continue };
            if when == "begin" {
                pending = Some((what.to_owned(), name.to_owned()));
                continue;
            }
            pending = None;
            match what {
                "put" => drop(known.insert(name.to_owned())),
                "del" => drop(known.remove(name)),
                _ => {}
            }
            here += 1;
            if here == until {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(here >= until, "the child failed after {here} changes of round {round}");
        changes += here;
        let store = Store::open(&dir.path().join("store")).unwrap();
        let listing = store.list().unwrap();
        assert!(listing.corrupt.is_empty(), "{:?}", listing.corrupt);
        let found: BTreeSet<String> = listing.models.into_iter().map(|model| model.name).collect();
        let mut other = known.clone();
        if let Some((what, name)) = &pending {
            if what == "put" {
                other.insert(name.clone())
            } else {
                other.remove(name)
            };
        }
        let as_it_should =
            found == known || (found == other && pending.as_ref().is_none_or(|(what, _)| what != "use"));
        assert!(as_it_should, "round {round}: {found:?}, not {known:?} with or without {pending:?}");
        known = found;
    }
    println!("{changes} changes, {round} kills");
}
