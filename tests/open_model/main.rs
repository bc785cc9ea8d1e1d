//! Opens one model as a load does, all but its engine, and says what came of it and how much memory it took: a process of
//! its own, so that the memory is that of one model. Usage: `open_model PATH`; prints two lines, the most memory that
//! was ever resident in KiB, and `ok` or the error. `open_model PATH numbers` opens it once for each number in its `config.json`
//! and each of some large values in its place, and then says which took longest.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use hanzo_engine_runtime::{LoadError, OpenedModel};
use serde_json::{Value, json};

/// Values of a setting: bounds that the loader has, and what is beyond all of them.
const VALUES: [u64; 5] = [1024, 4096, 1 << 20, (1 << 31) - 1, u64::MAX];

fn main() {
    let path = std::env::args().nth(1).expect("usage: open_model PATH [numbers]");
    let path = Path::new(&path);
    let came = match std::env::args().nth(2) {
        None => open(path).map_or_else(|error| error.to_string(), |()| "ok".to_owned()),
        Some(_) => slowest(path),
    };
    let status =
        std::fs::read_to_string("/proc/self/status").expect("a system that says what a process takes");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its most memory");
    println!("{}", peak.trim_end_matches("kB").trim());
    println!("{came}");
}

fn open(path: &Path) -> Result<(), LoadError> {
    let opened = OpenedModel::open(path)?;
    let text = opened.text_model()?;
    opened.embedder(&text.tokenizer, 4096).map(drop)
}

/// Opens the model with each number of its settings changed, alone and beside its deepest network; the slowest of all.
fn slowest(path: &Path) -> String {
    let file = path.join("config.json");
    let config: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("settings")).expect("settings are JSON");
    let mut places = Vec::new();
    numbers(&config, String::new(), &mut places);
    let mut slowest = (Duration::ZERO, String::new());
    for place in &places {
        for (value, deep) in VALUES.into_iter().flat_map(|value| [(value, false), (value, true)]) {
            let mut changed = config.clone();
            if deep {
                for layers in places.iter().filter(|place| place.ends_with("/num_hidden_layers")) {
                    *changed.pointer_mut(layers).expect("a number") = json!(1024);
                }
            }
            *changed.pointer_mut(place).expect("a number") = json!(value);
            std::fs::write(&file, changed.to_string()).expect("written");
            let began = Instant::now();
            let came = open(path).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
            let took = began.elapsed();
            if took > slowest.0 {
                slowest = (took, format!("{place} = {value}, deep: {deep}: {came:.200}"));
            }
        }
    }
    format!("{} {} changed settings; {}", slowest.0.as_millis(), places.len(), slowest.1)
}

/// The places of all numbers, as JSON pointers.
fn numbers(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Number(_) => places.push(at),
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| numbers(value, format!("{at}/{name}"), places));
        }
        // Of a list, which may have an entry for each layer, the first says as much as the others.
        Value::Array(items) => {
            items.iter().take(1).for_each(|value| numbers(value, format!("{at}/0"), places));
        }
        _ => {}
    }
}
