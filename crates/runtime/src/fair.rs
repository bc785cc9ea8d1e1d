//! Order of waiting jobs: fair queueing by virtual time (start-time fair queueing, doi.org/10.1109/90.649569).
//!
//! The virtual time counts tokens. A job's sequences get consecutive start times, from the current time when the
//! job arrives. The time advances by the tokens that are computed, divided by the number of waiting jobs. So a job
//! of thousands of inputs waits as if its inputs came one by one. A small job that arrives later waits for a few of
//! them, not for all.
//!
//! If clients are known, fairness also holds between them. A client's next job starts after its last one in virtual
//! time, whatever the current time is. So a client that sends a hundred jobs at once waits as if it sent one after
//! the other, and a client with one job waits for a few of them. Cancelled jobs count as much as the client's last
//! job at most.
//!
//! Running sequences count too: a job with many slots gives one to a job with fewer (see `scheduler/turns.rs`).

use std::{collections::HashMap, hash::Hash};

use crate::{
    job::{ClientId, EmbedJob, JobId},
    limits::{CLIENTS_FORGOTTEN_FROM, FAIR_ANSWER_TOKENS_MAX},
};

/// Position of a sequence in the queue. The smaller runs earlier: priority, then virtual start time, then arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    priority: i32,
    start: u64, // tokens
    arrival: u64,
    choice: u32,
}

/// Fair queue.
#[derive(Debug, Default)]
pub struct FairLine {
    now: u64, // tokens
    arrivals: u64,
    waiting: HashMap<JobId, u32>, // waiting sequences of each job
    running: HashMap<JobId, u32>, // running sequences of each job
    clients: HashMap<ClientId, Client>,
    clients_waiting: HashMap<ClientId, u32>, // waiting jobs of each client
    of_jobs: HashMap<JobId, ClientId>,
}

/// Earliest virtual start time of a client's next job.
#[derive(Debug, Default)]
struct Client {
    next: u64,               // tokens
    last: u64,               // tokens of its last job
    jobs: Vec<(JobId, u64)>, // jobs that wait or run, with their tokens
}

/// Job that joins the queue.
#[derive(Clone, Copy, Debug)]
pub struct NewJob {
    /// ID of the job.
    pub job: JobId,
    /// Priority; lower runs earlier.
    pub priority: i32,
    /// Client that sent the job, if known.
    pub client: Option<ClientId>,
    /// Tokens that the job computes before another sequence may run between its own.
    pub tokens: u64,
}

impl EmbedJob {
    /// The job's entry for the queue.
    pub fn arriving(&self) -> NewJob {
        let tokens = self.inputs.first().map_or(0, |input| input.tokens.len() as u64);
        NewJob { job: self.id, priority: self.priority, client: self.client, tokens }
    }
}

/// Cost of a generating job in tokens: prompt and maximum answer for each completion. Only the first
/// [`FAIR_ANSWER_TOKENS_MAX`] tokens of an answer count.
pub fn tokens_of(prompt_tokens: usize, max_tokens: u32, choices: u32) -> u64 {
    (prompt_tokens as u64 + u64::from(max_tokens.min(FAIR_ANSWER_TOKENS_MAX))) * u64::from(choices.max(1))
}

/// Hands out the queue positions of one job's sequences.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    priority: i32,
    start: u64,
    arrival: u64,
    choice: u32,
    stretch: u64, // number of the client's jobs, which share its share of the virtual time
}

impl FairLine {
    /// Adds a job that arrives.
    pub fn arrive(&mut self, arriving: NewJob) -> Arrival {
        let NewJob { job, priority, client, tokens } = arriving;
        self.arrivals += 1;
        let (start, stretch) = client.map_or((self.now, 1), |client| self.place(client, job, tokens));
        Arrival { priority, start, arrival: self.arrivals, choice: 0, stretch }
    }

    /// Virtual start time of a client's next job, and the number of its jobs that wait or run.
    fn place(&mut self, client: ClientId, job: JobId, tokens: u64) -> (u64, u64) {
        let Self { now, waiting, running, clients, of_jobs, .. } = self;
        let is_here = |job: &JobId| waiting.contains_key(job) || running.contains_key(job);
        if clients.len() + of_jobs.len() >= CLIENTS_FORGOTTEN_FROM + 2 * (waiting.len() + running.len()) {
            of_jobs.retain(|job, _| is_here(job));
            clients.retain(|_, client| client.next > *now || client.jobs.iter().any(|(job, _)| is_here(job)));
        }
        let of = clients.entry(client).or_default();
        of.jobs.retain(|(job, _)| is_here(job));
        let asked: u64 = of.jobs.iter().map(|(_, tokens)| tokens).sum();
        let start = of.next.min(*now + asked + of.last).max(*now);
        (of.next, of.last) = (start + tokens, tokens);
        of.jobs.push((job, tokens));
        of_jobs.insert(job, client);
        (start, of.jobs.len() as u64)
    }

    /// Counts a sequence of the job as waiting.
    pub fn wait(&mut self, job: JobId) {
        let count = self.waiting.entry(job).or_default();
        *count += 1;
        if *count == 1
            && let Some(&client) = self.of_jobs.get(&job)
        {
            *self.clients_waiting.entry(client).or_default() += 1;
        }
    }

    /// Counts a sequence of the job as no longer waiting.
    pub fn leave(&mut self, job: JobId) {
        if count_down(&mut self.waiting, job)
            && let Some(&client) = self.of_jobs.get(&job)
        {
            count_down(&mut self.clients_waiting, client);
        }
    }

    /// Number of parties that share the virtual time: waiting clients, and waiting jobs without a known client.
    fn sharers(&self) -> u64 {
        let of_clients: u32 = self.clients_waiting.values().sum();
        (self.waiting.len() as u64).saturating_sub(u64::from(of_clients)) + self.clients_waiting.len() as u64
    }

    /// Counts a sequence of the job as running.
    pub fn run(&mut self, job: JobId) {
        *self.running.entry(job).or_default() += 1;
    }

    /// Counts a sequence of the job as no longer running.
    pub fn stop(&mut self, job: JobId) {
        count_down(&mut self.running, job);
    }

    /// Number of the job's running sequences.
    pub fn running(&self, job: JobId) -> u32 {
        self.running.get(&job).copied().unwrap_or_default()
    }

    /// Largest number of running sequences of one job.
    pub fn running_most(&self) -> u32 {
        self.running.values().copied().max().unwrap_or_default()
    }

    /// Advances the virtual time for a sequence of `tokens` tokens that starts. Call it while the sequence still
    /// counts as waiting.
    pub fn begin(&mut self, order: Order, tokens: usize) {
        let sharers = self.sharers().max(1);
        // Never behind what runs, or new arrivals would overtake it for ever.
        self.now = self.now.max(order.start) + (tokens as u64).div_ceil(sharers);
    }
}

impl Order {
    /// Position right after the job's other completions, which stay together.
    pub fn after_its_choices(self) -> Order {
        Order { choice: u32::MAX, ..self }
    }

    /// Whether its priority goes before the other's, regardless of arrival.
    pub fn is_more_urgent_than(&self, other: &Order) -> bool {
        self.priority < other.priority
    }
}

/// Counts one down. Returns whether it was the last.
fn count_down<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K) -> bool {
    let Some(count) = counts.get_mut(&key) else { return false };
    *count -= 1;
    let last = *count == 0;
    if last {
        counts.remove(&key);
    }
    last
}

impl Arrival {
    /// Position of the job's next sequence. Its first `apart` tokens separate it from the one after.
    pub fn next(&mut self, apart: usize) -> Order {
        let Arrival { priority, start, arrival, choice, stretch } = *self;
        self.start += apart as u64 * stretch;
        self.choice += 1;
        Order { priority, start, arrival, choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(job: u64, client: Option<u64>, tokens: u64) -> NewJob {
        NewJob { job: JobId(job), priority: 0, client: client.map(ClientId), tokens }
    }

    /// Jobs in the order in which they start, each a single sequence of the given number of tokens.
    fn begun(line: &mut FairLine, mut jobs: Vec<(Order, u64, usize)>, count: usize) -> Vec<u64> {
        jobs.sort();
        let first: Vec<_> = jobs.into_iter().take(count).collect();
        for &(order, job, tokens) in &first {
            line.begin(order, tokens);
            line.leave(JobId(job));
        }
        first.into_iter().map(|(_, job, _)| job).collect()
    }

    #[test]
    fn a_client_with_many_jobs_does_not_keep_another_with_one_waiting() {
        let mut line = FairLine::default();
        let enter = |line: &mut FairLine, job, client| {
            let order = line.arrive(of(job, client, 300)).next(0);
            line.wait(JobId(job));
            (order, job, 40)
        };
        let mut greedy: Vec<_> = (0..100).map(|job| enter(&mut line, job, Some(1))).collect();
        let rest = greedy.split_off(10);
        assert_eq!(begun(&mut line, greedy, 10), (0..10).collect::<Vec<_>>());
        let mut all = rest;
        all.push(enter(&mut line, 500, Some(2)));
        all.push(enter(&mut line, 501, Some(2)));
        assert_eq!(begun(&mut line, all, 4), [500, 10, 501, 11]);
        // Without known clients each job counts for itself, as it came.
        let mut line = FairLine::default();
        let mut all: Vec<_> = (0..100).map(|job| enter(&mut line, job, None)).collect();
        all.push(enter(&mut line, 500, None));
        assert_eq!(begun(&mut line, all, 101).last(), Some(&500));
    }

    #[test]
    fn who_asks_again_at_once_shares_with_who_asks_for_all_at_once() {
        let mut line = FairLine::default();
        let enter = |line: &mut FairLine, job, client| {
            let order = line.arrive(of(job, Some(client), 300)).next(0);
            line.wait(JobId(job));
            (order, job, 40)
        };
        let mut waiting: Vec<_> = (0..50).map(|job| enter(&mut line, job, 1)).collect();
        let mut served = [0, 0];
        for job in 100..140 {
            waiting.push(enter(&mut line, job, 2));
            // One slot, until the second client's job has started.
            while waiting.iter().any(|&(_, waits, _)| waits == job) {
                let next = begun(&mut line, waiting.clone(), 1)[0];
                waiting.retain(|&(_, waits, _)| waits != next);
                served[usize::from(next >= 100)] += 1;
            }
        }
        assert!((35..=45).contains(&served[0]), "{served:?}");
    }

    #[test]
    fn a_clients_small_job_does_not_wait_for_all_of_its_large_one() {
        let mut line = FairLine::default();
        let mut large = line.arrive(of(1, Some(1), 100));
        let bulk: Vec<Order> = (0..1000).map(|_| large.next(100)).collect();
        let small = line.arrive(of(2, Some(1), 20)).next(20);
        assert!(small < bulk[2], "{small:?}");
    }

    #[test]
    fn what_a_client_took_back_is_forgotten_and_so_are_clients() {
        let mut line = FairLine::default();
        (0..1000).for_each(|job| {
            line.arrive(of(job, Some(1), 300));
            line.wait(JobId(job));
        });
        (0..1000).for_each(|job| line.leave(JobId(job)));
        let order = line.arrive(of(1000, Some(1), 300)).next(0);
        assert!(order.start <= 300, "{order:?}");
        for job in 2000..20_000 {
            let order = line.arrive(of(job, Some(job), 10)).next(0);
            line.wait(JobId(job));
            line.begin(order, 100);
            line.leave(JobId(job));
        }
        let kept = (line.clients.len(), line.of_jobs.len(), line.clients_waiting.len());
        assert!(kept.0 + kept.1 <= CLIENTS_FORGOTTEN_FROM + 8 && kept.2 == 0, "{kept:?}");
    }

    #[test]
    fn a_small_job_does_not_wait_for_all_of_a_large_one() {
        let mut line = FairLine::default();
        let mut large = line.arrive(of(9, None, 0));
        let bulk: Vec<Order> = (0..1000).map(|_| large.next(100)).collect();
        (0..1000).for_each(|_| line.wait(JobId(1)));
        for &order in &bulk[..10] {
            line.begin(order, 100);
            line.leave(JobId(1));
        }
        let small = line.arrive(of(9, None, 0)).next(20);
        assert!(small > bulk[9] && small < bulk[11], "{small:?}");
        assert!(
            line.arrive(NewJob { priority: -1, ..of(9, None, 0) }).next(1) < bulk[0],
            "priority comes first"
        );
    }

    #[test]
    fn many_small_jobs_do_not_starve_a_large_one() {
        let mut line = FairLine::default();
        let mut large = line.arrive(of(9, None, 0));
        let mut bulk: Vec<Order> = (0..100).map(|_| large.next(100)).rev().collect();
        (0..100).for_each(|_| line.wait(JobId(1)));
        let mut served = 0;
        for id in 2..1_000 {
            // A small job always waits, and yet the large one advances.
            let small = line.arrive(of(9, None, 0)).next(100);
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
        let orders: Vec<Order> = (0..10).map(|_| line.arrive(of(9, None, 0)).next(50)).collect();
        assert!(orders.is_sorted());
    }
}
