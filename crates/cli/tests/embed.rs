//! `embed` and `rerank` as a person meets them: the program with the built-in model, which like any decoder embeds by
//! its last token. Every test has its own store and files.

// In the functions that tests share, too, a step that fails fails the test.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing here takes so long; a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(240);

/// A directory with files, where the program runs.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn program(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hanzo-engine"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HANZO_") {
                command.env_remove(name);
            }
        }
        command.env("HANZO_MODELS_DIR", self.path("store")).env("HANZO_ENGINE_ADDRESS", "none");
        command.current_dir(self.0.path()).stdin(Stdio::null()).args(line.split(' '));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.program(line).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, line: &str) -> (String, String) {
        let output = self.run(line);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}: {stderr}");
        (stdout, stderr)
    }

    #[track_caller]
    fn fails(&self, code: i32, line: &str) -> String {
        let output = self.run(line);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
        assert!(stderr.contains("error: "), "{stderr}");
        stderr
    }

    fn piped(&self, line: &str, input: &str) -> Output {
        let mut child = self.program(line);
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(line: &serde_json::Value) -> Vec<f32> {
    line["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// Shape and rows of a file of NumPy's.
fn npy(bytes: &[u8]) -> (String, Vec<f32>) {
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    (text(&bytes[10..end]).trim_end().to_owned(), bytes[end..].chunks_exact(4).map(value).collect())
}

/// Texts of 2 to 41 words.
fn many(count: usize) -> String {
    (0..count).map(|at| format!("story {at}{}\n", " of a fox".repeat(at * 7 % 14))).collect()
}

#[test]
fn texts_become_lines_of_json() {
    let place = Place::new();
    let (out, err) = place.ok("embed -m hanzo-demo fox dog fox");
    let rows = lines(&out);
    assert_eq!(
        rows.iter().map(|row| row["text"].as_str().unwrap()).collect::<Vec<_>>(),
        ["fox", "dog", "fox"]
    );
    let [fox, dog, again] = [0, 1, 2].map(|at| vector(&rows[at]));
    assert_eq!(fox, again);
    assert_ne!(fox, dog);
    assert_eq!(err, "", "no progress for a few words");

    let unit = vector(&lines(&place.ok("embed -m hanzo-demo --normalize fox").0)[0]);
    let length: f32 = unit.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let own = vector(&lines(&place.ok("embed -m hanzo-demo --no-normalize --dimensions 8 fox").0)[0]);
    assert_eq!(own.len(), 8);
    let ratios: Vec<f32> = own.iter().zip(&unit).map(|(own, unit)| own / unit).collect();
    assert!(ratios.iter().all(|ratio| (ratio / ratios[0] - 1.0).abs() < 1e-4), "{ratios:?}");

    let piped = place.piped("embed -m hanzo-demo --input - --quiet", "fox\r\n\ndog");
    let rows = lines(&text(&piped.stdout));
    assert_eq!((vector(&rows[0]), vector(&rows[2])), (fox, dog));
    assert!(rows[1]["embedding"].is_null() && rows.len() == 3, "a line, a row");
}

#[test]
fn every_format_has_the_same_vectors() {
    let place = Place::new();
    place
        .write("in.jsonl", "{\"id\": 3, \"body\": \"fox\", \"n\": 1.50}\n\n{\"id\": 4, \"body\": \"dog\"}\n");
    for output in ["out.jsonl", "out.npy"] {
        let (_, err) = place.ok(&format!("embed -m hanzo-demo -i in.jsonl --field body -o {output}"));
        assert!(err.contains(&format!("{output}: 2 vectors of ")), "{err}");
    }
    place.ok("embed -m hanzo-demo -i in.jsonl --field body -o out.parquet --with-text");
    let jsonl = text(&place.read("out.jsonl"));
    assert!(jsonl.starts_with("{\"id\":3,\"body\":\"fox\",\"n\":1.50,\"embedding\":["), "{jsonl:.80}");
    let rows: Vec<Vec<f32>> = lines(&jsonl).iter().map(vector).collect();
    let (dict, values) = npy(&place.read("out.npy"));
    assert_eq!(values, rows.concat());
    assert!(dict.contains(&format!("'shape': (2, {})", rows[0].len())), "{dict}");

    use parquet::file::reader::{FileReader, SerializedFileReader};
    let file = SerializedFileReader::new(std::fs::File::open(place.path("out.parquet")).unwrap()).unwrap();
    let rows_read: Vec<String> =
        file.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
    assert!(rows_read[0].starts_with("{id: 3, text: \"fox\", embedding: ["), "{:.80}", rows_read[0]);
    let floats = rows_read[1].split_once("embedding: [").unwrap().1.trim_end_matches("]}");
    let floats: Vec<f32> = floats.split(", ").map(|value| value.parse().unwrap()).collect();
    assert_eq!(floats, rows[1]);
    let left: Vec<_> =
        std::fs::read_dir(place.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains(".partial")), "{left:?}");
    let exists = place.fails(2, "embed -m hanzo-demo -i in.jsonl --field body -o out.npy");
    assert!(exists.contains("out.npy exists already") && exists.contains("--restart"), "{exists}");
    place.ok("embed -m hanzo-demo -i in.jsonl --field body -o out.npy --restart --dimensions 4");
    assert!(npy(&place.read("out.npy")).0.contains("(2, 4)"));
}

/// Kills a run with `signal` once its partial result has grown.
fn cut_short(place: &Place, line: &str, partial: &Path, signal: &str) -> Option<i32> {
    let mut child = place.program(line).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let grown = std::fs::metadata(partial).map_or(0, |file| file.len()) + 4_000;
    while std::fs::metadata(partial).map_or(0, |file| file.len()) < grown {
        assert!(began.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn killed_twice_and_interrupted_it_goes_on_to_the_same_bytes() {
    let place = Place::new();
    place.write("in.txt", &many(600));
    let line = "embed -m hanzo-demo -i in.txt --batch 8 --in-flight 2 --dimensions 64 -o out.npy";
    let partial = place.path("out.npy.partial");
    assert_eq!(cut_short(&place, line, &partial, "-KILL"), None);
    assert_eq!(cut_short(&place, line, &partial, "-KILL"), None);
    assert_eq!(cut_short(&place, line, &partial, "-INT"), Some(130));
    assert!(!place.path("out.npy").exists(), "complete or not at all");

    let other = place.fails(1, "embed -m hanzo-demo -i in.txt --dimensions 32 -o out.npy");
    assert!(other.contains("dimensions was 64 and is 32") && other.contains("--restart"), "{other}");
    let input = place.read("in.txt");
    place.write("in.txt", &many(601));
    let other = place.fails(1, line);
    assert!(other.contains("input_rows was 600 and is 601"), "{other}");
    std::fs::write(place.path("in.txt"), input).unwrap();

    // The options of speed are free.
    let (_, err) = place.ok("embed -m hanzo-demo -i in.txt --batch 100 --dimensions 64 -o out.npy");
    assert!(err.contains("going on after ") && err.contains("600 vectors of 64 numbers"), "{err}");
    assert!(!partial.exists());
    place.ok("embed -m hanzo-demo -i in.txt --dimensions 64 -o whole.npy --quiet");
    assert_eq!(place.read("out.npy"), place.read("whole.npy"), "the same bytes as in one go");
}

#[test]
fn a_pipe_goes_on_too_and_its_beginning_must_be_the_same() {
    let place = Place::new();
    let line = "embed -m hanzo-demo -i - --batch 1 -o out.jsonl";
    let bad = "fox\ndog\nba\u{1}d\n";
    let stopped =
        place.piped("embed -m hanzo-demo -i - --input-format jsonl -o out.jsonl", "{\"text\":\"fox\"}\nx\n");
    let err = text(&stopped.stderr);
    assert!(err.contains("stdin:2: it is no JSON object") && err.contains("1 rows are kept"), "{err}");
    let other = place.piped(line, bad);
    assert!(text(&other.stderr).contains("field was \"text\" and is unset"), "{}", text(&other.stderr));
    let jsonl = "embed -m hanzo-demo -i - --input-format jsonl -o out.jsonl";
    let changed = place.piped(jsonl, "{\"text\":\"dog\"}\n{\"text\":\"x\"}\n");
    assert!(text(&changed.stderr).contains("not the first of stdin"), "{}", text(&changed.stderr));
    let done = place.piped(jsonl, "{\"text\":\"fox\"}\n{\"text\":\"x\"}\n");
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(lines(&text(&place.read("out.jsonl"))).len(), 2);
}

#[test]
fn an_input_that_fails_is_named_and_may_be_passed_over() {
    let place = Place::new();
    let long = "word ".repeat(20_000);
    place.write(
        "in.jsonl",
        &format!("{{\"text\":\"fox\"}}\n{{\"txt\":1}}\n{{\"text\":\"{long}\"}}\nno\n{{\"text\":\"\"}}\n{{\"text\":\"dog\"}}\n"),
    );
    let error = place.fails(1, "embed -m hanzo-demo -i in.jsonl -o out.npy --no-truncate");
    assert!(error.contains("in.jsonl:2: it has no field \"text\""), "{error}");
    assert!(error.contains("--skip-errors") && error.contains("out.npy.partial"), "{error}");
    let (_, err) = place.ok("embed -m hanzo-demo -i in.jsonl -o out.npy --no-truncate --skip-errors");
    for at in ["in.jsonl:3: ", "in.jsonl:4: ", "in.jsonl:5: "] {
        assert!(err.contains(at), "{at} in {err}");
    }
    assert!(err.contains("2 vectors of") && err.contains("without one: 4 errors"), "{err}");
    let (_, values) = npy(&place.read("out.npy"));
    let is_nan: Vec<bool> = values.chunks_exact(values.len() / 6).map(|row| row[0].is_nan()).collect();
    assert_eq!(is_nan, [false, true, true, true, true, false]);
    place.ok("embed -m hanzo-demo -i in.jsonl -o out.jsonl --skip-errors --quiet");
    let rows = lines(&text(&place.read("out.jsonl")));
    assert!(rows[2]["embedding"].is_array(), "what is too long is cut unless asked otherwise");
    assert_eq!(rows[4]["error"], "line 5: its text is empty");
}

#[test]
fn what_makes_no_sense_is_said_before_work_begins() {
    let place = Place::new();
    place.write("in.txt", "fox\n");
    let refused = [
        ("embed -m hanzo-demo", "nothing to embed"),
        ("embed -m hanzo-demo -i in.txt -o out.csv", "neither in .jsonl"),
        ("embed -m hanzo-demo -i in.txt --with-text", ".parquet"),
        ("embed -m hanzo-demo -i in.txt --field body", "JSON lines"),
        ("embed -m hanzo-demo --dimensions 100000 fox", "--dimensions 100000"),
        ("embed -m hanzo-demo --prompt-name nope fox", "--prompt-name nope"),
        ("rerank -m hanzo-demo -q fox", "nothing to order"),
    ];
    for (line, why) in refused {
        let error = place.fails(2, line);
        assert!(error.contains(why), "{line}: {error}");
    }
    assert!(place.fails(1, "embed -m hanzo-demo -i none.txt").contains("none.txt: No such file"));
    assert!(place.fails(1, "embed -m hanzo-demo --instruction x -o out.npy fox").contains("instruction"));
    assert!(!place.path("out.npy.partial").exists(), "nothing was done: nothing is kept");
    assert!(place.fails(1, "rerank -m hanzo-demo -q fox dog").contains("cannot"), "it is no reranker");
}

#[test]
fn pictures_stand_behind_texts_in_one_space() {
    let place = Place::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    std::os::unix::fs::symlink(tests.join("vision/clip"), place.path("clip")).unwrap();
    for (name, from) in [("a.png", "rgb.png"), ("b.jpg", "rgb.jpg")] {
        drop(std::fs::copy(tests.join("fuzz/picture").join(from), place.path(name)));
    }
    place.write("bad.png", "no picture");
    let (out, err) = place.ok("embed -m ./clip fox --image a.png --image b.jpg --image a.png");
    let rows = lines(&out);
    assert_eq!((rows[0]["text"].as_str(), rows[0].get("image")), (Some("fox"), None));
    let names: Vec<_> = rows[1..].iter().map(|row| row["image"].as_str().unwrap()).collect();
    assert_eq!((&names[..], err.as_str()), (&["a.png", "b.jpg", "a.png"][..], ""));
    let [fox, a, b, again] = [0, 1, 2, 3].map(|at| vector(&rows[at]));
    assert!(a == again && a != b && a != fox && a.len() == fox.len());
    // To a file, and without texts.
    place.ok("embed -m ./clip --image b.jpg --image a.png -o out.npy");
    let (shape, values) = npy(&place.read("out.npy"));
    assert!(shape.contains(&format!("(2, {})", a.len())), "{shape}");
    assert_eq!(values, [b, a].concat());
    let why = place.fails(1, "embed -m ./clip --image a.png --image bad.png");
    assert!(why.contains("bad.png") && why.contains("neither JPEG"), "{why}");
    let why = place.fails(1, "embed -m ./clip --image gone.png");
    assert!(why.contains("gone.png"), "{why}");
    assert!(place.fails(1, "embed -m hanzo-demo --image a.png").contains("pictures"));
    assert!(place.fails(2, "embed -m ./clip -i x.txt --image a.png").contains("--image"));
}
