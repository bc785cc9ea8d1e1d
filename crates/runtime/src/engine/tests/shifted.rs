//! Completions with context shifts equal what the model generates from the remaining text, however they are
//! computed. Prompts with different salts share nothing.

use super::*;
use crate::ContextShift;

/// Tokens and usage of one completion that runs alone.
fn said_after(engine: &mut Engine, job: &Job) -> (Vec<u32>, Usage) {
    engine.submit(job);
    let (mut events, mut said, mut used) = (Vec::new(), Vec::new(), Usage::default());
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
        engine.check();
    }
    for event in events {
        match event.kind {
            EventKind::Delta { tokens, .. } => said.extend(tokens),
            EventKind::Finished { usage, .. } => used = usage,
            _ => {}
        }
    }
    (said, used)
}

#[test]
fn a_completion_goes_on_after_what_is_left_of_its_text() {
    for (context, keep_tokens) in [(64, 0), (70, 21), (48, 36)] {
        for (opened, kv_type) in [
            (opened(), KvType::F16),
            (opened(), KvType::Q8_0),
            (&with_windows(&[Some(24), None, Some(9)], false), KvType::F16),
        ] {
            let config = EngineConfig { context_tokens_max: context, kv_type, kv_blocks: 48, ..config() };
            let shift = ContextShift { keep_tokens };
            let prompt = Random(context as u64).prompt(30);
            let whole = Job { context_shift: Some(shift), ..job(1, prompt.clone(), 200) };
            whole.validate(&opened.text_model().unwrap(), context).unwrap();
            let mut engine = engine_of(opened, config, false);
            let (said, usage) = said_after(&mut engine, &whole);
            assert_eq!((said.len(), usage.completion_tokens), (200, 200));

            // The same by hand: up to the end of the context, then from the remaining text.
            let (mut text, mut by_hand) = (prompt, Vec::new());
            let mut fresh = engine_of(opened, EngineConfig { prefix_cache: false, ..config }, false);
            while by_hand.len() < 200 {
                let room = (context - text.len()).min(200 - by_hand.len()) as u32;
                let (more, _) = said_after(&mut fresh, &job(by_hand.len() as u64, text.clone(), room));
                text.extend(&more);
                by_hand.extend(more);
                text.drain(shift.dropped(text.len(), context));
            }
            assert_eq!(said, by_hand, "{context}, {keep_tokens}");
            let shifts = engine.stats().context_shifts;
            assert!(shifts >= 4, "{shifts} times in a context of {context}");
            assert_eq!((engine.stats().blocks_used, engine.stats().preemptions), (0, 0));
        }
    }
}

/// Same result in a batch, with too few blocks, with draft tokens, and on an asynchronous device.
#[test]
fn however_it_is_shifted_the_same_is_said() {
    let (mut shifts, mut preemptions, mut accepted) = (0, 0, 0);
    for seed in 0..16 {
        let mut random = Random(900 + seed);
        let config = EngineConfig {
            kv_blocks: random.between(8, 40) as usize,
            step_tokens_max: random.between(8, 64) as usize,
            prefill_tokens_beside_decodes: random.between(4, 32) as usize,
            sequences_max: random.between(2, 8) as usize,
            prefix_cache: random.one_in(2),
            ..config()
        };
        let context = random.between(40, (config.kv_blocks as u64 * 16).min(120)) as usize;
        let config = EngineConfig { context_tokens_max: context, ..config };
        let mut script = Script::new(&mut random, context);
        script.cancels.clear();
        for (_, job) in &mut script.jobs {
            if random.one_in(2) {
                continue;
            }
            let keep_tokens = random.between(0, ContextShift::keep_tokens_most(context) as u64) as usize;
            job.context_shift = Some(ContextShift { keep_tokens });
            if job.prompt.len() == context {
                job.prompt = job.prompt[1..].into();
            }
            job.stop.max_tokens *= 4;
        }
        let mut said = None;
        for (ahead, drafts) in [(false, false), (true, false), (false, true), (true, true)] {
            let speculation = if drafts { Speculation::Ngram } else { Speculation::Off };
            let mut engine = engine(EngineConfig { speculation, ..config }, ahead);
            let found = script.play(&mut engine, &mut 0);
            let stats = engine.stats();
            shifts += stats.context_shifts;
            preemptions += stats.preemptions;
            accepted += stats.accepted_draft_tokens;
            assert_eq!((stats.running, stats.waiting, stats.blocks_used), (0, 0, 0), "seed {seed}");
            assert_eq!(said.get_or_insert_with(|| found.clone()), &found, "seed {seed}, {ahead}, {drafts}");
        }
    }
    assert!(shifts > 100 && preemptions > 20 && accepted > 50, "{shifts} {preemptions} {accepted}");
}

#[test]
fn salts_share_nothing_and_a_prompt_may_leave_the_cache_alone() {
    let mut engine = engine(config(), false);
    let prompt: Vec<u32> = (400..480).collect();
    let mut found = |id, salt: &[u8], skip_cache| {
        let job = Job { cache_salt: salt.into(), skip_cache, ..job(id, prompt.clone(), 3) };
        let (said, usage) = said_after(&mut engine, &job);
        (said, usage.cached_tokens)
    };
    let (said, _) = found(1, b"", false);
    let expected = [(b"" as &[u8], false, 64), (b"a", false, 0), (b"b", false, 0), (b"a", false, 64)];
    for (id, (salt, skip, cached)) in (2..).zip(expected.into_iter().chain([(b"a" as &[u8], true, 0)])) {
        assert_eq!(found(id, salt, skip), (said.clone(), cached), "{id}");
    }
}
