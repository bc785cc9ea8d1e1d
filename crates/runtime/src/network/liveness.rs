//! Liveness: a check that a program reads only buffers that the step has written, so that no row of one step reaches the next.

use std::collections::HashSet;

use hanzo_engine_ops::{Access, BufferId, Handle, Op, RowOp};

use super::program::{Instruction, Program, Work};
use super::{Buffers, Network};

/// Buffers that hold rows of the step under way.
struct WrittenBuffers(HashSet<BufferId>);

impl WrittenBuffers {
    /// First op of a list that reads a buffer without such rows, and the buffer.
    fn follow(&mut self, list: &[Instruction]) -> Option<(BufferId, Op)> {
        list.iter().find_map(|line| match &line.work {
            Work::Run(op) => self.follow_op(op).map(|buffer| (buffer, op.clone())),
            Work::Observe(_) => None,
        })
    }

    fn follow_op(&mut self, op: &Op) -> Option<BufferId> {
        // These write some columns of a buffer, or zeros.
        let begins = matches!(op, Op::Row { op: RowOp::Put { .. } | RowOp::Scale(0.0), .. });
        let buffers = op.buffers();
        let reads = |access| access == Access::Read || (access == Access::Change && !begins);
        let unwritten = |&&(buffer, access): &&(BufferId, Access)| reads(access) && !self.0.contains(&buffer);
        let found = buffers.iter().find(unwritten).map(|&(buffer, _)| buffer);
        let writes = |access| matches!(access, Access::Write | Access::Change);
        self.0.extend(buffers.iter().filter(|&&(_, access)| writes(access)).map(|&(buffer, _)| buffer));
        found
    }
}

impl Network {
    /// First buffer that a program reads before something wrote it in the step, and the op that reads it.
    pub(super) fn first_unwritten(&self, program: &Program, b: &Buffers) -> Option<(BufferId, Op)> {
        let mut written = WrittenBuffers(b.given().map(Handle::id).chain([program.given]).collect());
        let begin = written.follow(&program.embed).or_else(|| written.follow(&program.begin));
        let layers = || {
            self.layers.iter().zip(&program.layers).find_map(|(layer, lists)| {
                let rows = written.follow(&lists.rows);
                // Attention runs here.
                written.0.insert(b.attended(layer).id());
                written.0.extend(b.latent.as_ref().map(|latent| latent.mixed.id()));
                rows.or_else(|| written.follow(&lists.behind))
            })
        };
        begin.or_else(layers).or_else(|| written.follow(&program.end))
    }
}

#[cfg(test)]
mod tests {
    use hanzo_engine_ops::reference::ReferenceBackend;
    use hanzo_engine_ops::{AnyBackend, BufferRole};

    use super::*;
    use crate::network::program::ProgramBuilder;

    #[test]
    fn a_read_of_nothing_is_found() {
        let backend = AnyBackend::new(ReferenceBackend::new());
        let [a, b, c] = [(); 3].map(|()| backend.buffer(BufferRole::Residual, 2, 8).unwrap());
        let mut p = ProgramBuilder::default();
        p.row(RowOp::Take { x: a.id(), first: 0 }, b.id());
        p.row(RowOp::Put { x: b.id(), first: 4 }, c.id());
        p.add(c.id(), b.id());
        let list = p.finish();
        assert!(WrittenBuffers([a.id()].into()).follow(&list).is_none(), "each is written before it is read");
        let (found, _) = WrittenBuffers(HashSet::new()).follow(&list).unwrap();
        assert_eq!(found, a.id());
        p.add(a.id(), b.id());
        let (found, _) = WrittenBuffers([a.id()].into()).follow(&p.finish()).unwrap();
        assert_eq!(found, b.id(), "an addition reads what it changes");
    }
}
