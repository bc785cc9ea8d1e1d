//! Rows on their way from rank to rank.

use std::ops::Range;

use super::TensorParallel;
use super::layout::Layout;
use super::operands::RankBuffer;
use crate::executor::Arena;
use crate::{BufferId, KernelError, Peers};

/// A buffer of a rank.
#[derive(Clone, Copy)]
struct PassageBuffer {
    rank: usize,
    buffer: BufferId,
}

impl<B: Peers> TensorParallel<B> {
    /// Has every rank of some, at least, wait for what all others were asked for until now.
    fn meet(&mut self, ranks: &Range<usize>) -> Result<(), KernelError> {
        if self.acquainted {
            self.ranks.iter_mut().for_each(|rank| rank.backend_mut().meet());
            self.meetings += 1;
            return Ok(());
        }
        let marks = self.ranks.iter_mut().map(|rank| rank.backend_mut().mark());
        let marks = marks.collect::<Result<Vec<_>, _>>()?;
        for rank in ranks.clone() {
            for (_, mark) in marks.iter().enumerate().filter(|&(other, _)| other != rank) {
                self.ranks[rank].backend_mut().follow(mark)?;
            }
        }
        self.meetings += u64::from(*ranks == self.all());
        Ok(())
    }

    /// `to[r][first..] = from[r][columns]`.
    fn copy(
        &mut self,
        from: PassageBuffer,
        columns: Range<usize>,
        to: PassageBuffer,
        first: usize,
    ) -> Result<(), KernelError> {
        if from.rank == to.rank {
            let mut taken = Ok(());
            let Arena { backend, buffers, .. } = &mut self.ranks[to.rank];
            buffers.lock().change(to.buffer, |cells, out| {
                taken = backend.take_columns(cells.get(from.buffer), columns, out, first);
            });
            return taken;
        }
        let source = self.ranks[from.rank].buffers.clone();
        let source = source.lock();
        let Arena { backend, buffers, .. } = &mut self.ranks[to.rank];
        let mut target = buffers.lock();
        backend.take_columns(source.get(from.buffer), columns, target.get_mut(to.buffer), first)
    }

    /// Has whole rows of a buffer on some ranks.
    pub(super) fn bring(&mut self, buffer: &mut RankBuffer, to: &Range<usize>) {
        if to.clone().all(|rank| buffer.is_on(rank)) {
            return;
        }
        let brought = match buffer.divided {
            Some(layout) => self.gather(buffer, layout, to),
            None => self.spread(buffer, to),
        };
        self.kept(brought);
        buffer.also_on(to);
    }

    fn gather(
        &mut self,
        buffer: &mut RankBuffer,
        layout: Layout,
        to: &Range<usize>,
    ) -> Result<(), KernelError> {
        self.meet(to)?;
        let count = self.ranks.len();
        for rank in to.clone() {
            for from in 0..count {
                let source = if self.astray { count - 1 - from } else { from };
                let part = PassageBuffer { rank: source, buffer: buffer.part(source) };
                for (own, first) in layout.columns(from, count) {
                    self.copy(part, own, PassageBuffer { rank, buffer: buffer.at(rank) }, first)?;
                }
            }
        }
        buffer.parts_read = self.meetings;
        self.gathers += 1;
        Ok(())
    }

    /// From a rank that has whole rows to others.
    fn spread(&mut self, buffer: &mut RankBuffer, to: &Range<usize>) -> Result<(), KernelError> {
        self.meet(to)?;
        let from = buffer.somewhere();
        let from = PassageBuffer { rank: from, buffer: buffer.at(from) };
        for rank in to.clone().filter(|&rank| !buffer.is_on(rank)) {
            self.copy(from, 0..buffer.cols, PassageBuffer { rank, buffer: buffer.at(rank) }, 0)?;
        }
        buffer.whole_read = self.meetings;
        Ok(())
    }

    /// Has each rank's part of a buffer where it is, from whole rows if need be.
    pub(super) fn divide(&mut self, buffer: &mut RankBuffer, layout: Layout) {
        if buffer.divided == Some(layout) {
            return;
        }
        self.bring(buffer, &self.all());
        self.claim_parts(buffer);
        let count = self.ranks.len();
        for rank in self.all() {
            let whole = PassageBuffer { rank, buffer: buffer.at(rank) };
            for (own, first) in layout.columns(rank, count) {
                let columns = first..first + own.len();
                let taken =
                    self.copy(whole, columns, PassageBuffer { rank, buffer: buffer.part(rank) }, own.start);
                self.kept(taken);
            }
        }
        buffer.only_divided(layout, self.rows);
    }

    /// Before ranks write their parts of a buffer: others have read what is there.
    pub(super) fn claim_parts(&mut self, buffer: &RankBuffer) {
        if buffer.parts_read == self.meetings {
            let met = self.meet(&self.all());
            self.kept(met);
        }
    }

    /// Likewise, of whole rows.
    pub(super) fn claim(&mut self, buffer: &RankBuffer) {
        if buffer.whole_read == self.meetings {
            let met = self.meet(&self.all());
            self.kept(met);
        }
    }
}
