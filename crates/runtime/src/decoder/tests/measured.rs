//! How far tiny models of every family are from the numbers of the transformers library: within a bound, and as docs/reference/models.md says.
//! `HANZO_ENGINE_MODELS_TABLE=write cargo test -p hanzo-engine-runtime --lib decoder::tests` writes its tables: of what is measured, and of families.

use std::sync::Mutex;

use hanzo_engine_ops::{AnyBackend, KvType};

use super::*;
use crate::spec::Family;

/// The table is written one kind at a time.
static TABLE: Mutex<()> = Mutex::new(());
const BEGIN: &str = "<!-- measured: written by crates/runtime/src/decoder/tests/measured.rs -->\n";
const HEAD: &str = "| folder | safetensors | GGUF | greedy tokens | cache of q8_0 |\n|---|---|---|---|---|\n";
const FAMILIES_BEGIN: &str =
    "<!-- families: written by crates/runtime/src/decoder/tests/measured.rs from FAMILIES -->\n";
const FAMILIES_HEAD: &str = "| family | `model_type` | GGUF | folder |\n|---|---|---|---|\n";
/// The largest difference with a cache in bytes, as a share of the range of the golden logits.
const TOLERANCE_BYTES: f32 = 0.25;
/// Differences below it are written as this.
const LEAST: f32 = 1e-6;

/// A row of the table: differences as shares of the range of the golden logits, rounded up.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    folder: String,
    errors: [Option<f32>; 2], // of safetensors and of GGUF
    tokens: usize,
    bytes: Option<f32>, // of a cache of Q8_0, where heads are whole groups of it
}

/// Checks the models of one kind, folders of it and whether there is a GGUF file in them. Tokens are compared as far as two are not as
/// good as each other, by what logits were found to be off by.
pub(super) fn check_kind(kind: &str, cases: &[(&str, bool)]) {
    let (mut failed, mut rows) = (Vec::new(), Vec::new());
    for &(case, in_gguf) in cases {
        let folder = data(kind).join(case);
        let golden = Golden::read(&folder);
        let mut row = Row { folder: format!("{kind}/{case}"), ..Row::default() };
        for (place, path) in [folder.clone(), folder.join("model.gguf")].into_iter().enumerate() {
            if place == 1 && !in_gguf {
                continue;
            }
            match measure(&golden, &path) {
                Ok((error, tokens)) => {
                    row.errors[place] = Some(error);
                    row.tokens = if place == 0 { tokens } else { row.tokens.min(tokens) };
                }
                Err(reason) => failed.push(format!("{}: {reason}", path.display())),
            }
        }
        match measure_bytes(&golden, &folder) {
            Ok(error) => row.bytes = error,
            Err(reason) => failed.push(format!("{}, a cache in bytes: {reason}", folder.display())),
        }
        rows.push(row);
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    check_table(&rows);
}

/// Checks that every model of a kind computes the same bits alone, after a chunk, and beside another prompt.
pub(super) fn check_batches(kind: &str) {
    for (case, path) in files_of(kind) {
        let files = ModelFiles::open(&path).unwrap();
        let mut runner = Runner::new(fastest(), &files);
        let text = Golden::read(&data(kind).join(case)).text();
        let whole = runner.prefill(&text);
        let vocab = files.spec.vocab;
        // Two unequal sequences together, the first of which goes on where a chunk ended.
        let (blocks, others) = (scattered(1), scattered(0));
        runner.step(&[Work { tokens: &text[..19], rows: 19, blocks: &blocks }]);
        let both = runner.step(&[
            Work { tokens: &text[..20], rows: 1, blocks: &blocks },
            Work { tokens: &text[..33], rows: 33, blocks: &others },
        ]);
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        assert!(bits(&both[..vocab]) == bits(&whole[19 * vocab..20 * vocab]), "{}: a decode", path.display());
        assert!(bits(&both[vocab..]) == bits(&whole[..33 * vocab]), "{}: a prompt beside it", path.display());
    }
}

/// The share that logits are off by, and how many tokens are the golden ones.
fn measure(golden: &Golden, path: &Path) -> Result<(f32, usize), String> {
    let files = ModelFiles::open(path).map_err(|error| error.to_string())?;
    let range = range(&golden.logits);
    let allowed = TOLERANCE * range;
    let off = |logits: &[f32]| largest_difference(logits, &golden.logits);
    let on_reference =
        off(&Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&golden.text()));
    let mut runner = Runner::new(fastest(), &files);
    let on_cpu = off(&runner.prefill(&golden.text()));
    println!(
        "{}: {:.1e} of the range, {:.1e} on the CPU",
        path.display(),
        on_reference / range,
        on_cpu / range
    );
    if !(on_reference <= allowed && on_cpu <= allowed) {
        return Err(format!(
            "logits differ by {on_reference} and {on_cpu} on the CPU, allowed are {allowed}"
        ));
    }
    // A prompt in chunks, then token by token.
    let near = |best: f32, next: f32| best - next <= 2.0 * on_cpu;
    let tokens = runner.greedy(&golden.prompt, 7, golden.greedy.len(), near);
    if tokens.len() <= 8 || tokens[..] != golden.greedy[..tokens.len()] {
        return Err(format!("{tokens:?}, not {:?}", golden.greedy));
    }
    Ok((on_reference / range, tokens.len()))
}

/// As `measure`, with keys and values kept in bytes. Nothing where heads are no whole groups of them, which is refused by name.
fn measure_bytes(golden: &Golden, folder: &Path) -> Result<Option<f32>, String> {
    let files = ModelFiles::open(folder).map_err(|error| error.to_string())?;
    let mut runner = Runner::new(fastest(), &files);
    let spec = files.spec.kv_spec(files.spec.kv_groups().count() * BLOCKS, KvType::Q8_0, 2);
    runner.kv = match (runner.backend.kv(&spec), spec.check()) {
        (Ok(kv), Ok(())) => kv,
        (Err(_), Err(_)) => return Ok(None),
        (found, check) => return Err(format!("{:?}, and its check {check:?}", found.err())),
    };
    let off = largest_difference(&runner.prefill(&golden.text()), &golden.logits) / range(&golden.logits);
    match off {
        off if off.is_nan() || off > TOLERANCE_BYTES => Err(format!("logits differ by {off} of their range")),
        off if off < 1e-5 => Err(format!("logits differ by {off} of their range: nothing was rounded")),
        off => Ok(Some(off)),
    }
}

/// Up to 1, 2 or 5 of a digit, with so much room that machines agree.
fn rounded_up(off: f32) -> f32 {
    let off = (1.3 * off).max(LEAST);
    let exponent = off.log10().floor() as i32;
    // As the table is read.
    let step = |digits: u32| format!("{digits}e{exponent}").parse::<f32>().unwrap();
    [1, 2, 5, 10].into_iter().map(step).find(|step| *step >= off).unwrap_or(off)
}

/// A table of docs/reference/models.md, which begins behind a line. It is written anew if that is wished.
fn table_of_docs(begin: &str, anew: impl FnOnce(&str) -> String) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let path = root.join("docs/reference/models.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) =
        text.split_once(begin).expect("docs/reference/models.md says where its tables begin");
    let (table, after) = rest.split_once("\n\n").expect("a paragraph behind the table");
    if std::env::var("HANZO_ENGINE_MODELS_TABLE").is_ok_and(|value| value == "write") {
        let table = anew(table);
        fs::write(&path, format!("{before}{begin}{table}\n\n{after}")).unwrap();
        return table;
    }
    table.to_owned()
}

/// Checks that docs/reference/models.md lists the families as `FAMILIES` does.
pub(super) fn check_families() {
    let _one_at_a_time = TABLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names =
        |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let line = |family: &Family| {
        let has_files = family.architectures().next().is_some();
        let folder = |golden: &TinyModel| match has_files && !golden.in_gguf {
            true => format!("`{}` (safetensors alone)", golden.folder),
            false => format!("`{}`", golden.folder),
        };
        let folders: Vec<String> = family.goldens.iter().map(folder).collect();
        let cells = [
            family.title.to_owned(),
            names(family.model_types().collect()),
            names(family.architectures().collect()),
            folders.join(", "),
        ];
        format!("| {} |", cells.join(" | ")).replace("|  |", "| |")
    };
    let expected = FAMILIES.iter().map(line).collect::<Vec<_>>().join("\n");
    let expected = format!("{FAMILIES_HEAD}{expected}");
    assert_eq!(
        table_of_docs(FAMILIES_BEGIN, |_| expected.clone()),
        expected,
        "this file says how to write it"
    );
}

fn check_table(rows: &[Row]) {
    let _one_at_a_time = TABLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let kind = rows[0].folder.split('/').next();
    let table = table_of_docs(BEGIN, |old| {
        let mut written: Vec<Row> = old.lines().skip(2).map(Row::parse).collect();
        written.retain(|row| row.folder.split('/').next() != kind);
        written.extend(rows.iter().map(Row::rounded));
        let lines = written.iter().map(Row::line).collect::<Vec<_>>().join("\n");
        format!("{HEAD}{lines}")
    });
    let written: Vec<Row> = table.lines().skip(2).map(Row::parse).collect();
    let told = |row: &&Row| {
        let said = written.iter().find(|said| said.folder == row.folder);
        said.is_none_or(|said| !row.is_as(said))
    };
    let wrong: Vec<String> = rows.iter().filter(told).map(|row| row.rounded().line()).collect();
    assert!(
        wrong.is_empty(),
        "docs/reference/models.md does not say what is measured (this file says how to write it):\n{}",
        wrong.join("\n")
    );
}

impl Row {
    fn rounded(&self) -> Row {
        let up = |off: Option<f32>| off.map(rounded_up);
        Row { errors: self.errors.map(up), bytes: up(self.bytes), ..self.clone() }
    }

    /// Whether what is measured is what another says: no more, and not much less.
    fn is_as(&self, said: &Row) -> bool {
        let fits = |measured: Option<f32>, said: Option<f32>| match (measured, said) {
            (None, None) => true,
            (Some(measured), Some(said)) => {
                measured <= said * 1.0001 && said <= (10.0 * measured).max(LEAST) * 1.0001
            }
            _ => false,
        };
        let errors = self.errors.into_iter().zip(said.errors).all(|(measured, said)| fits(measured, said));
        errors && fits(self.bytes, said.bytes) && self.tokens == said.tokens
    }

    fn line(&self) -> String {
        let off = |off: Option<f32>| off.map_or("–".to_owned(), |off| format!("{off:.0e}"));
        let [safetensors, gguf] = self.errors.map(off);
        format!("| `{}` | {safetensors} | {gguf} | {} | {} |", self.folder, self.tokens, off(self.bytes))
    }

    fn parse(line: &str) -> Row {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[folder, safetensors, gguf, tokens, bytes] = &cells[..] else { panic!("{line}: five cells") };
        Row {
            folder: folder.trim_matches('`').to_owned(),
            errors: [safetensors, gguf].map(|cell| cell.parse().ok()),
            tokens: tokens.parse().unwrap_or_else(|_| panic!("{line}: a number of tokens")),
            bytes: bytes.parse().ok(),
        }
    }
}

#[test]
fn a_table_that_says_something_else_is_found() {
    let row = Row { folder: "a/b".into(), errors: [Some(3e-5), None], tokens: 32, bytes: Some(2.1e-3) };
    let said = row.rounded();
    assert_eq!(said.line(), "| `a/b` | 5e-5 | – | 32 | 5e-3 |");
    assert_eq!(Row::parse(&said.line()), said);
    assert!(row.is_as(&said));
    for other in [
        Row { errors: [Some(2e-5), None], ..said.clone() },
        Row { errors: [Some(5e-4), None], ..said.clone() },
        Row { errors: [Some(5e-5), Some(5e-5)], ..said.clone() },
        Row { tokens: 31, ..said.clone() },
        Row { bytes: None, ..said.clone() },
        Row { bytes: Some(2e-3), ..said.clone() },
    ] {
        assert!(!row.is_as(&other), "{other:?}");
    }
}
