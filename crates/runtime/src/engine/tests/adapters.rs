//! Adapters of an engine: which jobs share cached prompts, and how long an adapter stays.

use super::*;
use crate::adapter::{Adapter, LoadedAdapter};
use crate::decoder::tests::data;

/// Engine of a tiny model, with two of its adapters.
fn tiny() -> (Engine, [Adapter; 2]) {
    let opened = OpenedModel::open(&data("tiny/qwen3")).unwrap();
    let files = opened.decoder().unwrap();
    let backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap()));
    let text = Arc::new(opened.text_model().unwrap());
    let embedder = Arc::new(opened.embedder(&text.tokenizer, 128).unwrap());
    let decoder = Decoder::load(&backend, files, &mut |_| ()).unwrap();
    let config = EngineConfig { context_tokens_max: 128, ..config() };
    let adapters = ["qwen3-all", "qwen3-layer"]
        .map(|case| Adapter::open(&data("adapters").join(case), &files.adapter_base()).unwrap());
    (Engine::new(backend, decoder, text, embedder, config).unwrap(), adapters)
}

fn with(id: u64, adapter: Option<&Arc<LoadedAdapter>>) -> Job {
    let prompt = (0..70).map(|i| 3 + i * 7 % 150).collect();
    Job { adapter: adapter.cloned(), ..job(id, prompt, 12) }
}

#[test]
fn no_prompt_is_shared_between_adapters() {
    let expected = [None, Some(0), Some(1)].map(|which| {
        let (mut engine, adapters) = tiny();
        let loaded = which.map(|which: usize| engine.load_adapter(&adapters[which], Box::new(())).unwrap());
        let (tokens, cached) = tokens_of(&mut engine, &with(1, loaded.as_ref()));
        assert_eq!(cached, 0);
        tokens
    });
    assert!(expected[0] != expected[1] && expected[1] != expected[2] && expected[0] != expected[2]);

    let (mut engine, adapters) = tiny();
    let first = engine.load_adapter(&adapters[0], Box::new(())).unwrap();
    let mut id = 0;
    let mut ask = |engine: &mut Engine, adapter: Option<&Arc<LoadedAdapter>>| {
        id += 1;
        tokens_of(engine, &with(id, adapter))
    };
    let [base, all, layer] = expected;
    assert_eq!(ask(&mut engine, None), (base.clone(), 0));
    assert_eq!(ask(&mut engine, Some(&first)), (all.clone(), 0));
    assert_eq!(ask(&mut engine, None), (base, 64));
    assert_eq!(ask(&mut engine, Some(&first)), (all.clone(), 64));
    // Another adapter in its slot shares nothing; the same adapter, loaded again, shares its prompts.
    let slot = first.slot;
    drop(first);
    let second = engine.load_adapter(&adapters[1], Box::new(())).unwrap();
    assert_eq!(second.slot, slot);
    assert_eq!(ask(&mut engine, Some(&second)), (layer, 0));
    let again = engine.load_adapter(&adapters[0], Box::new(())).unwrap();
    assert_ne!(again.slot, slot);
    assert_eq!(ask(&mut engine, Some(&again)), (all, 64));
    engine.check();
}

#[test]
fn side_by_side_they_give_what_each_gives_alone() {
    let (mut engine, adapters) = tiny();
    let loaded = adapters.map(|adapter| engine.load_adapter(&adapter, Box::new(())).unwrap());
    let which = [None, Some(&loaded[0]), Some(&loaded[1]), None, Some(&loaded[0])];
    let alone = which.map(|adapter| tokens_of(&mut engine, &with(1, adapter)).0);
    for (id, adapter) in which.iter().enumerate() {
        engine.submit(with(10 + id as u64, *adapter));
    }
    let (mut events, mut found) = (Vec::new(), vec![Vec::new(); which.len()]);
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    for event in events {
        if let EventKind::Delta { tokens, .. } = event.kind {
            found[event.job.0 as usize - 10].extend(tokens);
        }
    }
    assert_eq!(found, alone);
}

#[test]
fn one_stays_as_long_as_a_job_has_it() {
    let (mut engine, [adapter, _]) = tiny();
    let kept = Arc::new(());
    let handle = engine.load_adapter(&adapter, Box::new(kept.clone())).unwrap();
    let expected = tokens_of(&mut engine, &with(1, Some(&handle))).0;
    let job = with(2, Some(&handle));
    engine.submit(&job);
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    drop((handle, job));
    engine.free_adapters();
    assert_eq!((engine.adapters(), Arc::strong_count(&kept)), (1, 2), "a sequence has it");
    while engine.has_work() {
        engine.step(&mut events).unwrap();
        engine.free_adapters();
    }
    let tokens = events.into_iter().filter_map(|event| match event.kind {
        EventKind::Delta { tokens, .. } => Some(tokens),
        _ => None,
    });
    assert_eq!(tokens.flatten().collect::<Vec<u32>>(), expected);
    engine.free_adapters();
    assert_eq!(
        (engine.adapters(), Arc::strong_count(&kept)),
        (0, 1),
        "what it was accounted by goes with it"
    );
}
