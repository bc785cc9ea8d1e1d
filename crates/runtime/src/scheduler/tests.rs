//! The scheduler alone: no weights, and every sampled token is the same.

use std::path::Path;

use hanzo_engine_ops::{BLOCK_TOKENS, Draws, RowSource};

use super::*;
use crate::{
    embedding::{EmbedInput, EmbedResult, Output, Pooling},
    job::{EventKind, StopConditions},
    opened::OpenedModel,
    sampler::SamplingParams,
};

mod holes;
mod turns;

const TOKEN: u32 = 278;

struct Bench {
    scheduler: Scheduler,
    pool: BlockPool,
    text: TextModel,
    embedder: Embedder,
    step: Step,
    events: Vec<Event>,
    broken: bool, // the first row of logits is not a number
}

impl Bench {
    fn new(blocks: usize, change: impl FnOnce(&mut SchedulerConfig)) -> Bench {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
        let mut config = SchedulerConfig {
            long_after: None,
            rows_max: 64,
            prefill_rows_beside_decodes: 32,
            rows_together: 1,
            sequences_max: 8,
            context_tokens_max: blocks * BLOCK_TOKENS,
            speculation: Speculation::Off,
        };
        change(&mut config);
        let opened = OpenedModel::open(&path).unwrap();
        let text = opened.text_model().unwrap();
        Bench {
            scheduler: Scheduler::new(config),
            pool: BlockPool::new(blocks, true),
            embedder: opened.embedder(&text.tokenizer, blocks * BLOCK_TOKENS).unwrap(),
            text,
            step: Step::default(),
            events: Vec::new(),
            broken: false,
        }
    }

    /// Submits job `id` with a unique prompt.
    fn submit(&mut self, id: u64, prompt: usize, max_tokens: u32, change: impl FnOnce(&mut Job)) {
        let mut job = Job {
            id: JobId(id),
            prompt: (0..prompt as u32).map(|i| (i + id as u32 * 7) % 4000).collect(),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            stop: StopConditions { max_tokens, ignore_eos: true, ..StopConditions::default() },
            ..Job::default()
        };
        change(&mut job);
        self.scheduler.submit(&job.into(), &self.text, None);
    }

    /// Rows of each sequence in one step, in batch order.
    fn step(&mut self) -> Vec<u32> {
        self.scheduler.schedule(&mut self.pool, &mut self.step, &mut self.events);
        self.settle_step()
    }

    /// The same, of one that was made.
    fn settle_step(&mut self) -> Vec<u32> {
        self.check_batch();
        self.scheduler.assume(&mut self.pool);
        let mut logits = vec![0.0; self.step.draws.rows.len() * self.text.vocab];
        for row in logits.chunks_exact_mut(self.text.vocab) {
            row[TOKEN as usize] = 1.0;
        }
        if self.broken {
            logits[0] = f32::NAN;
        }
        let (mut draws, mut drawn) = (Draws::default(), Vec::new());
        draws.draw(&self.step.draws, &mut logits);
        let ticket = draws.submit();
        draws.wait(ticket, &mut drawn);
        // Each row's hidden state encodes its token.
        let (sources, width) = (&self.step.batch.sources, self.embedder.hidden);
        let mut read = |first: usize, out: &mut [f32]| {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                let RowSource::Token(token) = sources[first + row] else { panic!("a token") };
                out.fill(token as f32);
            }
            Ok(())
        };
        let mut rows = Vec::new();
        let mut hidden = Hidden { embedder: &self.embedder, read: &mut read, rows: &mut rows };
        let settled = StepResults { parts: &self.step.parts, drawn: &mut drawn, hidden: &mut hidden };
        self.scheduler.settle(settled, &self.text, &mut self.pool, &mut self.events).unwrap();
        self.step.batch.sequences.iter().map(|span| span.rows).collect()
    }

    fn check_batch(&self) {
        let mut slots = self.step.batch.slots.clone();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), self.step.batch.rows() * self.pool.groups(), "two rows write to one slot");
        for span in &self.step.batch.sequences {
            for row in 0..span.rows {
                let position = (span.context - span.rows + row) as usize;
                let at = (span.row_first + row) as usize;
                assert_eq!(self.step.batch.positions[at] as usize, position);
                let groups = 0..self.pool.groups();
                assert!(groups.into_iter().all(|group| {
                    self.step.batch.row_slot(at, group) == self.step.batch.slot(span, group, position as u32)
                }));
            }
        }
    }

    fn run(&mut self, steps_max: usize) {
        for _ in 0..steps_max {
            if !self.scheduler.has_work() {
                return;
            }
            assert!(!self.step().is_empty(), "there is work and nothing runs");
        }
        panic!("still work after {steps_max} steps: {:?}", self.scheduler.counts());
    }

    fn generated(&self, job: u64) -> usize {
        let of_job = self.events.iter().filter(|event| event.job == JobId(job));
        of_job
            .map(|event| if let EventKind::Delta { tokens, .. } = &event.kind { tokens.len() } else { 0 })
            .sum()
    }

    fn finished(&self, job: u64) -> usize {
        let ends =
            |event: &&Event| event.job == JobId(job) && matches!(event.kind, EventKind::Finished { .. });
        self.events.iter().filter(ends).count()
    }
}

#[test]
fn a_prompt_takes_as_long_of_a_step_as_those_who_decode() {
    // A prompt row takes a tenth of the time of a step that decodes one sequence. Returns the prompt rows of the
    // first prompt beside that sequence, and of all prompts when five more wait.
    let beside = |rows_together: usize| {
        let mut bench = Bench::new(64, |config| config.rows_together = rows_together);
        bench.submit(1, 10, 40, |_| ());
        assert_eq!(bench.step(), [10]);
        bench.scheduler.took_with_prompts(10, 0, 0.010);
        for _ in 0..20 {
            assert_eq!(bench.step(), [1]);
            bench.scheduler.took(1, None, 0.010);
        }
        bench.submit(2, 100, 20, |_| ());
        let one = bench.step();
        (3..8).for_each(|id| bench.submit(id, 100, 20, |_| ()));
        (one, bench.step())
    };
    let (one, more) = beside(1);
    assert!(one[0] == 1 && one.len() == 2 && (9..=10).contains(&one[1]), "{one:?}");
    assert_eq!(more, [1, 32], "as much as a prompt may take");
    // There is room for rows that must be computed in the same step.
    assert_eq!(beside(32).0, [1, 32]);
}

#[test]
fn decodes_first_then_prompts_within_the_budget() {
    let mut bench = Bench::new(64, |_| ());
    bench.submit(1, 10, 20, |_| ());
    assert_eq!(bench.step(), [10]);
    bench.submit(2, 100, 20, |_| ());
    bench.submit(3, 5, 20, |_| ());
    assert_eq!(bench.step(), [1, 32], "a prompt takes no more beside a decode than it may");
    assert_eq!(bench.step(), [1, 32]);
    assert_eq!(bench.step(), [1, 32]);
    assert_eq!(bench.step(), [1, 4, 5]);
    assert_eq!(bench.step(), [1, 1, 1]);
    bench.run(40);
    assert_eq!((bench.generated(1), bench.generated(2), bench.generated(3)), (20, 20, 20));
    assert_eq!(bench.pool.used(), 0);
}

#[test]
fn a_prompt_alone_takes_the_whole_step() {
    let mut bench = Bench::new(64, |_| ());
    bench.submit(1, 100, 2, |_| ());
    assert_eq!(bench.step(), [64]);
    assert_eq!(bench.step(), [36]);
}

#[test]
fn priority_before_arrival() {
    let mut bench = Bench::new(64, |config| config.sequences_max = 1);
    bench.submit(1, 4, 3, |_| ());
    bench.submit(2, 4, 3, |job| job.priority = -1);
    bench.run(20);
    let ends: Vec<u64> = bench
        .events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Finished { .. }))
        .map(|event| event.job.0)
        .collect();
    assert_eq!(ends, [2, 1]);
}

#[test]
fn choices_compute_their_prompt_once() {
    let mut bench = Bench::new(64, |_| ());
    bench.submit(1, 50, 4, |job| job.choices = 3);
    assert_eq!(bench.step(), [50], "the siblings wait");
    // Three full blocks are found; 2 tokens of the fourth are computed again.
    assert_eq!(bench.step(), [1, 2, 2]);
    assert_eq!(bench.pool.used(), 3 + 3);
    bench.run(20);
    assert_eq!((bench.finished(1), bench.pool.used()), (3, 0));
    assert_eq!(bench.scheduler.counters().prefix_hit_tokens, 96);
}

#[test]
fn the_last_in_line_gives_way_and_comes_back() {
    let mut bench = Bench::new(8, |_| ());
    bench.submit(1, 30, 90, |_| ());
    bench.submit(2, 30, 90, |_| ());
    bench.run(400);
    assert!(bench.scheduler.counters().preemptions > 0);
    assert_eq!((bench.generated(1), bench.generated(2)), (90, 90));
    assert_eq!((bench.finished(1), bench.finished(2), bench.pool.used()), (1, 1, 0));
    let starts = bench.events.iter().filter(|event| matches!(event.kind, EventKind::Started { .. })).count();
    assert_eq!(starts, 2, "coming back is not starting");
}

#[test]
fn what_a_sequence_finds_of_its_own_is_no_hit() {
    let mut bench = Bench::new(8, |_| ());
    bench.submit(1, 30, 60, |_| ());
    bench.submit(2, 30, 60, |_| ());
    let mut steps = Vec::new();
    while bench.scheduler.has_work() {
        steps.push(bench.step());
        assert!(steps.len() < 400, "still work: {:?}", bench.scheduler.counts());
    }
    assert!(steps.contains(&vec![33]), "of its 65 tokens, two blocks are still there: {steps:?}");
    assert_eq!(bench.scheduler.counters().prefix_hit_tokens, 0);
}

#[test]
fn a_long_prompt_is_not_overtaken() {
    let mut bench = Bench::new(8, |_| ());
    bench.submit(1, 60, 30, |_| ());
    bench.step();
    bench.submit(2, 100, 2, |_| ());
    bench.submit(3, 4, 2, |_| ());
    bench.step();
    assert_eq!(bench.scheduler.counts(), (1, 2), "3 would fit, but 2 was first");
    bench.run(100);
    assert_eq!((bench.finished(2), bench.finished(3)), (1, 1));
}

#[test]
fn who_does_not_read_gives_way_to_who_does() {
    let mut bench = Bench::new(8, |config| config.sequences_max = 2);
    bench.submit(1, 60, 30, |_| ());
    bench.submit(2, 20, 30, |_| ());
    bench.step();
    bench.step();
    bench.scheduler.hold(JobId(1), true);
    bench.scheduler.hold(JobId(2), true);
    assert!(!bench.scheduler.has_work());
    assert!(bench.step().is_empty());
    let before = (bench.generated(1), bench.generated(2));

    bench.submit(3, 100, 5, |_| ());
    bench.run(20);
    assert_eq!((bench.finished(3), bench.generated(1), bench.generated(2)), (1, before.0, before.1));

    bench.scheduler.hold(JobId(1), false);
    bench.scheduler.hold(JobId(2), false);
    bench.run(200);
    assert_eq!((bench.generated(1), bench.generated(2), bench.pool.used()), (30, 30, 0));
}

#[test]
fn cancel_frees_at_once_in_every_state() {
    let mut bench = Bench::new(16, |config| config.sequences_max = 2);
    for id in 1..=3 {
        bench.submit(id, 40, 50, |job| job.choices = 2);
    }
    bench.step();
    bench.step();
    for id in [2, 1, 3, 9] {
        bench.scheduler.cancel(JobId(id), &mut bench.pool);
    }
    assert_eq!((bench.scheduler.counts(), bench.pool.used()), ((0, 0), 0));
    assert!(bench.step().is_empty());
}

#[test]
fn the_context_s_end_is_length() {
    let mut bench = Bench::new(4, |config| config.context_tokens_max = 20);
    bench.submit(1, 15, 100, |_| ());
    bench.run(20);
    assert_eq!(bench.generated(1), 5);
}

#[test]
fn a_thousand_waiting_are_served_in_order() {
    let mut bench = Bench::new(64, |_| ());
    for id in 0..1000 {
        bench.submit(id, 3, 2, |_| ());
    }
    bench.run(1000);
    let ends: Vec<u64> = bench
        .events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Finished { .. }))
        .map(|event| event.job.0)
        .collect();
    assert_eq!(ends, (0..1000).collect::<Vec<_>>());
}

#[test]
fn what_is_not_a_number_ends_one_sequence_alone() {
    let mut bench = Bench::new(64, |_| ());
    bench.submit(1, 20, 5, |_| ());
    bench.submit(2, 20, 5, |_| ());
    bench.step();
    bench.broken = true;
    bench.step();
    bench.broken = false;
    bench.run(20);
    let failed = |event: &&Event| event.job == JobId(1) && event.kind == EventKind::Failed;
    assert_eq!(bench.events.iter().filter(failed).count(), 1);
    assert_eq!((bench.generated(1), bench.finished(1)), (1, 0));
    assert_eq!((bench.generated(2), bench.finished(2), bench.pool.used()), (5, 1, 0));
}

/// Job `id` with inputs of these lengths; input i starts with token `1000 + i`, unless they share `prefix` tokens.
fn inputs(id: u64, lengths: &[usize], prefix: usize) -> EmbedJob {
    let input = |(index, &length): (usize, &usize)| EmbedInput {
        tokens: (0..length as u32)
            .map(|i| if (i as usize) < prefix { i } else { 1000 + index as u32 * 10 + i % 10 })
            .collect(),
        ..EmbedInput::default()
    };
    EmbedJob {
        id: JobId(id),
        inputs: lengths.iter().enumerate().map(input).collect(),
        output: Output::Vector { dimensions: Some(1), normalize: Some(false) },
        priority: 0,
        client: None,
    }
}

/// First element of the result of each of a job's inputs, in order of arrival.
fn computed(events: &[Event], id: u64) -> Vec<(u32, f32)> {
    let of_job = events.iter().filter(|event| event.job == JobId(id));
    of_job
        .filter_map(|event| match &event.kind {
            EventKind::Computed(EmbedResult::Dense { values, rows: 1 }) => Some((event.choice, values[0])),
            _ => None,
        })
        .collect()
}

#[test]
fn inputs_are_read_from_their_own_rows() {
    let mut bench = Bench::new(64, |_| ());
    bench.submit(1, 20, 40, |_| ());
    bench.step();
    let job = inputs(2, &[5, 100, 1, 17], 0);
    bench.scheduler.submit_inputs(&job, &bench.embedder);
    for _ in 0..20 {
        bench.step();
    }
    let mut found = computed(&bench.events, 2);
    found.sort_by_key(|&(choice, _)| choice);
    // Pooled by the last token.
    let last = |input: &EmbedInput| *input.tokens.last().unwrap() as f32;
    let expected: Vec<(u32, f32)> = (0..).zip(job.inputs.iter().map(last)).collect();
    assert_eq!(found, expected);
    assert_eq!(bench.pool.used(), 3, "the completion's blocks only: 20 tokens and 21 steps");
}

#[test]
fn means_are_taken_over_chunks_and_find_nothing_in_the_cache() {
    let mut bench = Bench::new(64, |_| ());
    bench.embedder.spec.pooling = vec![Pooling::Mean];
    let job = inputs(1, &[200, 200], 0);
    let mean = |input: &EmbedInput| input.tokens.iter().map(|&t| t as f32).sum::<f32>() / 200.0;
    for id in 1..3 {
        let job = EmbedJob { id: JobId(id), ..job.clone() };
        bench.scheduler.submit_inputs(&job, &bench.embedder);
        for _ in 0..10 {
            bench.step();
        }
        for (choice, value) in computed(&bench.events, id) {
            assert!((value - mean(&job.inputs[choice as usize])).abs() < 1e-2, "{value}");
        }
        assert_eq!(computed(&bench.events, id).len(), 2);
    }
    assert_eq!(bench.scheduler.counters().prefix_hit_tokens, 0);
}

#[test]
fn inputs_that_begin_alike_compute_that_once() {
    let mut bench = Bench::new(256, |_| ());
    let job = inputs(1, &[80; 10], 64);
    bench.scheduler.submit_inputs(&job, &bench.embedder);
    assert_eq!(bench.step(), [64], "the others wait for the first");
    for _ in 0..20 {
        bench.step();
    }
    assert_eq!(computed(&bench.events, 1).len(), 10);
    assert_eq!(bench.scheduler.counters().prefix_hit_tokens, 9 * 64);
    assert_eq!(bench.pool.used(), 0);
}

#[test]
fn a_small_job_does_not_wait_for_a_large_one() {
    let mut bench = Bench::new(256, |_| ());
    let bulk = inputs(1, &[60; 40], 0);
    bench.scheduler.submit_inputs(&bulk, &bench.embedder);
    bench.step();
    bench.scheduler.submit_inputs(&inputs(2, &[10], 0), &bench.embedder);
    let mut steps = 0;
    while computed(&bench.events, 2).is_empty() {
        bench.step();
        steps += 1;
    }
    assert!(steps <= 4, "{steps} steps");
    assert!(computed(&bench.events, 1).len() < 10);
    for _ in 0..60 {
        bench.step();
    }
    assert_eq!(computed(&bench.events, 1).len(), 40);
}

#[test]
fn an_input_that_is_not_a_number_fails_alone() {
    let mut bench = Bench::new(64, |_| ());
    let job = inputs(1, &[4, 4], 0);
    bench.scheduler.submit_inputs(&job, &bench.embedder);
    bench.scheduler.schedule(&mut bench.pool, &mut bench.step, &mut bench.events);
    let width = bench.embedder.hidden;
    let mut read = |first: usize, out: &mut [f32]| {
        let value = if first / 4 == 0 { f32::NAN } else { 1.0 };
        out[..width].fill(value);
        Ok(())
    };
    let mut rows = Vec::new();
    let mut hidden = Hidden { embedder: &bench.embedder, read: &mut read, rows: &mut rows };
    bench.scheduler.assume(&mut bench.pool);
    let settled = StepResults { parts: &bench.step.parts, drawn: &mut Vec::new(), hidden: &mut hidden };
    bench.scheduler.settle(settled, &bench.text, &mut bench.pool, &mut bench.events).unwrap();
    let failed = bench.events.iter().filter(|event| event.kind == EventKind::Failed);
    assert_eq!(failed.map(|event| event.choice).collect::<Vec<_>>(), [0]);
    assert_eq!(computed(&bench.events, 1), [(1, 1.0)]);
    assert_eq!(bench.pool.used(), 0);
}
