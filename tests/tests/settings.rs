//! The settings that are shipped, `systemd/engine.toml` and `systemd/gateway.toml`, and their tables in
//! `docs/reference/configuration.md`: written from the types' own documentation and defaults, and read again with the types. With
//! `HANZO_ENGINE_WRITE_SETTINGS=1` this test writes them.

#![recursion_limit = "256"]

use std::{fmt::Write as _, fs, path::Path};

use hanzo_engine_daemon::config::{Config as Daemon, ModelConfig, OverrideConfig};
use hanzo_engine_gateway::Config as Gateway;
use hanzo_engine_process::settings::{DeclaredSettings as _, SettingSpec};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const COLUMNS: usize = 120;

/// A table of settings: where it is documented, and what holds without it.
struct Section {
    /// As a file writes it; empty: the top.
    header: &'static str,
    about: &'static str,
    settings: Vec<SettingSpec>,
    defaults: Value,
    /// What the shipped file says instead of the defaults.
    said: Value,
    /// Its keys as variables of the environment; none where they have none.
    environment: Option<&'static str>,
}

fn values<T: serde::Serialize>(of: &T) -> Value {
    serde_json::to_value(of).expect("settings are plain")
}

fn daemon() -> Vec<Section> {
    let all = values(&Daemon::default());
    let section = |header: &'static str, about, environment| Section {
        header,
        about,
        settings: below(header, Daemon::settings()),
        defaults: all[header].clone(),
        said: json!({}),
        environment: Some(environment),
    };
    let mut store = section("store", "The record of models.", "HANZO_ENGINE_STORE_");
    store.said = json!({"dir": "/var/lib/hanzo-engine/models"});
    let model = |header, about, settings, defaults, said| Section {
        header,
        about,
        settings,
        defaults,
        said,
        environment: None,
    };
    let mut of_models = values(&ModelConfig::default());
    of_models.as_object_mut().expect("a map").remove("overrides");
    let about = "How models are run, and the memory they share.";
    let mut engine = section("engine", about, "HANZO_ENGINE_ENGINE_");
    engine.said = json!({"keep_alive": "5m"});
    vec![
        section("server", "Where it listens, whom it answers, and how it ends.", "HANZO_ENGINE_SERVER_"),
        store,
        engine,
        section("log", "What is logged, to standard error.", "HANZO_ENGINE_LOG_"),
        section("traces", "Where traces of requests go.", "HANZO_ENGINE_TRACES_"),
        model(
            "[models]",
            "What is loaded at the start, one table for each model. The service may not read /home.",
            below("models", Daemon::settings()),
            of_models,
            json!({"source": "hanzo-demo"}),
        ),
        model(
            "models.overrides",
            "What goes over the files of the model above.",
            OverrideConfig::settings(),
            values(&OverrideConfig::default()),
            json!({}),
        ),
    ]
}

/// The settings directly in a section.
fn below(section: &str, settings: Vec<SettingSpec>) -> Vec<SettingSpec> {
    let is_there = |setting: &SettingSpec| setting.key.rsplit_once('.').is_some_and(|(of, _)| of == section);
    settings.into_iter().filter(is_there).collect()
}

fn gateway() -> Vec<Section> {
    vec![Section {
        header: "",
        about: "",
        settings: Gateway::settings(),
        defaults: values(&Gateway::default()),
        said: json!({}),
        environment: Some("HANZO_ENGINE_GATEWAY_"),
    }]
}

/// The key without its section.
fn name(setting: &SettingSpec) -> &str {
    setting.key.rsplit('.').next().unwrap_or(setting.key)
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn toml(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let pairs: Vec<_> = map.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        value => value.to_string(),
    }
}

/// Comments of so many columns.
fn comment(text: &str, out: &mut String) {
    let mut line = "#".to_owned();
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > COLUMNS {
            let _ = writeln!(out, "{line}");
            line = "#".to_owned();
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(out, "{line}");
}

/// The shipped file. What is commented out is an example.
fn file(head: &str, sections: &[Section]) -> String {
    let mut out = String::new();
    comment(head, &mut out);
    for section in sections {
        if !section.header.is_empty() {
            out.push('\n');
            comment(section.about, &mut out);
            let hidden = if section.header == "models.overrides" { "# " } else { "" };
            let _ = writeln!(out, "{hidden}[{}]", section.header);
        }
        for setting in &section.settings {
            out.push('\n');
            comment(setting.doc, &mut out);
            let key = name(setting);
            let default = &section.defaults[key];
            let _ = match section.said.get(key) {
                Some(said) => writeln!(out, "{key} = {}", toml(said)),
                None if is_unset(default) => {
                    let example =
                        setting.example.as_ref().unwrap_or_else(|| panic!("{key} needs an example"));
                    writeln!(out, "# {key} = {}", toml(example))
                }
                None => writeln!(out, "{key} = {}", toml(default)),
            };
        }
    }
    out
}

fn table(sections: &[Section]) -> String {
    let mut out = String::new();
    for section in sections {
        if !section.header.is_empty() {
            let _ = writeln!(out, "\n### `[{}]`\n\n{}", section.header, section.about);
        }
        if let Some(prefix) = section.environment {
            let _ = writeln!(out, "\nIn the environment: `{prefix}{{KEY}}`, in capitals.");
        }
        out.push_str("\n| key | default | what it is |\n|---|---|---|\n");
        for setting in &section.settings {
            let (key, doc) = (name(setting), setting.doc.replace('|', "\\|"));
            let default = &section.defaults[key];
            let default = if is_unset(default) { "–".to_owned() } else { format!("`{}`", toml(default)) };
            let _ = writeln!(out, "| `{key}` | {default} | {doc} |");
        }
    }
    out
}

const HEAD: &str = "A key that is not known is an error at the start, as is a value out of its range. What stands here are the \
                    defaults; what is commented out has none, and shows an example. Settings that the program reads again at \
                    SIGHUP are named in docs/reference/configuration.md.";

fn shipped() -> [(&'static str, String); 2] {
    let head = |what: &str| format!("Settings of {what} {HEAD}");
    [
        (
            "systemd/engine.toml",
            file(&head("engined, installed as /etc/hanzo-engine/engine.toml."), &daemon()),
        ),
        (
            "systemd/gateway.toml",
            file(&head("engine-gateway, installed as /etc/hanzo-engine/gateway.toml."), &gateway()),
        ),
    ]
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// `text` between the lines that name `mark`.
fn between(document: &str, mark: &str, text: &str) -> String {
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let (before, rest) = document.split_once(&open).unwrap_or_else(|| panic!("no {open}"));
    let (_, after) = rest.split_once(&close).unwrap_or_else(|| panic!("no {close}"));
    format!("{before}{open}{text}\n{close}{after}")
}

#[test]
fn what_is_shipped_is_what_the_types_say() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    let document = "docs/reference/configuration.md";
    let tables = between(&read(document), "engined", &table(&daemon()));
    let tables = between(&tables, "engine-gateway", &table(&gateway()));
    let mut wanted = shipped().to_vec();
    wanted.push((document, tables));
    for (path, text) in wanted {
        if std::env::var_os("HANZO_ENGINE_WRITE_SETTINGS").is_some() {
            fs::write(root().join(path), &text).expect("it is written");
        }
        let there = read(path);
        let line = there.lines().zip(text.lines()).find(|(there, wanted)| there != wanted);
        assert!(
            there == text,
            "{path} is not what the settings' documentation and defaults say (first: {line:?}); \
             HANZO_ENGINE_WRITE_SETTINGS=1 cargo test -p hanzo-engine-tests --test settings writes it"
        );
    }
}

/// Everything that the file says, and what it has in comments, as the type reads it.
fn read_with<T: DeserializeOwned + serde::Serialize>(path: &str, all: bool) -> (T, Value) {
    let text = fs::read_to_string(root().join(path)).expect("it is shipped");
    let is_setting = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        line.starts_with('[')
            || (line.contains(" = ") && key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    };
    let lines = text.lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if all && is_setting(setting) => setting,
        _ => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let tree: toml::Value = toml::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let tree = serde_json::to_value(tree).expect("TOML is plain");
    (serde_json::from_value(tree.clone()).unwrap_or_else(|error| panic!("{path}: {error}")), tree)
}

/// Full keys; of a list of tables those of its first.
fn keys(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) if !at.ends_with(".adapters") => {
            let at = if at.is_empty() { String::new() } else { format!("{at}.") };
            map.iter().for_each(|(key, value)| keys(&format!("{at}{key}"), value, found));
        }
        Value::Array(list) if list.first().is_some_and(Value::is_object) => keys(at, &list[0], found),
        _ => found.push(at.to_owned()),
    }
}

fn sorted_keys(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    keys("", value, &mut found);
    found.sort();
    found
}

#[test]
fn every_key_is_there_with_its_default_and_nothing_else() {
    let models = vec![ModelConfig { source: "hanzo-demo".to_owned(), ..ModelConfig::default() }];
    let mut wanted = Daemon { models, ..Daemon::default() };
    wanted.store.dir = Some("/var/lib/hanzo-engine/models".into());
    let (said, _) = read_with::<Daemon>("systemd/engine.toml", false);
    assert_eq!(said, wanted);
    assert_eq!(
        Daemon::load(Some(&root().join("systemd/engine.toml")), figment::Figment::new()).expect("it loads"),
        wanted
    );
    let (_, all) = read_with::<Daemon>("systemd/engine.toml", true);
    assert_eq!(sorted_keys(&all), sorted_keys(&values(&wanted)));

    let (said, _) = read_with::<Gateway>("systemd/gateway.toml", false);
    assert_eq!(said, Gateway::default());
    let (_, all) = read_with::<Gateway>("systemd/gateway.toml", true);
    assert_eq!(sorted_keys(&all), sorted_keys(&values(&Gateway::default())));
}

#[test]
fn a_number_says_its_unit() {
    let units = [
        ("_bytes", "ytes"),
        ("_ms", "illiseconds"),
        ("_s", "econds"),
        ("_port", "ort"),
        ("tokens_max", "oken"),
    ];
    let of_name = |key: &str| {
        units.iter().find(|(end, _)| key.trim_end_matches("_max").ends_with(end) || key.ends_with(end))
    };
    for section in daemon().into_iter().chain(gateway()) {
        for setting in &section.settings {
            let (key, doc) = (name(setting), setting.doc);
            assert!(!doc.is_empty(), "{key} is not documented");
            if let Some((_, unit)) = of_name(key) {
                // What goes over a setting has its unit.
                assert!(doc.contains(unit) || doc.contains("Over `"), "{key}: {doc}: no unit");
            }
        }
    }
}
