//! The contract's ops: divided among the ranks where they can be, and else on whole rows.

use std::borrow::Borrow;

use super::Sharded;
use super::buffers::{ShardedBuffer, ShardedKv};
use super::packed::{Layout, ShardedMatrix, ShardedVector, Whole, runs_of};
use crate::backend::mapped::{read_by, reading};
use crate::{
    Activation, AttentionParams, Backend, Batch, BufferRole, ConvolutionParams, DType, Draws, ExpertParts,
    HeadShape, KernelError, KvSpec, LatentHeads, LatentParams, LayerNormParams, LowRankPair, LowRankShape,
    MatrixShape, MatrixSource, MoeParams, MoeWeights, OutputGateParams, Peers, QkvParams, RecurrenceParams,
    Rounding, RowIds, RowOp, RowSource, SampleSpecs, Sampled, Stage, StepLimits, Ticket,
};

impl<B: Peers> Sharded<B> {
    /// Each rank's runs of a vector that there may be; none where they could not be made, which the step's end tells.
    fn runs<'v>(
        &mut self,
        vector: Option<&'v ShardedVector<B::Vector>>,
        layout: Layout,
    ) -> Option<Option<&'v [B::Vector]>> {
        match vector.map(|vector| vector.runs(&self.ranks, layout)).transpose() {
            Ok(runs) => Some(runs),
            Err(error) => {
                self.failure.get_or_insert(error);
                None
            }
        }
    }

    /// Heads of a rank.
    fn own_heads(&self, HeadShape { heads, kv_heads, head_dim }: HeadShape) -> HeadShape {
        let count = self.ranks.len();
        HeadShape { heads: heads / count, kv_heads: kv_heads / count, head_dim }
    }
}

/// The columns of rows of heads.
fn layout_of(shape: HeadShape, queries_alone: bool) -> Layout {
    let (q, kv) = (shape.q_width(), shape.kv_heads * shape.head_dim);
    if queries_alone { Layout::parts(&[q]) } else { Layout::parts(&[q, kv, kv]) }
}

/// Whether these are halves: gate's columns, and up's.
fn is_halves(layout: Layout) -> bool {
    let widths: Vec<usize> = layout.widths().collect();
    widths.len() == 2 && widths[0] == widths[1]
}

impl<B: Peers> Backend for Sharded<B> {
    type Matrix = ShardedMatrix<B::Matrix>;
    type Vector = ShardedVector<B::Vector>;
    type Experts = Whole<B::Experts>;
    type Heads = Whole<B::Heads>;
    type LowRank = Whole<B::LowRank>;
    type Buffer = ShardedBuffer<B>;
    type Kv = ShardedKv<B>;

    delegated!(run);

    fn knows_memories(&self) -> bool {
        // What pictures and sounds are encoded by is on one device.
        false
    }

    fn device(&self) -> String {
        let names: Vec<String> = self.ranks.iter().map(Backend::device).collect();
        names.join(" and ")
    }

    fn rounding(&self) -> Rounding {
        self.ranks[0].rounding()
    }

    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
    }

    fn supports(&self, dtype: DType) -> bool {
        self.ranks.iter().all(|rank| rank.supports(dtype))
    }

    fn matrix_bytes(&self, parts: &[MatrixShape]) -> usize {
        if self.divides(parts.iter().map(|part| part.rows)).is_none() {
            return self.count(self.at(), |rank| rank.matrix_bytes(parts));
        }
        let run = |part: &MatrixShape| MatrixShape { rows: part.rows / self.ranks.len(), ..*part };
        let runs: Vec<MatrixShape> = parts.iter().map(run).collect();
        self.count(self.all(), |rank| rank.matrix_bytes(&runs))
    }

    fn pack(&self, parts: &[MatrixSource<'_>]) -> Result<Self::Matrix, KernelError> {
        let layout = self.divides(parts.iter().map(|part| part.shape.rows));
        let count = self.ranks.len();
        let run = |(rank, device): (usize, &B)| device.pack(&runs_of(parts, rank, count));
        let runs = layout.map(|_| self.ranks.iter().enumerate().map(run).collect::<Result<_, _>>());
        let whole = match layout.is_some() && !self.keeps_both {
            true => self.ranks.iter().map(|_| None).collect(),
            false => self.place(|device| device.pack(parts))?,
        };
        Ok(ShardedMatrix { whole, divided: layout.zip(runs.transpose()?) })
    }

    fn heads(&self, matrices: Vec<Self::Matrix>) -> Self::Heads {
        let mut own: Vec<Vec<B::Matrix>> = self.ranks.iter().map(|_| Vec::new()).collect();
        for matrix in matrices {
            for (own, matrix) in own.iter_mut().zip(matrix.whole) {
                own.extend(matrix);
            }
        }
        let heads = self.ranks.iter().zip(own);
        Whole(heads.map(|(rank, own)| (!own.is_empty()).then(|| rank.heads(own))).collect())
    }

    fn experts_bytes(&self, experts: &[ExpertParts<MatrixShape>]) -> usize {
        self.count(self.at(), |rank| rank.experts_bytes(experts))
    }

    fn experts(&self, shapes: &[ExpertParts<MatrixShape>]) -> Result<Self::Experts, KernelError> {
        self.place(|rank| rank.experts(shapes)).map(Whole)
    }

    fn pack_expert(
        &self,
        experts: &mut Self::Experts,
        parts: &ExpertParts<MatrixSource<'_>>,
    ) -> Result<(), KernelError> {
        experts.held_mut().try_for_each(|(rank, own)| self.ranks[rank].pack_expert(own, parts))
    }

    fn low_rank_bytes(&self, pairs: &[LowRankShape]) -> usize {
        self.count(self.at(), |rank| rank.low_rank_bytes(pairs))
    }

    fn low_rank(&self, pairs: &[LowRankPair<'_>]) -> Result<Self::LowRank, KernelError> {
        self.place(|rank| rank.low_rank(pairs)).map(Whole)
    }

    /// Without the runs that a bias is given to the ranks as, which are small beside what their matrix leaves to others.
    fn vector_bytes(&self, length: usize) -> usize {
        self.count(self.at(), |rank| rank.vector_bytes(length))
    }

    fn vector(&self, values: &[f32]) -> Result<Self::Vector, KernelError> {
        Ok(ShardedVector::new(self.place(|rank| rank.vector(values))?, values))
    }

    fn buffer_bytes(&self, role: BufferRole, rows: usize, cols: usize) -> usize {
        let parts = if cols.is_multiple_of(self.ranks.len()) { cols / self.ranks.len() } else { 0 };
        let own = |rank: &B| match parts {
            0 => rank.buffer_bytes(role, rows, cols),
            parts => rank.buffer_bytes(role, rows, cols) + rank.buffer_bytes(role, rows, parts),
        };
        self.count(self.all(), own)
    }

    fn buffer(&self, role: BufferRole, rows: usize, cols: usize) -> Result<Self::Buffer, KernelError> {
        let make = |cols: usize| self.ranks.iter().map(|rank| rank.buffer(role, rows, cols)).collect();
        let count = self.ranks.len();
        let parts: Result<Vec<_>, KernelError> =
            if cols.is_multiple_of(count) { make(cols / count) } else { Ok(Vec::new()) };
        let whole: Result<Vec<_>, KernelError> = make(cols);
        Ok(ShardedBuffer::new(whole?, parts?, (rows, cols)))
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let own = self.kv_of(spec);
        self.count(self.all(), |rank| rank.kv_bytes(&own))
    }

    fn kv(&self, spec: &KvSpec) -> Result<Self::Kv, KernelError> {
        let own = self.kv_of(spec);
        let parts = self.ranks.iter().map(|rank| rank.kv(&own)).collect::<Result<_, _>>()?;
        Ok(ShardedKv {
            parts,
            divided: (0..spec.layers.len()).map(|of| self.divides_cache(spec, of)).collect(),
        })
    }

    /// Each rank's part one behind the other.
    fn kv_block_form(&self, kv: &Self::Kv) -> Option<(usize, String)> {
        let (mut bytes, mut name) = (0, String::from("ranks"));
        for (rank, own) in self.ranks.iter().zip(&kv.parts) {
            let (own_bytes, own_name) = rank.kv_block_form(own)?;
            bytes += own_bytes;
            name.push_str(&format!(", {own_name}"));
        }
        let whole: String = kv.divided.iter().map(|divided| if *divided { '/' } else { '=' }).collect();
        Some((bytes, format!("{name}, {whole}")))
    }

    fn read_kv_block(&self, kv: &Self::Kv, block: u32, out: &mut [u8]) -> Result<(), KernelError> {
        let mut rest = out;
        for (rank, own) in self.ranks.iter().zip(&kv.parts) {
            let bytes = rank.kv_block_form(own).map_or(0, |(bytes, _)| bytes);
            let (part, behind) = rest.split_at_mut(bytes);
            rank.read_kv_block(own, block, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn write_kv_block(&mut self, kv: &mut Self::Kv, block: u32, bytes: &[u8]) -> Result<(), KernelError> {
        let mut rest = bytes;
        for (rank, own) in self.ranks.iter_mut().zip(&mut kv.parts) {
            let bytes = rank.kv_block_form(own).map_or(0, |(bytes, _)| bytes);
            let (part, behind) = rest.split_at(bytes);
            rank.write_kv_block(own, block, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn scratch_bytes(&self, limits: &StepLimits) -> usize {
        self.count(self.all(), |rank| rank.scratch_bytes(&self.limits_of(limits)))
    }

    fn reserve(&mut self, limits: &StepLimits) -> Result<(), KernelError> {
        let own = self.limits_of(limits);
        self.ranks.iter_mut().try_for_each(|rank| rank.reserve(&own))?;
        self.acquainted = B::acquaint(&mut self.ranks)?;
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
                // What is told is why there is no step.
                self.ranks[..rank].iter_mut().for_each(|begun| drop(begun.end()));
            })?;
        }
        self.rows = batch.rows();
        Ok(())
    }

    fn matmul(
        &mut self,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let Some((layout, own)) = &weight.divided else {
            run!(self, matmul(m weight, o bias, r x, w out));
            return;
        };
        let Some(bias) = self.runs(bias, *layout) else { return };
        self.bring(x, &self.all());
        self.claim_parts(out);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            device.matmul(&own[rank], bias.map(|of| &of[rank]), &x.at(rank), out.part_mut(rank));
        }
        out.only_divided(*layout, self.rows);
    }

    fn matmul_activated(
        &mut self,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
        activation: Activation,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let Some((layout, own)) = &weight.divided else {
            run!(self, matmul_activated(m weight, o bias, v activation, r x, w out));
            return;
        };
        let Some(bias) = self.runs(bias, *layout) else { return };
        self.bring(x, &self.all());
        self.claim_parts(out);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            let bias = bias.map(|of| &of[rank]);
            device.matmul_activated(&own[rank], bias, activation, &x.at(rank), out.part_mut(rank));
        }
        out.only_divided(*layout, self.rows);
    }

    fn add_bias(&mut self, bias: &Self::Vector, out: &mut Self::Buffer) {
        let Some(layout) = out.divided() else {
            run!(self, add_bias(m bias, c out));
            return;
        };
        let Some(Some(bias)) = self.runs(Some(bias), layout) else { return };
        self.claim_parts(out);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            device.add_bias(&bias[rank], out.part_mut(rank));
        }
        out.only_divided(layout, self.rows);
    }

    fn rope_to_cache(
        &mut self,
        qkv: &mut Self::Buffer,
        params: &QkvParams<&Self::Vector>,
        kv: &mut Self::Kv,
        layer: usize,
    ) {
        if !kv.divided[layer] {
            run!(self, rope_to_cache(c qkv, p params, k kv, l layer));
            return;
        }
        let layout = layout_of(params.shape, params.queries_alone);
        let shape = self.own_heads(params.shape);
        self.divide(qkv, layout);
        self.claim_parts(qkv);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            let own = QkvParams { shape, ..params.with(|of| of.at(rank)) };
            device.rope_to_cache(qkv.part_mut(rank), &own, kv.at_mut(rank), layer);
        }
        qkv.only_divided(layout, self.rows);
    }

    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        params: &AttentionParams<&Self::Vector>,
        kv: &Self::Kv,
        layer: usize,
        out: &mut Self::Buffer,
    ) {
        if !kv.divided[layer] {
            run!(self, attention(r qkv, p params, s kv, l layer, w out));
            return;
        }
        let shape = self.own_heads(params.shape);
        let of_heads = Layout::parts(&[params.shape.heads]);
        let Some(sinks) = self.runs(params.sinks, of_heads) else { return };
        let Some(slopes) = self.runs(params.slopes, of_heads) else { return };
        self.divide(qkv, layout_of(params.shape, params.queries_alone));
        self.claim_parts(out);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            let (sinks, slopes) = (sinks.map(|of| &of[rank]), slopes.map(|of| &of[rank]));
            let own = AttentionParams { shape, sinks, slopes, ..params.with(|of| of.at(rank)) };
            device.attention(&qkv.part(rank), &own, kv.at(rank), layer, out.part_mut(rank));
        }
        out.only_divided(Layout::parts(&[out.cols()]), self.rows);
    }

    fn gated(
        &mut self,
        gate_up: &Self::Matrix,
        activation: Activation,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
    ) {
        let Some((_, own)) = gate_up.divided.as_ref().filter(|(layout, _)| is_halves(*layout)) else {
            run!(self, gated(m gate_up, v activation, r x, w hidden));
            return;
        };
        self.bring(x, &self.all());
        self.claim_parts(hidden);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            device.gated(&own[rank], activation, &x.at(rank), hidden.part_mut(rank));
        }
        hidden.only_divided(Layout::parts(&[hidden.cols()]), self.rows);
    }

    fn gate(&mut self, activation: Activation, both: &Self::Buffer, hidden: &mut Self::Buffer) {
        if !both.divided().is_some_and(is_halves) {
            run!(self, gate(v activation, r both, w hidden));
            return;
        }
        self.claim_parts(hidden);
        for (rank, device) in self.ranks.iter_mut().enumerate() {
            device.gate(activation, &both.part(rank), hidden.part_mut(rank));
        }
        hidden.only_divided(Layout::parts(&[hidden.cols()]), self.rows);
    }

    fn row_op(&mut self, op: &RowOp<&Self::Buffer, &Self::Vector>, out: &mut Self::Buffer) {
        let (ranks, read) = (self.at(), read_by(op));
        read.iter().flatten().for_each(|buffer| self.bring(buffer, &ranks));
        if !matches!(op, RowOp::Take { .. }) {
            self.bring(out, &ranks);
        }
        self.claim(out);
        for at in ranks.clone() {
            let read = read.map(|buffer| buffer.map(|buffer| buffer.at(at)));
            let read = [0, 1, 2].map(|index| read[index].as_deref());
            self.ranks[at].row_op(&reading(op, read, |of| of.at(at)), out.at_mut(at));
        }
        out.only_on(&ranks);
    }

    fn add_low_rank<L: Borrow<Self::LowRank> + Sync>(
        &mut self,
        deltas: &[Option<L>],
        x: &Self::Buffer,
        low: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let ranks = self.at();
        self.bring(x, &ranks);
        self.bring(out, &ranks);
        self.claim(low);
        self.claim(out);
        for at in ranks.clone() {
            // A list of as many as adapters are loaded.
            let deltas: Vec<Option<&B::LowRank>> =
                deltas.iter().map(|delta| delta.as_ref().map(|delta| delta.borrow().at(at))).collect();
            self.ranks[at].add_low_rank(&deltas, &x.at(at), low.at_mut(at), out.at_mut(at));
        }
        low.only_on(&ranks);
        out.only_on(&ranks);
    }

    fn add_shared(
        &mut self,
        gate: Option<&Self::Vector>,
        x: &Self::Buffer,
        shared: &Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        // Only a gate reads `x`.
        if gate.is_some() {
            self.bring(x, &self.at());
        }
        run!(self, add_shared(o gate, u x, r shared, c out));
    }

    fn moe(
        &mut self,
        weights: &MoeWeights<'_, Self>,
        params: &MoeParams,
        x: &Self::Buffer,
        hidden: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) {
        let ranks = self.at();
        weights.routed.iter().for_each(|routed| self.bring(routed, &ranks));
        self.bring(x, &ranks);
        self.claim(hidden);
        self.claim(out);
        for at in ranks.clone() {
            let routed = weights.routed.map(|routed| routed.at(at));
            let weights: MoeWeights<'_, B> = weights.with(
                |matrix| matrix.at(at),
                |vector| vector.at(at),
                |experts| experts.at(at),
                routed.as_deref(),
            );
            self.ranks[at].moe(&weights, params, &x.at(at), hidden.at_mut(at), out.at_mut(at));
        }
        hidden.only_on(&ranks);
        out.only_on(&ranks);
    }

    fn read_experts(
        &self,
        hidden: &Self::Buffer,
        chosen: &mut [u32],
        inner: &mut [f32],
    ) -> Result<(), KernelError> {
        self.ranks.iter().try_for_each(B::start)?;
        let at = hidden.somewhere();
        self.ranks[at].read_experts(&hidden.at(at), chosen, inner)
    }

    fn logits(&mut self, head: &Self::Matrix, x: &Self::Buffer, out: &mut [f32]) -> Result<(), KernelError> {
        self.bring(x, &(0..1));
        self.start(self.others())?;
        self.ranks[0].logits(head.at(0), &x.at(0), out)
    }

    fn sample_room(&self, rows: usize, vocab: usize) -> usize {
        self.ranks[0].sample_room(rows, vocab)
    }

    fn on_host(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.ranks[0].on_host(tasks, task);
    }

    fn between_steps(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.ranks[0].between_steps(tasks, task);
    }

    fn sample(
        &mut self,
        head: &Self::Matrix,
        x: &Self::Buffer,
        specs: &SampleSpecs,
        room: &mut [f32],
    ) -> Result<(), KernelError> {
        self.bring(x, &(0..1));
        self.start(self.others())?;
        self.ranks[0].sample(head.at(0), &x.at(0), specs, room)
    }

    fn draws(&mut self) -> &mut Draws {
        self.ranks[0].draws()
    }

    fn lookahead(&self) -> usize {
        self.ranks.iter().map(Backend::lookahead).min().unwrap_or_default()
    }

    fn submit(&mut self) -> Result<Ticket, KernelError> {
        let started = self.start(self.all());
        let (first, others) = self.ranks.split_at_mut(1);
        let submitted = started.and_then(|()| {
            let tickets = others.iter_mut().map(Backend::submit).collect::<Result<_, _>>()?;
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

    /// For each rank, of which the first alone has drawn anything.
    fn wait(&mut self, ticket: Ticket, drawn: &mut Vec<Option<Sampled>>) -> Result<(), KernelError> {
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

    fn read_rows(&self, x: &Self::Buffer, row_first: usize, out: &mut [f32]) -> Result<(), KernelError> {
        self.ranks.iter().try_for_each(B::start)?;
        if x.is_anywhere() {
            let at = x.somewhere();
            return self.ranks[at].read_rows(&x.at(at), row_first, out);
        }
        let (cols, count) = (x.cols(), self.ranks.len());
        let Some(layout) = x.divided() else { return Ok(()) };
        let in_parts = x.rows_divided().saturating_sub(row_first).min(out.len() / cols);
        let (divided, behind) = out.split_at_mut(in_parts * cols);
        if !behind.is_empty() {
            self.ranks[0].read_rows(&x.at(0), row_first + in_parts, behind)?;
        }
        let mut part = vec![0.0; divided.len() / count];
        for (rank, device) in self.ranks.iter().enumerate() {
            device.read_rows(&x.part(rank), row_first, &mut part)?;
            for (row, part) in divided.chunks_exact_mut(cols).zip(part.chunks_exact(cols / count)) {
                for (own, first) in layout.columns(rank, count) {
                    row[first..first + own.len()].copy_from_slice(&part[own]);
                }
            }
        }
        Ok(())
    }

    /// To each rank, for an embedding beside them leaves its rows on one.
    fn write_rows(
        &mut self,
        x: &mut Self::Buffer,
        row_first: usize,
        rows: &[f32],
    ) -> Result<(), KernelError> {
        if !x.is_anywhere() {
            // Parts go no further than here.
            let mut all = vec![0.0; x.rows() * x.cols()];
            self.read_rows(x, 0, &mut all)?;
            for rank in self.all() {
                self.ranks[rank].write_rows(x.at_mut(rank), 0, &all)?;
            }
            x.only_on(&self.all());
        }
        self.claim(x);
        self.start(self.all())?;
        for rank in self.all() {
            self.ranks[rank].write_rows(x.at_mut(rank), row_first, rows)?;
        }
        x.not_divided();
        Ok(())
    }
}

impl<B: Peers> Sharded<B> {
    /// What a rank's steps are within: it may have few of the heads that share keys and values, and all of the others.
    fn limits_of(&self, limits: &StepLimits) -> StepLimits {
        let kv_heads = limits.heads.kv_heads / self.ranks.len();
        StepLimits { heads: HeadShape { kv_heads: kv_heads.max(1), ..limits.heads }, ..*limits }
    }
}
