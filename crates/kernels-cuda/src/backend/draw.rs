//! Tokens: drawn where the logits are, for rows that ask for nothing but a soft cap, a mask, penalties and adjustments, a temperature,
//! top-k, top-p and min-p; for the others the host has their logits.
//!
//! Where the device has drawn all of a step's tokens, nobody waits for them until [`Backend::wait`]: rows of the next step take
//! theirs from where they were left.

use std::ops::Range;

use hanzo_engine_kernels::{Change, SampleSpec, SampleSpecs};

use super::*;
use crate::staging::staged_bytes;
use crate::step::Last;

/// Threads of a block, as `draw.cu` has them, and bytes of what they share.
const DRAW_THREADS: u32 = 1024;
const ROOM_BYTES: u32 = 8 * (DRAW_THREADS + 32 + 2048 + 3);

/// Adjustments of a row for which there is room in any case, and how many it may have at most: to each, those before it are compared.
const CHANGES: usize = 64;
const CHANGES_MAX: usize = 1024;

/// What a step has drawn.
pub(super) enum Drawn {
    Nothing,
    /// The host knows it.
    Known,
    /// It is on the device, and on its way to where the host reads it, so many bytes.
    OnDevice(Range<usize>),
}

/// A step that was submitted.
pub(super) enum Flight {
    /// It has been waited for.
    Computed(Ticket),
    /// It has left its tokens there.
    Computing(Range<usize>),
}

/// What a step's draws are told and tell, kept from step to step.
#[derive(Default)]
pub(super) struct Drawing {
    specs: Vec<DrawSpecParams>,
    edits: Vec<u32>, // masks, what was seen, adjustments
}

impl Drawing {
    /// Bytes on the device: specs, tokens behind them, and edits behind these.
    pub(super) fn bytes(limits: &StepLimits) -> usize {
        Self::edits_at(limits) + limits.logit_rows * 4 * Self::edit_words(limits)
    }

    /// Bytes of copies that are under way with a step.
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

    /// A row's: a mask, what was seen, and some adjustments.
    fn edit_words(limits: &StepLimits) -> usize {
        2 * limits.vocab.div_ceil(32) + 3 * CHANGES
    }

    /// Takes what is done to logits before they are drawn from. Whether there is room for it.
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

/// A row's spec, where the device draws it.
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

/// Tokens as the device leaves them.
fn sampled(tokens: &[u8]) -> impl ExactSizeIterator<Item = Option<Sampled>> + '_ {
    let (tokens, _) = tokens.as_chunks::<4>();
    tokens.iter().map(|&token| match u32::from_ne_bytes(token) {
        NONE => None,
        token => Some(Sampled { token, ..Sampled::default() }),
    })
}

impl<D: Device> CudaBackend<D> {
    /// Starts a step, whose rows may come from what the last one drew.
    pub(super) fn begin_step(&mut self, batch: &Batch) -> Result<(), KernelError> {
        let last = match (&self.drawn, &self.scratch) {
            (Drawn::OnDevice(tokens), Some(scratch)) => {
                let at = Drawing::tokens_at(self.steps.limits());
                Last::OnDevice(&scratch.drawn, at, tokens.len() / size_of::<u32>())
            }
            (Drawn::Nothing | Drawn::Known, _) | (_, None) => Last::Known(&self.draws),
        };
        self.steps.begin(batch, last)?;
        self.draws.begin();
        self.drawn = Drawn::Nothing;
        Ok(())
    }

    /// Ends the step: it is computed from here on, or has been where the host had to draw.
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

    /// Waits for the first step that nobody has waited for.
    pub(super) fn wait_for(
        &mut self,
        ticket: Ticket,
        drawn: &mut Vec<Option<Sampled>>,
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

    /// Waits for what the open step has drawn, where that is on its way.
    pub(super) fn know_draws(&mut self) -> Result<(), KernelError> {
        if let Drawn::OnDevice(tokens) = &self.drawn {
            assert!(self.steps.is_open(), "a step that was submitted is waited for by its ticket");
            self.draws.put(sampled(self.steps.settle_open(tokens)?));
            self.drawn = Drawn::Known;
        }
        Ok(())
    }

    /// A token for each of `head · x[logit_rows[i]]`.
    pub(super) fn draw_rows(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &CudaBuffer<D>,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let vocab = head.matrix.rows();
        let mut drawing = std::mem::take(&mut self.drawing);
        let by_host = DrawSpecParams { by_host: 1, ..bytemuck::Zeroable::zeroed() };
        let rows = specs.rows.iter().enumerate();
        let fits = drawing.take_edits(specs, self.steps.limits());
        drawing.specs.clear();
        drawing.specs.extend(rows.map(|(row, spec)| on_device(spec, specs, row, fits).unwrap_or(by_host)));
        let by_host = drawing.specs.iter().filter(|spec| spec.by_host == 1).count();
        let result = if by_host == drawing.specs.len() {
            self.logits(head, x, room).map(|()| {
                self.draws.draw(specs, room);
                self.drawn = Drawn::Known;
            })
        } else {
            self.draw_on_device(head, x, &drawing).and_then(|()| match by_host {
                0 => Ok(()),
                _ => self.draw_the_rest(vocab, specs, &drawing, room),
            })
        };
        self.drawing = drawing;
        result
    }

    /// `head · x[logit_rows[i]]`, into the scratch's logits.
    pub(super) fn multiply_head(
        &mut self,
        LogitsHead { matrix: head, adapted }: LogitsHead<'_, Self>,
        x: &CudaBuffer<D>,
    ) {
        self.check(x, head.cols(), "x");
        assert!(head.rows() <= self.steps.limits().vocab, "a vocabulary beyond the step's limits");
        let logits = self.scratch().logits.clone();
        let into = (&logits, 0, head.rows());
        self.product(head, &Product { logits: true, out: into, ..Product::of(x, x) });
        self.adapt_logits(adapted, x, head.rows());
    }

    /// Rows that the device draws; logits of the others are there then.
    fn draw_on_device(
        &mut self,
        head: LogitsHead<'_, Self>,
        x: &CudaBuffer<D>,
        drawing: &Drawing,
    ) -> Result<(), KernelError> {
        let vocab = head.matrix.rows();
        self.multiply_head(head, x);
        let scratch = self.scratch();
        let (logits, drawn) = (scratch.logits.clone(), scratch.drawn.clone());
        let limits = self.steps.limits();
        let (tokens_at, edits_at) = (Drawing::tokens_at(limits), Drawing::edits_at(limits));
        self.steps.send(bytemuck::cast_slice(&drawing.specs), &drawn, 0)?;
        if drawing.specs.iter().any(|spec| spec.edited == 1) {
            self.steps.send(bytemuck::cast_slice(&drawing.edits), &drawn, edits_at)?;
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
        let bytes = drawing.specs.len() * size_of::<u32>();
        self.drawn = Drawn::OnDevice(self.steps.fetch(&drawn, tokens_at, bytes)?);
        Ok(())
    }

    fn draw_the_rest(
        &mut self,
        vocab: usize,
        specs: &SampleSpecs,
        drawing: &Drawing,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let logits = self.scratch().logits.clone();
        let rows = room.chunks_exact_mut(vocab).zip(&drawing.specs).enumerate();
        for (row, (room, _)) in rows.filter(|(_, (_, spec))| spec.by_host == 1) {
            logits.read(4 * row * vocab, bytemuck::cast_slice_mut(room))?;
        }
        let Drawn::OnDevice(tokens) = &self.drawn else { return Ok(()) };
        let tokens: Vec<Option<Sampled>> = sampled(self.steps.settle_open(tokens)?).collect();
        let token = |row: usize| tokens[row].as_ref().map(|sampled| sampled.token);
        let drawn = |row: usize| (drawing.specs[row].by_host == 0).then(|| token(row));
        self.draws.draw_others(specs, room, drawn);
        self.drawn = Drawn::Known;
        Ok(())
    }
}
