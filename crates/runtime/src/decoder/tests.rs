//! The decoder against the transformers library (tests/data/make_golden.py says how its numbers were made): tiny
//! models of every family, as safetensors and as GGUF, in F32, F16 and BF16, on the reference backend and on every
//! tier of the CPU backend; and the demonstration model.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops as ops;
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, BLOCK_TOKENS, DType, RowSource};
use safetensors::tensor::{Dtype, TensorView};

use super::*;
use crate::spec::{FAMILIES, Mask, TinyModel};

/// The largest allowed difference of a logit, as a share of the range of the golden ones.
const TOLERANCE: f32 = 1e-3;

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Folders of a kind that families name, and whether there is a GGUF file besides.
fn goldens(kind: &str) -> Vec<(&'static str, bool)> {
    let all = FAMILIES.iter().flat_map(|family| family.goldens);
    let of_kind =
        |golden: &TinyModel| Some((golden.folder.strip_prefix(kind)?.strip_prefix('/')?, golden.in_gguf));
    all.filter_map(of_kind).collect()
}

/// Models of a kind in every format that they have.
fn files_of(kind: &str) -> impl Iterator<Item = (&'static str, PathBuf)> {
    goldens(kind).into_iter().flat_map(move |(case, in_gguf)| {
        let folder = data(kind).join(case);
        let gguf = in_gguf.then(|| folder.join("model.gguf"));
        [folder].into_iter().chain(gguf).map(move |path| (case, path))
    })
}

fn fastest() -> AnyBackend {
    let tier = Tier::available().last().expect("the portable tier always is");
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}

/// What the transformers library computed.
struct Golden {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>, // (prompt + greedy - 1, vocab)
}

impl Golden {
    fn open(case: &str) -> Self {
        Self::read(&data("tiny").join(case))
    }

    fn read(folder: &Path) -> Self {
        let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
        let tensors = crate::safetensors::parse("golden", &bytes.into()).unwrap();
        let by_name = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let tokens = |name: &str| {
            by_name(name).bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
        };
        Self {
            prompt: tokens("prompt"),
            greedy: tokens("greedy"),
            logits: by_name("logits").to_f32().unwrap(),
        }
    }

    fn text(&self) -> Vec<u32> {
        let text = [&self.prompt[..], &self.greedy].concat();
        text[..text.len() - 1].to_vec()
    }
}

/// One sequence of a step: its tokens so far, of which the last `rows` are new, and its blocks, in each layer group after
/// those of the group before.
struct Work<'a> {
    tokens: &'a [u32],
    rows: usize,
    blocks: &'a [u32],
}

/// A decoder with a cache, made for up to `ROWS` rows of all logits.
struct Runner {
    backend: AnyBackend,
    decoder: Decoder,
    kv: ops::Kv,
    /// Tokens of the texts that steps are parts of, where those are longer.
    text_tokens: usize,
}

const ROWS: usize = 256;
const BLOCKS: usize = 40;

impl Runner {
    fn new(mut backend: AnyBackend, files: &ModelFiles) -> Self {
        let mut decoder = Decoder::load(&backend, files, &mut |_| ()).unwrap();
        let limits =
            StepLimits { logit_rows: ROWS, ..decoder.spec().step_limits(ROWS, 8, BLOCKS * BLOCK_TOKENS) };
        decoder.prepare(&mut backend, &limits).unwrap();
        let blocks = decoder.spec().kv_groups().count() * BLOCKS;
        let kv = backend.kv(&decoder.spec().kv_spec(blocks, hanzo_engine_ops::KvType::F16, 2)).unwrap();
        Self { backend, decoder, kv, text_tokens: 0 }
    }

    /// Logits of all new rows, `(rows, vocab)`.
    fn step(&mut self, works: &[Work<'_>]) -> Vec<f32> {
        self.adapted_step(works, &[])
    }

    /// As [`Runner::step`], each sequence with its adapter.
    fn adapted_step(&mut self, works: &[Work<'_>], adapters: &[Option<u32>]) -> Vec<f32> {
        let windows = self.decoder.spec().kv_groups().windows;
        let mut batch = Batch { windows, adapters: adapters.to_vec(), ..Batch::default() };
        for work in works {
            let first = work.tokens.len() - work.rows;
            batch.sources.extend(work.tokens[first..].iter().copied().map(RowSource::Token));
            batch.push_sequence(work.rows, work.tokens.len(), |group, index| {
                (group * BLOCKS) as u32 + work.blocks[index]
            });
        }
        if self.decoder.spec().keeps_states() {
            // One for each half of the blocks.
            batch.states = works.iter().map(|work| work.blocks[0] % 2).collect();
        }
        if let Some(original) = self.decoder.spec().long_after() {
            let long = |work: &Work<'_>| u32::from(work.tokens.len().max(self.text_tokens) > original);
            batch.types = works.iter().flat_map(|work| vec![long(work); work.rows]).collect();
        }
        batch.logit_rows = (0..batch.rows() as u32).collect();
        let mut logits = vec![0.0; batch.rows() * self.decoder.spec().vocab];
        self.decoder.forward(&mut self.backend, &batch, &mut self.kv, &mut logits).unwrap();
        logits
    }

    /// Logits of every token of a text, in one step, its blocks scattered over the cache.
    fn prefill(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.step(&[Work { tokens, rows: tokens.len(), blocks: &scattered(0) }])
    }

    /// Logits of the last token of a text that is taken in chunks, then `count` tokens, each the likeliest. `stop`
    /// sees the two best logits before each and ends the text when it says so.
    fn greedy(
        &mut self,
        prompt: &[u32],
        chunk: usize,
        count: usize,
        stop: impl Fn(f32, f32) -> bool,
    ) -> Vec<u32> {
        let vocab = self.decoder.spec().vocab;
        let blocks = scattered(1);
        let mut tokens = Vec::new();
        let mut logits = Vec::new();
        self.text_tokens = prompt.len();
        for rows in prompt.chunks(chunk) {
            tokens.extend(rows);
            logits = self.step(&[Work { tokens: &tokens, rows: rows.len(), blocks: &blocks }]);
        }
        for _ in 0..count {
            let (best, first, second) = best_two(&logits[logits.len() - vocab..]);
            if stop(first, second) {
                break;
            }
            tokens.push(best);
            logits = self.step(&[Work { tokens: &tokens, rows: 1, blocks: &blocks }]);
        }
        self.text_tokens = 0;
        tokens.split_off(prompt.len())
    }
}

/// Half of the cache's blocks, in no order.
fn scattered(half: u32) -> Vec<u32> {
    let count = BLOCKS as u32 / 2;
    (0..count).map(|index| 2 * ((index * 7 + 3) % count) + half).collect()
}

/// The likeliest token, its logit and the next best one.
fn best_two(logits: &[f32]) -> (u32, f32, f32) {
    let mut best = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (token as u32, logit, best.1);
        } else if logit > best.2 {
            best.2 = logit;
        }
    }
    best
}

fn range(values: &[f32]) -> f32 {
    let (min, max) =
        values.iter().fold((f32::MAX, f32::MIN), |(min, max), &value| (min.min(value), max.max(value)));
    max - min
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // `max` drops NaN; a NaN must not pass.
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}

/// Runs a check on the reference backend and on every tier this machine has of the CPU backend.
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

mod adapters;
mod cut;
mod dense;
mod folded;
mod formats;
mod gemma;
mod isq;
mod longrope;
mod measured;
mod mixtures;
mod multimodal;
mod observed;
mod ranks;
mod states;
mod tied;

fn check_golden(files: &ModelFiles, case: &str, what: &str) {
    let golden = Golden::open(case);
    let allowed = TOLERANCE * range(&golden.logits);
    on_every_backend!(files, format!("{case} {what}"), |runner, label| {
        let found = largest_difference(&runner.prefill(&golden.text()), &golden.logits);
        println!("{label}: largest difference {found:.2e}, allowed {allowed:.2e}");
        assert!(found <= allowed, "{label}: logits differ by {found}, allowed are {allowed}");
        let greedy = runner.greedy(&golden.prompt, 7, golden.greedy.len(), |_, _| false);
        assert_eq!(greedy, golden.greedy, "{label}");
    });
}

#[test]
fn safetensors_models_compute_what_transformers_does() {
    for (case, _) in goldens("tiny") {
        let files = ModelFiles::open(&data("tiny").join(case)).unwrap();
        check_golden(&files, case, "safetensors");
    }
}

#[test]
fn tiny_models_compute_what_the_library_does() {
    measured::check_kind("tiny", &goldens("tiny"));
}

#[test]
fn gguf_models_compute_what_transformers_does() {
    for (case, _) in goldens("tiny").into_iter().filter(|(_, in_gguf)| *in_gguf) {
        let files = ModelFiles::open(&data("tiny").join(case).join("model.gguf")).unwrap();
        check_golden(&files, case, "GGUF");
    }
}

/// A copy of a tiny model's directory with its weights in another type, which holds them exactly.
pub(crate) fn with_weights_as(case: &str, dtype: DType, shards: usize) -> tempfile::TempDir {
    let source = data("tiny").join(case);
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(name), directory.path().join(name)).unwrap();
    }
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let tensors = crate::safetensors::parse("model", &bytes.into()).unwrap();
    let (st_dtype, encode): (Dtype, fn(f32) -> Vec<u8>) = match dtype {
        DType::F32 => (Dtype::F32, |x| x.to_le_bytes().into()),
        DType::F16 => (Dtype::F16, |x| f16::from_f32(x).to_le_bytes().into()),
        DType::BF16 => (Dtype::BF16, |x| bf16::from_f32(x).to_le_bytes().into()),
        other => panic!("{other} is not a plain type"),
    };
    type ShapeAndBytes = (Vec<usize>, Vec<u8>);
    let mut parts: Vec<BTreeMap<String, ShapeAndBytes>> = vec![BTreeMap::new(); shards];
    for (index, tensor) in tensors.iter().enumerate() {
        let values = tensor.to_f32().unwrap().into_iter().flat_map(encode).collect();
        parts[index % shards].insert(tensor.name.clone(), (tensor.shape.clone(), values));
    }
    let mut weight_map = serde_json::Map::new();
    for (index, part) in parts.iter().enumerate() {
        let name = if shards == 1 {
            "model.safetensors".to_owned()
        } else {
            format!("model-{:05}-of-{shards:05}.safetensors", index + 1)
        };
        let views = part.iter().map(|(tensor, (shape, values))| {
            weight_map.insert(tensor.clone(), name.clone().into());
            (tensor.clone(), TensorView::new(st_dtype, shape.clone(), values).unwrap())
        });
        let views: Vec<_> = views.collect();
        fs::write(directory.path().join(&name), safetensors::serialize(views, None).unwrap()).unwrap();
    }
    if shards > 1 {
        let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
        fs::write(directory.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
    directory
}

#[test]
fn every_plain_type_computes_the_same() {
    for (dtype, shards) in [(DType::F32, 1), (DType::F16, 3)] {
        for case in ["qwen3", "llama-linear", "qwen3-moe"] {
            let directory = with_weights_as(case, dtype, shards);
            let files = ModelFiles::open(directory.path()).unwrap();
            assert_eq!(files.info.quantization, dtype.label());
            assert_eq!(files.info.files.len(), shards);
            check_golden(&files, case, dtype.label());
        }
    }
}

#[test]
fn both_formats_hold_the_same_model() {
    for (case, _) in goldens("tiny").into_iter().filter(|(_, in_gguf)| *in_gguf) {
        let text = Golden::open(case).text();
        let logits = |path: PathBuf| {
            let files = ModelFiles::open(&path).unwrap();
            Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&text)
        };
        let safetensors = logits(data("tiny").join(case));
        let gguf = logits(data("tiny").join(case).join("model.gguf"));
        let allowed = if case.starts_with("qwen") {
            0.0 // The same numbers in the same order.
        } else {
            // Dot products of permuted heads add up in another order, and halves round the other way at times.
            0.1 * TOLERANCE * range(&safetensors)
        };
        let found = largest_difference(&safetensors, &gguf);
        assert!(found <= allowed, "{case}: {found}, allowed are {allowed}");
    }
}

fn check_company(case: &str) {
    let files = ModelFiles::open(&data("tiny").join(case)).unwrap();
    let text = Golden::open(case).text();
    let vocab = files.spec.vocab;
    on_every_backend!(&files, case, |runner, label| {
        let alone = runner.prefill(&text);
        for chunk in [1, 7, 16] {
            let taken: Vec<f32> = (0..text.len())
                .step_by(chunk)
                .flat_map(|first| {
                    let tokens = &text[..text.len().min(first + chunk)];
                    runner.step(&[Work { tokens, rows: tokens.len() - first, blocks: &scattered(1) }])
                })
                .collect();
            assert!(taken == alone, "{label}: chunks of {chunk} differ");
        }
        let (own, other) = (scattered(1), scattered(0));
        // A chunk of the text beside the start of another, then its last token beside a longer chunk of that.
        let split = text.len() - 1;
        let stranger: Vec<u32> = text.iter().rev().copied().collect();
        let first = runner.step(&[
            Work { tokens: &stranger[..5], rows: 5, blocks: &other },
            Work { tokens: &text[..split], rows: split, blocks: &own },
        ]);
        let last = runner.step(&[
            Work { tokens: &text, rows: 1, blocks: &own },
            Work { tokens: &stranger[..30], rows: 25, blocks: &other },
        ]);
        assert!(first[5 * vocab..] == alone[..split * vocab], "{label}: prefill in company differs");
        assert!(last[..vocab] == alone[split * vocab..], "{label}: decode in company differs");
    });
}

#[test]
fn a_sequence_computes_the_same_in_company_and_in_chunks() {
    for case in ["qwen3", "qwen3-moe", "qwen3-moe-mixed", "qwen3-windows", "mixtral"] {
        check_company(case);
    }
}

/// Bytes of a network's matrices and experts as the CPU holds them.
pub(crate) fn packed_bytes(backend: &AnyBackend, network: &Network) -> usize {
    let matrix = |of| backend.read_matrix::<CpuBackend, _>(of, |matrix| matrix.bytes());
    let experts = |of| backend.read_layer_experts::<CpuBackend, _>(of, |experts| experts.bytes());
    let matrices = network.matrices().into_iter().map(matrix);
    matrices.chain(network.experts().map(experts)).map(|bytes| bytes.expect("the CPU packed it")).sum()
}

/// Loads a model and checks that it takes what was planned. `vectors` is how many numbers its vectors hold,
/// `buffer_cols` the widths of a step's buffers together.
fn check_plan(case: &str, vectors: usize, buffer_cols: usize) {
    let files = ModelFiles::open(&data("tiny").join(case)).unwrap();
    let backend =
        AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::available().last().unwrap()));
    let plan = Decoder::plan(&backend, &files);
    let mut heard = Vec::new();
    let decoder = Decoder::load(&backend, &files, &mut |done| heard.push(done)).unwrap();
    assert!(heard.is_sorted() && heard.last() == Some(&1.0), "{heard:?}");

    let matrix_bytes = packed_bytes(&backend, &decoder.network);
    let vectors = vectors + decoder.spec().ropes[0].dim / 2;
    assert_eq!(plan.weights_bytes, (matrix_bytes + 4 * vectors) as u64);

    let limits = decoder.spec().step_limits(10, 2, 100);
    let buffers = 4 * 10 * buffer_cols;
    assert_eq!(plan.scratch_bytes(&backend, &limits), (buffers + backend.scratch_bytes(&limits)) as u64);
}

#[test]
fn the_plan_is_what_loading_takes() {
    let (hidden, q, qkv) = (64, 64, 128); // llama-linear's widths
    check_plan("llama-linear", 2 * (2 * hidden + qkv + hidden) + hidden, 3 * hidden + qkv + q + 96);
    let (q, qkv, head) = (128, 256, 32);
    // Two experts of 24 for each token in place of an MLP of 48.
    check_plan("qwen3-moe-mixed", 3 * (2 * hidden + 2 * head) + hidden, 3 * hidden + qkv + q + 48);
    // Three of eight; no layer has an MLP of its own.
    check_plan("qwen3-moe", 2 * (2 * hidden + 2 * head) + hidden, 3 * hidden + qkv + q + 3 * 24);
}

#[test]
fn a_type_without_kernels_is_refused_before_anything_is_packed() {
    let path = data("tiny/qwen3/model.gguf");
    let mut file = fs::read(&path).unwrap();
    // Q4_0 of the embedding's 10,240 weights takes fewer bytes than BF16: the file stays sound.
    let name = b"token_embd.weight";
    let at = file.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 4 + 2 * 8;
    assert_eq!(file[at..at + 4], 30u32.to_le_bytes());
    file[at..at + 4].copy_from_slice(&24u32.to_le_bytes());
    let files = ModelFiles::from_bytes("odd", file.into()).unwrap();
    let backend = AnyBackend::new(ReferenceBackend::new());
    assert!(Decoder::plan(&backend, &files).weights_bytes > 0);
    let mut progress = |_| panic!("nothing is packed");
    let error = Decoder::load(&backend, &files, &mut progress).err().unwrap().to_string();
    assert_eq!(error, "tensor token_embd.weight: element type I8 cannot be computed on reference: 1 thread");
}

/// One prompt of tests/data/golden.json: the demonstration model's bf16 weights in float32.
#[derive(serde::Deserialize)]
struct DemoPrompt {
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    last4_logits_first8: Vec<Vec<f32>>,
    last4_argmax: Vec<u32>,
    last4_max: Vec<f32>,
    ids_until_eos: usize,
    smallest_margin_until_eos: f32,
}

fn demo_prompts() -> Vec<DemoPrompt> {
    #[derive(serde::Deserialize)]
    struct File {
        prompts: Vec<DemoPrompt>,
    }
    let bytes = fs::read(data("golden.json")).unwrap();
    serde_json::from_slice::<File>(&bytes).unwrap().prompts
}

/// Best logits this close in the golden values may be decided by rounding, which quantised weights add to.
const CLOSE: f32 = 0.05;

/// Runs the demonstration model's prompts and gives the largest difference from the golden logits, as a share of
/// their range. Greedy tokens must be the golden ones up to the end token; where a golden call is close, up to
/// the first close call. (Past its end token the model is off its ground, and Q8_0 may part from bf16.)
fn check_demo(runner: &mut Runner, prompts: &[DemoPrompt], label: &str) -> f32 {
    let vocab = runner.decoder.spec().vocab;
    let mut worst = 0.0f32;
    for (number, prompt) in prompts.iter().enumerate() {
        let logits = runner.prefill(&prompt.prompt_ids);
        let last_rows = logits[logits.len() - 4 * vocab..].chunks(vocab);
        for (index, row) in last_rows.enumerate() {
            let (best, first, second) = best_two(row);
            let argmax = prompt.last4_argmax[index];
            assert!(
                best == argmax || first - second < CLOSE,
                "{label}, prompt {number}: {best}, not {argmax}"
            );
            let difference = largest_difference(&row[..8], &prompt.last4_logits_first8[index])
                .max((first - prompt.last4_max[index]).abs());
            worst = worst.max(difference / range(row));
        }
        let close_calls = prompt.smallest_margin_until_eos < CLOSE;
        let greedy = runner.greedy(&prompt.prompt_ids, 64, prompt.ids_until_eos, |first, second| {
            close_calls && first - second < CLOSE
        });
        assert_eq!(greedy, prompt.greedy_ids[..greedy.len()], "{label}, prompt {number}");
    }
    worst
}

#[test]
fn the_demonstration_model_answers_as_it_should() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let files = ModelFiles::open(&path).unwrap();
    let prompts = demo_prompts();
    on_every_backend!(&files, "hanzo-demo", |runner, label| {
        // The reference takes its time.
        let prompts = if label.ends_with("reference") { &prompts[..3] } else { &prompts[..] };
        let worst = check_demo(&mut runner, prompts, &label);
        println!("{label}: logits differ by up to {worst:.2e} of their range");
        assert!(worst < 1e-2, "{label}: {worst}");
    });
}

/// A decoder with the weights of a tiny Gemma 3 that was made for attention to both sides, of its first layer alone.
fn gemma(change: impl Fn(&mut TransformerSpec)) -> (crate::encoder::EncoderFiles, TransformerSpec) {
    let files = crate::encoder::tests::open("embeddinggemma");
    let mut spec = files.spec.clone();
    spec.layers.truncate(1);
    spec.head = crate::spec::HeadSpec::plain(true);
    spec.layers[0].attention.mask = Mask::Causal { window: None };
    change(&mut spec);
    (files, spec.checked("gemma").unwrap())
}

/// The last token's hidden state, by a cache in blocks.
fn last_hidden(files: &crate::encoder::EncoderFiles, spec: &TransformerSpec, tokens: &[u32]) -> Vec<f32> {
    let mut backend = AnyBackend::new(ReferenceBackend::new());
    let mut unheard = |_| ();
    let mut loader = Loader::new(&backend, spec, &files.tensors, WeightType::Stored, &mut unheard).unwrap();
    let mut decoder = Decoder {
        network: loader.network().unwrap(),
        memories: None,
        slopes: None,
        head_bias: None,
        attention: CacheAttention::default(),
        remembering: Vec::new(),
    };
    let limits = StepLimits { logit_rows: ROWS, ..spec.step_limits(ROWS, 1, BLOCKS * BLOCK_TOKENS) };
    decoder.prepare(&mut backend, &limits).unwrap();
    let kv = backend.kv(&spec.kv_spec(BLOCKS, hanzo_engine_ops::KvType::F16, 1)).unwrap();
    let mut runner = Runner { backend, decoder, kv, text_tokens: 0 };
    let split = tokens.len() / 2;
    let blocks = scattered(0);
    runner.step(&[Work { tokens: &tokens[..split], rows: split, blocks: &blocks }]);
    let rows = tokens.len() - split;
    runner.step(&[Work { tokens, rows, blocks: &blocks }]);
    let mut hidden = vec![0.0; spec.hidden];
    runner.decoder.read_hidden(&runner.backend, rows - 1, &mut hidden).unwrap();
    hidden
}

/// Norms on both sides of halves, norms stored less one, scaled embeddings, normed heads: in a network of one layer the last
/// token sees the same whether others see ahead or not.
#[test]
fn a_decoder_computes_the_layers_that_encoders_have() {
    let tokens: Vec<u32> = (0..23).map(|index| (index * 37 + 5) % 97).collect();
    for (rope, window) in [(0, None), (1, Some(5))] {
        let (files, spec) = gemma(|spec| {
            let attention = &mut spec.layers[0].attention;
            (attention.rope, attention.mask) = (Some(rope), Mask::Causal { window });
        });
        let mut both_sides = spec.clone();
        both_sides.head = crate::spec::HeadSpec::None;
        both_sides.layers[0].attention.mask = Mask::Whole { reach: window.map(|window| window - 1) };
        let expected = crate::encoder::tests::last_hidden(&files, both_sides, &tokens);
        let found = last_hidden(&files, &spec, &tokens);
        let difference = largest_difference(&found, &expected);
        // Keys and values in the cache are halves.
        assert!(difference < 2e-3 * range(&expected), "rope {rope}: {difference} of {}", range(&expected));
    }
}

#[test]
fn a_softcap_of_scores_and_a_window_reach_attention() {
    let tokens: Vec<u32> = (0..23).map(|index| (index * 37 + 5) % 97).collect();
    let (files, plain) = gemma(|_| ());
    let plain = last_hidden(&files, &plain, &tokens);
    let with = |change: fn(&mut crate::spec::AttentionSpec)| {
        let (_, spec) = gemma(|spec| change(&mut spec.layers[0].attention));
        largest_difference(&last_hidden(&files, &spec, &tokens), &plain) / range(&plain)
    };
    // One that no score comes near changes nothing; one that all reach makes them alike.
    assert!(with(|attention| attention.softcap = Some(1e6)) < 1e-4);
    assert!(with(|attention| attention.softcap = Some(1e-3)) > 1e-3);
    assert!(with(|attention| attention.mask = Mask::Causal { window: Some(23) }) == 0.0);
    assert!(with(|attention| attention.mask = Mask::Causal { window: Some(3) }) > 1e-3);
}
