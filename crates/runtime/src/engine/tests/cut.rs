//! The engine on devices that share its model by pipeline or tensor parallelism: tokens and events equal those of
//! one device, with batches that change, prefix hits and preemptions.

use hanzo_engine_ops::{AnyBackend, Pipeline, TensorParallel};

use super::*;

fn cpu() -> AnyBackend {
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap()))
}

/// Runs jobs that enter while others run. Returns their events, the number of preemptions and of prefix hits.
fn told(backend: AnyBackend, config: EngineConfig) -> (Vec<Event>, u64, u64) {
    let opened = opened();
    let text = Arc::new(opened.text_model().unwrap());
    let embedder = Arc::new(opened.embedder(&text.tokenizer, config.context_tokens_max).unwrap());
    let decoder = Decoder::load(&backend, opened.decoder().unwrap(), &mut |_| ()).unwrap();
    let mut engine = Engine::new(backend, decoder, text, embedder, config).unwrap();
    let (mut events, mut entered, mut steps) = (Vec::new(), 0, 0);
    while entered < 5 || !engine.is_idle() {
        if steps % 3 == 0 && entered < 5 {
            let prompt = (0..40 + 8 * (entered as u32 % 3)).map(|i| 300 + i * 31 % 3000).collect();
            engine.submit(&Job {
                sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
                ..job(entered, prompt, 64)
            });
            entered += 1;
        }
        engine.step(&mut events).unwrap();
        engine.check();
        steps += 1;
    }
    let stats = engine.stats();
    (events, stats.preemptions, stats.prefix_hit_tokens)
}

#[test]
fn a_model_that_is_shared_says_the_same() {
    let spec = &opened().decoder().unwrap().spec;
    for (kv_type, speculation) in [(KvType::F16, Speculation::Off), (KvType::Q8_0, Speculation::Ngram)] {
        // Fewer blocks than the jobs need together.
        let config =
            EngineConfig { kv_type, speculation, kv_blocks: 14, context_tokens_max: 200, ..config() };
        let expected = told(cpu(), config);
        assert!(expected.1 > 0 && expected.2 > 0, "{} put back, {} tokens found", expected.1, expected.2);
        let cut = |layers| spec.cut(layers).unwrap();
        for cuts in (0..=spec.layers.len()).map(|layers| vec![cut(layers)]).chain([vec![cut(1), cut(4)]]) {
            let devices = (0..=cuts.len()).map(|_| cpu()).collect();
            let pipeline = Pipeline::new(devices, cuts.clone());
            let found = told(AnyBackend::of_executor(pipeline), config);
            assert!(found == expected, "{kv_type}, cut at {cuts:?}");
        }
        for count in 2..=4 {
            let rank = |_| CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap());
            let ranks = TensorParallel::new((0..count).map(rank).collect(), spec.undivided_caches().unwrap());
            assert!(told(AnyBackend::of_executor(ranks), config) == expected, "{kv_type}, {count} ranks");
        }
    }
}
