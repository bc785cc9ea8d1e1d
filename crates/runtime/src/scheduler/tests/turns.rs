//! Fairness between jobs: a waiting job gets its turn, sequences do not swap back and forth, and no job starves.

use std::collections::BTreeMap;

use super::*;
use crate::{
    job::ClientId,
    limits::{SHARED_TURN_TOKENS, SINGLE_TURN_TOKENS},
};

impl Bench {
    /// Steps until the job has finished.
    fn steps_to_finish(&mut self, job: u64, steps_max: usize) -> usize {
        for step in 0..steps_max {
            if self.finished(job) > 0 {
                return step;
            }
            self.step();
        }
        panic!("job {job} has not finished in {steps_max} steps: {:?}", self.scheduler.counts());
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| drop(self.step()));
    }

    fn preemptions(&self) -> u64 {
        self.scheduler.counters().preemptions
    }

    /// The tokens of each of a job's completions.
    fn tokens(&self, job: u64) -> BTreeMap<u32, Vec<u32>> {
        let mut tokens = BTreeMap::<u32, Vec<u32>>::new();
        for event in self.events.iter().filter(|event| event.job == JobId(job)) {
            if let EventKind::Delta { tokens: drawn, .. } = &event.kind {
                tokens.entry(event.choice).or_default().extend(drawn);
            }
        }
        tokens
    }
}

/// Uses random sampling, so that a sampler in the wrong state would be noticed.
fn by_chance(job: &mut Job) {
    job.sampling = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
}

#[test]
fn a_request_of_many_choices_gives_a_small_one_its_turn() {
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    bench.submit(1, 20, 600, |job| job.choices = 8);
    bench.steps(3 + SHARED_TURN_TOKENS);
    assert_eq!(bench.scheduler.counts(), (8, 0));
    for small in 2..40 {
        bench.submit(small, 10, 5, |_| ());
        let steps = bench.steps_to_finish(small, 600);
        assert!(steps <= 5 + 2, "job {small} took {steps} steps");
    }
    assert!(bench.preemptions() <= 38, "one gives way to one: {}", bench.preemptions());
    bench.run(2_000);
    assert_eq!((bench.finished(1), bench.generated(1), bench.pool.used()), (8, 8 * 600, 0));
}

#[test]
fn even_before_its_choices_have_all_begun() {
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    bench.submit(1, 20, 300, |job| job.choices = 32);
    bench.steps(20);
    assert_eq!(bench.scheduler.counts(), (8, 24));
    bench.submit(2, 10, 5, |_| ());
    assert!(bench.steps_to_finish(2, 600) <= 7, "24 choices stand before it in line");
}

#[test]
fn two_requests_of_many_choices_have_half_each() {
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    bench.submit(1, 20, 400, |job| job.choices = 8);
    bench.steps(20);
    bench.submit(2, 20, 400, |job| job.choices = 8);
    bench.steps(40);
    let before = (bench.generated(1), bench.generated(2), bench.preemptions());
    bench.steps(100);
    let now = (bench.generated(1), bench.generated(2), bench.preemptions());
    assert_eq!((now.0 - before.0, now.1 - before.1), (400, 400));
    assert_eq!((before.2, now.2), (4, 4), "nothing goes to and fro");
    bench.run(2_000);
    assert_eq!((bench.finished(1), bench.finished(2)), (8, 8));
}

#[test]
fn a_small_request_does_not_wait_for_as_many_long_ones_as_there_are_slots() {
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    for long in 1..=8 {
        bench.submit(long, 20, 600, |_| ());
    }
    bench.steps(SINGLE_TURN_TOKENS + 8);
    for small in 100..130 {
        bench.submit(small, 10, 5, |_| ());
        let steps = bench.steps_to_finish(small, 600);
        assert!(steps <= 5 + 2, "job {small} took {steps} steps");
    }
    assert!(bench.preemptions() <= 30, "{}", bench.preemptions());
    bench.run(2_000);
    for long in 1..=8 {
        assert_eq!((long, bench.generated(long)), (long, 600));
    }
}

#[test]
fn long_requests_end_though_small_ones_never_stop_coming() {
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    for long in 1..=8 {
        bench.submit(long, 20, 200, |_| ());
    }
    bench.steps(20);
    // Three new jobs in each step are more than eight slots can serve.
    let mut small = 100;
    for step in 0..4_000 {
        if (1..=8).all(|long| bench.finished(long) > 0) {
            return;
        }
        assert!(step < 3_900, "{:?}", (1..=8).map(|long| bench.generated(long)).collect::<Vec<_>>());
        for _ in 0..3 {
            bench.submit(small, 10, 5, |_| ());
            small += 1;
        }
        bench.step();
    }
}

#[test]
fn tokens_do_not_depend_on_who_gave_way() {
    let mut alone = Bench::new(512, |config| config.context_tokens_max = 1024);
    let job = |job: &mut Job| {
        by_chance(job);
        job.choices = 8;
    };
    alone.submit(1, 20, 200, job);
    alone.run(400);
    let mut beside = Bench::new(512, |config| config.context_tokens_max = 1024);
    beside.submit(1, 20, 200, job);
    for small in 2..30 {
        beside.steps(9);
        beside.submit(small, 10, 5, |_| ());
    }
    beside.run(2_000);
    assert!(beside.preemptions() >= 10, "{}", beside.preemptions());
    assert!(alone.tokens(1) == beside.tokens(1));
    assert_eq!(alone.tokens(1).len(), 8);
    assert_ne!(alone.tokens(1)[&0], alone.tokens(1)[&1]);
}

#[test]
fn blocks_are_shared_out_as_slots_are() {
    // Eight completions fill the cache, although slots are free.
    let mut bench = Bench::new(64, |config| {
        config.context_tokens_max = 256;
        config.sequences_max = 16;
    });
    bench.submit(1, 30, 200, |job| job.choices = 8);
    bench.steps(90);
    assert!(bench.pool.free() < 10, "{}", bench.pool.free());
    for small in 2..30 {
        bench.submit(small, 40, 20, |_| ());
        let steps = bench.steps_to_finish(small, 600);
        assert!(steps <= 25, "job {small} took {steps} steps");
    }
    bench.run(4_000);
    assert_eq!((bench.finished(1), bench.generated(1), bench.pool.used()), (8, 8 * 200, 0));
}

#[test]
fn who_grows_takes_blocks_from_who_holds_the_most() {
    let mut bench = Bench::new(64, |config| {
        config.context_tokens_max = 512;
        config.sequences_max = 16;
    });
    bench.submit(1, 30, 300, |job| job.choices = 8);
    bench.steps(20);
    bench.submit(2, 30, 100, |_| ());
    let steps = bench.steps_to_finish(2, 2_000);
    assert!(steps <= 105, "the last in line is not the one that goes: {steps} steps");
    bench.run(6_000);
    assert_eq!(bench.generated(1), 8 * 300);
}

#[test]
fn a_priority_says_who_is_first_and_not_how_much() {
    let urgent = |job: &mut Job| job.priority = -1;
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    for id in 1..=8 {
        bench.submit(id, 20, 100, urgent);
    }
    bench.steps(SINGLE_TURN_TOKENS + 8);
    bench.submit(10, 10, 5, |_| ());
    assert!(bench.steps_to_finish(10, 600) > 50, "it waits for one of eight that are more urgent");
    assert_eq!(bench.preemptions(), 0);
    bench.run(200);
    bench.submit(11, 20, 100, |job| {
        urgent(job);
        job.choices = 16;
    });
    bench.steps(20);
    bench.submit(12, 10, 5, |_| ());
    assert!(bench.steps_to_finish(12, 600) <= 7, "one that is urgent is not all of them");
}

#[test]
fn inputs_have_their_turn_beside_completions() {
    let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
    bench.submit(1, 20, 600, |job| job.choices = 8);
    bench.steps(20);
    bench.scheduler.submit_inputs(&inputs(2, &[10; 12], 0), &bench.embedder);
    bench.steps(12);
    assert_eq!(computed(&bench.events, 2).len(), 12);
    bench.run(2_000);
    assert_eq!(bench.generated(1), 8 * 600);
}

#[test]
fn those_that_wait_for_another_turn_are_bounded() {
    let mut bench = Bench::new(4096, |config| config.context_tokens_max = 1024);
    for id in 0..200 {
        bench.submit(id, 20, 500, |_| ());
    }
    for _ in 0..2_000 {
        bench.step();
        assert!(bench.scheduler.displaced <= 8 * 4);
    }
    bench.run(20_000);
    assert!((0..200).all(|id| bench.generated(id) == 500));
}

#[test]
fn a_full_line_goes_on_whatever_the_blocks() {
    // Too few blocks for all, and all kinds of jobs: every job ends, whichever is preempted.
    for blocks in [40, 64, 100] {
        let mut bench = Bench::new(blocks, |config| config.context_tokens_max = 512);
        for id in 0..30 {
            bench.submit(id, 5 + (id as usize * 37) % 150, 20 + (id as u32 * 53) % 180, |job| {
                job.choices = 1 + (id as u32 * 7) % 6;
                job.priority = (id as i32 % 7) / 5;
            });
        }
        bench.run(40_000);
        for id in 0..30 {
            assert_eq!(bench.finished(id), 1 + (id as usize * 7) % 6, "job {id} of {blocks} blocks");
        }
        assert_eq!((bench.pool.used(), bench.scheduler.displaced), (0, 0));
    }
}

#[test]
fn a_client_of_a_hundred_requests_gives_another_of_one_its_turn() {
    let ask = |client: Option<u64>| {
        let mut bench = Bench::new(512, |config| config.context_tokens_max = 1024);
        let of = |id: u64, job: &mut Job| {
            job.client = client.map(|greedy| ClientId(if id == 500 { 2 } else { greedy }))
        };
        for id in 1..=100 {
            bench.submit(id, 20, 200, |job| of(id, job));
        }
        bench.steps(2 * SINGLE_TURN_TOKENS);
        bench.submit(500, 20, 16, |job| of(500, job));
        let steps = bench.steps_to_finish(500, 5_000);
        bench.run(10_000);
        assert!((1..=100).all(|id| bench.generated(id) == 200), "everybody is served in the end");
        steps
    };
    // The running completion has its turn, the prompt takes a step, and so does each token.
    let (shared, alone) = (ask(Some(1)), ask(None));
    assert!(shared <= SINGLE_TURN_TOKENS + 16 + 2, "{shared} steps");
    assert!(alone > 4 * shared, "{alone} steps where nobody knows who asks, {shared} where it is known");
}
