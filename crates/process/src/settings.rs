//! Settings of any program: their declaration, their flags, suggestions for wrong keys, differences, and printing.
//! Secrets arrive here hidden, because they serialise as `***`.

use std::{
    fmt::{Display, Write as _},
    path::Path,
};

use figment::{
    Figment,
    error::Kind,
    providers::{Format as _, Toml, Yaml},
};
use serde_json::{Map, Value};

mod declare;
mod flags;
mod programs;
mod values;

pub use declare::{
    Bounds, Declaration, DeclaredSettings, SAME, SettingSpec, SharedSetting, out_of_bounds, value,
};
pub use flags::{Flag, FlagLayer, FlagType, Program, bytes, parser, text};
pub use programs::{EngineDaemon, EngineGateway, ModelCommand, Serve};
pub use values::{LogFormat, parse_bytes, parse_host};

/// Minimum similarity for a suggestion.
const ALIKE_MIN: f64 = 0.7;

/// Settings of a file: YAML if its name ends in `.yaml` or `.yml`, else TOML.
pub fn file(path: &Path) -> Figment {
    let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    if is_yaml { Figment::from(Yaml::file_exact(path)) } else { Figment::from(Toml::file_exact(path)) }
}

/// Error text with the key and the reason, without figment's description of the source. For an unknown key it
/// suggests a similar one of `T`.
pub fn reason<T: DeclaredSettings>(error: &figment::Error) -> String {
    let path = error.path.join(".");
    match &error.kind {
        Kind::UnknownField(field, known) => {
            let everywhere: Vec<_> = T::settings().iter().map(|setting| setting.key).collect();
            unknown_key(&path, field, known, &everywhere)
        }
        kind if path.is_empty() => kind.to_string(),
        kind => format!("{path}: {kind}"),
    }
}

fn joined(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

/// Message for an unknown key `field`. `at` is its section ("" is the top level) or its full key, because file
/// readers state either. The message lists the keys `here`, and suggests the most similar key of those and of
/// `everywhere`, which are full keys.
fn unknown_key(at: &str, field: &str, here: &[&str], everywhere: &[&str]) -> String {
    let is_full = at == field || at.strip_suffix(field).is_some_and(|section| section.ends_with('.'));
    let path = if is_full { at.to_owned() } else { joined(at, field) };
    let known = here.join(", ");
    match meant(&path, field, here, everywhere) {
        Some(meant) => format!("{path}: unknown key; did you mean {meant}? Known here: {known}"),
        None => format!("{path}: unknown key; known here: {known}"),
    }
}

fn meant(path: &str, field: &str, here: &[&str], everywhere: &[&str]) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    if let Some(key) = everywhere.iter().find(|key| last(key) == field) {
        return Some((*key).to_owned());
    }
    let alike = |a: &str, b: &str| strsim::normalized_damerau_levenshtein(a, b);
    let near = here.iter().map(|name| (alike(field, name), (*name).to_owned()));
    let far =
        everywhere.iter().map(|key| (alike(path, key).max(alike(field, &last(key))), (*key).to_owned()));
    let best = |a: (f64, String), b: (f64, String)| if b.0 > a.0 { b } else { a };
    let enough = |(alike, _): &(f64, String)| *alike >= ALIKE_MIN;
    let found = near.reduce(best).filter(enough).or_else(|| far.reduce(best).filter(enough));
    found.map(|(_, name)| name)
}

/// Full keys of the values that differ.
pub fn differences(old: &Value, new: &Value) -> Vec<String> {
    fn walk(at: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => {
                let others = new.keys().filter(|key| !old.contains_key(*key));
                for key in old.keys().chain(others) {
                    let value = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                    walk(&joined(at, key), &value(old), &value(new), found);
                }
            }
            _ if old != new => found.push(at.to_owned()),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk("", old, new, &mut found);
    found
}

/// Result of reloading settings, as full keys.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SettingsChange {
    /// Keys that took effect.
    pub taken: Vec<String>,
    /// Keys that take effect after a restart.
    pub at_restart: Vec<String>,
}

impl SettingsChange {
    /// Result of a reload: settings were `old`, were read as `read`, and are `now` in effect.
    pub fn between(old: &Value, now: &Value, read: &Value) -> SettingsChange {
        SettingsChange { taken: differences(old, now), at_restart: differences(now, read) }
    }

    /// Logs the result of a reload, or its error.
    pub fn log(outcome: Result<SettingsChange, impl Display>) {
        match outcome {
            Ok(SettingsChange { taken, at_restart }) => {
                let said = if taken.is_empty() { "nothing".to_owned() } else { taken.join(" ") };
                tracing::info!(taken = said, "settings were read again; files of keys and certificates too");
                if !at_restart.is_empty() {
                    tracing::warn!(keys = at_restart.join(" "), "these settings are taken at a restart");
                }
            }
            Err(error) => {
                tracing::error!(%error, "settings could not be read again; they stay what they were");
            }
        }
    }
}

/// Formats the settings as TOML. Unset ones become comments.
pub fn toml(settings: &Value) -> String {
    let mut text = String::new();
    if let Value::Object(map) = settings {
        table("", map, &mut text);
    }
    text.trim_start().to_owned()
}

fn table(at: &str, map: &Map<String, Value>, text: &mut String) {
    let is_table = |value: &Value| matches!(value, Value::Object(map) if !map.is_empty());
    let is_tables = |value: &Value| matches!(value, Value::Array(list) if list.iter().any(Value::is_object));
    for (key, value) in map.iter().filter(|(_, value)| !is_table(value) && !is_tables(value)) {
        let key = bare(key);
        // Writing to memory cannot fail.
        let _ = match value {
            Value::Null => writeln!(text, "# {key} is not set"),
            value => writeln!(text, "{key} = {}", inline(value)),
        };
    }
    for (key, value) in map {
        let at = joined(at, &bare(key));
        match value {
            Value::Object(map) if !map.is_empty() => {
                let _ = writeln!(text, "\n[{at}]");
                table(&at, map, text);
            }
            Value::Array(list) if is_tables(value) => {
                for map in list.iter().filter_map(Value::as_object) {
                    let _ = writeln!(text, "\n[[{at}]]");
                    table(&at, map, text);
                }
            }
            _ => {}
        }
    }
}

fn bare(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(plain) { key.to_owned() } else { Value::from(key).to_string() }
}

/// Formats a value within a line. JSON strings are valid TOML strings; lists and numbers are the same.
fn inline(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<_> =
                map.iter().map(|(key, value)| format!("{} = {}", bare(key), inline(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{differences, toml, unknown_key};

    #[test]
    fn what_was_meant_is_found_here_and_elsewhere() {
        let all = ["server.grpc_port", "server.host", "log.level", "models.source"];
        let meant = |at: &str, field: &str, here: &[&str]| {
            let said = unknown_key(at, field, here, &all);
            said.split("did you mean ").nth(1).and_then(|rest| rest.split('?').next()).map(str::to_owned)
        };
        let server = ["grpc_port", "host"];
        assert_eq!(meant("server", "grpc_prot", &server).as_deref(), Some("grpc_port"));
        assert_eq!(meant("", "grpc_port", &["server", "log"]).as_deref(), Some("server.grpc_port"));
        assert_eq!(meant("server", "level", &server).as_deref(), Some("log.level"));
        assert_eq!(meant("", "sever", &["server", "log"]).as_deref(), Some("server"));
        assert_eq!(meant("server", "colour", &server), None);
        let said = unknown_key("server", "colour", &server, &all);
        assert_eq!(said, "server.colour: unknown key; known here: grpc_port, host");
        assert_eq!(unknown_key("server.colour", "colour", &server, &all), said);
        assert_eq!(unknown_key("colour", "colour", &server, &all), said.trim_start_matches("server."));
    }

    #[test]
    fn what_is_different_is_named() {
        let old = json!({"a": 1, "b": {"c": null, "d": [1]}, "e": true});
        assert_eq!(differences(&old, &old), [""; 0]);
        let new = json!({"a": 1, "b": {"c": 2, "d": [1, 2]}, "f": true});
        assert_eq!(differences(&old, &new), ["b.c", "b.d", "e", "f"]);
    }

    #[test]
    fn settings_are_printed_as_toml() {
        let settings = json!({
            "host": "::", "unset": null, "list": ["a\"b", "c"], "none": {},
            "models": [{"source": "m", "more": {"x": 1.5}}, {"source": "n"}],
            "server": {"port": 1, "on": true},
        });
        let expected = "host = \"::\"\n# unset is not set\nlist = [\"a\\\"b\", \"c\"]\nnone = {}\n\n[[models]]\nsource = \"m\"\n\n\
                        [models.more]\nx = 1.5\n\n[[models]]\nsource = \"n\"\n\n[server]\nport = 1\non = true\n";
        assert_eq!(toml(&settings), expected);
    }
}
