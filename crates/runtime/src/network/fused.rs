//! Fusion: neighbouring ops that devices compute faster as one become one. It is the last pass over a program, so that
//! whatever another pass puts between two ops keeps them apart.

use hanzo_engine_ops::{Access, BufferId, Op};

use super::program::{Instruction, Work};

/// A list with neighbours fused. Numbers stay the same bit for bit where the ops of [`Op`] say so.
pub(super) fn fuse(list: Vec<Instruction>) -> Vec<Instruction> {
    let mut made: Vec<Instruction> = Vec::with_capacity(list.len());
    let mut rest = list.into_iter();
    while let Some(next) = rest.next() {
        made.push(next);
        let pair = last_ops(&made).and_then(add_and_norm).map(|op| (2, op));
        let fused = pair.or_else(|| {
            let (scratch, op) = last_ops(&made).and_then(gated_mlp)?;
            (!is_read(rest.as_slice(), scratch)).then_some((3, op))
        });
        if let Some((count, op)) = fused {
            made.truncate(made.len() + 1 - count);
            made.last_mut().expect("at least one of the fused instructions is left").work = Work::Run(op);
        }
    }
    made
}

/// The last ops of a list, if they run under the same condition.
fn last_ops<const N: usize>(list: &[Instruction]) -> Option<[&Op; N]> {
    let last = list.last_chunk::<N>()?;
    let ops = last.each_ref().map(|line| match &line.work {
        Work::Run(op) if line.condition == last[0].condition => Some(op),
        _ => None,
    });
    ops.iter().all(Option::is_some).then(|| ops.map(|op| op.expect("all are there")))
}

/// Whether the next access to a buffer reads it.
fn is_read(list: &[Instruction], buffer: BufferId) -> bool {
    let accesses = list.iter().flat_map(|line| match &line.work {
        Work::Run(op) => op.buffers(),
        Work::Observe(_) => Vec::new(),
    });
    let mut accesses = accesses.filter(|(of, access)| *of == buffer && *access != Access::Unread);
    accesses.next().is_some_and(|(_, access)| access != Access::Write)
}

/// `out += x` and the norm of `out` are one op.
fn add_and_norm([add, norm]: [&Op; 2]) -> Option<Op> {
    let Op::AddShared { gate: None, shared: x, out: residual, .. } = *add else { return None };
    let is_apart = |out: BufferId| out != x && out != residual;
    match *norm {
        Op::RmsNorm { x: sum, weight, eps, out } if sum == residual && is_apart(out) => {
            Some(Op::AddRmsNorm { residual, x, weight, eps, out })
        }
        Op::LayerNorm { x: sum, params, out } if sum == residual && is_apart(out) => {
            Some(Op::AddLayerNorm { residual, x, params, out })
        }
        _ => None,
    }
}

/// Two products and the gate between them are one op. Returns it behind the buffer that it does without.
fn gated_mlp([up, gate, down]: [&Op; 3]) -> Option<(BufferId, Op)> {
    let Op::MatMul { weight: gate_up, bias: None, x, out: product } = *up else { return None };
    let Op::Gate { activation, both, hidden } = *gate else { return None };
    let Op::MatMul { weight: down, bias: None, x: inner, out } = *down else { return None };
    let fits = both == product && inner == hidden && out != x;
    fits.then_some((both, Op::GatedMlp { gate_up, down, activation, x, hidden, out }))
}

#[cfg(test)]
mod tests {
    use hanzo_engine_ops::reference::ReferenceBackend;
    use hanzo_engine_ops::{
        Activation, AnyBackend, Buffer, BufferRole, DType, MatrixShape, MatrixSource, RowOp,
    };

    use super::*;
    use crate::network::program::{Condition, ProgramBuilder};

    const EPS: f32 = 1e-5;

    fn buffers<const N: usize>(backend: &AnyBackend) -> [Buffer; N] {
        [(); N].map(|()| backend.buffer(BufferRole::Residual, 1, 8).unwrap())
    }

    fn ops(list: Vec<Instruction>) -> Vec<String> {
        let name = |line: Instruction| match line.work {
            Work::Run(op) => format!("{op:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
            Work::Observe(_) => "Observe".to_owned(),
        };
        list.into_iter().map(name).collect()
    }

    #[test]
    fn a_sum_and_its_norm_become_one_op() {
        let backend = AnyBackend::new(ReferenceBackend::new());
        let weight = backend.vector(&[1.0; 8]).unwrap();
        let [sum, x, out, other] = buffers(&backend);
        let mut p = ProgramBuilder::default();
        p.add(x.id(), sum.id());
        p.rms_norm(sum.id(), &weight, EPS, out.id());
        p.add(x.id(), sum.id());
        p.rms_norm(x.id(), &weight, EPS, out.id());
        p.add(x.id(), sum.id());
        p.rms_norm(sum.id(), &weight, EPS, x.id());
        p.add(x.id(), sum.id());
        p.row(RowOp::Scale(2.0), other.id());
        p.rms_norm(sum.id(), &weight, EPS, out.id());
        p.add(x.id(), sum.id());
        p.condition = Condition::WithDeepRows;
        p.rms_norm(sum.id(), &weight, EPS, out.id());
        let expected = [
            "AddRmsNorm",
            // The norm of something else, one that would overwrite what is added, and one behind another op.
            "AddShared",
            "RmsNorm",
            "AddShared",
            "RmsNorm",
            "AddShared",
            "Row",
            "RmsNorm",
            // A norm that does not run at every step.
            "AddShared",
            "RmsNorm",
        ];
        assert_eq!(ops(fuse(p.finish())), expected);
    }

    #[test]
    fn products_around_a_gate_become_one_op_unless_more_reads_the_gate() {
        let backend = AnyBackend::new(ReferenceBackend::new());
        let matrix = |rows, cols| {
            let shape = MatrixShape { rows, cols, dtype: DType::F32 };
            let bytes = vec![0; rows * cols * 4];
            backend.pack(&[MatrixSource { name: "weight", shape, bytes: &bytes }]).unwrap()
        };
        let (gate_up, down) = (matrix(8, 8), matrix(8, 4));
        let [x, both, hidden, out, more] = buffers(&backend);
        let mlp = |p: &mut ProgramBuilder| {
            p.matmul(&gate_up, None, x.id(), both.id());
            p.op(Op::Gate { activation: Activation::Silu, both: both.id(), hidden: hidden.id() });
            p.matmul(&down, None, hidden.id(), out.id());
        };
        let mut p = ProgramBuilder::default();
        mlp(&mut p);
        mlp(&mut p);
        p.add(both.id(), more.id());
        let expected = ["GatedMlp", "MatMul", "Gate", "MatMul", "AddShared"];
        assert_eq!(ops(fuse(p.finish())), expected);
    }
}
