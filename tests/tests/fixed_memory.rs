//! Memory that is fixed stays fixed: a conversation that goes on for ever, its context shifted again and again, takes nothing
//! more than what the load took. By tokens, without a clock.

#![cfg(target_os = "linux")] // where the system says what is resident

use hanzo_engine_process::heap::CountingAllocator;
use hanzo_engine_runtime::{
    Engine, Event, EventKind, FinishReason, Job, JobId, SamplingParams, StopConditions,
    overflow::ContextShift,
};
use hanzo_engine_tests::demo;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

const CONTEXT: usize = 512;
/// Tokens of a reader's pace for two hours, and what a test run has time for.
const TWO_HOURS_TOKENS: u64 = 2 * 3600 * 20;
const TOKENS: u64 = 12_000;
/// Of a turn: what is said, and what is answered.
const SAID: usize = 40;
const ANSWERED: u32 = 700;
/// What may be held beyond the load: buffers that grow to their largest request, once.
const HEAP_GROWTH_MAX: usize = 64 << 10;
const RESIDENT_GROWTH_MAX: usize = 6 << 20;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a Linux with /proc");
    let pages: usize =
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}

/// The tokens of one answer.
fn answer(engine: &mut Engine, turn: u64, prompt: &[u32], events: &mut Vec<Event>) -> Vec<u32> {
    let job = Job {
        id: JobId(turn),
        prompt: prompt.into(),
        sampling: SamplingParams { temperature: 1.0, seed: turn, ..SamplingParams::default() },
        stop: StopConditions { max_tokens: ANSWERED, ignore_eos: true, ..StopConditions::default() },
        context_shift: Some(ContextShift { keep_tokens: 16 }),
        ..Job::default()
    };
    job.validate(engine.text(), CONTEXT).expect("a sound job");
    engine.submit(&job);
    let mut said = Vec::with_capacity(ANSWERED as usize);
    while !engine.is_idle() {
        engine.step(events).expect("a step");
        for event in events.drain(..) {
            match event.kind {
                EventKind::Delta { tokens, .. } => said.extend(tokens),
                EventKind::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
                _ => {}
            }
        }
    }
    said
}

#[test]
fn a_conversation_without_end_takes_nothing_beyond_the_load() {
    let whole = std::env::var_os("HANZO_ENGINE_TEST_TWO_HOURS").is_some();
    let tokens_wanted = if whole { TWO_HOURS_TOKENS } else { TOKENS };
    let mut engine = demo::engine_with(|config| {
        config.kv_resident = true;
        config.context_tokens_max = CONTEXT;
        config.sequences_max = 4;
        config.step_tokens_max = 128;
        // Far more than one conversation needs: what it leaves behind fills them all.
        config.kv_blocks = 4096;
    });
    let mut events = Vec::with_capacity(1024);
    // The client keeps what fits.
    let mut history: Vec<u32> = Vec::with_capacity(2 * CONTEXT);
    let (mut turn, mut tokens, mut shifted) = (0, 0, 0);
    let loaded = (HEAP.bytes(), resident());
    while tokens < tokens_wanted {
        history.extend((0..SAID).map(|i| (turn as usize * 31 + i * 7) as u32 % 400 + 20));
        let surplus = history.len().saturating_sub(CONTEXT / 2);
        history.drain(..surplus);
        let said = answer(&mut engine, turn, &history, &mut events);
        assert_eq!(said.len(), ANSWERED as usize, "the answer goes on over the end of its context");
        shifted += usize::from(history.len() + said.len() > CONTEXT);
        history.clear();
        history.extend(&said[said.len() - CONTEXT / 2..]);
        (turn, tokens) = (turn + 1, tokens + u64::from(ANSWERED));
    }
    let now = (HEAP.bytes(), resident());
    let grown = (now.0.saturating_sub(loaded.0), now.1.saturating_sub(loaded.1));
    println!(
        "{tokens} tokens in {turn} turns, {shifted} over the end of the context: {} bytes more allocated and {} more resident than the {} and {} after the load",
        grown.0, grown.1, loaded.0, loaded.1
    );
    assert!(shifted as u64 == turn, "each turn outgrows its context");
    assert!(grown.0 <= HEAP_GROWTH_MAX, "{} bytes more are allocated", grown.0);
    assert!(grown.1 <= RESIDENT_GROWTH_MAX, "{} bytes more are resident", grown.1);
}
