//! Tiny models against transformers' own class (tests/data/whisper/make_whisper.py makes the golden numbers), on
//! the reference backend and on every CPU tier: frames, rows, logits, tokens with and without rules. Also sounds
//! through the engine, alone and with others.

mod converted;
mod ggml;
mod heads;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::AnyBackend;
use hanzo_engine_ops::reference::ReferenceBackend;
use serde_json::Value;

use super::network::{SlotTokens, Whisper};
use super::*;
use crate::job::{Event, EventKind, JobId};
use crate::mel::{MelBank, MelFrames, SILENCE, normalize};
use crate::network::WeightType;
use crate::sampler::Random;
use crate::tokenizer::Tokenizer;
use crate::transcript::{Segment, Transcript};
use crate::{Network, OpenedModel};

const CASES: [&str; 2] = ["small", "turbo"];

fn folder(case: &str) -> PathBuf {
    crate::decoder::tests::data("whisper").join(case)
}

/// Same function as `sound` in make_whisper.py.
fn sound(samples: usize) -> Vec<f32> {
    let sample = |at: usize| {
        let n = at as f64;
        let voice = 0.3 * (0.05 * n + 3.0 * (0.0007 * n).sin()).sin() * (0.5 + 0.5 * (0.001 * n).sin());
        let noise = ((at * at * 7919) % 1000) as f64 / 1000.0 - 0.5;
        (voice + 0.05 * noise) as f32
    };
    (0..samples).map(sample).collect()
}

fn open(case: &str) -> OpenedModel {
    OpenedModel::open(&folder(case)).unwrap()
}

fn files(opened: &OpenedModel) -> &WhisperFiles {
    match &opened.network {
        Network::Whisper(files) => files,
        other => panic!("{other:?} is no Whisper"),
    }
}

fn vocabulary(files: &WhisperFiles) -> Arc<Vocabulary> {
    let tokenizer = Arc::new(Tokenizer::load(&files.text).unwrap());
    Arc::new(Vocabulary::new(files, tokenizer).unwrap())
}

fn cpu(tier: Tier) -> AnyBackend {
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier))
}

/// Results of the library.
struct Golden {
    samples: usize,
    greedy: Vec<u32>,
    ruled: Vec<u32>,
    ruled_alone: Vec<u32>,
    mel: Vec<f32>,
    encoded: Vec<f32>,
    logits: Vec<f32>,
}

fn golden(case: &str) -> Golden {
    let json: Value = serde_json::from_slice(&fs::read(folder(case).join("golden.json")).unwrap()).unwrap();
    let bytes = fs::read(folder(case).join("golden.safetensors")).unwrap();
    let tensors = crate::safetensors::parse("golden", &bytes.into()).unwrap();
    let numbers = |name: &str| tensors.iter().find(|found| found.name == name).unwrap().to_f32().unwrap();
    let tokens = |name: &str| -> Vec<u32> {
        json[name].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
    };
    Golden {
        samples: json["samples"].as_u64().unwrap() as usize,
        greedy: tokens("greedy"),
        ruled: tokens("ruled"),
        ruled_alone: tokens("ruled_alone"),
        mel: numbers("mel"),
        encoded: numbers("encoded"),
        logits: numbers("logits"),
    }
}

/// The frames of a window.
fn window(spec: &WhisperSpec, samples: &[f32]) -> Vec<f32> {
    let (bank, mut frames, mut out) = (MelBank::new(spec.mels), MelFrames::new(), Vec::new());
    frames.push(&bank, samples, &mut out);
    frames.finish(&bank, &mut out);
    out.resize(spec.frames() * spec.mels, SILENCE);
    normalize(&mut out);
    out
}

/// Largest difference as a share of the expected numbers' range.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let range =
        expected.iter().copied().fold(f32::MIN, f32::max) - expected.iter().copied().fold(f32::MAX, f32::min);
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / range
}

#[test]
fn frames_are_the_extractors() {
    for case in CASES {
        let (opened, golden) = (open(case), golden(case));
        let spec = &files(&opened).spec;
        let frames = window(spec, &sound(golden.samples));
        let some: Vec<f32> = frames.chunks_exact(spec.mels).step_by(7).flatten().copied().collect();
        let worst = difference(&some, &golden.mel);
        assert!(worst < 2e-4, "{case}: {worst}");
    }
}

/// Checks rows and logits, and the tokens sampled under the rules, including the model's own settings.
fn check(backend: AnyBackend, opened: &OpenedModel, case: &str, what: &str) {
    let (mut model, golden) = check_numbers(backend, opened, case, what);
    let (vocabulary, prompt) = (vocabulary(files(opened)), 3);
    let (mut logits, mut drawn) = (Vec::new(), golden.ruled[..prompt].to_vec());
    while drawn.len() < golden.ruled.len() {
        let wanted = vec![drawn.len() as u32 - 1];
        model
            .write(&[SlotTokens { slot: 1, before: 0, tokens: drawn.clone(), wanted }], &[], &mut logits)
            .unwrap();
        rules::rule(&vocabulary, &drawn[prompt..], &mut logits);
        drawn.push(rules::draw(&logits, 0.0, &mut Random::new(0)).unwrap().token);
    }
    assert_eq!(drawn, golden.ruled, "{case}, {what}");
}

/// Rows and logits.
fn check_numbers(backend: AnyBackend, opened: &OpenedModel, case: &str, what: &str) -> (Whisper, Golden) {
    let golden = golden(case);
    let files = files(opened);
    let spec = files.spec.clone();
    let mut model = Whisper::load(backend, files, WeightType::Stored, 2, &mut |_| ()).unwrap();
    model.hear(1, window(&spec, &sound(golden.samples)), &[]);
    while model.listen(1).unwrap().is_none() {}
    let some: Vec<f32> = model.encoded().chunks_exact(spec.hidden).step_by(9).flatten().copied().collect();
    let worst = difference(&some, &golden.encoded);
    assert!(worst < 2e-3, "{case}, {what}: rows differ by {worst}");

    // All tokens at once, and then one by one.
    let mut logits = Vec::new();
    let all = |tokens: &[u32], before: usize| SlotTokens {
        slot: 1,
        before,
        tokens: tokens.to_vec(),
        wanted: vec![tokens.len() as u32 - 1],
    };
    let vocab = spec.vocab;
    for (at, _) in golden.greedy.iter().enumerate() {
        model.write(&[all(&golden.greedy[at..=at], at)], &[], &mut logits).unwrap();
        let worst = difference(&logits, &golden.logits[at * vocab..][..vocab]);
        assert!(worst < 2e-3, "{case}, {what}: logits of token {at} differ by {worst}");
    }
    let half = golden.greedy.len() / 2;
    let alone = {
        model.write(&[all(&golden.greedy[..half], 0)], &[], &mut logits).unwrap();
        logits.clone()
    };
    let worst = difference(&alone, &golden.logits[(half - 1) * vocab..][..vocab]);
    assert!(worst < 2e-3, "{case}, {what}: logits of {half} tokens at once differ by {worst}");
    (model, golden)
}

#[test]
fn rows_logits_and_tokens_are_the_librarys() {
    for case in CASES {
        let opened = open(case);
        check(AnyBackend::new(ReferenceBackend::new()), &opened, case, "reference");
        for tier in Tier::available() {
            check(cpu(tier), &opened, case, &format!("{tier:?}"));
        }
    }
}

/// Engine and its events.
struct Rig {
    engine: WhisperEngine,
    vocabulary: Arc<Vocabulary>,
}

impl Rig {
    fn new(case: &str, windows: usize) -> Rig {
        let opened = open(case);
        let files = files(&opened);
        let vocabulary = vocabulary(files);
        let (weights, config) = (WeightType::Stored, WhisperConfig { windows });
        let backend = cpu(Tier::available().last().unwrap());
        let listener = vocabulary.clone();
        let engine = WhisperEngine::load(backend, files, listener, weights, config, &mut |_| ()).unwrap();
        Rig { engine, vocabulary }
    }

    fn submit(&mut self, id: u64, options: &TranscribeOptions) {
        let asked = self.vocabulary.ask(options, &|| false).unwrap();
        self.engine.submit(TranscribeJob { id: JobId(id), asked, priority: 0, client: None });
    }

    /// Runs all sounds to their ends. Samples are passed in parts, as the engine wants them.
    fn run(&mut self, sounds: &[(u64, &[f32])]) -> Vec<Vec<Transcript>> {
        let mut given = vec![0; sounds.len()];
        let mut told = vec![Vec::new(); sounds.len()];
        let is_over = |told: &Vec<Transcript>| matches!(told.last(), Some(Transcript::Finished { .. }));
        for _ in 0..20_000 {
            for (at, (id, samples)) in sounds.iter().enumerate() {
                let wants = self.engine.wants(JobId(*id)).min(7_001).min(samples.len() - given[at]);
                if given[at] == samples.len() {
                    self.engine.push(JobId(*id), None);
                } else if wants > 0 {
                    self.engine.push(JobId(*id), Some(&samples[given[at]..][..wants]));
                    given[at] += wants;
                }
            }
            let mut events: Vec<Event> = Vec::new();
            if self.engine.has_work() {
                self.engine.step(&mut events).unwrap();
            }
            for event in events {
                let at = sounds.iter().position(|(id, _)| JobId(*id) == event.job).unwrap();
                let EventKind::Heard(heard) = event.kind else { panic!("{event:?}") };
                told[at].push(*heard);
            }
            if told.iter().all(is_over) {
                return told;
            }
        }
        panic!("it does not end: {told:?}")
    }
}

fn options() -> TranscribeOptions {
    // Only one temperature: a random model's text is never likely.
    TranscribeOptions { language: "german".into(), temperatures: vec![0.0], ..TranscribeOptions::default() }
}

fn segments(told: &[Transcript]) -> Vec<&Segment> {
    told.iter()
        .filter_map(|told| if let Transcript::Segment(segment) = told { Some(segment) } else { None })
        .collect()
}

#[test]
fn a_sound_is_written_down_in_windows() {
    let samples = sound(16_000 * 15);
    let mut rig = Rig::new("small", 2);
    rig.submit(1, &options());
    let told = &rig.run(&[(1, &samples)])[0];
    assert_eq!(told[0], Transcript::Started { language: "de".into(), probability: 1.0 });
    let found = segments(told);
    assert!(found.len() > 1, "{told:?}");
    assert!(found.iter().enumerate().all(|(at, segment)| segment.index as usize == at));
    assert!(found.is_sorted_by(|a, b| a.seek <= b.seek) && found.last().unwrap().seek >= 600, "{found:?}");
    assert!(found.iter().all(|segment| segment.start_s < segment.end_s && segment.end_s <= 15.02 + 6.0));
    let text: String = told
        .iter()
        .filter_map(|told| if let Transcript::Delta(text) = told { Some(&**text) } else { None })
        .collect();
    assert_eq!(text, found.iter().map(|segment| &*segment.text).collect::<String>());
    let Some(Transcript::Finished { samples, completion_tokens, .. }) = told.last() else { panic!() };
    assert_eq!(*samples, 16_000 * 15);
    assert!(*completion_tokens > 0);
}

#[test]
fn a_windows_first_segment_is_what_the_rules_draw() {
    for case in CASES {
        let golden = golden(case);
        let mut rig = Rig::new(case, 1);
        rig.submit(1, &options());
        let told = rig.run(&[(1, &sound(golden.samples))]).remove(0);
        let found = segments(&told);
        let first: Vec<u32> = found[0].tokens.iter().map(|token| token.id).collect();
        assert_eq!(first, golden.ruled_alone[3..3 + first.len()], "{case}");
        assert_ne!(first, golden.ruled[3..3 + first.len()], "{case}: what is behind the sound matters");
    }
}

#[test]
fn company_changes_nothing() {
    let lengths = [16_000 * 9, 40_000, 16_000 * 14, 90_001];
    let sounds: Vec<Vec<f32>> =
        lengths.iter().map(|&length| sound(length).into_iter().rev().collect()).collect();
    let asked = |at: usize| TranscribeOptions {
        language: if at == 2 { String::new() } else { "en".into() },
        word_timestamps: at == 0,
        condition_on_previous_text: at == 2,
        prompt: if at == 1 { "this is it".into() } else { String::new() },
        temperatures: vec![0.4],
        seed: at as u64,
        ..TranscribeOptions::default()
    };
    let alone: Vec<Vec<Transcript>> = (0..sounds.len())
        .map(|at| {
            let mut rig = Rig::new("turbo", 1);
            rig.submit(at as u64, &asked(at));
            rig.run(&[(at as u64, &sounds[at])]).remove(0)
        })
        .collect();
    for windows in [1, 3] {
        let mut rig = Rig::new("turbo", windows);
        (0..sounds.len()).for_each(|at| rig.submit(at as u64, &asked(at)));
        let all: Vec<(u64, &[f32])> =
            sounds.iter().enumerate().map(|(at, sound)| (at as u64, &sound[..])).collect();
        assert_eq!(rig.run(&all), alone, "{windows} windows at once");
    }
    let words: usize = segments(&alone[0]).iter().map(|segment| segment.words.len()).sum();
    assert!(words > 0, "{:?}", alone[0]);
}

#[test]
fn texts_of_windows_that_wait_are_drawn_together() {
    let samples = sound(16_000 * 3);
    // Number of windows, of three sounds with these priorities, that start a text in the same step.
    let begins = |priorities: [i32; 3], windows: usize| -> Vec<(usize, usize)> {
        let mut rig = Rig::new("small", windows);
        for (id, priority) in priorities.into_iter().enumerate() {
            let asked = rig.vocabulary.ask(&options(), &|| false).unwrap();
            let id = JobId(id as u64);
            rig.engine.submit(TranscribeJob { id, asked, priority, client: None });
            rig.engine.push(id, Some(&samples));
            rig.engine.push(id, None);
        }
        let mut found = Vec::new();
        for before in 0.. {
            if !rig.engine.has_work() {
                break;
            }
            let report = rig.engine.step(&mut Vec::new()).unwrap();
            if report.prefill_tokens > 0 {
                found.push((report.prefill_tokens / 3, before));
            }
        }
        found
    };
    let together = begins([0; 3], 3);
    assert_eq!(together[0].0, 3, "{together:?}");
    assert!(together[0].1 > 20, "a window goes in pieces: {together:?}");
    // With two slots, the third window starts when one of them is over.
    let two = begins([0; 3], 2);
    assert_eq!(two[0].0, 2, "{two:?}");
    assert_eq!(two.iter().map(|begun| begun.0).sum::<usize>(), 3, "{two:?}");
    // A less urgent sound keeps no other waiting.
    let urgent = begins([0, 1, 1], 3);
    assert_eq!(urgent[0].0, 1, "{urgent:?}");
    assert!(urgent[0].1 < together[0].1 / 2, "{urgent:?}");
}

#[test]
fn silence_and_nothing_end_at_once() {
    let mut rig = Rig::new("small", 1);
    rig.submit(1, &options());
    let told = rig.run(&[(1, &[])]).remove(0);
    assert!(
        matches!(told[..], [Transcript::Started { .. }, Transcript::Finished { samples: 0, .. }]),
        "{told:?}"
    );
}

#[test]
fn a_sound_that_is_cancelled_gives_its_slot_back() {
    let samples = sound(16_000 * 7);
    let mut rig = Rig::new("small", 1);
    let whole = {
        rig.submit(1, &options());
        rig.run(&[(1, &samples)]).remove(0)
    };
    for steps in (0..6).chain((6..200).step_by(29)) {
        rig.submit(2, &options());
        rig.engine.push(JobId(2), Some(&samples));
        for _ in 0..steps {
            rig.engine.step(&mut Vec::new()).unwrap();
        }
        rig.engine.cancel(JobId(2));
        assert!(!rig.engine.has_work(), "{steps}");
        rig.submit(3, &options());
        assert_eq!(rig.run(&[(3, &samples)]).remove(0), whole, "after {steps} steps of another");
    }
}

#[test]
fn a_load_quantises_what_is_multiplied() {
    use crate::network::IsqRule;
    use crate::overrides::Overrides;
    let with = |isq: &str, topology: Vec<IsqRule>| {
        let isq = Some(isq).filter(|isq| !isq.is_empty()).map(|isq| isq.parse().unwrap());
        OpenedModel::open_with(&folder("small"), &Overrides { isq, topology, ..Overrides::default() })
    };
    let plan = |opened: &OpenedModel| {
        Whisper::memory(&cpu(Tier::Portable), files(opened), WeightType::Stored, 1).weights_bytes
    };
    let (golden, whole) = (golden("small"), plan(&open("small")));
    // Rows of 32 have no blocks of 256: they get five bits, and the embedding more.
    for (isq, name, summary, most_off) in [
        ("8", "Q8_0 (of F32)", "matrices quantised: 41 Q8_0; as stored: 6 F32", 0.03),
        ("4", "Q4_K (of F32)", "matrices quantised: 40 Q5_0, 1 Q8_0; as stored: 6 F32", 0.25),
    ] {
        let opened = with(isq, Vec::new()).unwrap();
        assert_eq!(
            (files(&opened).info.quantization.as_str(), opened.quantised().as_deref()),
            (name, Some(summary))
        );
        assert!(plan(&opened) < whole * 3 / 5, "{isq}: {} of {whole} bytes", plan(&opened));
        let worst = difference(&converted::rows(&opened, &golden), &golden.encoded);
        assert!(1e-4 < worst && worst < most_off, "{isq}: rows differ by {worst}");
        println!("{isq}: rows differ by {worst}");
    }
    let rule = |layers, tensors: &str, isq: Option<&str>| IsqRule {
        layers,
        tensors: Some(tensors.to_owned()),
        isq: isq.map(|isq| isq.parse().unwrap()),
    };
    let opened = with("8", vec![rule(Some((1, 1)), "*fc1*", None)]).unwrap();
    let kept = opened.quantised().unwrap();
    assert!(kept.starts_with("matrices quantised: 39 Q8_0"), "{kept}");
    let error = with("", vec![rule(None, "nothing", Some("8"))]).unwrap_err().to_string();
    assert!(error.contains("it is about no matrix") && error.contains("layers 0-2"), "{error}");
}

#[test]
fn what_cannot_be_asked_is_refused_by_name() {
    let opened = open("small");
    let vocabulary = vocabulary(files(&opened));
    let asked = |options: TranscribeOptions| vocabulary.ask(&options, &|| false).unwrap_err().to_string();
    let language = asked(TranscribeOptions { language: "klingon".into(), ..TranscribeOptions::default() });
    assert!(language.contains("language") && language.contains("en, zh, de"), "{language}");
    let french = asked(TranscribeOptions { language: "fr".into(), ..TranscribeOptions::default() });
    assert!(french.contains("\"fr\""), "{french}");
    let hot = asked(TranscribeOptions { temperatures: vec![0.0, 1.5], ..TranscribeOptions::default() });
    assert!(hot.contains("temperatures") && hot.contains("1.5"), "{hot}");
}
