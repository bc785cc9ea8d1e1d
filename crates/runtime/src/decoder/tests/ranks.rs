//! Decoders whose layers several devices compute together: as many as there are, they compute the bits of one.

use hanzo_engine_ops::{AnyBackend, TensorParallel};

use super::cut::{SHARED, cpu};
use super::*;

fn ranks(files: &ModelFiles, count: usize) -> TensorParallel<CpuBackend> {
    let rank = |_| CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::available().last().unwrap());
    TensorParallel::new((0..count).map(rank).collect(), files.spec.undivided_caches().unwrap())
}

/// Buffers whose parts were brought together.
fn gathers(backend: &AnyBackend) -> u64 {
    backend.executor_ref::<TensorParallel<CpuBackend>>().expect("ranks").gathers()
}

/// Logits of a text in one step, in chunks, and of tokens of it beside chunks of another, bit by bit.
fn told(backend: AnyBackend, files: &ModelFiles, text: &[u32]) -> (Vec<u32>, AnyBackend) {
    let mut runner = Runner::new(backend, files);
    let mut logits = runner.prefill(text);
    let other: Vec<u32> = text.iter().rev().copied().collect();
    let (blocks, beside) = (scattered(1), scattered(0));
    let half = text.len() / 2;
    logits.extend(runner.step(&[Work { tokens: &text[..half], rows: half, blocks: &blocks }]));
    for (step, end) in (half + 1..=text.len()).enumerate().take(4) {
        let works = [
            Work { tokens: &text[..end], rows: 1, blocks: &blocks },
            Work { tokens: &other[..3 * step + 3], rows: 3, blocks: &beside },
        ];
        logits.extend(runner.step(&works));
    }
    (logits.into_iter().map(f32::to_bits).collect(), runner.backend)
}

#[test]
fn a_network_computes_the_same_on_any_number_of_ranks() {
    for &case in SHARED {
        let folder = data(case);
        let (golden, files) = (Golden::read(&folder), ModelFiles::open(&folder).unwrap());
        let text = golden.text();
        let (expected, _) = told(cpu(), &files, &text);
        for count in 2..=4 {
            let (found, ranks) = told(AnyBackend::of_executor(ranks(&files, count)), &files, &text);
            assert!(found == expected, "{case}, {count} ranks");
            assert!(count > 2 || gathers(&ranks) > 0, "{case}: nothing is divided by two");
        }
    }
}

/// What is divided, of models whose heads and rows two ranks can divide.
#[test]
fn ranks_hold_parts_of_what_one_device_does() {
    for case in ["tiny/qwen3", "tiny/llama-linear", "dense/gemma3"] {
        let files = ModelFiles::open(&data(case)).unwrap();
        let planned = |ranks| Decoder::plan(&AnyBackend::of_executor(ranks), &files).weights_bytes;
        let (one, two) =
            (planned(ranks(&files, 1)), [0, 1].map(|rank| planned(ranks(&files, 2).counting(rank))));
        assert!(two[1] < one * 6 / 10, "{case}: {two:?} of {one} bytes");
        assert!(two[0] >= two[1] && two[0] < one, "{case}: {two:?} of {one} bytes, the head among them");
    }
}

#[test]
fn rows_are_gathered_where_they_are_read_as_a_whole() {
    let files = ModelFiles::open(&data("tiny/qwen3")).unwrap();
    let mut runner = Runner::new(AnyBackend::of_executor(ranks(&files, 2)), &files);
    for step in 1..=2 {
        runner.prefill(&[1, 2, 3]);
        // What attention gives, its output, what is between an MLP's products, and what it gives.
        assert_eq!(gathers(&runner.backend), step * 4 * files.spec.layers.len() as u64);
    }
}
