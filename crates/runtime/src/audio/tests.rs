//! Audio models against the transformers library's own classes (make_audio.py in tests/data/audio makes the golden
//! numbers): frames, prompts, rows, log probabilities and tokens, in every kind of batch.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::reference::ReferenceBackend;
use hanzo_engine_ops::{AnyBackend, KvType};
use serde_json::Value;

use super::*;
use crate::chat::{Chat, Message};
use crate::decoder::Decoder;
use crate::job::{Event, EventKind, Job, JobId, StopConditions};
use crate::media::SOUND;
use crate::vision::{Piece, Towers};
use crate::{Engine, EngineConfig, MediaSpan, OpenedModel, SamplingParams, Speculation, TextModel};

const CASES: &[&str] = &["qwen2_audio", "voxtral", "qwen3_asr"];
/// Maximum difference of a frame's number; the numbers of a sound have a range of 2.
const FRAMES_TOLERANCE: f32 = 2e-5;
/// Tolerance of a row's numbers, as a share of the golden numbers' range.
const ROWS_TOLERANCE: f32 = 2e-5;
/// Tolerance of a log probability, as a share of the golden logits' range. The KV cache has half precision.
const LOGPROBS_TOLERANCE: f64 = 1e-3;

fn folder(case: &str) -> PathBuf {
    crate::decoder::tests::data("audio").join(case)
}

/// Same function as `sound` in make_audio.py.
fn sound([samples, pitch]: [usize; 2]) -> Vec<f32> {
    let sample = |at: usize| {
        let n = at as f64;
        let voice = 0.3
            * (0.03 * (1 + pitch) as f64 * n + 3.0 * (0.0007 * n).sin()).sin()
            * (0.5 + 0.5 * (0.001 * n).sin());
        let noise = ((at * at * 7919) % 1000) as f64 / 1000.0 - 0.5;
        (voice + 0.05 * noise) as f32
    };
    (0..samples).map(sample).collect()
}

/// Conversation with the library's results.
struct Talk {
    chat: Chat,
    sounds: Vec<Vec<f32>>,
    tokens: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>, // (greedy, vocab)
    rows: Vec<f32>,   // of all sounds
}

fn numbers(case: &str, name: &str) -> Vec<f32> {
    let bytes = fs::read(folder(case).join("golden.safetensors")).unwrap();
    let numbers = crate::safetensors::parse("golden", &bytes.into()).unwrap();
    numbers.iter().find(|found| found.name == name).unwrap().to_f32().unwrap()
}

fn talks(case: &str) -> Vec<Talk> {
    let golden: Value = serde_json::from_slice(&fs::read(folder(case).join("golden.json")).unwrap()).unwrap();
    let tokens = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
    };
    let talk = |(index, of): (usize, &Value)| {
        let mut sounds = Vec::new();
        let mut message = |of: &Value| {
            let mut content = String::new();
            for part in of["parts"].as_array().unwrap() {
                match part.as_str() {
                    Some(text) => content.push_str(text),
                    None => {
                        content.push(SOUND);
                        sounds.push(sound([0, 1].map(|which| part[which].as_u64().unwrap() as usize)));
                    }
                }
            }
            Message { role: of["role"].as_str().unwrap().to_owned(), content, ..Message::default() }
        };
        let messages: Vec<Message> = of["messages"].as_array().unwrap().iter().map(&mut message).collect();
        Talk {
            chat: Chat { messages, add_generation_prompt: true, sounds: sounds.len(), ..Chat::default() },
            sounds,
            tokens: tokens(&of["tokens"]),
            greedy: tokens(&of["greedy"]),
            logits: numbers(case, &format!("logits.{index}")),
            rows: numbers(case, &format!("rows.{index}")),
        }
    };
    golden.as_array().unwrap().iter().enumerate().map(talk).collect()
}

fn open(case: &str) -> (OpenedModel, Arc<TextModel>) {
    let opened = OpenedModel::open(&folder(case)).unwrap();
    let text = Arc::new(opened.text_model().unwrap());
    (opened, text)
}

fn files(opened: &OpenedModel) -> &AudioFiles {
    opened.decoder().unwrap().ear.as_ref().expect("it hears")
}

fn heard(hearing: &SoundPreprocessor, samples: &[f32]) -> PreparedSound {
    let mut listening = hearing.listen();
    samples.chunks(1000).for_each(|part| listening.push(part));
    listening.finish().unwrap()
}

/// A conversation's prompt.
fn prompt(text: &TextModel, talk: &Talk) -> (Vec<u32>, Vec<MediaSpan>) {
    let hearing = text.hearing.as_ref().unwrap();
    let sounds = talk.sounds.iter().map(|samples| heard(hearing, samples)).collect();
    let rendered = text.prompt_from_chat(&talk.chat, 1024, &|| false).unwrap();
    hearing.place(&rendered.tokens, sounds).unwrap()
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

fn cpu(tier: Tier) -> AnyBackend {
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}

fn engine(
    (opened, text): &(OpenedModel, Arc<TextModel>),
    step_tokens_max: usize,
    kv_blocks: usize,
) -> Engine {
    let room = opened.decoder().unwrap().spec.kv_room(step_tokens_max);
    let config = EngineConfig {
        kv_blocks,
        kv_type: KvType::F16,
        kv_resident: false,
        step_tokens_max,
        prefill_tokens_beside_decodes: step_tokens_max / 2,
        sequences_max: 8,
        context_tokens_max: (1..=512).rev().find(|&tokens| room.blocks_of(tokens) <= kv_blocks).unwrap(),
        prefix_cache: true,
        speculation: Speculation::Ngram,
    };
    let tier = Tier::detect().unwrap();
    let backend = cpu(tier);
    let embedder = Arc::new(opened.embedder(&text.tokenizer, 512).unwrap());
    let decoder = Decoder::load(&backend, opened.decoder().unwrap(), &mut |_| ()).unwrap();
    let tower = AudioTower::load(cpu(tier), files(opened)).unwrap();
    Engine::new(backend, decoder, text.clone(), embedder, config).unwrap().with_tower(Box::new(tower))
}

/// Output of a job: its tokens, and the log probabilities of those with text.
type Drawn = (Vec<u32>, Vec<(u32, f32)>);

/// Runs all jobs. Returns the output of each.
fn finish(engine: &mut Engine) -> BTreeMap<JobId, Drawn> {
    let mut events: Vec<Event> = Vec::new();
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    engine.check();
    let mut all: BTreeMap<JobId, Drawn> = BTreeMap::new();
    for event in &events {
        if let EventKind::Delta { tokens, logprobs, .. } = &event.kind {
            let of = all.entry(event.job).or_default();
            of.0.extend(tokens);
            of.1.extend(logprobs.iter().map(|of| (of.logprob.token, of.logprob.logprob)));
        }
    }
    all
}

fn range(numbers: &[f32]) -> f32 {
    numbers.iter().fold(f32::MIN, |a, &b| a.max(b)) - numbers.iter().fold(f32::MAX, |a, &b| a.min(b))
}

fn difference(found: &[f32], golden: &[f32]) -> f32 {
    assert_eq!(found.len(), golden.len());
    found.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn frames_are_the_extractors() {
    for case in CASES {
        let (opened, text) = open(case);
        let (mels, frames_max) = (files(&opened).spec.mels, files(&opened).spec.frames());
        let mut whole = 0;
        for (index, talk) in talks(case).iter().enumerate() {
            let (_, spans) = prompt(&text, talk);
            let bytes = spans[0].pixels.as_chunks::<4>().0;
            let frames: Vec<f32> = bytes.iter().map(|number| f32::from_le_bytes(*number)).collect();
            let count = frames.len() / mels;
            let mut some: Vec<usize> = (0..count).step_by(7).collect();
            // For a sound shorter than its window, only the frames with sound are kept.
            if count == frames_max || *case == "qwen3_asr" {
                some.push(count - 1);
                whole += 1;
            }
            let some: Vec<f32> =
                some.iter().flat_map(|frame| &frames[frame * mels..][..mels]).copied().collect();
            let golden = numbers(case, &format!("features.{index}"));
            let differs = difference(&some, &golden[..some.len()]);
            assert!(differs < FRAMES_TOLERANCE, "{case} {index}: {differs}");
        }
        assert_eq!(whole, if *case == "qwen2_audio" { 1 } else { 3 }, "{case}");
    }
}

#[test]
fn prompts_are_the_processors() {
    for case in CASES {
        let (_, text) = open(case);
        let hearing = text.hearing.as_ref().unwrap();
        for talk in talks(case) {
            let (tokens, spans) = prompt(&text, &talk);
            assert_eq!(tokens, talk.tokens, "{case}");
            let rows: usize = spans.iter().map(|span| span.tokens).sum();
            assert_eq!(rows * text.hidden, talk.rows.len(), "{case}");
            assert!(spans.iter().all(|span| hearing.fits(span)));
            let span = &spans[0];
            assert!(!hearing.fits(&MediaSpan { tokens: span.tokens + 1, ..span.clone() }));
            assert!(!hearing.fits(&MediaSpan { pixels: span.pixels[1..].into(), ..span.clone() }));
            assert!(!hearing.fits(&MediaSpan { in_plane: true, ..span.clone() }));
            assert!(!hearing.fits(&MediaSpan { mutual: true, ..span.clone() }));
        }
        assert!(hearing.place(&talks(case)[0].tokens, Vec::new()).is_err(), "more places than sounds");
        assert!(hearing.listen().finish().is_err(), "there is nothing");
    }
    let (_, text) = open("qwen2_audio");
    let hearing = text.hearing.as_ref().unwrap();
    let rows = |samples| {
        let mut listening = hearing.listen();
        listening.push(&sound([samples, 1]));
        let rows = listening.rows();
        listening.finish().map(|heard| (heard.rows(), rows))
    };
    assert_eq!(rows(320).unwrap_err().to_string().split(';').next_back(), Some(" send 321 or more"));
    assert_eq!(
        [rows(321), rows(640), rows(32_000), rows(33_600)].map(Result::unwrap),
        [(1, 1), (1, 1), (50, 50), (50, 50)]
    );
    assert!((hearing.seconds_max(1) - 2.1).abs() < 1e-9);
    let (_, text) = open("voxtral");
    assert!((text.hearing.as_ref().unwrap().seconds_max(99) - 6.0).abs() < 1e-9, "three windows of 25 rows");
}

fn rows_of(backend: AnyBackend, opened: &OpenedModel, spans: &[MediaSpan], layers: usize) -> Vec<f32> {
    let mut tower = AudioTower::load(backend, files(opened)).unwrap();
    let mut all = Vec::new();
    for span in spans {
        tower.begin(span).unwrap();
        all.extend(
            std::iter::repeat_with(|| tower.advance(Piece::Layers(layers)).unwrap())
                .find_map(|rows| rows)
                .unwrap(),
        );
    }
    all
}

#[test]
fn rows_are_the_librarys_on_every_backend() {
    for case in CASES {
        let (opened, text) = open(case);
        for (index, talk) in talks(case).iter().enumerate() {
            let (_, spans) = prompt(&text, talk);
            let check = |what: &str, rows: &[f32]| {
                let (differs, range) = (difference(rows, &talk.rows), range(&talk.rows));
                assert!(differs <= ROWS_TOLERANCE * range, "{case} {index} {what}: {differs} of {range}");
            };
            if index == 0 {
                check("reference", &rows_of(AnyBackend::new(ReferenceBackend::new()), &opened, &spans, 100));
            }
            for tier in Tier::available() {
                let rows = rows_of(cpu(tier), &opened, &spans, 100);
                check(&format!("{tier:?}"), &rows);
                assert!(rows_of(cpu(tier), &opened, &spans, 1) == rows, "{case} {index} {tier:?}: in pieces");
            }
        }
    }
}

#[test]
fn answers_are_the_librarys_in_any_company() {
    let mut preemptions = 0;
    for case in CASES {
        let model = open(case);
        let talks = talks(case);
        let jobs: Vec<Job> =
            talks.iter().enumerate().map(|(id, talk)| job(id as u64, &model.1, talk)).collect();
        // Alone, then once more, when the tower's rows and the prompt are cached.
        let (mut one, mut alone) = (engine(&model, 64, 96), Vec::new());
        for (job, talk) in jobs.iter().zip(&talks) {
            one.submit(job);
            let found = finish(&mut one).remove(&job.id).unwrap();
            assert_eq!(found.0, talk.greedy, "{case} alone");
            let vocab = talk.logits.len() / talk.greedy.len();
            let mut golden = talk.greedy.iter().zip(talk.logits.chunks_exact(vocab));
            assert!(found.1.len() > 10);
            for &(token, logprob) in &found.1 {
                let (_, logits) = golden.find(|&(&of, _)| of == token).unwrap();
                let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
                let known = f64::from(logits[token as usize]) - sum.ln();
                let differs = (f64::from(logprob) - known).abs();
                let range = f64::from(range(logits));
                assert!(differs < LOGPROBS_TOLERANCE * range, "{case}: {logprob} for {known} of {range}");
            }
            let (seen, hits) = (one.stats().frames_seen, one.stats().prefix_hit_tokens);
            let again = JobId(job.id.0 + 100);
            one.submit(&Job { id: again, ..job.clone() });
            assert_eq!(finish(&mut one)[&again], found, "{case} again");
            assert_eq!(one.stats().frames_seen, seen, "{case}: nothing is heard twice");
            assert!(one.stats().prefix_hit_tokens > hits, "{case}: its prefix is found");
            alone.push(found);
        }
        // Together, in steps of any size, also with so few blocks that some are preempted.
        let room = model.0.decoder().unwrap().spec.kv_room(64);
        let needs = |of: usize| room.blocks_of(jobs[of].prompt.len() + talks[of].greedy.len());
        let prompts: usize = jobs.iter().map(|job| room.blocks_of(job.prompt.len())).sum();
        let short = (prompts + 1).max(needs(0)).max(needs(1)).max(needs(2));
        for (step_tokens_max, kv_blocks) in [(512, 96), (9, 96), (64, short)] {
            let mut engine = engine(&model, step_tokens_max, kv_blocks);
            jobs.iter().for_each(|job| engine.submit(job));
            let found = finish(&mut engine);
            assert_eq!(found.len(), talks.len());
            for (found, alone) in found.values().zip(&alone) {
                assert_eq!(found, alone, "{case} in steps of {step_tokens_max}, {kv_blocks} blocks");
            }
            preemptions += engine.stats().preemptions;
        }
    }
    assert!(preemptions > 0, "nobody was put back");
}

#[test]
fn other_sounds_give_other_answers() {
    for case in CASES {
        let model = open(case);
        let mut talk = talks(case).remove(0);
        let mut engine = engine(&model, 64, 96);
        engine.submit(job(1, &model.1, &talk));
        talk.sounds = vec![sound([9_000, 5])];
        engine.submit(job(2, &model.1, &talk));
        let found = finish(&mut engine);
        assert_ne!(found[&JobId(2)], found[&JobId(1)], "{case}: the same tokens, and blocks of another name");
    }
}

#[test]
fn an_extractor_of_which_a_setting_would_be_lost_is_refused() {
    let copy = |change: &dyn Fn(&mut Value)| {
        let directory = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder("voxtral")).unwrap() {
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
    for (key, value) in [
        ("feature_size", Value::from(80)),
        ("sampling_rate", 8000.into()),
        ("hop_length", 161.into()),
        ("chunk_length", 3.into()),
        ("dither", 0.5.into()),
        ("feature_extractor_type", "ClapFeatureExtractor".into()),
    ] {
        let refused = copy(&|settings| settings[key] = value.clone()).unwrap_err().to_string();
        assert!(refused.contains(key) && refused.contains("preprocessor_config.json"), "{refused}");
    }
}

#[test]
fn what_hears_is_quantised_to_eight_bits_and_hears_the_same() {
    use crate::overrides::Overrides;
    // The other towers' rows are no whole blocks.
    let (case, talk) = ("voxtral", talks("voxtral").remove(0));
    let (plain, text) = open(case);
    let (_, spans) = prompt(&text, &talk);
    let bytes = |opened: &OpenedModel| AudioTower::memory(&cpu(Tier::Portable), files(opened)).weights_bytes;
    for isq in ["8", "4"] {
        let overrides = Overrides { isq: Some(isq.parse().unwrap()), ..Overrides::default() };
        let eight = OpenedModel::open_with(&folder(case), &overrides).unwrap();
        let summary = eight.quantised().unwrap();
        assert!(summary.contains("what hears: matrices quantised: 12 Q8_0"), "{isq}: {summary}");
        assert!(bytes(&eight) < bytes(&plain), "{isq}: {} of {}", bytes(&eight), bytes(&plain));
        let rows = rows_of(cpu(Tier::detect().unwrap()), &eight, &spans, 100);
        let differs = difference(&rows, &talk.rows);
        assert!(0.0 < differs && differs < 0.05 * range(&talk.rows), "{isq}: {differs}");
    }
    let (other, _) = open("qwen3_asr");
    assert_eq!(other.quantised(), None);
}
