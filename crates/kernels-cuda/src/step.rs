//! A step: the batch on the device, the plan that its ops append to, and the recorded plans of earlier steps.
//!
//! The batch is uploaded as one copy. Its addresses depend only on its bucket: its rows, sequences, logit rows and
//! longest context, rounded up. Grids are as large as the bucket, and kernels read how much of it is used. So the
//! plans of two steps in one bucket are the same bytes, and the second may replay the first's CUDA graph.
//!
//! Two steps may be in flight: each uses separate staging memory until its end has been waited for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use hanzo_engine_ops::{BLOCK_TOKENS, Batch, Draws, KernelError, RowSource, StepLimits};

use crate::device::{Device, Memory, failed};
use crate::params::{BatchParams, NONE};
use crate::plan::{Grid, Kernel, Launch, Plan};
use crate::shapes::SPAN;
use crate::staging::{StagingBuffer, staged_bytes};

/// Rows up to which a step's plan is recorded. Larger steps take so long that their launches do not matter.
const RECORDED_ROWS_MAX: u32 = 64;
/// Number of plans kept. A further plan replaces the least recently run.
const RECORDED_MAX: usize = 64;
/// Steps that may be in flight: one is computed while the host prepares the next.
const UNDER_WAY_MAX: usize = 2;

/// Size of a batch, rounded up to powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) rows: u32,
    pub(crate) sequences: u32,
    pub(crate) logit_rows: u32,
    pub(crate) spans: u32, // of keys, in the longest context
}

/// Spans of keys in a context, rounded up as in a bucket.
pub(crate) fn spans_of(context: usize) -> u32 {
    (context as u32).div_ceil(SPAN).next_power_of_two()
}

impl Bucket {
    fn of(batch: &Batch) -> Bucket {
        let round = |count: usize| (count as u32).next_power_of_two();
        Bucket {
            rows: round(batch.rows()),
            sequences: round(batch.sequences.len()),
            logit_rows: round(batch.logit_rows.len()),
            spans: spans_of(
                batch.sequences.iter().map(|span| span.context as usize).max().unwrap_or_default(),
            ),
        }
    }

    fn of_limits(limits: &StepLimits) -> Bucket {
        let round = |count: usize| (count as u32).next_power_of_two();
        Bucket {
            rows: round(limits.rows),
            sequences: round(limits.sequences),
            logit_rows: round(limits.logit_rows),
            spans: spans_of(limits.context),
        }
    }

    /// Offsets of each list, and the number of words before the block tables.
    fn places(self, groups: u32) -> ([u32; 12], u32) {
        let Bucket { rows, sequences, logit_rows, .. } = self;
        // Counts, tokens, positions, axes, types, adapters, sequences, slots, spans, tables, logit rows; then blocks.
        let lengths = [
            4,
            rows,
            rows,
            3 * rows,
            rows,
            rows,
            rows,
            rows * groups,
            4 * sequences,
            2 * sequences * groups,
            logit_rows,
        ];
        let mut places = [0; 12];
        let mut at = 0;
        for (place, length) in places.iter_mut().zip(lengths) {
            (*place, at) = (at, at + length);
        }
        places[11] = at;
        (places, at)
    }
}

/// Bytes of the largest batch.
pub(crate) fn batch_bytes(limits: &StepLimits) -> usize {
    let groups = limits.kv_groups.max(1);
    let blocks = limits.sequences * groups * limits.context.div_ceil(BLOCK_TOKENS);
    4 * (Bucket::of_limits(limits).places(groups as u32).1 as usize + blocks)
}

/// Bytes of host memory for the steps' copies, including so many for sampling.
pub(crate) fn staging_bytes(limits: &StepLimits, drawing: usize) -> usize {
    UNDER_WAY_MAX * (staged_bytes(&[batch_bytes(limits)]) + drawing)
}

/// Draws of the last step.
pub(crate) enum Last<'a, D: Device> {
    /// Known to the host.
    Known(&'a Draws),
    /// On the device: memory, byte offset, and number of tokens. If a row drew none, the row that comes from it has
    /// arbitrary content: a sequence whose logits are no numbers is at its end.
    OnDevice(&'a Arc<Memory<D>>, usize, usize),
}

impl<D: Device> Clone for Last<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Last<'_, D> {}

impl<D: Device> Last<'_, D> {
    /// A row's token in the kernels' form, as far as the host knows.
    fn token(self, source: RowSource) -> u32 {
        match (source, self) {
            (RowSource::Token(token), _) => token,
            (RowSource::Embedding, _) => NONE,
            (RowSource::Sampled(index), Last::Known(draws)) => draws.token(index),
            (RowSource::Sampled(index), Last::OnDevice(_, _, count)) => {
                assert!((index as usize) < count, "draw {index} of a step with {count}");
                NONE
            }
        }
    }
}

/// Rows that come from draws, as runs of both: first row, first draw, count.
fn sampled_runs(sources: &[RowSource]) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    let mut row = 0;
    std::iter::from_fn(move || {
        let draw = |row: usize| match sources.get(row) {
            Some(&RowSource::Sampled(draw)) => Some(draw as usize),
            _ => None,
        };
        let first = (row..sources.len()).find(|&row| draw(row).is_some())?;
        let index = draw(first)?;
        let count = (1..).find(|&more| draw(first + more) != Some(index + more))?;
        row = first + count;
        Some((first, index, count))
    })
}

/// The batch's numbers in the kernels' form.
fn lay_out<D: Device>(batch: &Batch, last: Last<'_, D>, bucket: Bucket, out: &mut Vec<u32>) {
    let (groups, rows) = (batch.groups(), batch.rows());
    let (places, before_blocks) = bucket.places(groups as u32);
    out.clear();
    out.resize(before_blocks as usize, 0);
    let mut put = |list: usize, at: usize, value: u32| out[places[list] as usize + at] = value;
    let counts = [rows, batch.sequences.len(), batch.logit_rows.len()];
    counts.iter().enumerate().for_each(|(at, &count)| put(0, at, count as u32));
    for (row, &source) in batch.sources.iter().enumerate() {
        put(1, row, last.token(source));
        put(2, row, batch.positions[row]);
        let axes = batch.axes.get(row).copied().unwrap_or([batch.positions[row]; 3]);
        axes.iter().enumerate().for_each(|(axis, &position)| put(3, 3 * row + axis, position));
        put(4, row, batch.types.get(row).copied().unwrap_or(0));
        put(5, row, NONE);
    }
    batch.adapted_rows().for_each(|(row, adapter)| put(5, row as usize, adapter));
    batch.slots.iter().enumerate().for_each(|(at, &slot)| put(7, at, slot));
    for (index, span) in batch.sequences.iter().enumerate() {
        (span.row_first..span.row_first + span.rows).for_each(|row| put(6, row as usize, index as u32));
        let state = batch.states.get(index).copied().unwrap_or(0);
        let numbers = [span.row_first, span.rows, span.context, state];
        numbers.iter().enumerate().for_each(|(at, &number)| put(8, 4 * index + at, number));
    }
    batch.logit_rows.iter().enumerate().for_each(|(at, &row)| put(10, at, row));
    if batch.slots.is_empty() {
        return;
    }
    for (index, span) in batch.sequences.iter().enumerate() {
        for group in 0..groups {
            let (first, blocks) = batch.blocks(span, group);
            let at = places[9] as usize + 2 * (index * groups + group);
            let place = out.len() as u32 - before_blocks;
            out[at..at + 2].copy_from_slice(&[place, first as u32]);
            out.extend_from_slice(blocks);
        }
    }
}

/// The device's side of steps.
pub(crate) struct Steps<D: Device> {
    device: D,
    limits: Option<StepLimits>,
    memory: Option<Arc<Memory<D>>>,
    open: Option<(BatchParams, Bucket)>,
    slots: Vec<Slot<D>>, // of steps in flight; the open step's is the first
    numbers: Vec<u32>,
    written: Vec<u32>, // scratch of `Batch::check`
    pending: RefCell<PendingWork<D>>,
    tape: RefCell<Tape<D>>,
}

/// Work that ops have asked for and that is not started yet.
struct PendingWork<D: Device> {
    plan: Plan,
    holds: Vec<Arc<Memory<D>>>, // memory of the plan's addresses, and of work started since the last wait
}

/// Resources that a step holds until it has been computed.
struct Slot<D: Device> {
    staging: StagingBuffer<D>,
    holds: Vec<Arc<Memory<D>>>,
    submitted: bool, // and not waited for
}

/// A plan that came up before.
struct RecordedPlan<D: Device> {
    plan: Plan,
    graph: Option<D::Graph>, // once it has come up twice
    last_run: u64,           // by the tape's clock
}

impl<D: Device> Steps<D> {
    pub(crate) fn new(device: D) -> Self {
        Self {
            device,
            limits: None,
            memory: None,
            open: None,
            slots: Vec::new(),
            numbers: Vec::new(),
            written: Vec::new(),
            pending: RefCell::new(PendingWork { plan: Plan::default(), holds: Vec::new() }),
            tape: RefCell::new(Tape {
                plans: HashMap::new(),
                rows_max: RECORDED_ROWS_MAX,
                at_once: false,
                replays: 0,
                clock: 0,
            }),
        }
    }

    /// Allocates memory for batches, and `drawing` bytes for sampling parameters and drawn tokens.
    pub(crate) fn reserve(&mut self, limits: &StepLimits, drawing: usize) -> Result<(), KernelError> {
        assert!(self.limits.is_none(), "reserve is called once");
        for _ in 0..UNDER_WAY_MAX {
            let staging = StagingBuffer::new(&self.device, staging_bytes(limits, drawing) / UNDER_WAY_MAX)?;
            self.slots.push(Slot { staging, holds: Vec::new(), submitted: false });
        }
        self.memory = Some(Memory::zeroed(&self.device, batch_bytes(limits), "batches")?);
        self.limits = Some(*limits);
        Ok(())
    }

    /// Starts a step of a batch.
    pub(crate) fn begin(&mut self, batch: &Batch, last: Last<'_, D>) -> Result<(), KernelError> {
        assert!(self.open.is_none(), "begin inside a step; call end first");
        assert!(batch.sees.is_empty(), "rows that see what is behind them are not known here");
        let (Some(limits), Some(memory)) = (&self.limits, &self.memory) else {
            panic!("begin before reserve")
        };
        batch.check(limits, &mut self.written);
        let bucket = Bucket::of(batch);
        lay_out(batch, last, bucket, &mut self.numbers);
        let slot = &mut self.slots[0];
        assert!(!slot.submitted, "{UNDER_WAY_MAX} steps are under way; wait for the first of them");
        slot.staging.settle()?;
        slot.staging.send(bytemuck::cast_slice(&self.numbers), memory, 0)?;
        let groups = batch.groups() as u32;
        let [
            counts,
            tokens,
            positions,
            axes,
            types,
            adapters,
            sequence_of,
            slots,
            spans,
            tables,
            logit_rows,
            blocks,
        ] = bucket.places(groups).0.map(|at| memory.address().offset(4 * at as usize));
        if let Last::OnDevice(drawn, at, _) = last {
            for (row, draw, count) in sampled_runs(&batch.sources) {
                let (from, to) = (drawn.address().offset(at + 4 * draw), tokens.offset(4 * row));
                // SAFETY: both are of memory that is this backend's, within what `lay_out` has looked at.
                unsafe { self.device.copy(from, to, 4 * count) }.map_err(failed(
                    &self.device,
                    0,
                    "a step",
                ))?;
            }
        }
        let params = BatchParams {
            counts,
            tokens,
            positions,
            axes,
            types,
            adapters,
            sequence_of,
            slots,
            spans,
            tables,
            logit_rows,
            blocks,
            groups,
            unused: 0,
        };
        self.open = Some((params, bucket));
        Ok(())
    }

    /// Batch of the open step.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn batch(&self) -> (BatchParams, Bucket) {
        self.open.expect("ops stand between begin and end, as the contract says")
    }

    /// Rows of the open step's batch.
    pub(crate) fn rows(&self) -> usize {
        self.batch();
        self.numbers[0] as usize
    }

    pub(crate) fn limits(&self) -> &StepLimits {
        self.limits.as_ref().expect("reserve comes before any step")
    }

    /// Destination of the ops' launches.
    pub(crate) fn ops(&mut self) -> Ops<'_, D> {
        let (batch, bucket) = self.batch();
        Ops { batch, bucket, pending: self.pending.get_mut() }
    }

    /// Starts the work asked for. A plan that has come up before is replayed.
    pub(crate) fn start(&self) -> Result<(), KernelError> {
        let PendingWork { plan, .. } = &mut *self.pending.borrow_mut();
        if plan.is_empty() {
            return Ok(());
        }
        let result = match self.is_recorded() {
            true => self.tape.borrow_mut().run(&self.device, plan),
            // SAFETY: `holds` has what the plan names, until the device has been waited for.
            false => plan.iter().try_for_each(|launch| unsafe { self.device.launch(&launch) }),
        };
        plan.clear();
        result.map_err(failed(&self.device, 0, "a step"))
    }

    /// Whether the open step's plan is recorded, or found recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.open.is_some_and(|(_, bucket)| bucket.rows <= self.tape.borrow().rows_max)
    }

    /// Keeps memory until the step's work so far is done.
    pub(crate) fn hold(&mut self, memory: [&Arc<Memory<D>>; 2]) {
        self.pending.get_mut().holds.extend(memory.map(Arc::clone));
    }

    /// Kernels that were asked for and not started.
    pub(crate) fn planned(&self) -> Vec<Kernel> {
        self.pending.borrow().plan.iter().map(|launch| launch.kernel).collect()
    }

    /// Whether a step has begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Copies to device memory, for the open step's launches that are still to be started.
    pub(crate) fn send(&mut self, from: &[u8], to: &Arc<Memory<D>>, at: usize) -> Result<(), KernelError> {
        self.slots[0].staging.send(from, to, at)
    }

    /// Starts the work asked for, and copies its results from device memory. [`Steps::settle`] or
    /// [`Steps::settle_open`] returns them.
    pub(crate) fn fetch(
        &mut self,
        from: &Arc<Memory<D>>,
        at: usize,
        bytes: usize,
    ) -> Result<Range<usize>, KernelError> {
        self.start()?;
        self.slots[0].staging.fetch(from, at, bytes)
    }

    /// Waits for data that the open step has fetched, and returns it.
    pub(crate) fn settle_open(&mut self, fetched: &Range<usize>) -> Result<&[u8], KernelError> {
        let staging = &mut self.slots[0].staging;
        staging.settle()?;
        Ok(staging.fetched(fetched))
    }

    /// Ends the step, which is computed from here on.
    pub(crate) fn submit(&mut self) -> Result<(), KernelError> {
        let started = self.start().and_then(|()| self.slots[0].staging.mark());
        if let Err(error) = started {
            return self.end().and(Err(error));
        }
        self.open = None;
        let slot = &mut self.slots[0];
        slot.submitted = true;
        mem::swap(&mut slot.holds, &mut self.pending.get_mut().holds);
        self.slots.rotate_left(1);
        Ok(())
    }

    /// Waits for the oldest submitted step not waited for, and returns the data it fetched.
    pub(crate) fn settle(&mut self, fetched: &Range<usize>) -> Result<&[u8], KernelError> {
        let slot = self.slots.iter_mut().find(|slot| slot.submitted).expect("a step is under way");
        slot.submitted = false;
        let settled = slot.staging.settle();
        slot.holds.clear();
        settled.map(|()| slot.staging.fetched(fetched))
    }

    /// Ends the step, if there is one, and waits for it.
    pub(crate) fn end(&mut self) -> Result<(), KernelError> {
        let started = self.start();
        self.open = None;
        let waited = self.device.wait().map_err(failed(&self.device, 0, "a step"));
        self.pending.get_mut().holds.clear();
        if let (Ok(()), Some(slot)) = (&waited, self.slots.iter_mut().find(|slot| !slot.submitted)) {
            slot.staging.settled();
        }
        started.and(waited)
    }

    /// Disables recording of plans.
    pub(crate) fn record_no_more(&mut self) {
        let tape = self.tape.get_mut();
        tape.rows_max = 0;
        tape.plans.clear();
    }

    /// Makes plans be recorded when they first come up, so that they always start as one graph.
    pub(crate) fn record_at_once(&mut self) {
        self.tape.get_mut().at_once = true;
    }

    /// Number of replayed plans.
    pub(crate) fn replays(&self) -> u64 {
        self.tape.borrow().replays
    }
}

/// Plans that have come up.
struct Tape<D: Device> {
    plans: HashMap<u64, RecordedPlan<D>>,
    rows_max: u32, // of steps whose plans are recorded
    at_once: bool, // record plans when they first come up
    replays: u64,
    clock: u64, // number of plans run
}

impl<D: Device> Tape<D> {
    /// Runs a plan: launch by launch when it first comes up, then from its record.
    fn run(&mut self, device: &D, plan: &Plan) -> Result<(), crate::DeviceError> {
        let key = plan.key();
        self.clock += 1;
        let known = self.plans.get_mut(&key).filter(|known| known.plan == *plan);
        let Some(known) = known else {
            return self.run_unknown(device, key, plan);
        };
        let graph = match known.graph.take() {
            Some(graph) => graph,
            None => device.record(plan)?,
        };
        self.replays += 1;
        known.last_run = self.clock;
        // SAFETY: the plan is the same to the byte, so that every address is one that the step holds now.
        let result = unsafe { device.replay(&graph) };
        known.graph = Some(graph);
        result
    }

    /// Runs a plan that has not come up, or not lately, and remembers it.
    fn run_unknown(&mut self, device: &D, key: u64, plan: &Plan) -> Result<(), crate::DeviceError> {
        if self.plans.len() >= RECORDED_MAX && !self.plans.contains_key(&key) {
            self.forget_one();
        }
        let (graph, result) = if self.at_once {
            let graph = device.record(plan)?;
            // SAFETY: `PendingWork::holds` has what the plan names, until the device has been waited for.
            let result = unsafe { device.replay(&graph) };
            (Some(graph), result)
        } else {
            // SAFETY: `PendingWork::holds` has what the plan names, until the device has been waited for.
            (None, plan.iter().try_for_each(|launch| unsafe { device.launch(&launch) }))
        };
        let recorded = RecordedPlan { plan: plan.clone(), graph, last_run: self.clock };
        self.plans.insert(key, recorded);
        result
    }

    /// Removes the least recently run plan.
    fn forget_one(&mut self) {
        let oldest = self.plans.iter().min_by_key(|(_, recorded)| recorded.last_run).map(|(&key, _)| key);
        if let Some(key) = oldest {
            self.plans.remove(&key);
        }
    }
}

/// Destination of the open step's ops.
pub(crate) struct Ops<'a, D: Device> {
    pub(crate) batch: BatchParams,
    pub(crate) bucket: Bucket,
    pending: &'a mut PendingWork<D>,
}

impl<D: Device> Ops<'_, D> {
    /// Appends a launch; `holds` is the memory that its parameters name.
    pub(crate) fn push(
        &mut self,
        kernel: Kernel,
        grid: Grid,
        params: &impl bytemuck::Pod,
        holds: &[&Arc<Memory<D>>],
    ) {
        self.pending.plan.push(kernel, grid, params);
        self.pending.holds.extend(holds.iter().map(|&memory| memory.clone()));
    }

    /// The last launch, which is not started yet.
    pub(crate) fn last(&self) -> Option<Launch<'_>> {
        self.pending.plan.last()
    }

    /// Replaces the last launch with one that does more; its parameters also name other memory, which is held.
    pub(crate) fn replace_last(
        &mut self,
        kernel: Kernel,
        grid: Grid,
        params: &impl bytemuck::Pod,
        holds: &[&Arc<Memory<D>>],
    ) {
        self.pending.plan.replace_last(kernel, grid, params);
        self.pending.holds.extend(holds.iter().map(|&memory| memory.clone()));
    }
}
