//! A tensor-parallel group as an executor.

use std::any::Any;
use std::ops::Range;

use super::TensorParallel;
use super::layout::runs_of;
use super::operands::{OnRanks, RankBuffer, RankKv, RankMatrix, RankOperands, RankVector, whole};
use crate::{
    Access, Allocation, Batch, BlockCopy, Buffer, BufferId, BufferRole, Draws, Executor, ExpertParts,
    Experts, ExpertsId, Facts, HeadOperands, HeadShape, Heads, KernelError, KernelUse, Kv, KvId, KvSpec,
    LowRank, LowRankId, Matrix, MatrixShape, MatrixSource, Op, OutputDelta, Peers, RowSource, SampleSpecs,
    SampledToken, Stage, StepLimits, Ticket, Vector,
};

impl<B: Peers> TensorParallel<B> {
    /// Limits of a rank's steps: it may have few of the heads that share keys and values, and all of the others.
    fn limits_of(&self, limits: &StepLimits) -> StepLimits {
        let kv_heads = limits.heads.kv_heads / self.ranks.len();
        StepLimits { heads: HeadShape { kv_heads: kv_heads.max(1), ..limits.heads }, ..*limits }
    }

    /// Runs an op on whole rows, on some ranks.
    fn run_whole(&mut self, op: &Op, ranks: Range<usize>) {
        let list = op.buffers();
        let buffers = self.buffers.clone();
        let mut buffers = buffers.lock();
        for &(id, access) in &list {
            let buffer = buffers.get_mut(id);
            if matches!(access, Access::Read | Access::Change) {
                self.bring(buffer, &ranks);
            }
            if matches!(access, Access::Write | Access::Change) {
                self.claim(buffer);
            }
        }
        for rank in ranks.clone() {
            let own = op.map(&RankOperands {
                rank,
                matrices: &self.matrices.lock(),
                vectors: &self.vectors.lock(),
                experts: &self.experts.lock(),
                heads: &self.heads.lock(),
                low_ranks: &self.low_ranks.lock(),
                buffers: &buffers,
                kvs: &self.kvs.lock(),
            });
            self.ranks[rank].run(&own);
        }
        let written = list.iter().filter(|(_, access)| matches!(access, Access::Write | Access::Change));
        written.for_each(|&(id, _)| buffers.get_mut(id).only_on(&ranks));
    }

    /// The head on the first rank, and the rows that it reads, brought there.
    fn at_head(&mut self, head: &HeadOperands, x: BufferId) -> Result<(HeadOperands, BufferId), KernelError> {
        let buffers = self.buffers.clone();
        let mut buffers = buffers.lock();
        if let Some((_, low)) = &head.adapted {
            self.claim(buffers.get(*low));
        }
        let x = buffers.get_mut(x);
        self.bring(x, &(0..1));
        self.start(self.others())?;
        let (x, low_ranks) = (x.at(0), self.low_ranks.lock());
        let own = |delta: &Option<LowRankId>| delta.map(|delta| whole(low_ranks.get(delta), 0));
        let adapted = head.adapted.as_ref().map(|(deltas, low)| {
            let low = buffers.get_mut(*low);
            low.only_on(&(0..1));
            (deltas.iter().map(own).collect(), low.at(0))
        });
        let matrix = whole(&self.matrices.lock().get(head.matrix).whole, 0);
        Ok((HeadOperands { matrix, adapted }, x))
    }

    /// Reads rows of a buffer to the host, whole or from the ranks' parts.
    fn read(&self, x: &RankBuffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.ranks.iter().try_for_each(|rank| rank.backend().start())?;
        if x.is_anywhere() {
            let at = x.somewhere();
            return self.ranks[at].read_rows(x.at(at), row_first, out);
        }
        let (cols, count) = (x.cols, self.ranks.len());
        let Some(layout) = x.divided else { return Ok(()) };
        let in_parts = x.rows_divided.saturating_sub(row_first).min(out.len() / cols);
        let (divided, behind) = out.split_at_mut(in_parts * cols);
        if !behind.is_empty() {
            self.ranks[0].read_rows(x.at(0), row_first + in_parts, behind)?;
        }
        let mut part = vec![0.0; divided.len() / count];
        for (rank, device) in self.ranks.iter().enumerate() {
            device.read_rows(x.part(rank), row_first, &mut part)?;
            for (row, part) in divided.chunks_exact_mut(cols).zip(part.chunks_exact(cols / count)) {
                for (own, first) in layout.columns(rank, count) {
                    row[first..first + own.len()].copy_from_slice(&part[own]);
                }
            }
        }
        Ok(())
    }
}

impl<B: Peers> Executor for TensorParallel<B> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
    }

    /// Counts without the runs that a bias is given to the ranks as, which are small beside what their matrix leaves to others.
    fn bytes(&self, of: &Allocation<'_>) -> usize {
        match *of {
            Allocation::Matrix(parts) if self.divides(parts.iter().map(|part| part.rows)).is_some() => {
                let run = |part: &MatrixShape| MatrixShape { rows: part.rows / self.ranks.len(), ..*part };
                let runs: Vec<MatrixShape> = parts.iter().map(run).collect();
                self.count(self.all(), |rank| rank.bytes(&Allocation::Matrix(&runs)))
            }
            Allocation::Buffer { role, rows, cols } => self.count(self.all(), |rank| {
                let bytes = |cols| rank.bytes(&Allocation::Buffer { role, rows, cols });
                let count = self.ranks.len();
                bytes(cols) + if cols.is_multiple_of(count) { bytes(cols / count) } else { 0 }
            }),
            Allocation::Kv(spec) => {
                let own = self.kv_of(spec);
                self.count(self.all(), |rank| rank.bytes(&Allocation::Kv(&own)))
            }
            Allocation::Scratch(limits) => {
                let own = self.limits_of(limits);
                self.count(self.all(), |rank| rank.bytes(&Allocation::Scratch(&own)))
            }
            _ => self.count(self.at(), |rank| rank.bytes(of)),
        }
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Matrix, KernelError> {
        let layout = self.divides(parts.iter().map(|part| part.shape.rows));
        let count = self.ranks.len();
        let run = |(rank, device)| Executor::pack(device, &runs_of(parts, rank, count));
        let runs = layout.map(|_| self.ranks.iter().enumerate().map(run).collect::<Result<_, _>>());
        let whole = match layout.is_some() && !self.keeps_both {
            true => self.ranks.iter().map(|_| None).collect(),
            false => self.place(|device| device.pack(parts))?,
        };
        Ok(self.matrices.insert(RankMatrix { whole, divided: layout.zip(runs.transpose()?) }))
    }

    fn pack_kernel(&self, source: &MatrixSource<'_>, of: &KernelUse) -> Result<Matrix, KernelError> {
        let whole = self.place(|device| device.pack_kernel(source, of))?;
        Ok(self.matrices.insert(RankMatrix { whole, divided: None }))
    }

    fn heads(&self, matrices: Vec<Matrix>) -> Heads {
        let mut cells = self.matrices.lock();
        let mut own: Vec<Vec<Matrix>> = self.ranks.iter().map(|_| Vec::new()).collect();
        for matrix in &matrices {
            for (own, matrix) in own.iter_mut().zip(cells.take(matrix.id()).whole) {
                own.extend(matrix);
            }
        }
        drop(cells);
        let heads = self.ranks.iter().zip(own);
        let heads = heads.map(|(rank, own)| (!own.is_empty()).then(|| rank.heads(own))).collect();
        self.heads.insert(heads)
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Experts, KernelError> {
        Ok(self.experts.insert(self.place(|rank| rank.experts(shapes))?))
    }

    fn pack_expert(
        &self,
        experts: ExpertsId,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        let own: OnRanks<ExpertsId> =
            self.experts.lock().get(experts).iter().map(|own| own.as_ref().map(Experts::id)).collect();
        let held = own.into_iter().zip(&self.ranks);
        let mut held = held.filter_map(|(own, rank)| Some((own?, rank)));
        held.try_for_each(|(own, rank)| rank.pack_expert(own, parts))
    }

    fn low_rank(&self, delta: &OutputDelta<'_>) -> Result<LowRank, KernelError> {
        Ok(self.low_ranks.insert(self.place(|rank| rank.low_rank(delta))?))
    }

    fn vector(&self, values: &[f32]) -> Result<Vector, KernelError> {
        Ok(self.vectors.insert(RankVector::new(self.place(|rank| rank.vector(values))?, values)))
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Buffer, KernelError> {
        let make = |cols: usize| self.ranks.iter().map(|rank| rank.buffer(role, rows, cols)).collect();
        let count = self.ranks.len();
        let parts: Result<Vec<_>, KernelError> =
            if cols.is_multiple_of(count) { make(cols / count) } else { Ok(Vec::new()) };
        let whole: Result<Vec<_>, KernelError> = make(cols);
        Ok(self.buffers.insert(RankBuffer::new(whole?, parts?, rows, cols)))
    }

    fn kv(&self, spec: &KvSpec) -> Result<Kv, KernelError> {
        let own = self.kv_of(spec);
        let parts = self.ranks.iter().map(|rank| rank.kv(&own)).collect::<Result<_, _>>()?;
        let divided = (0..spec.layers.len()).map(|layer| self.divides_cache(spec, layer)).collect();
        Ok(self.kvs.insert(RankKv { parts, divided }))
    }

    /// Each rank's part one behind the other.
    fn kv_block_form(&self, kv: KvId) -> Option<(usize, String)> {
        let kvs = self.kvs.lock();
        let kv = kvs.get(kv);
        let (mut bytes, mut name) = (0, String::from("ranks"));
        for (rank, own) in self.ranks.iter().zip(&kv.parts) {
            let (own_bytes, own_name) = rank.kv_block_form(own.id())?;
            bytes += own_bytes;
            name.push_str(&format!(", {own_name}"));
        }
        let whole: String = kv.divided.iter().map(|divided| if *divided { '/' } else { '=' }).collect();
        Some((bytes, format!("{name}, {whole}")))
    }

    fn copy_kv_block(&mut self, kv: KvId, block: u32, mut copy: BlockCopy<'_>) -> Result<(), KernelError> {
        let kvs = self.kvs.lock();
        for (rank, own) in self.ranks.iter_mut().zip(&kvs.get(kv).parts) {
            let bytes = rank.kv_block_form(own.id()).map_or(0, |(bytes, _)| bytes);
            rank.copy_kv_block(own.id(), block, copy.take(bytes))?;
        }
        Ok(())
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        let own = self.limits_of(limits);
        self.ranks.iter_mut().try_for_each(|rank| rank.reserve(&own))?;
        let mut backends: Vec<&mut B> = self.ranks.iter_mut().map(|rank| rank.backend_mut()).collect();
        self.acquainted = B::acquaint(&mut backends)?;
        Ok(())
    }

    /// Rows that come from draws are the first rank's to know.
    fn begin(&mut self, batch: &Batch) -> Result<(), KernelError> {
        let is_drawn = |source: &RowSource| matches!(source, RowSource::Sampled(_));
        let for_others = if batch.sources.iter().any(is_drawn) {
            self.without_draws.copy_of(batch);
            let drawn = self.without_draws.sources.iter_mut().filter(|source| is_drawn(source));
            drawn.for_each(|source| *source = RowSource::Embedding);
            &self.without_draws
        } else {
            batch
        };
        for rank in 0..self.ranks.len() {
            self.ranks[rank].begin(if rank == 0 { batch } else { for_others }).inspect_err(|_| {
                // The first failure is the one that is told.
                self.ranks[..rank].iter_mut().for_each(|begun| drop(begun.end()));
            })?;
        }
        self.rows = batch.rows();
        Ok(())
    }

    fn run(&mut self, op: &Op) {
        if !self.run_divided(op) {
            // The first rank alone knows which tokens rows are of.
            let ranks = if matches!(op, Op::Embed { .. }) { 0..1 } else { self.at() };
            self.run_whole(op, ranks);
        }
    }

    fn read_experts(
        &self,
        hidden: BufferId,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        self.ranks.iter().try_for_each(|rank| rank.backend().start())?;
        let buffers = self.buffers.lock();
        let hidden = buffers.get(hidden);
        let at = hidden.somewhere();
        self.ranks[at].read_experts(hidden.at(at), chosen, inner)
    }

    fn logits(&mut self, head: &HeadOperands, x: BufferId, out: &mut [f32]) -> Result<(), KernelError> {
        let (head, x) = self.at_head(head, x)?;
        self.ranks[0].logits(&head, x, out)
    }

    fn on_host(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.ranks[0].on_host(tasks, task);
    }

    fn sample(
        &mut self,
        head: &HeadOperands,
        x: BufferId,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        let (head, x) = self.at_head(head, x)?;
        self.ranks[0].sample(&head, x, specs, room)
    }

    fn draws(&mut self) -> &mut Draws {
        self.ranks[0].draws()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        let started = self.start(self.all());
        let (first, others) = self.ranks.split_at_mut(1);
        let submitted = started.and_then(|()| {
            let tickets = others.iter_mut().map(Executor::submit).collect::<Result<_, _>>()?;
            Ok((first[0].submit()?, tickets))
        });
        match submitted {
            Ok((ticket, tickets)) => {
                self.tickets.push_back(tickets);
                Ok(ticket)
            }
            Err(error) => self.end().and(Err(error)),
        }
    }

    /// Waits for each rank, of which the first alone has drawn anything.
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<SampledToken>>) -> Result<(), KernelError> {
        let mut waited = self.ranks[0].wait(ticket, drawn);
        let tickets = self.tickets.pop_front().unwrap_or_default();
        for (other, ticket) in self.ranks[1..].iter_mut().zip(tickets) {
            waited = waited.and(other.wait(ticket, &mut self.nothing_drawn));
        }
        waited
    }

    fn end(&mut self) -> Result<(), KernelError> {
        let passed = self.start(self.all());
        let mut ended = Ok(());
        for rank in &mut self.ranks {
            ended = ended.and(rank.end());
        }
        passed.and(ended)
    }

    fn read_rows(&self, x: BufferId, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.read(self.buffers.lock().get(x), row_first, out)
    }

    /// Writes to each rank, for an embedding beside these rows leaves its own on one.
    fn write_rows(&mut self, x: BufferId, row_first: usize, rows: &[f32]) -> Result<(), KernelError> {
        let buffers = self.buffers.clone();
        let mut buffers = buffers.lock();
        let x = buffers.get_mut(x);
        if !x.is_anywhere() {
            // Parts go no further than here.
            let mut all = vec![0.0; x.rows * x.cols];
            self.read(x, 0, &mut all)?;
            for (rank, device) in self.ranks.iter_mut().enumerate() {
                device.write_rows(x.at(rank), 0, &all)?;
            }
            x.only_on(&self.all());
        }
        self.claim(x);
        self.start(self.all())?;
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            device.write_rows(x.at(rank), row_first, rows)?;
        }
        x.divided = None;
        Ok(())
    }
}
