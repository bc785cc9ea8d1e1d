//! A pipeline as an executor.

use std::any::Any;

use super::operands::{Localizer, Passage, PipelineBuffer, PipelineKv, part};
use super::{OnDevices, Pipeline, kv_of};
use crate::{
    Allocation, Batch, BlockCopy, Buffer, BufferId, BufferRole, DType, Draws, Executor, ExpertParts, Experts,
    ExpertsId, Facts, HeadOperands, Heads, KernelError, KernelUse, Kv, KvId, KvSpec, LowRank, LowRankId,
    Matrix, MatrixShape, MatrixSource, Op, OutputDelta, SampleSpecs, SampledToken, Stage, StepLimits, Ticket,
    Vector,
};

impl Pipeline {
    /// Has the batch's rows of a buffer on a device, and returns the device's own buffer.
    fn bring(&mut self, buffer: BufferId, to: usize) -> BufferId {
        let mut buffers = self.buffers.lock();
        let buffer = buffers.get_mut(buffer);
        let mut passage = Passage {
            devices: &mut self.devices,
            rows: self.rows,
            passing: &mut self.passing,
            passes: &mut self.passes,
            failure: &mut self.failure,
        };
        passage.bring(buffer, to);
        buffer.at(to)
    }

    /// The head on the last device, and the rows that it reads, brought there.
    fn at_head(&mut self, head: &HeadOperands, x: BufferId) -> Result<(HeadOperands, BufferId), KernelError> {
        let last = self.last();
        let x = self.bring(x, last);
        self.passed()?;
        let matrix = part(self.matrices.lock().get(head.matrix), last).id();
        let low_ranks = self.low_ranks.lock();
        let own = |delta: &Option<LowRankId>| delta.map(|delta| part(low_ranks.get(delta), last).id());
        let adapted = head.adapted.as_ref().map(|(deltas, low)| {
            let low = self.buffers.lock().get_mut(*low).claim(last);
            (deltas.iter().map(own).collect(), low)
        });
        Ok((HeadOperands { matrix, adapted }, x))
    }
}

impl Executor for Pipeline {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
    }

    fn supports(&self, dtype: DType) -> bool {
        self.owners().all(|device| self.devices[device].supports(dtype))
    }

    fn bytes(&self, of: &Allocation<'_>) -> usize {
        match *of {
            Allocation::Kv(spec) => self.count(0..self.devices.len(), |at, device| {
                let own = kv_of(spec, self.caches(spec.layers.len(), at));
                own.map_or(0, |own| device.bytes(&Allocation::Kv(&own)))
            }),
            Allocation::Buffer { .. } | Allocation::Scratch(_) => {
                self.count(self.busy(), |_, device| device.bytes(of))
            }
            _ => self.count(self.owners(), |_, device| device.bytes(of)),
        }
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError> {
        Ok(self.matrices.insert(self.place(|device| device.pack(parts))?))
    }

    fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<Matrix, KernelError> {
        Ok(self.matrices.insert(self.place(|device| device.pack_kernel(source, of))?))
    }

    fn heads(&self, matrices: Vec<Matrix>) -> Heads {
        let mut cells = self.matrices.lock();
        let mut of_devices: Vec<Vec<Matrix>> = self.devices.iter().map(|_| Vec::new()).collect();
        for matrix in &matrices {
            for (all, own) in of_devices.iter_mut().zip(cells.take(matrix.id())) {
                all.extend(own);
            }
        }
        drop(cells);
        let join =
            |(device, of): (usize, Vec<Matrix>)| (!of.is_empty()).then(|| self.devices[device].heads(of));
        self.heads.insert(of_devices.into_iter().enumerate().map(join).collect())
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError> {
        Ok(self.experts.insert(self.place(|device| device.experts(shapes))?))
    }

    fn pack_expert(
        &self,
        experts: ExpertsId,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        let own: OnDevices<ExpertsId> =
            self.experts.lock().get(experts).iter().map(|own| own.as_ref().map(Experts::id)).collect();
        let held = own.into_iter().zip(&self.devices);
        let mut held = held.filter_map(|(own, device)| Some((own?, device)));
        held.try_for_each(|(own, device)| device.pack_expert(own, parts))
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError> {
        Ok(self.low_ranks.insert(self.place(|device| device.low_rank(delta))?))
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, KernelError> {
        Ok(self.vectors.insert(self.place(|device| device.vector(values))?))
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError> {
        let make = |at: usize| {
            let device = &self.devices[at];
            self.has(at).then(|| device.buffer(role, rows, cols)).transpose()
        };
        let places = (0..self.devices.len()).map(make).collect::<Result<_, KernelError>>()?;
        Ok(self.buffers.insert(PipelineBuffer::new(places, cols)))
    }

    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError> {
        let layers = spec.layers.len();
        let make = |at: usize| {
            let device = &self.devices[at];
            kv_of(spec, self.caches(layers, at)).map(|own| device.kv(&own)).transpose()
        };
        let parts = (0..self.devices.len()).map(make).collect::<Result<_, KernelError>>()?;
        let ends = (0..self.last()).map(|at| self.caches(layers, at).end).collect();
        Ok(self.kvs.insert(PipelineKv { parts, ends }))
    }

    /// Each device's part one behind the other.
    fn kv_block_form(&self, kv: KvId) -> Option<(usize, String)> {
        let kvs = self.kvs.lock();
        let kv = kvs.get(kv);
        let (mut bytes, mut name) = (0, String::from("chain"));
        for (device, own) in kv.held() {
            let (own_bytes, own_name) = self.devices[device].kv_block_form(own)?;
            bytes += own_bytes;
            let end = kv.ends.get(device).map_or("the last".to_owned(), usize::to_string);
            name.push_str(&format!(", {own_name} to {end}"));
        }
        Some((bytes, name))
    }

    fn copy_kv_block(&mut self, kv: KvId, block: u32, mut copy: BlockCopy<'_>) -> Result<(), KernelError> {
        let kvs = self.kvs.lock();
        for (device, own) in kvs.get(kv).held() {
            let device = &mut self.devices[device];
            let bytes = device.kv_block_form(own).map_or(0, |(bytes, _)| bytes);
            device.copy_kv_block(own, block, copy.take(bytes))?;
        }
        Ok(())
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        for device in 0..self.devices.len() {
            if self.has(device) {
                self.devices[device].reserve(limits)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        for device in 0..self.devices.len() {
            if !self.has(device) {
                continue;
            }
            self.devices[device].begin(batch).inspect_err(|_| {
                // The first failure is the one that is told.
                self.devices[..device].iter_mut().for_each(|begun| drop(begun.end()));
            })?;
        }
        self.rows = batch.rows();
        Ok(())
    }

    fn run(&mut self, op: &Op) {
        if self.restless.is_some() && matches!(op, Op::AllReduce { .. }) {
            return;
        }
        let device = match op.kv_layer() {
            Some((kv, layer)) => self.kvs.lock().get(kv).place(layer).0,
            None => self.at(),
        };
        let passage = Passage {
            devices: &mut self.devices,
            rows: self.rows,
            passing: &mut self.passing,
            passes: &mut self.passes,
            failure: &mut self.failure,
        };
        let own = op.map(&Localizer {
            device,
            passage: passage.into(),
            matrices: &self.matrices.lock(),
            vectors: &self.vectors.lock(),
            experts: &self.experts.lock(),
            heads: &self.heads.lock(),
            low_ranks: &self.low_ranks.lock(),
            buffers: (&mut *self.buffers.lock()).into(),
            kvs: &self.kvs.lock(),
        });
        self.devices[device].run(&own);
    }

    fn read_experts(
        &self,
        hidden: BufferId,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        let buffers = self.buffers.lock();
        let hidden = buffers.get(hidden);
        let at = hidden.somewhere();
        self.devices[at].read_experts(hidden.at(at), chosen, inner)
    }

    fn logits(&mut self, head: &HeadOperands, x: BufferId, out: &mut [f32]) -> Result<(), KernelError> {
        let (head, x) = self.at_head(head, x)?;
        let last = self.last();
        self.devices[last].logits(&head, x, out)
    }

    fn on_host(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let first = self.busy().next().expect("the last always is");
        self.devices[first].on_host(tasks, task);
    }

    fn sample(
        &mut self,
        head: &HeadOperands,
        x: BufferId,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let (head, x) = self.at_head(head, x)?;
        let last = self.last();
        self.devices[last].sample(&head, x, specs, room)?;
        for device in 0..last {
            if self.has(device) {
                let (before, own) = self.devices.split_at_mut(last);
                before[device].draws().know(own[0].draws());
            }
        }
        Ok(())
    }

    fn draws(&mut self) -> &mut Draws {
        let last = self.last();
        self.devices[last].draws()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        let last = self.last();
        let passed = self.passed();
        let ended = passed.and(self.end_before(last));
        match ended {
            Ok(()) => self.devices[last].submit(),
            Err(error) => self.devices[last].end().and(Err(error)),
        }
    }

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        let last = self.last();
        self.devices[last].wait(ticket, drawn)
    }

    fn end(&mut self) -> Result<(), KernelError> {
        let last = self.last();
        let passed = self.passed();
        let ended = self.devices[last].end();
        let before = self.end_before(last);
        passed.and(ended).and(before)
    }

    fn read_rows(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let buffers = self.buffers.lock();
        let x = buffers.get(x);
        let at = x.somewhere();
        self.devices[at].read_rows(x.at(at), row_first, out)
    }

    /// Writes to each device, for an embedding beside these rows leaves its own on one device.
    fn write_rows(&mut self, x: BufferId, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        let buffers = self.buffers.lock();
        let places = buffers.get(x).places.iter().zip(&mut self.devices);
        let mut places = places.filter_map(|(own, device)| Some((own.as_ref()?.id(), device)));
        places.try_for_each(|(own, device)| device.write_rows(own, row_first, rows))
    }
}
