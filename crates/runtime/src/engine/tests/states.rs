//! Layers with a recurrent state in the engine: sequences that come, go and are preempted, and share nothing.

use super::*;

/// Models with state layers beside attention layers, with state layers only, and with both in each layer.
const MODELS: [&str; 3] = ["qwen3-next", "mamba2", "falcon-h1"];

fn opened(model: &str) -> OpenedModel {
    OpenedModel::open(&crate::decoder::tests::data("states").join(model)).unwrap()
}

fn prompt(number: u32) -> Vec<u32> {
    (0..40 + 3 * number).map(|i| 3 + (i * 37 + if i > 20 { 11 * number } else { 0 }) % 150).collect()
}

#[test]
fn sequences_with_states_say_what_they_would_alone() {
    MODELS.into_iter().for_each(say_what_they_would_alone);
}

fn say_what_they_would_alone(model: &str) {
    let opened = opened(model);
    let base = EngineConfig { context_tokens_max: 128, ..config() };
    let alone: Vec<Vec<u32>> = (0..6)
        .map(|number| {
            let mut engine = engine_of(&opened, base, false);
            let (tokens, cached) = tokens_of(&mut engine, &job(1, prompt(number), 30));
            assert_eq!((tokens.len(), cached), (30, 0));
            tokens
        })
        .collect();
    assert!(alone.iter().any(|tokens| *tokens != alone[0]), "all say the same");
    // Few blocks, so that some are preempted; few sequences, so that states are reused.
    let small = EngineConfig { kv_blocks: 14, sequences_max: 3, ..base };
    for (config, ahead, preempts) in [(base, false, false), (base, true, false), (small, false, true)] {
        let mut engine = engine_of(&opened, config, ahead);
        let mut events = Vec::new();
        for number in 0..6u32 {
            engine.submit(job(number.into(), prompt(number), 30));
        }
        let mut said = vec![Vec::new(); 6];
        while engine.has_work() {
            engine.step(&mut events).unwrap();
            engine.check();
            for event in events.drain(..) {
                said[event.job.0 as usize].push(event.kind);
            }
        }
        for (number, kinds) in said.iter().enumerate() {
            assert_eq!(tokens_said(kinds), alone[number], "{model}: sequence {number}, {config:?}");
        }
        let stats = engine.stats();
        assert_eq!(stats.preemptions > 0, preempts, "{model}: {stats:?}");
        // Prompts begin alike, and repeat themselves.
        assert_eq!((stats.prefix_hit_tokens, stats.draft_tokens, stats.blocks_cached), (0, 0, 0));
    }
}
