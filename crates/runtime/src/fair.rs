//! Who is next when several wait: fair queueing by virtual time (start-time fair queueing, doi.org/10.1109/90.649569).
//!
//! A job's sequences are put one after the other on a line of tokens, from where the line is when the job arrives; the
//! line moves on by what is computed, shared among the jobs that wait. So a job of thousands of inputs stands in line
//! as if its inputs came one by one, and a small one that arrives later waits for a few of them, not for all.
//!
//! What runs is counted too: who holds many slots gives one to who holds fewer (see `scheduler/turns.rs`).

use std::collections::HashMap;

use crate::job::JobId;

/// Where a sequence stands in line. Smaller runs earlier: priority, then its place on the line, then arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    priority: i32,
    start: u64, // tokens
    arrival: u64,
    choice: u32,
}

/// The line.
#[derive(Debug, Default)]
pub struct FairLine {
    now: u64, // tokens
    arrivals: u64,
    waiting: HashMap<JobId, u32>, // sequences of each job that waits
    running: HashMap<JobId, u32>, // and of each that runs
}

/// One job's way to its places.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    priority: i32,
    start: u64,
    arrival: u64,
    choice: u32,
}

impl FairLine {
    /// A job arrives.
    pub fn arrive(&mut self, priority: i32) -> Arrival {
        self.arrivals += 1;
        Arrival { priority, start: self.now, arrival: self.arrivals, choice: 0 }
    }

    /// A sequence of the job waits.
    pub fn wait(&mut self, job: JobId) {
        *self.waiting.entry(job).or_default() += 1;
    }

    /// A sequence of the job no longer waits.
    pub fn leave(&mut self, job: JobId) {
        count_down(&mut self.waiting, job);
    }

    /// A sequence of the job runs.
    pub fn run(&mut self, job: JobId) {
        *self.running.entry(job).or_default() += 1;
    }

    /// A sequence of the job no longer runs.
    pub fn stop(&mut self, job: JobId) {
        count_down(&mut self.running, job);
    }

    /// Sequences of the job that run.
    pub fn running(&self, job: JobId) -> u32 {
        self.running.get(&job).copied().unwrap_or_default()
    }

    /// The most sequences of one job that run.
    pub fn running_most(&self) -> u32 {
        self.running.values().copied().max().unwrap_or_default()
    }

    /// A sequence of so many tokens begins. Called while it still counts as waiting.
    pub fn begin(&mut self, order: Order, tokens: usize) {
        let jobs = self.waiting.len().max(1) as u64;
        // Never behind what runs, or those that arrive next would overtake it for ever.
        self.now = self.now.max(order.start) + (tokens as u64).div_ceil(jobs);
    }
}

impl Order {
    /// A place after those of the job's other completions, which stand together.
    pub fn after_its_choices(self) -> Order {
        Order { choice: u32::MAX, ..self }
    }

    /// Whether its priority is before the other's, whoever came first.
    pub fn is_more_urgent_than(&self, other: &Order) -> bool {
        self.priority < other.priority
    }
}

fn count_down(counts: &mut HashMap<JobId, u32>, job: JobId) {
    if let Some(count) = counts.get_mut(&job) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&job);
        }
    }
}

impl Arrival {
    /// The place of the job's next sequence, of so many tokens; `apart` of them lie between it and the one after.
    pub fn next(&mut self, apart: usize) -> Order {
        let Arrival { priority, start, arrival, choice } = *self;
        self.start += apart as u64;
        self.choice += 1;
        Order { priority, start, arrival, choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_job_does_not_wait_for_all_of_a_large_one() {
        let mut line = FairLine::default();
        let mut large = line.arrive(0);
        let bulk: Vec<Order> = (0..1000).map(|_| large.next(100)).collect();
        (0..1000).for_each(|_| line.wait(JobId(1)));
        for &order in &bulk[..10] {
            line.begin(order, 100);
            line.leave(JobId(1));
        }
        let small = line.arrive(0).next(20);
        assert!(small > bulk[9] && small < bulk[11], "{small:?}");
        assert!(line.arrive(-1).next(1) < bulk[0], "priority comes first");
    }

    #[test]
    fn many_small_jobs_do_not_starve_a_large_one() {
        let mut line = FairLine::default();
        let mut large = line.arrive(0);
        let mut bulk: Vec<Order> = (0..100).map(|_| large.next(100)).rev().collect();
        (0..100).for_each(|_| line.wait(JobId(1)));
        let mut served = 0;
        for id in 2..1_000 {
            // A job always waits, and yet the large one advances.
            let small = line.arrive(0).next(100);
            line.wait(JobId(id));
            while bulk.last().is_some_and(|&order| order < small) {
                line.begin(bulk.pop().unwrap(), 100);
                line.leave(JobId(1));
                served += 1;
            }
            line.begin(small, 100);
            line.leave(JobId(id));
        }
        assert_eq!(served, 100);
    }

    #[test]
    fn jobs_of_one_sequence_run_as_they_came() {
        let mut line = FairLine::default();
        let orders: Vec<Order> = (0..10).map(|_| line.arrive(0).next(50)).collect();
        assert!(orders.is_sorted());
    }
}
