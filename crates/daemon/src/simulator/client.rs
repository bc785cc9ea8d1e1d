//! Simulated client: its request, the events that it has read, and checks of the events and the end.

use std::{
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
};

use hanzo_engine_runtime::{EmbedResult, EventKind, Job};
use tokio::sync::oneshot;

use super::{
    alone::{Alone, in_pieces, without_cache},
    plan::{Ask, ClientPlan, Leave},
};
use crate::{
    admission::{KeptPlace, QueuePlace},
    ticket::{JobEnd, JobEvents, Results},
    worker::WorkerHandle,
};

/// Clients whose wakers were called.
pub(super) type Woken = Arc<Mutex<Vec<usize>>>;

pub(super) struct SimulatedClient {
    pub(super) plan: ClientPlan,
    pub(super) stage: Stage,
    pub(super) came_us: u64,
    pub(super) tries: u32,
    pub(super) has_paused: bool,
    /// Time at which it reads again.
    pub(super) paused_until_us: u64,
    pub(super) reads_at_us: Option<u64>,
    pub(super) waker: Waker,
}

/// Progress of a client.
pub(super) enum Stage {
    /// Not arrived yet, or waiting to try again.
    Away,
    /// Its prompt is being built.
    Preparing {
        place: QueuePlace,
        worker: Rc<WorkerHandle>,
        life: usize,
    },
    Streaming(GenerationReader),
    Embedding(Embedding),
    Over,
}

/// Way in which a client's request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientOutcome {
    TurnedAway,
    Left,
    Ended(JobEnd),
}

impl ClientOutcome {
    pub(super) fn name(&self) -> &'static str {
        match self {
            ClientOutcome::TurnedAway => "turned away",
            ClientOutcome::Left => "left",
            ClientOutcome::Ended(JobEnd::Done) => "done",
            ClientOutcome::Ended(JobEnd::Deadline) => "late",
            ClientOutcome::Ended(JobEnd::Stopped(_)) => "stopped",
            ClientOutcome::Ended(JobEnd::WorkerFailed { .. }) => "worker failed",
            ClientOutcome::Ended(JobEnd::NotANumber { .. }) => "not a number",
            ClientOutcome::Ended(JobEnd::Constraint { .. }) => "constraint failed",
            ClientOutcome::Ended(JobEnd::Unsayable { .. }) => "unsayable",
            ClientOutcome::Ended(JobEnd::NotReached { .. }) => "not reached",
        }
    }
}

/// Generation whose events are being read.
pub(super) struct GenerationReader {
    pub(super) events: JobEvents,
    pub(super) life: usize,
    pub(super) seen: Vec<Vec<EventKind>>, // by choice
}

/// Embedding request with batches in progress.
pub(super) struct Embedding {
    pub(super) place: Arc<KeptPlace>,
    pub(super) worker: Rc<WorkerHandle>,
    pub(super) life: usize,
    pub(super) on_their_way: VecDeque<(usize, oneshot::Receiver<Results>)>,
    pub(super) next: usize, // batch
}

/// Result of reading.
pub(super) enum ReadOutcome {
    /// No more events now; the waker is called when there are.
    All,
    /// The client has read as many events as it reads at once.
    Enough,
    /// The client stops reading until this time.
    Pauses(u64),
    /// The client disconnects.
    Leaves,
    /// The request has ended.
    Ended(JobEnd),
    /// The next batch has been answered.
    Answered(usize, Vec<EmbedResult>),
}

struct Wakes {
    client: usize,
    woken: Woken,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.client);
    }
}

impl SimulatedClient {
    pub(super) fn new(number: usize, plan: ClientPlan, woken: Woken) -> Self {
        let waker = Arc::new(Wakes { client: number, woken }).into();
        let (tries, stage) = (plan.tries, Stage::Away);
        let (came_us, paused_until_us, reads_at_us) = (0, 0, None);
        Self { plan, stage, came_us, tries, has_paused: false, paused_until_us, reads_at_us, waker }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    pub(super) fn deadline_us(&self) -> Option<u64> {
        Some(self.came_us + self.plan.deadline_us?)
    }

    /// Reads available events, up to the client's limits.
    pub(super) fn read(&mut self) -> ReadOutcome {
        let mut context = Context::from_waker(&self.waker);
        match &mut self.stage {
            Stage::Streaming(reader) => {
                for _ in 0..self.plan.reads_at_once {
                    let count: usize = reader.seen.iter().map(Vec::len).sum();
                    if let Some(Leave::AfterEvents(events)) = self.plan.leaves
                        && count >= events
                    {
                        return ReadOutcome::Leaves;
                    }
                    if let Some((events, us)) = self.plan.pauses
                        && count >= events
                        && !self.has_paused
                    {
                        self.has_paused = true;
                        return ReadOutcome::Pauses(us);
                    }
                    match reader.events.poll_next(&mut context) {
                        Poll::Ready(Ok(event)) => {
                            let seen = &mut reader.seen[event.choice as usize];
                            assert_eq!(
                                event.timings.is_some(),
                                matches!(event.kind, EventKind::Finished { .. }),
                                "what finishes is timed"
                            );
                            seen.push(without_cache(event.kind));
                        }
                        Poll::Ready(Err(end)) => return ReadOutcome::Ended(end),
                        Poll::Pending => return ReadOutcome::All,
                    }
                }
                ReadOutcome::Enough
            }
            Stage::Embedding(embedding) => {
                let Some((batch, results)) = embedding.on_their_way.front_mut() else {
                    return ReadOutcome::All;
                };
                match Pin::new(results).poll(&mut context) {
                    Poll::Pending => ReadOutcome::All,
                    Poll::Ready(Ok(Ok(computed))) => ReadOutcome::Answered(*batch, computed),
                    Poll::Ready(Ok(Err(end))) => ReadOutcome::Ended(end),
                    Poll::Ready(Err(_)) => ReadOutcome::Ended(JobEnd::Stopped(LOST)),
                }
            }
            Stage::Away | Stage::Preparing { .. } | Stage::Over => ReadOutcome::All,
        }
    }

    /// Whether the client has seen any event of its request.
    pub(super) fn has_seen_something(&self) -> bool {
        matches!(&self.stage, Stage::Streaming(reader) if reader.seen.iter().any(|seen| !seen.is_empty()))
    }

    /// Checks the events read so far, after the last one.
    pub(super) fn check_seen(&self, end: Option<&JobEnd>, alone: &mut Alone) -> Result<(), String> {
        match (&self.stage, &self.plan.ask) {
            (Stage::Streaming(reader), Ask::Generate(job)) => check_choices(reader, job, end, alone),
            (Stage::Embedding(_), Ask::Embed { batches, output, .. }) => {
                let mut breaks = || batches.iter().any(|batch| alone.inputs(batch, *output).is_none());
                match end {
                    Some(JobEnd::NotANumber { .. }) if !breaks() => {
                        Err("something is said to be no number, which alone is one".to_owned())
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks the response to a batch.
    pub(super) fn check_answer(
        &self,
        batch: usize,
        computed: &[EmbedResult],
        alone: &mut Alone,
    ) -> Result<(), String> {
        let Ask::Embed { batches, output, .. } = &self.plan.ask else { return Ok(()) };
        match alone.inputs(&batches[batch], *output) {
            Some(expected) if expected == computed => Ok(()),
            expected => Err(format!("batch {batch} came out as {computed:?}, alone as {expected:?}")),
        }
    }
}

/// Reason in the end of a request whose worker disappeared without notice.
pub(super) const LOST: &str = "the model's worker ended";

/// Whether `whole` begins with `part`.
fn begins(whole: &EventKind, part: &EventKind) -> bool {
    match (whole, part) {
        (EventKind::Scored(whole), EventKind::Scored(part)) => whole.starts_with(part),
        (
            EventKind::Delta { text, reasoning, calls, tokens, logprobs },
            EventKind::Delta { text: t, reasoning: r, calls: c, tokens: i, logprobs: l },
        ) => {
            text.starts_with(t.as_str())
                && reasoning.starts_with(r.as_str())
                && calls.starts_with(c)
                && tokens.starts_with(i)
                && logprobs.starts_with(l)
        }
        _ => false,
    }
}

/// Checks that every choice's events equal those of a run alone, in order, and completely if the request was
/// completed.
fn check_choices(
    reader: &GenerationReader,
    job: &Job,
    end: Option<&JobEnd>,
    alone: &mut Alone,
) -> Result<(), String> {
    let expected = alone.choices(job);
    for (choice, (seen, expected)) in reader.seen.iter().zip(&expected).enumerate() {
        let seen = in_pieces(seen.iter().cloned());
        for (at, kind) in seen.iter().enumerate() {
            // The last event may be incomplete if the request ended early.
            let whole = at + 1 < seen.len() || end == Some(&JobEnd::Done);
            let alone = expected.kinds.get(at);
            // A prefill chunk with a non-finite row scores nothing, and the length of chunks depends on the other
            // requests.
            if expected.breaks
                && matches!(kind, EventKind::Scored(_))
                && alone.is_none_or(|alone| begins(alone, kind) || begins(kind, alone))
            {
                continue;
            }
            if alone != Some(kind) && (whole || !alone.is_some_and(|alone| begins(alone, kind))) {
                return Err(format!("event {at} of choice {choice} is {kind:?}, alone {alone:?}"));
            }
        }
        if end == Some(&JobEnd::Done) && (expected.breaks || seen.len() < expected.kinds.len()) {
            let (seen, all) = (seen.len(), expected.kinds.len());
            return Err(format!("the request is done, and choice {choice} has {seen} events of {all}"));
        }
    }
    let breaks = expected.iter().any(|expected| expected.breaks);
    if matches!(end, Some(JobEnd::NotANumber { .. })) && !breaks {
        return Err("something is said to be no number, which alone is one".to_owned());
    }
    Ok(())
}
