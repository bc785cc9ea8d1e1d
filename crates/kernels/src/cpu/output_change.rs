//! Element-wise changes of an adapter's outputs, before its pairs are added.

use super::lanes::{Kernel, Lanes};
use super::matmul::{get, put};
use hanzo_engine_ops::OutputChange;

const LANES: usize = 16;

/// Factors and addends of some outputs.
#[derive(Debug)]
pub(super) struct FactoredOutputs {
    first: usize,
    factors: Vec<f32>,
    addends: Vec<f32>,
    pub(super) reads_input: bool,
    replaces: bool, // all factors are 0
}

impl FactoredOutputs {
    pub(super) fn new(change: &OutputChange<'_>) -> Self {
        let &OutputChange { first, factors, addends, reads_input } = change;
        let replaces = factors.iter().all(|&factor| factor == 0.0);
        Self { first, factors: factors.to_vec(), addends: addends.to_vec(), reads_input, replaces }
    }

    /// Bytes of a change of so many outputs.
    pub(super) fn bytes(outputs: usize) -> usize {
        2 * size_of::<f32>() * outputs
    }

    /// End of the changed outputs.
    pub(super) fn end(&self) -> usize {
        self.first + self.factors.len()
    }
}

/// Kernel for one change of one row. The creator guarantees the pointers: a row of the input, if it is read, and one
/// of the outputs.
pub(super) struct ChangedRow<'a> {
    pub(super) change: &'a FactoredOutputs,
    pub(super) x: *const f32,
    pub(super) out: *mut f32,
}

impl Kernel for ChangedRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let FactoredOutputs { first, factors, addends, reads_input, replaces } = self.change;
        for at in (0..factors.len()).step_by(LANES) {
            let count = LANES.min(factors.len() - at);
            // SAFETY: the maker's promise; vectors are cut at the change's last output, and there is an addend for
            // each factor.
            unsafe {
                let out = self.out.add(first + at);
                let y = if *reads_input { self.x.add(first + at) } else { out.cast_const() };
                let addend = get::<L>(addends.as_ptr().add(at), count);
                let changed = match replaces {
                    true => addend,
                    false => L::fma(get::<L>(factors.as_ptr().add(at), count), get::<L>(y, count), addend),
                };
                put::<L>(out, changed, count);
            }
        }
    }
}
