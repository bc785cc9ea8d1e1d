//! An executor frees what nothing names any more. The suite, which every backend passes, runs all ops through one.

use super::*;
use crate::reference::ReferenceBackend;
use crate::{BufferRole, DType, Handle, MatrixShape, MatrixSource};

#[test]
fn slots_are_used_again_once_their_handles_are_dropped() {
    let backend = AnyBackend::new(ReferenceBackend::default());
    let vector = |value: f32| backend.vector(&[value]).unwrap();
    let (first, second) = (vector(1.0), vector(2.0));
    assert_ne!(first.id(), second.id());
    let freed = first.id();
    drop(first);
    assert_eq!(vector(3.0).id(), freed, "a free slot is taken before a new one is made");
}

#[test]
fn matrices_of_heads_leave_their_slots() {
    let backend = AnyBackend::new(ReferenceBackend::default());
    let shape = MatrixShape { rows: 1, cols: 1, dtype: DType::F32 };
    let source = MatrixSource { name: "head", shape, bytes: &1.0f32.to_le_bytes() };
    let matrix = || backend.pack(&[source]).unwrap();
    let (one, other) = (matrix(), matrix());
    let freed = [one.id(), other.id()];
    let _heads = backend.heads(vec![one, other]);
    assert!(freed.contains(&matrix().id()));
}

#[test]
#[should_panic(expected = "an op names each operand once")]
fn an_op_that_reads_what_it_writes_is_refused() {
    let mut backend = AnyBackend::new(ReferenceBackend::default());
    let mut buffer = backend.buffer(BufferRole::Residual, 1, 4).unwrap();
    let id = buffer.id();
    let alias = std::mem::ManuallyDrop::new(Handle::alias(&buffer));
    assert_eq!(alias.id(), id);
    backend.add_shared(None, &alias, &alias, &mut buffer);
}
