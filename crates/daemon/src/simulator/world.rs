//! Environment of one model: simulated time, the worker's state (ready, parked, gone), clients, and commands to the
//! model. Everything runs on one thread, in an order that depends on the seed alone. Events that fall into a step's
//! duration are handled between the step and the worker's processing of it. Some are handled between the worker's
//! last check and its parking.

mod requests;

use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Wake,
};

use hanzo_engine_runtime::{EmbedJob, Job, JobId};

use super::{
    Coverage,
    alone::Alone,
    client::{ClientOutcome, Embedding, GenerationReader, LOST, ReadOutcome, SimulatedClient, Stage, Woken},
    device::{Faults, REASON, Script, Time},
    model::{self, Keeps},
    plan::{Ask, Leave, ModelOrder, ModelScenario},
    planted::{Bug, FaultyEngine},
    random::Random,
    story::Story,
    watched::{AuditableEngine, WatchedEngine},
};
use crate::{
    admission::Admission,
    error::FailureReason,
    launch::{Exit, bury},
    limits::EMBED_JOBS_MAX,
    metrics::{Metrics, ModelMetrics},
    restarts::Restarts,
    ticket::{JobEnd, embed_ticket, ticket},
    worker::{NotGiven, TurnResult, Vitals, WorkItem, Worker, WorkerHandle, channel},
};

/// Number of turns after which a simulation counts as endless.
const TURNS_MAX: u64 = 200_000;
/// Maximum time from a wake-up to running.
const WAKE_US: u64 = 20;
/// Maximum time from the last check to parking.
const PARK_US: u64 = 5;

pub(super) struct World<'a> {
    plan: ModelScenario,
    random: Random,
    time: Time,
    agenda: BTreeMap<(u64, u64), Action>, // by time, then in the order they were thought of
    thought_of: u64,
    clients: Vec<SimulatedClient>,
    woken: Woken,
    phase: ModelPhase,
    worker: Option<Worker>,
    running: ThreadState,
    parking: Arc<ParkingState>,
    lives: Vec<Life>,
    restarts: Restarts,
    jobs: u64,
    turns: u64,
    bug: Option<Bug>,
    faults: Faults,
    story: Story,
    alone: &'a mut Alone,
    coverage: &'a mut Coverage,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Come(usize),
    Give(usize),
    Read(usize),
    Leave(usize),
    Order(ModelOrder),
    /// The load, or the restart, with this number has finished.
    Loaded(usize),
    /// The wait before a restart is over.
    Restart(usize),
}

/// State of the model.
enum ModelPhase {
    Absent,
    Loading(usize),
    Ready(Rc<WorkerHandle>),
    Draining(Rc<WorkerHandle>),
    /// The worker failed and will be restarted with this number.
    Failed(usize),
}

/// State of the worker's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Gone,
    Ready(u64),
    Parked(Option<u64>),
}

/// Parking state of the worker, with a wake-up that may come before it parks.
#[derive(Default)]
struct ParkingState {
    parked: AtomicBool,
    woken: AtomicBool,
    forgets: bool, // planted
}

/// Commands given to one worker, and its end.
#[derive(Default)]
struct Life {
    began_us: u64,
    stopped: Option<&'static str>,
    left: bool,
    failed: Option<String>, // the error's id
}

impl Wake for ParkingState {
    fn wake(self: Arc<Self>) {
        if self.parked.load(Relaxed) || !self.forgets {
            self.woken.store(true, Relaxed);
        }
    }
}

impl<'a> World<'a> {
    pub(super) fn new(
        seed: u64,
        told: bool,
        bug: Option<Bug>,
        alone: &'a mut Alone,
        coverage: &'a mut Coverage,
    ) -> Self {
        let mut plan = ModelScenario::of(seed);
        alone.of_model(plan.model);
        let time = Time::new();
        let woken = Woken::default();
        let clients: Vec<SimulatedClient> = plan
            .clients
            .drain(..)
            .enumerate()
            .map(|(number, client)| SimulatedClient::new(number, client, woken.clone()))
            .collect();
        let mut world = World {
            random: Random::new(!seed),
            agenda: BTreeMap::new(),
            thought_of: 0,
            woken,
            phase: ModelPhase::Loading(0),
            worker: None,
            running: ThreadState::Gone,
            parking: Arc::default(),
            lives: Vec::new(),
            restarts: Restarts::default(),
            jobs: 0,
            turns: 0,
            bug,
            faults: Faults::default(),
            story: Story::new(time.clone(), told),
            clients,
            plan,
            time,
            alone,
            coverage,
        };
        world.story.tell(|| format!("{:?}", world.plan.config));
        for client in 0..world.clients.len() {
            world.at(world.clients[client].plan.at_us, Action::Come(client));
        }
        for (at, order) in std::mem::take(&mut world.plan.orders) {
            world.at(at, Action::Order(order));
        }
        world.loaded(0);
        world
    }

    fn at(&mut self, us: u64, action: Action) {
        self.thought_of += 1;
        self.agenda.insert((us.max(self.time.us()), self.thought_of), action);
    }

    fn after(&mut self, us: u64, action: Action) {
        self.at(self.time.us() + us, action);
    }

    /// Runs until no events are left. Returns a fault, if there is one.
    pub(super) fn run(mut self) -> (Option<String>, Story) {
        while self.faults.first().is_none() {
            self.hear_woken();
            let worker = self.worker_runs_at();
            let next = self.agenda.first_key_value().map(|(&(at, _), _)| at);
            match (worker, next) {
                (Some(at), next)
                    if next.is_none_or(|next| at < next || at == next && self.random.chance(50)) =>
                {
                    self.time.reach(at);
                    self.turn();
                }
                (_, Some(_)) => self.act(),
                (_, None) => {
                    self.check_rest();
                    // At the end the worker's handle is dropped, and the worker must end.
                    match std::mem::replace(&mut self.phase, ModelPhase::Absent) {
                        ModelPhase::Ready(worker) | ModelPhase::Draining(worker) => {
                            self.story.tell(|| "the end: the way to the worker is dropped".to_owned());
                            drop(worker);
                        }
                        _ if self.running == ThreadState::Gone => break,
                        _ => {
                            self.faults.add("the worker has not left: a wake-up was lost".to_owned());
                        }
                    }
                }
            }
            if self.turns > TURNS_MAX {
                self.faults.add(format!("it is not over after {TURNS_MAX} turns"));
            }
        }
        (self.faults.first(), self.story)
    }

    /// Executes the next scheduled event.
    fn act(&mut self) {
        let Some(((at, _), action)) = self.agenda.pop_first() else { return };
        self.time.reach(at);
        match action {
            Action::Come(client) => self.come(client),
            Action::Give(client) => self.give(client),
            // A later wake-up has replaced this one.
            Action::Read(client) if self.clients[client].reads_at_us == Some(at) => self.read(client),
            Action::Read(_) => {}
            Action::Leave(client) => self.leave(client),
            Action::Order(order) => self.order(order),
            Action::Loaded(number) => self.loaded(number),
            Action::Restart(number) => {
                if matches!(self.phase, ModelPhase::Failed(now) if now == number) {
                    self.phase = ModelPhase::Loading(number);
                    let us = self.random.of(100..=5_000);
                    self.after(us, Action::Loaded(number));
                }
            }
        }
        self.hear_woken();
    }

    /// Executes all events that are due by this time.
    fn pass(&mut self, us: u64) {
        self.hear_woken();
        while self.agenda.first_key_value().is_some_and(|(&(at, _), _)| at <= us) {
            self.act();
        }
        self.time.reach(us);
    }

    /// Schedules reading by clients that were woken.
    fn hear_woken(&mut self) {
        let woken = std::mem::take(&mut *self.woken.lock().unwrap());
        for client in woken {
            self.read_later(client, self.clients[client].plan.reads_after_us);
        }
    }

    fn read_later(&mut self, client: usize, us: u64) {
        let now = self.time.us();
        let this = &mut self.clients[client];
        let at = (now + us).max(this.paused_until_us);
        if this.is_over() || this.reads_at_us.is_some_and(|reads_at| reads_at <= at) {
            return;
        }
        this.reads_at_us = Some(at);
        self.at(at, Action::Read(client));
    }

    fn worker_runs_at(&mut self) -> Option<u64> {
        if let ThreadState::Parked(_) = self.running
            && self.parking.woken.swap(false, Relaxed)
        {
            self.parking.parked.store(false, Relaxed);
            self.running = ThreadState::Ready(self.time.us() + self.random.of(0..=WAKE_US));
        }
        match self.running {
            ThreadState::Gone | ThreadState::Parked(None) => None,
            ThreadState::Ready(at) | ThreadState::Parked(Some(at)) => Some(at.max(self.time.us())),
        }
    }

    fn turn(&mut self) {
        let Some(mut worker) = self.worker.take() else { return };
        self.turns += 1;
        self.parking.parked.store(false, Relaxed);
        let mut stepped = false;
        let ended = catch_unwind(AssertUnwindSafe(|| {
            worker.turn(|| {
                if std::mem::replace(&mut stepped, true) {
                    self.pass(self.time.step_ends_us());
                }
                self.time.now()
            })
        }));
        match ended {
            Ok(Ok(TurnResult::Ran)) => {
                self.running = ThreadState::Ready(self.time.us());
                self.worker = Some(worker);
            }
            Ok(Ok(TurnResult::Park(until))) => {
                let until = until.map(|until| self.time.us_of(until));
                self.story.tell(|| match until {
                    Some(until) => format!("  the worker parks until {until} us"),
                    None => "  the worker parks".to_owned(),
                });
                self.worker = Some(worker);
                if self.random.chance(30) {
                    self.pass(self.time.us() + PARK_US);
                }
                self.running = ThreadState::Parked(until);
                self.parking.parked.store(true, Relaxed);
            }
            ended => {
                self.running = ThreadState::Gone;
                let ended = ended.map(|ended| ended.map(|_| ()));
                self.ended(bury(worker, ended));
            }
        }
    }

    /// Handles the worker's end.
    fn ended(&mut self, exit: Exit) {
        let number = self.lives.len() - 1;
        let lived = self.time.at(self.time.us()) - self.time.at(self.lives[number].began_us);
        let draining = matches!(self.phase, ModelPhase::Draining(_));
        match exit {
            Exit::Left => {
                self.story.tell(|| "  the worker leaves".to_owned());
                if matches!(self.phase, ModelPhase::Ready(_)) {
                    self.faults.add("the worker has left, and nobody has told it to".to_owned());
                }
                self.lives[number].left = true;
                self.phase = ModelPhase::Absent;
                self.coverage.lefts += 1;
            }
            Exit::Failed(failure) => {
                self.story.tell(|| format!("  the worker fails: {}", failure.reason));
                if !failure.reason.to_string().contains(REASON) {
                    self.faults.add(format!("the worker has failed, not by its script: {}", failure.reason));
                }
                match failure.reason {
                    FailureReason::Panic(_) => self.coverage.panics += 1,
                    _ => self.coverage.errors += 1,
                }
                self.lives[number].failed = Some(failure.id.clone());
                self.restarts.lived(lived);
                self.phase = ModelPhase::Absent;
                if !draining && let Some(wait) = self.restarts.next() {
                    self.phase = ModelPhase::Failed(number + 1);
                    self.after(wait.as_micros() as u64, Action::Restart(number + 1));
                    self.coverage.restarts += 1;
                }
            }
        }
    }

    fn order(&mut self, order: ModelOrder) {
        self.story.tell(|| format!("{order:?}"));
        let now = self.time.now();
        match (order, std::mem::replace(&mut self.phase, ModelPhase::Absent)) {
            (ModelOrder::Load, ModelPhase::Absent) if self.running == ThreadState::Gone => {
                let number = self.lives.len();
                self.phase = ModelPhase::Loading(number);
                self.restarts = Restarts::default();
                let us = self.random.of(100..=5_000);
                self.after(us, Action::Loaded(number));
            }
            // As if the load had been refused: the previous worker has not ended.
            (ModelOrder::Load, phase) => self.phase = phase,
            (ModelOrder::Unload, ModelPhase::Ready(worker)) => {
                worker.drain(now);
                self.phase = ModelPhase::Draining(worker);
            }
            (ModelOrder::UnloadNow, ModelPhase::Ready(worker) | ModelPhase::Draining(worker)) => {
                worker.drain(now);
                worker.stop(UNLOADED, now);
                self.lives.last_mut().expect("the one that is ready").stopped = Some(UNLOADED);
                self.phase = ModelPhase::Draining(worker);
            }
            (ModelOrder::Abandon, ModelPhase::Ready(worker)) => drop(worker),
            // A load or restart in progress is cancelled.
            (
                ModelOrder::Unload | ModelOrder::UnloadNow | ModelOrder::Abandon,
                ModelPhase::Loading(_) | ModelPhase::Failed(_),
            ) => {}
            (_, phase) => self.phase = phase,
        }
    }

    /// Handles the end of a load: there is a worker now.
    fn loaded(&mut self, number: usize) {
        if !matches!(self.phase, ModelPhase::Loading(now) if now == number) {
            return;
        }
        let (time, faults) = (self.time.clone(), self.faults.clone());
        let end = self.plan.ends.get(number).copied().flatten();
        self.story.tell(|| format!("loaded; it ends {end:?}"));
        let script = Script {
            step_us: self.plan.step_us,
            row_us: self.plan.row_us,
            end,
            runs_ahead: self.plan.runs_ahead,
            rows_ahead: self.coverage.rows_ahead.clone(),
            takes_wrong_draws: self.bug == Some(Bug::WrongDraw),
            keeps_tables: self.bug == Some(Bug::StaleBlockTable),
            ..Script::plain(time.clone())
        };
        let config = self.plan.config;
        let windows = model::MODELS[self.plan.model];
        let engine = model::engine(windows, Keeps::Windows, config, script, faults.clone());
        let engine: Box<dyn AuditableEngine> = match self.bug {
            Some(bug) => Box::new(FaultyEngine::new(engine, bug)),
            None => Box::new(engine),
        };
        let (sequences_max, context) = (config.sequences_max, config.context_tokens_max);
        let paused = self.coverage.paused.clone();
        let (ahead, story) = (self.plan.runs_ahead, self.story.clone());
        let engine = WatchedEngine::new(engine, sequences_max, context, ahead, faults, story, paused);

        let admission = Admission::new(self.plan.queue_max);
        let (work, received) = channel(&admission);
        let vitals = Vitals::new(admission, time.now());
        let worker = Worker::new(Box::new(engine), received, vitals.clone(), metrics(), time.now());
        self.parking =
            Arc::new(ParkingState { forgets: self.bug == Some(Bug::LostWakeUp), ..ParkingState::default() });
        let handle = WorkerHandle::new(work, self.parking.clone().into(), vitals);
        self.worker = Some(worker);
        self.running = ThreadState::Ready(time.us());
        self.lives.push(Life { began_us: time.us(), ..Life::default() });
        self.phase = ModelPhase::Ready(Rc::new(handle));
    }

    /// Checks the final state: no request waits, and all resources have been given back.
    fn check_rest(&mut self) {
        for (number, client) in self.clients.iter().enumerate() {
            if !client.is_over() {
                self.faults
                    .add(format!("client {number} waits, and nothing is to happen: a wake-up was lost"));
            }
        }
        let ModelPhase::Ready(worker) = &self.phase else { return };
        let vitals = worker.vitals();
        let (waiting, running) = (vitals.admission.waiting(), vitals.admission.running());
        if (waiting, running) != (0, 0) {
            self.faults.add(format!("nobody is there, and {waiting} requests wait and {running} run"));
        }
        let places: Vec<_> = (0..self.plan.queue_max).map(|_| vitals.admission.enter()).collect();
        if places.iter().any(Result::is_err) {
            self.faults.add("a place in the queue has not come back".to_owned());
        }
        let stats = vitals.stats();
        if stats.blocks_used > 0 || stats.running > 0 || stats.waiting > 0 {
            self.faults.add(format!("nobody is there, and {stats:?}"));
        }
        self.coverage.preemptions += stats.preemptions;
        self.coverage.prefix_hit_tokens += stats.prefix_hit_tokens;
        self.coverage.steps += stats.steps;
    }
}

/// Reason given to requests that end because the model is unloaded by force.
const UNLOADED: &str = "the model was unloaded";

/// Metrics shared by all simulations; their values are not used.
fn metrics() -> Arc<ModelMetrics> {
    static METRICS: OnceLock<(Arc<Metrics>, Arc<ModelMetrics>)> = OnceLock::new();
    let make = || {
        let metrics = Metrics::new(0);
        let model = metrics.model("simulated");
        (metrics, model)
    };
    METRICS.get_or_init(make).1.clone()
}
