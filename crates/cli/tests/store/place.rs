//! A hub on a loopback port, stores of models, and the program between them.

use super::content::Content;
use super::hub::Hub;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const DEMO: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
/// The repository that the alias zen-nano names.
pub(crate) const NANO: &str = "Qwen/Qwen3-0.6B-GGUF";
pub(crate) const QUESTION: &str = "What is the capital of France?";

/// A hub, and stores of models.
pub(crate) struct Place {
    pub(crate) hub: Arc<Hub>,
    pub(crate) dir: TempDir,
}

impl Place {
    /// The hub has the built-in model where zen-nano is, and a repository too small for words.
    pub(crate) async fn new() -> Self {
        let hub = Hub::start().await;
        let demo = Content::given(std::fs::read(DEMO).unwrap());
        hub.put(NANO, &[("Qwen3-0.6B-Q8_0.gguf", demo), ("README.md", Content::given("# x"))]);
        Self { hub, dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with a store of its own, nobody's caches and tokens, and no daemon but one that is named.
    pub(crate) fn program(&self, store: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hanzo-engine"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let foreign = ["HANZO_", "HF_", "OLLAMA_"].iter().any(|prefix| text.starts_with(prefix));
            if foreign || text.to_ascii_lowercase().ends_with("_proxy") {
                command.env_remove(&name);
            }
        }
        command
            .env("HANZO_MODELS_DIR", self.path(store))
            .env("HANZO_ENGINE_ADDRESS", "none")
            .env("HF_ENDPOINT", self.hub.url())
            .env("HF_HOME", self.path("no-cache"))
            .env("OLLAMA_MODELS", self.path("no-ollama"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .args(args);
        command
    }

    pub(crate) fn run(&self, store: &str, args: &[&str]) -> Output {
        self.program(store, args).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn ok(&self, store: &str, args: &[&str]) -> String {
        let output = self.run(store, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    #[track_caller]
    pub(crate) fn json(&self, store: &str, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(store, &[args, &["--json"]].concat())).unwrap()
    }

    /// Expects `code`, and one line of error at the end of stderr.
    #[track_caller]
    pub(crate) fn fails(&self, store: &str, code: i32, args: &[&str]) -> String {
        let output = self.run(store, args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("error: "), "{args:?}: {stderr}");
        last
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
pub(crate) fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[track_caller]
pub(crate) fn readable(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line:?}");
    }
}

pub(crate) fn blobs(store: &Path) -> usize {
    std::fs::read_dir(store.join("blobs")).unwrap().count()
}

/// A process that does not outlive its test.
pub(crate) struct Ended(pub(crate) std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
