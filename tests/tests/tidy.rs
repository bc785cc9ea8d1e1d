//! The rules of the house as tests: which crate may depend on which, what a file looks like, where `unsafe` may
//! stand, and that documents name only what exists. No model and no process is needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const FILE_LINES_MAX: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// Every Rust file of the workspace, as (path from the root, text).
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    walk(&root.join("crates"), &mut files);
    walk(&root.join("tests"), &mut files);
    walk(&root.join("fuzz"), &mut files);
    files.retain(|path| path.extension().is_some_and(|ext| ext == "rs"));
    assert!(files.len() > 40, "the walk found only {} files", files.len());
    let relative = |path: &Path| path.strip_prefix(&root).expect("under the root").display().to_string();
    files.iter().map(|path| (relative(path), fs::read_to_string(path).expect("UTF-8"))).collect()
}

fn report(what: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{what}:\n  {}", faults.join("\n  "));
}

/// Dependencies point one way. What a crate may name among ours, besides for its tests:
fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    [
        ("access", vec!["files", "proto"]),
        ("files", vec![]),
        ("telemetry", vec!["access", "process"]),
        ("process", vec![]),
        ("proto", vec![]),
        ("ops", vec![]),
        ("kernels", vec!["ops"]),
        ("kernels-cuda", vec!["ops"]),
        ("cuda-emulator", vec!["kernels-cuda"]),
        ("constraints", vec![]),
        ("formats", vec![]),
        ("media", vec![]),
        ("sound", vec![]),
        ("model-files", vec!["files", "ops"]),
        ("families", vec!["model-files", "ops"]),
        ("text", vec!["formats", "model-files"]),
        ("runtime", vec!["constraints", "families", "formats", "media", "model-files", "ops", "text"]),
        ("store", vec!["files"]),
        ("voice", vec!["kernels", "ops", "runtime"]),
        (
            "daemon",
            vec![
                "access",
                "constraints",
                "files",
                "formats",
                "kernels",
                "kernels-cuda",
                "media",
                "ops",
                "process",
                "proto",
                "runtime",
                "sound",
                "store",
                "voice",
                "telemetry",
            ],
        ),
        ("mcp", vec![]),
        ("gateway", vec!["access", "files", "mcp", "media", "process", "proto", "telemetry"]),
        ("cli", vec!["access", "daemon", "files", "gateway", "process", "proto"]),
    ]
    .into_iter()
    .map(|(name, may)| (name, may.into_iter().collect()))
    .collect()
}

#[test]
fn dependencies_point_one_way() {
    let allowed = allowed();
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates/").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(may) = allowed.get(name.as_str()) else {
            faults.push(format!("crates/{name} has no line in this test's table"));
            continue;
        };
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for line in dependencies.lines() {
            if let Some(rest) = line.trim().strip_prefix("hanzo-engine-") {
                let other = rest.split([' ', '.', '=']).next().unwrap_or_default();
                if !may.contains(other) {
                    faults.push(format!("crates/{name} depends on {other}"));
                }
            }
        }
    }
    report("dependency directions (DESIGN: gateway knows no models, runtime no network)", faults);
}

/// First names of all paths behind `crate::` in a file's code, without its comments and its tests.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<&str> =
        code.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
    let code = code.join(" ");
    let mut found = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        let first = |path: &str| -> String {
            path.trim_start().chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '_').collect()
        };
        let Some(group) = path.strip_prefix('{') else {
            found.insert(first(path));
            continue;
        };
        let (mut depth, mut starts) = (1, vec![0]);
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => starts.push(at + 1),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        found.extend(starts.into_iter().map(|start| first(&group[start..])));
    }
    found
}

/// Modules that a module imports, directly or through others.
fn reached(graph: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = next.pop() {
        for import in graph.get(&module).into_iter().flatten() {
            if graph.contains_key(import) && reached.insert(import.clone()) {
                next.push(import.clone());
            }
        }
    }
    reached
}

#[test]
fn modules_import_one_way() {
    let mut crates: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (path, text) in sources() {
        let Some((name, inside)) = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        if inside.contains("test") {
            continue;
        }
        let module = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
        let modules = crates.entry(name.to_owned()).or_default();
        modules.entry(module).or_default().extend(imports(&text));
    }
    let mut faults = Vec::new();
    for (name, modules) in &mut crates {
        for (module, imports) in modules.iter_mut() {
            imports.remove(module);
        }
        let mutual = |module: &String| -> Vec<String> {
            let others = reached(modules, module).into_iter();
            others.filter(|other| reached(modules, other).contains(module)).collect()
        };
        let ring = modules.keys().map(mutual).max_by_key(Vec::len).unwrap_or_default();
        if !ring.is_empty() {
            faults.push(format!("crates/{name}: {}", ring.join(", ")));
        }
    }
    report("modules that import each other in a ring", faults);
}

#[test]
fn runtime_and_kernels_know_no_async_network_or_clock() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let runtime = ["runtime", "families", "model-files", "text"]
            .iter()
            .any(|name| path.starts_with(&format!("crates/{name}/src")));
        let kernels = ["kernels", "ops"].iter().any(|name| path.starts_with(&format!("crates/{name}/src")));
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        if !(runtime || kernels) || is_test {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut forbidden = vec!["tokio", "std::net", "SystemTime", "Instant::now", "async fn"];
        if runtime {
            forbidden.push("std::thread");
        }
        for (at, line) in code.lines().enumerate() {
            if let Some(word) = forbidden.iter().find(|word| line.contains(**word)) {
                faults.push(format!("{path}:{}: {word}", at + 1));
            }
        }
    }
    report("words that the runtime, its parts and kernels must not know", faults);
}

/// Where HTTP's words and the engine's messages may meet in the gateway: bodies become messages and messages JSON there.
const WIRES_MEET: &[&str] = &[
    "adapters.rs",
    "anthropic/blocks.rs",
    "anthropic/count.rs",
    "anthropic/reply.rs",
    "anthropic/request.rs",
    "audio/live.rs",
    "audio/reply.rs",
    "audio/request.rs",
    "audio/speech.rs",
    "cloud/chat.rs",
    "llamacpp/answer.rs",
    "llamacpp/ask.rs",
    "llamacpp/embedding.rs",
    "llamacpp/settings.rs",
    "llamacpp/state.rs",
    "llamacpp/template.rs",
    "mcp/calls.rs",
    "media_bounds.rs",
    "models/load.rs",
    "models/pull.rs",
    "ollama/chat.rs",
    "ollama/create.rs",
    "ollama/embed.rs",
    "ollama/format.rs",
    "ollama/generate.rs",
    "ollama/list.rs",
    "ollama/manage.rs",
    "ollama/messages.rs",
    "ollama/names.rs",
    "ollama/options.rs",
    "ollama/reply.rs",
    "ollama/show.rs",
    "openai/chat.rs",
    "openai/completions.rs",
    "openai/constraint.rs",
    "openai/events.rs",
    "openai/messages.rs",
    "openai/plan.rs",
    "openai/prompt.rs",
    "openai/samplers.rs",
    "openai/sampling.rs",
    "openai/tools.rs",
    "openai/turns.rs",
    "ops.rs",
    "pictures.rs",
    "request.rs",
    "responses/conversation.rs",
    "responses/count.rs",
    "responses/request.rs",
    "responses/tools.rs",
    "scores/tasks.rs",
    "sounds.rs",
    "status.rs",
    "tei/words.rs",
    "tokens.rs",
    "vectors/cohere.rs",
    "vectors/inputs.rs",
    "vectors/json.rs",
    "vectors/openai.rs",
];

/// The messages of the contract.
fn messages() -> BTreeSet<String> {
    let name = |line: &str| line.strip_prefix("message ")?.split_whitespace().next().map(str::to_owned);
    let of = |file: &str| {
        let proto =
            fs::read_to_string(root().join("proto/hanzo/engine/v1").join(file)).expect("the contract");
        proto.lines().filter_map(name).collect::<Vec<_>>()
    };
    ["engine.proto", "speech.proto"].into_iter().flat_map(of).collect()
}

/// The messages that code names, as `v1::Name` or by an import from `v1`.
fn messages_named(code: &str, messages: &BTreeSet<String>) -> bool {
    let word = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    let by_path = code.split("v1::").skip(1).any(|rest| messages.contains(&word(rest)));
    let imports = code.split("hanzo_engine_proto::v1::{").skip(1);
    let by_import = imports
        .filter_map(|rest| rest.split("};").next())
        .any(|list| list.split([',', ' ', '\n', '{', '}']).any(|name| messages.contains(name)));
    by_path || by_import
}

#[test]
fn words_of_two_worlds_meet_only_where_it_is_said() {
    let messages = messages();
    assert!(messages.len() > 40, "the contract has {} messages", messages.len());
    let mut meets = BTreeSet::new();
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let code: Vec<&str> = text.split("#[cfg(test)]").next().unwrap_or_default().lines().collect();
        let code: Vec<&str> = code.into_iter().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join("\n");
        let contract = code.contains("hanzo_engine_proto") && messages_named(&code, &messages);
        if let Some(file) = path.strip_prefix("crates/gateway/src/") {
            let reads =
                code.split(|c: char| !c.is_alphanumeric()).any(|word| ["Fields", "Field"].contains(&word));
            let written = |line: &str| line.contains("#[derive(") && line.contains("Serialize");
            if contract && (reads || code.contains("json!(") || code.lines().any(written)) {
                meets.insert(file.to_owned());
            }
        }
        let daemon = path.strip_prefix("crates/daemon/src/");
        if daemon.is_some_and(|file| !file.starts_with("convert/") && !file.starts_with("tests/")) {
            // The services wait for calls and may say why one ends; what the engine computes is no word of theirs.
            let engine = code.split("hanzo_engine_runtime::").skip(1);
            let other = |rest: &str| !rest.starts_with("RequestError;");
            if contract && engine.into_iter().any(other) {
                faults.push(path.clone());
            }
        }
    }
    report(
        "files of the daemon outside of convert/ that name both the contract's messages and the engine's types",
        faults,
    );
    let named: BTreeSet<String> = WIRES_MEET.iter().map(|file| (*file).to_owned()).collect();
    assert_eq!(
        meets, named,
        "files of the gateway in which HTTP's words and the engine's messages meet (left), and may (right)"
    );
}

#[test]
fn no_drawers() {
    let drawers = ["util", "utils", "common", "helper", "helpers", "misc"];
    let in_drawer = |path: &String| {
        Path::new(path).iter().any(|part| {
            let part = part.to_string_lossy();
            drawers.contains(&part.trim_end_matches(".rs"))
        })
    };
    report("name files by what is in them", sources().into_iter().map(|f| f.0).filter(in_drawer).collect());
}

#[test]
fn every_file_says_what_lives_in_it() {
    let opens =
        |text: &str| text.lines().find(|line| !line.starts_with("#!")).is_some_and(|l| l.starts_with("//! "));
    let faults = sources().into_iter().filter(|(_, text)| !opens(text)).map(|(path, _)| path).collect();
    report("files without an opening `//!` paragraph", faults);
}

#[test]
fn files_fit_in_a_head() {
    let too_long = |(path, text): (String, String)| {
        let lines = text.lines().count();
        let excused = text.lines().take(30).any(|line| line.contains("Longer than 600 lines because"));
        (lines > FILE_LINES_MAX && !excused).then(|| format!("{path}: {lines} lines"))
    };
    let what =
        format!("files over {FILE_LINES_MAX} lines (`//! Longer than 600 lines because …` excuses one)");
    report(&what, sources().into_iter().filter_map(too_long).collect());
}

#[test]
fn nothing_is_left_for_later() {
    let marks = ["TO", "FIX", "XX"].map(|head| match head {
        "TO" => "TODO".to_string(),
        "FIX" => "FIXME".to_string(),
        head => format!("{head}X:"),
    });
    let macros = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!("));
    let mut faults = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
        for (at, line) in text.lines().enumerate() {
            if marks.iter().chain(&macros).any(|mark| line.contains(mark.as_str())) {
                faults.push(format!("{path}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    report("left for later", faults);
}

/// Rustdoc would read each crate once more to find that it has no example: libraries say `doctest = false`, and nothing in a
/// comment looks as if it were compiled.
#[test]
fn what_comments_show_is_not_taken_for_tested() {
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates/").flatten() {
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        if entry.path().join("src/lib.rs").exists() && !manifest.contains("\ndoctest = false\n") {
            faults.push(format!("{}: no doctest = false", entry.path().display()));
        }
    }
    for (path, text) in sources() {
        let mut open = false;
        for (at, line) in text.lines().enumerate() {
            let comment = line.trim_start().strip_prefix("///").or(line.trim_start().strip_prefix("//!"));
            let Some(fence) = comment.and_then(|text| text.trim_start().strip_prefix("```")) else {
                continue;
            };
            open = !open;
            if open && ["", "rust", "should_panic", "no_run"].contains(&fence.trim()) {
                faults.push(format!(
                    "{path}:{}: an example that nothing compiles; examples/ and tests are",
                    at + 1
                ));
            }
        }
    }
    report("examples in comments", faults);
}

#[test]
fn unsafe_stays_in_the_kernels() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let devices = ["crates/kernels/", "crates/kernels-cuda/src/", "crates/cuda-emulator/src/"];
        let files = [
            "crates/model-files/src/mapped.rs",
            "crates/ops/src/quant/vectors.rs",
            "crates/process/src/heap.rs",
        ];
        let may = devices.iter().any(|device| path.starts_with(device)) || files.contains(&path.as_str());
        for (at, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let uses = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern"]
                .iter()
                .any(|word| code.contains(word) && !code.contains('"'));
            if uses && !may {
                faults.push(format!("{path}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    report("unsafe outside of the crates of devices and three files", faults);
}

#[test]
fn every_file_is_part_of_a_crate() {
    let root = root();
    let mut faults = Vec::new();
    for (path, _) in sources() {
        let file = Path::new(&path);
        let stem = file.file_stem().expect("a Rust file has a name").to_string_lossy().into_owned();
        let dir = file.parent().expect("below the root");
        let is_root = ["lib", "main", "build"].contains(&stem.as_str())
            || ["tests", "benches", "examples"].iter().any(|d| dir.ends_with(d));
        if is_root {
            continue;
        }
        let (module, home) = match stem.as_str() {
            "mod" => {
                (dir.file_name().expect("a module's folder").to_string_lossy().into_owned(), dir.parent())
            }
            _ => (stem, Some(dir)),
        };
        let home = home.expect("below the root");
        let mut parents: Vec<PathBuf> = ["lib.rs", "main.rs", "mod.rs"].map(|name| home.join(name)).to_vec();
        parents.push(home.with_extension("rs"));
        if let Some(folder) = home.parent().filter(|_| home.ends_with("tests")) {
            parents.push(folder.join("mod.rs"));
        }
        for entry in fs::read_dir(root.join(home)).into_iter().flatten().flatten() {
            parents.push(home.join(entry.file_name())); // roots of test binaries name their modules too
        }
        let declares = |parent: &PathBuf| {
            fs::read_to_string(root.join(parent)).is_ok_and(|text| {
                text.lines().any(|line| {
                    line.trim_start()
                        .split("//")
                        .next()
                        .unwrap_or_default()
                        .contains(&format!("mod {module};"))
                })
            })
        };
        if !parents.iter().any(declares) {
            faults.push(path);
        }
    }
    report("files no module declares", faults);
}

/// Paths in backquotes in the documents exist.
#[test]
fn documents_name_what_exists() {
    let root = root();
    let mut faults = Vec::new();
    for document in ["README.md", "ARCHITECTURE.md"] {
        let text =
            fs::read_to_string(root.join(document)).unwrap_or_else(|_| panic!("{document} is missing"));
        for word in text.split('`').skip(1).step_by(2) {
            let tops = [
                "crates/", "proto/", "tests/", "models/", "deploy/", "systemd/", "helm/", "docs/", ".ci/",
                "fuzz/",
            ];
            let is_path =
                tops.iter().any(|top| word.starts_with(top)) && !word.contains([' ', '*', '{', '…']);
            if is_path && !root.join(word.split(':').next().unwrap_or_default()).exists() {
                faults.push(format!("{document}: {word}"));
            }
        }
    }
    report("paths in documents that do not exist", faults);
}

/// The project speaks of itself alone.
#[test]
fn no_path_of_one_machine() {
    let root = root();
    let mut files = Vec::new();
    for dir in ["crates", "tests", "fuzz", "proto", "models", "deploy", "systemd", "helm"] {
        if root.join(dir).exists() {
            walk(&root.join(dir), &mut files);
        }
    }
    files.extend(["README.md", "ARCHITECTURE.md", ".ci/run"].map(|name| root.join(name)));
    let homes = ["work", "root", "home"].map(|dir| format!("/{dir}/"));
    let mut faults = Vec::new();
    for path in files.iter().filter(|path| !path.ends_with("tidy.rs")) {
        let Ok(text) = fs::read_to_string(path) else { continue };
        for (at, line) in text.lines().enumerate() {
            let quoted = |home: &String| {
                line.match_indices(home.as_str())
                    .any(|(i, _)| i == 0 || !line.as_bytes()[i - 1].is_ascii_alphanumeric())
            };
            if homes.iter().any(quoted) && !line.contains("/home/user") {
                faults.push(format!("{}:{}", path.display(), at + 1));
            }
        }
    }
    report("paths of one machine", faults);
}
