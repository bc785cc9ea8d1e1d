//! Tests of tensor parallelism: the demo model's logits have the bits of a single GPU, and so does its output through
//! the whole engine. The emulated streams run work as late as possible, and waiting for one leaves the others idle. So
//! rows that are read too early, or overwritten too early, are found.

use std::path::Path;

use hanzo_engine_cuda_emulator::Sources;
use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver, Kernel};
use hanzo_engine_ops::conformance::{self, briefly};
use hanzo_engine_ops::{
    AnyBackend, Batch, BufferRole, DType, HeadShape, KvType, MatrixShape, MatrixSource, RowSource, Stage,
    StepLimits, TensorParallel,
};
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::{Engine, EventKind, OpenedModel};

use crate::again::{ended, in_a_process, is_again};
use crate::driver::{card, library};
use crate::engine::{DEMO, config, engine_on, golden_prompts, job};

/// Number of emulated GPUs; `WAYS` selects peer access between them.
const CARDS: (&str, &str) = ("HANZO_ENGINE_EMULATED_CARDS", "4");
const WAYS: &str = "HANZO_ENGINE_EMULATED_WAYS";
/// Variables with peer access. The queue length ensures that all ranks get their work before one exceeds its driver's
/// queue.
const WITH_WAYS: [(&str, &str); 3] = [CARDS, (WAYS, "all"), ("HANZO_ENGINE_EMULATED_QUEUE", "24")];
const WITHOUT: [(&str, &str); 2] = [CARDS, (WAYS, "none")];
/// Golden prompts with the closest choices.
const PROMPTS: [usize; 2] = [8, 10];
const TOKENS: usize = 12;

fn ranks_of(library: &Path, count: usize) -> AnyBackend {
    let card = |ordinal| Driver::at(library).open(ordinal).expect("the emulated card opens");
    let ranks = (0..count).map(|rank| CudaBackend::new(card(rank))).collect();
    AnyBackend::of_executor(TensorParallel::new(ranks, Vec::new()))
}

fn ranks(count: usize) -> AnyBackend {
    ranks_of(&library(), count)
}

fn one_card() -> AnyBackend {
    AnyBackend::new(CudaBackend::new(Driver::at(&library()).open(0).expect("the emulated card opens")))
}

/// The tensor-parallel group behind a backend.
fn group(backend: &AnyBackend) -> &TensorParallel<CudaBackend<Card>> {
    backend.executor_ref().expect("ranks")
}

/// Whether the GPUs of this process have peer access.
fn has_ways() -> bool {
    std::env::var(WAYS).is_ok_and(|ways| ways == "all")
}

/// Logits of two prompts, one of them in two chunks, and of another token of each; and of a step that is not recorded.
fn logits(backend: &mut AnyBackend) -> Vec<u32> {
    let opened = OpenedModel::from_static("hanzo-demo", DEMO).expect("the embedded model is sound");
    let files = opened.decoder().expect("the embedded model is a decoder");
    let mut decoder = Decoder::load(backend, files, &mut |_| ()).expect("the embedded weights are sound");
    let limits = StepLimits { logit_rows: 80, ..decoder.spec().step_limits(80, 2, 64) };
    decoder.prepare(backend, &limits).expect("memory");
    let mut kv = backend.kv(&decoder.spec().kv_spec(8, KvType::F16, 2)).expect("memory");
    let mut found = Vec::new();
    for spans in [vec![(0, 9), (0, 17)], vec![(9, 14)], vec![(14, 15), (17, 18)], vec![(15, 55), (18, 52)]] {
        let mut batch = Batch::default();
        for (index, &(first, end)) in spans.iter().enumerate() {
            batch
                .sources
                .extend((first..end).map(|at| RowSource::Token(300 + 37 * at as u32 + index as u32)));
            batch.push_sequence(end - first, end, |_, block| (4 * index + block) as u32);
        }
        batch.logit_rows = (0..batch.rows() as u32).collect();
        let mut logits = vec![0.0; batch.rows() * decoder.spec().vocab];
        decoder.forward(backend, &batch, &mut kv, &mut logits).expect("a step");
        found.extend(logits.into_iter().map(f32::to_bits));
    }
    found
}

#[test]
fn the_demo_model_computes_the_same_on_ranks() {
    let test = "ranks::the_demo_model_computes_the_same_on_ranks";
    if !is_again() {
        return [&WITH_WAYS[..], &WITHOUT].into_iter().for_each(|variables| in_a_process(test, variables));
    }
    let expected = logits(&mut one_card());
    for count in [2, 4] {
        let mut backend = ranks(count);
        assert!(logits(&mut backend) == expected, "{count} ranks");
        assert_eq!(group(&backend).are_acquainted(), has_ways());
    }
    let (found, engine) = answers(ranks(2));
    assert_eq!(found, answers(one_card()).0);
    assert!(group(engine.backend()).gathers() >= engine.stats().steps, "ranks read each other's rows");
    assert_eq!(engine.backend().facts().lookahead, 1, "a step is made while the one before is computed");
    // A step of ranks with barriers is a plan that comes up again.
    for rank in group(engine.backend()).ranks() {
        assert_eq!(rank.replays() > TOKENS as u64 / 2, has_ways(), "{} replays", rank.replays());
    }
}

/// Output of the demo model for two prompts in one batch, with a cache in Q8_0.
fn answers(backend: AnyBackend) -> (Vec<Vec<u32>>, Engine) {
    let mut engine = engine_on(backend, config(KvType::Q8_0, PROMPTS.len()));
    for (id, at) in PROMPTS.into_iter().enumerate() {
        engine.submit(job(id, &golden_prompts()[at], TOKENS));
    }
    let (mut answers, mut events) = (vec![Vec::new(); PROMPTS.len()], Vec::new());
    while !engine.is_idle() {
        engine.step(&mut events).expect("a step");
        for event in events.drain(..) {
            if let EventKind::Delta { tokens, .. } = event.kind {
                answers[event.job.0 as usize].extend(tokens);
            }
        }
    }
    assert!(answers.iter().all(|answer| answer.len() == TOKENS));
    (answers, engine)
}

/// Checks ranks on a single GPU, emulated or real, which is opened for each rank and has as many streams; and on two
/// real GPUs of one kind, if there are two.
#[test]
fn ranks_of_one_card_compute_what_it_does() {
    let is_real = std::env::var_os("HANZO_ENGINE_TEST_CARD").is_some();
    if !is_real && !is_again() {
        return in_a_process("ranks::ranks_of_one_card_compute_what_it_does", &[]);
    }
    let expected = logits(&mut AnyBackend::new(CudaBackend::new(card())));
    let ranks = TensorParallel::new((0..2).map(|_| CudaBackend::new(card())).collect(), Vec::new());
    let mut backend = AnyBackend::of_executor(ranks);
    assert!(logits(&mut backend) == expected, "two ranks on one card");
    assert!(group(&backend).are_acquainted(), "a card reaches its own memory");
    let cards = if is_real { Driver::default().cards().expect("they are there") } else { Vec::new() };
    if cards.len() < 2 || cards[0].model != cards[1].model {
        return;
    }
    let card = |ordinal| CudaBackend::new(Driver::default().open(ordinal).expect("the card opens"));
    let mut backend = AnyBackend::of_executor(TensorParallel::new((0..2).map(card).collect(), Vec::new()));
    assert!(logits(&mut backend) == expected, "a rank on each of two cards");
    println!("two cards read each other's memory: {}", group(&backend).are_acquainted());
}

/// Runs the conformance suite with barriers and with events.
#[test]
fn ranks_conform() {
    if !is_again() {
        let run = |variables: &[_]| in_a_process("ranks::ranks_conform", variables);
        return [&WITH_WAYS[..], &WITHOUT].into_iter().for_each(run);
    }
    let library = library();
    let make = || ranks_of(&library, 2);
    briefly(|| {
        conformance::check_decoder(&make);
        conformance::check_transfers(&make);
        conformance::check_steps(&make);
        conformance::check_sample(&make);
    });
}

const COLS: usize = 64;

/// Products with norms of two products, the second in the place of the first: each rank's part shows what it has read.
fn products(backend: &mut AnyBackend) -> Vec<u32> {
    look_at_products(backend, |_| ())
}

/// The same; the backend is inspected when all work is enqueued and nothing started.
fn look_at_products(backend: &mut AnyBackend, look: impl Fn(&AnyBackend)) -> Vec<u32> {
    let rows = 3;
    let limits = StepLimits {
        rows,
        sequences: 1,
        logit_rows: 1,
        context: 16,
        width: COLS,
        vocab: 1,
        heads: HeadShape { heads: 2, kv_heads: 2, head_dim: 32 },
        experts: 0,
        experts_used: 0,
        experts_width: 0,
        kv_groups: 1,
        heads_matmul_width: 0,
    };
    let numbers =
        |seed: usize, count: usize| (0..count).map(move |at| ((seed + 31 * at) % 97) as f32 / 48.0 - 1.0);
    let expect = "the emulated card has room";
    backend.reserve(&limits).expect(expect);
    backend.enter(Stage::Layer(0));
    let matrices = [1, 2].map(|seed| {
        let bytes: Vec<u8> = numbers(seed, COLS * COLS).flat_map(f32::to_le_bytes).collect();
        let shape = MatrixShape { rows: COLS, cols: COLS, dtype: DType::F32 };
        backend.pack(&[MatrixSource { name: "numbers", shape, bytes: &bytes }]).expect(expect)
    });
    let weight = backend.vector(&[1.0; COLS]).expect(expect);
    let make = || backend.buffer(BufferRole::Operand, rows, COLS).expect(expect);
    let [mut x, mut product, mut norm] = [make(), make(), make()];
    let mut given_back = [make(), make()];
    let given: Vec<f32> = numbers(3, rows * COLS).collect();
    let mut batch = Batch { sources: vec![RowSource::Embedding; rows], ..Batch::default() };
    batch.push_sequence(rows, rows, |_, _| 0);
    backend.begin(&batch).expect(expect);
    backend.write_rows(&mut x, 0, &given).expect(expect);
    for (matrix, out) in matrices.iter().zip(&mut given_back) {
        backend.matmul(matrix, None, &x, &mut product);
        backend.rms_norm(&product, &weight, 1e-6, &mut norm);
        backend.matmul(&matrices[0], None, &norm, out);
    }
    look(backend);
    let mut found = vec![0.0; 2 * rows * COLS];
    let (first, second) = found.split_at_mut(rows * COLS);
    backend.read_rows(&given_back[0], 0, first).expect(expect);
    backend.read_rows(&given_back[1], 0, second).expect(expect);
    backend.end().expect(expect);
    found.into_iter().map(f32::to_bits).collect()
}

/// Checks that without waiting for events, other GPUs' rows are read too early.
#[test]
fn rows_that_nobody_waits_for_are_found_out() {
    let test = "ranks::rows_that_nobody_waits_for_are_found_out";
    if is_again() {
        let (mut ranks, mut one) = (ranks(2), one_card());
        assert!(logits(&mut ranks) == logits(&mut one), "other logits");
        return;
    }
    let waits = ("HANZO_ENGINE_EMULATED_WAITS", "none");
    let (success, said) = ended(test, &[WITHOUT[0], WITHOUT[1], waits]);
    assert!(!success && said.contains("other logits"), "{said}");
    in_a_process(test, &WITHOUT);
}

/// Checks that missing barriers let rows be read or overwritten too early.
#[test]
fn meetings_that_are_left_out_are_found_out() {
    if !is_again() {
        return in_a_process("ranks::meetings_that_are_left_out_are_found_out", &WITH_WAYS);
    }
    let expected = products(&mut one_card());
    // The emulator varies which rank continues if both can.
    let agrees = |sources: &Sources| products(&mut ranks_of(&sources.compile(), 2)) == expected;
    let agree = |sources: Sources| (0..12).all(|_| agrees(&sources));
    assert!(agree(Sources::default()));
    let hear = "threadIdx.x < p.ranks && !dev::hears(p.flags[p.rank] + threadIdx.x, turn, p.patience_ms)";
    let faults = [
        // No rank waits; all wait for only one; all wait for the turn before.
        vec![(
            hear,
            "p.is_trial && threadIdx.x < p.ranks && !dev::hears(p.flags[p.rank] + threadIdx.x, turn, 0)",
        )],
        vec![(
            hear,
            "threadIdx.x < p.ranks && !dev::hears(p.flags[p.rank] + (p.is_trial ? threadIdx.x : p.rank), turn, 0)",
        )],
        vec![(
            hear,
            "threadIdx.x < p.ranks && !dev::hears(p.flags[p.rank] + threadIdx.x, p.is_trial ? turn : turn - 1, 0)",
        )],
        // A turn is signalled one too early.
        vec![(
            "dev::tell(p.flags[other] + p.rank, turn);",
            "dev::tell(p.flags[other] + p.rank, turn + !p.is_trial);",
        )],
        // No barrier without copies, which is before rows are overwritten.
        vec![
            ("if (p.ranks > 0) {", "if (p.ranks > 0 && p.count > 0) {"),
            ("if (p.ranks == 0) return;", "if (p.ranks == 0 || p.count == 0) return;"),
        ],
    ];
    for fault in faults {
        let with = |sources: Sources, (own, instead): &(&str, &str)| sources.with("ranks.cu", own, instead);
        assert!(!agree(fault.iter().fold(Sources::default(), with)), "{fault:?} was not seen");
    }
}

/// Checks that ranks use events if the driver reports peer access that does not work: no signals arrive, or other
/// numbers are read.
#[test]
fn ways_that_bring_nothing_are_not_taken() {
    if !is_again() {
        return in_a_process("ranks::ways_that_bring_nothing_are_not_taken", &WITH_WAYS);
    }
    let expected = products(&mut one_card());
    let faults = [
        (
            "dev::tell(p.flags[other] + p.rank, turn);",
            "if (other == p.rank) dev::tell(p.flags[other] + p.rank, turn);",
        ),
        ("from = p.sources[source] +", "from = p.sources[p.is_trial ? p.rank : source] +"),
    ];
    for (own, instead) in faults {
        let mut ranks = ranks_of(&Sources::default().with("ranks.cu", own, instead).compile(), 2);
        assert!(products(&mut ranks) == expected, "{instead}");
        assert!(!group(&ranks).are_acquainted(), "{instead}");
    }
}

/// Checks that each rank reads the others' columns in one launch with the barrier.
#[test]
fn ranks_bring_columns_where_they_meet() {
    if !is_again() {
        return in_a_process("ranks::ranks_bring_columns_where_they_meet", &WITH_WAYS);
    }
    let expected = products(&mut one_card());
    let meetings = |backend: &AnyBackend| {
        let planned = group(backend).ranks().map(CudaBackend::planned);
        planned.map(|of| of.iter().filter(|kernel| **kernel == Kernel::Meet).count()).collect::<Vec<_>>()
    };
    // One for each product that is gathered, and one before the first one's place is overwritten.
    let found = look_at_products(&mut ranks(4), |ranks| assert_eq!(meetings(ranks), [3; 4]));
    assert!(found == expected);
    let card = |ordinal| Driver::at(&library()).open(ordinal).expect("the emulated card opens");
    let apart = (0..4).map(|rank| CudaBackend::new(card(rank)).without_fusion());
    let mut apart = AnyBackend::of_executor(TensorParallel::new(apart.collect(), Vec::new()));
    // Columns of each of the four separately.
    let found = look_at_products(&mut apart, |ranks| assert_eq!(meetings(ranks), [11; 4]));
    assert!(found == expected);
}
