//! Scores of a prompt against those that the decoder computes on its own.

use std::sync::Arc;

use hanzo_engine_kernels::cpu::{CpuBackend, ThreadPool, Tier};
use hanzo_engine_ops::{AnyBackend, Batch, RowSource, SequenceSpan, StepLimits};

use super::*;

/// Log probabilities of a prompt equal those of the model's own logits, however the prompt is cut and whatever part
/// is cached.
#[test]
fn a_prompt_is_scored_as_its_logits_say() {
    let prompt: Vec<u32> = (0..100).map(|i| 300 + i * 37 % 3000).collect();
    let rows = prompt.len();
    let mut backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::detect().unwrap()));
    let mut decoder = Decoder::load(&backend, opened().decoder().unwrap(), &mut |_| ()).unwrap();
    let limits = StepLimits { logit_rows: rows, ..decoder.spec().step_limits(rows, 1, rows) };
    decoder.prepare(&mut backend, &limits).unwrap();
    let mut kv = backend.kv(&decoder.spec().kv_spec(rows.div_ceil(16), KvType::F16, 1)).unwrap();
    let ids = || 0..rows as u32;
    let batch = Batch {
        sources: prompt.iter().copied().map(RowSource::Token).collect(),
        positions: ids().collect(),
        slots: ids().collect(),
        sequences: vec![SequenceSpan {
            row_first: 0,
            rows: rows as u32,
            context: rows as u32,
            table_first: 0,
        }],
        block_tables: (0..rows.div_ceil(16) as u32).collect(),
        logit_rows: ids().collect(),
        ..Batch::default()
    };
    let vocab = decoder.spec().vocab;
    let mut logits = vec![0.0; rows * vocab];
    decoder.forward(&mut backend, &batch, &mut kv, &mut logits).unwrap();
    let expected: Vec<f64> = logits
        .chunks_exact(vocab)
        .zip(&prompt[1..])
        .map(|(row, &next)| {
            let largest: f64 = row.iter().copied().fold(f32::MIN, f32::max).into();
            let sum: f64 = row.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
            f64::from(row[next as usize]) - largest - sum.ln()
        })
        .collect();
    let mut engine = engine(config(), false);
    tokens_of(&mut engine, &job(1, prompt.clone(), 5));
    for (id, max_tokens) in [(2, 0), (3, 4)] {
        let scored = Job { prompt_logprobs: Some(3), ..job(id, prompt.clone(), max_tokens) };
        scored.validate(engine.text(), 512).unwrap();
        let (events, _) = run(&mut engine, &scored);
        let chunks = events.iter().filter_map(|event| match &event.kind {
            EventKind::Scored(tokens) => Some(tokens.as_slice()),
            _ => None,
        });
        let chunks: Vec<&[crate::job::TokenLogprob]> = chunks.collect();
        assert!(chunks.iter().all(|chunk| chunk.len() <= 24), "more logits than there is room for");
        let found = chunks.concat();
        assert_eq!(found.iter().map(|one| one.token).collect::<Vec<u32>>(), prompt[1..]);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((f64::from(found.logprob) - expected).abs() < 1e-4, "{found:?}, not {expected}");
            let sum: f64 = found.top.iter().map(|&(_, logprob)| f64::from(logprob).exp()).sum();
            assert!(found.top.len() == 3 && sum <= 1.0 + 1e-6, "{found:?}");
            assert!(found.top.is_sorted_by(|a, b| a.1 >= b.1) && found.top[0].1 >= found.logprob);
        }
        let perplexity = |logprobs: &[f64]| (-logprobs.iter().sum::<f64>() / logprobs.len() as f64).exp();
        let logprobs: Vec<f64> = found.iter().map(|one| one.logprob.into()).collect();
        let (found, expected) = (perplexity(&logprobs), perplexity(&expected));
        assert!((found / expected - 1.0).abs() < 1e-3, "a perplexity of {found}, not {expected}");
        let kinds: Vec<EventKind> = events.into_iter().map(|event| event.kind).collect();
        let Some(EventKind::Finished { usage, .. }) = kinds.last() else { panic!("no end: {kinds:?}") };
        assert_eq!((usage.cached_tokens, usage.completion_tokens), (0, max_tokens));
        assert_eq!(tokens_said(&kinds).len(), max_tokens as usize);
    }
}
