//! Encoders against the libraries they come from (tests/data/encoders/make_golden.py says how their numbers were
//! made), on the reference backend and on every tier of the CPU backend; the same bits in any company; and models
//! that must not load.

mod converted;
mod native;
mod quantised;
mod refused;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, Batch, RowSource, SequenceSpan};
use serde_json::Value;

use super::*;
use crate::decoder::tests::data;
use crate::head::{Classifier, Head, HeadActivation, HeadInput, Scores};
use crate::load::TextFile;
use crate::spec::{Config, Distance, LayerPart, NormOrder, Part, QkNorm, Weight};

/// The largest allowed difference of a number, as a share of the range of the golden ones.
const TOLERANCE: f32 = 1e-4;

/// Checkpoints whose hidden states are golden.
const HIDDEN: &[&str] = &[
    "bert-mean",
    "bert-cls-dense",
    "roberta",
    "distilbert",
    "mpnet",
    "modernbert",
    "nomic-bert",
    "nomic-bert-moe",
    "gte-new",
    "jina-bert-v2",
    "jina-bert-v2-code",
    "deberta-v2",
    "bge-m3",
    "embeddinggemma",
];

/// Checkpoints of classifiers, with their kinds of scores.
const SCORED: &[(&str, Scores)] = &[
    ("bert-classifier", Scores::Softmax),
    ("bert-multilabel", Scores::Sigmoid),
    ("bert-crossencoder", Scores::Sigmoid),
    ("roberta-classifier", Scores::Softmax),
    ("xlm-roberta-reranker", Scores::Sigmoid),
    ("distilbert-classifier", Scores::Softmax),
    ("modernbert-classifier", Scores::Softmax),
    ("modernbert-classifier-cls", Scores::Softmax),
    ("gte-new-reranker", Scores::Sigmoid),
    ("deberta-v2-classifier", Scores::Softmax),
];

const ROWS: usize = 512;
const SEQUENCES: usize = 16;

fn directory(case: &str) -> PathBuf {
    data("encoders").join(case)
}

fn config_of(directory: &std::path::Path) -> Config {
    let path = directory.join("config.json");
    Config::new(path.display().to_string(), TextFile::Settings.read_object(&path).unwrap())
}

pub(crate) fn open(case: &str) -> EncoderFiles {
    let directory = directory(case);
    let config = config_of(&directory);
    assert!(is_encoder(&config).unwrap(), "{case} is no encoder");
    EncoderFiles::from_directory(&directory, &config).unwrap()
}

/// One text and what a library computed for it.
struct Golden {
    tokens: Vec<u32>,
    types: Vec<u32>,
    /// Hidden states or logits.
    expected: Vec<f32>,
    probabilities: Vec<f32>,
}

fn golden(case: &str, list: &str, key: &str) -> Vec<Golden> {
    let path = directory(case).join("golden.json");
    let golden: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let items = golden[list].as_array().unwrap();
    let whole = |value: &Value| -> Vec<u32> {
        value.as_array().into_iter().flatten().map(|n| n.as_u64().unwrap() as u32).collect()
    };
    let of_item = |item: &Value| Golden {
        tokens: whole(&item["tokens"]),
        types: whole(&item["types"]),
        expected: floats(&item[key]),
        probabilities: floats(&item["probabilities"]),
    };
    items.iter().map(of_item).collect()
}

/// All numbers of a list, or of lists in it.
fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(values) => values.iter().flat_map(floats).collect(),
        Value::Number(number) => vec![number.as_f64().unwrap() as f32],
        _ => Vec::new(),
    }
}

fn range(values: &[f32]) -> f32 {
    let largest = values.iter().copied().fold(f32::MIN, f32::max);
    largest - values.iter().copied().fold(f32::MAX, f32::min)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn batch_of(texts: &[&Golden]) -> Batch {
    let mut batch = Batch::default();
    let typed = texts.iter().any(|text| !text.types.is_empty());
    for text in texts {
        let rows = text.tokens.len() as u32;
        let row_first = batch.rows() as u32;
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
        batch.sources.extend(text.tokens.iter().copied().map(RowSource::Token));
        batch.positions.extend(0..rows);
        if typed && text.types.is_empty() {
            batch.types.extend(text.tokens.iter().map(|_| 0));
        }
        batch.types.extend(&text.types);
    }
    batch
}

/// An encoder made for steps of up to `ROWS` rows.
struct Runner {
    backend: AnyBackend,
    encoder: Encoder,
}

impl Runner {
    fn new(backend: AnyBackend, files: &EncoderFiles) -> Self {
        Self::with(backend, files, WeightType::Stored)
    }

    fn with(mut backend: AnyBackend, files: &EncoderFiles, weight_type: WeightType) -> Self {
        let mut encoder = Encoder::load(&backend, files, weight_type, &mut |_| ()).unwrap();
        let limits = encoder.spec().step_limits(ROWS, SEQUENCES, 64);
        encoder.prepare(&mut backend, &limits).unwrap();
        Self { backend, encoder }
    }

    /// Hidden states of texts run in one step.
    fn hidden(&mut self, texts: &[&Golden]) -> Vec<Vec<f32>> {
        let batch = batch_of(texts);
        self.encoder.forward(&mut self.backend, &batch).unwrap();
        let hidden = self.encoder.spec().hidden;
        let read = |span: &SequenceSpan| {
            let mut rows = vec![0.0; span.rows as usize * hidden];
            self.encoder.read_rows(&self.backend, span.row_first as usize, &mut rows).unwrap();
            rows
        };
        batch.sequences.iter().map(read).collect()
    }

    /// A classifier's logits of one text.
    fn logits(&mut self, classifier: &Classifier, text: &Golden) -> Vec<f32> {
        let hidden = self.encoder.spec().hidden;
        let rows = self.hidden(&[text]).remove(0);
        let row: Vec<f32> = match classifier.input {
            HeadInput::Cls => rows[..hidden].to_vec(),
            HeadInput::Last => rows[rows.len() - hidden..].to_vec(),
            HeadInput::Mean => {
                let count = text.tokens.len() as f32;
                (0..hidden).map(|at| rows.iter().skip(at).step_by(hidden).sum::<f32>() / count).collect()
            }
        };
        classifier.logits(&row)
    }
}

/// The last token's hidden state by an encoder of these weights that is described otherwise.
pub(crate) fn last_hidden(files: &EncoderFiles, spec: TransformerSpec, tokens: &[u32]) -> Vec<f32> {
    let mut backend = AnyBackend::new(ReferenceBackend::new());
    let mut unheard = |_| ();
    let mut loader =
        network::Loader::new(&backend, &spec, &files.tensors, WeightType::Stored, &mut unheard).unwrap();
    let network = loader.network().unwrap();
    let mut encoder = Encoder {
        network,
        distance: DistanceTables::None,
        program: EncoderProgram::default(),
        convolution: None,
        masked_lm: None,
    };
    encoder.prepare(&mut backend, &spec.step_limits(ROWS, 1, 64)).unwrap();
    let mut runner = Runner { backend, encoder };
    let text =
        Golden { tokens: tokens.into(), types: Vec::new(), expected: Vec::new(), probabilities: Vec::new() };
    let rows = runner.hidden(&[&text]).remove(0);
    rows[rows.len() - spec.hidden..].to_vec()
}

/// Runs `$check` with a runner on the reference backend and on each tier.
macro_rules! on_every_backend {
    ($files:expr, $what:expr, |$runner:ident, $label:ident| $check:block) => {{
        {
            let mut $runner = Runner::new(AnyBackend::new(ReferenceBackend::new()), $files);
            let $label = format!("{} on the reference", $what);
            $check
        }
        for tier in Tier::available() {
            let mut $runner =
                Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), $files);
            let $label = format!("{} on {tier:?}", $what);
            $check
        }
    }};
}

use on_every_backend;

fn check_hidden(case: &str) {
    let files = open(case);
    let texts = golden(case, "hidden", "last_hidden_state");
    assert!(!texts.is_empty(), "{case}");
    on_every_backend!(&files, case, |runner, label| {
        for text in &texts {
            let found = largest_difference(&runner.hidden(&[text])[0], &text.expected);
            let share = found / range(&text.expected);
            println!("{label}: {} tokens: {found:e}, {share:e} of the range", text.tokens.len());
            assert!(share <= TOLERANCE, "{label}: {} tokens differ by {found}", text.tokens.len());
        }
    });
}

#[test]
fn hidden_states_are_those_of_the_libraries() {
    for case in HIDDEN {
        check_hidden(case);
    }
}

#[test]
fn classifiers_give_the_logits_of_the_libraries() {
    for &(case, scores) in SCORED {
        let files = open(case);
        let Some(Head::Classifier(classifier)) = files.head.clone() else { panic!("{case} is a classifier") };
        assert_eq!(classifier.scores, scores, "{case}");
        let texts = golden(case, "scores", "logits");
        let all: Vec<f32> = texts.iter().flat_map(|text| text.expected.clone()).collect();
        on_every_backend!(&files, case, |runner, label| {
            for text in &texts {
                let mut logits = runner.logits(&classifier, text);
                assert_eq!(logits.len(), classifier.labels.len(), "{label}");
                let found = largest_difference(&logits, &text.expected);
                let share = found / range(&all);
                println!("{label}: {} tokens: {found:e}, {share:e} of the range", text.tokens.len());
                assert!(share <= TOLERANCE, "{label}: {} tokens differ by {found}", text.tokens.len());
                classifier.scores.apply(&mut logits);
                assert!(largest_difference(&logits, &text.probabilities) < 1e-4, "{label}");
            }
        });
    }
}

#[test]
fn labels_come_in_the_order_of_their_numbers() {
    let labels = |case: &str| match open(case).head {
        Some(Head::Classifier(classifier)) => classifier.labels,
        _ => panic!("{case} is a classifier"),
    };
    assert_eq!(labels("bert-multilabel"), ["toxic", "spam", "rude", "off topic"]);
    assert_eq!(labels("bert-crossencoder"), ["LABEL_0"]);
}

#[test]
fn a_masked_language_model_gives_the_logits_of_the_library() {
    let case = "bert-splade";
    let files = open(case);
    assert_eq!(files.head, Some(Head::MaskedLm));
    let texts = golden(case, "hidden", "logits");
    on_every_backend!(&files, case, |runner, label| {
        let vocab = runner.encoder.spec().vocab;
        for text in &texts {
            runner.hidden(&[text]);
            let mut batch = batch_of(&[text]);
            let mut found = Vec::new();
            // In several calls, as a caller with little room for logits would.
            let rows: Vec<u32> = (0..text.tokens.len() as u32).collect();
            for rows in rows.chunks(3) {
                batch.logit_rows = rows.to_vec();
                let mut logits = vec![0.0; rows.len() * vocab];
                runner.encoder.vocabulary_logits(&mut runner.backend, &batch, &mut logits).unwrap();
                found.extend(logits);
            }
            let difference = largest_difference(&found, &text.expected);
            println!("{label}: {difference:e}, {:e} of the range", difference / range(&text.expected));
            assert!(difference <= TOLERANCE * range(&text.expected), "{label}: {difference}");
        }
    });
}

#[test]
fn a_text_gives_the_same_bits_in_any_company() {
    for case in HIDDEN {
        let files = open(case);
        let texts = golden(case, "hidden", "last_hidden_state");
        on_every_backend!(&files, case, |runner, label| {
            let alone: Vec<Vec<f32>> = texts.iter().map(|text| runner.hidden(&[text]).remove(0)).collect();
            for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                let batch: Vec<&Golden> = order.iter().map(|&text| &texts[text]).collect();
                let together = runner.hidden(&batch);
                for (&text, rows) in order.iter().zip(&together) {
                    assert!(*rows == alone[text], "{label}: text {text} in order {order:?}");
                }
            }
            // Beside one of its own length.
            let twice = runner.hidden(&[&texts[1], &texts[1], &texts[1]]);
            assert!(twice.iter().all(|rows| *rows == alone[1]), "{label}: beside its equals");
        });
    }
}

#[test]
fn eight_bit_weights_stay_close() {
    for case in ["bert-mean", "modernbert", "embeddinggemma", "nomic-bert-moe"] {
        let files = open(case);
        let texts = golden(case, "hidden", "last_hidden_state");
        let tier = Tier::available().last().unwrap();
        let backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
        let stored = Encoder::plan(&backend, &files, WeightType::Stored);
        let packed = Encoder::plan(&backend, &files, WeightType::Q8_0);
        assert!(packed.weights_bytes < stored.weights_bytes, "{case}");
        let mut runner = Runner::with(backend, &files, WeightType::Q8_0);
        for text in &texts {
            let rows = runner.hidden(&[text]).remove(0);
            let cosine = cosine(&rows, &text.expected);
            println!("{case}: cosine {cosine}");
            assert!(cosine > 0.99 && cosine < 1.0, "{case}: cosine {cosine}");
        }
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn the_plan_is_what_loading_takes() {
    for case in HIDDEN.iter().chain(&["bert-splade", "deberta-v2-classifier"]) {
        let files = open(case);
        let backend =
            AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::available().last().unwrap()));
        let mut heard = Vec::new();
        let encoder =
            Encoder::load(&backend, &files, WeightType::Stored, &mut |done| heard.push(done)).unwrap();
        assert!(heard.is_sorted() && heard.last() == Some(&1.0), "{case}: {heard:?}");
        let plan = Encoder::plan(&backend, &files, WeightType::Stored);
        // The CPU's matrices know their bytes, the reference's vectors their numbers.
        let matrix = |of| backend.read_matrix::<CpuBackend, _>(of, |matrix| matrix.bytes()).unwrap();
        let experts =
            |of| backend.read_layer_experts::<CpuBackend, _>(of, |experts| experts.bytes()).unwrap();
        let matrices = held(&encoder).0.into_iter().map(matrix);
        let matrix_bytes: usize = matrices.chain(encoder.network.experts().map(experts)).sum();
        let device = AnyBackend::new(ReferenceBackend::new());
        let reference = Encoder::load(&device, &files, WeightType::Stored, &mut |_| ()).unwrap();
        let (_, vectors, numbers) = held(&reference);
        let length = |of: &ops::Vector| device.read_vector::<ReferenceBackend, _>(of, Vec::len).unwrap();
        let numbers = numbers + vectors.into_iter().map(length).sum::<usize>();
        assert_eq!(plan.weights_bytes, (matrix_bytes + 4 * numbers) as u64, "{case}");
        let limits = encoder.spec().step_limits(10, 2, 60);
        assert!(plan.scratch_bytes(&backend, &limits) > backend.scratch_bytes(&limits) as u64, "{case}");
    }
}

/// All matrices and vectors that an encoder holds, and numbers beside them.
fn held(encoder: &Encoder) -> (Vec<&ops::Matrix>, Vec<&ops::Vector>, usize) {
    let mut numbers = 0;
    let mut matrices = encoder.network.matrices();
    let (mut vectors, mut norms) = encoder.network.vectors_and_norms();
    match &encoder.distance {
        DistanceTables::None => {}
        DistanceTables::Alibi { slopes } => vectors.push(slopes),
        DistanceTables::Learned { table, .. } => vectors.push(table),
        DistanceTables::Disentangled { bucket_of, layers, .. } => {
            numbers += bucket_of.len();
            vectors.extend(layers.iter().flat_map(|layer| layer.keys.iter().chain(&layer.queries)));
        }
    }
    if let Some(convolution) = &encoder.convolution {
        matrices.push(&convolution.weight);
        vectors.push(&convolution.bias);
        norms.push(&convolution.norm);
    }
    if let Some(head) = &encoder.masked_lm {
        matrices.push(&head.dense);
        vectors.extend(&head.dense_bias);
        norms.push(&head.norm);
        numbers += head.decoder_bias.as_ref().map_or(0, Vec::len);
    }
    vectors.extend(norms.iter().flat_map(|norm| [&norm.weight].into_iter().chain(&norm.bias)));
    (matrices, vectors, numbers)
}
