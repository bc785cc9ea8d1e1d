//! Names, places and moments that a person gets wrong, or means ill: every one ends in one line that says what is
//! wrong, and leaves the store as it was.

use super::content::Content;
use super::place::{Ended, Place, text};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_none() {
    let place = Place::new().await;
    std::fs::create_dir_all(place.path("a-folder/inside")).unwrap();
    let long = "x".repeat(3_000);
    let names = [
        "",
        " ",
        "a/b/c",
        "..",
        "../..",
        "/",
        "./a-folder",
        "a-folder",
        "hf://",
        "hf://a",
        "hf://a/b/c",
        "ollama://",
        "https://",
        "https:///x.gguf",
        "ftp://host/x.gguf",
        "file://",
        "a/b@",
        "a/b:",
        "a/b@../x",
        "a/../b",
        "a//b",
        "a/b:../../x.gguf",
        "https://127.0.0.1:1/x.gguf#sha256=zz",
        "mlx://",
        "\u{1b}[2Jx",
        "a\nb",
        "é/ü",
        "🙂",
        "-",
        "~",
        "zen-nano:",
        "zen-nano:Q 8",
        "$(id)",
        &long,
        "no-such-model",
        "/no/such/file.gguf",
        "./none.gguf",
    ];
    for name in names {
        for command in [&["pull"][..], &["show"], &["rm"], &["verify"], &["cp", "--", "x"]] {
            // The name last, behind `--`: one may begin with a hyphen.
            let args: Vec<&str> = match command {
                ["cp", ..] => vec!["cp", "--", name, "x"],
                other => [other, &["--", name]].concat(),
            };
            // Every model is what an empty name of these means.
            if name.is_empty() && command == ["verify"] {
                continue;
            }
            let output = place.run("a", &args);
            let stderr = text(&output.stderr);
            assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {stderr}");
            let last = stderr.lines().rfind(|line| line.starts_with("error: "));
            assert!(last.is_some_and(|line| line.len() < 1_000), "{args:?}: {stderr}");
            assert!(!stderr.contains('\u{1b}') && !stderr.contains("panicked"), "{args:?}: {stderr}");
        }
    }
    assert_eq!(place.ok("a", &["list", "--json"]), "[]\n");
    assert_eq!(place.hub.cdn.served(), 0);
    for name in ["", "..", "a/b/c", "a b", "-x", "x\n", &long] {
        let output = place.run("a", &["cp", "--", "zen-nano", name]);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{name:?}: {}", text(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_no_directory() {
    let place = Place::new().await;
    std::fs::write(place.path("file"), "not a directory").unwrap();
    let commands: &[&[&str]] = &[
        &["list"],
        &["list", "--aliases"],
        &["pull", "zen-nano"],
        &["show", "zen-nano"],
        &["rm", "x"],
        &["cp", "zen-nano", "x"],
        &["gc"],
        &["verify"],
        &["du"],
        &["export", "x", "x.tar"],
        &["run", "zen-nano", "hi"],
    ];
    for command in commands {
        let told = place.fails("file", 1, command);
        assert!(told.contains("file"), "{command:?}: {told}");
    }
    let doctor = place.run("file", &["doctor", "--json"]);
    assert_eq!(doctor.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!((&report["sound"], &report["findings"][0]["what"]), (&false.into(), &"database".into()));
    assert!(place.fails("file", 1, &["doctor", "--repair"]).contains("file"));
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"not a directory");
    // Set to nothing, the variable is as if it were not: the store is at home.
    for command in [&["list"][..], &["doctor"], &["show", "zen-nano"]] {
        let mut command = place.program("unused", command);
        let output = command.env("HANZO_MODELS_DIR", "").env("HOME", place.path("home")).output().unwrap();
        let stderr = text(&output.stderr);
        assert!(output.status.success() || stderr.contains("pull it first"), "{stderr}");
    }
    assert!(place.path("home/.hanzo/models/db").is_dir());
}

/// Other programs' caches that are broken are as none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_that_cannot_be_read() {
    let place = Place::new().await;
    let digest = Content::given(std::fs::read(super::place::DEMO).unwrap()).sha256();
    let repo = place.path("hf/hub/models--Qwen--Qwen3-0.6B-GGUF");
    std::fs::create_dir_all(&repo).unwrap();
    // A folder where a file should be, a file where a folder should be, and links in a circle.
    std::fs::create_dir_all(repo.join("blobs").join(&digest)).unwrap();
    std::fs::write(repo.join("snapshots"), "x").unwrap();
    std::os::unix::fs::symlink("refs", repo.join("refs")).unwrap();
    let ollama = place.path("ollama");
    std::fs::create_dir_all(ollama.join("manifests/registry.ollama.ai/library/x/latest")).unwrap();
    std::fs::create_dir_all(ollama.join("blobs")).unwrap();
    let blob = ollama.join("blobs").join(format!("sha256-{digest}"));
    std::os::unix::fs::symlink(&blob, &blob).unwrap();
    std::fs::write(place.path("plain"), "x").unwrap();
    for (store, home, models) in [("a", "hf", "ollama"), ("b", "plain", "plain"), ("c", "gone", "gone")] {
        let mut command = place.program(store, &["pull", "zen-nano", "--quiet"]);
        command.env("HF_HOME", place.path(home)).env("OLLAMA_MODELS", place.path(models));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{home}: {}", text(&output.stderr));
        place.ok(store, &["verify"]);
        let mut offline = place.program("d", &["pull", "zen-nano"]);
        offline.env("HF_HOME", place.path(home)).env("HF_HUB_OFFLINE", "1");
        let told = text(&offline.output().unwrap().stderr);
        assert!(told.contains("is not on this machine, and HF_HUB_OFFLINE says"), "{told}");
    }
    // What is in the store is there without a network too.
    let mut offline = place.program("a", &["pull", "zen-nano"]);
    let output = offline.env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(text(&output.stdout).contains("is here already"), "{}", text(&output.stderr));
    for (name, value) in
        [("HF_TOKEN", "a b"), ("HF_ENDPOINT", "huggingface.co"), ("HF_HUB_OFFLINE", "perhaps")]
    {
        let output = place.program("a", &["pull", "zen-eco"]).env(name, value).output().unwrap();
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(&format!("error: {name}: ")), "{stderr}");
        // It does not matter to what asks nobody.
        assert!(place.program("a", &["list"]).env(name, value).status().unwrap().success());
    }
}

/// A disk that is full before, and one that fills up meanwhile, where the tests may mount one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full() {
    let place = Place::new().await;
    let at = place.path("small");
    std::fs::create_dir(&at).unwrap();
    let mut mount = Command::new("mount");
    let mount = mount.args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"]).arg(&at);
    if !mount.output().is_ok_and(|output| output.status.success()) {
        eprintln!("NOT CHECKED: a full disk under the program, because no tmpfs can be mounted here");
        return;
    }
    let _unmount = Unmount(at.clone());
    let large = [("model.safetensors", Content::made(7, 48 << 20)), ("config.json", Content::given("{}"))];
    place.hub.put("Owner/Large", &large);
    let told = place.fails("small", 1, &["pull", "owner/large"]);
    assert!(told.contains("hanzo-engine gc") && told.contains("free"), "{told}");
    assert_eq!(place.hub.cdn.served(), 0, "seen before anything is fetched");
    assert_eq!(place.ok("small", &["list", "--json"]), "[]\n");
    place.ok("small", &["pull", "zen-nano"]);
    // And then all but what the store's own record takes.
    let mut filler = std::fs::File::create(at.join("filler")).unwrap();
    while filler.write_all(&[1; 4_096]).is_ok() {}
    filler.set_len(filler.metadata().unwrap().len() - (4 << 20)).unwrap();
    let told = place.fails("small", 1, &["export", "zen-nano", "small/nano.tar"]);
    assert!(told.contains("nano.tar") && told.contains("No space left"), "{told}");
    assert!(!at.join("nano.tar").exists() && !at.join("nano.tar.part").exists());
    drop(filler);
    std::fs::remove_file(at.join("filler")).unwrap();
    place.ok("small", &["export", "zen-nano", "small/nano.tar"]);
    place.ok("small", &["verify"]);
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// While a pull without a daemon has the store, others are told so, and what they ask changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_in_use() {
    let place = Place::new().await;
    place.hub.cdn.fault(|faults| faults.rate = Some(1 << 20));
    let mut command = place.program("a", &["pull", "zen-nano", "--json"]);
    let mut child = Ended(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(r#""phase":"downloading""#) {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
    }
    for command in [
        &["list"][..],
        &["rm", "zen-nano"],
        &["gc"],
        &["doctor"],
        &["pull", "zen-nano"],
        &["doctor", "--repair"],
    ] {
        let told = place.fails("a", 1, command);
        assert!(told.contains("in use by another process"), "{command:?}: {told}");
    }
    place.hub.cdn.fault(|faults| faults.rate = None);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_ne!(line["event"], "failed", "{line}");
    }
    assert!(child.0.wait().unwrap().success());
    assert_eq!(place.json("a", &["list"]).as_array().unwrap().len(), 1);
}

/// A model that is removed while a daemon serves it goes on answering; an alias of it then says what is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_removed_while_it_is_served() {
    let place = Place::new().await;
    let free = ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--threads", "2"];
    let args = [&["serve", "--model", "zen-nano", "--yes"], &free[..]].concat();
    let mut command = place.program("a", &args);
    let mut child = Ended(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
    let mut printed = String::new();
    while !printed.contains("curl ") {
        assert_ne!(stdout.read_line(&mut printed).unwrap(), 0, "it ended: {printed}");
    }
    let grpc = printed.lines().find(|line| line.trim_start().starts_with("gRPC")).unwrap();
    let address = grpc.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let ask = |args: &[&str]| {
        let output = place.program("b", args).env("HANZO_ENGINE_ADDRESS", address).output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let name = "Qwen/Qwen3-0.6B:Q8_0";
    assert!(ask(&["cp", name, "best"]).0);
    let question = ["run", "best", super::place::QUESTION, "--temperature", "0"];
    assert!(ask(&question).1.contains("Paris"));
    let (done, told) = ask(&["rm", "zen-nano"]);
    assert!(done && told.starts_with("removed "), "{told}");
    let (_, loaded) = ask(&["ps", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&loaded).unwrap()[0]["name"], name);
    let (done, told) = ask(&question);
    assert!(!done && told.contains("which is not here any more"), "{told}");
    let (done, told) = ask(&["list", "--json"]);
    let listed: Value = serde_json::from_str(&told).unwrap();
    assert!(done && listed[0]["name"] == name && listed[0]["loaded"] == true, "{told}");
    assert!(ask(&["stop", name]).0);
    assert_eq!(ask(&["list", "--json"]), (true, "[]\n".to_owned()));
    assert!(ask(&["rm", "best"]).1.contains("alias"));
}
