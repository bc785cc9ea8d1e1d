//! Cards that compute each layer together: the demo model's logits are those of one card, bit by bit, and it says the same through the whole
//! engine. A stream does what it is asked for as late as it may, and whoever waits for it alone has the others stand still, so rows that are
//! read too early, or written anew too early, are found out.

use hanzo_engine_kernels::{Backend, Batch, KvType, RowSource, Sharded, StepLimits};
use hanzo_engine_kernels_cuda::{Card, CudaBackend, Driver};
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::{Engine, EventKind, Opened};

use crate::again::{ended, in_a_process, is_again};
use crate::driver::{card, library};
use crate::engine::{DEMO, config, engine, golden_prompts, job};

const CARDS: usize = 4;
/// Of the goldens, those with the closest choices.
const PROMPTS: [usize; 2] = [8, 10];
const TOKENS: usize = 12;

fn ranks(count: usize) -> Sharded<CudaBackend<Card>> {
    let card = |ordinal| Driver::at(&library()).open(ordinal).expect("the emulated card opens");
    Sharded::new((0..count).map(|rank| CudaBackend::new(card(rank % CARDS))).collect(), Vec::new())
}

/// Logits of two prompts, of which one is taken in two chunks, and of a token more of each.
fn logits<B: Backend>(mut backend: B) -> Vec<u32> {
    let opened = Opened::from_static("hanzo-demo", DEMO).expect("the embedded model is sound");
    let files = opened.decoder().expect("the embedded model is a decoder");
    let mut decoder = Decoder::load(&backend, files, &mut |_| ()).expect("the embedded weights are sound");
    let limits = StepLimits { logit_rows: 32, ..decoder.spec().step_limits(32, 2, 64) };
    decoder.prepare(&mut backend, &limits).expect("memory");
    let mut kv = backend.kv(&decoder.spec().kv_spec(8, KvType::F16, 2)).expect("memory");
    let mut found = Vec::new();
    for spans in [vec![(0, 9), (0, 17)], vec![(9, 14)], vec![(14, 15), (17, 18)]] {
        let mut batch = Batch::default();
        for (index, &(first, end)) in spans.iter().enumerate() {
            batch
                .sources
                .extend((first..end).map(|at| RowSource::Token(300 + 37 * at as u32 + index as u32)));
            batch.push_sequence(end - first, end, |_, block| (4 * index + block) as u32);
        }
        batch.logit_rows = (0..batch.rows() as u32).collect();
        let mut logits = vec![0.0; batch.rows() * decoder.spec().vocab];
        decoder.forward(&mut backend, &batch, &mut kv, &mut logits).expect("a step");
        found.extend(logits.into_iter().map(f32::to_bits));
    }
    found
}

#[test]
fn the_demo_model_computes_the_same_on_ranks() {
    let test = "ranks::the_demo_model_computes_the_same_on_ranks";
    if !is_again() {
        return in_a_process(test, &[("HANZO_ENGINE_EMULATED_CARDS", "4")]);
    }
    let card = Driver::at(&library()).open(0).expect("the emulated card opens");
    let expected = logits(CudaBackend::new(card.clone()));
    for count in [2, 4] {
        assert!(logits(ranks(count)) == expected, "{count} ranks");
    }
    let (found, engine) = answers(ranks(2));
    assert_eq!(found, answers(CudaBackend::new(card)).0);
    assert!(engine.backend().gathers() >= engine.stats().steps, "ranks read each other's rows");
}

/// What the demo model says to two prompts side by side, with a cache in Q8_0.
fn answers<B: Backend>(backend: B) -> (Vec<Vec<u32>>, Engine<B>) {
    let mut engine = engine(backend, config(KvType::Q8_0, PROMPTS.len()));
    for (id, at) in PROMPTS.into_iter().enumerate() {
        engine.submit(&job(id, &golden_prompts()[at], TOKENS));
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

/// The emulated one or a real one, which is opened for each of them and keeps as many streams.
#[test]
fn ranks_of_one_card_compute_what_it_does() {
    if std::env::var_os("HANZO_ENGINE_TEST_CARD").is_none() && !is_again() {
        return in_a_process("ranks::ranks_of_one_card_compute_what_it_does", &[]);
    }
    let expected = logits(CudaBackend::new(card()));
    let ranks = (0..2).map(|_| CudaBackend::new(card()).without_recording());
    assert!(logits(Sharded::new(ranks.collect(), Vec::new())) == expected, "two ranks on one card");
}

/// Where marks are not waited for, other cards' rows are read before they are there.
#[test]
fn rows_that_nobody_waits_for_are_found_out() {
    let test = "ranks::rows_that_nobody_waits_for_are_found_out";
    if is_again() {
        let card = Driver::at(&library()).open(0).expect("the emulated card opens");
        assert!(logits(ranks(2)) == logits(CudaBackend::new(card)), "other logits");
        return;
    }
    let cards = ("HANZO_ENGINE_EMULATED_CARDS", "2");
    let (success, said) = ended(test, &[cards, ("HANZO_ENGINE_EMULATED_WAITS", "none")]);
    assert!(!success && said.contains("other logits"), "{said}");
    in_a_process(test, &[cards]);
}
