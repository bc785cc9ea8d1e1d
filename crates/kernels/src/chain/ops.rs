//! The contract's ops on the device of the stage, with what they read brought there.

use std::borrow::Borrow;
use std::ops::Range;

use super::Chain;
use super::placed::{ChainBuffer, ChainKv, Placed, kv_of};
use crate::backend::mapped::{read_by, reading};
use crate::{
    Activation, AttentionParams, Backend, Batch, BufferRole, ConvolutionParams, DType, Draws, ExpertParts,
    KernelError, KvSpec, LatentHeads, LatentParams, LayerNormParams, LowRankPair, LowRankShape, MatrixShape,
    MatrixSource, MoeParams, MoeWeights, Operands, OutputGateParams, QkvParams, RecurrenceParams, Rounding,
    RowIds, RowOp, SampleSpecs, Sampled, Stage, StepLimits, Ticket,
};

impl<B: Backend> Chain<B> {
    /// Which of so many layers of the cache are a device's.
    fn caches(&self, layers: usize, device: usize) -> Range<usize> {
        let end = |device: usize| self.cuts.get(device).map_or(layers, |cut| cut.caches.min(layers));
        device.checked_sub(1).map_or(0, end)..end(device)
    }
}

impl<B: Backend> Backend for Chain<B> {
    type Matrix = Placed<B::Matrix>;
    type Vector = Placed<B::Vector>;
    type Experts = Placed<B::Experts>;
    type Heads = Placed<B::Heads>;
    type LowRank = Placed<B::LowRank>;
    type Buffer = ChainBuffer<B>;
    type Kv = ChainKv<B>;

    delegated!(run);
    delegated_parts!(run);

    fn knows_memories(&self) -> bool {
        // A memory would be on one of them.
        false
    }

    fn device(&self) -> String {
        let names: Vec<String> = self.busy().map(|device| self.devices[device].device()).collect();
        names.into_iter().rev().collect::<Vec<_>>().join(" and ")
    }

    fn rounding(&self) -> Rounding {
        let of = self.devices.iter().map(Backend::rounding);
        let coarser = |one: Rounding, other: Rounding| Rounding {
            operands: if one.operands == Operands::Bf16 { one.operands } else { other.operands },
            bytes_before_quantised: one.bytes_before_quantised || other.bytes_before_quantised,
        };
        of.reduce(coarser).expect("a chain has a last device")
    }

    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
    }

    fn supports(&self, dtype: DType) -> bool {
        self.owners().all(|device| self.devices[device].supports(dtype))
    }

    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        self.count(self.owners(), |_, device| device.matrix_bytes(parts))
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError> {
        self.place(|device| device.pack(parts))
    }

    fn heads(&self, matrices: Vec<Self::Matrix>) -> Self::Heads {
        Placed::joined(matrices, self.devices.len(), |device, of| self.devices[device].heads(of))
    }

    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        self.count(self.owners(), |_, device| device.experts_bytes(experts))
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError> {
        self.place(|device| device.experts(shapes))
    }

    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        experts.held_mut().try_for_each(|(device, own)| self.devices[device].pack_expert(own, parts))
    }

    fn low_rank_bytes(&self, pairs: &[LowRankShape]) -> usize {
        self.count(self.owners(), |_, device| device.low_rank_bytes(pairs))
    }

    fn low_rank(&self, pairs: &[LowRankPair<'_>]) -> Result<Self::LowRank, KernelError> {
        self.place(|device| device.low_rank(pairs))
    }

    fn vector_bytes(&self, length: usize) -> usize {
        self.count(self.owners(), |_, device| device.vector_bytes(length))
    }

    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError> {
        self.place(|device| device.vector(values))
    }

    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        self.count(self.busy(), |_, device| device.buffer_bytes(role, rows, cols))
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError> {
        let make =
            |(at, device): (usize, &B)| self.has(at).then(|| device.buffer(role, rows, cols)).transpose();
        let buffers = self.devices.iter().enumerate().map(make).collect::<Result<_, KernelError>>()?;
        Ok(ChainBuffer::new(buffers, cols))
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        self.count(0..self.devices.len(), |at, device| {
            kv_of(spec, self.caches(spec.layers.len(), at)).map_or(0, |own| device.kv_bytes(&own))
        })
    }

    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError> {
        let layers = spec.layers.len();
        let make = |(at, device): (usize, &B)| {
            kv_of(spec, self.caches(layers, at)).map(|own| device.kv(&own)).transpose()
        };
        let parts = self.devices.iter().enumerate().map(make).collect::<Result<_, KernelError>>()?;
        Ok(ChainKv { parts, ends: (0..self.last()).map(|at| self.caches(layers, at).end).collect() })
    }

    /// Each device's part one behind the other.
    fn kv_block_form(&self, kv: &Self::Kv) -> Option<(usize, String)> {
        let (mut bytes, mut name) = (0, String::from("chain"));
        for (device, own) in kv.held() {
            let (own_bytes, own_name) = self.devices[device].kv_block_form(own)?;
            bytes += own_bytes;
            let end = kv.ends.get(device).map_or("the last".to_owned(), usize::to_string);
            name.push_str(&format!(", {own_name} to {end}"));
        }
        Some((bytes, name))
    }

    fn read_kv_block(&self, kv: &Self::Kv, block: u32, out: &mut [u8]) -> Result<(), KernelError> {
        let mut rest = out;
        for (device, own) in kv.held() {
            let bytes = self.devices[device].kv_block_form(own).map_or(0, |(bytes, _)| bytes);
            let (part, behind) = rest.split_at_mut(bytes);
            self.devices[device].read_kv_block(own, block, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn write_kv_block(&mut self, kv: &mut Self::Kv, block: u32, bytes: &[u8]) -> Result<(), KernelError> {
        let mut rest = bytes;
        for (device, own) in kv.held_mut() {
            let bytes = self.devices[device].kv_block_form(own).map_or(0, |(bytes, _)| bytes);
            let (part, behind) = rest.split_at(bytes);
            self.devices[device].write_kv_block(own, block, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        self.count(self.busy(), |_, device| device.scratch_bytes(limits))
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
                // What is told is why there is no step.
                self.devices[..device].iter_mut().for_each(|begun| drop(begun.end()));
            })?;
        }
        self.rows = batch.rows();
        Ok(())
    }

    fn row_op(&mut self, op: &RowOp<&Self::Buffer, &Self::Vector>, out: &mut Self::Buffer) {
        let (at, read) = (self.at(), read_by(op));
        read.iter().flatten().for_each(|buffer| self.bring(buffer, at));
        if !matches!(op, RowOp::Take { .. }) {
            self.bring(out, at);
        }
        let read = read.map(|buffer| buffer.map(|buffer| buffer.at(at)));
        let read = [0, 1, 2].map(|index| read[index].as_deref());
        self.devices[at].row_op(&reading(op, read, |of| of.at(at)), out.at_mut(at));
        out.only_on(at);
    }

    fn add_low_rank<L: Borrow<Self::LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Self::Buffer,
        low: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let at = self.at();
        self.bring(x, at);
        self.bring(out, at);
        // A list of as many as adapters are loaded.
        let deltas: Vec<Option<&B::LowRank>> =
            deltas.iter().map(|delta| delta.as_ref().map(|delta| delta.borrow().at(at))).collect();
        self.devices[at].add_low_rank(&deltas, &x.at(at), low.at_mut(at), out.at_mut(at));
        low.only_on(at);
        out.only_on(at);
    }

    fn add_shared(
        &mut self,
        gate: Option<&Self::Vector>,
        x: &Self::Buffer,
        shared: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let at = self.at();
        // Only a gate reads `x`.
        if gate.is_some() {
            self.bring(x, at);
        }
        run!(self on at, add_shared(o gate, u x, r shared, c out));
    }

    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let at = self.at();
        weights.routed.iter().for_each(|routed| self.bring(routed, at));
        self.bring(x, at);
        let routed = weights.routed.map(|routed| routed.at(at));
        let weights: MoeWeights<'_, B> = weights.with(
            |matrix| matrix.at(at),
            |vector| vector.at(at),
            |experts| experts.at(at),
            routed.as_deref(),
        );
        self.devices[at].moe(&weights, params, &x.at(at), hidden.at_mut(at), out.at_mut(at));
        hidden.only_on(at);
        out.only_on(at);
    }

    fn read_experts(
        &self,
        hidden: &Self::Buffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        let at = hidden.somewhere();
        self.devices[at].read_experts(&hidden.at(at), chosen, inner)
    }

    fn all_reduce(&mut self, x: &mut Self::Buffer) {
        if self.restless.is_none() {
            run!(self, all_reduce(c x));
        }
    }

    fn logits(&mut self, head: &Self::Matrix, x: &Self::Buffer, out: &mut [f32]) -> Result<(), KernelError> {
        let last = self.last();
        self.bring(x, last);
        self.passed()?;
        self.devices[last].logits(head.at(last), &x.at(last), out)
    }

    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        self.devices[self.last()].sample_room(rows, vocab)
    }

    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let first = self.busy().next().expect("the last always is");
        self.devices[first].on_host(tasks, task);
    }

    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.devices[0].between_steps(tasks, task);
    }

    fn sample(
        &mut self,
        head: &Self::Matrix,
        x: &Self::Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let last = self.last();
        self.bring(x, last);
        self.passed()?;
        self.devices[last].sample(head.at(last), &x.at(last), specs, room)?;
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

    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
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

    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let at = x.somewhere();
        self.devices[at].read_rows(&x.at(at), row_first, out)
    }

    /// To each device, for an embedding beside them leaves its rows on one.
    fn write_rows(
        &mut self,
        x: &mut Self::Buffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        x.places_mut().try_for_each(|(device, own)| self.devices[device].write_rows(own, row_first, rows))
    }
}

impl<B: Backend> Chain<B> {
    /// Ends the step on the devices before one, on each of them whatever becomes of the others.
    fn end_before(&mut self, last: usize) -> Result<(), KernelError> {
        let mut ended = Ok(());
        for device in 0..last {
            if self.has(device) {
                ended = ended.and(self.devices[device].end());
            }
        }
        ended
    }
}
