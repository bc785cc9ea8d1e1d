//! Draft models: the tokens do not depend on them, sampling keeps its distribution, and the books of their own
//! cache stay consistent whatever happens to the sequences.

use super::*;
use crate::{
    decoder::tests::data,
    load::{TextFiles, TokenizerSource},
};

/// Engine of a model with a draft model.
fn engine_with(target: &OpenedModel, draft: &OpenedModel, config: EngineConfig, ahead: bool) -> Engine {
    let backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap()));
    let files = draft.decoder().unwrap();
    let decoder = Decoder::load(&backend, files, &mut |_| ()).unwrap();
    let model =
        DraftModel::new(backend, decoder, files.info.parameters, &target.decoder().unwrap().spec, &config)
            .unwrap();
    let mut engine = engine_of(target, config, ahead).with_draft_model(model);
    // So do those that the model drafts.
    (0..400).for_each(|step| engine.scheduler.took(1 + step % 8, None, 1.0));
    engine
}

fn usage_of(events: &[Event]) -> Usage {
    let usage = |event: &Event| match event.kind {
        EventKind::Finished { usage, .. } => Some(usage),
        _ => None,
    };
    events.iter().find_map(usage).expect("an end")
}

#[test]
fn whatever_a_model_drafts_the_same_is_said() {
    // Drafts that are always accepted in greedy sampling, that often are, and that seldom are; with different layer
    // groups.
    let drafts = [&[None][..], &[Some(40), None], &[Some(3)]].map(|windows| with_windows(windows, false));
    let (mut finished, mut preemptions, mut accepted, mut rejected) = (0, 0, 0, 0);
    for seed in 0..15 {
        let mut random = Random(5000 + seed);
        let config = EngineConfig {
            kv_blocks: random.between(6, 40) as usize,
            step_tokens_max: random.between(8, 64) as usize,
            prefill_tokens_beside_decodes: random.between(4, 32) as usize,
            sequences_max: random.between(1, 8) as usize,
            prefix_cache: random.one_in(2),
            ..config()
        };
        let context = random.between(20, (config.kv_blocks as u64 * 16).min(200)) as usize;
        let config = EngineConfig { context_tokens_max: context, ..config };
        let script = Script::new(&mut random, context);
        let off = EngineConfig { speculation: Speculation::Off, ..config };
        let plain = script.play(&mut engine(off, false), &mut 0);
        for ahead in [false, true] {
            let mut engine = engine_with(opened(), &drafts[seed as usize % 3], config, ahead);
            let found = script.play(&mut engine, &mut 0);
            let stats = engine.stats();
            accepted += stats.accepted_draft_tokens;
            rejected += stats.draft_tokens - stats.accepted_draft_tokens;
            preemptions += stats.preemptions;
            for (key, said) in &plain {
                if script.cancels.iter().all(|&(_, job)| job != key.0) {
                    assert_eq!(found.get(key), Some(said), "seed {seed}, {key:?}");
                    finished += 1;
                }
            }
        }
    }
    let seen = [finished, preemptions, accepted, rejected];
    let least = [100, 10, 300, 300];
    assert!(seen.iter().zip(least).all(|(&seen, least)| seen > least), "{seen:?}");
}

#[test]
fn a_model_that_is_right_saves_steps_and_one_that_is_not_is_left_alone() {
    let prompt: Vec<u32> = (0..60).map(|i| 300 + i * 37 % 2900).collect();
    let sampling = SamplingParams { temperature: 0.6, seed: 3, ..SamplingParams::default() };
    let said = Job { sampling, ..job(1, prompt, 120) };
    let off = EngineConfig { speculation: Speculation::Off, ..config() };
    let (expected, _) = tokens_of(&mut engine(off, false), &said);
    let looked_up = run(&mut engine(config(), false), &said).1;
    let mut same = engine_with(opened(), opened(), config(), false);
    let (events, steps) = run(&mut same, &said);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind.clone()).collect();
    assert_eq!(tokens_said(&kinds), expected);
    let usage = usage_of(&events);
    assert!(steps < looked_up * 3 / 4, "{steps} steps, {looked_up} by looking up");
    assert_eq!(u64::from(usage.accepted_draft_tokens), 120 - steps);
    // A draft model with random weights is useless: it is only tried now and then.
    let mut noise = with_windows(&[Some(1)], false);
    let Network::Decoder(files) = &mut noise.network else { panic!("a decoder") };
    files.spec = files.spec.clone().with_layers(|_, spec| spec.attention.scale = 7.0);
    let mut wrong = engine_with(opened(), &noise, config(), false);
    // The cost of a row is known, so a draft token must be likely.
    (0..400).for_each(|step| wrong.scheduler.took(1 + step % 8, None, 1.0 + (step % 8) as f32 * 0.3));
    let (events, _) = run(&mut wrong, &said);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind.clone()).collect();
    assert_eq!(tokens_said(&kinds), expected);
    let usage = usage_of(&events);
    let rejected = usage.draft_tokens - usage.accepted_draft_tokens;
    assert!(rejected < 30, "{usage:?}");
}

#[test]
fn what_a_model_drafts_keeps_the_distribution() {
    let prompt: Vec<u32> = (0..20).map(|i| 3 + i * 11 % 150).collect();
    let tiny = OpenedModel::open(&data("tiny/qwen3")).unwrap();
    let mut draft = OpenedModel::open(&data("tiny/qwen3")).unwrap();
    let Network::Decoder(files) = &mut draft.network else { panic!("a decoder") };
    files.spec = files.spec.clone().with_layers(|_, spec| {
        spec.attention.scale *= 1.1;
    });
    let config = EngineConfig { context_tokens_max: 128, ..config() };
    check_distribution(&mut engine_with(&tiny, &draft, config, false), &prompt, &[]);
}

#[test]
fn another_vocabulary_is_refused_by_what_differs() {
    let own = opened().text_model().unwrap().tokenizer;
    let tiny = || OpenedModel::open(&data("tiny/qwen3")).unwrap();
    assert!(check_vocabulary(opened().decoder().unwrap(), &own).is_ok());
    let error = check_vocabulary(tiny().decoder().unwrap(), &own).unwrap_err().to_string();
    let counts = format!("{} tokens", own.vocab_size());
    assert!(error.contains("draft_model") && error.contains(&counts), "{error}");
    // One token that is spelled otherwise.
    let own = tiny().text_model().unwrap().tokenizer;
    let mut other = tiny();
    let TextFiles { tokenizer: TokenizerSource::HuggingFace { tokenizer_json, .. }, .. } =
        other.text_files_mut()
    else {
        panic!("a directory")
    };
    let mut json: serde_json::Value = serde_json::from_slice(tokenizer_json).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let id = vocab.remove("w9").unwrap();
    vocab.insert("z9".to_owned(), id.clone());
    *tokenizer_json = json.to_string().into_bytes();
    let error = check_vocabulary(other.decoder().unwrap(), &own).unwrap_err().to_string();
    assert!(error.contains(&format!("token {id}, \"z9\"")) && error.contains("\"w9\""), "{error}");
}
