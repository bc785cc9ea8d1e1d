//! Simulated device. A row is a single number, a hash. The KV cache stores, for each token and layer, a hash of the
//! row and its position. Attention reads the keys of a row's context through the block tables and hashes them in
//! order. Logits are generated from the hash. A wrong block, a stale key, a wrong position or an extra row
//! therefore changes the tokens. Steps take simulated time, and a script decides whether one fails.

use std::{
    panic::resume_unwind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hanzo_engine_ops::{
    Allocation, BLOCK_TOKENS, Backend, Batch, BufferRole, DeviceMemory, DeviceOp, Draws, ExpertParts, Facts,
    KernelError, KvGroups, KvPlace, KvSpec, LogitsHead, MatrixShape, MatrixSource, Op, Operands, OutputDelta,
    Rounding, RowSource, SampledToken, SequenceSpan, StepLimits, Ticket,
};

use super::random::mix;

/// Reason of a device's failure.
pub(super) const REASON: &str = "so its script says";

/// Simulated time in microseconds from the start.
#[derive(Clone)]
pub(super) struct Time {
    start: Instant,
    now_us: Arc<AtomicU64>,
    step_ends_us: Arc<AtomicU64>,
}

/// Faults found so far.
#[derive(Clone, Default)]
pub(super) struct Faults(Arc<Mutex<Vec<String>>>);

/// Behaviour of a device.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) time: Time,
    /// Duration of a step, to which `row_us` is added for each row.
    pub(super) step_us: u64,
    pub(super) row_us: u64,
    /// Last step, counted from 1, and the way in which it fails.
    pub(super) end: Option<(u64, DeviceFailure)>,
    /// Whether a step may be submitted before the previous one has finished.
    pub(super) runs_ahead: bool,
    /// Number of rows that were sampled by the previous step while it was still running, over all devices.
    pub(super) rows_ahead: Arc<AtomicU64>,
    /// Planted bug: a row that uses a sampled token takes its neighbour's.
    pub(super) takes_wrong_draws: bool,
    /// Planted bug: a decoding sequence is mistaken for the one at the same index in the previous step.
    pub(super) keeps_tables: bool,
}

/// Way in which a device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceFailure {
    /// Beginning a step fails.
    FailsFirst,
    /// The end of a step reports the failure.
    FailsLast,
    /// Reading logits reports the failure.
    FailsDrawing,
    /// Waiting for a step reports the failure, perhaps for a later step.
    FailsWaiting,
    /// Reading hidden states fails.
    FailsReading,
    /// The device panics within a step.
    Panics,
}

/// Simulated device.
pub(super) struct ScriptedDevice {
    facts: Facts,
    script: Script,
    faults: Faults,
    batch: Batch,
    before: Batch,
    tokens: Vec<u32>, // of the batch's rows
    draws: Draws,
    steps: u64,
}

/// Values by plane of memory, then by slot; 0 if never written.
pub(super) struct Kv {
    slots: usize,
    groups: KvGroups,
    planes: Vec<Vec<u64>>,
    states: Vec<Vec<u64>>, // by layer, then state
}

impl Time {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), now_us: Arc::default(), step_ends_us: Arc::default() }
    }

    pub(super) fn us(&self) -> u64 {
        self.now_us.load(Relaxed)
    }

    pub(super) fn now(&self) -> Instant {
        self.at(self.us())
    }

    /// Converts to the clock's type.
    pub(super) fn at(&self, us: u64) -> Instant {
        self.start + Duration::from_micros(us)
    }

    pub(super) fn us_of(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.start).as_micros() as u64
    }

    /// Advances the time, never backwards.
    pub(super) fn reach(&self, us: u64) {
        self.now_us.fetch_max(us, Relaxed);
    }

    /// End of the step that has just run.
    pub(super) fn step_ends_us(&self) -> u64 {
        self.step_ends_us.load(Relaxed).max(self.us())
    }
}

impl Script {
    /// Script of a device without delays, asynchronous steps or failures.
    pub(super) fn plain(time: Time) -> Self {
        Self {
            time,
            step_us: 0,
            row_us: 0,
            end: None,
            runs_ahead: false,
            rows_ahead: Arc::default(),
            takes_wrong_draws: false,
            keeps_tables: false,
        }
    }
}

impl Faults {
    pub(super) fn add(&self, fault: String) {
        self.0.lock().unwrap().push(fault);
    }

    pub(super) fn first(&self) -> Option<String> {
        self.0.lock().unwrap().first().cloned()
    }
}

impl ScriptedDevice {
    pub(super) fn new(script: Script, faults: Faults) -> Self {
        let rounding = Rounding { operands: Operands::F32, bytes_before_quantised: false };
        let facts = Facts::new("a scripted device", rounding, |_| true);
        Self {
            facts: Facts { lookahead: usize::from(script.runs_ahead), ..facts },
            script,
            faults,
            batch: Batch::default(),
            before: Batch::default(),
            tokens: Vec::new(),
            draws: Draws::default(),
            steps: 0,
        }
    }

    fn ends(&self, how: DeviceFailure) -> bool {
        self.script.end.is_some_and(|(step, ending)| ending == how && step <= self.steps)
    }

    fn failed(&self) -> KernelError {
        self.facts.failure(REASON)
    }

    /// Slot of a key in the block tables that the device uses.
    fn slot(&self, index: usize, span: &SequenceSpan, group: usize, key: u32) -> usize {
        let earlier = self.before.sequences.get(index).filter(|earlier| {
            self.script.keeps_tables
                && (earlier.row_first, earlier.rows, earlier.context + 1)
                    == (span.row_first, span.rows, span.context)
                && key < earlier.context
        });
        match earlier {
            Some(earlier) => self.before.slot(earlier, group, key),
            None => self.batch.slot(span, group, key),
        }
    }
}

impl Kv {
    fn plane(&mut self, plane: usize) -> &mut [u64] {
        while self.planes.len() <= plane {
            self.planes.push(vec![0; self.slots]);
        }
        &mut self.planes[plane]
    }
}

/// Maps a hash to a number in [0, 1).
fn share(hash: u64) -> f32 {
    (hash >> 40) as f32 / (1 << 24) as f32
}

/// Makes one row in a thousand non-finite, depending on all of its context.
fn is_broken(row: u64) -> bool {
    mix(row, 3).is_multiple_of(1024)
}

fn copy(from: &[u64], to: &mut [u64]) {
    to.copy_from_slice(&from[..to.len()]);
}

impl DeviceMemory for ScriptedDevice {
    type Matrix = ();
    type Vector = ();
    type Experts = ();
    type LowRank = ();
    type Buffer = Vec<u64>;
    type Kv = Kv;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn bytes(&self, _: &Allocation<'_>) -> usize {
        0
    }

    fn pack(&self, _: &[MatrixSource<'_>]) -> Result<(), KernelError> {
        Ok(())
    }

    fn experts(&self, _: &[ExpertParts<MatrixShape>]) -> Result<(), KernelError> {
        Ok(())
    }

    fn pack_expert(&self, (): &mut (), _: &ExpertParts<MatrixSource<'_>>) -> Result<(), KernelError> {
        Ok(())
    }

    fn low_rank(&self, _: &OutputDelta<'_>) -> Result<(), KernelError> {
        Ok(())
    }

    fn vector(&self, _: &[f32]) -> Result<(), KernelError> {
        Ok(())
    }

    fn buffer(&self, _: BufferRole, rows: usize, _: usize) -> Result<Vec<u64>, KernelError> {
        Ok(vec![0; rows])
    }

    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError> {
        let groups = spec.groups.clone();
        let states = vec![vec![0; spec.states]; spec.layers.len()];
        Ok(Kv { slots: spec.blocks * BLOCK_TOKENS, groups, planes: Vec::new(), states })
    }

    fn read_rows(&self, x: &Vec<u64>, first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        if self.ends(DeviceFailure::FailsReading) {
            return Err(self.failed());
        }
        for (&row, out) in x[first..].iter().zip(out.chunks_exact_mut(super::model::HIDDEN)) {
            for (at, out) in out.iter_mut().enumerate() {
                *out = if is_broken(row) { f32::NAN } else { share(mix(row, at as u64)) };
            }
        }
        Ok(())
    }

    fn write_rows(&mut self, _: &mut Vec<u64>, _: usize, _: &[f32]) -> Result<(), KernelError> {
        unreachable!("only tests of devices write rows")
    }
}

impl Backend for ScriptedDevice {
    fn reserve(&mut self, _: &StepLimits) -> Result<(), KernelError> {
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        self.steps += 1;
        if self.ends(DeviceFailure::FailsFirst) {
            return Err(self.failed());
        }
        std::mem::swap(&mut self.before, &mut self.batch);
        self.batch.clone_from(batch);
        self.tokens.clear();
        for source in &batch.sources {
            self.tokens.push(match *source {
                RowSource::Token(token) => token,
                RowSource::Sampled(index) => {
                    self.script.rows_ahead.fetch_add(1, Relaxed);
                    self.draws.token(index - u32::from(self.script.takes_wrong_draws && index > 0))
                }
                RowSource::Embedding => unreachable!("no request brings media"),
            });
        }
        self.draws.begin();
        let Script { time, step_us, row_us, .. } = &self.script;
        time.step_ends_us.store(time.us() + step_us + row_us * batch.rows() as u64, Relaxed);
        Ok(())
    }

    fn run(&mut self, op: DeviceOp<'_, Self>) {
        match op {
            Op::Embed { out, .. } => {
                for (row, &token) in out.iter_mut().zip(&self.tokens) {
                    *row = mix(token.into(), 1);
                }
            }
            Op::RmsNorm { x, out, .. }
            | Op::LayerNorm { x, out, .. }
            | Op::MatMul { x, out, .. }
            | Op::MatMulActivated { x, out, .. }
            | Op::GatedMlp { x, out, .. }
            | Op::Gated { x, hidden: out, .. } => copy(x, out),
            Op::AddRmsNorm { residual, x, out, .. } | Op::AddLayerNorm { residual, x, out, .. } => {
                for (residual, &x) in residual.iter_mut().zip(x) {
                    *residual = mix(*residual, x);
                }
                copy(residual, out);
            }
            Op::AddEmbedding { .. }
            | Op::AddBias { .. }
            | Op::Row { .. }
            | Op::LayerNormColumns { .. }
            | Op::GateOutput { .. }
            | Op::AllReduce { .. }
            | Op::Convolve { .. } => {}
            Op::RopeToCache { qkv, kv, layer, .. } => self.rope_to_cache(qkv, kv, layer),
            Op::Attention { qkv, params, kv, layer, out } => {
                self.attention(qkv, params.window, kv, layer, out)
            }
            Op::Recur { x, kv, layer, out, .. } => self.recur(x, kv, layer, out),
            _ => unreachable!("no simulated network has adapters, experts, latents or whole sequences"),
        }
    }

    fn logits(&mut self, _: LogitsHead<'_, Self>, x: &Vec<u64>, out: &mut [f32]) -> Result<(), KernelError> {
        if self.ends(DeviceFailure::FailsDrawing) {
            return Err(self.failed());
        }
        let vocab = out.len() / self.batch.logit_rows.len();
        for (&row, logits) in self.batch.logit_rows.iter().zip(out.chunks_exact_mut(vocab)) {
            let row = x[row as usize];
            for (token, logit) in logits.iter_mut().enumerate() {
                *logit = 8.0 * share(mix(row, token as u64));
            }
            if is_broken(row) {
                logits[0] = f32::NAN;
            }
        }
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        &mut self.draws
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        if self.ends(DeviceFailure::FailsWaiting) {
            return Err(self.failed());
        }
        self.draws.wait(ticket, drawn);
        Ok(())
    }

    fn end(&mut self) -> Result<(), KernelError> {
        if self.ends(DeviceFailure::FailsLast) { Err(self.failed()) } else { Ok(()) }
    }
}

impl ScriptedDevice {
    fn rope_to_cache(&mut self, qkv: &mut [u64], kv: &mut Kv, layer: usize) {
        if self.ends(DeviceFailure::Panics) {
            // Unlike `panic!`, this prints nothing.
            resume_unwind(Box::new(REASON));
        }
        let KvPlace { group, plane } = kv.groups.place(layer);
        let keys = kv.plane(plane);
        for (at, (&row, &position)) in qkv.iter().zip(&self.batch.positions).enumerate() {
            keys[self.batch.row_slot(at, group)] = mix(row, u64::from(position)) | 1;
        }
    }

    fn attention(&mut self, qkv: &[u64], window: Option<u32>, kv: &Kv, layer: usize, out: &mut [u64]) {
        let KvPlace { group, plane } = kv.groups.place(layer);
        let keys = &kv.planes[plane];
        for (index, span) in self.batch.sequences.iter().enumerate() {
            let key = |position: u32| {
                let key = keys[self.slot(index, span, group, position)];
                if key == 0 {
                    self.faults
                        .add(format!("a row reads key {position} of its context, which nobody has written"));
                }
                key
            };
            let before = span.context - span.rows;
            // The part that all rows share is hashed once, if they attend to all of it.
            let all = |hash, position| mix(hash, key(position));
            let (mut hash, mut next) = (0, 0);
            for position in before..span.context {
                if let Some(window) = window {
                    (hash, next) = (0, (position + 1).saturating_sub(window));
                }
                hash = (next..=position).fold(hash, all);
                next = position + 1;
                let row = (span.row_first + position - before) as usize;
                out[row] = mix(hash, qkv[row]);
            }
        }
    }

    fn recur(&mut self, x: &[u64], kv: &mut Kv, layer: usize, out: &mut [u64]) {
        for (span, &state) in self.batch.sequences.iter().zip(&self.batch.states) {
            let state = &mut kv.states[layer][state as usize];
            if span.context == span.rows {
                *state = 0;
            }
            for row in span.row_first as usize..(span.row_first + span.rows) as usize {
                *state = mix(*state, x[row]);
                out[row] = *state;
            }
        }
    }
}
