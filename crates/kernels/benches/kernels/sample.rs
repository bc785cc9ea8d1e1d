//! Drawing tokens, beside the same on one thread. A head of few columns keeps the product small beside it.

use criterion::{BenchmarkId, Criterion};
use hanzo_engine_ops::{
    DType, Draws, HeadOperands, MatrixShape, MatrixSource, SampleSpec, SampleSpecs, Shape,
};

use crate::bed;

/// The vocabulary of Qwen3.
const VOCAB: usize = 151_936;
const COLS: usize = 32;

/// In time for a step.
pub(crate) fn draws(criterion: &mut Criterion) {
    let mut backend = bed::backend();
    let numbers: Vec<u8> = bed::numbers(VOCAB * COLS).iter().flat_map(|v| (4.0 * v).to_le_bytes()).collect();
    let shape = MatrixShape { rows: VOCAB, cols: COLS, dtype: DType::F32 };
    let source = MatrixSource { name: "head", shape, bytes: &numbers };
    let head = backend.pack(&[source]).expect("memory for a head");
    let x = bed::filled(&mut backend, bed::LOGIT_ROWS, COLS);
    let mut room = vec![0.0; bed::LOGIT_ROWS * VOCAB];
    let neutral = Shape::default();
    let typical = Shape { typical_p: 0.95, top_n_sigma: 2.0, temperature_range: 0.3, ..neutral };
    for (name, temperature, top_p, shape) in
        [("greedy", 0.0, 1.0, neutral), ("top_p", 1.0, 0.95, neutral), ("shaped", 1.0, 0.95, typical)]
    {
        let spec = SampleSpec { temperature, top_p, uniform: 0.6, shape, ..SampleSpec::default() };
        let mut group = criterion.benchmark_group(format!("sample/{name}"));
        for rows in [1, bed::LOGIT_ROWS] {
            let specs = SampleSpecs { rows: vec![spec.clone(); rows], ..SampleSpecs::default() };
            let mut batch = bed::batch(rows, rows);
            batch.logit_rows = (0..rows as u32).collect();
            let room = &mut room[..rows * VOCAB];
            bed::step_of(&mut backend, &batch, |backend| {
                group.bench_function(BenchmarkId::new("logits", rows), |bencher| {
                    bencher.iter(|| backend.logits(&HeadOperands::of(&head), x.id(), room));
                });
                group.bench_function(BenchmarkId::new("pool", rows), |bencher| {
                    bencher.iter(|| backend.sample(&HeadOperands::of(&head), x.id(), &specs, room));
                });
                let mut draws = Draws::default();
                group.bench_function(BenchmarkId::new("one_thread", rows), |bencher| {
                    bencher.iter(|| {
                        backend
                            .logits(&HeadOperands::of(&head), x.id(), room)
                            .expect("a processor always computes");
                        draws.draw(&specs, room);
                    });
                });
            });
        }
        group.finish();
    }
}
