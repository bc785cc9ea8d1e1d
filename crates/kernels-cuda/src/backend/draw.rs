//! Sampling on the device, for rows with nothing but a soft cap, a mask, penalties and adjustments, a temperature,
//! top-k, top-p and min-p. For other rows the host gets the logits.
//!
//! If the device has drawn all of a step's tokens, nobody waits for them until [`Backend::wait`]: rows of the next
//! step read them from device memory.

use std::ops::Range;

use hanzo_engine_ops::{Change, SampleSpec, SampleSpecs};

use super::*;
use crate::staging::staged_bytes;
use crate::step::Last;

/// Threads of a block, as in `draw.cu`. `ROOM_BYTES` is its shared memory.
const DRAW_THREADS: u32 = 1024;
const ROOM_BYTES: u32 = 8 * (DRAW_THREADS + 32 + 2048 + 3);

/// Number of adjustments of a row with guaranteed room. `CHANGES_MAX` is the largest number, because each is compared
/// with all before it.
const CHANGES: usize = 64;
const CHANGES_MAX: usize = 1024;

/// State of a step's draws.
pub(super) enum Drawn {
    Nothing,
    /// The host has them.
    Known,
    /// They are on the device, and being copied to these bytes of host memory.
    OnDevice(Range<usize>),
}

/// A submitted step.
pub(super) enum Flight {
    /// Already waited for.
    Computed(Ticket),
    /// Its tokens are copied to these bytes of host memory.
    Computing(Range<usize>),
}

/// Parameters of a step's draws, kept from step to step.
#[derive(Default)]
pub(super) struct DrawBuffers {
    specs: Vec<DrawSpecParams>,
    edits: Vec<u32>, // masks, seen tokens, adjustments
}

impl DrawBuffers {
    /// Bytes on the device: specs, then tokens, then edits.
    pub(super) fn bytes(limits: &StepLimits) -> usize {
        Self::edits_at(limits) + limits.logit_rows * 4 * Self::edit_words(limits)
    }

    /// Bytes of a step's copies in flight.
    pub(super) fn staged_bytes(limits: &StepLimits) -> usize {
        let (specs, edits) = (Self::tokens_at(limits), limits.logit_rows * 4 * Self::edit_words(limits));
        staged_bytes(&[specs, edits, limits.logit_rows * size_of::<u32>()])
    }

    fn tokens_at(limits: &StepLimits) -> usize {
        limits.logit_rows * size_of::<DrawSpecParams>()
    }

    fn edits_at(limits: &StepLimits) -> usize {
        Self::tokens_at(limits) + limits.logit_rows * size_of::<u32>()
    }

    /// Words of a row's edits: a mask, seen tokens, and some adjustments.
    fn edit_words(limits: &StepLimits) -> usize {
        2 * limits.vocab.div_ceil(32) + 3 * CHANGES
    }

    /// Takes the edits of logits before sampling. Returns whether they fit.
    fn take_edits(&mut self, specs: &SampleSpecs, limits: &StepLimits) -> bool {
        let words = specs.masks.len() + specs.seen.len() + 3 * specs.adjustments.len();
        self.edits.clear();
        let fits = words <= limits.logit_rows * Self::edit_words(limits);
        if fits {
            self.edits.extend_from_slice(&specs.masks);
            self.edits.extend_from_slice(&specs.seen);
            self.edits.extend(specs.adjustments.iter().flat_map(|adjustment| {
                let (multiplies, by) = match adjustment.change {
                    Change::Add(addend) => (0, addend),
                    Change::Penalize(penalty) => (1, penalty),
                };
                [adjustment.token, multiplies, by.to_bits()]
            }));
        }
        fits
    }
}

/// Spec of a row, if the device draws it.
fn on_device(spec: &SampleSpec, specs: &SampleSpecs, row: usize, edits_fit: bool) -> Option<DrawSpecParams> {
    let drawn_alike = spec.shape.is_neutral() && spec.logprobs.is_none() && spec.given.is_none();
    let seen = if spec.repetition == 1.0 { &[] } else { specs.seen_of(row) };
    let changes = specs.adjustments_of(row).len();
    let edited = specs.softcap.is_some() || spec.mask.is_some() || !seen.is_empty() || changes > 0;
    if !drawn_alike || specs.bias.is_some() || changes > CHANGES_MAX || (edited && !edits_fit) {
        return None;
    }
    let (seen_at, changes_at) = (specs.masks.len(), specs.masks.len() + specs.seen.len());
    Some(DrawSpecParams {
        uniform: spec.uniform,
        temperature: spec.temperature,
        top_p: spec.top_p,
        min_p: spec.min_p,
        top_k: spec.top_k,
        by_host: 0,
        edited: edited.into(),
        softcap: specs.softcap.unwrap_or_default(),
        repetition: if seen.is_empty() { 1.0 } else { spec.repetition },
        mask: spec.mask.map_or(NONE, |mask| mask * specs.mask_words as u32),
        mask_words: specs.mask_words as u32,
        seen: seen_at as u32 + spec.seen.start,
        seen_words: seen.len() as u32,
        changes: changes_at as u32 + 3 * spec.adjustments.start,
        changes_count: changes as u32,
    })
}

/// Tokens in the form that the device writes.
fn sampled(tokens: &[u8]) -> impl ExactSizeIterator<Item = Option<SampledToken>> + '_ {
    let (tokens, _) = tokens.as_chunks::<4>();
    tokens.iter().map(|&token| match u32::from_ne_bytes(token) {
        NONE => None,
        token => Some(SampledToken { token, ..SampledToken::default() }),
    })
}

impl<D: Device> CudaBackend<D> {
    /// Starts a step, whose rows may come from the last step's draws.
    pub(super) fn begin_step(&mut self, batch: &Batch) -> Result<(), KernelError> {
        let last = match (&self.drawn, &self.scratch) {
            (Drawn::OnDevice(tokens), Some(scratch)) => {
                let at = DrawBuffers::tokens_at(self.steps.limits());
                Last::OnDevice(&scratch.drawn, at, tokens.len() / size_of::<u32>())
            }
            (Drawn::Nothing | Drawn::Known, _) | (_, None) => Last::Known(&self.draws),
        };
        self.steps.begin(batch, last)?;
        self.draws.begin();
        self.drawn = Drawn::Nothing;
        Ok(())
    }

    /// Ends the step. It is computed from here on, or already was if the host had to draw.
    pub(super) fn submit_step(&mut self) -> Result<Ticket, KernelError> {
        if let Some(error) = self.failure.take() {
            return self.steps.end().and(Err(error));
        }
        let tokens = match &self.drawn {
            Drawn::OnDevice(tokens) => Some(tokens.clone()),
            Drawn::Nothing => Some(0..0),
            Drawn::Known => None,
        };
        let flight = match tokens {
            Some(tokens) => {
                self.steps.submit()?;
                Flight::Computing(tokens)
            }
            None => {
                self.steps.end()?;
                Flight::Computed(self.draws.submit())
            }
        };
        self.flights.push_back(flight);
        self.submitted += 1;
        Ok(Ticket::new(self.submitted))
    }

    /// Waits for the oldest step not waited for.
    pub(super) fn wait_for(
        &mut self,
        ticket: Ticket,
        drawn: &mut Vec<Option<SampledToken>>,
    ) -> Result<(), KernelError> {
        let first = self.submitted + 1 - self.flights.len() as u64;
        let flight = self.flights.pop_front().filter(|_| ticket.step() == first);
        match flight {
            None => panic!("{ticket:?} is not the next to be waited for"),
            Some(Flight::Computed(ticket)) => self.draws.wait(ticket, drawn),
            Some(Flight::Computing(tokens)) => {
                drawn.clear();
                drawn.extend(sampled(self.steps.settle(&tokens)?));
                if self.flights.is_empty() && !self.steps.is_open() {
                    self.draws.put(drawn.iter().cloned());
                    self.drawn = Drawn::Known;
                }
            }
        }
        Ok(())
    }

    /// Waits for the open step's draws, if they are on their way.
    pub(super) fn know_draws(&mut self) -> Result<(), KernelError> {
        if let Drawn::OnDevice(tokens) = &self.drawn {
            assert!(self.steps.is_open(), "a step that was submitted is waited for by its ticket");
            self.draws.put(sampled(self.steps.settle_open(tokens)?));
            self.drawn = Drawn::Known;
        }
        Ok(())
    }

    /// Draws a token for each row of `head · x[logit_rows[i]]`.
    pub(super) fn draw_rows(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &CudaBuffer<D>,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let vocab = head.matrix.rows();
        let mut buffers = std::mem::take(&mut self.buffers);
        let by_host = DrawSpecParams { by_host: 1, ..bytemuck::Zeroable::zeroed() };
        let rows = specs.rows.iter().enumerate();
        let fits = buffers.take_edits(specs, self.steps.limits());
        buffers.specs.clear();
        buffers.specs.extend(rows.map(|(row, spec)| on_device(spec, specs, row, fits).unwrap_or(by_host)));
        let by_host = buffers.specs.iter().filter(|spec| spec.by_host == 1).count();
        let result = if by_host == buffers.specs.len() {
            self.logits(head, x, room).map(|()| {
                self.draws.draw(specs, room);
                self.drawn = Drawn::Known;
            })
        } else {
            self.draw_on_device(head, x, &buffers).and_then(|()| match by_host {
                0 => Ok(()),
                _ => self.draw_the_rest(vocab, specs, &buffers, room),
            })
        };
        self.buffers = buffers;
        result
    }

    /// Computes `head · x[logit_rows[i]]` into the scratch's logits.
    pub(super) fn multiply_head(
        &mut self,
        LogitsHead { matrix: head, adapted }: LogitsHead<'_, Self>,
        x: &CudaBuffer<D>,
    ) {
        self.check(x, head.cols(), "x");
        assert!(head.rows() <= self.steps.limits().vocab, "a vocabulary beyond the step's limits");
        let logits = self.scratch().logits.clone();
        let into = MemoryRows { memory: &logits, first: 0, cols: head.rows() };
        self.product(head, &Product { logits: true, out: into, ..Product::of(x, x) });
        self.adapt_logits(adapted, x, head.rows());
    }

    /// Draws rows on the device; afterwards the logits of the other rows are there.
    fn draw_on_device(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &CudaBuffer<D>,
        buffers: &DrawBuffers,
    ) -> Result<(), KernelError> {
        let vocab = head.matrix.rows();
        self.multiply_head(head, x);
        let scratch = self.scratch();
        let (logits, drawn) = (scratch.logits.clone(), scratch.drawn.clone());
        let limits = self.steps.limits();
        let (tokens_at, edits_at) = (DrawBuffers::tokens_at(limits), DrawBuffers::edits_at(limits));
        self.steps.send(bytemuck::cast_slice(&buffers.specs), &drawn, 0)?;
        if buffers.specs.iter().any(|spec| spec.edited == 1) {
            self.steps.send(bytemuck::cast_slice(&buffers.edits), &drawn, edits_at)?;
        }
        let mut ops = self.steps.ops();
        let params = DrawParams {
            batch: ops.batch,
            logits: logits.address(),
            specs: drawn.address(),
            tokens: drawn.address().offset(tokens_at),
            edits: drawn.address().offset(edits_at),
            vocab: vocab as u32,
            unused: 0,
        };
        let blocks = [ops.bucket.logit_rows, 1, 1];
        let grid = Grid { blocks, threads: DRAW_THREADS, shared_bytes: ROOM_BYTES };
        ops.push(Kernel::Draw, grid, &params, &[&logits, &drawn]);
        let bytes = buffers.specs.len() * size_of::<u32>();
        self.drawn = Drawn::OnDevice(self.steps.fetch(&drawn, tokens_at, bytes)?);
        Ok(())
    }

    fn draw_the_rest(
        &mut self,
        vocab: usize,
        specs: &SampleSpecs,
        buffers: &DrawBuffers,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let logits = self.scratch().logits.clone();
        let rows = room.chunks_exact_mut(vocab).zip(&buffers.specs).enumerate();
        for (row, (room, _)) in rows.filter(|(_, (_, spec))| spec.by_host == 1) {
            logits.read(4 * row * vocab, bytemuck::cast_slice_mut(room))?;
        }
        let Drawn::OnDevice(tokens) = &self.drawn else { return Ok(()) };
        let tokens: Vec<Option<SampledToken>> = sampled(self.steps.settle_open(tokens)?).collect();
        let token = |row: usize| tokens[row].as_ref().map(|sampled| sampled.token);
        let drawn = |row: usize| (buffers.specs[row].by_host == 0).then(|| token(row));
        self.draws.draw_others(specs, room, drawn);
        self.drawn = Drawn::Known;
        Ok(())
    }
}
