//! Vision models against the transformers library's own classes and processors (make_vision.py, make_qwen.py and
//! make_llava.py in tests/data/vision make the golden numbers): prompts, rows, log probabilities and tokens, in
//! every kind of batch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_media::{Picture, PictureOptions};
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, KvType};
use serde_json::Value;

mod beside;
mod embedded;
mod jpegs;
mod letters;
mod narrow;
mod remembering;

use super::*;
use crate::chat::{Chat, Message};
use crate::decoder::Decoder;
use crate::job::{Event, EventKind, Job, JobId, StopConditions};
use crate::media::PICTURE;
use crate::overrides::{Mmproj, Overrides};
use crate::{Engine, EngineConfig, LineEnds, MediaSpan, OpenedModel, SamplingParams, Speculation, TextModel};

const CASES: &[&str] = &[
    "smolvlm",
    "idefics2",
    "idefics3",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "gemma3",
    "llava",
    "llava_next",
    "pixtral",
    "mistral3",
    "mllama",
];
/// Largest possible piece.
pub(super) const ALL: Piece = Piece::Layers(100);
/// Smallest possible piece.
const LEAST: Piece = products(0.0);
/// Maximum difference of a row's number, as a share of the golden numbers' range.
const ROWS_TOLERANCE: f32 = 1e-4;
/// Tolerance of a log probability, as a share of the golden logits' range. The KV cache has half precision.
const LOGPROBS_TOLERANCE: f64 = 1e-3;

const fn products(millions: f64) -> Piece {
    Piece::Products { millions, attention: 2.0 }
}

fn folder(case: &str) -> PathBuf {
    crate::decoder::tests::data("vision").join(case)
}

/// Same function as `texture` in make_vision.py.
pub(crate) fn texture([width, height]: [u64; 2]) -> Picture {
    let value = |x: u64, y: u64, c: u64| {
        let edge = if (x / 7 + y / 5 + c).is_multiple_of(2) { 60 } else { 0 };
        let noise = (x * 7919 + y * 104_729 + c * 1_299_709) % 31;
        ((x * (3 + c) + y * (5 - c)) % 256 / 2 + edge + noise).min(255) as u8
    };
    let rgb = (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |c| value(x, y, c))));
    Picture { width: width as u32, height: height as u32, rgb: rgb.collect() }
}

/// Conversation with the library's results.
#[derive(Clone)]
pub(crate) struct Talk {
    chat: Chat,
    pub(crate) pictures: Vec<Picture>,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>, // (greedy, vocab)
    rows: Vec<f32>,   // of all frames
}

pub(crate) fn talks(case: &str) -> Vec<Talk> {
    let golden: Value = serde_json::from_slice(&fs::read(folder(case).join("golden.json")).unwrap()).unwrap();
    let bytes = fs::read(folder(case).join("golden.safetensors")).unwrap();
    let numbers = crate::safetensors::parse("golden", &bytes.into()).unwrap();
    let numbers = |name: String| numbers.iter().find(|found| found.name == name).unwrap().to_f32().unwrap();
    let tokens = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
    };
    let talk = |(index, of): (usize, &Value)| {
        let mut pictures = Vec::new();
        let mut message = |of: &Value| {
            let mut content = String::new();
            for part in of["parts"].as_array().unwrap() {
                match part.as_str() {
                    Some(text) => content.push_str(text),
                    None => {
                        content.push(PICTURE);
                        pictures.push(texture([0, 1].map(|side| part[side].as_u64().unwrap())));
                    }
                }
            }
            Message { role: of["role"].as_str().unwrap().to_owned(), content, ..Message::default() }
        };
        let messages: Vec<Message> = of["messages"].as_array().unwrap().iter().map(&mut message).collect();
        Talk {
            chat: Chat { messages, add_generation_prompt: true, pictures: pictures.len(), ..Chat::default() },
            pictures,
            tokens: tokens(&of["tokens"]),
            greedy: tokens(&of["greedy"]),
            logits: numbers(format!("logits.{index}")),
            rows: numbers(format!("rows.{index}")),
        }
    };
    golden.as_array().unwrap().iter().enumerate().map(talk).collect()
}

fn open(case: &str) -> (OpenedModel, Arc<TextModel>) {
    open_at(&folder(case))
}

fn open_at(path: &Path) -> (OpenedModel, Arc<TextModel>) {
    let opened = OpenedModel::open(path).unwrap();
    let text = Arc::new(opened.text_model().unwrap());
    (opened, text)
}

fn files(opened: &OpenedModel) -> &TowerFiles {
    opened.decoder().unwrap().tower.as_ref().expect("it sees")
}

/// A conversation's prompt.
pub(crate) fn prompt(text: &TextModel, talk: &Talk) -> (Vec<u32>, Vec<MediaSpan>) {
    let sight = text.sight.as_ref().unwrap();
    let prepared = talk
        .pictures
        .iter()
        .map(|of| sight.prepare(of.clone(), PictureOptions::default()).unwrap())
        .collect();
    let rendered = text.prompt_from_chat(&talk.chat, 1024, &|| false).unwrap();
    sight.place(&rendered.tokens, prepared, &text.tokenizer).unwrap()
}

fn job(id: u64, text: &TextModel, talk: &Talk) -> Job {
    let (tokens, media) = prompt(text, talk);
    let job = Job {
        id: JobId(id),
        prompt: tokens.into(),
        media: media.into(),
        sampling: SamplingParams { temperature: 0.0, logprobs: Some(0), ..SamplingParams::default() },
        stop: StopConditions {
            max_tokens: talk.greedy.len() as u32,
            ignore_eos: true,
            ..StopConditions::default()
        },
        ..Job::default()
    };
    job.validate(text, 512).unwrap();
    job
}

pub(super) fn cpu(tier: Tier) -> AnyBackend {
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}

fn engine(model: &(OpenedModel, Arc<TextModel>), step_tokens_max: usize) -> Engine {
    engine_of(model, step_tokens_max, 96, Tier::detect().unwrap())
}

fn engine_of(
    (opened, text): &(OpenedModel, Arc<TextModel>),
    step_tokens_max: usize,
    kv_blocks: usize,
    tier: Tier,
) -> Engine {
    let backend = cpu(tier);
    let embedder = Arc::new(opened.embedder(&text.tokenizer, 512).unwrap());
    let decoder = Decoder::load(&backend, opened.decoder().unwrap(), &mut |_| ()).unwrap();
    let tower = Tower::load(cpu(tier), files(opened), 512).unwrap();
    let config = config(opened, step_tokens_max, kv_blocks);
    Engine::new(backend, decoder, text.clone(), embedder, config).unwrap().with_tower(Box::new(tower))
}

fn config(opened: &OpenedModel, step_tokens_max: usize, kv_blocks: usize) -> EngineConfig {
    let room = opened.decoder().unwrap().spec.kv_room(step_tokens_max);
    EngineConfig {
        kv_blocks,
        kv_type: KvType::F16,
        kv_resident: false,
        step_tokens_max,
        prefill_tokens_beside_decodes: step_tokens_max / 2,
        sequences_max: 8,
        context_tokens_max: (1..=512).rev().find(|&tokens| room.blocks_of(tokens) <= kv_blocks).unwrap(),
        prefix_cache: true,
        speculation: Speculation::Ngram,
    }
}

/// Output of a job.
#[derive(Clone, Debug, Default, PartialEq)]
struct Drawn {
    tokens: Vec<u32>,
    /// Log probabilities of tokens with text.
    logprobs: Vec<(u32, f32)>,
}

/// Runs all jobs. Returns the output of each.
fn finish(engine: &mut Engine) -> BTreeMap<JobId, Drawn> {
    let mut events = Vec::new();
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    engine.check();
    drawn(&events)
}

fn drawn(events: &[Event]) -> BTreeMap<JobId, Drawn> {
    let mut all: BTreeMap<JobId, Drawn> = BTreeMap::new();
    for event in events {
        if let EventKind::Delta { tokens, logprobs, .. } = &event.kind {
            let of = all.entry(event.job).or_default();
            of.tokens.extend(tokens);
            of.logprobs.extend(logprobs.iter().map(|of| (of.logprob.token, of.logprob.logprob)));
        }
    }
    all
}

#[test]
fn prompts_are_the_processors() {
    for case in CASES {
        let (_, text) = open(case);
        let image = text.sight.as_ref().unwrap();
        for talk in talks(case) {
            let (tokens, spans) = prompt(&text, &talk);
            // Some vocabularies lack the image token.
            let stand_in = image.stand_in();
            let known = talk.tokens.iter().map(|&token| match token as usize >= text.vocab {
                true => stand_in.unwrap(),
                false => token,
            });
            assert_eq!(tokens, known.collect::<Vec<_>>(), "{case}");
            let rows: usize = spans.iter().map(|span| seen(span).count()).sum();
            assert_eq!(rows * image.row_width(), talk.rows.len(), "{case}");
            assert!(spans.iter().all(|span| image.fits(span)));
            let [lines, columns] = spans[0].grid;
            let other = MediaSpan { grid: [lines + 1, columns], ..spans[0].clone() };
            assert!(!image.fits(&other), "more than there is");
            let other = MediaSpan { whole: [lines + 1, columns], ..other };
            assert!(!image.fits(&other), "another shape than its pixels have");
            assert!(!image.fits(&MediaSpan { in_plane: !spans[0].in_plane, ..spans[0].clone() }));
            assert!(!image.fits(&MediaSpan { mutual: !spans[0].mutual, ..spans[0].clone() }));
            assert!(!image.fits(&MediaSpan { remembered: [1, 7], ..spans[0].clone() }));
            let ends = if spans[0].ends == LineEnds::Tokens { LineEnds::None } else { LineEnds::Tokens };
            assert!(!image.fits(&MediaSpan { ends, ..spans[0].clone() }));
        }
        let (talk, sight) = (&talks(case)[0], text.sight.as_ref().unwrap());
        let refused = sight.place(&talk.tokens, Vec::new(), &text.tokenizer);
        assert!(refused.is_err(), "more places than pictures");
    }
}

/// Tokens of a span that are rows of its picture.
fn seen(span: &MediaSpan) -> impl Iterator<Item = usize> {
    (0..span.tokens).filter(|token| !span.is_token(span.first + token))
}

pub(super) fn rows_of(
    backend: AnyBackend,
    opened: &OpenedModel,
    spans: &[MediaSpan],
    piece: Piece,
) -> Vec<f32> {
    let mut tower = Tower::load(backend, files(opened), 512).unwrap();
    let mut all = Vec::new();
    for span in spans {
        tower.begin(span).unwrap();
        loop {
            if let Some(rows) = tower.advance(piece).unwrap() {
                let width = rows.len() / span.tokens;
                all.extend(seen(span).flat_map(|row| &rows[row * width..][..width]));
                break;
            }
        }
    }
    all
}

#[test]
fn rows_are_the_librarys_on_every_backend() {
    for case in CASES {
        let (opened, text) = open(case);
        for (index, talk) in talks(case).iter().enumerate() {
            let (_, spans) = prompt(&text, talk);
            let largest = talk.rows.iter().fold(f32::MIN, |a, &b| a.max(b));
            let range = largest - talk.rows.iter().fold(f32::MAX, |a, &b| a.min(b));
            let check = |what: &str, rows: &[f32]| {
                assert_eq!(rows.len(), talk.rows.len());
                let differs = rows.iter().zip(&talk.rows).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(differs <= ROWS_TOLERANCE * range, "{case} {index} {what}: {differs} of {range}");
            };
            if index == 0 {
                check("reference", &rows_of(AnyBackend::new(ReferenceBackend::new()), &opened, &spans, ALL));
            }
            for tier in Tier::available() {
                let rows = rows_of(cpu(tier), &opened, &spans, ALL);
                check(&format!("{tier:?}"), &rows);
                for piece in [Piece::Layers(1), LEAST, products(0.4), products(3.0)] {
                    let pieces = rows_of(cpu(tier), &opened, &spans, piece);
                    assert!(pieces == rows, "{case} {index} {tier:?}: by {piece:?}");
                }
            }
        }
    }
}

#[test]
fn answers_are_the_librarys_in_any_company_on_every_tier() {
    let mut preemptions = 0;
    for case in CASES {
        let (model, talks) = (open(case), talks(case));
        let jobs = talks.iter().enumerate().map(|(id, talk)| job(id as u64, &model.1, talk));
        let jobs: Vec<Job> = jobs.collect();
        for tier in Tier::available() {
            let alone = alone_and_again(&format!("{case} by {tier}"), &model, (&jobs, &talks), tier);
            preemptions += beside_each_other(&format!("{case} by {tier}"), &model, (&jobs, &alone), tier);
        }
    }
    assert!(preemptions > 0, "nobody was put back");
}

/// Output of each job alone: the library's tokens with its log probabilities. Then once more, when the tower's rows
/// and the prompt are cached.
fn alone_and_again(
    named: &str,
    model: &(OpenedModel, Arc<TextModel>),
    (jobs, talks): (&[Job], &[Talk]),
    tier: Tier,
) -> Vec<Drawn> {
    let (mut one, mut alone) = (engine_of(model, 64, 96, tier), Vec::new());
    for (job, talk) in jobs.iter().zip(talks) {
        one.submit(job);
        let found = finish(&mut one).remove(&job.id).unwrap();
        assert_eq!(found.tokens, talk.greedy, "{named} alone");
        let vocab = talk.logits.len() / talk.greedy.len();
        let mut golden = talk.greedy.iter().zip(talk.logits.chunks_exact(vocab));
        assert!(found.logprobs.len() > 10);
        for &(token, logprob) in &found.logprobs {
            let (_, logits) = golden.find(|&(&of, _)| of == token).unwrap();
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let known = f64::from(logits[token as usize]) - sum.ln();
            let largest = logits.iter().fold(f32::MIN, |a, &b| a.max(b));
            let range = f64::from(largest - logits.iter().fold(f32::MAX, |a, &b| a.min(b)));
            let differs = (f64::from(logprob) - known).abs();
            assert!(differs < LOGPROBS_TOLERANCE * range, "{named}: {logprob} for {known} of {range}");
        }
        let (seen, hits) = (one.stats().frames_seen, one.stats().prefix_hit_tokens);
        let again = JobId(job.id.0 + 100);
        one.submit(&Job { id: again, ..job.clone() });
        assert_eq!(finish(&mut one)[&again], found, "{named} again");
        assert_eq!(one.stats().frames_seen, seen, "{named}: nothing is seen twice");
        assert!(one.stats().prefix_hit_tokens > hits, "{named}: its prefix is found");
        alone.push(found);
    }
    alone
}

/// Runs all jobs together, in steps of any size, also with so few blocks that some are preempted. Returns the
/// number of preemptions.
fn beside_each_other(
    named: &str,
    model: &(OpenedModel, Arc<TextModel>),
    (jobs, alone): (&[Job], &[Drawn]),
    tier: Tier,
) -> u64 {
    let room = model.0.decoder().unwrap().spec.kv_room(64);
    let needs = |of: usize| room.blocks_of(jobs[of].prompt.len() + jobs[of].stop.max_tokens as usize);
    let short = (needs(0) + needs(1) - 1).max(needs(1)).max(needs(2));
    // A picture with mutual attention needs a step that holds it whole.
    let least = if jobs[0].media.iter().any(|span| span.mutual) { 41 } else { 9 };
    let mut preemptions = 0;
    for (step_tokens_max, kv_blocks) in [(512, 96), (64, 96), (least, 96), (64, short)] {
        let mut engine = engine_of(model, step_tokens_max, kv_blocks, tier);
        jobs.iter().for_each(|job| engine.submit(job));
        let found = finish(&mut engine);
        assert_eq!(found.len(), jobs.len());
        for (found, alone) in found.values().zip(alone) {
            assert_eq!(found, alone, "{named} in steps of {step_tokens_max}, {kv_blocks} blocks");
        }
        preemptions += engine.stats().preemptions;
    }
    preemptions
}

#[test]
fn other_pictures_give_other_answers() {
    for case in CASES {
        let model = open(case);
        // Two adjacent pictures are attended to alike with cross-attention.
        let mut talk = talks(case).remove(if *case == "mllama" { 2 } else { 1 });
        let mut engine = engine(&model, 64);
        talk.pictures.swap(0, 1);
        engine.submit(job(1, &model.1, &talk));
        assert_ne!(finish(&mut engine)[&JobId(1)].tokens, talk.greedy, "{case}");
    }
}

#[test]
fn answers_go_on_beside_a_picture_and_one_that_is_left_is_forgotten() {
    let model = open("smolvlm");
    let talks = talks("smolvlm");
    let mut engine = engine(&model, 64);
    let text = Job { media: [].into(), ..job(1, &model.1, &talks[0]) };
    engine.submit(&text);
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    engine.step(&mut events).unwrap();
    engine.submit(job(2, &model.1, &talks[0]));
    engine.submit(job(3, &model.1, &talks[1]));
    assert_eq!(engine.stats().waiting, 2);
    let count = |events: &[Event]| drawn(events).get(&JobId(1)).map_or(0, |of| of.tokens.len());
    let before = count(&events);
    for _ in 0..6 {
        engine.step(&mut events).unwrap();
    }
    assert!(count(&events) >= before + 5, "a token a step");
    assert!(engine.stats().frames_seen >= 2, "and some of the picture");
    engine.cancel(JobId(2));
    assert_eq!(engine.stats().waiting, 1);
    events.clear();
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    engine.check();
    assert!(engine.is_idle() && events.iter().all(|event| event.job.0 != 2));
    assert_eq!(drawn(&events)[&JobId(3)].tokens, talks[1].greedy);
}

#[test]
fn a_processor_of_which_a_setting_would_be_lost_is_refused() {
    let copy = |change: &dyn Fn(&mut Value)| {
        let directory = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder("smolvlm")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
        }
        let path = directory.path().join("preprocessor_config.json");
        let mut settings: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut settings);
        fs::write(&path, settings.to_string()).unwrap();
        OpenedModel::open(directory.path()).map(|opened| opened.info().not_read)
    };
    assert_eq!(copy(&|_| ()).unwrap(), [""; 0]);
    let refused = copy(&|settings| settings["crop_size"] = 3.into()).unwrap_err().to_string();
    assert!(refused.contains("crop_size") && refused.contains("preprocessor_config.json"), "{refused}");
    let refused = copy(&|settings| settings["max_image_size"]["longest_edge"] = 50.into()).unwrap_err();
    assert!(refused.to_string().contains("frames of 50 pixels"), "{refused}");
    // Without settings for pictures it is a text model.
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder("smolvlm").join(name), directory.path().join(name)).unwrap();
    }
    let opened = OpenedModel::open(directory.path()).unwrap();
    assert_eq!(opened.info().not_read, ["images"]);
    assert!(opened.text_model().unwrap().sight.is_none());
}

/// Models with llama.cpp files in the test data (make_mmproj.py).
const OF_FILES: [&str; 9] =
    ["smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "llava_next", "pixtral", "mistral3"];

fn numbers(files: &TowerFiles) -> Vec<(Vec<usize>, Vec<f32>)> {
    let all = files.tensors.all().chain(files.beside());
    all.map(|tensor| (tensor.shape.clone(), tensor.to_f32().unwrap())).collect()
}

#[test]
fn a_tower_in_a_file_of_its_own_is_the_models_and_answers_as_it() {
    for case in OF_FILES {
        let model = open_at(&folder(case).join("text.gguf"));
        let (own, _) = open(case);
        let (own, found) = (files(&own), files(&model.0));
        assert_eq!(found.spec, own.spec, "{case}");
        // Its file does not say that pictures are cropped.
        let whole = case != "llava";
        assert_eq!(found.processor == own.processor, whole, "{case}: {:?}", found.processor);
        for (at, (found, own)) in numbers(found).into_iter().zip(numbers(own)).enumerate() {
            assert_eq!(found.0, own.0, "{case}: tensor {at}");
            // Tensors that the converter keeps in half precision lose some accuracy near 0.
            let differs = found.1.iter().zip(&own.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(differs < 1e-6, "{case}: tensor {at} {:?} differs by {differs}", own.0);
        }
        let info = model.0.info();
        assert!(info.files.len() == 2 && info.not_read.is_empty(), "{info:?}");
        let mut engine = engine(&model, 64);
        for (id, talk) in talks(case).iter().enumerate().take(if whole { 3 } else { 1 }) {
            assert_eq!(prompt(&model.1, talk).0, talk.tokens, "{case}");
            engine.submit(job(id as u64, &model.1, talk));
            let found = finish(&mut engine).remove(&JobId(id as u64)).unwrap();
            // GGUF files name more end tokens, which are never sampled.
            let ends = &model.1.eos;
            let before = talk.greedy.iter().position(|token| ends.contains(token)).unwrap_or(32);
            assert!(before > 5, "{case} {id}: {before}");
            assert_eq!(found.tokens[..before], talk.greedy[..before], "{case} {id}");
        }
    }
}

#[test]
fn the_tower_of_another_model_is_refused_by_name() {
    let file = |case: &str, name: &str| folder(case).join(name);
    let with = |case: &str, tower: PathBuf| {
        let overrides = Overrides { mmproj: Mmproj::File(tower), ..Overrides::default() };
        OpenedModel::open_with(&file(case, "text.gguf"), &overrides).map(drop).unwrap_err().to_string()
    };
    for (case, tower, named) in [
        (
            "gemma3",
            file("smolvlm", "mmproj.gguf"),
            ["smolvlm/mmproj.gguf", "idefics3", "the text model is gemma3"],
        ),
        ("qwen3_vl", file("qwen2_5_vl", "mmproj.gguf"), ["qwen2.5vl_merger", "qwen3vl", "another model's"]),
        ("smolvlm", file("gemma3", "mmproj.gguf"), ["gemma3", "the text model is llama", "another model's"]),
        ("smolvlm", file("pixtral", "mmproj.gguf"), ["smolvlm/text.gguf", "token [IMG]", "mmproj = none"]),
        ("smolvlm", file("smolvlm", "text.gguf"), ["text.gguf", "general.architecture", "projector"]),
        ("smolvlm", file("smolvlm", "no.gguf"), ["no.gguf", "", ""]),
    ] {
        let refused = with(case, tower);
        assert!(named.iter().all(|part| refused.contains(part)), "{refused}");
    }
    // As wide as the text's rows it must be.
    let (mut gguf, _) = crate::gguf::open(&file("smolvlm", "mmproj.gguf")).unwrap();
    let (text, _) = crate::gguf::open(&file("smolvlm", "text.gguf")).unwrap();
    let spec = crate::spec::from_gguf(&text, []).unwrap();
    let wider = crate::spec::TransformerSpec { hidden: 128, ..spec.clone() };
    let refused = TowerFiles::of_mmproj(gguf.clone(), &text.metadata, &wider).unwrap_err().to_string();
    assert!(refused.contains("64 elements") && refused.contains("128"), "{refused}");
    // An unread setting could change the tower.
    let mut metadata = (*gguf.metadata).clone();
    metadata.set("clip.vision.swiglu_clamp", crate::gguf::Value::U32(1));
    gguf.metadata = Arc::new(metadata);
    let refused = TowerFiles::of_mmproj(gguf, &text.metadata, &spec).unwrap_err().to_string();
    assert!(refused.contains("clip.vision.swiglu_clamp"), "{refused}");
    // A folder has its own tower, so the override is refused.
    let overrides =
        Overrides { mmproj: Mmproj::File(file("smolvlm", "mmproj.gguf")), ..Overrides::default() };
    let refused = OpenedModel::open_with(&folder("smolvlm"), &overrides).unwrap_err().to_string();
    assert!(refused.contains("mmproj") && refused.contains("folder"), "{refused}");
}

#[test]
fn of_towers_beside_a_model_its_own_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let copy = |case: &str, name: &str, to: &str| {
        let to = directory.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(folder(case).join(name), &to).unwrap();
        to
    };
    let sees = |path: &Path, mmproj: Mmproj| {
        let opened = OpenedModel::open_with(path, &Overrides { mmproj, ..Overrides::default() }).unwrap();
        let found = opened.info().files.get(1).cloned();
        assert_eq!(opened.text_model().unwrap().sight.is_some(), found.is_some());
        found
    };
    let text = copy("smolvlm", "text.gguf", "m-Q8_0.gguf");
    assert_eq!(sees(&text, Mmproj::Beside), None);
    copy("gemma3", "mmproj.gguf", "mmproj-other-f16.gguf");
    assert_eq!(sees(&text, Mmproj::Beside), None, "that of another family");
    let last = copy("smolvlm", "mmproj.gguf", "mmproj-m-F32.gguf");
    assert_eq!(sees(&text, Mmproj::Beside), Some(last.clone()));
    let best = copy("smolvlm", "mmproj.gguf", "m.mmproj-F16.gguf");
    assert_eq!(sees(&text, Mmproj::Beside), Some(best.clone()));
    assert_eq!(sees(&text, Mmproj::File(last.clone())), Some(last));
    assert_eq!(sees(&text, Mmproj::None), None);
    // In the folder above that of a quantisation.
    let below = copy("smolvlm", "text.gguf", "Q8_0/m-Q8_0.gguf");
    assert_eq!(sees(&below, Mmproj::Beside), Some(best));
    let below = copy("smolvlm", "text.gguf", "other/m-Q8_0.gguf");
    assert_eq!(sees(&below, Mmproj::Beside), None);
}
