//! Models that are pulled, kept and carried, as a person meets them: the program against a stand-in for Hugging
//! Face's hub on a loopback port, each test with its own stores.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

// The hub of the store's own tests; what only those use is no mistake.
#[allow(dead_code)]
#[path = "../../../store/tests/pull/content.rs"]
mod content;
#[allow(dead_code)]
#[path = "../../../store/tests/pull/hub.rs"]
mod hub;
#[allow(dead_code)]
#[path = "../../../store/tests/pull/server.rs"]
mod server;

mod damaged;
mod full;
mod hostile;
mod place;
mod terminal;

use content::Content;
use place::{DEMO, Ended, NANO, Place, QUESTION, blobs, keys, readable, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_pulled_kept_carried_and_removed() {
    let place = Place::new().await;
    // Slow enough for something to be seen of it.
    place.hub.cdn.fault(|faults| faults.rate = Some(8 << 20));
    let pulled = place.run("a", &["pull", "zen-nano"]);
    place.hub.cdn.fault(|faults| faults.rate = None);
    let (stdout, stderr) = (text(&pulled.stdout), text(&pulled.stderr));
    assert!(pulled.status.success(), "{stderr}");
    assert!(stdout.starts_with("pulled Qwen/Qwen3-0.6B") && stdout.contains("6.3 MB"), "{stdout}");
    assert!(stderr.contains("Qwen3-0.6B-Q8_0.gguf"), "{stderr}");
    readable(&stdout);
    readable(&stderr);
    let again = place.ok("a", &["pull", "zen-nano"]);
    assert!(again.contains("is here already"), "{again}");
    assert_eq!(place.run("a", &["pull", "zen-nano", "--quiet"]).stdout, b"");

    let listed = place.json("a", &["list"]);
    let model = &listed[0];
    let list_keys = [
        "format",
        "in_place",
        "loaded",
        "missing",
        "modified_at_unix_ms",
        "name",
        "path",
        "quantization",
        "reference",
        "revision",
        "size_bytes",
        "source",
        "used_at_unix_ms",
    ];
    assert_eq!(keys(model), list_keys);
    assert_eq!(model["reference"], "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0");
    assert_eq!((&model["quantization"], &model["in_place"]), (&"Q8_0".into(), &false.into()));
    let name = model["name"].as_str().unwrap();
    let table = place.ok("a", &["list"]);
    assert!(table.starts_with("NAME ") && table.contains(name) && table.contains("6.3 MB"), "{table}");

    let card = place.json("a", &["show", "zen-nano"]);
    let more = [
        "architecture",
        "capabilities",
        "tool_format",
        "chat_template",
        "context_tokens_max",
        "files",
        "license",
        "license_text",
        "parameters",
        "params",
        "inputs_not_read",
        "source_template",
        "status",
        "system",
    ];
    let mut expected = [&list_keys[..], &more].concat();
    expected.sort_unstable();
    assert_eq!(keys(&card), expected);
    assert_eq!(keys(&card["files"][0]), ["held", "missing", "path", "role", "sha256", "size_bytes"]);
    let file = &card["files"][0];
    let digest = Content::given(std::fs::read(DEMO).unwrap()).sha256();
    assert_eq!(
        (&file["sha256"], &file["held"], &file["role"]),
        (&digest.as_str().into(), &"blob".into(), &"model".into())
    );
    assert_eq!((&card["license"], &card["architecture"]), (&"apache-2.0".into(), &"qwen3".into()));
    let shown = place.ok("a", &["show", "qwen3-0.6b"]);
    assert!(shown.contains(&digest) && shown.contains("hf://Qwen/Qwen3-0.6B-GGUF:Q8_0"), "{shown}");

    let alias = place.json("a", &["cp", "zen-nano", "best"]);
    assert_eq!(keys(&alias), ["alias", "builtin", "target"]);
    assert_eq!((&alias["alias"], &alias["builtin"]), (&"best".into(), &false.into()));
    let aliases = place.json("a", &["list", "--aliases"]);
    assert_eq!(aliases[0], alias, "one's own first");
    let nano = aliases.as_array().unwrap().iter().find(|alias| alias["alias"] == "zen-nano").unwrap();
    assert_eq!(nano["target"], "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0");
    assert!(place.ok("a", &["list", "--aliases"]).starts_with("ALIAS "));
    assert_eq!(place.json("a", &["show", "best"])["name"], name);
    let answer = place.ok("a", &["run", "best", QUESTION, "--temperature", "0"]);
    assert!(answer.contains("Paris"), "{answer}");

    let usage = place.json("a", &["du"]);
    let usage_keys = [
        "blobs_bytes",
        "database_bytes",
        "dir",
        "elsewhere_bytes",
        "free_bytes",
        "models",
        "orphan_bytes",
        "partial_bytes",
    ];
    assert_eq!(keys(&usage), usage_keys);
    let model_keys = ["elsewhere_bytes", "name", "own_bytes", "shared_bytes", "size_bytes"];
    assert_eq!(keys(&usage["models"][0]), model_keys);
    assert_eq!(usage["models"][0]["own_bytes"], card["size_bytes"]);
    assert_eq!((&usage["blobs_bytes"], &usage["orphan_bytes"]), (&card["size_bytes"], &0.into()));
    let du = place.ok("a", &["du"]);
    assert!(du.contains("OWN") && du.contains("free on the disk"), "{du}");

    let checked = place.json("a", &["verify"]);
    assert_eq!(keys(&checked[0]), ["files", "model", "sound"]);
    let health_keys = ["expected_sha256", "found_sha256", "health", "path"];
    assert_eq!(keys(&checked[0]["files"][0]), health_keys);
    assert_eq!((&checked[0]["sound"], &checked[0]["files"][0]["health"]), (&true.into(), &"sound".into()));
    assert!(place.ok("a", &["verify", "best"]).contains(": sound"));

    // A path is absolute before it gets another name, and must be a model's.
    let lone = place.path("lone.gguf");
    std::fs::copy(DEMO, &lone).unwrap();
    assert!(place.fails("a", 1, &["cp", "./lone.gguf", "alone"]).contains("pull it first"));
    place.ok("a", &["pull", "./lone.gguf"]);
    assert_eq!(place.json("a", &["cp", "./lone.gguf", "alone"])["target"], "lone");
    place.ok("a", &["rm", "alone"]);
    place.ok("a", &["rm", "lone"]);
    assert!(lone.exists());

    // To a machine without a network.
    let exported = place.json("a", &["export", "best", "nano.tar"]);
    assert_eq!(keys(&exported), ["file", "models", "size_bytes"]);
    assert_eq!(exported["size_bytes"], std::fs::metadata(place.path("nano.tar")).unwrap().len());
    assert!(!place.path("nano.tar.part").exists());
    assert!(place.fails("a", 2, &["export", "best", "nano.tar"]).contains("--force"));
    place.ok("a", &["export", "best", "nano.tar", "--force"]);
    assert!(place.fails("a", 2, &["export", "best", ".", "--force"]).contains("is a directory"));
    let offline = |args: &[&str]| {
        let mut command = place.program("b", args);
        command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HUB_OFFLINE", "1").output().unwrap()
    };
    let imported = offline(&["import", "nano.tar", "--json"]);
    assert!(imported.status.success(), "{}", text(&imported.stderr));
    let imported: Value = serde_json::from_slice(&imported.stdout).unwrap();
    assert_eq!((keys(&imported[0]), &imported[0]["name"]), (list_keys.to_vec(), &name.into()));
    let answer = offline(&["run", "zen-nano", QUESTION, "--temperature", "0"]);
    assert!(text(&answer.stdout).contains("Paris"), "{}", text(&answer.stderr));
    let missing = offline(&["pull", "zen-eco"]);
    assert!(text(&missing.stderr).contains("HF_HUB_OFFLINE"), "{}", text(&missing.stderr));

    // An archive that was cut leaves nothing to see.
    let whole = std::fs::read(place.path("nano.tar")).unwrap();
    std::fs::write(place.path("cut.tar"), &whole[..whole.len() / 2]).unwrap();
    assert!(place.fails("c", 1, &["import", "cut.tar"]).contains("archive"));
    assert_eq!(place.ok("c", &["list", "--json"]), "[]\n");
    assert!(place.fails("c", 1, &["import", "none.tar"]).contains("none.tar"));

    // A byte that is another.
    let path = PathBuf::from(card["files"][0]["path"].as_str().unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let bad = place.run("a", &["verify", "--json"]);
    assert_eq!(bad.status.code(), Some(1), "{}", text(&bad.stderr));
    let bad: Value = serde_json::from_slice(&bad.stdout).unwrap();
    let file = &bad[0]["files"][0];
    assert_eq!(
        (&bad[0]["sound"], &file["health"], &file["expected_sha256"]),
        (&false.into(), &"corrupt".into(), &digest.as_str().into())
    );
    assert!(place.fails("a", 1, &["verify", "best"]).contains("pull --force"));
    place.ok("a", &["pull", "zen-nano", "--force"]);
    place.ok("a", &["verify", "best"]);

    let forgotten = place.json("a", &["rm", "best"]);
    assert_eq!(keys(&forgotten), ["alias_of", "freed_bytes", "name", "path"]);
    assert_eq!((&forgotten["freed_bytes"], forgotten["alias_of"].is_string()), (&0.into(), true));
    let removed = place.ok("a", &["rm", "zen-nano"]);
    assert!(removed.starts_with("removed ") && removed.contains("freed 6.3 MB"), "{removed}");
    assert_eq!((blobs(&place.path("a")), place.ok("a", &["list", "--json"])), (0, "[]\n".to_owned()));
    let collected = place.json("a", &["gc"]);
    assert_eq!(keys(&collected), ["dry_run", "freed_bytes", "paths", "young"]);
    assert_eq!(collected["paths"], Value::Array(vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_needs_is_collected_once_it_is_old() {
    let place = Place::new().await;
    place.ok("a", &["pull", "zen-nano"]);
    let orphan = |name: &str, bytes: usize, hours: u64| {
        let path = place.path("a").join(name);
        std::fs::write(&path, vec![1; bytes]).unwrap();
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3_600);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        path.canonicalize().unwrap()
    };
    let blob = orphan(&format!("blobs/sha256-{}", "a".repeat(64)), 1_000, 2);
    let part = orphan("partial/left.part", 500, 30);
    let young = orphan("partial/new.part", 7, 0);
    for dry_run in [true, false] {
        let args = if dry_run { &["gc", "--dry-run"][..] } else { &["gc"] };
        let collected = place.json("a", args);
        let paths: Vec<_> =
            collected["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
        assert_eq!(paths, [blob.to_str().unwrap(), part.to_str().unwrap()], "{collected}");
        // What they took on the disk, which has blocks.
        assert!(collected["freed_bytes"].as_u64() >= Some(1_500) && collected["young"] == 1, "{collected}");
        assert_eq!(collected["dry_run"], dry_run);
        assert_eq!((blob.exists(), part.exists(), young.exists()), (dry_run, dry_run, true));
    }
    assert!(place.ok("a", &["gc"]).contains("0 B"), "there is nothing more");
    place.ok("a", &["verify"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_in_json_has_an_object_a_line() {
    let place = Place::new().await;
    let out = place.ok("a", &["pull", "zen-nano", "--json"]);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, progress) = lines.split_last().unwrap();
    assert!(!progress.is_empty());
    let step_keys = [
        "bytes_done",
        "bytes_fetched",
        "bytes_per_s",
        "bytes_total",
        "eta_s",
        "event",
        "files",
        "joined",
        "model",
        "phase",
    ];
    for line in progress {
        assert_eq!((keys(line), &line["event"]), (step_keys.to_vec(), &"progress".into()));
        assert!(line["bytes_done"].as_u64() <= line["bytes_total"].as_u64(), "{line}");
        for file in line["files"].as_array().unwrap() {
            assert_eq!(keys(file), ["bytes_done", "bytes_total", "name", "phase"]);
        }
    }
    assert_eq!((keys(last), &last["event"]), (vec!["event", "model"], &"done".into()));
    assert_eq!(last["model"], place.json("a", &["list"])[0]);

    let failed = place.run("a", &["pull", "nobody/nothing", "--json"]);
    assert_eq!(failed.status.code(), Some(1));
    let last: Value = serde_json::from_str(text(&failed.stdout).lines().last().unwrap()).unwrap();
    assert_eq!((keys(&last), &last["event"]), (vec!["error", "event"], &"failed".into()));
    assert!(text(&failed.stderr).starts_with("error: "), "{}", text(&failed.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typos_and_choices_say_what_there_is() {
    let place = Place::new().await;
    let part = |n| Content::made(n, 1 << 16);
    place.hub.put("Owner/Many-GGUF", &[("m-Q5_K_M.gguf", part(1)), ("m-Q6_K.gguf", part(2))]);
    let choice = place.fails("a", 1, &["pull", "owner/many-gguf", "--quant", "Q4_0"]);
    assert!(choice.contains("Q4_0") && choice.contains("Q5_K_M") && choice.contains("Q6_K"), "{choice}");
    let name = place.fails("a", 1, &["pull", "zen-nanno"]);
    assert!(name.contains("zen-nanno") && name.contains("owner/model"), "{name}");
    let path = place.fails("a", 1, &["pull", "./none.gguf"]);
    assert!(path.contains("none.gguf") && path.contains("No such file"), "{path}");
    assert!(place.fails("a", 1, &["pull", "Qwen/Qwen3-0.6B-GGUF", "--include", "["]).contains('['));
    assert!(place.fails("a", 1, &["cp", "zen-nanno", "x"]).contains("zen-nanno"));
    assert!(place.fails("a", 1, &["rm", "zen-nano"]).contains("zen-nano"));
    assert!(place.fails("a", 1, &["verify", "nobody"]).contains("nobody"));
    assert!(place.fails("a", 1, &["export", "nobody", "x.tar"]).contains("nobody"));
    assert!(!place.path("x.tar").exists() && !place.path("x.tar.part").exists());
    assert!(place.fails("a", 1, &["show", "zen-nano"]).contains("pull"));
    assert_eq!(place.ok("a", &["list", "--json"]), "[]\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_is_interrupted_or_killed_goes_on() {
    const BYTES: u64 = 48 << 20;
    let place = Place::new().await;
    place.hub.put(
        "Owner/Large",
        &[
            ("model.safetensors", Content::made(7, BYTES)),
            ("config.json", Content::given("{\"model_type\":\"qwen3\"}")),
        ],
    );
    for signal in ["-INT", "-KILL"] {
        place.hub.cdn.fault(|faults| faults.rate = Some(4 << 20));
        let mut command = place.program("a", &["pull", "owner/large", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let before = place.hub.cdn.served();
        loop {
            let mut line = String::new();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
            let line: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["event"], "progress");
            if line["bytes_fetched"].as_u64().unwrap() > 6 << 20 {
                break;
            }
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let (mut rest, mut stderr) = (String::new(), String::new());
        lines.read_to_string(&mut rest).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let code = child.wait().unwrap().code();
        if signal == "-INT" {
            assert_eq!((code, stderr.as_str()), (Some(130), "error: interrupted\n"));
            assert!(rest.lines().last().unwrap().contains(r#""event":"failed""#), "{rest}");
        }
        assert!(place.hub.cdn.served() - before < BYTES, "it was cut");
        assert_eq!(place.ok("a", &["list", "--json"]), "[]\n", "nothing is visible");
        let doctor = place.json("a", &["doctor"]);
        assert_eq!((&doctor["sound"], &doctor["findings"][0]["what"]), (&true.into(), &"pull".into()));
    }
    place.hub.cdn.fault(|faults| faults.rate = None);
    let out = place.ok("a", &["pull", "owner/large", "--json"]);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fetched = lines.iter().filter_map(|line| line["bytes_fetched"].as_u64()).max().unwrap();
    assert!(fetched < BYTES - (8 << 20), "{fetched} bytes were fetched again");
    place.ok("a", &["verify"]);
    // Each cut may cost what a stream had not written yet: a mebibyte for each of four, and what was in buffers.
    let served = place.hub.cdn.served();
    assert!(served < BYTES + 2 * (16 << 20), "{served} bytes served for {BYTES}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_and_serve_pull_what_is_missing_when_they_may() {
    let place = Place::new().await;
    for command in [&["run", "zen-nano", "hello"][..], &["serve", "--model", "zen-nano"]] {
        let told = place.fails("a", 1, command);
        assert!(
            told.contains("`hanzo-engine pull zen-nano`") && told.contains(NANO) && told.contains("--yes"),
            "{told}"
        );
    }
    // A source that has no such model is told before anything listens.
    let gone = place.run("a", &["serve", "--model", "zen-eco", "--yes"]);
    let stderr = text(&gone.stderr);
    assert_eq!((gone.status.code(), gone.stdout.is_empty()), (Some(1), true), "{stderr}");
    assert!(stderr.lines().last().unwrap().contains("Qwen/Qwen3-4B-GGUF"), "{stderr}");
    let told = place.fails("a", 1, &["embed", "-m", "zen-nano", "hello"]);
    assert!(told.contains("`hanzo-engine pull zen-nano`") && !told.contains("--yes"), "{told}");
    assert_eq!(place.hub.cdn.served(), 0);

    let answer = place.ok("a", &["run", "zen-nano", QUESTION, "--temperature", "0", "--yes"]);
    assert!(answer.contains("Paris"), "{answer}");
    let served = place.hub.cdn.served();
    place.ok("a", &["run", "zen-nano:Q8_0", QUESTION, "--temperature", "0"]);
    assert_eq!(place.hub.cdn.served(), served, "it is here");

    // A daemon that pulls first, and then keeps the store for those who ask it.
    let free = ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", "2"];
    let args = [&["serve", "--model", "qwen3-0.6b:Q8_0", "--yes"], &free[..]].concat();
    let mut command = place.program("b", &args);
    let mut child = Ended(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
    let mut printed = String::new();
    while !printed.contains("curl ") {
        assert_ne!(stdout.read_line(&mut printed).unwrap(), 0, "it ended: {printed}");
    }
    let grpc = printed.lines().find(|line| line.trim_start().starts_with("gRPC")).unwrap();
    let address = grpc.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let ask = |args: &[&str]| {
        let output = place.program("c", args).env("HANZO_ENGINE_ADDRESS", address).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let locked = place.fails("b", 1, &["pull", "zen-nano"]);
    assert!(locked.contains("in use") && locked.contains("--engine"), "{locked}");
    assert!(place.fails("b", 1, &["doctor"]).contains("in use"));
    assert!(ask(&["pull", "zen-nano"]).contains("is here already"));
    place.hub.put(
        "Owner/Other",
        &[("model.safetensors", Content::made(9, 1 << 20)), ("config.json", Content::given("{}"))],
    );
    assert!(ask(&["pull", "owner/other"]).starts_with("pulled Owner/Other"));
    assert!(ask(&["cp", "owner/other", "other"]).starts_with("other is"));
    assert!(ask(&["verify", "other"]).contains("sound"));
    assert!(ask(&["du"]).contains("Owner/Other"));
    assert!(ask(&["export", "other", "other.tar"]).starts_with("exported"));
    assert!(ask(&["rm", "other"]).contains("alias"));
    assert!(ask(&["rm", "owner/other"]).contains("freed"));
    assert!(ask(&["import", "other.tar"]).starts_with("imported Owner/Other"));
    assert!(ask(&["gc", "--dry-run"]).contains("would free"));

    // Ctrl-C ends the pull in the daemon too, whatever of the reference the flags said.
    let quants = [("m-Q4_K_M.gguf", Content::made(4, 64 << 20)), ("m-Q8_0.gguf", Content::made(5, 64 << 20))];
    place.hub.put("Owner/Slow-GGUF", &quants);
    place.hub.cdn.fault(|faults| faults.rate = Some(2 << 20));
    let slow = ["pull", "owner/slow-gguf", "--quant", "Q8_0", "--json"];
    let mut command = place.program("c", &slow);
    let command = command.env("HANZO_ENGINE_ADDRESS", address).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut slow = Ended(command.spawn().unwrap());
    let mut lines = BufReader::new(slow.0.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(r#""phase":"downloading""#) {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
    }
    let busy = place.program("c", &["gc"]).env("HANZO_ENGINE_ADDRESS", address).output().unwrap();
    assert!(text(&busy.stderr).contains("1 pulls are running"), "{}", text(&busy.stderr));
    assert!(Command::new("kill").args(["-INT", &slow.0.id().to_string()]).status().unwrap().success());
    assert_eq!(slow.0.wait().unwrap().code(), Some(130));
    // The daemon answers the command only when it has been told; its task ends in its own time.
    let began = std::time::Instant::now();
    while !place.program("c", &["gc"]).env("HANZO_ENGINE_ADDRESS", address).output().unwrap().status.success()
    {
        assert!(began.elapsed().as_secs() < 60, "the pull goes on");
    }
    assert!(!place.path("c").exists(), "nobody opened another store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_brings_a_lost_record_back() {
    let place = Place::new().await;
    let nothing = place.json("a", &["doctor"]);
    assert_eq!((&nothing["sound"], &nothing["repaired"]), (&true.into(), &Value::Null));
    assert!(!place.path("a").exists(), "it changes nothing");
    place.ok("a", &["pull", "zen-nano"]);
    assert!(place.ok("a", &["doctor"]).contains("nothing is wrong"));
    std::fs::remove_dir_all(place.path("a/db")).unwrap();
    let lost = place.run("a", &["doctor", "--json"]);
    assert_eq!(lost.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&lost.stdout).unwrap();
    assert_eq!(
        keys(&report),
        ["dir", "findings", "free_bytes", "hubs", "machine", "models", "ports", "repaired", "sound"]
    );
    assert_eq!(report["findings"][0]["what"], "database", "{report}");
    let repaired = place.json("a", &["doctor", "--repair"]);
    let repair_keys = ["aliases", "database_moved_to", "dropped", "relinked", "restored", "skipped", "why"];
    assert_eq!((keys(&repaired["repaired"]), &repaired["sound"]), (repair_keys.to_vec(), &true.into()));
    assert_eq!(repaired["models"], 1);
    place.ok("a", &["verify", "zen-nano"]);
}

#[test]
fn completions_for_bash_parse_and_name_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let program = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hanzo-engine")).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let script = program(&["completions", "bash"]);
    let file = dir.path().join("completions.bash");
    std::fs::write(&file, &script).unwrap();
    let parsed = Command::new("bash").arg("-n").arg(&file).output().unwrap();
    assert!(parsed.status.success(), "{}", text(&parsed.stderr));
    // As the shell would ask when a user has typed `hanzo-engine pu` and then Tab.
    let ask = r#"source "$1"; function=$(complete -p hanzo-engine | sed 's/.*-F \([^ ]*\) .*/\1/')
        COMP_WORDS=(hanzo-engine pu); COMP_CWORD=1; "$function" hanzo-engine pu hanzo-engine
        printf '%s\n' "${COMPREPLY[@]}""#;
    let asked = Command::new("bash").args(["-c", ask, "bash"]).arg(&file).output().unwrap();
    assert_eq!(text(&asked.stdout).trim(), "pull", "{}", text(&asked.stderr));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = program(&["completions", shell]);
        for command in ["pull", "export", "doctor"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}
