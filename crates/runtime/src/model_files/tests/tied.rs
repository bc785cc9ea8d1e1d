//! Tests of the matrices that become a model's embedding and head, against the transformers library: every family,
//! with its setting absent, true and false, and with one or both of the matrices stored (tests/data/make_tied.py
//! describes the making of `tied.json`).

use std::fs;
use std::path::{Path, PathBuf};

use ::safetensors::tensor::{Dtype, TensorView};
use ::safetensors::{SafeTensors, serialize};
use hanzo_engine_ops::DType;
use serde_json::Value;

use super::{data, edit};
use crate::convert::gguf_of;
use crate::encoder::EncoderFiles;
use crate::load::{Tensors, huggingface};
use crate::model_files::ModelFiles;
use crate::overrides::Mmproj;
use crate::quantise::{Affine, FolderPlan};
use crate::spec::{HeadSpec, Part, TransformerSpec};

const KEY: &str = "tie_word_embeddings";

/// A folder of the table, and the changes to it.
pub(crate) struct TiedCase {
    folder: PathBuf,
    embedding: String,
    head: String,
    labels: Vec<(String, Vec<String>)>,
}

/// The sets of stored matrices, as in the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stored {
    Embedding,
    Head,
    Same,
    Other,
}

const SETS: [Stored; 4] = [Stored::Embedding, Stored::Head, Stored::Same, Stored::Other];

impl TiedCase {
    fn all() -> Vec<TiedCase> {
        let text = fs::read_to_string(data("tied.json")).unwrap();
        let table: Value = serde_json::from_str(&text).unwrap();
        let rows = table["rows"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        rows.map(|row| TiedCase {
            folder: data(row["folder"].as_str().unwrap()),
            embedding: text(&row["embedding"]),
            head: text(&row["head"]),
            labels: row["outcomes"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(label, all)| (label.clone(), all.as_array().unwrap().iter().map(text).collect()))
                .collect(),
        })
        .collect()
    }

    pub(crate) fn of(folder: &str) -> TiedCase {
        TiedCase::all().into_iter().find(|case| case.folder == data(folder)).unwrap()
    }

    /// A copy of the folder whose files have the embedding's numbers only under the head's name.
    pub(crate) fn with_head_alone(&self) -> tempfile::TempDir {
        let directory = self.copy("true true", Stored::Same);
        let path = directory.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut views: Vec<(String, TensorView<'_>)> = tensors.tensors();
        views.retain(|(name, _)| *name != self.embedding);
        fs::write(&path, serialize(views, None).unwrap()).unwrap();
        directory
    }

    /// A copy of the folder with only its setting changed.
    pub(crate) fn with_setting(&self, label: &str) -> tempfile::TempDir {
        let directory = self.copy(label, Stored::Embedding);
        let name = "model.safetensors";
        fs::copy(self.folder.join(name), directory.path().join(name)).unwrap();
        directory
    }

    fn is_encoder(&self) -> bool {
        self.folder.parent().is_some_and(|group| group.ends_with("encoders"))
    }

    /// A copy of the folder with a setting and a set of matrices. The head of `Other` is the embedding with its rows
    /// rotated by one.
    pub(crate) fn copy(&self, label: &str, stored: Stored) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "json") {
                fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        set(directory.path(), label);
        let bytes = fs::read(self.folder.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let embedding = tensors.tensor(&self.embedding).unwrap();
        let (dtype, shape) = (embedding.dtype(), embedding.shape().to_vec());
        let turned = turned(embedding.data(), shape[0]);
        let head = if stored == Stored::Same { embedding.data().to_vec() } else { turned };
        let mut views: Vec<(String, TensorView<'_>)> = tensors.tensors();
        views.retain(|(name, _)| *name != self.head && (*name != self.embedding || stored != Stored::Head));
        if stored != Stored::Embedding {
            views.push((self.head.clone(), view(dtype, &shape, &head)));
        }
        fs::write(directory.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
        directory
    }

    /// The matrices that an opened model uses, in the table's notation, or the error.
    fn outcome(&self, directory: &Path) -> Result<String, String> {
        match self.is_encoder() {
            true => {
                let config = huggingface::read_config(directory, "config.json").unwrap().unwrap();
                let files =
                    EncoderFiles::from_directory(directory, &config).map_err(|error| error.to_string())?;
                Ok(self.used(&files.spec, &files.tensors))
            }
            false => {
                let files = ModelFiles::open(directory).map_err(|error| error.to_string())?;
                Ok(self.used(&files.spec, &files.tensors))
            }
        }
    }

    fn used(&self, spec: &TransformerSpec, tensors: &Tensors) -> String {
        assert_ne!(spec.head, HeadSpec::None);
        let bytes = fs::read(self.folder.join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let embedding = stored.tensor(&self.embedding).unwrap();
        let head = turned(embedding.data(), embedding.shape()[0]);
        let name = |part: Part| match tensors.get(part.weight()).bytes.read() {
            found if *found == *embedding.data() => "e",
            found if *found == head => "h",
            _ => "?",
        };
        let output = if spec.head.tied() { Part::TokenEmbedding } else { Part::Head };
        format!("{}/{}", name(Part::TokenEmbedding), name(output))
    }
}

fn view<'a>(dtype: Dtype, shape: &[usize], bytes: &'a [u8]) -> TensorView<'a> {
    TensorView::new(dtype, shape.to_vec(), bytes).unwrap()
}

/// A matrix with its last row first.
fn turned(bytes: &[u8], rows: usize) -> Vec<u8> {
    let mut turned = bytes.to_vec();
    turned.rotate_right(bytes.len() / rows);
    turned
}

/// Sets the key of a configuration, and that of its inner text, to absent, true or false.
fn set(directory: &Path, label: &str) {
    let mut words = label.split(' ');
    let mut next = || words.next().unwrap_or("absent").to_owned();
    let (outer, inner) = (next(), next());
    edit(directory, "config.json", |config| {
        let value = |word: &str| (word != "absent").then(|| Value::Bool(word == "true"));
        config.remove(KEY);
        config.extend(value(&outer).map(|value| (KEY.to_owned(), value)));
        if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
            text.remove(KEY);
            text.extend(value(&inner).map(|value| (KEY.to_owned(), value)));
        }
    });
}

/// Whether results agree. A model that the library would fill with random numbers is refused, or uses the stored
/// matrix for both.
fn agrees(found: &Result<String, String>, expected: &str) -> bool {
    match (found, expected) {
        (Ok(found), "e/-") => found == "e/e",
        (Ok(found), "-/h") => found == "h/h",
        (Ok(found), _) => found == expected,
        (Err(error), "e/-" | "-/h") => error.contains("is missing"),
        (Err(_), _) => false,
    }
}

#[test]
fn every_family_takes_the_matrices_that_the_library_takes() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for case in TiedCase::all() {
        for (label, all) in &case.labels {
            for (stored, expected) in SETS.into_iter().zip(all) {
                let found = case.outcome(case.copy(label, stored).path());
                checked += 1;
                if !agrees(&found, expected) {
                    let folder = case.folder.strip_prefix(data("")).unwrap().display();
                    wrong.push(format!("{folder}, {label}, {stored:?}: {expected} expected, {found:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked > 1_000, "{checked} cases");
}

#[test]
fn two_equal_matrices_take_the_memory_of_one() {
    let bytes = |stored| {
        let case = TiedCase::of("tiny/qwen3");
        ModelFiles::open(case.copy("true", stored).path()).unwrap().tensors.bytes()
    };
    let one = bytes(Stored::Embedding);
    let matrix = 2 * 160 * 64;
    assert_eq!([Stored::Head, Stored::Same, Stored::Other].map(bytes), [one, one, one + matrix]);
}

#[test]
fn converted_and_quantised_models_keep_a_head_of_other_numbers() {
    let case = TiedCase::of("tiny/qwen3");
    for (stored, expected) in SETS.into_iter().zip(["e/e", "h/h", "e/e", "e/h"]) {
        let directory = case.copy("true", stored);
        let gguf = gguf_of(directory.path()).unwrap();
        let names: Vec<&str> = gguf.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let has_head = names.contains(&"output.weight");
        assert_eq!((names.contains(&"token_embd.weight"), has_head), (true, stored == Stored::Other));
        let files = ModelFiles::from_gguf("x", gguf, Vec::new(), &Mmproj::None).unwrap();
        assert_eq!(case.used(&files.spec, &files.tensors), expected, "{stored:?} in GGUF");

        let dtype = DType::of_affine(8, 32).unwrap();
        let wanted = Affine { dtype, keep_output: false, named: Vec::new(), requantize: false };
        let plan = FolderPlan::new(directory.path(), &wanted).unwrap();
        let config: Value = serde_json::from_str(&plan.config).unwrap();
        assert_eq!(config[KEY], stored != Stored::Other, "{stored:?} for MLX");
        let written: Vec<&str> = plan.tensors.iter().map(|placed| placed.tensor.name.as_str()).collect();
        assert!(written.contains(&"model.embed_tokens.weight"), "{written:?}");
        assert_eq!(written.contains(&"lm_head.weight"), stored == Stored::Other, "{written:?}");
    }
}

#[test]
fn a_gguf_file_with_a_head_alone_is_refused_by_name() {
    let mut gguf = gguf_of(TiedCase::of("tiny/qwen3").copy("false", Stored::Other).path()).unwrap();
    gguf.tensors.retain(|tensor| tensor.name != "token_embd.weight");
    let error = ModelFiles::from_gguf("x", gguf, Vec::new(), &Mmproj::None).unwrap_err().to_string();
    assert!(error.ends_with("tensor token_embd.weight is missing"), "{error}");
}

#[test]
fn a_head_of_another_shape_is_refused_by_name() {
    let directory = TiedCase::of("tiny/qwen3").copy("true", Stored::Embedding);
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let short = vec![0; 2 * 159 * 64];
    let mut views: Vec<(String, TensorView<'_>)> = tensors.tensors();
    views.push(("lm_head.weight".to_owned(), view(Dtype::BF16, &[159, 64], &short)));
    fs::write(&path, serialize(views, None).unwrap()).unwrap();
    let error = ModelFiles::open(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with("tensor lm_head.weight: expected [160, 64], file has [159, 64]"), "{error}");
}
